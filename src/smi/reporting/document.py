"""Arrange runs, comparisons and portraits in the tabs of a report."""

import datetime
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from smi import __version__
from smi.comparison.comparison import CRITERIA_NOTE, Comparison
from smi.errors import UserError
from smi.evaluation.results import (
    OFF_THE_SHELF,
    SUBJECTS,
    Result,
    read_all,
    results_table,
    row_name,
)
from smi.figures.accuracy_std import accuracy_std
from smi.figures.curves import effective_rank, loss, probe
from smi.figures.eigenspectrum import draw_shares
from smi.figures.feature_std import feature_std
from smi.figures.gradient_norm import gradient_norm
from smi.figures.landscape import Shape, landscape
from smi.figures.linear_curves import linear_curves
from smi.figures.linear_scores import PROTOCOLS, results_of
from smi.figures.redundancy_ratio import ratio
from smi.figures.std_summary import std_summary
from smi.figures.tsne import COMPONENTS, moved_sentence, perplexity, within_sphere
from smi.figures.variance_violin import draw_variances
from smi.pages import (
    Block,
    Chooser,
    Cloud,
    Document,
    Missing,
    Plot,
    Sample,
    Section,
    TableBlock,
    Text,
    Verdict,
)
from smi.pages.plots import plot
from smi.reporting.before_after import gain_blocks, kept_texts, rotated_onto
from smi.reporting.gains import ADAPTED, start_results
from smi.reporting.image_blocks import (
    BEFORE_AFTER_NEIGHBOURS_TITLE,
    NEIGHBOURS_TITLE,
    PAIRS_TITLE,
    before_after_gallery,
    energy_maps,
    neighbours_gallery,
    pairs_gallery,
    views_gallery,
)
from smi.reporting.portrait import Portrait
from smi.reporting.quality import compared_quality_blocks, quality_blocks
from smi.reporting.run_blocks import (
    as_sentence,
    comparison_plot,
    comparison_tables,
    criteria_table,
    group_rows,
    health_verdict,
    join_words,
    missing_block,
    run_settings,
    runs_table,
    shared_facts,
)
from smi.reporting.runs import ReportRun, first_runs
from smi.runs.names import dataset_name, method_name
from smi.runs.run import Run
from smi.terminal import counted, epochs_text

CURVES: dict[str, Callable[[Mapping[str, Run]], Any]] = {
    "Loss": loss,
    "kNN accuracy": probe,
    "Gradient norm": gradient_norm,
    "Feature standard deviation": feature_std,
    "Redundancy ÷ alignment": ratio,
    "Effective rank": effective_rank,
}
SPECTRA: dict[str, tuple[str, Callable[..., Any]]] = {  # by the name of the part in a portrait
    "spectrum": ("Eigenspectrum of the features", draw_shares),
    "variances": ("Variance of each feature", draw_variances),
}
QUALITY_TITLE = "Is it any good?"
TSNE_TITLE = "3-D t-SNE of the features"
VERDICT_ORDER = ("stop", "warning", "unknown", "ok")

ResultRows = dict[tuple[str, str], list[Result]]  # by the name of a row and a digest of weights


