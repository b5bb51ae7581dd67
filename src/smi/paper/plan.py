"""Plan a reproduction before anything is computed: which comparisons to make on which datasets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smi.comparison.compare import Launch
from smi.comparison.grid import Grid, GridRun, plan_grid
from smi.data.arrays import is_array_file
from smi.data.given import as_source
from smi.data.sources import (
    DATASET_NAMES,
    existing_folder,
    find_dataset,
    find_imagenet,
    resolve_source,
)
from smi.device import Runtime
from smi.errors import UserError
from smi.files import expand
from smi.methods import METHOD_NAMES
from smi.paper.numbers import SMI
from smi.paper.reproducible import ITEMS, Need
from smi.paper.scales import KINDS, SEEDS, SWEEP, TWO_PROCESSES, DatasetSetup, Scale
from smi.terminal import counted
from smi.training.recipe_choice import choose_recipe_for

RunCount = tuple[int, int]  # runs that are needed, and how many of them are finished


@dataclass(frozen=True)
class PlannedComparison:
    """Describe one comparison to make: its runs, and how many processes train each of them."""

    setup: DatasetSetup
    kind: str
    methods: tuple[str, ...]
    num_seeds: int
    sweep: str | None
    num_processes: int

    @property
    def key(self) -> tuple[str, str]:
        """Return the dataset's name and the kind of the comparison."""
        return self.setup.name, self.kind

    @property
    def sentence(self) -> str:
        """Return the methods, λ, seeds and processes in words."""
        methods = (
            "every method" if len(self.methods) == len(METHOD_NAMES) else ", ".join(self.methods)
        )
        if self.sweep:
            weights = self.sweep.partition("=")[2].replace(",", ", ")
            methods = methods.replace(SMI, f"{SMI} at λ = {weights}", 1)
        seeds = counted(self.num_seeds, "seed")
        processes = f", by {self.num_processes} processes" if self.num_processes > 1 else ""
        kind = "as published" if self.setup.published else "identical settings"
        return f"{methods}; {kind}; {seeds}{processes}"

    def grid(self, out: Path) -> Grid:
        """Return the runs."""
        return plan_grid(
            str(self.setup.recipe),
            self.setup.settings,
            methods=self.methods,
            seeds=range(self.num_seeds),
            sweep=self.sweep,
            folder=self.runs_folder(out),
        )

    def runs_folder(self, out: Path) -> Path:
        """Return the folder of `smi compare`; comparisons of one dataset share their runs."""
        folder = out / self.setup.folder
        return folder / TWO_PROCESSES if self.kind == TWO_PROCESSES else folder

    def tables_folder(self, out: Path) -> Path:
        """Return the folder of the comparison's tables."""
        folder = self.runs_folder(out)
        return folder if self.kind == TWO_PROCESSES else folder / f"comparison-{self.kind}"


@dataclass(frozen=True)
class Plan:
    """Hold everything that is decided before anything is computed.

    names: items to make. setups: datasets that exist. comparisons: to be made, in this order.
    notes: sentences about what cannot be made.
    """

    scale: Scale
    names: tuple[str, ...]
    setups: tuple[DatasetSetup, ...]
    comparisons: tuple[PlannedComparison, ...]
    notes: tuple[str, ...]
    num_seeds: int
    out: Path
    runtime: Runtime

    @property
    def datasets(self) -> str:
        """Return all datasets with their recipes and settings."""
        return "; ".join(setup.sentence for setup in self.setups)

    def count_runs(self) -> RunCount:
        """Count the runs; comparisons share some."""
        runs: dict[Path, GridRun] = {}
        for planned in self.comparisons:
            runs |= {run.folder: run for run in planned.grid(self.out).runs}
        return len(runs), sum(run.done for run in runs.values())


def make_plan(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    *,
    num_seeds: int,
    data: str | Path | None,
    runtime: Runtime,
) -> Plan:
    """Return the plan for the items `names`; raise UserError if no dataset exists."""
    setups: list[DatasetSetup] = []
    missing: list[str] = []
    if any(ITEMS[name].needs for name in names):
        setups, missing = available_setups(scale, data, runtime)
    notes = [f"Missing dataset: {sentence}." for sentence in missing]
    num_gpus = _count_gpus(runtime)
    comparisons = list(plan_comparisons(names, setups, scale, num_seeds, num_gpus))
    if num_gpus == 1 and any(planned.kind == TWO_PROCESSES for planned in comparisons):
        comparisons = [planned for planned in comparisons if planned.kind != TWO_PROCESSES]
        notes.append(
            "SMI was not trained by two processes: that needs two GPUs, or --device cpu, "
            f"and there is one {runtime.choose_device().type} device."
        )
    return Plan(
        scale=scale,
        names=tuple(names),
        setups=tuple(setups),
        comparisons=tuple(comparisons),
        notes=tuple(notes),
        num_seeds=num_seeds,
        out=out,
        runtime=runtime,
    )


