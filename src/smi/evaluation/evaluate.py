"""What `smi evaluate` does: a run's encoder, its untrained twin and raw pixels, under some protocols, on labelled images."""

import contextlib
import dataclasses
import datetime
import difflib
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smi.data import NAMES, Store, load
from smi.data.folders import FileSet
from smi.data.sources import ImageSet, resolve
from smi.data.subset import Subset
from smi.device import choose_device, describe_device, device_of, keep_memory, versions
from smi.errors import UserError
from smi.evaluation import (
    Epoch,
    extract_labelled,
    few_shot,
    fine_tune,
    finetune,
    knn_accuracy,
    light,
    linear_accuracy,
    train_linear,
)
from smi.evaluation import linear_sgd as sgd
from smi.evaluation import logistic as cached
from smi.evaluation.features import PIXELS_SIDE, labels_of
from smi.evaluation.fewshot import L2 as FEW_SHOT_L2
from smi.evaluation.results import FOLDER, Result, Score, path_of, read, read_all, table, write
from smi.files import disk_errors, expand
from smi.runs.encoder import WEIGHTS, Pretrained
from smi.runs.encoder import load as load_encoder
from smi.seeds import derive
from smi.terminal import Progress
from smi.views import Policy
from smi.views.policies import Triple

SHOTS, DRAWS = (1, 5, 10), 20
K, TEMPERATURE = 20, 0.07
SUBJECTS = TRAINED, UNTRAINED, RAW = "encoder", "untrained encoder", "raw pixels"
LOOKED_INTO = 64  # images of a split, to tell them from others of the same names
PATIENCE = 30  # seconds between lines about what takes minutes


@dataclass(frozen=True)
class Subject:
    """What is evaluated, and what its input must look like."""

    name: str  # one of SUBJECTS
    network: nn.Module
    size: int
    mean: Triple
    std: Triple
    about: dict[str, Any]
    resolution: int | None = (
        None  # pixels that images had in pretraining, before views were made of them
    )


class Question:
    """Labelled images of two splits, and what of them every protocol takes down."""

    def __init__(
        self, data: str, train: Store, test: Store, *, images: dict[str, dict[str, Any]], seed: int
    ):
        """data: a set's name, or a folder's with a slash behind it. images: what is known of those of "train" and "test"."""
        self.data, self.train, self.test, self.seed = data, train, test, seed
        labels, test_labels = labels_of(train), labels_of(test)
        self.classes = train.classes or test.classes
        self.num_classes = (
            len(self.classes) if self.classes else int(max(labels.max(), test_labels.max())) + 1
        )
        self.protocol = {
            "data": data,
            "classes": self.num_classes,
            **images,
        }  # the same for whatever is asked of them
        self.notes = list(
            self._look(sorted(set(labels.tolist())), sorted(set(test_labels.tolist())), test_labels)
        )

    def _look(self, trained: list[int], tested: list[int], test_labels: Tensor) -> Sequence[str]:
        """What a user should know of the classes, or cannot go on with."""

        def names(which: Sequence[int]) -> str:
            called = [self.classes[i] if self.classes else str(i) for i in which]
            return ", ".join(called[:5]) + (
                f" and {len(called) - 5} more" if len(called) > 5 else ""
            )

        if len(trained) < 2:
            raise UserError(
                f"all labelled training images of {self.data} are of one class ({names(trained)}): there is nothing to tell apart"
            )
        if not set(trained) & set(tested):
            raise UserError(
                f"no class of {self.data}'s training images ({names(trained)}) is among those to test on ({names(tested)}): the folders of "
                "classes must have the same names in both"
            )
        notes = []
        if unseen := [i for i in tested if i not in trained]:
            wrong = int(torch.isin(test_labels, torch.tensor(unseen)).sum())
            notes.append(
                f"{names(unseen)}: no training images, so {wrong:,} of the {len(test_labels):,} test images cannot be told right"
            )
        if untested := [i for i in trained if i not in tested]:
            notes.append(f"{names(untested)}: no test images")
        if self.num_classes <= 5:
            notes.append(f"{self.num_classes} classes: top-5 would say nothing")
        return notes


