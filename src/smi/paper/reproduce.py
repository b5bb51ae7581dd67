"""What the paper ran, at a scale that suits the machine; then its tables and figures, and a page of its claims beside what was measured.

reproduce(["all"], scale="minutes", out="reproduced")

DIR/index.html, claims.json                 the claims page, and the same as data
DIR/tables/, DIR/figures/                   the paper's, of these runs
DIR/<data>/runs/, DIR/<data>/comparison-*/  ordinary runs, and comparisons of them; two-processes/: those that torchrun made

Runs are made by `smi compare`: the same command again goes on where it stopped, and makes only what is missing.
"""

import datetime
import difflib
import json
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from smi import __version__
from smi.comparison.compare import Place, compare, refuse_torchrun
from smi.comparison.comparison import Comparison
from smi.comparison.grid import Job, plan
from smi.data.sources import NAMES, existing_folder, find, find_imagenet
from smi.device import choose_device, describe_device, versions
from smi.errors import TrainingError, UserError
from smi.evaluation.evaluate import evaluate
from smi.figures.catalogue import FIGURES, draw_figure, save_figure
from smi.files import disk_errors, expand, write_text
from smi.methods import METHOD_NAMES
from smi.paper.claims import OURS, RIVAL, Claim, Evidence, Race, claims
from smi.paper.cost import most_coordinates, race
from smi.paper.page import page
from smi.paper.tables import make_table
from smi.terminal import duration
from smi.training.pretrain import choose, located

NO_RUNS = "; no runs were missing)"
FORMAT = 2  # of claims.json: what an earlier call wrote in another does not stay on the page
PAIR = (OURS, RIVAL)
KINDS = SEEDS, SWEEP, METHODS, SPLIT = "seeds", "sweep", "methods", "two-processes"
SENTENCES = {
    SEEDS: "SMI and Barlow Twins, over seeds",
    SWEEP: "SMI at several λ, beside Barlow Twins, over seeds",
    METHODS: "every method, one seed",
    SPLIT: "SMI trained by two processes, over seeds",
}


@dataclass(frozen=True)
class Need:
    """Runs of one kind of comparison: of these methods, over all seeds or the first alone."""

    kind: str
    methods: tuple[str, ...] = PAIR
    every_seed: bool = False


@dataclass(frozen=True)
class Item:
    """A table, a figure, or the claims."""

    sentence: str
    needs: tuple[Need, ...] = ()


def _figure(name: str, *needs: Need) -> Item:
    return Item(FIGURES[name].sentence, needs)


ITEMS = {
    "table-1": Item(
        "linear classifiers on frozen features, by method", (Need(METHODS, METHOD_NAMES),)
    ),
    "table-2": Item("what each loss costs"),
    "table-3": Item("Barlow Twins against SMI, by data set", (Need(SEEDS, every_seed=True),)),
    "landscape": _figure("landscape", Need(SEEDS, (OURS,))),
    "gradient-norm": _figure("gradient-norm", Need(SEEDS)),
    "feature-std": _figure("feature-std", Need(SWEEP)),
    "accuracy-std": _figure("accuracy-std", Need(SWEEP)),
    "ratio": _figure("ratio", Need(SEEDS)),
    "std-summary": _figure("std-summary", Need(SEEDS)),
    "linear-curves": _figure("linear-curves", Need(SEEDS)),
    "eigenspectrum": _figure("eigenspectrum", Need(METHODS, (OURS, "SimCLR", "MoCoV2"))),
    "variance-violin": _figure("variance-violin", Need(METHODS, (OURS, "SimCLR", "MoCoV2"))),
    "energy-maps": _figure("energy-maps", Need(METHODS, (OURS, RIVAL, "SimCLR", "MoCoV2", "BYOL"))),
    "tsne": _figure("tsne", Need(METHODS, (OURS, RIVAL, "VICReg", "BYOL"))),
    "claims": Item(
        "what the paper claims, beside what was measured",
        (
            Need(SEEDS, every_seed=True),
            Need(SWEEP, every_seed=True),
            Need(SPLIT, (OURS,), every_seed=True),
        ),
    ),
}
TOGETHER = ("std-summary", "linear-curves")  # figures of all data sets in one
SEVERAL = (
    "gradient-norm",
    "feature-std",
    "accuracy-std",
    "ratio",
    "std-summary",
)  # those that show seeds, and what they share


