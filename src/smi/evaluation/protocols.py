"""Define the protocols of `smi evaluate`: how each one runs, and the dictionary that describes it.

protocol = PROTOCOLS["knn"]
protocol.describe(case)     # everything that comparable results must share; it is hashed
protocol.run(case)          # scores

The dictionaries are hashed into the stamps of results. A changed key or value makes all stored
results of that protocol incomparable with new ones.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from smi.data import Store
from smi.device import Precision
from smi.distributed import in_parts, on_rank_0
from smi.errors import UserError
from smi.evaluation import finetune, linear_sgd, logistic
from smi.evaluation.accuracy import check_features, top_k
from smi.evaluation.features import FeatureSplits, extract_labelled, labels_of
from smi.evaluation.fewshot import FEW_SHOT_L2, few_shot
from smi.evaluation.finetune import fine_tune
from smi.evaluation.knn import KNN_K, KNN_TEMPERATURE, KnnResult, knn_votes
from smi.evaluation.labelled import LabelledData
from smi.evaluation.linear_sgd import Epoch, Task, Training, light, train_linear
from smi.evaluation.logistic import linear_accuracy
from smi.evaluation.results import Score
from smi.terminal import Progress, announce, epochs_text, suggest
from smi.views import Policy
from smi.views.normalisation import kept_side
from smi.views.policies import Triple

SHOTS = (1, 5, 10)  # labels per class
NUM_DRAWS = 20
SECONDS_BETWEEN_REPORTS = 30


@dataclass(frozen=True)
class Subject:
    """Describe a network to evaluate, and the input it needs."""

    name: str  # one of SUBJECTS
    network: nn.Module
    size: int
    mean: Triple
    std: Triple
    about: dict[str, Any]  # `Result.encoder`
    encoder_size: int  # input size of the encoder, by which the crop of all subjects is decided
    resolution: int | None = None  # pixels of images in pretraining, before the views

    def crop(self, store: Store) -> int:
        """Return the side of the centre that is kept of the images of a store."""
        return kept_side(store.resolution, self.encoder_size)


@dataclass(frozen=True)
class Case:
    """Hold the input of a protocol: a subject, labelled images and how to compute.

    epochs: None takes the default of the protocol. Several processes run each protocol together.
    """

    data: LabelledData
    subject: Subject
    device: torch.device
    epochs: int | None = None
    precision: Precision = "float32"

    @property
    def protocol(self) -> dict[str, Any]:
        """Describe what all protocols share: the images, and their crop and precision if special.

        It is hashed. Whole images and float32 add nothing, so that older results stay comparable.
        """
        is_cropped = self.subject.crop(self.data.test) < self.data.test.resolution
        crop = {"crop": "centre 7/8"} if is_cropped else {}
        precision = {"precision": self.precision} if self.precision != "float32" else {}
        return self.data.protocol | crop | precision

    @property
    def phrase(self) -> str:
        """Return the crop and the precision in words, to end the sentence of a result."""
        special = self.protocol
        crop = ", centre crops of 7/8" if "crop" in special else ""
        precision = f", computed in {self.precision}" if "precision" in special else ""
        return crop + precision

    @cached_property
    def rows(self) -> FeatureSplits:
        """Compute the features of both splits, once for all protocols."""
        return FeatureSplits(*self._extract(self.data.train), *self._extract(self.data.test))

    def _extract(self, store: Store) -> tuple[Tensor, Tensor]:
        subject = self.subject
        with Progress(f"features, {subject.name}", len(store), "images") as progress:
            return extract_labelled(
                subject.network,
                store,
                mean=subject.mean,
                std=subject.std,
                size=subject.size,
                crop=subject.crop(store),
                precision=self.precision,
                together=True,
                advance=progress.advance,
            )

    @property
    def policy(self) -> Policy:
        """Return the crops and flips of protocols that train on views."""
        subject = self.subject
        return light(self.data.data, size=subject.size, mean=subject.mean, std=subject.std)

    @property
    def task(self) -> Task:
        """Return the training images and their views for a classifier."""
        data = self.data
        return Task(self.subject.network, data.train, self.policy, data.num_classes, self.precision)

    def training(self, doing: str) -> Training:
        """Return the training settings of a classifier. doing: a name for the reports on stderr."""
        return Training(self.epochs, seed=self.data.seed, watch=_reporter(doing))


@dataclass(frozen=True)
class Outcome:
    """Hold the measurements of a protocol."""

    scores: list[Score]
    sentence: str  # the protocol in words
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """Hold the two functions of a protocol: its dictionary and its measurement."""

    describe: Callable[[Case], dict[str, Any]]
    run: Callable[[Case], Outcome]


# -------------------------------------------------------------------------------------------- kNN


def _describe_knn(case: Case) -> dict[str, Any]:
    return {
        "k": min(KNN_K, len(case.data.train)),
        "temperature": KNN_TEMPERATURE,
        "similarity": "cosine",
    }


def _run_knn(case: Case) -> Outcome:
    bank, bank_labels, queries, labels = case.rows
    num_classes = check_features(*case.rows, num_classes=case.data.num_classes)
    votes = in_parts(
        lambda some: knn_votes(
            bank, bank_labels, some, num_classes=num_classes, device=case.device
        ),
        queries,
    )
    top1, top5 = top_k(votes.cpu(), labels)
    k = min(KNN_K, len(bank))
    result = KnnResult(top1, top5, k, KNN_TEMPERATURE, len(bank), len(queries))
    return Outcome([Score("kNN", result.top1)], result.protocol, {"top5": result.top5})


# ------------------------------------------------------------- linear classifier, cached features


def _describe_linear_cached(case: Case) -> dict[str, Any]:
    return {
        "l2 from": _grid(logistic.L2_GRID, case),
        "l2 by": "the strongest good one on a fifth of the training images",
        "seed": case.data.seed,
    }


def _run_linear_cached(case: Case) -> Outcome:
    result = linear_accuracy(
        *case.rows,
        grid=_grid(logistic.L2_GRID, case),
        num_classes=case.data.num_classes,
        seed=case.data.seed,
    )
    details = {
        "l2": result.l2,
        "validation": result.validation,
        "converged": result.classifier.converged,
    }
    scores = _top_scores("linear-cached", result.top1, result.top5)
    return Outcome(scores, result.protocol, details)


def _grid(values: Sequence[float], case: Case) -> list[float]:
    """Return the values to choose from; the middle one if images are too few to choose by."""
    enough = len(case.data.train) >= 2 * logistic.NUM_FOLDS
    return list(values) if enough else [values[len(values) // 2]]


# ------------------------------------------------------------------------------------- few labels


def _describe_few_shot(case: Case) -> dict[str, Any]:
    largest_class = int(labels_of(case.data.train).bincount().max())
    return {
        "labels of each class": [shots for shots in SHOTS if shots <= largest_class],
        "draws": NUM_DRAWS,
        "l2": FEW_SHOT_L2,
        "seed": case.data.seed,
    }


def _run_few_shot(case: Case) -> Outcome:
    data = case.data
    shots = _describe_few_shot(case)["labels of each class"]
    results = few_shot(
        *case.rows, shots=shots, draws=NUM_DRAWS, num_classes=data.num_classes, seed=data.seed
    )
    scores = [
        Score(f"{r.shots} label{'s' if r.shots != 1 else ''}", r.mean, r.low, r.high)
        for r in results
    ]
    sentence = (
        f"logistic regression (l2 = {FEW_SHOT_L2:g}) on frozen features of "
        f"{', '.join(map(str, shots))} labelled images of each of {data.num_classes} classes, "
        f"mean and 95 % interval over {NUM_DRAWS} draws, on {len(data.test):,} images"
    )
    details = {
        "draws": {str(r.shots): r.draws for r in results},
        "fewest of a class": results[-1].smallest,
    }
    return Outcome(scores, sentence, details)


# ------------------------------------------------------------------- linear classifier with views


def _describe_linear(case: Case) -> dict[str, Any]:
    momentum, decay = linear_sgd.SGD_MOMENTUM, linear_sgd.SGD_WEIGHT_DECAY
    return {
        "epochs": case.epochs or linear_sgd.LINEAR_EPOCHS,
        "batch": linear_sgd.CLASSIFIER_BATCH_SIZE,
        "optimizer": f"SGD, momentum {momentum:g}, weight decay {decay:g}, cosine",
        "lr from": _grid(linear_sgd.LEARNING_RATES, case),
        "lr by": (
            "the smallest good one on a fifth of the training images, "
            "in a tenth of the epochs (3 at least)"
        ),
        "seed": case.data.seed,
        "augmentation": _augmentation(case),
        "epoch reported": "last",
    }


def _run_linear(case: Case) -> Outcome:
    result = train_linear(
        case.task,
        case.rows,
        lrs=_grid(linear_sgd.LEARNING_RATES, case),
        training=case.training(f"linear, {case.subject.name}"),
    )
    details = {
        "lr": result.lr,
        "validation": result.validation,
        "curves": [asdict(epoch) for epoch in result.curves],
    }
    return Outcome(_top_scores("linear", result.top1, result.top5), result.protocol, details)


# ------------------------------------------------------------------------------------ fine-tuning


def _describe_fine_tune(case: Case) -> dict[str, Any]:
    lr, decay = finetune.ADAMW_LR, finetune.ADAMW_WEIGHT_DECAY
    return {
        "shares of the labels": list(finetune.LABEL_SHARES),
        "seed": case.data.seed,
        "epochs": case.epochs or finetune.FINE_TUNING_EPOCHS,
        "steps, at least": finetune.MIN_STEPS,
        "batch": linear_sgd.CLASSIFIER_BATCH_SIZE,
        "optimizer": f"AdamW, lr {lr:g}, weight decay {decay:g}, cosine",
        "augmentation": _augmentation(case),
        "epoch reported": "last",
    }


def _run_fine_tune(case: Case) -> Outcome:
    data = case.data
    results = []
    for share in finetune.LABEL_SHARES:
        training = case.training(f"fine-tuning, {case.subject.name}, {share:.0%} of the labels")
        results.append(fine_tune(case.task, data.test, share=share, training=training))
    scores = [Score(f"{r.share:.0%} of labels", r.top1) for r in results]
    details = {
        f"{r.share:.0%}": {
            "labels": r.num_labels,
            "top5": r.top5,
            "epochs": r.epochs,
            "curves": [asdict(epoch) for epoch in r.curves],
        }
        for r in results
    }
    sentence = (
        "encoder and linear classifier trained together on random crops and flips of 1 %, 10 % and "
        f"all of {len(data.train):,} labelled images, AdamW, last of "
        f"{epochs_text(case.epochs or finetune.FINE_TUNING_EPOCHS)} "
        f"({finetune.MIN_STEPS} steps, if that is more), on {len(data.test):,} images"
    )
    return Outcome(scores, sentence, details)


# ---------------------------------------------------------------------------------- all protocols


def _on_rank_0(run: Callable[[Case], Outcome]) -> Callable[[Case], Outcome]:
    """Return a function that runs a protocol on rank 0; other processes wait for its outcome.

    The features are computed by all of them.
    """

    def run_there(case: Case) -> Outcome:
        _ = case.rows
        return on_rank_0(lambda: run(case))

    return run_there


PROTOCOLS = {
    "knn": Protocol(_describe_knn, _run_knn),
    "linear-cached": Protocol(_describe_linear_cached, _on_rank_0(_run_linear_cached)),
    "fewshot": Protocol(_describe_few_shot, _on_rank_0(_run_few_shot)),
    "linear": Protocol(_describe_linear, _run_linear),
    "finetune": Protocol(_describe_fine_tune, _run_fine_tune),
}
QUICK_PROTOCOLS = ("knn", "linear-cached", "fewshot")


def choose_protocols(names: Sequence[str] | None) -> list[str]:
    """Return the named protocols in the order of PROTOCOLS; None takes the quick ones."""
    if not names:
        return list(QUICK_PROTOCOLS)
    for name in names:
        if name not in (*PROTOCOLS, "all"):
            raise UserError(f"there is no protocol {name!r}: {suggest(name, PROTOCOLS)}")
    return [name for name in PROTOCOLS if name in names or "all" in names]


def _top_scores(name: str, top1: float, top5: float | None) -> list[Score]:
    return [Score(name, top1), *([] if top5 is None else [Score(f"{name} top-5", top5)])]


def _augmentation(case: Case) -> str:
    """Describe the crops and flips of the training images. The words are part of the stamp."""
    view = case.policy.views[0]
    pixels = "pixels" if view.pad > 1 else "pixel"
    whole = " of the whole image" if case.data.train.keep == "aspect" else ""
    padded = f" of the image in a frame of {view.pad} {pixels}" if view.pad else ""
    flips = f", flip {view.flip_p:g}" if view.flip_p else ""
    return f"crops of {view.scale[0]:g} to {view.scale[1]:g} of the area{whole}{padded}{flips}"


def _reporter(doing: str) -> Callable[[Epoch], None]:
    """Return a function that reports an epoch on stderr, at most every half minute."""
    last = time.monotonic()

    def report(epoch: Epoch) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            announce(
                f"{doing}: epoch {epoch.epoch}, top-1 {epoch.train_top1:.1%} in training, "
                f"{epoch.test_top1:.1%} on test images"
            )

    return report
