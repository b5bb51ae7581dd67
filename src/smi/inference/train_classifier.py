"""Train a classifier in two ways, and keep the one that is better on images kept apart.

frozen: logistic regression on the features of the encoder as it is.
fine-tuned: the encoder and a linear head trained together on random crops and flips.
"""

import contextlib
import datetime
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smi.data import Store
from smi.data.batches import Batches
from smi.data.given import Given
from smi.data.subset import Subset
from smi.device import Runtime, describe_device, device_of, versions
from smi.errors import UserError
from smi.evaluation.accuracy import top_k
from smi.evaluation.calibration import fit_temperature, log_loss
from smi.evaluation.features import extract_labelled
from smi.evaluation.finetune import FINE_TUNING_EPOCHS, MIN_STEPS, new_network, train_epochs
from smi.evaluation.linear_sgd import Task, light
from smi.evaluation.logistic import L2_GRID, LinearClassifier, fit_each, nearly_best
from smi.files import disk_errors, expand, write_json
from smi.inference.classifier import CLASSIFIER, Classifier, is_classifier, save_classifier
from smi.inference.labelled_images import LabelledImages, open_labelled
from smi.runs.encoder import Pretrained, load
from smi.seeds import derive
from smi.terminal import Progress, announce, counted, duration, printable

SCORES = "scores.json"
FROZEN, FINE_TUNED = "frozen", "fine-tuned"
MAX_FINE_TUNING_SECONDS = 600  # unless the caller chooses the epochs
MIN_FINE_TUNING_STEPS = 20  # fewer would not be worth their time
MAX_SMALL_EPOCHS = 50  # few images take more epochs than many, but not more than this
BATCH_SIZES = 8, 64  # the smallest and the largest: steps are few where time is short
STEPS_PER_EPOCH = 8  # where images are few; batches are smaller then
NUM_TIMED_STEPS = 3
NUM_TIMED_IMAGES = 16  # of a timed step