@dataclass(frozen=True)
class Setup:
    """A set of images, how it is trained on, and which comparisons are made there."""

    source: str
    recipe: str | None  # None: chosen from the images and the machine
    kinds: tuple[str, ...] = KINDS
    all_gpus: bool = False  # a process for each
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source if self.source in NAMES else Path(self.source).name

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.+-]+", "_", self.name) or "data"


@dataclass(frozen=True)
class Scale:
    name: str
    sentence: str
    sets: tuple[Setup, ...]
    weights: tuple[float, ...]  # the λ of the sweep
    protocols: tuple[str, ...]
    linear_epochs: int | None = (
        None  # of the curves of linear evaluation; None: 100, as the paper's
    )
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # on top of the recipes, the same for all methods
    widest_first: bool = False  # every comparison on the first set that is at hand, on the others SMI against Barlow Twins
    seconds_a_run: float | None = None  # on two cores


SCALES = {
    "minutes": Scale(
        "minutes",
        "the digits that come with scikit-learn, within 15 minutes on two cores",
        (Setup("digits", "digits"),),
        (0.001, 0.01, 0.1, 1.0),
        ("knn", "linear-cached"),
        linear_epochs=10,
        settings={"epochs": 4, "log.every": 5, "log.probe_every": 0},
        seconds_a_run=20,
    ),
    "hours": Scale(
        "hours",
        "small encoders on the sets that are at hand, some hours on a CPU, less on a GPU",
        (Setup("cifar10", "cifar10-small"), Setup("imagenette", "imagenette-small")),
        (0.001, 0.01, 0.1, 1.0),
        ("knn", "linear-cached", "fewshot"),
        linear_epochs=20,
        widest_first=True,
    ),
    "paper": Scale(
        "paper",
        "the paper's own recipes, for those with the hardware",
        (
            Setup("cifar10", "cifar10", (SEEDS, SWEEP, SPLIT)),
            Setup("cifar100", "cifar100", (SEEDS,)),
            Setup("imagenette", "imagenette", (SEEDS,)),
            Setup("imagewoof", "imagewoof", (SEEDS,)),
            Setup("imagenet", "imagenet", (METHODS,), all_gpus=True),
        ),
        (0.0001, 0.001, 0.01, 0.1, 1.0),
        ("knn", "linear"),
    ),
}


def print_items() -> None:
    for name, item in ITEMS.items():
        needs = [
            f"{', '.join(n.methods) if len(n.methods) < len(METHOD_NAMES) else 'every method'} ({_kind(n)})"
            for n in item.needs
        ]
        print(f"{name:17}{item.sentence}\n{'':17}needs {'; '.join(needs) or 'no runs'}")
    print("\nScales:")
    for scale in SCALES.values():
        print(f"{scale.name:17}{scale.sentence}")


def _kind(need: Need) -> str:
    what = {SEEDS: "", SWEEP: "a sweep of λ, ", METHODS: "", SPLIT: "by two processes, "}[need.kind]
    return what + ("all seeds" if need.every_seed else "one seed")


