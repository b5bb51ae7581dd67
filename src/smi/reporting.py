"""One page about runs and comparisons: what `smi report` writes.

report(["runs/smi", "runs/bt"], "report.html")       # or the folder of a comparison
"""

import datetime
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smi import __version__
from smi.analysis import comparison_figure
from smi.analysis.accuracy_std import accuracy_std
from smi.analysis.comparison import Comparison
from smi.analysis.curves import effective_rank, loss, probe
from smi.analysis.eigenspectrum import of_shares
from smi.analysis.feature_std import feature_std
from smi.analysis.gradient_norm import gradient_norm
from smi.analysis.landscape import Shape, landscape
from smi.analysis.linear_curves import linear_curves
from smi.analysis.ratio import ratio
from smi.analysis.scores import PROTOCOLS, results_of
from smi.analysis.std_summary import std_summary
from smi.analysis.style import SPELT, called, data_of, looks, method_of
from smi.analysis.tsne import COMPONENTS, perplexity
from smi.analysis.variance_violin import of_variances
from smi.checkpoint import write_text
from smi.data.places import disk_errors, expand, printable
from smi.doctor import examine
from smi.errors import UserError
from smi.evaluation import SUBJECTS, row_name
from smi.journal import duration
from smi.machine import choose_device, keep_memory
from smi.portrait import NEAR, Asked, Portrait, portrait
from smi.report import (
    Block,
    Chooser,
    Cloud,
    Code,
    Document,
    Facts,
    Finding,
    Gallery,
    Missing,
    Sample,
    Section,
    Table,
    Text,
    Tile,
    Verdict,
    page,
)
from smi.report.plots import plot
from smi.results import Result, read_all, sheet
from smi.run import Run

LARGEST = 10_000_000  # bytes of a page
THINNER = (1, 2, 4, 8)  # of the images in clouds one in so many is left, if the page would be larger

FEATURES = {
    "eigenspectrum": "How many directions features use",
    "variances": "How evenly coordinates vary",
    "tsne": "Features in three dimensions (t-SNE)",
}


def report(
    sources: Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    device: str | None = None,
    num_workers: int | None = None,
) -> Path:
    """Write a page about runs' and comparisons' folders that needs no network nor any other file; give its path.

    data: images to look at; None: what each run was pretrained on. root: where named sets lie; None: where the run found them.
    """
    out = expand(out)
    _check(sources, out)
    shown, comparisons = _shown(sources)
    if choose_device(device).type == "cpu":
        keep_memory()
    portraits = {}
    for one in _looked(shown):
        place = root or one.run.about.get("root")
        asked = Asked(str(data or one.run.config["data"]["source"]), None if place is None else str(expand(place)))
        portraits[one.row] = portrait(one.run, asked, device=device, num_workers=num_workers)
    gathered = Gathered(shown, comparisons, portraits)
    for thinner in THINNER:
        text = page(gathered.document(thinner))
        if len(text.encode()) < LARGEST:
            break
    else:
        raise UserError(f"a page about {len(shown)} runs is larger than {LARGEST / 1e6:g} MB: give fewer of them")
    with disk_errors(f"writing {out}"):
        write_text(out, text)
    runs = "one run" if len(shown) == 1 else f"{len(shown)} runs"
    print(f"{printable(str(out))}: {runs}, {len(text.encode()) / 1e6:.1f} MB; opens in any browser, without a network")
    return out


def _check(sources: Sequence[str | Path], out: Path) -> None:
    """Before anything is computed."""
    if not sources:
        raise UserError("name the folder of a run or a comparison to report on")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a report is a page, so --out must end in .html, not {out.name!r}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to")
    if out.is_dir():
        raise UserError(f"{out} is a folder: choose another --out")


# ----------------------------------------------------------------------------------------------------------------- which runs there are


@dataclass(frozen=True)
class Shown:
    """A run of the page. Runs of one row of a comparison differ by their seed, and look the same."""

    name: str
    row: str
    run: Run
    command: str = ""  # that made it, if it is known
    compared: bool = False


