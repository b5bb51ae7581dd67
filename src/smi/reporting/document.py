"""From runs, comparisons and portraits to the document of a page: what stands in which tab."""

import datetime
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from smi import __version__
from smi.comparison.comparison import Comparison
from smi.errors import UserError
from smi.evaluation.results import SUBJECTS, Result, read_all, results_table, row_name
from smi.figures.accuracy_std import accuracy_std
from smi.figures.curves import effective_rank, loss, probe
from smi.figures.eigenspectrum import of_shares
from smi.figures.energy_maps import WHICH
from smi.figures.feature_std import feature_std
from smi.figures.gradient_norm import gradient_norm
from smi.figures.landscape import Shape, landscape
from smi.figures.linear_curves import linear_curves
from smi.figures.ratio import ratio
from smi.figures.scores import PROTOCOLS, results_of
from smi.figures.std_summary import std_summary
from smi.figures.tsne import COMPONENTS, perplexity
from smi.figures.variance_violin import of_variances
from smi.pages import (
    Block,
    Chooser,
    Cloud,
    Document,
    Facts,
    Gallery,
    Missing,
    Plot,
    Sample,
    Section,
    Table,
    Text,
    Tile,
    Verdict,
)
from smi.pages.plots import plot
from smi.reporting.parts import (
    as_sentence,
    compared_figure,
    encoder_of,
    gallery_of_neighbours,
    gallery_of_views,
    grouped,
    images_of,
    listed,
    not_here,
    optimizer_of,
    seconds_of,
    settings_of,
    spelt_in,
    verdict_of,
)
from smi.reporting.portrait import Portrait
from smi.reporting.runs import Shown, looked
from smi.runs.names import data_of, method_of, spelt
from smi.runs.run import Run
from smi.terminal import duration

FEATURES = {
    "eigenspectrum": "How many directions features use",
    "variances": "How evenly coordinates vary",
    "tsne": "Features in three dimensions (t-SNE)",
}


