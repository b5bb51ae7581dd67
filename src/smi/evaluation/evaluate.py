"""Evaluate encoders on labelled images, as `smi evaluate` does.

evaluation = evaluate(["runs/mine"], protocols=["knn", "linear-cached"])
print(evaluation.text())
"""

import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from smi.data.given import Given, as_path
from smi.data.sources import dataset_label
from smi.device import (
    Runtime,
    choose_device,
    choose_precision,
    describe_device,
    keep_memory,
    versions,
)
from smi.distributed import from_all_ranks, local_rank, on_rank_0, processes, rank, world_size
from smi.errors import UserError
from smi.evaluation.features import PIXELS_SIDE
from smi.evaluation.labelled import LabelledData, LabelledSource
from smi.evaluation.protocols import PROTOCOLS, Case, Subject, choose_protocols
from smi.evaluation.results import (
    FLOORS,
    OFF_THE_SHELF,
    RAW_PIXELS,
    RESULTS_FOLDER,
    STUDENT,
    SUBJECTS,
    TRAINED,
    UNTRAINED,
    Result,
    read,
    read_all,
    result_path,
    results_table,
    row_name,
    write,
)
from smi.files import Sources, as_list, disk_errors, expand, finite, make_folder
from smi.runs.encoder import WEIGHTS, Pretrained, source_path
from smi.runs.encoder import load as load_encoder
from smi.tables import Table
from smi.terminal import counted, quietly


class Row(NamedTuple):
    """Hold the results of one encoder."""

    name: str
    results: list[Result]


@dataclass(frozen=True)
class Evaluation:
    """Hold results of encoders, row by row.

    Two rows can have the same name: results of earlier weights of a run are kept.
    """

    rows: list[Row] = field(default_factory=list)

    def table(self) -> Table:
        """Return a table with a row per encoder and a column per score."""
        return results_table(self.rows)

    def text(self) -> str:
        """Return the table as text, with the protocols beneath it."""
        return self.table().text()

    def plain(self) -> list[dict[str, Any]]:
        """Return one dictionary per result, ready for JSON."""
        plain: list[dict[str, Any]] = finite(
            [{"source": row.name, **result.plain()} for row in self.rows for result in row.results]
        )
        return plain


RowKey = tuple[str, str]  # name of a row, digest of the weights


