"""Compare the scores of several methods that were trained under the same seeds.

comparison = Comparison.read(Path("runs/lambda"))
print(comparison.text())

The interval of a score is Student's 95 % interval over seeds. Differences are taken seed by seed:
two runs of one seed start from the same encoder and see the images in the same order, so the
effect of the seed on both cancels. Scores count whole test images, so the interval of a difference
is never narrower than that rounding alone would make it. Runs that start from weights that exist
also have a gain over these weights, off the shelf.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from smi.errors import TrainingError, UserError
from smi.evaluation.results import OFF_THE_SHELF, TRAINED, Result, Score
from smi.files import write_json, write_text
from smi.intervals import interval, paired_interval
from smi.runs.collect import COMPARISON, locate_run, read_comparison
from smi.runs.names import CRITERIA, last_criteria
from smi.runs.run import Run, is_run
from smi.tables import NONE, Table, in_markdown
from smi.terminal import duration, printable

Column = tuple[str, str]  # the stamp of a protocol, and the name of one of its scores

IDENTICAL_NOTE = (
    "identical: one recipe for all methods, so the same optimizer, learning rate, augmentation, "
    "batch size and epochs; a method keeps the number and kind of its views (multi-crop, patches)"
)
TIMED_NOTE = "equal time: {time} for each run, so epochs and images differ"
PUBLISHED_NOTE = (
    "published: each method as its authors train it, so optimizers, learning rates, views, batch "
    "sizes and epochs differ; seeds do not make runs alike"
)
COST_NOTE = (
    "ms/step: the median over logged lines and seeds. "
    "loss: the share of a step, forward and backward, that is not spent in networks. "
    "peak MB: memory of tensors on a GPU, of the whole process on a CPU"
)
CRITERIA_NOTE = (
    "without labels: of the last encoder, on held-out images. retrieval: how often a view of an "
    "image finds another view of it; RankMe, LiDAR: ranks of features and of the differences "
    "between images; α-ReQ: decay of the eigenvalues; learnability: how well neighbours predict "
    "clusters"
)


@dataclass(frozen=True)
class Estimate:
    """Hold a mean over seeds, with its 95 % interval if there are two seeds or more."""

    mean: float
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    values: tuple[float, ...] = ()  # in the order of seeds

    @classmethod
    def of(cls, values: Mapping[int, float]) -> "Estimate | None":
        """Estimate the mean of values by seed; None if there are none."""
        seeds = tuple(sorted(values))
        each = tuple(values[seed] for seed in seeds)
        if len(seeds) < 2:
            return cls(each[0], None, None, seeds, each) if seeds else None
        return cls(*interval(each), seeds, each)

    @classmethod
    def of_differences(
        cls, ours: Mapping[int, float], theirs: Mapping[int, float], step: float = 0.0
    ) -> "Estimate | None":
        """Estimate the mean of ours - theirs over the seeds that both have.

        step: the distance between two neighbouring scores; 0 if unknown.
        """
        seeds = tuple(sorted(seed for seed in ours if seed in theirs))
        if len(seeds) < 2:
            return cls.of({seed: ours[seed] - theirs[seed] for seed in seeds})
        pairs = [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
        each = tuple(a - b for a, b in zip(*pairs, strict=True))
        return cls(*paired_interval(*pairs, step), seeds, each)

    @property
    def half(self) -> float:
        """Return half the width of the interval, or 0 without one."""
        return 0.0 if self.high is None else self.high - self.mean

    def __str__(self) -> str:
        if len(self.values) == 2:  # an interval of two values is ten times their distance
            return " and ".join(f"{value:.1%}" for value in self.values)
        return str(Score("", self.mean, self.low, self.high))

    @property
    def points(self) -> str:
        """Format a difference in percentage points."""
        if len(self.values) == 2:
            return " and ".join(f"{100 * value:+.1f}" for value in self.values)
        return f"{100 * self.mean:+.1f}" + ("" if self.low is None else f" ± {100 * self.half:.1f}")


def step_of(result: Result) -> float:
    """Return the distance between two neighbouring scores: one test image; 0 if unknown.

    If a score is a mean over draws, it is one test image in one draw.
    """
    images = result.protocol.get("test", {}).get("images")
    draws = result.protocol.get("draws", 1)
    return 1 / (images * draws) if images else 0.0


@dataclass(frozen=True)
class TrainedRun:
    """Hold the scores and costs of one run of a row, or the reason why it failed."""

    seed: int
    folder: str
    command: str
    results: tuple[Result, ...] = ()
    failed: str = ""
    step_ms: float | None = None
    peak_mb: float | None = None
    device: str = ""
    precision: str = ""  # number format of the networks
    steps: int = 0
    halved: str = ""  # says that the requested batch did not fit
    criteria: dict[str, float] = field(default_factory=dict)  # of the last probe, without labels

    @classmethod
    def read(
        cls,
        folder: Path,
        *,
        seed: int,
        command: str,
        results: Sequence[Result] = (),
        failed: str = "",
    ) -> "TrainedRun":
        """Add the times and the memory that the run logged."""
        if not is_run(folder):
            return cls(seed, str(folder), command, failed=failed)
        run = Run(folder)
        batch_size = run.config["batch_size"]
        requested = run.facts.requested_batch_size or batch_size
        lines = run.metrics(per_step=False)
        timings = [line["timing"] for line in lines if "timing" in line]
        times = [1e3 * batch_size / timing["images_per_second"] for timing in timings]
        return cls(
            seed,
            str(folder),
            command,
            tuple(results),
            failed,
            step_ms=statistics.median(times) if times else None,
            peak_mb=max(filter(None, (t["peak_memory_mb"] for t in timings)), default=None),
            device=str(run.facts.device or ""),
            precision=str(run.facts.precision or ""),
            steps=lines[-1]["step"] if lines else 0,
            halved=f"a batch of {batch_size}, because {requested} did not fit"
            if requested != batch_size
            else "",
            criteria=last_criteria(run),
        )

    def plain(self) -> dict[str, Any]:
        """Return plain values for comparison.json."""
        return asdict(self) | {"results": _plain_results(self.results)}


@dataclass(frozen=True)
class OffTheShelf:
    """Hold the scores of the weights that all runs started from, before the first step.

    They have no seeds, so they are evaluated once.
    """

    source: str  # as config.yaml names the weights
    network: str
    digest: str  # of the weights, as in config.yaml
    results: tuple[Result, ...] = ()
    failed: str = ""  # the reason why they could not be evaluated
    criteria: dict[str, float] = field(default_factory=dict)  # of the probe before the first step

    @property
    def sentence(self) -> str:
        """Describe the weights in words."""
        return (
            f"{OFF_THE_SHELF}: {self.network} with the weights of {self.source} (digest "
            f"{self.digest}), before the first step; evaluated once, so without an interval"
        )

    def plain(self) -> dict[str, Any]:
        """Return plain values for comparison.json."""
        return asdict(self) | {"results": _plain_results(self.results)}


@dataclass(frozen=True)
class Row:
    """Hold the runs of one method with one value of the swept setting."""

    method: str
    value: Any  # None for a method that does not have the swept setting
    name: str
    runs: tuple[TrainedRun, ...]
    loss_ms: float | None = None  # None: not measured

    @property
    def step_ms(self) -> float | None:
        """Return the median time of a step over runs."""
        times = [run.step_ms for run in self.runs if run.step_ms is not None]
        return statistics.median(times) if times else None

    @property
    def peak_mb(self) -> float | None:
        """Return the highest peak memory of all runs."""
        return max((run.peak_mb for run in self.runs if run.peak_mb is not None), default=None)

    @property
    def loss_share(self) -> float | None:
        """Return the share of a step that its loss takes."""
        return self.loss_ms / self.step_ms if self.loss_ms is not None and self.step_ms else None

    @property
    def costs(self) -> list[str]:
        """Format the time of a step, the share of the loss, and the peak memory."""
        step = NONE
        if self.step_ms is not None:
            step = f"{self.step_ms:.3g}" if self.step_ms < 100 else f"{self.step_ms:,.0f}"
        share = NONE if self.loss_share is None else f"{self.loss_share:.1%}"
        memory = NONE if self.peak_mb is None else f"{self.peak_mb:,.0f}"
        return [step, share, memory]


@dataclass(frozen=True)
class Comparison:
    """Hold the rows of a comparison. Differences are to the first row.

    `score` and `difference` return numbers; `text`, `markdown` and `csv` return tables.
    """

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    swept: str | None  # the setting
    about: dict[str, Any]
    off_the_shelf: OffTheShelf | None = None  # None: runs from scratch

    @classmethod
    def read(cls, folder: Path) -> "Comparison":
        """Read comparison.json; scores do not have intervals of their own.

        Runs are searched in this folder, then where they were made.
        """
        document = read_comparison(folder)
        protocols = {}
        for protocol in document.pop("protocols"):
            stamp, sentence = protocol.pop("stamp"), protocol.pop("sentence")
            protocols[stamp] = protocol, sentence
        try:
            rows = tuple(_read_row(folder, row, protocols) for row in document.pop("rows"))
            start = _read_off_the_shelf(document.pop("off_the_shelf", None), protocols)
        except (KeyError, TypeError) as error:  # an unknown protocol, or a field of another version
            raise UserError(
                f"{folder / COMPARISON} does not describe a comparison ({error!r}). "
                "Run `smi compare` again to rewrite it."
            ) from error
        seeds, swept = tuple(document.pop("seeds")), document.pop("swept", None)
        document.pop("notes")
        return cls(rows, seeds, swept, document, start)

    def write(self, folder: Path) -> None:
        """Write comparison.json, table.md and table.csv."""
        write_json(folder / COMPARISON, self.plain())
        write_text(folder / "table.md", self.markdown())
        write_text(folder / "table.csv", self.csv())

    # ------------------------------------------------------------------------------ numbers

    @cached_property
    def protocols(self) -> dict[str, Result]:
        """Return the first result under each protocol, by the stamp of the protocol."""
        firsts: dict[str, Result] = {}
        for row in self.rows:
            for run in row.runs:
                for result in run.results:
                    firsts.setdefault(result.stamp, result)
        return firsts

    @property
    def published(self) -> bool:
        """Return whether each method was trained as its authors do, not all of them alike."""
        return bool(self.about.get("published", False))  # earlier versions do not have the key

    @property
    def seconds(self) -> float | None:
        """Return the time of each run; None for a comparison of equal epochs."""
        return self.about.get("seconds")  # earlier versions do not have the key

    @property
    def columns(self) -> list[Column]:
        """Return all scores of all protocols."""
        return [
            (stamp, score.name)
            for stamp, result in self.protocols.items()
            for score in result.scores
        ]

    def values(self, row: Row, column: Column) -> dict[int, float]:
        """Return the scores of a row by seed."""
        scores = {run.seed: _scores(run.results) for run in row.runs}
        return {seed: values[column] for seed, values in scores.items() if column in values}

    def score(self, row: Row, column: Column) -> Estimate | None:
        """Return the mean score of a row."""
        return Estimate.of(self.values(row, column))

    def difference(self, row: Row, column: Column) -> Estimate | None:
        """Return the mean difference to the first row, over the seeds that both have."""
        step = 0.0 if row is self.rows[0] else step_of(self.protocols[column[0]])
        return Estimate.of_differences(
            self.values(row, column), self.values(self.rows[0], column), step
        )

    def criterion(self, row: Row, name: str) -> Estimate | None:
        """Return the mean of a criterion that needs no labels, one of CRITERIA."""
        runs = [run for run in row.runs if name in run.criteria and not run.failed]
        return Estimate.of({run.seed: run.criteria[name] for run in runs})

    def start_score(self, column: Column) -> float | None:
        """Return the score of the weights off the shelf; None for runs from scratch."""
        results = self.off_the_shelf.results if self.off_the_shelf else ()
        return _scores(results).get(column)

    def gain(self, row: Row, column: Column) -> Estimate | None:
        """Return the mean difference of a row to the weights off the shelf, over its seeds."""
        start = self.start_score(column)
        if start is None:
            return None
        values = self.values(row, column)
        step = step_of(self.protocols[column[0]])
        return Estimate.of_differences(values, dict.fromkeys(values, start), step)

    @property
    def failed(self) -> list[tuple[str, TrainedRun]]:
        """Return the failed runs, each with the name of its row."""
        return [(row.name, run) for row in self.rows for run in row.runs if run.failed]

    def raise_if_failed(self) -> None:
        """Raise an error that counts the failed runs, if there are any."""
        if self.failed:
            total = sum(len(row.runs) for row in self.rows)
            raise TrainingError(f"{len(self.failed)} of {total} runs failed; see the notes above")

    # ------------------------------------------------------------------------------ tables

    def text(self) -> str:
        """Format all tables for a terminal, with notes beneath."""
        *tables, last = self.tables()
        tables.append(replace(last, notes=tuple(self.notes())))
        return "\n\n".join(table.text() for table in tables)

    def markdown(self) -> str:
        """Format all tables as Markdown, with a list of notes beneath."""
        tables = self.tables()
        parts = [f"## {in_markdown(table.title)}\n\n{table.markdown()}" for table in tables]
        notes = "\n".join(f"- {in_markdown(note)}" for note in self.notes())
        return "\n\n".join([*parts, notes]) + "\n"

    def latex(self) -> str:
        """Format all tables as LaTeX, with the notes as comments beneath."""
        *tables, last = self.tables()
        tables.append(replace(last, notes=tuple(self.notes())))
        return "\n\n".join(table.latex() for table in tables)

    def csv(self) -> str:
        """Format one line per row: scores between 0 and 1, milliseconds and MB."""
        records = [self._record(row) for row in self.rows]
        if self.off_the_shelf:
            records.append(self._start_record())
        return Table.of([], [], records=records).csv()

    def tables(self) -> list[Table]:
        """Return a table of scores and costs, then those of differences, of gains and of criteria.

        One row has no differences, and runs from scratch have no gains.
        """
        tables = [self._score_table()]
        if len(self.rows) > 1 and self.columns:
            title = f"Differences to {self.rows[0].name} in percentage points, paired by seed"
            tables.append(self._points_table(self.rows[1:], self.difference, title))
        if self.off_the_shelf and self.columns:
            title = f"Gains over {OFF_THE_SHELF} in percentage points"
            if len(self.seeds) > 1:
                title += f", {self._over_seeds[0].lower()}{self._over_seeds[1:]}"
            tables.append(self._points_table(self.rows, self.gain, title))
        if self._criteria:
            tables.append(self._criteria_table())
        return tables

    @property
    def _criteria(self) -> list[str]:
        """Return the criteria without labels that some run has."""
        runs = [run for row in self.rows for run in row.runs]
        return [name for name in CRITERIA if any(name in run.criteria for run in runs)]

    def _criteria_table(self) -> Table:
        """Return a table of what was measured without labels."""

        def cell(row: Row, name: str) -> str:
            estimate, form = self.criterion(row, name), CRITERIA[name][1]
            if estimate is None:
                return NONE
            if len(estimate.values) == 2:
                return " and ".join(map(form.format, estimate.values))
            half = "" if estimate.low is None else f" ± {form.format(estimate.half)}"
            return form.format(estimate.mean) + half

        cells = [[row.name, *(cell(row, name) for name in self._criteria)] for row in self.rows]
        if self.off_the_shelf:
            start = self.off_the_shelf.criteria
            texts = (
                CRITERIA[n][1].format(start[n]) if n in start else NONE for n in self._criteria
            )
            cells.append([OFF_THE_SHELF, *texts])
        headers = ["", *(CRITERIA[name][0] for name in self._criteria)]
        return Table.of(headers, cells, title="Without labels, on held-out images")

    def _score_table(self) -> Table:
        """Return a table of scores and costs."""
        rows = [
            [row.name, *(_score_cell(self.score(row, c)) for c in self.columns), *row.costs]
            for row in self.rows
        ]
        if self.off_the_shelf:
            scores = [self.start_score(column) for column in self.columns]
            cells = [NONE if score is None else f"{score:.1%}" for score in scores]
            rows.append([OFF_THE_SHELF, *cells, NONE, NONE, NONE])
        return Table.of(
            ["", *self._column_names(), "ms/step", "loss", "peak MB"],
            rows,
            title=f"{self._over_seeds}{self._kind}",
        )

    @property
    def _over_seeds(self) -> str:
        """Say what the numbers of a table are."""
        if len(self.seeds) < 3:
            return "Both seeds" if len(self.seeds) == 2 else "Mean over 1 seed"
        return f"Mean and 95 % interval over {len(self.seeds)} seeds"

    def _points_table(
        self, rows: Sequence[Row], estimate: Callable[[Row, Column], Estimate | None], title: str
    ) -> Table:
        """Return a table of differences in percentage points."""
        cells = [
            [row.name, *(_points_cell(estimate(row, column)) for column in self.columns)]
            for row in rows
        ]
        return Table.of(["", *self._column_names()], cells, title=title)

    def notes(self) -> list[str]:
        """Return sentences about protocols, costs and caveats, to stand beneath the tables."""
        protocols = [
            f"{r.protocol['name']} on {r.protocol['data']}, stamp {stamp}: {r.sentence}"
            for stamp, r in self.protocols.items()
        ]
        settings = [PUBLISHED_NOTE if self.published else self._identical_note]
        if self.seconds is not None:
            alike = settings[0].replace("batch size and epochs", "and batch size")
            settings = [alike, self._time_note(self.seconds)]
        start = [self.off_the_shelf.sentence] if self.off_the_shelf else []
        criteria = [CRITERIA_NOTE] if self._criteria else []
        choice = self.about.get("choice", ())  # earlier versions do not have the key
        lines = (*settings, *start, *protocols, COST_NOTE, *criteria, *self._caveats(), *choice)
        return [printable(line) for line in lines]

    @property
    def _identical_note(self) -> str:
        """Say what all methods have in common. A recipe may give them different learning rates."""
        rates = self.about.get("learning_rates", {})  # earlier versions do not have the key
        if len(set(rates.values())) < 2:
            return IDENTICAL_NOTE
        own = ", ".join(f"{row} {rate:g}" for row, rate in rates.items())
        return f"{IDENTICAL_NOTE.replace('learning rate, ', '')}; learning rates: {own}"

    @property
    def _kind(self) -> str:
        """Return how the comparison was made, for the title of the table."""
        kind = ", as published" if self.published else ""
        return kind if self.seconds is None else f"{kind}, {duration(self.seconds)} for each run"

    def _time_note(self, seconds: float) -> str:
        """Say that runs have the same time, and how many steps of each method fit into it."""
        steps = {row.name: [r.steps for r in row.runs if not r.failed] for row in self.rows}
        means = [f"{name} {statistics.mean(n):,.0f}" for name, n in steps.items() if n]
        return f"{TIMED_NOTE.format(time=duration(seconds))}. Steps: {', '.join(means) or NONE}"

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values, for comparison.json."""
        start = {"off_the_shelf": self.off_the_shelf.plain()} if self.off_the_shelf else {}
        return self.about | {
            "seeds": list(self.seeds),
            "swept": self.swept,
            "protocols": [
                {"stamp": stamp, "sentence": r.sentence, **r.protocol}
                for stamp, r in self.protocols.items()
            ],
            "rows": [self._plain_row(row) for row in self.rows],
            **start,
            "notes": list(self._caveats()),
        }

    def _caveats(self) -> Iterator[str]:
        """Yield the reasons to read the tables with care."""
        done = sum(len(row.runs) for row in self.rows)
        total = len(self.rows) * len(self.seeds)
        if done < total:
            yield f"so far {done} of {total} runs"
        if len(self.seeds) == 1:
            yield "one seed: there are no intervals, and a difference may be due to chance"
        for name, run in self.failed:
            yield f"failed: {name}, seed {run.seed}: {run.failed}"
        if self.off_the_shelf and self.off_the_shelf.failed:
            yield f"failed: {OFF_THE_SHELF}: {self.off_the_shelf.failed}"
        for row in self.rows:
            for run in row.runs:
                if run.halved:
                    yield f"not identical: {row.name}, seed {run.seed}, has {run.halved}"
        formats = {run.precision for row in self.rows for run in row.runs if run.precision}
        if len(formats) > 1:
            yield (
                f"not identical: runs were computed in {' and '.join(sorted(formats))}, "
                "so times are not comparable either"
            )
        stamps_by_kind: dict[str, list[str]] = {}
        for stamp, result in self.protocols.items():
            stamps_by_kind.setdefault(result.protocol["name"], []).append(stamp)
        for kind, stamps in stamps_by_kind.items():
            if len(stamps) > 1:
                yield (
                    f"not comparable: runs were evaluated under different {kind} protocols "
                    f"(stamps {', '.join(stamps)}), so {kind} has several columns"
                )
        devices = {run.device for row in self.rows for run in row.runs if run.device}
        if len(devices) > 1:
            yield (
                "times and memory are not comparable: runs were made on "
                f"{'; '.join(sorted(devices))}"
            )

    def _column_names(self) -> list[str]:
        """Return the headers of all scores, with stamps where a name would be ambiguous."""
        kinds = [result.protocol["name"] for result in self.protocols.values()]
        names = [name for _, name in self.columns]
        return [
            f"{name} ({stamp})"
            if kinds.count(self.protocols[stamp].protocol["name"]) > 1 or names.count(name) > 1
            else name
            for stamp, name in self.columns
        ]

    def _record(self, row: Row) -> dict[str, Any]:
        """Return the numbers of a row by column of table.csv."""
        record: dict[str, Any] = {"name": row.name, "method": row.method}
        if self.swept:
            record[self.swept] = row.value
        for name, column in zip(self._column_names(), self.columns, strict=True):
            score = self.score(row, column)
            mean, low, high = _numbers(score)
            record |= {f"{name} mean": mean, f"{name} low": low, f"{name} high": high}
            record[f"{name} seeds"] = None if score is None else len(score.seeds)
            mean, low, high = _numbers(self.difference(row, column))
            record[f"{name} difference"] = mean
            record |= {f"{name} difference low": low, f"{name} difference high": high}
            if self.off_the_shelf:
                mean, low, high = _numbers(self.gain(row, column))
                record[f"{name} gain"] = mean
                record |= {f"{name} gain low": low, f"{name} gain high": high}
        for name in self._criteria:
            mean, low, high = _numbers(self.criterion(row, name))
            title = CRITERIA[name][0]
            record |= {f"{title} mean": mean, f"{title} low": low, f"{title} high": high}
        return record | {
            "step ms": row.step_ms,
            "loss ms": row.loss_ms,
            "loss share": row.loss_share,
            "peak MB": row.peak_mb,
            "failed": sum(bool(run.failed) for run in row.runs),
        }

    def _start_record(self) -> dict[str, Any]:
        """Return the scores of the weights off the shelf by column of table.csv."""
        names = zip(self._column_names(), self.columns, strict=True)
        scores = {f"{name} mean": self.start_score(column) for name, column in names}
        return {"name": OFF_THE_SHELF, **scores}

    def _plain_row(self, row: Row) -> dict[str, Any]:
        """Return the entry of a row in comparison.json."""
        gains = {"gains": self._plain_estimates(row, self.gain)} if self.off_the_shelf else {}
        return {
            "name": row.name,
            "method": row.method,
            "value": row.value,
            "scores": self._plain_estimates(row, self.score),
            "differences": self._plain_estimates(row, self.difference),
            **gains,
            "step_ms": row.step_ms,
            "loss_ms": row.loss_ms,
            "loss_share": row.loss_share,
            "peak_mb": row.peak_mb,
            "runs": [run.plain() for run in row.runs],
        }

    def _plain_estimates(
        self, row: Row, estimate: Callable[[Row, Column], Estimate | None]
    ) -> list[dict[str, Any]]:
        """Return an entry for each column in which a row has an estimate."""
        estimates = [(column, estimate(row, column)) for column in self.columns]
        return [
            {"stamp": stamp, "score": name, **asdict(value)}
            for (stamp, name), value in estimates
            if value
        ]