def reproduce(
    names: Sequence[str] = ("all",),
    *,
    scale: str | Scale,
    out: str | Path,
    seeds: int = 3,
    data: str | Path | None = None,
    root: str | Path | None = None,
    device: str | None = None,
    num_workers: int | None = None,
) -> Path:
    """Make the runs that these names need and are not there yet, then what they name, and the page; give the page's path.

    data: one of the scale's sets, or a folder of labelled images instead of them. What pretrain takes means the same here.
    """
    refuse_torchrun()
    if seeds < 1:
        raise UserError(f"seeds must be 1 or more, not {seeds}")
    chosen = _chosen(names)
    scale = _scale(scale)
    place = Place(root, device, num_workers)
    sets, missing = (
        _at_hand(scale, data, place) if any(ITEMS[name].needs for name in chosen) else ([], [])
    )
    words = [
        "reproduce",
        *names,
        "--scale",
        scale.name,
        "--out",
        str(out),
        *(["--seeds", str(seeds)] if seeds != 3 else []),
    ]
    words += [
        word
        for name, value in {"data": data, **asdict(place)}.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    work = Work(
        scale, chosen, sets, missing, expand(out), place, seeds, shlex.join(["smi", *words])
    )
    return work.run()


def _chosen(names: Sequence[str]) -> list[str]:
    for name in names:
        if name != "all" and name not in ITEMS:
            close = difflib.get_close_matches(name, ["all", *ITEMS], 1)
            hint = f"did you mean {close[0]}?" if close else f"there are all, {', '.join(ITEMS)}"
            raise UserError(f"there is nothing called {name!r} to reproduce: {hint}")
    return [name for name in ITEMS if name in names or "all" in names or not names]


def _scale(asked: str | Scale) -> Scale:
    if isinstance(asked, Scale):
        return asked
    if asked not in SCALES:
        close = difflib.get_close_matches(asked, SCALES, 1)
        hint = f"did you mean {close[0]}?" if close else f"it is {', '.join(SCALES)}"
        raise UserError(f"there is no scale {asked!r}: {hint}")
    return SCALES[asked]


def _at_hand(scale: Scale, data: str | Path | None, place: Place) -> tuple[list[Setup], list[str]]:
    """The sets there are, ready to run, and a sentence for each that is missing."""
    sets: Sequence[Setup] = scale.sets
    if data is not None:
        sets = [known for known in scale.sets if known.source == str(data)]
        if not sets and scale.name != "hours":
            raise UserError(
                f"the scale {scale.name} is of {', '.join(s.source for s in scale.sets)}: a folder takes --scale hours"
            )
        sets = sets or [Setup(located(data), None)]
    found, missing = [], []
    for known in sets:
        try:
            _find(known.source, place)
            found.append(known)
        except UserError as error:
            missing.append(str(error))
    if not found:
        raise UserError(
            _how_to_get(sets, missing, place)
            + (", or name a folder of labelled images with --data" * scale.widest_first)
        )
    if scale.widest_first:
        found = [
            known if number == 0 else replace(known, kinds=(SEEDS,))
            for number, known in enumerate(found)
        ]
    return [_settled(known, scale, place) for known in found], missing


def _how_to_get(sets: Sequence[Setup], missing: Sequence[str], place: Place) -> str:
    if len(sets) == 1:
        return missing[0]
    root = "" if place.root is None else f" --root {place.root}"
    names = " or ".join(known.source for known in sets)
    return f"the images are missing, which are {names}: run `smi data {sets[0].source}{root}` to download one of them"


def _find(source: str, place: Place) -> None:
    """Refuses what is not there, before anything is computed."""
    root = None if place.root is None else expand(place.root)
    if source == "imagenet":
        find_imagenet(root)
    elif source not in NAMES:
        existing_folder(source)
    elif source != "digits":
        find(source, root)


def _settled(known: Setup, scale: Scale, place: Place) -> Setup:
    """With a recipe, and all that is set on top of it."""
    if known.recipe is not None:
        return replace(known, settings={**scale.settings, **known.settings})
    recipe, settings = choose({"data": known.source}, place.root, choose_device(place.device))
    return replace(
        known, recipe=recipe, settings={**settings, **scale.settings, "data": known.source}
    )


@dataclass(frozen=True)
class Part:
    """A comparison to be made."""

    setup: Setup
    kind: str
    methods: tuple[str, ...]
    seeds: int
    sweep: str | None
    processes: int


class Work:
    """On what was asked for, and what came of it."""

    def __init__(
        self,
        scale: Scale,
        names: Sequence[str],
        sets: Sequence[Setup],
        missing: Sequence[str],
        folder: Path,
        place: Place,
        seeds: int,
        command: str,
    ):
        self.scale, self.names, self.sets, self.folder, self.place, self.seeds, self.command = (
            scale,
            names,
            sets,
            folder,
            place,
            seeds,
            command,
        )
        self.notes = [f"Not here: {sentence}." for sentence in missing]
        self.device = choose_device(place.device)
        self.parts = list(self._parts())
        self.made: dict[tuple[str, str], Comparison] = {}  # by set and kind
        self.failed: dict[str, str] = {}  # by folder, why
        self.svg = True  # until it turns out that it cannot be drawn

    def _parts(self) -> Iterator[Part]:
        """Of each set and kind, what all the names together need."""
        for setup in self.sets:
            for kind in KINDS:
                needs = [
                    need for name in self.names for need in ITEMS[name].needs if need.kind == kind
                ]
                if not needs or kind not in setup.kinds:
                    continue
                if kind == SPLIT and (why := self._no_two_processes()):
                    self.notes.append(why)
                    continue
                methods = tuple(
                    name for name in METHOD_NAMES if any(name in need.methods for need in needs)
                )
                sweep = (
                    f"{OURS}.redundancy_weight={','.join(f'{w:g}' for w in self.scale.weights)}"
                    if kind == SWEEP
                    else None
                )
                processes = 2 if kind == SPLIT else self._gpus() if setup.all_gpus else 1
                yield Part(
                    setup,
                    kind,
                    methods,
                    self.seeds if any(n.every_seed for n in needs) else 1,
                    sweep,
                    processes,
                )

    def _gpus(self) -> int:
        import torch

        return max(1, torch.cuda.device_count()) if self.device.type == "cuda" else 1

    def _no_two_processes(self) -> str:
        if self.device.type == "cpu" or self._gpus() > 1:
            return ""
        return f"SMI was not trained by two processes: that takes two GPUs, or --device cpu, and there is one {self.device.type} device."

    # ------------------------------------------------------------------------------------------------------------------- the runs

    def run(self) -> Path:
        begun, started = time.perf_counter(), datetime.datetime.now().astimezone()
        total, there = self._count()
        self._announce(total, there)
        with disk_errors(f"writing to {self.folder}"):
            for place in (self.folder / "tables", self.folder / "figures"):
                place.mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            print(f"\n== {part.setup.name}: {_sentence(part)}", flush=True)
            compared = self.made[part.setup.name, part.kind] = self._compare(part)
            self.failed |= {
                run.folder: f"Failed: {part.setup.name}, {name}, seed {run.seed}: {run.failed}."
                for name, run in compared.failed
            }
        print("\n== tables and figures", flush=True)
        first = sorted(
            (name for name in self.names if name in FIGURES),
            key=lambda name: name != "linear-curves",
        )  # it evaluates
        figures = {name: list(self._figures(name)) for name in first}
        document: dict[str, Any] = {
            "claims": [claim.plain() for claim in self._claims()],
            "tables": [self._table(name) for name in self.names if name.startswith("table-")],
            "figures": [entry for name in self.names if name in FIGURES for entry in figures[name]],
            "comparisons": list(self._comparisons()),
        }
        earlier = self._earlier() | ({"claims": []} if "claims" in self.names else {})
        when = f"{started:%Y-%m-%d %H:%M %Z}, {duration(time.perf_counter() - begun)}"
        whole = {
            "about": self._about(total, there, when, earlier.get("about", {})),
            **_merged(document, earlier),
        }
        index = self.folder / "index.html"
        with disk_errors(f"writing to {self.folder}"):
            html = page(whole)
            write_text(
                self.folder / "claims.json", json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
            )
            write_text(index, html)
        self._conclude(whole, index)
        if self.failed:
            raise TrainingError(f"{len(self.failed)} of {total} runs failed, as noted on the page")
        return index

    def _place(self, part: Part) -> Path:
        base = self.folder / part.setup.folder
        return base / SPLIT if part.kind == SPLIT else base

    def _count(self) -> tuple[int, int]:
        """Runs that are needed, and how many of them are there; comparisons share some."""
        jobs: dict[Path, Job] = {}
        for part in self.parts:
            recipe, where = str(part.setup.recipe), self._place(part)
            _, planned = plan(
                recipe,
                part.setup.settings,
                methods=part.methods,
                seeds=range(part.seeds),
                sweep=part.sweep,
                folder=where,
            )
            jobs |= {job.folder: job for job in planned}
        return len(jobs), sum(job.done for job in jobs.values())

    def _announce(self, total: int, there: int) -> None:
        print(f"scale {self.scale.name}: {self.scale.sentence}")
        print(f"to make   {', '.join(self.names)}")
        for part in self.parts:
            print(f"runs      {part.setup.name}: {_sentence(part)}")
        for note in self.notes:
            print(note)
        time_left = ""
        if self.scale.seconds_a_run and total > there:
            time_left = (
                f", about {duration(60 + self.scale.seconds_a_run * (total - there))} on two cores"
            )
        print(
            f"in all    {total} runs, {there} of them there already{time_left}; into {self.folder}",
            flush=True,
        )

    def _compare(self, part: Part) -> Comparison:
        return compare(
            part.setup.recipe,
            methods=part.methods,
            seeds=part.seeds,
            sweep=part.sweep,
            out=self._place(part),
            tables=None if part.kind == SPLIT else self._place(part) / f"comparison-{part.kind}",
            protocols=self.scale.protocols,
            settings=part.setup.settings,
            processes=part.processes,
            **asdict(self.place),
        )

    # ---------------------------------------------------------------------------------------------------- what is made of the runs

    def _sources(
        self, setup: Setup, kind: str, methods: Sequence[str], seeds: Sequence[int]
    ) -> list[str]:
        """Folders of runs that ended well."""
        comparison = self.made.get((setup.name, kind))
        rows = comparison.rows if comparison else ()
        return [
            run.folder
            for row in rows
            if row.method in methods
            for run in row.runs
            if run.seed in seeds and not run.failed
        ]

    def _table(self, name: str) -> dict[str, Any]:
        number, every = int(name.removeprefix("table-")), range(self.seeds)
        kinds = {1: (METHODS, SEEDS), 2: (), 3: (SEEDS,)}[number]
        sets = [setup for setup in self.sets if not kinds or (setup.name, kinds[0]) in self.made]
        sources = [
            folder
            for setup in sets
            for kind in kinds
            for folder in self._sources(setup, kind, METHOD_NAMES, every)
        ]
        entry: dict[str, Any] = {
            "name": name,
            "title": f"Table {number}",
            "file": "",
            "groups": [],
            "rows": [],
            "notes": [],
            "why": "",
        }
        if kinds and not sources:
            return entry | {"why": self._why(name)}
        try:
            table = make_table(number, list(dict.fromkeys(sources)))
        except Exception as error:  # as of figures
            return entry | {"why": _reason(error)}
        file = f"tables/{name}.md"
        write_text(self.folder / file, f"{table.title}\n\n{table.markdown()}\n")
        print(f"{self.folder / file}: {table.title}", flush=True)
        groups = [(group.title, group.columns) for group in table.groups]
        return entry | {
            "title": table.title,
            "file": file,
            "groups": groups,
            "rows": table.rows,
            "notes": table.notes,
        }

    def _figures(self, name: str) -> Iterator[dict[str, Any]]:
        (need,) = ITEMS[name].needs
        seeds = range(self.seeds if name in SEVERAL else 1)
        found = {
            setup.name: self._sources(setup, need.kind, need.methods, seeds) for setup in self.sets
        }
        found = {of: sources for of, sources in found.items() if sources}
        if not found:
            yield {
                "name": name,
                "sentence": ITEMS[name].sentence,
                "files": [],
                "why": self._why(name),
            }
        elif name in TOGETHER or len(found) == 1:
            yield self._figure(
                name, name, [source for sources in found.values() for source in sources]
            )
        else:
            for setup in self.sets:
                if setup.name in found:
                    yield self._figure(name, f"{name}-{setup.folder}", found[setup.name])

    def _figure(self, name: str, file: str, sources: Sequence[str]) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "name": file,
            "sentence": ITEMS[name].sentence,
            "files": [],
            "why": "",
        }
        try:
            if name == "linear-curves":
                evaluate(
                    sources,
                    protocols=["linear"],
                    epochs=self.scale.linear_epochs,
                    **asdict(self.place),
                )
            drawn = draw_figure(name, sources, data=self._looked_at(name), **asdict(self.place))
            save_figure(drawn, name, self.folder / "figures" / f"{file}.html")
        except Exception as error:  # whatever it is, behind hours of runs the rest is still made
            return entry | {"why": _reason(error)}
        entry["files"].append(f"figures/{file}.html")
        if self.svg:
            try:
                save_figure(drawn, name, self.folder / "figures" / f"{file}.svg")
                entry["files"].append(f"figures/{file}.svg")
            except Exception as error:
                self.svg = not isinstance(
                    error, UserError
                )  # without a browser none can be drawn; else it may be this one alone
                self.notes.append(
                    f"{'Some figures are' if self.svg else 'Figures are'} HTML only: {_reason(error)}"
                )
        print(f"{self.folder / entry['files'][0]}: {entry['sentence']}", flush=True)
        return entry

    def _looked_at(self, name: str) -> str | None:
        """The paper's t-SNE is of STL-10, where that is at hand."""
        if name != "tsne" or self.scale.name != "paper":
            return None
        try:
            _find("stl10", self.place)
        except UserError:
            return None
        return "stl10"

    def _why(self, name: str) -> str:
        kinds = list(dict.fromkeys(need.kind for need in ITEMS[name].needs))
        wanted = [setup.source for setup in self.scale.sets if kinds[0] in setup.kinds]
        if any((setup.name, kinds[0]) in self.made for setup in self.sets):
            return "The runs it is made of failed."
        return f"It needs runs ({SENTENCES[kinds[0]]}) that this scale makes on {', '.join(wanted)}, which is not at hand."

    def _claims(self) -> list[Claim]:
        if "claims" not in self.names:
            return []
        evidence = [
            Evidence(
                setup.name, *(self.made.get((setup.name, kind)) for kind in (SEEDS, SWEEP, SPLIT))
            )
            for setup in self.sets
            if any((setup.name, kind) in self.made for kind in (SEEDS, SWEEP, SPLIT))
        ]
        try:
            return claims(evidence, self._race())
        except Exception as error:  # as of figures
            self.notes.append(f"The claims could not be judged. {_reason(error)}")
            print(self.notes[-1], file=sys.stderr)
            return []

    def _race(self) -> Race | None:
        """Timed once on a machine, so that the page does not change when it is made again."""
        path, machine = self.folder / "cost.json", describe_device(self.device)
        try:
            known = Race(**json.loads(path.read_text(encoding="utf-8")))
            if known.machine == machine:
                return replace(
                    known, times={name: tuple(times) for name, times in known.times.items()}
                )
        except (OSError, ValueError, TypeError, AttributeError):  # not there, or someone's own
            pass
        dim = most_coordinates() if self.device.type == "cpu" else 8192
        print(f"timing the losses at 256 × {dim}", flush=True)
        try:
            found = Race(256, dim, machine, race(256, dim, device=self.device))
        except (RuntimeError, MemoryError) as error:
            self.notes.append(
                f"The losses could not be timed at 256 × {dim}: {str(error).splitlines()[0]}."
            )
            return None
        write_text(path, json.dumps(asdict(found), indent=2, ensure_ascii=False) + "\n")
        return found

    def _comparisons(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            folder = self._place(part) / ("" if part.kind == SPLIT else f"comparison-{part.kind}")
            files = [
                str((folder / name).relative_to(self.folder))
                for name in ("figure.html", "table.md", "table.csv", "comparison.json")
            ]
            yield {
                "name": f"{part.setup.name} {part.kind}",
                "title": f"{part.setup.name}: {_sentence(part)}",
                "files": files,
                "why": "",
            }

    # --------------------------------------------------------------------------------------------------------------------- the page

    def _earlier(self) -> dict[str, Any]:
        """The document of the last call into this folder, if it was of this version, scale and images."""
        try:
            found: dict[str, Any] = json.loads(
                (self.folder / "claims.json").read_text(encoding="utf-8")
            )
            images = found["about"]["facts"]["Images"]
            known = (FORMAT, self.scale.name, __version__, self._images() or images)
            return (
                found
                if (
                    found["about"]["format"],
                    found["about"]["scale"],
                    found["about"]["smi"],
                    images,
                )
                == known
                else {}
            )
        except (OSError, ValueError, KeyError, TypeError):  # not there, or someone's own
            return {}

    def _images(self) -> str:
        return "; ".join(
            f"{setup.name} (recipe {setup.recipe}{_set(setup)})" for setup in self.sets
        )

    def _about(
        self, total: int, there: int, when: str, earlier: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = versions()
        made = [
            call
            for call in earlier.get("calls", [])
            if not (call.startswith(f"{self.command} (") and call.endswith(NO_RUNS))
        ]
        calls = [
            *made,
            f"{self.command} ({when}{f'; {total - there} runs made, {there} there already)' if total > there else NO_RUNS}",
        ]
        return {
            "title": f"SMI: the paper's claims, measured at the scale of {self.scale.name}",
            "format": FORMAT,
            "scale": self.scale.name,
            "smi": __version__,
            "calls": calls,
            "introduction": "Each claim of the paper beside what was measured here. A claim holds where the 95 % interval of a difference, "
            "paired by seed, lies on its side, and does not hold where it lies on the other; else this scale cannot tell. No interval of "
            "a difference of accuracies is taken to be narrower than their rounding to whole test images makes it. The paper's own numbers "
            "are of other encoders, images and training times.",
            "facts": {
                "Command": calls[-1],
                **({"Before it": "; ".join(calls[:-1])} if calls[1:] else {}),
                "Images": self._images() or earlier.get("facts", {}).get("Images", "none"),
                "Where": f"{describe_device(self.device)}, {found['system']}",
                "With": f"smi {__version__}, Python {found['python']}, torch {found['torch']}, timm {found['timm']}",
            },
            "notes": [*self.notes, *self.failed.values()],
        }

    def _conclude(self, document: Mapping[str, Any], index: Path) -> None:
        if document["claims"]:
            print()
        for claim in document["claims"]:
            for finding in claim["findings"]:
                where = f" ({finding['where']})" if finding["where"] else ""
                print(f"{claim['title']}{where}: {finding['verdict']}\n  {finding['sentence']}")
        for entry in (*document["tables"], *document["figures"]):
            if entry["why"]:
                print(f"{entry['name']} was not made: {entry['why']}", file=sys.stderr)
        print(f"\n{index}: open it in a browser")


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{text[0]}." if isinstance(error, UserError) else f"{type(error).__name__}: {text[0]}."


def _merged(
    document: Mapping[str, list[dict[str, Any]]], earlier: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """What an earlier call made, and this one was not asked for, stays on the page."""
    found = {}
    for key, entries in document.items():
        now = {entry["name"] for entry in entries}
        found[key] = [
            *(entry for entry in earlier.get(key, []) if entry["name"] not in now),
            *entries,
        ]
    order = list(ITEMS)
    found["tables"].sort(key=lambda entry: entry["name"])
    found["figures"].sort(
        key=lambda entry: next(
            (i for i, name in enumerate(order) if entry["name"].startswith(name)), 0
        )
    )
    return found


def _sentence(part: Part) -> str:
    methods = "every method" if len(part.methods) == len(METHOD_NAMES) else ", ".join(part.methods)
    swept = f" at λ = {part.sweep.partition('=')[2].replace(',', ', ')}" if part.sweep else ""
    by = f", by {part.processes} processes" if part.processes > 1 else ""
    if swept:
        methods = methods.replace(OURS, f"{OURS}{swept}", 1)
    return f"{methods}; {part.seeds} seed{'s' * (part.seeds > 1)}{by}"


def _set(setup: Setup) -> str:
    return "".join(f", {key} {value}" for key, value in setup.settings.items() if key != "data")