@dataclass(frozen=True)
class Candidate:
    """Hold a classifier that was trained in one way, and its scores on the images kept apart."""

    way: str  # frozen or fine-tuned
    encoder: Pretrained
    head: nn.Linear
    accuracy: float
    temperature: float
    log_loss: float  # with this temperature
    log_loss_before: float  # with temperature 1
    details: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the scores, ready for JSON."""
        return {
            "accuracy": self.accuracy,
            "log_loss": self.log_loss,
            "log_loss_before_calibration": self.log_loss_before,
            "temperature": self.temperature,
            **self.details,
        }


def train_classifier(
    source: str | Path,
    *,
    data: Given,
    out: str | Path,
    epochs: int | None = None,
    seed: int = 0,
    runtime: Runtime = Runtime(),
) -> Classifier:
    """Train a classifier on labelled images, write its folder and return it.

    epochs: of fine-tuning; 0 skips it, None takes those that fit into ten minutes.
    """
    folder = expand(out)
    if is_classifier(source):
        raise UserError(
            f"{printable(str(source))} is a classifier already: to train another one, name the "
            "run or the encoder that it should use"
        )
    encoder = load(source)
    with _claimed(folder):
        encoder.to(runtime.choose_device())
        begin = time.perf_counter()
        with open_labelled(data, encoder, seed, runtime) as images:
            classifier = _train_both(encoder, images, epochs, seed)
        seconds = round(time.perf_counter() - begin, 1)
        with disk_errors(f"writing {folder}"):
            save_classifier(folder, classifier)
            write_json(folder / SCORES, _scores_file(classifier, seconds))
    classifier.source = folder
    classifier.summary += f"\n{_describe_files(folder)}"
    return classifier


def _train_both(
    encoder: Pretrained, images: LabelledImages, epochs: int | None, seed: int
) -> Classifier:
    """Train in both ways and return the better classifier."""
    protocol = {"encoder": encoder.digest(), **_protocol(images, seed)}
    # Images of more than 8 bits are scaled in the same way from now on.
    encoder.value_range = encoder.value_range or images.train.value_range
    frozen = _fit_frozen(encoder, images)
    tuned = _fine_tune(encoder, images, epochs, seed)
    candidates = [frozen, *([tuned] if isinstance(tuned, Candidate) else [])]
    # Equal accuracies keep the frozen features, which come first.
    best = max(candidates, key=lambda candidate: candidate.accuracy)
    scores = {candidate.way: candidate.plain() for candidate in candidates}
    return Classifier(
        best.encoder,
        best.head,
        classes=images.classes,
        temperature=best.temperature,
        scores=scores | ({} if isinstance(tuned, Candidate) else {"skipped": tuned}),
        protocol={"kept": best.way, **protocol},
        summary=_compare(best, candidates, images, tuned),
    )


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Create the folder before the long computation; after an error, remove it if it is empty."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another --out")
    paths = folder.iterdir() if folder.is_dir() else ()
    names = {path.name for path in paths if path.suffix != ".partial"}  # those of a killed command
    if names and CLASSIFIER not in names:
        raise UserError(f"{folder} exists and is not a classifier: choose another --out")
    if foreign := sorted(names - {CLASSIFIER, SCORES}):  # also an export of the old classifier
        raise UserError(
            f"{folder} holds {printable(foreign[0])}, which the new classifier would not fit: move "
            "it away or choose another --out"
        )
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with disk_errors(f"creating {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


# ------------------------------------------------------------------------------------------- frozen


def _fit_frozen(encoder: Pretrained, images: LabelledImages) -> Candidate:
    """Fit logistic regression on frozen features; the images kept apart choose l2."""
    h, labels = _outputs(encoder, encoder, images.train, "features")
    apart_h, apart_labels = _outputs(encoder, encoder, images.apart, "features, kept apart")
    tried: dict[float, tuple[LinearClassifier, float]] = {}
    with Progress("fitting", len(L2_GRID) * len(h), "images") as progress:
        for classifier in fit_each(h, labels, grid=L2_GRID, num_classes=len(images.classes)):
            accuracy, _ = top_k(classifier.scores(apart_h), apart_labels)
            tried[classifier.l2] = classifier, accuracy
            progress.advance(len(h))
    accuracies = [(l2, accuracy) for l2, (_, accuracy) in tried.items()]
    l2 = max(nearly_best(accuracies, len(apart_labels)))  # weaker ones overfit
    head = _as_head(tried[l2][0]).to(device_of(encoder, None))
    scores = _scores(head, apart_h)
    return _judge(FROZEN, encoder, head, scores, apart_labels, {"l2": l2})


def _as_head(classifier: LinearClassifier) -> nn.Linear:
    """Return a linear layer on features that are not standardised."""
    num_classes, dim = classifier.weight.shape
    head = nn.Linear(dim, num_classes)
    weight = classifier.weight / classifier.std
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(classifier.bias - weight @ classifier.mean)
    return head


def _scores(head: nn.Linear, h: Tensor) -> Tensor:
    with torch.inference_mode():
        scores: Tensor = head(h.to(head.weight.device)).cpu()
    return scores


def _outputs(
    network: nn.Module, encoder: Pretrained, store: Store, doing: str
) -> tuple[Tensor, Tensor]:
    """Return the outputs of a network for all images of a store, and their labels."""
    with Progress(doing, len(store), "images") as progress:
        return extract_labelled(
            network,
            store,
            mean=encoder.mean,
            std=encoder.std,
            size=encoder.image_size,
            advance=progress.advance,
        )


def _judge(
    way: str,
    encoder: Pretrained,
    head: nn.Linear,
    scores: Tensor,
    labels: Tensor,
    details: dict[str, Any],
) -> Candidate:
    """Calibrate a classifier on the images kept apart, and measure it there."""
    temperature = fit_temperature(scores, labels)
    return Candidate(
        way,
        encoder,
        head,
        top_k(scores, labels)[0],
        temperature,
        log_loss(scores, labels, temperature),
        log_loss(scores, labels),
        details,
    )


# --------------------------------------------------------------------------------------- fine-tuned


def _fine_tune(
    encoder: Pretrained, images: LabelledImages, epochs: int | None, seed: int
) -> Candidate | str:
    """Train encoder and head together, or return why this is skipped."""
    if epochs == 0:
        return "it was not asked for (--epochs 0)"
    if next(encoder.parameters(), None) is None:
        return "the encoder has no weights"
    policy = light(images.name, size=encoder.image_size, mean=encoder.mean, std=encoder.std)
    task = Task(encoder, images.train, policy, len(images.classes))
    smallest, largest = BATCH_SIZES
    batch_size = max(smallest, min(largest, len(images.train) // STEPS_PER_EPOCH))
    batches = Batches(
        images.train, min(batch_size, len(images.train)), seed=derive(seed, "finetune")
    )
    seconds = _time_epoch(task, batches)
    if epochs is None:
        epochs = min(_epochs_for(batches), int(MAX_FINE_TUNING_SECONDS / seconds))
        if epochs * batches.steps_per_epoch < MIN_FINE_TUNING_STEPS:
            return (
                f"an epoch would take about {duration(seconds)} on this machine "
                "(--epochs 3 trains three all the same)"
            )
    announce(
        f"fine-tuning for {counted(epochs, 'epoch')}, about "
        f"{duration(max(1, epochs * seconds))} on this machine (--epochs 0 skips it)"
    )
    network = _train(task, batches, epochs, seed)
    scores, labels = _outputs(network, encoder, images.apart, "testing")
    if not scores.isfinite().all():
        return "its weights became NaN or infinite"
    tuned, head = network
    assert isinstance(tuned, Pretrained)
    assert isinstance(head, nn.Linear)
    return _judge(FINE_TUNED, tuned, head, scores, labels, {"epochs": epochs})


def _epochs_for(batches: Batches) -> int:
    """Return the epochs of fine-tuning if time does not matter: more for few images."""
    enough = math.ceil(MIN_STEPS / batches.steps_per_epoch)
    return max(FINE_TUNING_EPOCHS, min(MAX_SMALL_EPOCHS, enough))


def _train(task: Task, batches: Batches, epochs: int, seed: int) -> nn.Sequential:
    """Return a trained copy of the encoder with its head, in evaluation mode."""
    network = new_network(task, batches)
    torch.manual_seed(derive(seed, "finetune"))  # for dropout and similar layers
    num_images = epochs * batches.steps_per_epoch * batches.batch_size
    with Progress("fine-tuning", num_images, "images") as progress:
        for _ in train_epochs(network, task, batches, epochs, progress.advance):
            pass
    return network.eval()


def _time_epoch(task: Task, batches: Batches) -> float:
    """Estimate the seconds of an epoch from a few steps of a copy."""
    num_images = min(NUM_TIMED_IMAGES, batches.batch_size)
    part = Subset(task.train, torch.arange(min(len(task.train), NUM_TIMED_STEPS * num_images)))
    trial = replace(task, train=part)
    small = Batches(part, num_images, seed=0)
    epochs = math.ceil(NUM_TIMED_STEPS / small.steps_per_epoch)
    network = new_network(trial, small)
    times: list[float] = []
    num_timed = epochs * small.steps_per_epoch * num_images
    with Progress("timing fine-tuning", num_timed, "images") as progress:

        def advance(amount: int) -> None:
            times.append(time.perf_counter())
            progress.advance(amount)

        for _ in train_epochs(network, trial, small, epochs, advance):
            pass
    steps = [after - before for before, after in pairwise(times)]  # without the first one
    return min(steps) / num_images * batches.steps_per_epoch * batches.batch_size


# ----------------------------------------------------------------------------------------- in words


def _protocol(images: LabelledImages, seed: int) -> dict[str, Any]:
    """Return how classifiers are trained and chosen, ready for JSON."""
    return {
        "data": images.name,
        "images": len(images.train),
        "images kept apart": len(images.apart),
        "kept apart": images.how_apart,
        "chosen by": "accuracy on the images kept apart; equal accuracies keep the frozen features",
        "l2 from": list(L2_GRID),
        "temperature by": "log loss on the images kept apart",
        "seed": seed,
    }


def _scores_file(classifier: Classifier, seconds: float) -> dict[str, Any]:
    return classifier.plain() | {
        "made": {
            "date": datetime.date.today().isoformat(),
            "seconds": seconds,
            "device": describe_device(device_of(classifier)),
            "versions": versions(),
        },
    }


def _describe_files(folder: Path) -> str:
    """List the files of a classifier, and the command that uses it."""
    megabytes = (folder / CLASSIFIER).stat().st_size / 1e6
    name = printable(str(folder))
    return (
        f"{name}: {CLASSIFIER} ({megabytes:.1f} MB), {SCORES}\n"
        f"label images with: smi classify {name} IMAGES..."
    )


def _compare(
    best: Candidate, candidates: list[Candidate], images: LabelledImages, tuned: Candidate | str
) -> str:
    """Return one sentence with the scores of both ways and the choice."""
    scores = " and ".join(f"{c.accuracy:.1%} {c.way}" for c in candidates)
    skipped = f"; fine-tuning was skipped: {tuned}" if isinstance(tuned, str) else ""
    return (
        f"{scores}, on {len(images.apart):,} of {len(images.train) + len(images.apart):,} images "
        f"that were kept apart ({images.how_apart}): the {best.way} classifier of "
        f"{len(images.classes):,} classes is kept{skipped}"
    )
