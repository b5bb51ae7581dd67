"""Runs of several methods under the same seeds, beside each other, as tables.

A score's interval is Student's, over seeds. Differences are taken seed by seed, where two runs began with one encoder and saw one order of
images: what a seed does to both is not in them. Scores are counted in whole test images: no interval of a difference is narrower than
that rounding alone would make it.
"""

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from smi.errors import UserError
from smi.evaluation.results import Result, Score
from smi.files import write_text
from smi.intervals import half_interval, interval
from smi.runs.collect import locate_run
from smi.runs.run import Run
from smi.tables import Table
from smi.terminal import printable

Column = tuple[str, str]  # the stamp of a protocol, and one of its scores


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; the ends of its 95 % interval where there are two or more."""

    mean: float
    low: float | None
    high: float | None
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, values: Mapping[int, float]) -> "Estimate | None":
        seeds = tuple(sorted(values))
        if len(seeds) < 2:
            return cls(values[seeds[0]], None, None, seeds) if seeds else None
        return cls(*interval([values[seed] for seed in seeds]), seeds)

    @classmethod
    def of_differences(
        cls, ours: Mapping[int, float], other: Mapping[int, float], step: float = 0.0
    ) -> "Estimate | None":
        """Over the seeds that both have. step: between two neighbouring scores, 0 if it is not known."""
        gap = cls.of({seed: ours[seed] - other[seed] for seed in ours if seed in other})
        if gap is None or gap.low is None:
            return gap
        half = max(
            gap.half, half_interval(step * (1 / 6) ** 0.5, len(gap.seeds))
        )  # a rounded score has variance step² / 12, a difference two
        return cls(gap.mean, gap.mean - half, gap.mean + half, gap.seeds)

    @property
    def half(self) -> float:
        return 0.0 if self.high is None else self.high - self.mean

    def __str__(self) -> str:
        return str(Score("", self.mean, self.low, self.high))

    @property
    def points(self) -> str:
        """As a difference, in percentage points."""
        return f"{100 * self.mean:+.1f}" + ("" if self.low is None else f" ± {100 * self.half:.1f}")


def step_of(result: Result) -> float:
    """Between two neighbouring scores: one test image, in one of the draws where a score is a mean over them; 0 if that is not known."""
    images, draws = result.protocol.get("test", {}).get("images"), result.protocol.get("draws", 1)
    return 1 / (images * draws) if images else 0.0


@dataclass(frozen=True)
class Trained:
    """One run of a row: what it scored, or why it did not end."""

    seed: int
    folder: str
    command: str
    results: tuple[Result, ...] = ()
    failed: str = ""
    step_ms: float | None = None
    peak_mb: float | None = None
    device: str = ""
    steps: int = 0

    @classmethod
    def read(
        cls,
        folder: Path,
        *,
        seed: int,
        command: str,
        results: Sequence[Result] = (),
        failed: str = "",
    ) -> "Trained":
        """With the times and memory that the run logged."""
        if not (folder / "config.yaml").is_file():
            return cls(seed, str(folder), command, failed=failed)
        run = Run(folder)
        batch, lines = run.config["batch_size"], run.metrics()
        timings, steps = (
            [line["timing"] for line in lines if "timing" in line],
            lines[-1]["step"] if lines else 0,
        )
        step_ms = (
            statistics.median(1e3 * batch / timing["images_per_second"] for timing in timings)
            if timings
            else None
        )
        peak_mb = max((timing["peak_memory_mb"] for timing in timings), default=None)
        return cls(
            seed,
            str(folder),
            command,
            tuple(results),
            failed,
            step_ms,
            peak_mb,
            str(run.about.get("device", "")),
            steps,
        )


@dataclass(frozen=True)
class Row:
    """A method, with one value of what is swept if it has that."""

    method: str
    value: Any
    name: str
    runs: tuple[Trained, ...]
    loss_ms: float | None = None  # None: not measured

    @property
    def step_ms(self) -> float | None:
        return (
            statistics.median(times)
            if (times := [run.step_ms for run in self.runs if run.step_ms is not None])
            else None
        )

    @property
    def peak_mb(self) -> float | None:
        return max((run.peak_mb for run in self.runs if run.peak_mb is not None), default=None)

    @property
    def loss_share(self) -> float | None:
        return self.loss_ms / self.step_ms if self.loss_ms is not None and self.step_ms else None


@dataclass(frozen=True)
class Comparison:
    """comparison.text() is what the command prints; `score` and `difference` are its numbers. Differences are to the first row."""

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    swept: str | None  # the setting
    about: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Comparison":
        """From comparison.json; runs are looked for in this folder, wherever it is now, then where they were made.

        Scores have no intervals of their own.
        """
        path = folder / "comparison.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            protocols = {}
            for protocol in found.pop("protocols"):
                key, sentence = protocol.pop("stamp"), protocol.pop("sentence")
                protocols[key] = protocol, sentence
            rows = tuple(_row(folder, row, protocols) for row in found.pop("rows"))
            seeds, swept, _ = tuple(found.pop("seeds")), found.pop("swept"), found.pop("notes")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is not that of a comparison ({error!r}): `smi compare` writes it anew"
            ) from error
        return cls(rows, seeds, swept, found)

    @cached_property
    def protocols(self) -> dict[str, Result]:
        """By their stamps, each with the first result under it."""
        found: dict[str, Result] = {}
        for row in self.rows:
            for run in row.runs:
                for result in run.results:
                    found.setdefault(result.stamp, result)
        return found

    @property
    def columns(self) -> list[Column]:
        return [
            (stamp, score.name)
            for stamp, result in self.protocols.items()
            for score in result.scores
        ]

    def values(self, row: Row, column: Column) -> dict[int, float]:
        stamp, name = column
        return {
            run.seed: score.value
            for run in row.runs
            for result in run.results
            for score in result.scores
            if (result.stamp, score.name) == (stamp, name)
        }

    def score(self, row: Row, column: Column) -> Estimate | None:
        return Estimate.of(self.values(row, column))

    def difference(self, row: Row, column: Column) -> Estimate | None:
        """To the first row, over the seeds that both have."""
        step = 0.0 if row is self.rows[0] else step_of(self.protocols[column[0]])
        return Estimate.of_differences(
            self.values(row, column), self.values(self.rows[0], column), step
        )

    @property
    def failed(self) -> list[tuple[str, Trained]]:
        return [(row.name, run) for row in self.rows for run in row.runs if run.failed]

    def notes(self) -> Iterator[str]:
        done = sum(len(row.runs) for row in self.rows)
        if done < (total := len(self.rows) * len(self.seeds)):
            yield f"so far {done} of {total} runs"
        if len(self.seeds) == 1:
            yield "one seed: there are no intervals, and a difference may be chance"
        for name, run in self.failed:
            yield f"failed: {name}, seed {run.seed}: {run.failed}"
        kinds: dict[str, list[str]] = {}
        for stamp, result in self.protocols.items():
            kinds.setdefault(result.protocol["name"], []).append(stamp)
        for kind, stamps in kinds.items():
            if len(stamps) > 1:
                yield f"not comparable: {kind} was not the same for all runs (stamps {', '.join(stamps)}), so it has several columns"
        if len(devices := {run.device for row in self.rows for run in row.runs if run.device}) > 1:
            yield f"times and memory are not comparable: runs were made on {'; '.join(sorted(devices))}"

    # ------------------------------------------------------------------------------------------------------------------- as tables

    def text(self) -> str:
        return self._text(lambda headers, lines: Table.of(headers, lines).text())

    def markdown(self) -> str:
        return self._text(_pipes, heading="## ", item="- ") + "\n"

    def _text(
        self,
        draw: Callable[[list[str], list[list[str]]], str],
        *,
        heading: str = "",
        item: str = "",
    ) -> str:
        parts = [
            text
            for title, headers, lines in self.tables()
            for text in (f"{heading}{title}", draw(headers, lines))
        ]
        return "\n\n".join([*parts, "\n".join(f"{item}{line}" for line in self.beneath())])

    def tables(self) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        """Titles, headers and lines: scores and costs, then differences."""
        names = self._heads()
        scores = [
            [row.name, *(_cell(self.score(row, c)) for c in self.columns), *_cost(row)]
            for row in self.rows
        ]
        title = f"Mean{' and 95 % interval' * (len(self.seeds) > 1)} over {_seeds(self.seeds)}"
        yield title, ["", *names, "ms/step", "loss", "peak MB"], scores
        if len(self.rows) > 1 and names:
            lines = [
                [row.name, *(_points(self.difference(row, c)) for c in self.columns)]
                for row in self.rows[1:]
            ]
            yield (
                f"Differences to {self.rows[0].name} in percentage points, paired by seed",
                ["", *names],
                lines,
            )

    def beneath(self) -> list[str]:
        """Sentences about the tables."""
        kinds = [
            f"{r.protocol['name']} on {r.protocol['data']}, stamp {stamp}: {r.sentence}"
            for stamp, r in self.protocols.items()
        ]
        return [printable(line) for line in (*kinds, COSTS, *self.notes())]

    def _heads(self) -> list[str]:
        """Of the columns; where a protocol was not the same for all, with its stamp."""
        kinds = [result.protocol["name"] for result in self.protocols.values()]
        several = {
            stamp
            for stamp, result in self.protocols.items()
            if kinds.count(result.protocol["name"]) > 1
        }
        return [f"{name} ({stamp})" if stamp in several else name for stamp, name in self.columns]

    def csv(self) -> str:
        """A line for each row of the tables; plain numbers between 0 and 1, milliseconds and MB."""
        names = self._heads()
        parts = ("mean", "low", "high", "seeds", "difference", "difference low", "difference high")
        headers = [
            "name",
            "method",
            *([self.swept] if self.swept else []),
            *(f"{name} {part}" for name in names for part in parts),
        ]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*headers, "step ms", "loss ms", "loss share", "peak MB", "failed"])
        for row in self.rows:
            cells: list[Any] = [row.name, row.method, *([row.value] if self.swept else [])]
            for column in self.columns:
                score, difference = self.score(row, column), self.difference(row, column)
                cells += (
                    [score.mean, score.low, score.high, len(score.seeds)] if score else [None] * 4
                )
                cells += (
                    [difference.mean, difference.low, difference.high] if difference else [None] * 3
                )
            failed = sum(bool(run.failed) for run in row.runs)
            writer.writerow([*cells, row.step_ms, row.loss_ms, row.loss_share, row.peak_mb, failed])
        return file.getvalue()

    def plain(self) -> dict[str, Any]:
        """Everything, for comparison.json."""

        def estimates(
            of: Callable[[Row, Column], Estimate | None], row: Row
        ) -> list[dict[str, Any]]:
            found = [(column, of(row, column)) for column in self.columns]
            return [
                {"stamp": stamp, "score": name, **asdict(value)}
                for (stamp, name), value in found
                if value
            ]

        def run(trained: Trained) -> dict[str, Any]:
            scores = [
                {"stamp": r.stamp, "score": s.name, "value": s.value}
                for r in trained.results
                for s in r.scores
            ]
            return asdict(trained) | {"results": scores}

        return self.about | {
            "seeds": list(self.seeds),
            "swept": self.swept,
            "protocols": [
                {"stamp": stamp, "sentence": r.sentence, **r.protocol}
                for stamp, r in self.protocols.items()
            ],
            "rows": [
                {
                    "name": row.name,
                    "method": row.method,
                    "value": row.value,
                    "scores": estimates(self.score, row),
                    "differences": estimates(self.difference, row),
                    "step_ms": row.step_ms,
                    "loss_ms": row.loss_ms,
                    "loss_share": row.loss_share,
                    "peak_mb": row.peak_mb,
                    "runs": [run(trained) for trained in row.runs],
                }
                for row in self.rows
            ],
            "notes": list(self.notes()),
        }

    def write(self, folder: Path) -> None:
        """comparison.json, table.md and table.csv."""
        document = json.dumps(self.plain(), indent=2) + "\n"
        for name, text in {
            "comparison.json": document,
            "table.md": self.markdown(),
            "table.csv": self.csv(),
        }.items():
            write_text(folder / name, text)


def _row(
    folder: Path, row: Mapping[str, Any], protocols: Mapping[str, tuple[dict[str, Any], str]]
) -> Row:
    runs = []
    for run in row["runs"]:
        scores: dict[str, list[Score]] = {}
        for score in run["results"]:
            scores.setdefault(score["stamp"], []).append(Score(score["score"], score["value"]))
        results = tuple(
            Result(protocols[key][0], "encoder", {}, tuple(some), protocols[key][1])
            for key, some in scores.items()
        )
        where = str(locate_run(folder, run["folder"]))
        runs.append(Trained(**dict(run) | {"folder": where, "results": results}))
    return Row(row["method"], row["value"], row["name"], tuple(runs), row["loss_ms"])


COSTS = (
    "ms/step: the median over logged lines and seeds. loss: the share of it that is spent, forward and backward, on what is no network. "
    "peak MB: of tensors on a GPU, of the whole process on a CPU"
)


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"


def _cell(value: Estimate | None) -> str:
    return "-" if value is None else str(value)


def _points(value: Estimate | None) -> str:
    return "-" if value is None else value.points


def _cost(row: Row) -> list[str]:
    step = (
        "-"
        if row.step_ms is None
        else f"{row.step_ms:.3g}"
        if row.step_ms < 100
        else f"{row.step_ms:,.0f}"
    )
    share = "-" if row.loss_share is None else f"{row.loss_share:.1%}"
    return [step, share, "-" if row.peak_mb is None else f"{row.peak_mb:,.0f}"]


def _pipes(headers: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in headers[1:])]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |"
        for line in (headers, rule, *lines)
    )
