"""Load smi with as much as a day or a large project brings: steps, lines, files and runs.

    python campaign/load.py             10^6 steps, 10^5 lines, 10^6 files, 64 runs
    python campaign/load.py --quick     a short version

Steps: the loop of training itself takes them, with its own journal, health checks, probes,
checkpoints and progress. The pass through the network and the optimizer are a stand-in, which
returns the same small output each time; batches and views are made in every 50th step, and used
again until the next. So a million steps fit into minutes. After the first tenth, the memory of the
process must not grow by more than 10 MB, and its open files must stay as many. Then a signal stops
the run, and another process resumes it: it may read metrics.jsonl once, line by line. Lines with
later steps are added to the run that is left until it has enough, and it is reported. Seconds are
those of the processor, because other processes may run meanwhile.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from record import RESULTS, Record

ROOT = Path(__file__).parent.parent
STEPS_AFTER_RESUMING = 50
STEPS_PER_BATCH = 50
SETTINGS = {
    "batch_size": 4,
    "method.widths": [8, 8],
    "encoder": "support.homemade.Net",
    "log.every": 50,
    "log.probe_every": 20.0,
    "log.save_every": 5.0,
    "log.probe_images": 100,
}
FIGURES = ("gradient-norm", "feature-std", "ratio")  # that read metrics
MAX_GROWTH_MB = 10.0
MAX_SECONDS = 60.0  # of each task that reads


# ------ processes that are measured


def take_steps(folder: Path, stop: int, num_steps: int) -> dict:
    """Train with the stand-in, stop after `stop` steps, and say how memory and files grew."""
    import smi
    from smi.training import loop
    from smi.training.journal import Journal

    show = Journal.show
    begin = time.process_time()
    samples: list[dict] = []

    def watch(self: Journal) -> None:
        show(self)
        if not samples or self.done % (num_steps // 50) == 0 or self.done == stop:
            samples.append(sample(self.done) | {"seconds": time.process_time() - begin})
        if self.done == stop:
            signal.raise_signal(signal.SIGTERM)

    loop.Step = StandIn
    loop.Feeder = Repeating
    Journal.show = watch
    with contextlib.suppress(KeyboardInterrupt):
        overrides = SETTINGS | {"steps": num_steps}
        smi.pretrain("digits", out=folder, overrides=overrides, quiet=True)
    return {
        "samples": samples,
        "seconds": time.process_time() - begin,
        "peak_mb": status("VmHWM"),
        "read_mb": read_mb(),
    }


class Repeating:
    """Yield batch and views of every 50th step of the real feeder again and again."""

    def __init__(self, *arguments, **options):
        from smi.training.feeding import Feeder

        self._feeder = Feeder(*arguments, **options)
        self._count = 0

    def __next__(self):
        if self._count % STEPS_PER_BATCH == 0:
            self._step = next(self._feeder)
        self._count += 1
        return self._step

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._feeder.close()


class StandIn:
    """Return the output of one step again and again, instead of a pass through the network."""

    scale = None

    def __init__(self, job):
        import torch

        from smi.losses import Terms
        from smi.methods import Output

        draw = torch.Generator().manual_seed(0)
        h, z1, z2 = (torch.randn(4, width, generator=draw) for width in (8, 8, 8))
        terms = Terms(alignment=torch.tensor(0.5), redundancy=torch.tensor(0.25))
        self._out = Output(terms, h, z1, z2)
        self._norm = torch.tensor(1.0)

    def __call__(self, step, views, batch):
        from smi.training.step import Taken

        return Taken(self._out, self._norm, False)


def report(folder: Path) -> dict:
    """Make everything that reads the metrics of a run; return the seconds of each."""
    import smi

    page = folder.parent / "report.html"
    tasks = {
        "doctor": lambda: smi.diagnose(folder, quiet=True),
        **{name: partial(draw_figure, name, folder) for name in FIGURES},
        "report": lambda: smi.report([folder], out=page, quiet=True),
    }
    return {
        "seconds": timed(tasks),
        "lines": len(smi.Run(folder).lines()),
        "peak_mb": status("VmHWM"),
        "page_mb": page.stat().st_size / 1e6,
    }


def compare(folder: Path, num_runs: int) -> dict:
    """Copy a run under other seeds, and compare all; return the seconds of each task."""
    import smi

    def compare_all(seeds: int) -> object:
        options = {"recipe": "digits", "protocols": ["knn"], "overrides": TINY, "out": folder}
        return smi.compare(["SMI"], seeds=seeds, quiet=True, **options)

    compare_all(1)
    copy_run(folder, num_runs)
    page = folder.parent / "report.html"
    tasks = {
        "compare": lambda: compare_all(num_runs),
        **{name: partial(draw_figure, name, folder) for name in FIGURES},
        "report": lambda: smi.report([folder], out=page, quiet=True),
    }
    return {
        "seconds": timed(tasks),
        "runs": len(list((folder / "runs").rglob("config.yaml"))),
        "peak_mb": status("VmHWM"),
        "page_mb": page.stat().st_size / 1e6,
    }


def copy_run(folder: Path, num_runs: int) -> None:
    """Copy the run of seed 0 under other seeds, with other losses."""
    from smi.comparison.grid import plan_grid

    grid = plan_grid(
        "digits", TINY, methods=["SMI"], seeds=range(num_runs), sweep=None, folder=folder
    )
    first, *others = grid.runs
    lines = (first.folder / "metrics.jsonl").read_text().splitlines()
    for run in others:
        shutil.copytree(first.folder, run.folder)
        (run.folder / "config.yaml").write_text(run.config.text())
        changed = []
        for line in map(json.loads, lines):
            if "loss" in line:
                line["loss"] += 1e-3 * run.seed
            changed.append(json.dumps(line))
        (run.folder / "metrics.jsonl").write_text("\n".join(changed) + "\n")


TINY = {
    "epochs": 1,
    "batch_size": 256,
    "method.widths": [16, 16],
    "encoder": "support.homemade.Net",
    "log.probe_images": 200,
}


def list_files(folder: Path) -> dict:
    """List a folder twice, and read a batch of it."""
    sys.path.append(str(ROOT / "benchmarks"))
    import scale

    arguments = argparse.Namespace(folder=folder, step=0)
    tasks = {
        "list": lambda: scale.list_files(arguments),
        "list again": lambda: scale.list_files(arguments),
        "read a batch": lambda: scale.read_batch(arguments),
    }
    return {name: task() for name, task in tasks.items()} | {"open_files": open_files()}


def timed(tasks: dict) -> dict:
    """Return the seconds of each task."""
    seconds = {}
    for name, task in tasks.items():
        begin = time.process_time()
        task()
        seconds[name] = time.process_time() - begin
    return seconds


def draw_figure(name: str, folder: Path) -> None:
    """Draw a figure of a run or a comparison, and write it."""
    from smi.figures.catalogue import write_figure

    write_figure(name, [folder], folder.parent / f"{name}.html", quiet=True)


def sample(step: int) -> dict:
    """Return the memory and the open files of this process."""
    return {"step": step, "mb": status("RssAnon"), "open_files": open_files()}


def status(name: str) -> float:
    """Return a line of /proc/self/status, in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1e3
    raise ValueError("this system does not tell")


