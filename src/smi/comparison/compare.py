"""Several methods under the same conditions: a run for each method, value and seed, evaluated alike, beside each other in one table.

comparison = compare("cifar10-small", methods=["SMI", "BarlowTwins"], seeds=3, sweep="redundancy_weight=0.01,0.1", out="runs/lambda")

DIR/runs/<method>[,<setting>=<value>]/seed-<s>/   ordinary runs, each with its eval/
DIR/comparison.json, table.md, table.csv, figure.html

Each run is trained by a process of its own, so that its memory is its own, and can be repeated by the command that made it. Methods under
one seed begin with the same encoder, and see the same images in the same order under the same draws.
"""

import dataclasses
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smi import __version__
from smi.comparison.comparison import Comparison, Row, Trained
from smi.comparison.figure import write_figure
from smi.comparison.grid import Job, check_same, plan
from smi.comparison.loss_time import loss_seconds
from smi.config.schema import SHORT
from smi.data import Batches
from smi.device import (
    Runtime,
    choose_device,
    choose_precision,
    describe_device,
    give_back,
    versions,
)
from smi.errors import TrainingError, UserError
from smi.evaluation.evaluate import evaluate
from smi.evaluation.results import Result
from smi.files import disk_errors, expand
from smi.runs.checkpoint import load as load_checkpoint
from smi.runs.restore import create, create_views
from smi.runs.run import Run
from smi.terminal import duration
from smi.training.loggers import check_loggers
from smi.training.pretrain import choose, located
from smi.training.probe import Images
from smi.training.signals import stop_signals

# Where a process can ask for it, the system tells a run to stop when the comparison is killed: nobody would wait for it any more.
START = """
import runpy, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
STOPPED = {
    sign * number + (128 if sign > 0 else 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    for sign in (1, -1)
}


class Stopped(KeyboardInterrupt):
    """Asked to stop, and stopped behind a checkpoint of the run that was being made."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Place:
    """Where it is computed and where data lies: the same for training and for evaluation."""

    root: str | Path | None
    device: str | None
    num_workers: int | None


def compare(
    recipe: str | Path | None = None,
    *,
    methods: Sequence[str],
    out: str | Path,
    seeds: int = 3,
    sweep: str | None = None,
    protocols: Sequence[str] | None = None,
    data: str | Path | None = None,
    encoder: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    root: str | Path | None = None,
    num_workers: int | None = None,
    loggers: Sequence[str] = (),
    compiled: bool = False,
    settings: Mapping[str, Any] | None = None,
    tables: str | Path | None = None,
    processes: int = 1,
) -> Comparison:
    """Make the runs that are not there yet, seed by seed, and compare all. What pretrain takes means the same here.

    seeds: so many, from 0 on. sweep: "setting=value,value,…" of the methods that have this setting. protocols: those of evaluate.
    tables: where tables and figure go, if not beside the runs: several comparisons may share those. processes: of torchrun, for each run.
    A run whose training fails is noted, and the others are made; see `failed` of what is returned.
    """
    _check(methods, seeds, settings or {})
    check_loggers(loggers)
    evaluate(
        [], protocols=protocols, runtime=Runtime(device=device)
    )  # refuses names there are none of, before anything runs
    place, folder = Place(root, device, num_workers), expand(out)
    named = {
        "data": None if data is None else located(data),
        "encoder": encoder,
        "epochs": epochs,
        "batch_size": batch_size,
    }
    asked = {
        **(settings or {}),
        **{key: value for key, value in named.items() if value is not None},
    }
    if recipe is None:
        recipe, chosen = choose(asked, root, choose_device(device))
        asked = {**chosen, **asked}
    words = [
        f"--{name}={value}"
        for name, value in {"root": root, "device": device, "num-workers": num_workers}.items()
        if value is not None
    ]
    words += [*(f"--log-to={name}" for name in loggers), *["--compile"] * compiled]
    key, jobs = plan(
        str(recipe),
        asked,
        methods=methods,
        seeds=range(seeds),
        sweep=sweep,
        folder=folder,
        words=words,
    )
    _prepare(jobs, place)
    where = folder if tables is None else expand(tables)
    work = Work(
        jobs,
        key,
        where,
        place,
        protocols,
        compiled,
        {"recipe": str(recipe), "smi": __version__},
        processes,
    )
    return work.run()


