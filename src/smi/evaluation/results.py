"""Read and write results of evaluations: files in a run's eval/, and tables of them.

Each file holds its protocol and a stamp, which is a hash of the protocol. Numbers can be compared
only if their stamps are equal.

path = write(Path("runs/mine"), result)
results = read_all(Path("runs/mine"))
print(results_table([("mine", results)]).text())
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smi.config.schema import flat
from smi.errors import UserError
from smi.files import check_fields, damaged, make_folder, read_json, write_json
from smi.tables import NONE, Table

RESULTS_FOLDER = "eval"
TRAINED, STUDENT = "encoder", "student"  # the student of a method that exports its teacher
OFF_THE_SHELF = "off the shelf"  # the weights that a run started from
UNTRAINED, RAW_PIXELS = "untrained encoder", "raw pixels"
FLOORS = (OFF_THE_SHELF, UNTRAINED, RAW_PIXELS)
SUBJECTS = (TRAINED, STUDENT, *FLOORS)
PROTOCOL_ORDER = ("knn", "linear-cached", "linear", "fewshot", "finetune")  # many labels first
SCORE_KINDS = {"name": str, "value": (int, float), "low?": (int, float), "high?": (int, float)}
PROTOCOL_KINDS = {
    "name": str,
    "data": str,
    "train?": {"images": int},
    "test?": {"images": int},
    "epochs?": int,
    "draws?": int,
}
RESULT_KINDS = {
    "stamp": str,
    "protocol": PROTOCOL_KINDS,
    "subject": str,
    "encoder": {"digest": str, "epoch?": (int, float), "step?": int, "seed?": int},
    "scores": list,
    "sentence": str,
    "notes": list,
    "details?": dict,
    "made?": dict,
}
ENCODER_KINDS: dict[str, dict[str, Any]] = {  # what the name of a row needs, by subject
    RAW_PIXELS: {"size": int},
    OFF_THE_SHELF: {"network": str},
    UNTRAINED: {"network": str, "seed": int},
}
MAX_NAME_LENGTH = 60  # characters of a dataset's name in the name of a file


@dataclass(frozen=True)
class Score:
    """Hold an accuracy between 0 and 1, with an interval if it is a mean over several draws."""

    name: str  # the column of a table: "kNN", "1 label", "10 %"
    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return (
            f"{self.value:.1%}"
            if self.low is None
            else f"{self.value:.1%} ± {self.value - self.low:.1%}"
        )


@dataclass(frozen=True)
class Result:
    """Hold the scores of one encoder under one protocol."""

    protocol: dict[str, Any]  # everything that comparable results must share
    subject: str  # one of SUBJECTS
    encoder: dict[str, Any]  # digest of the weights, method, epoch, seed
    scores: tuple[Score, ...]
    sentence: str  # the protocol in words, with the hyperparameters that were chosen
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)  # curves, draws, settings tried
    made: dict[str, Any] = field(default_factory=dict)  # date, seconds, versions

    @property
    def stamp(self) -> str:
        """Return the hash of the protocol."""
        return stamp(self.protocol)

    def plain(self) -> dict[str, Any]:
        """Return the result as nested dictionaries, as its file holds it."""
        return {"stamp": self.stamp, **dataclasses.asdict(self)}


ResultRows = Sequence[tuple[str, Sequence[Result]]]  # (name of a row, its results)


def stamp(protocol: Mapping[str, Any]) -> str:
    """Return a hash of all keys and values of a protocol."""
    return hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:12]


def row_name(source: str, subject: str, encoder: Mapping[str, Any]) -> str:
    """Return the name of a table row. encoder: `Result.encoder`."""
    if subject == RAW_PIXELS:
        return f"raw pixels, {encoder['size']} × {encoder['size']}"
    if subject == OFF_THE_SHELF:
        return f"{encoder['network']}, off the shelf"
    if subject == UNTRAINED:
        return f"untrained {encoder['network']}, seed {encoder['seed']}"
    name = f"student of {source}" if subject == STUDENT else source
    return f"{name}, epoch {encoder['epoch']:g}" if encoder.get("epoch") is not None else name


# ------------------------------------------------------------------------------------------ files


def result_path(folder: Path, protocol: Mapping[str, Any], subject: str, digest: str) -> Path:
    """Return the file of a result: one per protocol, subject and digest of the weights."""
    data = re.sub(r"[^a-zA-Z0-9-]+", "-", str(protocol["data"])).strip("-")[:MAX_NAME_LENGTH]
    suffix = "" if subject == TRAINED else f"-{subject.replace(' ', '-')}"
    name = f"{protocol['name']}-{data or 'data'}{suffix}-{stamp(protocol)}-{digest[:8]}.json"
    return folder / RESULTS_FOLDER / name


def write(folder: Path, result: Result) -> Path:
    """Write a result into the folder of a run and return its path."""
    path = result_path(folder, result.protocol, result.subject, result.encoder["digest"])
    make_folder(path.parent)
    write_json(path, result.plain())
    return path


def read(path: Path) -> Result:
    """Read a result, or raise a UserError if its stamp does not match its protocol."""
    try:
        content = read_json(path)
        check_result(content, path)
        scores = tuple(Score(**score) for score in content["scores"])
    except (UserError, TypeError) as error:
        raise UserError(
            f"{path} is not the result of an evaluation ({error}): move it out of {RESULTS_FOLDER}/"
        ) from error
    written_stamp = content["stamp"]
    values = {f.name: content[f.name] for f in dataclasses.fields(Result) if f.name in content}
    result = Result(**values | {"scores": scores, "notes": tuple(content["notes"])})
    if result.stamp != written_stamp:
        raise UserError(
            f"{path} was changed by hand: its stamp is {written_stamp}, and its protocol has the "
            f"stamp {result.stamp}. Delete the file and evaluate again."
        )
    return result


def check_result(content: Mapping[str, Any], path: Path) -> None:
    """Raise a UserError for a result with a field that is missing or not of its kind."""
    check_fields(content, RESULT_KINDS, path)
    if content["subject"] not in SUBJECTS:
        raise damaged(path, f"subject is {content['subject']!r}")
    check_fields(content["encoder"], ENCODER_KINDS.get(content["subject"], {}), path, "encoder.")
    for score in content["scores"]:
        if not isinstance(score, dict):
            raise damaged(path, "a score is not an object")
        check_fields(score, SCORE_KINDS, path, "scores.")
    for note in content["notes"]:
        if not isinstance(note, str):
            raise damaged(path, "a note is not text")


def read_all(folder: Path) -> list[Result]:
    """Read all results in the folder of a run, ordered by protocol."""
    results = [read(path) for path in sorted((folder / RESULTS_FOLDER).glob("*.json"))]
    return sorted(results, key=_protocol_place)


def _protocol_place(result: Result) -> int:
    name = result.protocol["name"]
    return PROTOCOL_ORDER.index(name) if name in PROTOCOL_ORDER else len(PROTOCOL_ORDER)


# ----------------------------------------------------------------------------------------- tables


def results_table(rows: ResultRows) -> Table:
    """Make a table with a row for each name and a column for each score under each protocol.

    Numbers of different protocols never share a column. The notes describe the protocols, say how
    protocols of one name differ, and repeat the notes of the results.
    """
    results = [result for _, row_results in rows for result in row_results]
    protocols: dict[str, Result] = {}  # the first result of each protocol, by stamp
    for result in results:
        protocols.setdefault(result.stamp, result)
    letters = _letters(protocols)
    columns = list(
        dict.fromkeys((r.stamp, score.name) for r in protocols.values() for score in r.scores)
    )
    lines = []
    for name, row_results in rows:
        cells = {(r.stamp, score.name): str(score) for r in row_results for score in r.scores}
        lines.append([name, *(cells.get(column, NONE) for column in columns)])
    notes = [
        f"{result.protocol['name']}{letters.get(key, '')} on {result.protocol['data']}, "
        f"stamp {key}: {result.sentence}"
        for key, result in protocols.items()
    ]
    notes += [f"not comparable: {sentence}" for sentence in _differences(protocols, letters)]
    notes += dict.fromkeys(f"note: {note}" for result in results for note in result.notes)
    headers = ["", *(f"{name}{letters.get(key, '')}" for key, name in columns)]
    return Table.of(headers, lines, notes=notes)


def _letters(protocols: Mapping[str, Result]) -> dict[str, str]:
    """Return a letter for each protocol that shares its name with a different protocol."""
    stamps: dict[str, list[str]] = {}  # by name
    for key, result in protocols.items():
        stamps.setdefault(result.protocol["name"], []).append(key)
    return {
        key: f" ({'abcdefghijklmnopqrstuvwxyz'[i % 26]})"
        for keys in stamps.values()
        if len(keys) > 1
        for i, key in enumerate(keys)
    }


def _differences(protocols: Mapping[str, Result], letters: Mapping[str, str]) -> Iterator[str]:
    """Describe how each protocol differs from the first one of the same name."""
    firsts: dict[str, tuple[str, Result]] = {}
    for key, result in protocols.items():
        name = result.protocol["name"]
        if name not in firsts:
            firsts[name] = key, result
            continue
        first_key, first = firsts[name]
        old, new = dict(flat(first.protocol)), dict(flat(result.protocol))
        differences = [
            f"{setting} {old.get(setting, 'unset')} and {new.get(setting, 'unset')}"
            for setting in {**old, **new}
            if old.get(setting) != new.get(setting)
        ]
        yield f"{name}{letters[first_key]} and {name}{letters[key]} ({', '.join(differences)})"