def _read_row(
    folder: Path, row: Mapping[str, Any], protocols: Mapping[str, tuple[dict[str, Any], str]]
) -> Row:
    """Rebuild a row from its entry in comparison.json."""
    runs = []
    for run in row["runs"]:
        results = _read_results(run["results"], TRAINED, protocols)
        run_folder = str(locate_run(folder, run["folder"]))
        runs.append(TrainedRun(**dict(run) | {"folder": run_folder, "results": results}))
    return Row(row["method"], row["value"], row["name"], tuple(runs), row["loss_ms"])


def _read_off_the_shelf(
    start: Mapping[str, Any] | None, protocols: Mapping[str, tuple[dict[str, Any], str]]
) -> OffTheShelf | None:
    """Rebuild the weights off the shelf from their entry in comparison.json."""
    if start is None:
        return None
    results = _read_results(start["results"], OFF_THE_SHELF, protocols)
    return OffTheShelf(**dict(start) | {"results": results})


def _read_results(
    entries: Sequence[Mapping[str, Any]],
    subject: str,
    protocols: Mapping[str, tuple[dict[str, Any], str]],
) -> tuple[Result, ...]:
    """Rebuild results from the scores in comparison.json, one result for each protocol."""
    scores: dict[str, list[Score]] = {}
    for entry in entries:
        scores.setdefault(entry["stamp"], []).append(Score(entry["score"], entry["value"]))
    return tuple(
        Result(protocols[stamp][0], subject, {}, tuple(values), protocols[stamp][1])
        for stamp, values in scores.items()
    )


def _plain_results(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the scores of results as plain values for comparison.json."""
    return [
        {"stamp": result.stamp, "score": score.name, "value": score.value}
        for result in results
        for score in result.scores
    ]


def _scores(results: Sequence[Result]) -> dict[Column, float]:
    """Return the scores of results by column."""
    return {
        (result.stamp, score.name): score.value for result in results for score in result.scores
    }


def _numbers(value: Estimate | None) -> tuple[float | None, float | None, float | None]:
    """Return the mean and both ends of the interval, with None for missing values."""
    return (None, None, None) if value is None else (value.mean, value.low, value.high)


def _score_cell(value: Estimate | None) -> str:
    """Format a score, or a dash for None."""
    return NONE if value is None else str(value)


def _points_cell(value: Estimate | None) -> str:
    """Format a difference in points, or a dash for None."""
    return NONE if value is None else value.points