def _shown(sources: Sequence[str | Path]) -> tuple[list[Shown], dict[str, Comparison]]:
    comparisons: dict[str, Comparison] = {}
    alone: list[Run] = []
    found: list[Shown] = []
    for source in map(expand, sources):
        if not source.exists():
            raise UserError(f"there is no run or comparison {source}")
        if not (source / "comparison.json").is_file():
            alone.append(Run(source))
            continue
        comparison = Comparison.read(source)
        comparisons[source.resolve().name] = comparison
        here = list(_compared(comparison))
        if not here:
            raise UserError(f"{source} is a comparison without runs: they are looked for in {source / 'runs'}")
        found += here
    found = [Shown(name, name, run) for name, run in called(alone).items()] + found
    folders = [one.run.folder.resolve() for one in found]
    if twice := next((folder for i, folder in enumerate(folders) if folder in folders[:i]), None):
        raise UserError(f"{twice} is given twice")
    return _apart(found), comparisons


def _compared(comparison: Comparison) -> Iterator[Shown]:
    for row in comparison.rows:
        name = _spelt(row.name)
        for trained in row.runs:
            if (Path(trained.folder) / "config.yaml").is_file():
                seed = f", seed {trained.seed}" if len(row.runs) > 1 or len(comparison.seeds) > 1 else ""
                yield Shown(f"{name}{seed}", name, Run(trained.folder), trained.command, True)


def _spelt(name: str) -> str:
    method, comma, rest = name.partition(",")
    return SPELT.get(method, method.rsplit(".", 1)[-1]) + comma + rest.replace("redundancy_weight=", "λ = ")


def _apart(found: list[Shown]) -> list[Shown]:
    """Those of one name say what else tells them apart: their data, or where they lie."""
    names = [one.name for one in found]
    if len(set(names)) == len(names):
        return found
    data = [data_of(one.run) for one in found]
    more = data if len(set(zip(names, data, strict=True))) == len(names) else [str(one.run.folder) for one in found]
    rows = data if more is data else [str(one.run.folder.parent if one.compared else one.run.folder) for one in found]
    return [
        replace(one, name=f"{one.name}, {words}", row=f"{one.row}, {others}") for one, words, others in zip(found, more, rows, strict=True)
    ]


def _looked(shown: Sequence[Shown]) -> list[Shown]:
    """One run of each row: the first that has an encoder."""
    rows: dict[str, Shown] = {}
    for one in shown:
        if one.row not in rows or (one.run.checkpoint.is_file() and not rows[one.row].run.checkpoint.is_file()):
            rows[one.row] = one
    return list(rows.values())


# ------------------------------------------------------------------------------------------------------------------------- the document