def open_files() -> int:
    """Return the number of files that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def read_mb() -> float:
    """Return what this process has read, in megabytes."""
    line = Path("/proc/self/io").read_text().splitlines()[0]
    return int(line.split()[1]) / 1e6


TASKS = {"steps": take_steps, "report": report, "compare": compare, "list": list_files}


def measure(task: str, folder: Path, *numbers: int) -> dict:
    """Run a task in a process of its own, and return what it measured."""
    ran = subprocess.run(
        [sys.executable, __file__, f"--task={task}", str(folder), *map(str, numbers)],
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            "SMI_CACHE": str(folder.parent / "cache"),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), *filter(None, sys.path))),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


# ------ trials


def try_steps(record: Record, scratch: Path, num_steps: int) -> Path:
    """Take many steps, stop, and resume; return the folder of the run."""
    folder = scratch / "run"
    total = num_steps + STEPS_AFTER_RESUMING
    short = measure("steps", scratch / "short", STEPS_AFTER_RESUMING, 2 * STEPS_AFTER_RESUMING)
    short = measure("steps", scratch / "short", total, 2 * STEPS_AFTER_RESUMING)
    taken = measure("steps", folder, num_steps, total)
    samples = taken["samples"]
    settled = [line for line in samples if line["step"] >= num_steps / 10]
    growth = max(line["mb"] for line in settled) - settled[0]["mb"]
    files = {line["open_files"] for line in settled}
    size_mb = (folder / "metrics.jsonl").stat().st_size / 1e6
    print(f"{num_steps:,} steps in {taken['seconds']:.0f} s; memory {growth:+.1f} MB of ", end="")
    print(f"{settled[0]['mb']:.0f}; open files {sorted(files)}; metrics.jsonl {size_mb:.1f} MB")
    case = f"{num_steps:,} steps: "
    last = samples[-1]["step"]
    record.add(f"{case}taken", ok=last == num_steps, detail=f"it stopped after {last}")
    detail = f"memory grew by {growth:.1f} MB"
    record.add(f"{case}memory is flat", ok=growth <= MAX_GROWTH_MB, detail=detail)
    # One more while a checkpoint is written.
    flat = max(files) - min(files) <= 1
    record.add(f"{case}open files are flat", ok=flat, detail=f"{sorted(files)}")
    resumed = measure("steps", folder, total + 1, total)
    steps = resumed["samples"][0]["step"], resumed["samples"][-1]["step"]
    more_mb = resumed["peak_mb"] - short["peak_mb"]
    read = resumed["read_mb"] - short["read_mb"]
    wait = resumed["samples"][0]["seconds"] - short["samples"][0]["seconds"]
    print(
        f"resumed after {wait:.1f} s more than a short run: {read:.1f} MB more were read, ", end=""
    )
    print(f"{more_mb:+.1f} MB of memory")
    ok = steps[0] == num_steps + 1 and json.loads(last_line(folder))["step"] == total
    record.add(f"{case}resumed", ok=ok, detail=f"from {steps[0]} to {steps[1]}")
    case = f"{num_steps:,} steps, resumed: "
    detail = f"{read:.1f} MB of {size_mb:.1f} were read"
    record.add(f"{case}metrics.jsonl is read once", ok=read <= 1.1 * size_mb + 1, detail=detail)
    detail = f"{more_mb:.1f} MB more than a short run"
    record.add(f"{case}memory is that of a short run", ok=more_mb <= MAX_GROWTH_MB, detail=detail)
    record.add(f"{case}it starts soon", ok=wait <= MAX_SECONDS, detail=f"{wait:.1f} s")
    return folder


def last_line(folder: Path) -> str:
    """Return the last line of metrics."""
    return (folder / "metrics.jsonl").read_text().splitlines()[-1]


def lengthen(folder: Path, num_lines: int) -> None:
    """Repeat the last lines of a run with later steps, until it has enough lines."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last = lines[-1]
    repeated = [line for line in lines[-1000:] if "loss" in line]
    begin = repeated[0]
    steps, epochs = (last[key] - begin[key] + 1 for key in ("step", "epoch"))
    missing = num_lines - len(lines)
    with path.open("a") as file:
        for i in range(missing):
            turn, line = 1 + i // len(repeated), repeated[i % len(repeated)]
            later = {"step": line["step"] + turn * steps, "epoch": line["epoch"] + turn * epochs}
            file.write(json.dumps(line | later) + "\n")