class ReportDocument:
    """Build the document of a report.

    portraits: by the row that the portrayed run belongs to.
    start_portraits: the same, of the weights that runs started from.
    """

    def __init__(
        self,
        report_runs: Sequence[ReportRun],
        comparisons: Mapping[str, Comparison],
        portraits: Mapping[str, Portrait],
        start_portraits: Mapping[str, Portrait] | None = None,
    ):
        self.report_runs = report_runs
        self.comparisons = comparisons
        self.portraits = portraits
        self.start_portraits = start_portraits or {}
        self.runs = {run.name: run.run for run in report_runs}
        self.first_runs = {run.row: run.run for run in first_runs(report_runs)}
        self.parts = {  # of portraits that have images
            row: portrait.parts
            for row, portrait in portraits.items()
            if portrait.parts.get("names")
        }
        self.samples: dict[str, Sample] = {}
        self.thinning = 1

    def build(self, thinning: int = 1) -> Document:
        """Return the document. t-SNE shows one in `thinning` images."""
        self.thinning = thinning
        self.samples = {}
        tabs: dict[str, list[Block]] = {
            "Overview": list(self._overview()),
            "Training": list(self._training()),
            "Features": list(self._features()),
            "Images": list(self._images()),
            "Evaluation": list(self._evaluation()),
            "Settings": [
                Chooser("Run", {run.name: list(run_settings(run)) for run in self.report_runs})
            ],
        }
        footer = f"Written on {datetime.date.today():%d %B %Y} by smi {__version__}."
        return Document(self._title(), self._lead(), tabs, self.samples, footer)

    def _title(self) -> str:
        """Return the methods and datasets of the page."""
        datasets = join_words(dict.fromkeys(dataset_name(run) for run in self.runs.values()))
        methods = list(dict.fromkeys(method_name(run) for run in self.runs.values()))
        names = join_words(methods) if len(methods) < 5 else f"{len(methods)} methods"
        return f"{names} on {datasets}"

    def _lead(self) -> str:
        """Return the sentences beneath the title."""
        count = "One run" if len(self.runs) == 1 else counted(len(self.runs), "run")
        configs = [run.config for run in self.runs.values()]
        numbers = list(dict.fromkeys(config["epochs"] for config in configs))
        epochs = f"{join_words(f'{n:g}' for n in numbers[:-1])} and " if numbers[1:] else ""
        epochs += epochs_text(numbers[-1])
        encoders = join_words(dict.fromkeys(str(config["encoder"]["name"]) for config in configs))
        return f"{count} of {epochs}, encoder {encoders}. Pretraining used no labels."

    def _draw(self, title: str, make: Callable[[], Any], *, half: bool = False) -> Block:
        """Draw a figure, or say why it is missing."""
        try:
            return replace(plot(title, make().to_plotly_json()), half=half)
        except UserError as error:
            return Section(title, [missing_block(error)])

    # ------------------------------------------------------------------------------ overview

    def _overview(self) -> Iterator[Block]:
        """Yield the quality of runs, comparisons, gains over starts, health, and facts."""
        single = [run for run in self.report_runs if run.source == str(run.run.folder)]
        if single:
            blocks = quality_blocks(single, unlabelled=self._unlabelled())
            yield Section(QUALITY_TITLE, list(blocks))
        for name, comparison in self.comparisons.items():
            yield from self._comparison(name, comparison)
        rows = {row: list(self._before_after(row)) for row in self.start_portraits}
        if rows:
            yield Section("Before and after", [Chooser("Run", rows)])
        yield Section("Health", self._verdicts())
        num_classes = {len(part["classes"]) for part in self.parts.values() if part.get("classes")}
        facts = shared_facts(list(self.runs.values()), num_classes)
        noted = any(CRITERIA_NOTE in c.notes() for c in self.comparisons.values())
        criteria = criteria_table(self.runs, noted=noted)
        tables = [runs_table(self.runs), *([criteria] if criteria else [])]
        yield Section("Training setup", [facts, *tables])

    def _comparison(self, name: str, comparison: Comparison) -> Iterator[Block]:
        """Yield the figure of a comparison, its scores beside baselines, then its tables."""
        suffix = f" ({name})" if len(self.comparisons) > 1 else ""
        if comparison.columns:
            title = f"Scores, differences and costs{suffix}"
            yield self._draw(title, partial(comparison_plot, comparison))
        folders = {Path(run.folder).resolve() for row in comparison.rows for run in row.runs}
        runs = [run for run in self.report_runs if run.run.folder.resolve() in folders]
        blocks = list(compared_quality_blocks(runs, unlabelled=self._unlabelled()))
        if blocks:
            yield Section(f"{QUALITY_TITLE}{suffix}", blocks)
        yield from comparison_tables(comparison)

    def _unlabelled(self) -> list[str]:
        """Return the names of runs whose images have no labels."""
        return [run.name for run in self.report_runs if not self._has_labels(run.row)]

    def _has_labels(self, row: str) -> bool:
        """Return whether the images of a row have labels; unknown images may have some."""
        return self.parts.get(row, {}).get("labels", ()) is not None

    def _verdicts(self) -> list[Verdict]:
        """Return the health of all runs, the worst first and otherwise in order."""
        verdicts = [health_verdict(run.name, run.run) for run in self.report_runs]
        return sorted(verdicts, key=lambda verdict: VERDICT_ORDER.index(verdict.level))

    # ------------------------------------------------------------------------------ starts

    def _before_after(self, row: str) -> Iterator[Block]:
        """Yield what training changed in the weights that a row started from."""
        yield from self._gain_blocks[row]
        if row not in self.parts:
            missing = self.portraits[row].missing
            yield missing_block(missing.get("encoder") or missing.get("images"))
            return
        part, start = self.parts[row], self.start_portraits[row]
        reason = start.missing.get("encoder") or start.missing.get("images")
        if not reason and start.parts["names"] != part["names"]:
            reason = "the stored neighbours of the start are of other images"
        if reason:
            yield missing_block(reason)
            return
        yield from self._seed_note()
        yield self._compared_neighbours(row)
        yield from self._compared_tsne(row)

    @cached_property
    def _gain_blocks(self) -> dict[str, list[Block]]:
        """Return the kept encoders and the scores before and after, by row."""
        starts = start_results(self.runs.values())
        blocks: dict[str, list[Block]] = {}
        for row in self.start_portraits:
            runs = [run for run in self.report_runs if run.row == row]
            scores = gain_blocks(runs, starts, has_labels=self._has_labels(row))
            blocks[row] = [*kept_texts(runs), *scores]
        return blocks

    def _compared_neighbours(self, row: str) -> Block:
        """Show neighbours of the same queries before and after, or say why they are missing."""
        title = BEFORE_AFTER_NEIGHBOURS_TITLE
        for portrait in (self.start_portraits[row], self.portraits[row]):
            if "neighbours" not in portrait.parts:
                return Section(title, [missing_block(portrait.missing.get("neighbours"))])
        before = self.start_portraits[row].parts["neighbours"]
        return before_after_gallery(self.parts[row], before, row)

    def _compared_tsne(self, row: str) -> Iterator[Block]:
        """Show t-SNE of the same images before and after, or say why it is missing."""
        part, start = self.parts[row], self.start_portraits[row].parts
        if "places" not in part or "places" not in start:
            portraits = (self.start_portraits[row], self.portraits[row])
            reasons = [portrait.missing.get("places") for portrait in portraits]
            yield Section(TSNE_TITLE, [missing_block(reasons[0] or reasons[1])])
            return
        before = self._cloud(part, rotated_onto(start["places"], part["places"]))
        after = self._cloud(part, part["places"])
        yield replace(
            before,
            title=f"3-D t-SNE, {OFF_THE_SHELF}",
            caption=self._tsne_caption(f"the start ({OFF_THE_SHELF})", part),
            half=True,
        )
        yield replace(
            after,
            title=f"3-D t-SNE, {ADAPTED}",
            caption=f"The same images, encoded by {row} ({ADAPTED}). The cloud of the start is "
            "rotated as a whole, so that the two are easier to compare.",
            half=True,
        )

    # ------------------------------------------------------------------------------ training

    def _training(self) -> Iterator[Block]:
        """Yield the curves of training; those that are missing come last."""
        logged = {name: run for name, run in self.runs.items() if run.metrics(per_step=False)}
        if not logged:
            yield Missing(
                "None of these runs has logged metrics yet: training writes metrics.jsonl every "
                "few steps."
            )
            return
        silent = [name for name in self.runs if name not in logged]
        if silent:
            yield Missing(f"No metrics are logged yet for {join_words(silent)}.")
        curves = [
            self._draw(title, partial(draw, logged), half=True) for title, draw in CURVES.items()
        ]
        yield from sorted(curves, key=lambda block: not isinstance(block, Plot))

    # ------------------------------------------------------------------------------ features

    def _features(self) -> Iterator[Block]:
        """Yield figures about the features of images."""
        yield from self._seed_note()
        if not self.parts:
            yield from self._missing_portraits()
            return
        yield from self._spectra()
        yield Chooser("Run", {row: [self._tsne(row, part)] for row, part in self.parts.items()})
        yield from self._missing_portraits()
        evaluated = self._evaluated_runs(PROTOCOLS)
        yield self._draw(
            "Accuracy against feature standard deviation", lambda: accuracy_std(evaluated)
        )
        yield self._draw(
            "Feature standard deviation and accuracy by dataset",
            lambda: std_summary(_by_dataset(evaluated)),
        )

    def _seed_note(self) -> Iterator[Block]:
        """Name the seed that is shown if rows have several."""
        if len(self.first_runs) < len(self.report_runs):
            runs = self.first_runs.values()
            seeds = join_words(dict.fromkeys(str(run.config["seed"]) for run in runs))
            yield Text(
                f"Encoders and images: one run of each row is shown, seed {seeds}.", note=True
            )

    def _missing_portraits(self) -> Iterator[Block]:
        """Explain why encoders or images of a row are missing."""
        for row, portrait in self.portraits.items():
            for name in ("encoder", "images"):
                if name in portrait.missing:
                    yield Missing(f"Missing: {row}. {as_sentence(portrait.missing[name])}")

    def _spectra(self) -> Iterator[Block]:
        """Yield spectra and variances; runs on the same images share a figure."""
        groups = group_rows(self.parts, lambda part: (part["of"], part.get("measured", 0)))
        for (described, count), rows in groups.items():
            for key, (title, draw) in SPECTRA.items():
                values = {
                    row: np.array(self.parts[row][key]) for row in rows if key in self.parts[row]
                }
                if values:
                    runs = {row: self.first_runs[row] for row in values}
                    make = partial(draw, runs, values, count, of=described)
                    yield self._draw(title, make, half=True)
                for row in rows:
                    reason = self.portraits[row].missing.get(key)
                    if row not in values and reason:
                        yield Missing(f"Not in “{title}”: {row}. {as_sentence(reason)}")

    def _tsne(self, row: str, part: Mapping[str, Any]) -> Block:
        """Show t-SNE of a row, or say why it is missing."""
        if "places" not in part:
            reason = self.portraits[row].missing.get("places")
            return Section(TSNE_TITLE, [missing_block(reason)])
        return replace(self._cloud(part, part["places"]), caption=self._tsne_caption(row, part))

    def _cloud(self, part: Mapping[str, Any], places: Sequence[Sequence[float]]) -> Cloud:
        """Show places [n, 3] of the images of a part."""
        shown = slice(None, None, self.thinning)
        points, _ = within_sphere(places)
        return Cloud(TSNE_TITLE, self._add_sample(part, shown), points[shown].tolist())

    def _add_sample(self, part: Mapping[str, Any], shown: slice) -> str:
        """Add the images of a part to the document unless they are there; return their key."""
        labels = part["labels"]
        sample = Sample(
            part["names"][shown],
            part["pictures"][shown],
            None if labels is None else labels[shown],
            part["classes"],
        )
        for key, other in self.samples.items():
            if other == sample:
                return key
        key = f"images-{len(self.samples)}"
        self.samples[key] = sample
        return key

    def _tsne_caption(self, row: str, part: Mapping[str, Any]) -> str:
        """Return the caption of t-SNE."""
        count = len(part["names"])
        caption = (
            f"3-D t-SNE (perplexity {perplexity(count):g}) of the frozen features of {count:,} "
            f"{part['of']}, encoded by {row} and reduced to {COMPONENTS} principal components "
            "before. Axes have no unit; distances between clusters mean little."
        )
        caption += moved_sentence(within_sphere(part["places"])[1])
        if not part["labels"]:
            caption += " The images have no labels to colour them by."
        if self.thinning > 1:
            caption += f" One in {self.thinning} is shown, to keep this file small."
        return caption

    def _evaluated_runs(self, protocols: Sequence[str]) -> dict[str, Run]:
        """Return the runs with results under these protocols, or all runs if there are none."""
        evaluated = {name: run for name, run in self.runs.items() if results_of(run, protocols)}
        return evaluated or dict(self.runs)

    # ------------------------------------------------------------------------------ images

    def _images(self) -> Iterator[Block]:
        """Yield views, pairs, neighbours and energy maps."""
        yield from self._seed_note()
        yield from self._missing_portraits()
        if self.parts:
            galleries = {row: list(self._galleries(row)) for row in self.parts}
            yield Chooser("Run", galleries)
            yield from energy_maps(self.parts, self.portraits)

    def _galleries(self, row: str) -> Iterator[Block]:
        """Yield the galleries of a row, or the reasons why they are missing."""
        part = self.parts[row]
        missing = self.portraits[row].missing
        if "views" in part:
            yield views_gallery(part["views"], part["data"])
        if "pairs" in part:
            yield pairs_gallery(row, part)
            yield self._landscape(row, part)
        else:
            yield Section(PAIRS_TITLE, [missing_block(missing.get("pairs"))])
        if "neighbours" in part:
            yield neighbours_gallery(row, part)
        else:
            yield Section(NEIGHBOURS_TITLE, [missing_block(missing.get("neighbours"))])

    def _landscape(self, row: str, part: Mapping[str, Any]) -> Block:
        """Draw the loss of a pair against its correlation, with marks at the pairs shown."""
        shape = Shape.of_method(self.first_runs[row].config["method"])
        marks = [
            (f"M = {pair['m']:.2f} (ρ = {pair['rho']:.2f})".replace("-", "−"), pair["rho"])
            for pair in part["pairs"]["shown"]
        ]
        of = f"{part['pairs']['data']} (shown above)"
        return self._draw(
            "Loss landscape of a pair",
            lambda: landscape(shape, marks=marks, of=of),
        )

    # ------------------------------------------------------------------------------ evaluation

    def _evaluation(self) -> Iterator[Block]:
        """Yield a table of accuracies for each dataset, and curves of the linear evaluation."""
        rows: ResultRows = {}
        for name, run in self.runs.items():
            try:
                results = read_all(run.folder)
            except UserError as error:
                yield missing_block(error)
                continue
            if not results:
                command = shlex.join(["smi", "evaluate", str(run.folder)])
                yield Missing(f"{name} is not evaluated yet:", command)
            _add_results(rows, name, results)
        if not rows:
            return
        yield from _accuracy_tables(rows)
        yield Text(
            "Two numbers are comparable if they stand in one column: their protocols have the same "
            "stamp, a hash of everything that two evaluations must share.",
            note=True,
        )
        yield self._draw(
            "Training and held-out accuracy of the linear evaluation",
            lambda: linear_curves(_by_dataset(self._evaluated_runs(("linear",)))),
        )