class Gathered:
    """What was found, as a document."""

    def __init__(
        self,
        shown: Sequence[Shown],
        comparisons: Mapping[str, Comparison],
        portraits: Mapping[str, Portrait],
    ):
        self.shown, self.comparisons, self.portraits = shown, comparisons, portraits
        self.runs = {one.name: one.run for one in shown}
        self.logged = {name: run for name, run in self.runs.items() if run.metrics()}
        self.looked = {one.row: one.run for one in looked(shown)}
        self.several = len(self.looked) < len(shown)  # seeds of one row

    def document(self, thinner: int = 1) -> Document:
        self.thinner = thinner
        self.samples: dict[str, Sample] = {}
        return Document(
            self._title(),
            self._lead(),
            {
                "Overview": list(self._overview()),
                "Training": list(self._training()),
                "Features": list(self._features()),
                "Images": list(self._images()),
                "Evaluation": list(self._evaluation()),
                "Settings": list(self._settings()),
            },
            self.samples,
            f"Written on {datetime.date.today():%d %B %Y} by smi {__version__}.",
        )

    def _title(self) -> str:
        data = listed(dict.fromkeys(data_of(run) for run in self.runs.values()))
        methods = list(dict.fromkeys(method_of(run) for run in self.runs.values()))
        return f"{listed(methods) if len(methods) < 5 else f'{len(methods)} methods'} on {data}"

    def _lead(self) -> str:
        count = "One run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        configs = [run.config for run in self.runs.values()]
        epochs = listed(dict.fromkeys(str(config["epochs"]) for config in configs))
        encoders = listed(dict.fromkeys(str(config["encoder"]["name"]) for config in configs))
        labels = "Pretraining saw no label."
        return f"{count} of {epochs} epochs, encoder {encoders}. {labels}"

    # ----------------------------------------------------------------------------------------------------------------------- overview

    def _overview(self) -> Iterator[Block]:
        for comparison in self.comparisons.values():
            yield from self._tables(comparison)
        yield Section("Health", self._verdicts())
        for name, comparison in self.comparisons.items():
            if comparison.columns:
                title = "Scores, differences and costs" + (
                    f" ({name})" if len(self.comparisons) > 1 else ""
                )
                yield self._drawn(title, partial(compared_figure, comparison))
        yield Section("What was trained", [Facts(self._facts()), self._table()])

    def _tables(self, comparison: Comparison) -> Iterator[Block]:
        tables = [
            Table(
                spelt_in(title, comparison),
                headers,
                [[spelt(line[0]), *line[1:]] for line in lines],
            )
            for title, headers, lines in comparison.tables()
        ]
        yield replace(tables[0], notes=comparison.beneath()) if len(tables) == 1 else tables[0]
        yield from (replace(table, notes=comparison.beneath()) for table in tables[1:])

    def _verdicts(self) -> list[Verdict]:
        found = [verdict_of(one.name, one.run) for one in self.shown]
        order = ("stop", "warning", "unknown", "ok")
        return sorted(
            found, key=lambda verdict: order.index(verdict.level)
        )  # a stable sort: as given, but trouble first

    def _facts(self) -> list[tuple[str, str]]:
        """What was trained and how; where runs differ, all that there is."""

        def each(value: Callable[[Run], Any]) -> str:
            return listed(
                dict.fromkeys(
                    str(found)
                    for run in self.runs.values()
                    if (found := value(run)) not in (None, "")
                )
            )

        seconds = sum(filter(None, (seconds_of(run) for run in self.runs.values())))
        classes = {len(part["classes"]) for part in self._parts().values() if part.get("classes")}
        facts = [
            ("Method", each(method_of)),
            ("Data", each(data_of)),
            ("Images", each(lambda run: images_of(run.about))),
            ("Classes, for evaluation only", listed(map(str, sorted(classes)))),
            ("Encoder", each(lambda run: encoder_of(run))),
            ("Views", each(lambda run: run.about.get("policy"))),
            ("Epochs", each(lambda run: run.config["epochs"])),
            ("Batch", each(lambda run: run.config["batch_size"])),
            ("Optimizer", each(lambda run: optimizer_of(run.config))),
            ("Seeds", each(lambda run: run.config["seed"])),
            ("Machine", each(lambda run: run.about.get("device"))),
            (
                "Time in training",
                f"{duration(seconds)}{' together' if len(self.runs) > 1 else ''}"
                if seconds
                else "",
            ),
        ]
        return [(name, value) for name, value in facts if value]

    def _table(self) -> Table:
        rows = []
        for name, run in self.runs.items():
            lines, probes, seconds = run.metrics(), run.probes(), seconds_of(run)
            last = lines[-1] if lines else {}
            knn = probes[-1]["probe"].get("knn") if probes else None
            spread, rank = last.get("feature_std"), last.get("effective_rank")
            rows.append(
                [
                    name,
                    str(run.about.get("status", "unknown")),
                    f"{last['step']:,}" if last else "-",
                    f"{lines[0]['loss']:.4g} → {last['loss']:.4g}" if last else "-",
                    "-" if spread is None else f"{spread:.3g}",
                    "-" if rank is None else f"{rank:.0f}",
                    "-" if seconds is None else duration(seconds),
                    "-" if knn is None else f"{knn:.1%}",
                ]
            )
        notes = [
            "feature std and effective rank: of the last batch that was logged",
            "kNN: on held-out images, as last measured",
        ]
        headers = [
            "",
            "state",
            "steps",
            "loss, first → last",
            "feature std",
            "effective rank",
            "time",
            "kNN",
        ]
        if not any(run.probes() for run in self.runs.values()):
            headers, rows, notes = headers[:-1], [row[:-1] for row in rows], notes[:1]
        return Table("Each run", headers, rows, notes, words=1)

    # ----------------------------------------------------------------------------------------------------------------------- training

    def _training(self) -> Iterator[Block]:
        if not self.logged:
            yield Missing(
                "None of these runs has logged anything yet: training writes metrics.jsonl every few steps."
            )
            return
        if silent := [name for name in self.runs if name not in self.logged]:
            yield Missing(f"Nothing was logged yet by {listed(silent)}.")
        drawn = [
            self._drawn(title, partial(make, self.logged), half=True)
            for title, make in {
                "Loss": loss,
                "Accuracy of nearest neighbours": probe,
                "Gradient norm": gradient_norm,
                "Feature std": feature_std,
                "Redundancy ÷ alignment": ratio,
                "Effective rank": effective_rank,
            }.items()
        ]
        yield from sorted(
            drawn, key=lambda block: not isinstance(block, Plot)
        )  # what is not there comes last

    def _drawn(self, title: str, make: Callable[[], Any], *, half: bool = False) -> Block:
        """A figure, or the sentence why there is none."""
        try:
            return replace(plot(title, make().to_plotly_json()), half=half)
        except UserError as error:
            return Section(title, [not_here(error)])

    # ----------------------------------------------------------------------------------------------------------------------- features

    def _features(self) -> Iterator[Block]:
        yield from self._one_of_each()
        parts = self._parts()
        if not parts:
            yield from self._why_not()
            return
        yield from self._spectra(parts)
        yield self._chooser({row: [self._cloud(row, part)] for row, part in parts.items()})
        yield from self._why_not()
        yield self._drawn(
            "Accuracy against feature std", lambda: accuracy_std(self._evaluated(self.runs))
        )
        yield self._drawn(
            "Feature std and accuracy",
            lambda: std_summary(self._by_data(self._evaluated(self.runs))),
        )

    def _one_of_each(self) -> Iterator[Block]:
        if self.several:
            seeds = listed(dict.fromkeys(str(run.config["seed"]) for run in self.looked.values()))
            yield Text(
                f"Encoders and images: of each row one run is looked into here, seed {seeds}.",
                note=True,
            )

    def _parts(self) -> dict[str, dict[str, Any]]:
        """Of runs whose encoder could be looked with."""
        return {
            row: found.parts for row, found in self.portraits.items() if found.parts.get("names")
        }

    def _why_not(self) -> Iterator[Block]:
        for row, found in self.portraits.items():
            for sentence in (
                found.missing[name] for name in ("encoder", "images") if name in found.missing
            ):
                yield Missing(f"Not here: {row}. {as_sentence(sentence)}")

    def _spectra(self, parts: Mapping[str, dict[str, Any]]) -> Iterator[Block]:
        """Runs on the same images stand in one figure."""
        for (words, count), rows in grouped(
            parts, lambda part: (part["of"], len(part["names"]))
        ).items():
            for key, make in (("spectrum", of_shares), ("variances", of_variances)):
                title = FEATURES["eigenspectrum" if key == "spectrum" else key]
                found = {row: np.array(parts[row][key]) for row in rows if key in parts[row]}
                if found:
                    runs = {row: self.looked[row] for row in found}
                    yield self._drawn(title, partial(make, runs, found, count, of=words), half=True)
                for row in rows:
                    if key not in parts[row] and (why := self.portraits[row].missing.get(key)):
                        yield Missing(f"Not in “{title}”: {row}. {as_sentence(why)}")

    def _cloud(self, row: str, part: Mapping[str, Any]) -> Block:
        if "places" not in part:
            why = self.portraits[row].missing.get("places", "it was not made")
            return Section(FEATURES["tsne"], [Missing(as_sentence(why))])
        kept = slice(None, None, self.thinner)
        labels = part["labels"]
        sample = Sample(
            part["names"][kept],
            part["pictures"][kept],
            None if labels is None else labels[kept],
            part["classes"],
        )
        key = next(
            (key for key, other in self.samples.items() if other == sample),
            f"images-{len(self.samples)}",
        )
        self.samples[key] = sample
        count = len(part["names"])
        thin = (
            f" One in {self.thinner} is shown, to keep this file small." if self.thinner > 1 else ""
        )
        unlabelled = "" if labels else " They have no labels to colour them by."
        caption = (
            f"3-D t-SNE (perplexity {perplexity(count):g}) of the frozen features of {count:,} {part['of']} under {row}, reduced by "
            f"principal components to {COMPONENTS} coordinates before. Axes have no unit; distances between clusters mean little."
            f"{unlabelled}{thin}"
        )
        return Cloud(
            FEATURES["tsne"],
            key,
            [[round(x, 3) for x in place] for place in part["places"][kept]],
            caption,
        )

    def _evaluated(
        self, runs: Mapping[str, Run], protocols: Sequence[str] = PROTOCOLS
    ) -> dict[str, Run]:
        """Those with such results, if there are any."""
        return {name: run for name, run in runs.items() if results_of(run, protocols)} or dict(runs)

    def _by_data(self, runs: Mapping[str, Run]) -> dict[str, dict[str, Run]]:
        names = dict.fromkeys(data_of(run) for run in runs.values())
        return {
            data: {name: run for name, run in runs.items() if data_of(run) == data}
            for data in names
        }

    # ------------------------------------------------------------------------------------------------------------------------- images

    def _images(self) -> Iterator[Block]:
        yield from self._one_of_each()
        parts = self._parts()
        yield from self._why_not()
        if parts:
            yield self._chooser(
                {row: list(self._gallery(row, part)) for row, part in parts.items()}
            )
            yield from self._maps(parts)

    def _gallery(self, row: str, part: Mapping[str, Any]) -> Iterator[Block]:
        missing = self.portraits[row].missing
        if views := part.get("views"):
            yield gallery_of_views(views, part["data"])
        yield (
            self._pairs(row, part)
            if "pairs" in part
            else Section("Positive pairs, sorted by dependency", [not_here(missing.get("pairs"))])
        )
        if "pairs" in part:
            yield self._landscape(row, part)
        if "neighbours" in part:
            yield gallery_of_neighbours(row, part)
        else:
            yield Section("Nearest neighbours", [not_here(missing.get("neighbours"))])

    def _pairs(self, row: str, part: Mapping[str, Any]) -> Block:
        pairs = part["pairs"]
        tiles = [
            (
                f"M = {pair['m']:.2f}, ρ = {pair['rho']:.2f}".replace("-", "−"),
                [
                    Tile(picture, f"view {i} of pair {number}")
                    for i, picture in enumerate(pair["pictures"], 1)
                ],
            )
            for number, pair in enumerate(pairs["shown"], 1)
        ]
        return Gallery(
            "Positive pairs, sorted by dependency",
            tiles,
            f"Two views of one image, from the pair whose embeddings depend on each other least to the one where they do most: "
            f"{len(tiles)} of {pairs['count']:,} images of {pairs['data']}, under {row}. M = −½ log(1 − ρ² + ε), where ρ is the "
            "correlation of the two embeddings.",
            flow=True,
        )

    def _landscape(self, row: str, part: Mapping[str, Any]) -> Block:
        method = self.looked[row].config["method"]
        given = {
            name: method[name]
            for name in ("target", "shift", "eps")
            if method["name"] == "SMI" and name in method
        }
        marks = [
            (f"M = {pair['m']:.2f} (ρ = {pair['rho']:.2f})".replace("-", "−"), pair["rho"])
            for pair in part["pairs"]["shown"]
        ]
        of = f"{part['pairs']['data']}, those above"
        return self._drawn(
            "What a pair costs: the landscape of the objective",
            lambda: landscape(Shape(**given), marks=marks, of=of),
        )

    def _maps(self, parts: Mapping[str, dict[str, Any]]) -> Iterator[Block]:
        title = "Where encoders look: energy maps"
        for rows in grouped(
            parts, lambda part: (part["data"], *part.get("maps", {}).get("images", ()))
        ).values():
            there = [row for row in rows if "maps" in parts[row]]
            if there:
                first = parts[there[0]]["maps"]
                gallery = []
                for i, caption in enumerate(first["captions"]):
                    tiles = [Tile(first["images"][i], f"image: {caption}")]
                    tiles += [
                        Tile(parts[row]["maps"]["maps"][i], f"energy map of {row} over it")
                        for row in there
                    ]
                    gallery.append((caption, tiles))
                sizes = listed(
                    dict.fromkeys(
                        " × ".join(map(str, parts[row]["maps"]["places"])) for row in there
                    )
                )
                yield Gallery(
                    title,
                    gallery,
                    f"{parts[there[0]]['of'].capitalize()} and, over them in grey, the ℓ2 norm over channels of each encoder's "
                    f"{WHICH}, enlarged to the image (bilinear, from {sizes} places) and scaled from its least "
                    "(dark) to its most (bright): maps show where, not how much.",
                    ("image", *there),
                )
            if len(there) < len(rows):
                without = [row for row in rows if row not in there]
                yield Section(
                    f"{title}: not of {listed(without)}",
                    [not_here(self.portraits[row].missing.get("maps")) for row in without],
                )

    # --------------------------------------------------------------------------------------------------------------------- evaluation

    def _evaluation(self) -> Iterator[Block]:
        rows: dict[tuple[str, str], list[Result]] = {}
        for name, run in self.runs.items():
            try:
                results = read_all(run.folder)
            except UserError as error:
                yield not_here(error)
                continue
            if not results:
                yield Missing(
                    f"{name} was not evaluated yet:",
                    shlex.join(["smi", "evaluate", str(run.folder)]),
                )
            several = (
                len(
                    {
                        result.encoder.get("digest")
                        for result in results
                        if result.subject == "encoder"
                    }
                )
                > 1
            )
            for result in sorted(
                results, key=lambda r: (SUBJECTS.index(r.subject), r.encoder.get("epoch") or 0)
            ):
                called_so = row_name(
                    name,
                    result.subject,
                    result.encoder if several or result.subject != "encoder" else {},
                )
                rows.setdefault((called_so, result.encoder["digest"]), []).append(result)
        if not rows:
            return
        floors = [key for key, results in rows.items() if results[0].subject != "encoder"]
        order = [*floors, *(key for key in rows if key not in floors)]
        kinds = {result.protocol["data"] for results in rows.values() for result in results}
        for data in sorted(kinds):
            here = [
                (key[0], some)
                for key in order
                if (some := [r for r in rows[key] if r.protocol["data"] == data])
            ]
            found = results_table(here)
            yield Table(
                f"Accuracy on held-out images of {data.removesuffix('/')}",
                found.headers,
                found.lines,
                list(found.notes),
            )
        yield Text(
            "Two numbers may be compared where they stand in one column: their protocols have one stamp, a hash of everything another "
            "encoder must share.",
            note=True,
        )
        yield self._drawn(
            "Training and held-out accuracy of the linear evaluation",
            lambda: linear_curves(self._by_data(self._evaluated(self.runs, ("linear",)))),
        )

    # ----------------------------------------------------------------------------------------------------------------------- settings

    def _settings(self) -> Iterator[Block]:
        yield Chooser("Run", {one.name: list(settings_of(one)) for one in self.shown})

    def _chooser(self, options: Mapping[str, Sequence[Block]]) -> Block:
        return Chooser("Run", options)