def try_tasks(record: Record, what: str, measured: dict) -> None:
    """Record the tasks that must end within a minute."""
    print(f"{what}: {measured}")
    for task, seconds in measured["seconds"].items():
        record.add(f"{what}: {task}", ok=seconds <= MAX_SECONDS, detail=f"{seconds:.1f} s")


def try_files(record: Record, scratch: Path, num_files: int) -> None:
    """List a folder of many files, and read a batch of it."""
    sys.path.append(str(ROOT / "benchmarks"))
    import scale

    place = scratch / "tree" / "files"
    place.mkdir(parents=True)
    scale.make_tree(place, num_files)
    measured = measure("list", place)
    print(f"{num_files:,} files: {measured}")
    for task in ("list", "list again", "read a batch"):
        found = measured[task]
        expected = min(num_files, scale.BATCH_SIZE) if task == "read a batch" else num_files
        ok = found["count"] == expected and found["seconds"] <= MAX_SECONDS
        ok = ok and found["megabytes"] <= max(100, 1e-3 * num_files)
        record.add(f"{num_files:,} files: {task}", ok=ok, detail=f"{found}")


def run(scratch: Path, record: Record, *, quick: bool) -> None:
    """Run all trials in a folder."""
    num_steps = 3_000 if quick else 1_000_000
    folder = try_steps(record, scratch, num_steps)
    num_lines = 1_000 if quick else 100_000
    lengthen(folder, num_lines)
    try_tasks(record, f"a run with {num_lines:,} lines", measure("report", folder))
    num_runs = 3 if quick else 64
    (scratch / "compared").mkdir()
    measured = measure("compare", scratch / "compared" / "comparison", num_runs)
    try_tasks(record, f"{num_runs} runs", measured)
    try_files(record, scratch, 2_000 if quick else 1_000_000)


def main() -> None:
    """Run all trials and write results/campaign-load.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="named in the result; nothing is drawn")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="where to make files; a temporary folder")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("values", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        from smi.imports import trust

        trust()  # the network of the tests
        folder, *numbers = arguments.values
        print(json.dumps(TASKS[arguments.task](Path(folder), *map(int, numbers))))
        return
    record = Record("load", seed=arguments.seed)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        run(Path(scratch), record, quick=arguments.quick)
    print(record.write(arguments.out))
    sys.exit(record.lost > 0)


if __name__ == "__main__":
    main()
