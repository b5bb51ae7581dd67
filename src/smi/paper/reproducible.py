"""List the items that `smi reproduce` makes: tables, figures and the claims, and their runs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smi.device import Runtime
from smi.errors import UserError
from smi.figures.catalogue import FIGURES
from smi.methods import METHOD_NAMES
from smi.paper.numbers import BARLOW_TWINS, SMI
from smi.paper.scales import METHODS, SCALES, SEEDS, SWEEP, TWO_PROCESSES, find_scale
from smi.terminal import suggest

ALL = "all"
CLAIMS = "claims"
NUM_SEEDS = 3


@dataclass(frozen=True)
class Need:
    """Describe runs that an item needs: a kind of comparison, its methods, one or all seeds."""

    kind: str
    methods: tuple[str, ...] = (SMI, BARLOW_TWINS)
    all_seeds: bool = False

    @property
    def sentence(self) -> str:
        """Return the need in words."""
        methods = (
            "every method" if len(self.methods) == len(METHOD_NAMES) else ", ".join(self.methods)
        )
        kind = {SWEEP: "a sweep of λ, ", TWO_PROCESSES: "by two processes, "}.get(self.kind, "")
        return f"{methods} ({kind}{'all seeds' if self.all_seeds else 'one seed'})"


@dataclass(frozen=True)
class Item:
    """Describe a table, a figure, or the claims, with the runs it needs.

    shows_seeds: a figure of all seeds. joins_datasets: one figure for all datasets.
    """

    sentence: str
    needs: tuple[Need, ...] = ()
    shows_seeds: bool = False
    joins_datasets: bool = False


def _figure(
    name: str, need: Need, *, shows_seeds: bool = False, joins_datasets: bool = False
) -> Item:
    return Item(FIGURES[name].description, (need,), shows_seeds, joins_datasets)


def _methods(*names: str) -> Need:
    return Need(METHODS, names)


ITEMS = {
    "table-1": Item("linear classifiers on frozen features, by method", (_methods(*METHOD_NAMES),)),
    "table-2": Item("cost of each loss"),
    "table-3": Item("Barlow Twins against SMI, by dataset", (Need(SEEDS, all_seeds=True),)),
    "landscape": _figure("landscape", Need(SEEDS, (SMI,))),
    "gradient-norm": _figure("gradient-norm", Need(SEEDS), shows_seeds=True),
    "feature-std": _figure("feature-std", Need(SWEEP), shows_seeds=True),
    "accuracy-std": _figure("accuracy-std", Need(SWEEP), shows_seeds=True),
    "ratio": _figure("ratio", Need(SEEDS), shows_seeds=True),
    "std-summary": _figure("std-summary", Need(SEEDS), shows_seeds=True, joins_datasets=True),
    "linear-curves": _figure("linear-curves", Need(SEEDS), joins_datasets=True),
    "eigenspectrum": _figure("eigenspectrum", _methods(SMI, "SimCLR", "MoCoV2")),
    "variance-violin": _figure("variance-violin", _methods(SMI, "SimCLR", "MoCoV2")),
    "energy-maps": _figure("energy-maps", _methods(SMI, BARLOW_TWINS, "SimCLR", "MoCoV2", "BYOL")),
    "tsne": _figure("tsne", _methods(SMI, BARLOW_TWINS, "VICReg", "BYOL")),
    CLAIMS: Item(
        "the paper's claims, beside our measurements",
        (
            Need(SEEDS, all_seeds=True),
            Need(SWEEP, all_seeds=True),
            Need(TWO_PROCESSES, (SMI,), all_seeds=True),
        ),
    ),
}


def choose_items(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named items in the order of `ITEMS`; "all", or no name, is all of them."""
    for name in names:
        if name != ALL and name not in ITEMS:
            hint = suggest(name, [ALL, *ITEMS])
            raise UserError(f"there is nothing called {name!r} to reproduce: {hint}")
    return tuple(name for name in ITEMS if name in names or ALL in names or not names)


@dataclass(frozen=True)
class ItemList:
    """List items and scales, for `smi reproduce --list`; with a scale, the commands of its runs."""

    names: tuple[str, ...] = tuple(ITEMS)
    commands: tuple[str, ...] = ()

    def text(self) -> str:
        """Return each item with the runs it needs, then the commands or the scales."""
        lines = []
        for name in self.names:
            item = ITEMS[name]
            needs = "; ".join(need.sentence for need in item.needs) or "no runs"
            lines += [f"{name:17}{item.sentence}", f"{'':17}needs {needs}"]
        if self.commands:
            return "\n".join([*lines, "", "Runs:", *self.commands])
        scales = [f"{scale.name:17}{scale.sentence}" for scale in SCALES.values()]
        return "\n".join([*lines, "", "Scales:", *scales])

    def plain(self) -> dict[str, Any]:
        """Return items and scales, ready for JSON."""
        return {
            "items": [{"name": name} | asdict(ITEMS[name]) for name in self.names],
            "scales": [
                {"name": scale.name, "sentence": scale.sentence} for scale in SCALES.values()
            ],
            "commands": list(self.commands),
        }


def list_items(
    names: Sequence[str] = (),
    *,
    scale: str | None = None,
    out: str | Path = "reproduced",
    seeds: int = NUM_SEEDS,
    runtime: Runtime = Runtime(),
) -> ItemList:
    """Return what can be reproduced; with a scale, also the command of each run.

    print(list_items(["table-1"], scale="paper").text())
    """
    chosen = choose_items(names)
    if scale is None:
        return ItemList(chosen)
    from smi.paper.plan import list_commands  # imports torch, which a listing does not need

    commands = list_commands(chosen, find_scale(scale), Path(out), num_seeds=seeds, runtime=runtime)
    return ItemList(chosen, tuple(commands))
