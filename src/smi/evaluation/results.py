"""Results of evaluations: files in a run's eval/, each with its protocol and a stamp over it, and tables of those that may be compared."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smi.config.schema import flat
from smi.errors import UserError
from smi.files import write_text
from smi.tables import Table

FOLDER = "eval"
ORDER = ("knn", "linear-cached", "linear", "fewshot", "finetune")


@dataclass(frozen=True)
class Score:
    """An accuracy between 0 and 1 under a short name; with an interval where there are several draws."""

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
    """What an encoder scored under a protocol."""

    protocol: dict[
        str, Any
    ]  # all that another encoder must share for its numbers to be put beside these
    subject: str  # "encoder", "untrained encoder" or "raw pixels"
    encoder: dict[str, Any]  # which: digest of its weights, method, epoch, seed
    scores: tuple[Score, ...]
    sentence: str  # the protocol in words, with what was chosen along the way
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)  # curves, draws, what was tried
    made: dict[str, Any] = field(default_factory=dict)  # date, seconds, versions

    @property
    def stamp(self) -> str:
        return stamp(self.protocol)

    def plain(self) -> dict[str, Any]:
        return {"stamp": self.stamp, **dataclasses.asdict(self)}


def stamp(protocol: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:12]


def path_of(folder: Path, protocol: Mapping[str, Any], subject: str, digest: str) -> Path:
    """One for each protocol and encoder: results of other weights are kept."""
    data = re.sub(r"[^a-zA-Z0-9-]+", "-", str(protocol["data"])).strip("-")[:60] or "data"
    whose = "" if subject == "encoder" else f"-{subject.replace(' ', '-')}"
    return folder / FOLDER / f"{protocol['name']}-{data}{whose}-{stamp(protocol)}-{digest[:8]}.json"


def write(folder: Path, result: Result) -> Path:
    path = path_of(folder, result.protocol, result.subject, result.encoder["digest"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(_finite(result.plain()), indent=2) + "\n")
    return path


def _finite(value: Any) -> Any:
    """JSON has no word for what is no number, such as the loss of a classifier that diverged."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> Result:
    """Refuses a file whose stamp is not that of the protocol in it: someone changed one of them."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        claimed = found.pop("stamp")
        scores = tuple(Score(**score) for score in found.pop("scores"))
        result = Result(**found | {"scores": scores, "notes": tuple(found["notes"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not the result of an evaluation ({error!r}): move it out of {FOLDER}/"
        ) from error
    if result.stamp != claimed:
        raise UserError(
            f"{path} was changed by hand: its stamp {claimed} is not that of its protocol, {result.stamp}"
        )
    return result


def read_all(folder: Path) -> list[Result]:
    """Those that look at all labels first, then those at few, then fine-tuning."""
    found = [read(path) for path in sorted((folder / FOLDER).glob("*.json"))]
    return sorted(
        found,
        key=lambda result: (
            ORDER.index(name) if (name := result.protocol["name"]) in ORDER else len(ORDER)
        ),
    )


@dataclass(frozen=True)
class Sheet:
    """A table of results, and the sentences beneath it."""

    headers: list[str]
    lines: list[list[str]]
    notes: list[str]


def table(rows: Sequence[tuple[str, Sequence[Result]]]) -> str:
    found = sheet(rows)
    return "\n".join([Table.of(found.headers, found.lines).text(), "", *found.notes])


def sheet(rows: Sequence[tuple[str, Sequence[Result]]]) -> Sheet:
    """A row for each name, a column for each score under each protocol. Numbers of different protocols never share a column.

    Beneath: what the protocols are, where several of one kind differ, and what was noted.
    """
    every = [result for _, results in rows for result in results]
    protocols: dict[str, Result] = {}  # the first of each, in order
    for result in every:
        protocols.setdefault(result.stamp, result)
    letters = _letters(protocols)
    columns = list(
        dict.fromkeys((r.stamp, score.name) for r in protocols.values() for score in r.scores)
    )
    headers = ["", *(f"{name}{letters.get(key, '')}" for key, name in columns)]
    lines = []
    for name, results in rows:
        cells = {
            (result.stamp, score.name): str(score) for result in results for score in result.scores
        }
        lines.append([name, *(cells.get(column, "-") for column in columns)])
    text = []
    for key, result in protocols.items():
        text.append(
            f"{result.protocol['name']}{letters.get(key, '')} on {result.protocol['data']}, stamp {key}: {result.sentence}"
        )
    text += [f"not comparable: {sentence}" for sentence in _differences(protocols, letters)]
    text += dict.fromkeys(f"note: {note}" for result in every for note in result.notes)
    return Sheet(headers, lines, text)


def _letters(protocols: Mapping[str, Result]) -> dict[str, str]:
    """Protocols of one name that are not the same are told apart by letters."""
    kinds: dict[str, list[str]] = {}
    for key, result in protocols.items():
        kinds.setdefault(result.protocol["name"], []).append(key)
    return {
        key: f" ({'abcdefghijklmnopqrstuvwxyz'[i % 26]})"
        for keys in kinds.values()
        if len(keys) > 1
        for i, key in enumerate(keys)
    }


def _differences(protocols: Mapping[str, Result], letters: Mapping[str, str]) -> Iterator[str]:
    kinds: dict[str, tuple[str, Result]] = {}
    for key, result in protocols.items():
        name = result.protocol["name"]
        if name not in kinds:
            kinds[name] = key, result
            continue
        first, other = kinds[name]
        old, new = dict(flat(other.protocol)), dict(flat(result.protocol))
        differs = [
            f"{k} {old.get(k, 'not said')} and {new.get(k, 'not said')}"
            for k in {**old, **new}
            if old.get(k) != new.get(k)
        ]
        yield f"{name}{letters[first]} and {name}{letters[key]} ({', '.join(differs)})"