def print_comparison(comparison: Comparison, out: str | Path) -> None:
    print(
        f"\n{comparison.text()}\n\nin {expand(out)}: table.md, table.csv, comparison.json, figure.html, runs/"
    )
    if comparison.failed:
        raise TrainingError(
            f"{len(comparison.failed)} of {sum(len(row.runs) for row in comparison.rows)} runs failed, as noted above"
        )


def refuse_torchrun() -> None:
    if "RANK" in os.environ:
        raise UserError("a comparison starts its runs itself: use it without torchrun")


def _check(methods: Sequence[str], seeds: int, settings: Mapping[str, Any]) -> None:
    refuse_torchrun()
    if not methods:
        raise UserError("name the methods to compare: --methods SMI BarlowTwins")
    if seeds < 1:
        raise UserError(f"seeds must be 1 or more, not {seeds}")
    for setting in settings:
        if SHORT.get(setting, setting) in ("method.name", "seed"):
            raise UserError(
                f"{setting} is not for one setting here: --methods and --seeds say which runs are made"
            )


def _prepare(jobs: Sequence[Job], place: Place) -> None:
    """What can be found wrong before the first run is: other runs there, images, labels, networks."""
    first = jobs[0].config
    probing = dataclasses.replace(first, log=dataclasses.replace(first.log, probe_every=1.0))
    images = Images.open(probing, root=place.root, num_workers=place.num_workers)
    try:
        count = len(images.pretrain)
        if images.held_out is None:
            raise UserError(
                f"methods are compared on labelled images, and {first.data.source} has {images.why_not}"
            )
        if (
            images.bank is not None
            and images.bank.labels is not None
            and len(set(images.bank.labels.tolist())) < 2
        ):
            raise UserError(
                f"methods are compared by how well they tell classes apart, and {first.data.source} has one class"
            )
        Batches(images.pretrain, first.batch_size, seed=0)
    finally:
        images.close()
    for job in jobs:
        check_same(job, count)
    for job in jobs:
        if job.seed == 0 and not job.done:
            create(job.config, count)