def evaluate(
    sources: Sources,
    *,
    data: Given | None = None,
    protocols: Sequence[str] | None = None,
    student: bool = False,
    floors: bool = False,
    images: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32",
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Evaluation:
    """Evaluate runs or encoder files, and store each result in the run's eval/.

    evaluation = evaluate(["runs/mine"], protocols=["knn"], floors=True)
    for name, results in evaluation.rows:
        print(name, results[0].scores[0].value)

    data: labelled images; None takes the dataset of the pretraining.
    protocols: knn, linear-cached, fewshot, linear, finetune or all; None takes the first three.
    student: evaluate the encoder that the optimizer trains. It differs for DINO, which exports its
    teacher.
    floors: also evaluate the weights that a run started from, the untrained encoder and raw pixels.
    images: the number of training images to draw with the seed; None takes all.
    epochs: of linear and finetune; None takes 100 and 20.
    precision: number format of the networks; auto is bfloat16 on GPUs that compute in it.
    A stored result of the same weights under the same protocol is read, not computed again.
    Several processes (torchrun) share the work and get the same results; rank 0 writes them.
    """
    names = choose_protocols(protocols)
    device = choose_device(runtime.device, local_rank())
    if device.type == "cpu":
        keep_memory()
    chosen_precision = choose_precision(precision, device)
    sources = as_list(sources)
    # A wrong name is reported at the start.
    encoders = [load_encoder(source, student=student) for source in sources]
    rows: dict[RowKey, list[Result]] = {}  # the floors are the same for every run
    opened = LabelledSource(images=images, seed=seed, num_workers=runtime.num_workers)
    with processes(device), quietly(quiet or rank() > 0), opened as labelled:
        for source, encoder in zip(sources, encoders, strict=True):
            labelled_data = labelled.open(
                _choose_data(data, encoder, source),
                resolution=encoder.resolution,
                value_range=encoder.value_range,
                root=runtime.root or encoder.root,
            )
            folder = results_home(encoder.source)
            # A folder that cannot be written is reported before hours of work.
            with disk_errors(f"writing results into {folder}"):
                make_folder(folder / RESULTS_FOLDER)
            for subject in _subjects(encoder.to(device), labelled_data, floors):
                key = row_name(str(source), subject.name, subject.about), subject.about["digest"]
                case = Case(labelled_data, subject, device, epochs, chosen_precision)
                rows[key] = rows.get(key) or _results(case, names, folder)
            encoder.to("cpu")
    return _evaluation(rows)


def stored(
    sources: Sources,
    *,
    protocols: Sequence[str] | None = None,
    data: Given | None = None,
    student: bool = False,
    floors: bool = False,
) -> Evaluation:
    """Read stored results without computing any: a row for each state of an encoder.

    evaluation = stored(["runs/mine"], floors=True)

    student: read results of the students of runs that export their teachers.
    floors: also read results of the start's weights, the untrained encoder and raw pixels.
    """
    names = choose_protocols(protocols) if protocols else list(PROTOCOLS)
    trained = STUDENT if student else TRAINED
    subjects = (trained, *FLOORS) if floors else (trained,)
    rows: dict[RowKey, list[Result]] = {}

    def sort_key(result: Result) -> tuple[int, float, int]:
        subject = SUBJECTS.index(result.subject)
        return subject, result.encoder.get("epoch") or 0, names.index(result.protocol["name"])

    for source in as_list(sources):
        path = source_path(source)
        of_run_or_file = path == expand(source)
        if of_run_or_file and not path.exists():
            raise UserError(f"there is no run or encoder {path}")
        results = [
            result
            for result in read_all(results_home(path))
            if result.protocol["name"] in names
            and result.subject in subjects
            and (data is None or result.protocol["data"] == dataset_label(data))
        ]
        if not results:
            given = path if of_run_or_file else source
            raise UserError(f"{given} has no such results yet: run `smi evaluate {given}`")
        for result in sorted(results, key=sort_key):
            name = row_name(str(source), result.subject, result.encoder)
            rows.setdefault((name, result.encoder["digest"]), []).append(result)
    return _evaluation(rows)


def _evaluation(rows: dict[RowKey, list[Result]]) -> Evaluation:
    return Evaluation([Row(name, results) for (name, _), results in rows.items()])


def _choose_data(data: Given | None, encoder: Pretrained, source: str | Path) -> str:
    """Return the dataset to evaluate on: the given one, or that of the pretraining."""
    chosen = encoder.about.get("data") if data is None else as_path(data)
    if chosen is None:
        raise UserError(
            f"{source} does not name its pretraining dataset: give labelled images with --data"
        )
    return str(chosen)


def results_home(source: Path) -> Path:
    """Return the folder for results: the run, the export, or a folder beside any other file."""
    if source.is_dir():
        return source
    if not source.is_file():  # of timm: in the working directory
        return Path(f"{source.name}-results")
    return source.parent if source.name in WEIGHTS else source.with_name(f"{source.stem}-results")


def _subjects(encoder: Pretrained, data: LabelledData, floors: bool) -> Iterator[Subject]:
    """Yield the encoder and, with `floors`, its start, the untrained encoder and raw pixels."""
    size, mean, std = encoder.image_size, encoder.mean, encoder.std
    network = encoder.settings["name"]
    keys = ("method", "epoch", "step", "seed")
    about = {key: encoder.about[key] for key in keys if key in encoder.about}
    about = {"digest": encoder.digest(), "network": network, **about}
    name = STUDENT if encoder.about.get("student") else TRAINED
    yield Subject(name, encoder, size, mean, std, about, size, encoder.resolution)
    if not floors:
        return
    if (start := encoder.off_the_shelf()) is not None:
        about = {"digest": start.digest(), "network": network}
        yield Subject(OFF_THE_SHELF, start, size, mean, std, about, size, encoder.resolution)
    twin = encoder.untrained()
    about = {"digest": twin.digest(), "network": network, "seed": encoder.about.get("seed", 0)}
    yield Subject(UNTRAINED, twin, size, mean, std, about, size, encoder.resolution)
    side = min(PIXELS_SIDE, data.train.resolution)
    about = {"digest": f"{side:08d}", "size": side}
    zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    yield Subject(RAW_PIXELS, nn.Flatten(), side, zero, one, about, size)


def _results(case: Case, names: Sequence[str], folder: Path) -> list[Result]:
    """Return the results of a subject under each protocol, stored ones where they exist."""
    has_weights = next(case.subject.network.parameters(), None) is not None
    # Raw pixels have no weights to fine-tune.
    return [_result(case, name, folder) for name in names if has_weights or name != "finetune"]


def _result(case: Case, name: str, folder: Path) -> Result:
    """Return the stored result of a protocol, or measure and store it. Rank 0 reads and writes."""
    protocol = {"name": name, **case.protocol, **PROTOCOLS[name].describe(case)}
    stored_result = on_rank_0(lambda: _stored(folder, protocol, case.subject))
    if stored_result is not None:
        return stored_result
    measured = _measure(case, protocol)
    return on_rank_0(lambda: read(write(folder, measured)))


def _stored(folder: Path, protocol: dict[str, Any], subject: Subject) -> Result | None:
    """Return the stored result of a subject under a protocol, if there is one."""
    digest = subject.about["digest"]
    path = result_path(folder, protocol, subject.name, digest)
    result = read(path) if path.is_file() else None
    return result if result is not None and result.encoder["digest"] == digest else None


def _measure(case: Case, protocol: dict[str, Any]) -> Result:
    """Run a protocol and describe how its result was made."""
    subject = case.subject
    begin = time.perf_counter()
    outcome = PROTOCOLS[protocol["name"]].run(case)
    made = {
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.perf_counter() - begin, 1),
        "device": describe_device(case.device),
        "versions": versions(),
    }
    if world_size() > 1:
        made["processes"] = world_size()
    notes = (*case.data.notes, *_image_notes(case))
    return Result(
        protocol,
        subject.name,
        subject.about,
        tuple(outcome.scores),
        outcome.sentence + case.phrase,
        notes,
        outcome.details,
        made,
    )


def _image_notes(case: Case) -> Iterator[str]:
    """Yield notes about resized images and about unreadable files."""
    subject, side = case.subject, case.data.test.resolution
    if subject.resolution is not None and side != subject.resolution:
        kept = subject.crop(case.data.test)
        crop = f"cropped to their centre of {kept} and " if kept < side else ""
        yield (
            f"images of {side} pixels were {crop}resized to {subject.size}, the size of this "
            "encoder's pretraining"
        )
    # A process knows only of the files that it has read.
    own = {
        (store.split, bad.path) for store in (case.data.train, case.data.test) for bad in store.bad
    }
    if num_bad := len(set().union(*from_all_ranks(own))):
        yield f"{counted(num_bad, 'file')} could not be read; another image replaces each of them"
