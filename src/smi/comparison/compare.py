"""Compare several methods under the same conditions, or each as its authors publish it.

comparison = compare(["SMI", "BarlowTwins"], recipe="cifar10-small", out="runs/lambda")
print(comparison.text())

DIR/runs/<method>[,<setting>=<value>]/seed-<s>/   ordinary runs, each with its eval/
DIR/comparison.json, table.md, table.csv, figure.html

Each run is trained in its own process, so that its peak memory can be measured and its command
repeats it. Under one seed, all methods start from the same encoder and see the same images
in the same order under the same augmentations. If they start from weights that exist, these are
evaluated once, as a row of their own.
"""

import dataclasses
import datetime
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from smi import __version__
from smi.comparison.choice import choose_values
from smi.comparison.comparison import Comparison, OffTheShelf, Row, TrainedRun
from smi.comparison.figure import write_comparison_figure
from smi.comparison.grid import Grid, GridRun, check_same, plan_grid, with_fitted_epochs
from smi.comparison.loss_time import loss_seconds
from smi.comparison.off_the_shelf import evaluate_start
from smi.config.schema import SHORT
from smi.data import Batches
from smi.data.given import Given, as_source
from smi.data.sources import dataset_label, resolve_source
from smi.device import (
    Runtime,
    choose_device,
    choose_precision,
    describe_device,
    release_memory,
    versions,
)
from smi.errors import DiskError, UserError
from smi.evaluation.evaluate import evaluate
from smi.evaluation.labelled import check_number
from smi.evaluation.results import Result
from smi.files import disk_errors, expand, make_folder
from smi.imports import trusts_files
from smi.runs.collect import COMPARISON, read_comparison
from smi.runs.restore import build_method, load_method, load_views
from smi.runs.run import Run
from smi.terminal import duration, is_aside, is_quiet, quietly, say
from smi.training.budget import check_length, check_time, parse_time
from smi.training.build import recorded_precision
from smi.training.images import Images
from smi.training.loggers import check_loggers
from smi.training.recipe_choice import choose_recipe_for
from smi.training.signals import stop_signals

# On Linux the kernel stops a run when the comparison is killed, so that no run is left behind.
START = """
import runpy, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
STOP_SIGNALS = tuple(  # Windows has no SIGHUP
    getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGTERM") if hasattr(signal, name)
)
STOP_CODES = {*(-number for number in STOP_SIGNALS), *(128 + number for number in STOP_SIGNALS)}
USAGE_ERROR = 2  # the exit code of a command that was refused
POLL_SECONDS = 0.1
STDERR = 2  # the number of its file


class ComparisonStopped(KeyboardInterrupt):
    """Report that a signal stopped the comparison after a checkpoint of the current run."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Launch:
    """Describe how the processes of a run are started; this does not change the results.

    loggers: names of loggers, as `smi pretrain --log-to` takes them.
    compiled: compile networks with torch.compile.
    processes: the number of processes that torchrun starts for each run.
    """

    loggers: tuple[str, ...] = ()
    compiled: bool = False
    processes: int = 1

    def arguments(self, runtime: Runtime) -> list[str]:
        """Return the arguments of `smi pretrain` that are not part of a configuration."""
        options = {
            "root": runtime.root,
            "device": runtime.device,
            "num-workers": runtime.num_workers,
        }
        arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
        arguments += [f"--log-to={name}" for name in self.loggers]
        arguments += ["--trust"] if trusts_files() else []
        return [*arguments, "--compile"] if self.compiled else arguments

    def command(self, run: GridRun) -> str:
        """Return the shell command that makes a run."""
        if self.processes == 1:
            return run.command
        torchrun = f"torchrun --nproc-per-node {self.processes} -m smi"
        return run.command.replace("smi", torchrun, 1)