class Work:
    """On the jobs of a comparison, and what came of them."""

    def __init__(
        self,
        jobs: Sequence[Job],
        swept: str | None,
        folder: Path,
        place: Place,
        protocols: Sequence[str] | None,
        compiled: bool,
        about: Mapping[str, Any],
        processes: int = 1,
    ):
        self.jobs, self.swept, self.folder, self.place, self.protocols, self.compiled = (
            jobs,
            swept,
            folder,
            place,
            protocols,
            compiled,
        )
        self.processes = processes
        self.about = {
            **about,
            "device": describe_device(choose_device(place.device)),
            "versions": versions(),
        }
        self.trained: dict[str, list[Trained]] = {job.row: [] for job in jobs}
        self.took: dict[
            str, float
        ] = {}  # seconds of a row's run, if it was made from its beginning
        self.loss_ms = self._measured_before()

    def run(self) -> Comparison:
        """Make what is missing; the tables are written anew after each run."""
        there = [job for job in self.jobs if job.done]
        missing = {number: job for number, job in enumerate(self.jobs, 1) if job not in there}
        if there:
            print(f"{len(there)} of {len(self.jobs)} runs are there already", flush=True)
        for job in there:  # first, so that stopped at any time the tables have all there is
            self._look(job, job.failed)
            if (trained := self.trained[job.row][-1]).step_ms and not trained.failed:
                self.took.setdefault(
                    job.row, 1e-3 * trained.step_ms * trained.steps
                )  # nearly: without what is no step
        if there:
            self._write()
        for number, job in missing.items():
            begun, fresh = time.perf_counter(), not job.status
            print(f"\nrun {number}/{len(self.jobs)}: {job.name}{self._left(number)}", flush=True)
            reason = self._train(job, number)
            self._look(job, job.failed or reason)
            if fresh and not reason:
                self.took[job.row] = time.perf_counter() - begun
            self._write()
        return self.comparison()

    def _write(self) -> None:
        with disk_errors(f"writing to {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.comparison().write(self.folder)
            write_figure(self.comparison(), self.folder / "figure.html")

    def comparison(self) -> Comparison:
        kinds = {job.row: job for job in self.jobs}
        rows = tuple(
            Row(
                kinds[name].method,
                kinds[name].value,
                name,
                tuple(sorted(runs, key=lambda run: run.seed)),
                self.loss_ms.get(name),
            )
            for name, runs in self.trained.items()
        )
        seeds = tuple(dict.fromkeys(job.seed for job in self.jobs))
        return Comparison(
            rows, seeds, self.swept, {**self.about, "made": datetime.date.today().isoformat()}
        )

    def _left(self, number: int) -> str:
        """From what was made so far; a row that was not counts as the mean of the others."""
        if not self.took:
            return ""
        mean = sum(self.took.values()) / len(self.took)
        seconds = sum(
            self.took.get(job.row, mean) for job in self.jobs[number - 1 :] if not job.done
        )
        return f" (about {duration(seconds)} left)"

    def _train(self, job: Job, number: int) -> str:
        """Why it failed, if it did."""
        code = call(job.words, self.processes)
        if code == 0:
            return ""
        if code in STOPPED:
            print(
                f"stopped in run {number} of {len(self.jobs)}; the same command goes on from there",
                flush=True,
            )
            raise Stopped(-code if code < 0 else code - 128)
        if code == 2:
            raise UserError(f"{job.name} was refused: the sentence above says why")
        return job.failed or (
            f"killed by signal {-code}, perhaps for want of memory"
            if code < 0
            else f"its process ended with code {code}"
        )

    def _look(self, job: Job, failed: str) -> None:
        """What the run scored and took."""
        results: Sequence[Result] = ()
        if not failed:
            try:
                runtime = Runtime(**dataclasses.asdict(self.place))
                ((_, results),) = evaluate(
                    [job.folder], protocols=self.protocols, runtime=runtime
                ).rows
            except (
                UserError
            ) as error:  # an encoder that diverged, say; the other runs are none the worse
                failed = f"it could not be evaluated: {error}"
        command = (
            job.command
            if self.processes == 1
            else job.command.replace("smi", f"torchrun --nproc-per-node {self.processes} -m smi", 1)
        )
        self.trained[job.row].append(
            Trained.read(job.folder, seed=job.seed, command=command, results=results, failed=failed)
        )
        if not failed and not self.compiled and self.processes == 1 and job.row not in self.loss_ms:
            self.loss_ms[job.row] = self._measure_loss(job)
        give_back(choose_device(self.place.device))

    def _measure_loss(self, job: Job) -> float | None:
        """Milliseconds, with the trained weights and the first batch of the run."""
        config, device = job.config, choose_device(self.place.device)
        images = Images.open(config, root=self.place.root, num_workers=self.place.num_workers)
        try:
            batch = (
                Batches(images.pretrain, config.batch_size, seed=config.seed).batch(0).to(device)
            )
            method = create(config, len(images.pretrain)).to(device)
        finally:
            images.close()
        method.load_state_dict(load_checkpoint(Run(job.folder).checkpoint, device)["method"])
        method.progress, method.epoch = 1.0, config.epochs - 1
        views = create_views(config, method)(batch.images, batch.generator())
        seconds = loss_seconds(
            method, views, batch, precision=choose_precision(config.precision, device)
        )
        return None if seconds is None else 1e3 * seconds

    def _measured_before(self) -> dict[str, float | None]:
        """On this device, of rows that have runs, so that the numbers of a comparison do not change when it is extended."""
        known = {job.row for job in self.jobs if job.done}
        try:
            document = json.loads((self.folder / "comparison.json").read_text(encoding="utf-8"))
            rows = document["rows"] if document["device"] == self.about["device"] else []
            return {
                row["name"]: row["loss_ms"]
                for row in rows
                if row["loss_ms"] is not None and row["name"] in known
            }
        except (OSError, ValueError, KeyError, TypeError):  # not there, or someone's own
            return {}


def call(words: Sequence[str], processes: int = 1) -> int:
    """`smi` in a process of its own, or in several, which find modules where this one does. They are asked to stop when we are."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", START, "smi", *words]
    if processes > 1:
        command[4:4] = [
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            "-m",
        ]
        environment |= {"PYTHONSAFEPATH": "1"}  # as -P, for those that torchrun starts
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    with stop_signals() as stop:
        process = subprocess.Popen(command, env=environment)
        told = False
        try:
            while process.poll() is None:
                if stop.asked and not told:
                    process.terminate()  # a terminal's Ctrl-C has reached it already; a signal to this process alone has not
                    told = True
                time.sleep(0.1)
        finally:
            process.wait()
    return -stop.signal if stop.asked else process.returncode