def _by_dataset(runs: Mapping[str, Run]) -> dict[str, dict[str, Run]]:
    """Group runs by their dataset."""
    groups: dict[str, dict[str, Run]] = {}
    for name, run in runs.items():
        groups.setdefault(dataset_name(run), {})[name] = run
    return groups


def _add_results(rows: ResultRows, name: str, results: Sequence[Result]) -> None:
    """Add the results of a run; encoders of several epochs get a row each."""
    digests = {result.encoder.get("digest") for result in results if result.subject == "encoder"}
    for result in sorted(
        results, key=lambda r: (SUBJECTS.index(r.subject), r.encoder.get("epoch") or 0)
    ):
        needs_epoch = len(digests) > 1 or result.subject != "encoder"
        row = row_name(name, result.subject, result.encoder if needs_epoch else {})
        rows.setdefault((row, result.encoder["digest"]), []).append(result)


def _accuracy_tables(rows: ResultRows) -> Iterator[TableBlock]:
    """Yield a table for each dataset, with untrained encoders and raw pixels first."""
    trained = ("encoder", "student")
    baselines = [key for key, results in rows.items() if results[0].subject not in trained]
    order = [*baselines, *(key for key in rows if key not in baselines)]
    datasets = {result.protocol["data"] for results in rows.values() for result in results}
    for data in sorted(datasets):
        results_by_row = {
            key: [r for r in rows[key] if r.protocol["data"] == data] for key in order
        }
        named = [(key[0], results) for key, results in results_by_row.items() if results]
        title = f"Accuracy on held-out images of {data.removesuffix('/')}"
        yield TableBlock(replace(results_table(named), title=title))