class Features:
    """Of a subject, made when they are first asked for, and then for all protocols."""

    def __init__(self, subject: Subject, question: Question):
        self._subject, self._question = subject, question

    @cached_property
    def both(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features and labels of the training images, then of the test images."""
        return (*self._of(self._question.train), *self._of(self._question.test))

    def _of(self, store: Store) -> tuple[Tensor, Tensor]:
        subject = self._subject
        with Progress(f"features, {subject.name}", len(store), "images") as progress:
            return extract_labelled(
                subject.network,
                store,
                mean=subject.mean,
                std=subject.std,
                size=subject.size,
                advance=progress.advance,
            )


@dataclass(frozen=True)
class Asked:
    """What a protocol is given."""

    question: Question
    subject: Subject
    features: Features
    policy: Policy  # crops and flips
    epochs: int | None

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.features.both

    @property
    def device(self) -> torch.device:
        return device_of(self.subject.network, None)


Rule = dict[str, Any]
Answer = tuple[list[Score], str, dict[str, Any]]  # scores, the protocol in words, details


def _knn_rule(asked: Asked) -> Rule:
    return {
        "k": min(K, len(asked.question.train)),
        "temperature": TEMPERATURE,
        "similarity": "cosine",
    }


def _knn(asked: Asked) -> Answer:
    found = knn_accuracy(
        *asked.rows, k=K, temperature=TEMPERATURE, num_classes=asked.question.num_classes
    )
    return [Score("kNN", found.top1)], found.protocol, {"top5": found.top5}


def _linear_cached_rule(asked: Asked) -> Rule:
    by = {
        "l2 by": "the strongest good one on a fifth of the training images",
        "seed": asked.question.seed,
    }
    return {"l2 from": _grid(cached.GRID, asked), **by}


def _grid(values: Sequence[float], asked: Asked) -> list[float]:
    """What to choose from; of images too few to judge by, the one in the middle."""
    return (
        list(values)
        if len(asked.question.train) >= 2 * cached.VALIDATION
        else [values[len(values) // 2]]
    )


def _linear_cached(asked: Asked) -> Answer:
    grid = _grid(cached.GRID, asked)
    found = linear_accuracy(
        *asked.rows, grid=grid, num_classes=asked.question.num_classes, seed=asked.question.seed
    )
    details = {
        "l2": found.l2,
        "validation": found.validation,
        "converged": found.classifier.converged,
    }
    return _tops("linear-cached", found.top1, found.top5), found.protocol, details


def _few_shot_rule(asked: Asked) -> Rule:
    most = int(labels_of(asked.question.train).bincount().max())
    return {
        "labels of each class": [n for n in SHOTS if n <= most],
        "draws": DRAWS,
        "l2": FEW_SHOT_L2,
        "seed": asked.question.seed,
    }


def _few_shot(asked: Asked) -> Answer:
    shots = _few_shot_rule(asked)["labels of each class"]
    results = few_shot(
        *asked.rows,
        shots=shots,
        draws=DRAWS,
        num_classes=asked.question.num_classes,
        seed=asked.question.seed,
    )
    scores = [
        Score(f"{r.shots} label{'s' * (r.shots > 1)}", r.mean, r.low, r.high) for r in results
    ]
    sentence = (
        f"logistic regression (l2 = {FEW_SHOT_L2:g}) on frozen features of {', '.join(map(str, shots))} labelled images of each of "
        f"{asked.question.num_classes} classes, mean and 95 % interval over {DRAWS} draws, on {len(asked.question.test):,} images"
    )
    return (
        scores,
        sentence,
        {
            "draws": {str(r.shots): r.draws for r in results},
            "fewest of a class": results[-1].smallest,
        },
    )


def _linear_rule(asked: Asked) -> Rule:
    return {
        "epochs": asked.epochs or sgd.EPOCHS,
        "batch": sgd.BATCH,
        "optimizer": f"SGD, momentum {sgd.MOMENTUM:g}, weight decay {sgd.WEIGHT_DECAY:g}, cosine",
        "lr from": _grid(sgd.LRS, asked),
        "lr by": "the smallest good one on a fifth of the training images, in a tenth of the epochs (3 at least)",
        "seed": asked.question.seed,
        "augmentation": _augmentation(asked.policy),
        "epoch reported": "last",
    }


def _linear(asked: Asked) -> Answer:
    epochs = asked.epochs or sgd.EPOCHS
    found = train_linear(
        asked.subject.network,
        asked.question.train,
        asked.policy,
        *asked.rows,
        lrs=_grid(sgd.LRS, asked),
        epochs=epochs,
        num_classes=asked.question.num_classes,
        seed=asked.question.seed,
        watch=_watch(f"linear, {asked.subject.name}"),
    )
    details = {
        "lr": found.lr,
        "validation": found.validation,
        "curves": [dataclasses.asdict(epoch) for epoch in found.curves],
    }
    return _tops("linear", found.top1, found.top5), found.protocol, details


def _fine_tune_rule(asked: Asked) -> Rule:
    return {
        "shares of the labels": list(finetune.SHARES),
        "seed": asked.question.seed,
        "epochs": asked.epochs or finetune.EPOCHS,
        "steps, at least": finetune.FEWEST_STEPS,
        "batch": sgd.BATCH,
        "optimizer": f"AdamW, lr {finetune.LR:g}, weight decay {finetune.WEIGHT_DECAY:g}, cosine",
        "augmentation": _augmentation(asked.policy),
        "epoch reported": "last",
    }


def _fine_tune(asked: Asked) -> Answer:
    results = [
        fine_tune(
            asked.subject.network,
            asked.question.train,
            asked.question.test,
            asked.policy,
            share=share,
            epochs=asked.epochs or finetune.EPOCHS,
            num_classes=asked.question.num_classes,
            seed=asked.question.seed,
            watch=_watch(f"fine-tuning, {asked.subject.name}, {share:.0%} of the labels"),
        )
        for share in finetune.SHARES
    ]
    scores = [Score(f"{r.share:.0%} of labels", r.top1) for r in results]
    details = {
        f"{r.share:.0%}": {
            "labels": r.num_labels,
            "top5": r.top5,
            "epochs": r.epochs,
            "curves": [dataclasses.asdict(e) for e in r.curves],
        }
        for r in results
    }
    sentence = (
        f"encoder and linear classifier trained together on random crops and flips of 1 %, 10 % and all of {len(asked.question.train):,} "
        f"labelled images, AdamW, last of {asked.epochs or finetune.EPOCHS} epochs ({finetune.FEWEST_STEPS} steps, if that is more), on "
        f"{len(asked.question.test):,} images"
    )
    return scores, sentence, details


PROTOCOLS: dict[str, tuple[Callable[[Asked], Rule], Callable[[Asked], Answer]]] = {
    "knn": (_knn_rule, _knn),
    "linear-cached": (_linear_cached_rule, _linear_cached),
    "fewshot": (_few_shot_rule, _few_shot),
    "linear": (_linear_rule, _linear),
    "finetune": (_fine_tune_rule, _fine_tune),
}
QUICK = ("knn", "linear-cached", "fewshot")

Rows = list[tuple[str, list[Result]]]


def evaluate(
    sources: Sequence[str | Path],
    *,
    data: str | Path | None = None,
    protocols: Sequence[str] | None = None,
    floors: bool = False,
    images: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    root: str | Path | None = None,
    device: str | None = None,
    num_workers: int | None = None,
) -> Rows:
    """A row of results for each run or file of an encoder and, with `floors`, for what it must beat; each also a file in the run.

    data: labelled images; None: what each was pretrained on. images: so many of the training images, drawn from the seed. A result that
    is there already, of the same weights under the same protocol, is not computed again.
    """
    chosen, place = _chosen(protocols), choose_device(device)
    if place.type == "cpu":
        keep_memory()
    encoders = [
        load_encoder(source) for source in sources
    ]  # a name that is wrong says so before anything is computed
    rows: dict[tuple[str, str], list[Result]] = {}  # floors are the same for every run
    with ExitStack() as stack:
        for source, encoder in zip(sources, encoders, strict=True):
            asked = data or encoder.about.get("data")
            if asked is None:
                raise UserError(
                    f"{source} does not say what it was pretrained on: name labelled images with --data"
                )
            question = _question(
                str(asked), encoder, root or encoder.root, num_workers, images, seed, stack
            )
            home = _home(encoder.source)
            with disk_errors(
                f"writing results into {home}"
            ):  # which else would fail behind hours of work
                (home / FOLDER).mkdir(parents=True, exist_ok=True)
            for name, subject in _subjects(str(source), encoder.to(place), question, floors):
                key = name, subject.about["digest"]
                rows[key] = rows.get(key) or _answers(subject, question, chosen, epochs, home)
            encoder.to("cpu")
    return [(name, results) for (name, _), results in rows.items()]


def stored(
    sources: Sequence[str | Path],
    *,
    protocols: Sequence[str] | None = None,
    data: str | Path | None = None,
    floors: bool = False,
) -> Rows:
    """The results there are: a row for each state of an encoder and, with `floors`, for what it must beat."""
    chosen = _chosen(protocols) if protocols else list(PROTOCOLS)
    rows: dict[tuple[str, str], list[Result]] = {}
    for source in sources:
        path = expand(source)
        if not path.exists():
            raise UserError(f"there is no run or encoder {path}")
        found = [
            result
            for result in read_all(_home(path))
            if result.protocol["name"] in chosen
            and (data is None or result.protocol["data"] == _called(data))
            and (floors or result.subject == "encoder")
        ]
        if not found:
            raise UserError(f"{path} has no such results yet: `smi evaluate {path}` makes some")
        order = sorted(
            found,
            key=lambda r: (
                SUBJECTS.index(r.subject),
                r.encoder.get("epoch") or 0,
                chosen.index(r.protocol["name"]),
            ),
        )
        for result in order:
            rows.setdefault(
                (row_name(str(source), result.subject, result.encoder), result.encoder["digest"]),
                [],
            ).append(result)
    return [(name, results) for (name, _), results in rows.items()]


def row_name(source: str, subject: str, about: Mapping[str, Any]) -> str:
    """What a row of the table is called."""
    if subject == RAW:
        return f"raw pixels, {about['size']} × {about['size']}"
    if subject == UNTRAINED:
        return f"untrained {about['network']}, seed {about['seed']}"
    return f"{source}, epoch {about['epoch']:g}" if about.get("epoch") is not None else source


def print_results(rows: Rows, *, as_json: bool = False) -> None:
    if as_json:
        print(
            json.dumps(
                [
                    {"source": name, **result.plain()}
                    for name, results in rows
                    for result in results
                ],
                indent=2,
            )
        )
    else:
        print(table(rows))


def _chosen(protocols: Sequence[str] | None) -> list[str]:
    if not protocols:
        return list(QUICK)
    for name in protocols:
        if name not in (*PROTOCOLS, "all"):
            close = difflib.get_close_matches(name, PROTOCOLS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(PROTOCOLS)}"
            raise UserError(f"there is no protocol {name!r}: {hint}")
    return [name for name in PROTOCOLS if name in protocols or "all" in protocols]


def _home(source: Path) -> Path:
    """Where results go: into the run or the export; for a file of any other name into a folder beside it."""
    if source.is_dir():
        return source
    return source.parent if source.name in WEIGHTS else source.with_name(f"{source.stem}-results")


def _called(data: str | Path) -> str:
    """A set's name, or that of the folder with a slash behind it: there may be a folder called cifar10."""
    return str(data) if str(data) in NAMES else f"{expand(data).resolve().name}/"


def _question(
    data: str,
    encoder: Pretrained,
    root: str | Path | None,
    num_workers: int | None,
    images: int | None,
    seed: int,
    stack: ExitStack,
) -> Question:
    known: dict[str, dict[str, Any]] = {}

    def open_split(split: Literal["train", "val"], part: str) -> Store:
        found = resolve(data, split, Path(root) if root else None)
        known[part] = {"split": split, "images": len(found), "which": _fingerprint(found)}
        resolution = encoder.resolution if isinstance(found, FileSet) else None
        store = load(data, split, resolution=resolution, root=root, num_workers=num_workers)
        stack.callback(store.close)
        return store

    train = open_split("train", "train")
    labels_of(train)  # before it is missed that there is nothing to test on
    test = open_split("val", "test")
    if images is not None:
        if images > len(train):
            raise UserError(
                f"--images asks for {images:,} labelled images, and {_called(data)} has {len(train):,}"
            )
        order = torch.randperm(
            len(train), generator=torch.Generator().manual_seed(derive(seed, "labelled"))
        )
        train = Subset(train, order[:images].sort().values)
        known["train"] |= {"images": images, "drawn with seed": seed}
    return Question(_called(data), train, test, images=known, seed=seed)


def _fingerprint(images: ImageSet) -> str:
    """Of labels, of files' paths and sizes, and of what is in some of them: numbers on other images are not to be compared."""
    found = hashlib.sha256(
        json.dumps(images.classes).encode()
        + (b"" if images.labels is None else images.labels.tobytes())
    )
    some = set(range(0, len(images), -(-len(images) // LOOKED_INTO)))
    if isinstance(images, FileSet):
        for i, entry in enumerate(images.entries):
            found.update(f"{entry.path}\0{entry.size}\0".encode(errors="surrogateescape"))
            if i in some:
                with contextlib.suppress(OSError):  # one that cannot be read has no content
                    found.update((images.root / entry.path).read_bytes())
    else:
        for part in images.parts:
            found.update(part[: LOOKED_INTO // len(images.parts) + 1].tobytes())
    return found.hexdigest()[:8]


def _subjects(
    source: str, encoder: Pretrained, question: Question, floors: bool
) -> Iterator[tuple[str, Subject]]:
    size, mean, std, network = (
        encoder.image_size,
        encoder.mean,
        encoder.std,
        encoder.settings["name"],
    )
    about: dict[str, Any] = {
        key: encoder.about[key]
        for key in ("method", "epoch", "step", "seed")
        if key in encoder.about
    }
    found = [
        Subject(
            TRAINED,
            encoder,
            size,
            mean,
            std,
            {"digest": encoder.digest(), "network": network, **about},
            encoder.resolution,
        )
    ]
    if floors:
        twin = encoder.untrained()
        about = {"digest": twin.digest(), "network": network, "seed": encoder.about.get("seed", 0)}
        found.append(Subject(UNTRAINED, twin, size, mean, std, about, encoder.resolution))
        side = min(PIXELS_SIDE, question.train.resolution)
        about = {"digest": f"{side:08d}", "size": side}
        found.append(Subject(RAW, nn.Flatten(), side, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), about))
    for subject in found:
        yield row_name(source, subject.name, subject.about), subject


def _answers(
    subject: Subject, question: Question, protocols: Sequence[str], epochs: int | None, home: Path
) -> list[Result]:
    policy = light(question.data, size=subject.size, mean=subject.mean, std=subject.std)
    asked = Asked(question, subject, Features(subject, question), policy, epochs)
    results = []
    for name in protocols:
        if name == "finetune" and next(subject.network.parameters(), None) is None:
            continue  # pixels have no weights to tune
        rule, answer = PROTOCOLS[name]
        protocol = {"name": name, **question.protocol, **rule(asked)}
        path = path_of(home, protocol, subject.name, subject.about["digest"])
        known = read(path) if path.is_file() else None
        if known is None or known.encoder["digest"] != subject.about["digest"]:
            begun = time.perf_counter()
            scores, sentence, details = answer(asked)
            made = {
                "date": datetime.date.today().isoformat(),
                "seconds": round(time.perf_counter() - begun, 1),
                "device": describe_device(asked.device),
                "versions": versions(),
            }
            notes = (*question.notes, *_fits(subject, question))
            known = Result(
                protocol, subject.name, subject.about, tuple(scores), sentence, notes, details, made
            )
            known = read(write(home, known))
        results.append(known)
    return results


def _fits(subject: Subject, question: Question) -> Iterator[str]:
    """What was done to images that are not of the encoder's size, and to files that are none."""
    side = question.test.resolution
    if subject.resolution is not None and side != subject.resolution:
        yield f"images of {side} pixels were made {subject.size}, which this encoder was pretrained with"
    if bad := len(question.train.bad) + len(question.test.bad):
        yield f"{bad:,} files could not be read; another image stands for each"


def _tops(name: str, top1: float, top5: float | None) -> list[Score]:
    return [Score(name, top1), *([] if top5 is None else [Score(f"{name} top-5", top5)])]


def _augmentation(policy: Policy) -> str:
    view = policy.views[0]
    padded = (
        f" of the image in a frame of {view.pad} pixel{'s' * (view.pad > 1)}" if view.pad else ""
    )
    return f"crops of {view.scale[0]:g} to {view.scale[1]:g} of the area{padded}" + (
        f", flip {view.flip_p:g}" if view.flip_p else ""
    )


def _watch(doing: str) -> Callable[[Epoch], None]:
    """A line on stderr every half minute."""
    last = time.monotonic()

    def say(epoch: Epoch) -> None:
        nonlocal last
        if time.monotonic() - last > PATIENCE:
            last = time.monotonic()
            print(
                f"{doing}: epoch {epoch.epoch}, top-1 {epoch.train_top1:.1%} in training, {epoch.test_top1:.1%} on test images",
                file=sys.stderr,
            )

    return say
