"""Run a small example in two minutes: pretrain on digits, then classify with few labels."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from smi.evaluation.evaluate import evaluate
from smi.evaluation.results import Result
from smi.reporting.report import report
from smi.runs.run import Run
from smi.tables import Table
from smi.terminal import quietly, say
from smi.training.pretrain import pretrain

METHODS = ("SMI", "BarlowTwins")
COLUMNS = {  # names of scores, and the headers of their columns
    "1 label": "1 label",
    "5 labels": "5 labels",
    "10 labels": "10 labels",
    "linear-cached": "all",
}


def demo(out: Path, *, epochs: int | None = None, quiet: bool = False) -> None:
    """Pretrain both methods into `out`, print accuracies with few labels, and write a report."""
    start = time.perf_counter()
    overrides = {} if epochs is None else {"epochs": epochs}
    runs = {}
    with quietly(quiet):
        for method in METHODS:
            runs[method] = pretrain("digits", out=out / method, method=method, overrides=overrides)
            say()
        say("Accuracy of a linear classifier on held-out digits, by the number of labels per class")
        say("(mean and 95 % interval over draws of the labels; pretraining used no labels):\n")
        say(few_label_table(runs).text() + "\n")
        page = report([run.folder for run in runs.values()], out / "report.html")
        say(next_steps(runs, page, time.perf_counter() - start))


def few_label_table(runs: Mapping[str, Run]) -> Table:
    """Evaluate raw pixels, the untrained network and each run's encoder: one row each."""
    names = {str(run.folder): method for method, run in runs.items()}
    evaluation = evaluate(list(names), protocols=("fewshot", "linear-cached", "knn"), floors=True)
    rows = {
        names.get(name.rsplit(", epoch", 1)[0], name.split(",")[0]): results
        for name, results in evaluation.rows
    }
    floors_first = sorted(rows, key=lambda name: (name in runs, name.startswith("untrained")))
    lines = [[name, *_scores(rows[name])] for name in floors_first]
    return Table.of(["", *COLUMNS.values()], lines)


def next_steps(runs: Mapping[str, Run], page: Path, seconds: float) -> str:
    """Return the paths of the results and the commands to try next."""
    ours = runs["SMI"].folder
    folders = ", ".join(str(run.folder) for run in runs.values())
    return f"""
{seconds:.0f} s.
runs      {folders} (settings, metrics, checkpoints)
report    {page} (open it in a browser)
encoder   {ours / "encoder.safetensors"}; from Python: smi.load({str(ours)!r})

What to try next:
  smi doctor {ours}                      check the health of the run
  smi evaluate {ours} --protocol linear  the paper's linear evaluation, shown in the next report
  smi pretrain --data ~/photos --out runs/mine      your own images, no labels needed
  smi list methods                                  the other objectives"""


def _scores(results: Iterable[Result]) -> list[str]:
    scores = {score.name: str(score) for result in results for score in result.scores}
    return [scores[name] for name in COLUMNS]