class Gathered:
    """What was found, as a document."""

    def __init__(self, shown: Sequence[Shown], comparisons: Mapping[str, Comparison], portraits: Mapping[str, Portrait]):
        self.shown, self.comparisons, self.portraits = shown, comparisons, portraits
        self.runs = {one.name: one.run for one in shown}
        self.logged = {name: run for name, run in self.runs.items() if run.metrics()}
        self.looked = {one.row: one.run for one in _looked(shown)}
        self.rows = {one.name: one.row for one in shown}
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
        data = _listed(dict.fromkeys(data_of(run) for run in self.runs.values()))
        methods = list(dict.fromkeys(method_of(run) for run in self.runs.values()))
        return f"{_listed(methods) if len(methods) < 5 else f'{len(methods)} methods'} on {data}"

    def _lead(self) -> str:
        count = "One run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        configs = [run.config for run in self.runs.values()]
        epochs = _listed(dict.fromkeys(str(config["epochs"]) for config in configs))
        encoders = _listed(dict.fromkeys(str(config["encoder"]["name"]) for config in configs))
        labels = "Pretraining saw no label."
        return f"{count} of {epochs} epochs, encoder {encoders}. {labels}"

    # ----------------------------------------------------------------------------------------------------------------------- overview

    def _overview(self) -> Iterator[Block]:
        for name, comparison in self.comparisons.items():
            yield from self._comparison(name, comparison)
        yield Section("Health", self._verdicts())
        yield Section("What was trained", [Facts(self._facts()), self._table()])

    def _comparison(self, name: str, comparison: Comparison) -> Iterator[Block]:
        tables = [
            Table(_spelt_in(title, comparison), headers, [[_spelt(line[0]), *line[1:]] for line in lines])
            for title, headers, lines in comparison.tables()
        ]
        yield replace(tables[0], notes=comparison.beneath()) if len(tables) == 1 else tables[0]
        yield from (replace(table, notes=comparison.beneath()) for table in tables[1:])
        if comparison.columns:
            title = "Scores, differences and costs" + (f" ({name})" if len(self.comparisons) > 1 else "")
            yield self._drawn(title, lambda: _words(comparison_figure.figure(comparison), _compared_caption(comparison)))

    def _verdicts(self) -> list[Verdict]:
        found = [_verdict(one.name, one.run) for one in self.shown]
        order = ("stop", "warning", "unknown", "ok")
        return sorted(found, key=lambda verdict: order.index(verdict.level))  # a stable sort: as given, but trouble first

    def _facts(self) -> list[tuple[str, str]]:
        """What was trained and how; where runs differ, all that there is."""

        def each(value: Callable[[Run], Any]) -> str:
            return _listed(dict.fromkeys(str(found) for run in self.runs.values() if (found := value(run)) not in (None, "")))

        seconds = sum(filter(None, (_seconds(run) for run in self.runs.values())))
        classes = {len(part["classes"]) for part in self._parts().values() if part.get("classes")}
        facts = [
            ("Method", each(method_of)),
            ("Data", each(data_of)),
            ("Images", each(lambda run: _images(run.about))),
            ("Classes, for evaluation only", _listed(map(str, sorted(classes)))),
            ("Encoder", each(lambda run: _encoder(run))),
            ("Views", each(lambda run: run.about.get("policy"))),
            ("Epochs", each(lambda run: run.config["epochs"])),
            ("Batch", each(lambda run: run.config["batch_size"])),
            ("Optimizer", each(lambda run: _optimizer(run.config))),
            ("Seeds", each(lambda run: run.config["seed"])),
            ("Machine", each(lambda run: run.about.get("device"))),
            ("Time in training", f"{duration(seconds)}{' together' if len(self.runs) > 1 else ''}" if seconds else ""),
        ]
        return [(name, value) for name, value in facts if value]

    def _table(self) -> Table:
        rows = []
        for name, run in self.runs.items():
            lines, probes, seconds = run.metrics(), run.probes(), _seconds(run)
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
                    "-" if knn is None else f"{knn:.1%}",
                    "-" if seconds is None else duration(seconds),
                ]
            )
        notes = [
            "feature std and effective rank: of the last batch that was logged",
            "kNN: on held-out images, as last measured in training",
        ]
        headers = ["", "state", "steps", "loss, first → last", "feature std", "effective rank", "kNN", "time"]
        return Table("Each run", headers, rows, notes if any(row[6] != "-" for row in rows) else notes[:1], words=1)

    # ----------------------------------------------------------------------------------------------------------------------- training

    def _training(self) -> Iterator[Block]:
        if not self.logged:
            yield Missing("None of these runs has logged anything yet: training writes metrics.jsonl every few steps.")
            return
        if self.several:
            yield Text("Every run is drawn; those that differ by their seed alone look the same.", note=True)
        if silent := [name for name in self.runs if name not in self.logged]:
            yield Missing(f"Nothing was logged yet by {_listed(silent)}.")
        yield self._drawn("Loss", lambda: loss(self.logged), half=True)
        yield self._drawn("Accuracy of nearest neighbours", lambda: probe(self.logged), half=True)
        yield self._drawn("Gradient norm", lambda: gradient_norm(self.logged), half=True)
        yield self._drawn("Feature std", lambda: feature_std(self.logged), half=True)
        yield self._drawn("Redundancy ÷ alignment", lambda: ratio(self.logged), half=True)
        yield self._drawn("Effective rank", lambda: effective_rank(self.logged), half=True)

    def _drawn(self, title: str, make: Callable[[], Any], *, half: bool = False) -> Block:
        """A figure, or the sentence why there is none."""
        try:
            figure = make().to_plotly_json()
        except UserError as error:
            return Section(title, [_missing(error)])
        return replace(plot(title, self._alike(figure) if self.several else figure), half=half)

    def _alike(self, figure: dict[str, Any]) -> dict[str, Any]:
        """Lines of one row look the same, and have one entry in the legend."""
        styles, seen = looks(self.looked), set()
        for trace in figure["data"]:
            name = trace.get("name")
            if trace.get("type") != "scatter" or name not in self.rows or "lines" not in trace.get("mode", ""):
                continue
            row = self.rows[name]
            style = styles[row]
            listed = trace.get("showlegend", True) is not False
            trace |= {"name": row, "legendgroup": row, "showlegend": listed and row not in seen, "opacity": 0.8}
            trace["line"] = dict(trace.get("line") or {}) | {"color": style.colour, "dash": style.dash}
            trace["marker"] = dict(trace.get("marker") or {}) | {"color": style.colour, "symbol": style.symbol}
            if "<extra>" not in (template := trace.get("hovertemplate") or ""):
                trace["hovertemplate"] = f"{template}<extra>{name}</extra>"
            if listed:
                seen.add(row)
        return figure

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
        yield self._drawn("Accuracy against feature std", self._accuracy_std)
        yield self._drawn("Feature std and accuracy", lambda: std_summary(self._by_data(self._evaluated(self.looked))))

    def _one_of_each(self) -> Iterator[Block]:
        if self.several:
            seeds = _listed(dict.fromkeys(str(run.config["seed"]) for run in self.looked.values()))
            yield Text(f"Of each row one run is looked into here: seed {seeds}.", note=True)

    def _parts(self) -> dict[str, dict[str, Any]]:
        """Of runs whose encoder could be looked with."""
        return {row: found.parts for row, found in self.portraits.items() if found.parts.get("names")}

    def _why_not(self) -> Iterator[Block]:
        for row, found in self.portraits.items():
            for sentence in (found.missing[name] for name in ("encoder", "images") if name in found.missing):
                yield Missing(f"Not here: {row}. {_sentence(sentence)}")

    def _spectra(self, parts: Mapping[str, dict[str, Any]]) -> Iterator[Block]:
        """Runs on the same images stand in one figure."""
        for (words, count), rows in _grouped(parts, lambda part: (part["of"], len(part["names"]))).items():
            for key, make in (("spectrum", of_shares), ("variances", of_variances)):
                title = FEATURES["eigenspectrum" if key == "spectrum" else key]
                found = {row: np.array(parts[row][key]) for row in rows if key in parts[row]}
                if found:
                    runs = {row: self.looked[row] for row in found}
                    yield self._drawn(title, partial(make, runs, found, count, of=words), half=True)
                for row in rows:
                    if key not in parts[row] and (why := self.portraits[row].missing.get(key)):
                        yield Missing(f"Not in “{title}”: {row}. {_sentence(why)}")

    def _cloud(self, row: str, part: Mapping[str, Any]) -> Block:
        if "places" not in part:
            why = self.portraits[row].missing.get("places", "it was not made")
            return Section(FEATURES["tsne"], [Missing(_sentence(why))])
        kept = slice(None, None, self.thinner)
        labels = part["labels"]
        sample = Sample(part["names"][kept], part["pictures"][kept], None if labels is None else labels[kept], part["classes"])
        key = next((key for key, other in self.samples.items() if other == sample), f"images-{len(self.samples)}")
        self.samples[key] = sample
        count = len(part["names"])
        thin = f" One in {self.thinner} is shown, to keep this file small." if self.thinner > 1 else ""
        unlabelled = "" if labels else " They have no labels to colour them by."
        caption = (
            f"3-D t-SNE (perplexity {perplexity(count):g}) of the frozen features of {count:,} {part['of']} under {row}, reduced by "
            f"principal components to {COMPONENTS} coordinates before. Axes have no unit; distances between clusters mean little."
            f"{unlabelled}{thin}"
        )
        return Cloud(FEATURES["tsne"], key, [[round(x, 3) for x in place] for place in part["places"][kept]], caption)

    def _accuracy_std(self) -> Any:
        runs = self._evaluated(self.runs)
        figure = accuracy_std(runs)
        if self.several:  # seeds of one λ are points, not stations of a line
            for trace in figure.data:
                texts = list(trace.text or ())
                trace.text = ["" if text in texts[:i] else text for i, text in enumerate(texts)]
                trace.mode = "markers+text"
        return figure

    def _evaluated(self, runs: Mapping[str, Run], protocols: Sequence[str] = PROTOCOLS) -> dict[str, Run]:
        """Those with such results, if there are any."""
        return {name: run for name, run in runs.items() if results_of(run, protocols)} or dict(runs)

    def _by_data(self, runs: Mapping[str, Run]) -> dict[str, dict[str, Run]]:
        names = dict.fromkeys(data_of(run) for run in runs.values())
        return {data: {name: run for name, run in runs.items() if data_of(run) == data} for data in names}

    # ------------------------------------------------------------------------------------------------------------------------- images

    def _images(self) -> Iterator[Block]:
        yield from self._one_of_each()
        parts = self._parts()
        yield from self._why_not()
        if parts:
            yield self._chooser({row: list(self._gallery(row, part)) for row, part in parts.items()})
            yield from self._maps(parts)

    def _gallery(self, row: str, part: Mapping[str, Any]) -> Iterator[Block]:
        missing = self.portraits[row].missing
        if views := part.get("views"):
            yield _views(views, part["data"])
        yield (
            self._pairs(row, part) if "pairs" in part else Section("Positive pairs, sorted by dependency", [_missing(missing.get("pairs"))])
        )
        if "pairs" in part:
            yield self._landscape(row, part)
        if "neighbours" in part:
            yield _neighbours(row, part)
        else:
            yield Section("Nearest neighbours", [_missing(missing.get("neighbours"))])

    def _pairs(self, row: str, part: Mapping[str, Any]) -> Block:
        pairs = part["pairs"]
        tiles = [
            (
                f"M = {pair['m']:.2f}, ρ = {pair['rho']:.2f}".replace("-", "−"),
                [Tile(picture, f"view {i} of pair {number}") for i, picture in enumerate(pair["pictures"], 1)],
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
        given = {name: method[name] for name in ("target", "shift", "eps") if method["name"] == "SMI" and name in method}
        marks = [(f"M = {pair['m']:.2f} (ρ = {pair['rho']:.2f})".replace("-", "−"), pair["rho"]) for pair in part["pairs"]["shown"]]
        of = f"{part['pairs']['data']}, those above"
        return self._drawn("What a pair costs: the landscape of the objective", lambda: landscape(Shape(**given), marks=marks, of=of))

    def _maps(self, parts: Mapping[str, dict[str, Any]]) -> Iterator[Block]:
        title = "Where encoders look: energy maps"
        for rows in _grouped(parts, lambda part: part["data"]).values():
            there = [row for row in rows if "maps" in parts[row]]
            if there:
                first = parts[there[0]]["maps"]
                gallery = []
                for i, caption in enumerate(first["captions"]):
                    tiles = [Tile(first["images"][i], f"image: {caption}")]
                    tiles += [Tile(parts[row]["maps"]["maps"][i], f"energy map of {row} over it") for row in there]
                    gallery.append((caption, tiles))
                sizes = _listed(dict.fromkeys(" × ".join(map(str, parts[row]["maps"]["places"])) for row in there))
                yield Gallery(
                    title,
                    gallery,
                    f"{parts[there[0]]['of'].capitalize()} and, over them in grey, the ℓ2 norm over channels of each encoder's last "
                    f"feature map, enlarged to the image (bilinear, from {sizes} places) and scaled from its least (dark) to its most "
                    "(bright): maps show where, not how much.",
                    ("image", *there),
                )
            if len(there) < len(rows):
                without = [row for row in rows if row not in there]
                yield Section(f"{title}: not of {_listed(without)}", [_missing(self.portraits[row].missing.get("maps")) for row in without])

    # --------------------------------------------------------------------------------------------------------------------- evaluation

    def _evaluation(self) -> Iterator[Block]:
        rows: dict[tuple[str, str], list[Result]] = {}
        for name, run in self.runs.items():
            try:
                results = read_all(run.folder)
            except UserError as error:
                yield _missing(error)
                continue
            if not results:
                yield Missing(f"{name} was not evaluated yet:", shlex.join(["smi", "evaluate", str(run.folder)]))
            several = len({result.encoder.get("digest") for result in results if result.subject == "encoder"}) > 1
            for result in sorted(results, key=lambda r: (SUBJECTS.index(r.subject), r.encoder.get("epoch") or 0)):
                called_so = row_name(name, result.subject, result.encoder if several or result.subject != "encoder" else {})
                rows.setdefault((called_so, result.encoder["digest"]), []).append(result)
        if not rows:
            return
        floors = [key for key, results in rows.items() if results[0].subject != "encoder"]
        order = [*floors, *(key for key in rows if key not in floors)]
        kinds = {result.protocol["data"] for results in rows.values() for result in results}
        for data in sorted(kinds):
            here = [(key[0], some) for key in order if (some := [r for r in rows[key] if r.protocol["data"] == data])]
            found = sheet(here)
            yield Table(f"Accuracy on held-out images of {data.removesuffix('/')}", found.headers, found.lines, found.notes)
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
        yield Chooser("Run", {one.name: list(_one(one)) for one in self.shown})

    def _chooser(self, options: Mapping[str, Sequence[Block]]) -> Block:
        return Chooser("Run", options)


# --------------------------------------------------------------------------------------------------------------------------- one by one


def _one(one: Shown) -> Iterator[Block]:
    about, config = one.run.about, one.run.config
    versions = ", ".join(f"{name} {version}" for name, version in (about.get("versions") or {}).items())
    seconds, lines = _seconds(one.run), one.run.metrics()
    speed = [line["timing"]["images_per_second"] for line in lines if "timing" in line]
    facts = [
        ("Folder", str(one.run.folder)),
        ("State", str(about.get("status", "unknown"))),
        ("Started", str(about.get("started", "")).replace("T", " ")),
        ("Time in training", "" if seconds is None else duration(seconds)),
        ("Images per second", f"{np.median(speed):,.0f} (median)" if speed else ""),
        ("Machine", str(about.get("device", ""))),
        ("Precision", str(about.get("precision", ""))),
        ("Processes", str(about.get("world_size", ""))),
        ("Parameters", _parameters(about)),
        ("Versions", f"smi {about.get('smi', '?')}, {versions}" if versions else ""),
    ]
    yield Facts([(name, value) for name, value in facts if value])
    yield Code(
        one.command or _again(one.run),
        "The command that makes it again" + ("" if one.command else ", with the configuration below as config.yaml"),
    )
    yield Code(
        (one.run.folder / "config.yaml").read_text(encoding="utf-8", errors="replace").rstrip(),
        f"Configuration: {config['method']['name']}, complete",
    )


def _again(run: Run) -> str:
    root = run.about.get("root")
    return shlex.join(["smi", "pretrain", "config.yaml", "--out", "runs/again", *(["--root", str(root)] if root else [])])


def _verdict(name: str, run: Run) -> Verdict:
    try:
        found = examine(run.folder)
    except UserError as error:
        return Verdict("unknown", name, _sentence(str(error)), "", [])
    levels = {finding.level for finding in found.findings}
    level = "stop" if "stop" in levels else "warning" if "warning" in levels else "ok" if "healthy" in found.verdict else "unknown"
    epoch = "" if found.epoch is None else f", epoch {found.epoch:.4g}" + (f" of {found.epochs:g}" if found.epochs else "")
    findings = [Finding(f.level, f.sentence, f.evidence, f.advice) for f in found.findings]
    return Verdict(level, name, found.verdict, f"{found.status}, step {found.steps:,}{epoch}", findings)  # type: ignore[arg-type]


def _views(views: Mapping[str, Any], data: str) -> Gallery:
    rows = []
    for i, image in enumerate(views["images"]):
        tiles = [Tile(image, f"image {i + 1} of {data}", mark="query")]
        tiles += [Tile(view, f"view {number} of image {i + 1}") for number, view in enumerate(views["views"][i], 1)]
        rows.append(("", tiles))
    return Gallery(
        "Images, and what pretraining sees of them",
        rows,
        f"Framed, images of {data}; beside each, two draws of its views under the policy {views['policy']} ({views['sizes']}), as in "
        "training.",
    )


def _neighbours(row: str, part: Mapping[str, Any]) -> Gallery:
    labels, classes = part["labels"], part["classes"]

    def named(i: int) -> str:
        return "" if labels is None else classes[labels[i]] if classes else str(labels[i])

    rows = []
    for one in part["neighbours"]:
        query = one["query"]
        tiles = [
            Tile(part["pictures"][query], f"query {part['names'][query]}", (named(query), part["names"][query].rsplit("/", 1)[-1]), "query")
        ]
        for i, similarity in one["near"]:
            mark = "" if labels is None else "same" if labels[i] == labels[query] else "other"
            words = (named(i), f"{similarity:.3f}") if labels is not None else (f"{similarity:.3f}",)
            tiles.append(Tile(part["pictures"][i], f"{named(i)} {part['names'][i]}, similarity {similarity:.3f}".strip(), words, mark))  # type: ignore[arg-type]
        rows.append(("", tiles))
    judged = " ✓: of the query's class, ×: of another." if labels is not None else ""
    return Gallery(
        "Nearest neighbours",
        rows,
        f"Framed, a query; beside it the {NEAR} nearest of the other {len(part['names']) - 1:,} {part['of']} by cosine similarity of "
        f"features under {row}, nearest first.{judged}",
    )


def _words(figure: Any, caption: str) -> Any:
    figure.update_layout(meta={"caption": caption})
    return figure


def _compared_caption(comparison: Comparison) -> str:
    bars = "Bars are 95 % intervals over seeds. " if len(comparison.seeds) > 1 else ""
    return (
        f"{bars}Left each score, right its difference to {_spelt(comparison.rows[0].name)} seed by seed; last what a step takes (black: "
        "the loss in it) and the most memory."
    )


def _spelt_in(title: str, comparison: Comparison) -> str:
    first = comparison.rows[0].name
    return title.replace(first, _spelt(first))


def _seconds(run: Run) -> float | None:
    """Spent on steps, by the speeds that were logged."""
    total, before, batch = 0.0, 0, run.config["batch_size"]
    for line in run.metrics():
        if speed := (line.get("timing") or {}).get("images_per_second"):
            total += (line["step"] - before) * batch / speed
        before = line["step"]
    return total or None


def _images(about: Mapping[str, Any]) -> str:
    if not (count := about.get("num_images")):
        return ""
    return f"{count:,}" + (f" at {about['resolution']} px" if about.get("resolution") else "")


def _encoder(run: Run) -> str:
    dim = run.about.get("feature_dim")
    millions = run.about.get("encoder_parameters")
    size = f", {millions / 1e6:.1f} M parameters" if millions else ""
    return f"{run.config['encoder']['name']}{f', {dim} features' if dim else ''}{size}"


def _parameters(about: Mapping[str, Any]) -> str:
    if not about.get("parameters"):
        return ""
    encoder = f", {about['encoder_parameters'] / 1e6:.2f} M in the encoder" if about.get("encoder_parameters") else ""
    return f"{about['parameters'] / 1e6:.2f} M trained{encoder}"


def _optimizer(config: Mapping[str, Any]) -> str:
    found = config.get("optimizer") or {}
    return (
        f"{found['name']}, lr {found['lr']:g}, weight decay {found['weight_decay']:g}"
        if {"name", "lr", "weight_decay"} <= set(found)
        else ""
    )


def _missing(why: Any) -> Missing:
    return Missing(_sentence(str(why or "it was not made")))


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith((".", ")", "`")) else ".")


def _listed(words: Iterable[str]) -> str:
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _grouped(parts: Mapping[str, dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = {}
    for row, part in parts.items():
        found.setdefault(key(part), []).append(row)
    return found