def compare(
    methods: str | Sequence[str],
    *,
    out: str | Path,
    recipe: str | Path | None = None,
    data: Given | None = None,
    seeds: int = 3,
    sweep: str | None = None,
    published: bool = False,
    protocols: Sequence[str] | None = None,
    images: int | None = None,
    time: str | None = None,
    choose: bool = False,
    tables: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    launch: Launch | None = None,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Comparison:
    """Pretrain and evaluate the runs that do not exist yet, and compare all runs.

    comparison = smi.compare(
        ["SMI", "BarlowTwins"],
        recipe="cifar10-small",
        sweep="redundancy_weight=0.01,0.1",
        out="runs/lambda",
        overrides={"epochs": 100, "optimizer.lr": 0.05},
    )

    methods: names or import paths; differences are to the first one.
    recipe, data: a recipe, a dataset or an image folder, as `pretrain` takes them.
    seeds: the number of seeds, counted from 0.
    sweep: "setting=value,value,…"; methods without this setting are run once.
    published: train each method as its authors do, instead of all methods alike.
    protocols, images: how each run is evaluated, as `evaluate` takes them.
    time: of each run, such as "10m", instead of epochs, as `pretrain` takes it.
    choose: say which value of the sweep is best without labels, by the retrieval of views.
    tables: the folder of tables and figure; None is `out`. Several comparisons may share runs.
    overrides: settings of every run, for example {"epochs": 100}.
    launch: how the processes of each run are started; None starts one process per run.

    If the training of a run fails, it is noted and the other runs are made: see `failed` of the
    returned comparison.
    """
    launch = launch or Launch()
    with quietly(quiet):
        methods = [methods] if isinstance(methods, str) else methods
        _check(methods, seeds, overrides or {}, time, launch)
        if choose and sweep is None:
            raise UserError("--choose chooses one of the values of --sweep: give both")
        evaluate([], protocols=protocols, runtime=runtime)  # refuses unknown protocols
        settings = dict(overrides or {})
        if data is not None:
            settings["data"] = as_source(data)
        if published:
            settings["published"] = True
        if recipe is None:
            recipe, chosen = choose_recipe_for(
                settings, runtime.root, choose_device(runtime.device), timed=time is not None
            )
            settings = {**chosen, **settings}
        folder = expand(out)
        _require_own_folder(folder)
        grid = plan_grid(
            str(recipe),
            settings,
            methods=methods,
            seeds=range(seeds),
            sweep=sweep,
            folder=folder,
            arguments=launch.arguments(runtime) + ([] if time is None else [f"--time={time}"]),
            device=choose_device(runtime.device),
        )
        seconds = None if time is None else parse_time(time)
        labelled = _check_grid(grid, images, seconds, runtime)
        if not labelled and (protocols or images is not None):
            raise UserError(
                f"{grid.runs[0].config.data.source} has no labels, so methods are compared without "
                "--protocol and --images"
            )
        runner = ComparisonRunner(
            grid,
            folder if tables is None else expand(tables),
            recipe=str(recipe),
            protocols=protocols,
            images=images,
            seconds=seconds,
            labelled=labelled,
            launch=launch,
            runtime=runtime,
        )
        if choose and not grid.runs[0].config.log.probe_every:
            raise UserError("--choose needs probes: log.probe_every must not be 0")
        comparison = runner.run()
        if choose:
            about = {**comparison.about, "choice": choose_values(comparison)}
            comparison = dataclasses.replace(comparison, about=about)
            comparison.write(runner.folder)
        say(f"\nwritten to {folder}: table.md, table.csv, comparison.json, figure.html, runs/\n")
        return comparison


# ------------------------------------------------------------------------------ checks


def _require_own_folder(folder: Path) -> None:
    """Refuse a folder with other content: runs and tables must not mix with it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder to write the comparison to")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not names & {COMPARISON, "runs"}:
        raise UserError(
            f"{folder} is not empty, and is not a comparison ({sorted(names)[0]} is in it): give "
            "another folder"
        )


def refuse_torchrun() -> None:
    """Refuse to run under torchrun."""
    if "RANK" in os.environ:
        raise UserError("a comparison starts its own processes: run the command without torchrun")


def _check(
    methods: Sequence[str],
    seeds: int,
    overrides: Mapping[str, Any],
    time: str | None,
    launch: Launch,
) -> None:
    """Refuse wrong arguments before anything is computed."""
    refuse_torchrun()
    if not methods:
        raise UserError("name the methods to compare, for example --methods SMI BarlowTwins")
    if seeds < 1:
        raise UserError(f"seeds must be 1 or more, not {seeds}")
    for key in overrides:
        if SHORT.get(key, key) in ("method.name", "seed"):
            raise UserError(f"{key} cannot be set for all runs: use --methods and --seeds")
    check_length(overrides)
    if time is not None:
        check_time(time, overrides)
    check_loggers(launch.loggers)


def _check_grid(grid: Grid, images: int | None, seconds: float | None, runtime: Runtime) -> bool:
    """Refuse wrong images, labels, networks or existing runs before the first run starts.

    Return whether there are labels.
    """
    num_images, labelled = _check_images(grid, runtime)
    if images is not None:
        source = grid.runs[0].config.data.source
        root = Path(runtime.root) if runtime.root else None
        check_number(images, len(resolve_source(source, "train", root)), dataset_label(source))
    for run in grid.runs:
        check_same(with_fitted_epochs(run, grid.first(run.row), seconds), num_images)
    for run in grid.runs:
        if run.seed == 0 and not run.done:
            build_method(run.config, num_images)
    return labelled


def _check_images(grid: Grid, runtime: Runtime) -> tuple[int, bool]:
    """Return the number of training images, and whether there are labels.

    Images that methods cannot be compared on are refused.
    """
    config = grid.runs[0].config
    source = config.data.source
    probing = dataclasses.replace(config, log=dataclasses.replace(config.log, probe_every=1.0))
    images = Images.open(probing, root=runtime.root, num_workers=runtime.num_workers)
    try:
        if images.held_out is None:
            raise UserError(
                f"{source} has {images.why_not}: hold out a share of the images to compare methods "
                "without labels, for example with --data.validation 0.1"
            )
        if images.bank is None and not config.log.probe_every:
            raise UserError(
                f"{source} has no labels, so methods are compared by probes: log.probe_every must "
                "not be 0"
            )
        labels = None if images.bank is None else images.bank.labels
        if labels is not None and len(set(labels.tolist())) < 2:
            raise UserError(
                f"methods are compared by how well they separate classes, but {source} has only "
                "one class"
            )
        for batch_size in {run.config.batch_size for run in grid.runs}:
            Batches(images.pretrain, batch_size, seed=0)  # refuses a batch that is too large
        return len(images.pretrain), images.bank is not None
    finally:
        images.close()


# ------------------------------------------------------------------------------ the runs


class ComparisonRunner:
    """Make the missing runs of a grid, evaluate all, and write the comparison after each run."""

    def __init__(
        self,
        grid: Grid,
        folder: Path,
        *,
        recipe: str,
        protocols: Sequence[str] | None,
        images: int | None,
        seconds: float | None,
        labelled: bool,
        launch: Launch,
        runtime: Runtime,
    ):
        self.grid = grid
        self.folder = folder
        self.protocols = protocols
        self.images = images
        self.time = seconds
        self.labelled = labelled
        self.launch = launch
        self.runtime = runtime
        self.device = choose_device(runtime.device)
        self.about = {
            "recipe": recipe,
            "published": grid.runs[0].config.published,
            "seconds": seconds,
            "learning_rates": {run.row: run.config.optimizer.lr for run in grid.runs},
            "smi": __version__,
            "device": describe_device(self.device),
            "versions": versions(),
        }
        self.trained: dict[str, list[TrainedRun]] = {run.row: [] for run in grid.runs}
        self.seconds: dict[str, float] = {}  # of a complete run of each row
        self.loss_ms = self._read_loss_times()
        self.off_the_shelf: OffTheShelf | None = None

    def run(self) -> Comparison:
        """Make the missing runs, and return the comparison of all runs."""
        existing = [run for run in self.grid.runs if run.done]
        if existing:
            say(f"{len(existing)} of {len(self.grid.runs)} runs exist already")
            # existing runs come first, so that the tables always contain them
            for run in existing:
                self._add_existing(run)
            self._write()
        for number, run in enumerate(self.grid.runs, 1):
            if run not in existing:
                self._add_new(run, number)
                self._write()
        return self.comparison()

    def comparison(self) -> Comparison:
        """Return the comparison of the runs so far."""
        firsts = {name: self.grid.first(name) for name in self.trained}
        rows = tuple(
            Row(
                firsts[name].method,
                firsts[name].value,
                name,
                tuple(sorted(runs, key=lambda run: run.seed)),
                self.loss_ms.get(name),
            )
            for name, runs in self.trained.items()
        )
        about = {**self.about, "made": datetime.date.today().isoformat()}
        return Comparison(rows, self.grid.seeds, self.grid.swept, about, self.off_the_shelf)

    def _write(self) -> None:
        """Write tables and figure."""
        comparison = self.comparison()
        with disk_errors(f"writing to {self.folder}"):
            make_folder(self.folder)
            comparison.write(self.folder)
            write_comparison_figure(comparison, self.folder / "figure.html")

    def _add_existing(self, run: GridRun) -> None:
        """Evaluate a run that was made before."""
        trained = self._evaluate(run, run.failed)
        if trained.step_ms and not trained.failed:
            # an approximation: probes and checkpoints take time besides steps
            self.seconds.setdefault(run.row, 1e-3 * trained.step_ms * trained.steps)

    def _add_new(self, run: GridRun, number: int) -> None:
        """Train and evaluate a run."""
        start = perf_counter()
        is_new = not run.status
        say(f"\nrun {number}/{len(self.grid.runs)}: {run.name}{self._time_left(number)}")
        failure = self._train(run, number)
        self._evaluate(run, run.failed or failure)
        if is_new and not failure:
            self.seconds[run.row] = perf_counter() - start

    def _time_left(self, number: int) -> str:
        """Estimate the remaining time; a row without a time counts as the mean of the others."""
        if not self.seconds:
            return ""
        mean = sum(self.seconds.values()) / len(self.seconds)
        remaining = [run for run in self.grid.runs[number - 1 :] if not run.done]
        seconds = sum(self.seconds.get(run.row, mean) for run in remaining)
        return f" (about {duration(seconds)} left)"

    def _train(self, run: GridRun, number: int) -> str:
        """Train a run in a process of its own; return why it failed, or nothing."""
        fitted = with_fitted_epochs(run, self.grid.first(run.row), self.time)
        code = call(fitted.arguments, self.launch.processes)
        if code == 0:
            return ""
        if code in STOP_CODES:
            say(f"stopped in run {number} of {len(self.grid.runs)}; rerun the command to resume")
            raise ComparisonStopped(-code if code < 0 else code - 128)
        if code == USAGE_ERROR:
            raise UserError(f"{run.name} was refused; see the message above")
        if run.failed:
            return run.failed
        if code < 0:
            return f"killed by signal {-code}, perhaps because memory ran out"
        return f"its process ended with exit code {code}"

    def _evaluate(self, run: GridRun, failure: str) -> TrainedRun:
        """Add the scores and costs of a run to the comparison."""
        run = with_fitted_epochs(run, self.grid.first(run.row), self.time)
        results: Sequence[Result] = ()
        if not failure and self.labelled:
            try:
                ((_, results),) = evaluate(
                    [run.folder],
                    protocols=self.protocols,
                    images=self.images,
                    runtime=self.runtime,
                ).rows
            except DiskError:
                raise
            except UserError as error:  # for example, an encoder that diverged
                failure = f"it could not be evaluated: {error}"
        trained = TrainedRun.read(
            run.folder,
            seed=run.seed,
            command=self.launch.command(run),
            results=results,
            failed=failure,
        )
        self.trained[run.row].append(trained)
        if self.off_the_shelf is None and (results or not (self.labelled or failure)):
            self.off_the_shelf = evaluate_start(
                Run(run.folder), results, images=self.images, runtime=self.runtime
            )
        comparable = not self.launch.compiled and self.launch.processes == 1
        if not failure and comparable and run.row not in self.loss_ms:
            self.loss_ms[run.row] = self._measure_loss(run)
        release_memory(self.device)
        return trained

    def _measure_loss(self, run: GridRun) -> float | None:
        """Return the milliseconds of the loss, with the trained weights and the first batch."""
        config = Run(run.folder).resolve()
        images = Images.open(config, root=self.runtime.root, num_workers=self.runtime.num_workers)
        try:
            batches = Batches(images.pretrain, config.batch_size, seed=config.seed)
            batch = batches.batch(0).to(self.device)
        finally:
            images.close()
        method = load_method(Run(run.folder), device=self.device)
        method.progress = 1.0
        method.epoch = config.epochs - 1
        views = load_views(Run(run.folder), method)(batch.images, batch.generator())
        precision = recorded_precision(Run(run.folder), self.device)
        precision = precision or choose_precision(config.precision, self.device, method)
        seconds = loss_seconds(method, views, batch, precision=precision)
        return None if seconds is None else 1e3 * seconds

    def _read_loss_times(self) -> dict[str, float | None]:
        """Read loss times that were measured on this device, for rows that have finished runs.

        The numbers of a comparison then stay the same when it is extended.
        """
        rows_with_runs = {run.row for run in self.grid.runs if run.done}
        try:
            document = read_comparison(self.folder)
        except UserError:  # missing, or not ours
            return {}
        if document.get("device") != self.about["device"]:
            return {}
        return {
            row["name"]: row["loss_ms"]
            for row in document["rows"]
            if row.get("loss_ms") is not None and row["name"] in rows_with_runs
        }


def call(arguments: Sequence[str], processes: int = 1) -> int:
    """Run `smi` in one process or under torchrun, and return its exit code.

    The processes find modules where this one does. A signal that stops this process stops them.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", START]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", "-m"]
        environment |= {"PYTHONSAFEPATH": "1"}  # the same as -P, for processes of torchrun
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    command += ["smi", *arguments]
    # errors and warnings of a run are shown even if the caller is quiet
    stdout = subprocess.DEVNULL if is_quiet() else STDERR if is_aside() else None
    with stop_signals() as stop:
        process = subprocess.Popen(command, env=environment, stdout=stdout)
        terminated = False
        try:
            while process.poll() is None:
                if stop.requested and not terminated:
                    # a Ctrl-C in a terminal reaches the run; a signal to this process does not
                    process.terminate()
                    terminated = True
                sleep(POLL_SECONDS)
        finally:
            process.wait()
    return -stop.signal if stop.requested else process.returncode
