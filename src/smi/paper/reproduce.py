"""Repeat the paper's experiments at a scale that suits the machine, and write a page about them.

reproduce(["all"], scale="minutes", out="reproduced")

OUT/index.html, claims.json                 the page, and the same as data
OUT/tables/, OUT/figures/                   the paper's tables and figures, of these runs
OUT/<data>/runs/, OUT/<data>/comparison-*/  runs, and comparisons of them
OUT/<data>/two-processes/                   runs that torchrun made

`smi compare` makes the runs. Repeat the command to resume: it makes only the missing runs.
"""

import datetime
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smi import __version__
from smi.comparison.compare import Launch, compare, refuse_torchrun
from smi.comparison.comparison import Comparison
from smi.device import Runtime, describe_device, versions
from smi.errors import TrainingError, UserError
from smi.files import disk_errors, expand, make_folder, write_json, write_text
from smi.pages import page
from smi.paper.outputs import Entry, Outputs
from smi.paper.page import reproduction_document
from smi.paper.plan import Plan, PlannedComparison, RunCount, make_plan
from smi.paper.reproducible import CLAIMS, ITEMS, NUM_SEEDS, choose_items
from smi.paper.scales import TWO_PROCESSES, Scale, find_scale
from smi.terminal import announce, counted, duration, quietly, say

FORMAT = 2  # of claims.json; entries that an earlier call wrote in another format are dropped
COMMENT = "  # "  # between a command and its date, so that both can be pasted into a shell
NO_RUNS = "no runs were missing"
INTRODUCTION = (
    "Each claim of the paper beside our measurements. A claim holds if the 95 % interval of a "
    "difference, paired by seed, lies on its side. It does not hold if the interval lies on the "
    "other side. Otherwise this scale cannot decide. An interval of a difference of accuracies is "
    "never narrower than their rounding to whole test images. The paper's own numbers are of other "
    "encoders, datasets and training times."
)