def list_commands(
    names: Sequence[str], scale: Scale, out: Path, *, num_seeds: int, runtime: Runtime
) -> list[str]:
    """Return the command of each run that the items `names` need; no dataset has to exist."""
    setups = [_with_recipe(setup, scale, runtime) for setup in scale.datasets]
    commands = {
        run.folder: Launch(processes=planned.num_processes).command(run)
        for planned in plan_comparisons(names, setups, scale, num_seeds, _count_gpus(runtime))
        for run in planned.grid(out).runs
    }
    return list(commands.values())


def _count_gpus(runtime: Runtime) -> int:
    """Return the number of GPUs that can train together; 0 on a CPU."""
    import torch

    device = runtime.choose_device()
    if device.type == "cuda":
        return max(1, torch.cuda.device_count())
    return 0 if device.type == "cpu" else 1


# ------------------------------------------------------------------------------------ comparisons


def plan_comparisons(
    names: Sequence[str],
    setups: Sequence[DatasetSetup],
    scale: Scale,
    num_seeds: int,
    num_gpus: int = 0,
) -> Iterator[PlannedComparison]:
    """Yield, for each dataset and kind of comparison, one that serves all items `names`."""
    for setup in setups:
        for kind in KINDS:
            needs = [need for name in names for need in ITEMS[name].needs if need.kind == kind]
            if not needs or kind not in setup.kinds:
                continue
            processes = max(1, num_gpus) if setup.all_gpus else 1
            yield PlannedComparison(
                setup=setup,
                kind=kind,
                methods=_methods(needs),
                num_seeds=num_seeds if any(need.all_seeds for need in needs) else 1,
                sweep=_sweep(scale) if kind == SWEEP else None,
                num_processes=2 if kind == TWO_PROCESSES else processes,
            )


def _methods(needs: Sequence[Need]) -> tuple[str, ...]:
    return tuple(name for name in METHOD_NAMES if any(name in need.methods for need in needs))


def _sweep(scale: Scale) -> str:
    return f"{SMI}.redundancy_weight={','.join(f'{weight:g}' for weight in scale.weights)}"


# ------------------------------------------------------------------------------------ datasets


def available_setups(
    scale: Scale, data: str | Path | None, runtime: Runtime
) -> tuple[list[DatasetSetup], list[str]]:
    """Return the datasets that exist, with their recipes, and a sentence for each missing one.

    data: one of the scale's datasets, or a folder of labelled images instead of them.
    """
    setups = scale.datasets if data is None else _given(scale, data)
    existing: list[DatasetSetup] = []
    missing: list[str] = []
    for setup in setups:
        try:
            require_dataset(setup.source, runtime)
            existing.append(setup)
        except UserError as error:
            missing.append(str(error))
    if not existing:
        folder = ", or name a folder of labelled images with --data"
        hint = folder if scale.one_full_dataset else ""
        raise UserError(_how_to_download(setups, missing, runtime) + hint)
    if scale.one_full_dataset:
        others = [replace(setup, kinds=(SEEDS,)) for setup in existing[1:]]
        existing = [existing[0], *others]
    return [_with_recipe(setup, scale, runtime) for setup in existing], missing


def _given(scale: Scale, data: str | Path) -> tuple[DatasetSetup, ...]:
    setups = tuple(setup for setup in scale.datasets if setup.source == str(data))
    if not setups and scale.name != "hours":
        names = ", ".join(setup.source for setup in scale.datasets)
        raise UserError(f"the scale {scale.name} uses {names}: a folder needs --scale hours")
    return setups or (DatasetSetup(as_source(data), None),)


def require_dataset(source: str, runtime: Runtime) -> None:
    """Raise UserError if a dataset does not exist, before anything is computed."""
    root = None if runtime.root is None else expand(runtime.root)
    if source == "imagenet":
        find_imagenet(root)
    elif is_array_file(source):
        resolve_source(source, "train")
    elif source not in DATASET_NAMES:
        existing_folder(source)
    elif source != "digits":
        find_dataset(source, root)


def _how_to_download(
    setups: Sequence[DatasetSetup], missing: Sequence[str], runtime: Runtime
) -> str:
    if len(setups) == 1:
        return missing[0]
    root = "" if runtime.root is None else f" --root {runtime.root}"
    names = " or ".join(setup.source for setup in setups)
    command = f"smi data {setups[0].source}{root}"
    return f"the images are missing ({names}): run `{command}` to download one of them"


def _with_recipe(setup: DatasetSetup, scale: Scale, runtime: Runtime) -> DatasetSetup:
    """Fill in the recipe and all settings on top of it."""
    if setup.recipe is not None:
        return replace(setup, settings={**scale.settings, **setup.settings})
    recipe, settings = choose_recipe_for(
        {"data": setup.source}, runtime.root, runtime.choose_device()
    )
    settings = {**settings, **scale.settings, "data": setup.source}
    return replace(setup, recipe=recipe, settings=settings)