def reproduce(
    names: Sequence[str] = ("all",),
    *,
    scale: str | Scale,
    out: str | Path,
    seeds: int = NUM_SEEDS,
    data: str | Path | None = None,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Path:
    """Make the runs that are missing, then the tables, figures and claims, and return the page.

        index = reproduce(["table-3", "ratio"], scale="minutes", out="reproduced")

    names: as `list_items` lists them, or "all". scale: minutes, hours or paper. out: the folder
    of everything that is written; the page is its index.html. data: one of the scale's datasets,
    or a folder of labelled images instead of them.
    """
    refuse_torchrun()
    if seeds < 1:
        raise UserError(f"seeds must be 1 or more, not {seeds}")
    chosen = choose_items(names)
    scale = find_scale(scale) if isinstance(scale, str) else scale
    command = _command(names, scale, out, seeds, data, runtime)
    with quietly(quiet):
        plan = make_plan(chosen, scale, expand(out), num_seeds=seeds, data=data, runtime=runtime)
        return run_plan(plan, command)


def _command(
    names: Sequence[str],
    scale: Scale,
    out: str | Path,
    seeds: int,
    data: str | Path | None,
    runtime: Runtime,
) -> str:
    """Return the command line of a call."""
    options = {
        "--scale": scale.name,
        "--out": out,
        "--seeds": seeds if seeds != NUM_SEEDS else None,
        "--data": data,
        "--root": runtime.root,
        "--device": runtime.device,
        "--num-workers": runtime.num_workers,
    }
    words = ["smi", "reproduce", *names]
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    return shlex.join(words)


# ------------------------------------------------------------------------------------ runs


def run_plan(plan: Plan, command: str) -> Path:
    """Carry out a plan and return the page; raise TrainingError at the end if runs failed.

    command: the command line, for the page.
    """
    start = time.perf_counter()
    started = datetime.datetime.now().astimezone()
    count = plan.count_runs()
    _announce_plan(plan, count)
    with disk_errors(f"writing to {plan.out}"):
        for folder in (plan.out / "tables", plan.out / "figures"):
            make_folder(folder)
    comparisons = make_comparisons(plan)
    say("\n== tables and figures")
    outputs = Outputs(plan, comparisons)
    made = outputs.document()
    failures = _failures(comparisons)
    notes = [*plan.notes, *outputs.notes, *failures]
    when = f"{started:%Y-%m-%d %H:%M %Z}, {duration(time.perf_counter() - start)}"
    earlier = _earlier_document(plan)
    call = f"{command}{COMMENT}{when}; {_describe_count(count)}"
    about = _about(plan, _calls(command, call, earlier), notes, earlier)
    document = {"about": about, **_merged(made, earlier)}
    index = write_document(document, plan.out)
    _announce_results(document, index)
    if failures:
        raise TrainingError(f"{len(failures)} of {count[0]} runs failed: see the notes on the page")
    return index


def _announce_plan(plan: Plan, count: RunCount) -> None:
    total, done = count
    say(f"scale {plan.scale.name}: {plan.scale.sentence}")
    say(f"to make   {', '.join(plan.names)}")
    for planned in plan.comparisons:
        say(f"runs      {planned.setup.name}: {planned.sentence}")
    for note in plan.notes:
        say(note)
    estimate = ""
    if plan.scale.seconds_per_run and total > done:
        seconds = 60 + plan.scale.seconds_per_run * (total - done)
        estimate = f", about {duration(seconds)} on two cores"
    say(f"total     {_count(total)}, {done} already finished{estimate}; written to {plan.out}")


def make_comparisons(plan: Plan) -> dict[tuple[str, str], Comparison]:
    """Make the plan's comparisons, by dataset and kind."""
    comparisons = {}
    for planned in plan.comparisons:
        say(f"\n== {planned.setup.name}: {planned.sentence}")
        comparisons[planned.key] = _compare(plan, planned)
    return comparisons


def _compare(plan: Plan, planned: PlannedComparison) -> Comparison:
    shared = planned.kind != TWO_PROCESSES  # with other comparisons, so each has its own tables
    return compare(
        planned.methods,
        recipe=planned.setup.recipe,
        seeds=planned.num_seeds,
        sweep=planned.sweep,
        out=planned.runs_folder(plan.out),
        tables=planned.tables_folder(plan.out) if shared else None,
        protocols=plan.scale.protocols,
        overrides=planned.setup.settings,
        launch=Launch(processes=planned.num_processes),
        runtime=plan.runtime,
    )


def _failures(comparisons: Mapping[tuple[str, str], Comparison]) -> list[str]:
    """Return one sentence for each run that failed; comparisons may share a run."""
    sentences = {
        run.folder: f"Failed: {data}, {name}, seed {run.seed}: {run.failed}."
        for (data, _), comparison in comparisons.items()
        for name, run in comparison.failed
    }
    return list(sentences.values())


# ------------------------------------------------------------------------------------ results


def write_document(document: Mapping[str, Any], out: Path) -> Path:
    """Write claims.json and index.html, and return the page's path."""
    index = out / "index.html"
    with disk_errors(f"writing to {out}"):
        html = page(reproduction_document(document, out))
        write_json(out / "claims.json", document)
        write_text(index, html)
    return index


def _earlier_document(plan: Plan) -> dict[str, Any]:
    """Return the document of the last call, if its version, scale and datasets were the same."""
    try:
        text = (plan.out / "claims.json").read_text(encoding="utf-8")
        document: dict[str, Any] = json.loads(text)
        about = document["about"]
        datasets = about.get("datasets") or about["facts"]["Images"]
        same = (about["format"], about["scale"], about["smi"], datasets) == (
            FORMAT,
            plan.scale.name,
            __version__,
            plan.datasets or datasets,
        )
    except (OSError, ValueError, KeyError, TypeError):  # absent, or not our file
        return {}
    if not same:
        return {}
    about["datasets"] = datasets
    return document | {"claims": []} if CLAIMS in plan.names else document


def _calls(command: str, call: str, earlier: Mapping[str, Any]) -> list[str]:
    """Return the calls that made the page, without earlier repetitions that made no runs."""
    calls = earlier.get("about", {}).get("calls", [])
    repeated = command + COMMENT
    return [*(c for c in calls if not (c.startswith(repeated) and c.endswith(NO_RUNS))), call]


def _describe_count(count: RunCount) -> str:
    total, done = count
    return f"{_count(total - done)} made, {done} finished before" if total > done else NO_RUNS


def _count(num_runs: int) -> str:
    return counted(num_runs, "run")


def _about(
    plan: Plan, calls: Sequence[str], notes: Sequence[str], earlier: Mapping[str, Any]
) -> dict[str, Any]:
    software = versions()
    datasets = plan.datasets or earlier.get("about", {}).get("datasets", "none")
    facts = {
        "Datasets": datasets,
        "Machine": f"{describe_device(plan.runtime.choose_device())}, {software['system']}",
        "Software": f"smi {__version__}, Python {software['python']}, torch {software['torch']}, "
        f"timm {software['timm']}",
    }
    return {
        "title": f"SMI: the paper's claims, measured at the scale of {plan.scale.name}",
        "format": FORMAT,
        "scale": plan.scale.name,
        "smi": __version__,
        "datasets": datasets,
        "calls": list(calls),
        "introduction": INTRODUCTION,
        "facts": facts,
        "notes": list(notes),
    }


def _merged(made: Mapping[str, list[Entry]], earlier: Mapping[str, Any]) -> dict[str, list[Entry]]:
    """Add the entries of earlier calls that this call did not make again."""
    merged = {}
    for key, entries in made.items():
        names = {entry["name"] for entry in entries}
        others = [entry for entry in earlier.get(key, []) if entry["name"] not in names]
        merged[key] = [*others, *entries]
    merged["tables"].sort(key=lambda entry: str(entry["name"]))
    merged["figures"].sort(key=_figure_order)
    return merged


def _figure_order(entry: Entry) -> int:
    """Return the place of a figure's item; figures of several datasets have longer names."""
    return next((i for i, name in enumerate(ITEMS) if entry["name"].startswith(name)), 0)


def _announce_results(document: Mapping[str, Any], index: Path) -> None:
    if document["claims"]:
        say()
    for claim in document["claims"]:
        for finding in claim["findings"]:
            where = f" ({finding['where']})" if finding["where"] else ""
            say(f"{claim['title']}{where}: {finding['verdict']}\n  {finding['sentence']}")
    for entry in (*document["tables"], *document["figures"]):
        if entry["why"]:
            announce(f"{entry['name']} was not made: {entry['why']}")
    say(f"\n{index}: open it in a browser")
