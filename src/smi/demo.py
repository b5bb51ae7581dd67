"""The main job in two minutes: SMI and Barlow Twins on the digits that come with scikit-learn, and what few labels then suffice for."""

import time
from pathlib import Path

from smi.evaluation.evaluate import evaluate
from smi.evaluation.results import Result
from smi.reporting.report import report
from smi.runs.run import Run
from smi.tables import Table
from smi.training.pretrain import pretrain

METHODS = ("SMI", "BarlowTwins")
SCORES = {
    "1 label": "1 label",
    "5 labels": "5 labels",
    "10 labels": "10 labels",
    "linear-cached": "all",
}


def demo(out: Path, *, epochs: int | None = None) -> None:
    begun = time.perf_counter()
    runs = {}
    for method in METHODS:
        runs[method] = pretrain("digits", out=out / method, method=method, epochs=epochs)
        print(flush=True)
    print("Accuracy on held-out digits of a linear classifier, given so many labels of each class")
    print("(mean and 95 % interval over draws of the labels; the encoders saw none):\n")
    print(Table.of(["", *SCORES.values()], accuracies(runs)).text(), "\n", flush=True)
    page = report([run.folder for run in runs.values()], out / "report.html")
    print(f"\n{time.perf_counter() - begun:.0f} s.")
    print(
        f"runs      {', '.join(str(run.folder) for run in runs.values())} (settings, metrics, checkpoints)"
    )
    print(f"report    {page} (open it in a browser)")
    print(
        f"encoder   {runs['SMI'].folder / 'encoder.safetensors'}; from Python: smi.load({str(runs['SMI'].folder)!r})"
    )
    print("\nWhat to try next:")
    print(
        f"  smi doctor {runs['SMI'].folder}                      is it healthy, and how would one know"
    )
    print(
        f"  smi evaluate {runs['SMI'].folder} --protocol linear  the paper's linear evaluation, with its curves in the next report"
    )
    print("  smi pretrain --data ~/photos --out runs/mine      your own images, no labels needed")
    print("  smi methods                                       the other objectives")


def accuracies(runs: dict[str, Run]) -> list[list[str]]:
    """A row for raw pixels, one for the network before training, and one for each run's encoder."""
    names = {str(run.folder): name for name, run in runs.items()}
    found = evaluate(list(names), protocols=("fewshot", "linear-cached", "knn"), floors=True)
    rows = {
        names.get(name.rsplit(", epoch", 1)[0], name.split(",")[0]): results
        for name, results in found.rows
    }
    order = sorted(
        rows, key=lambda name: (name in runs, name.startswith("untrained"))
    )  # what is to be beaten comes first
    return [[name, *_cells(rows[name])] for name in order]


def _cells(results: list[Result]) -> list[str]:
    scores = {score.name: str(score) for result in results for score in result.scores}
    return [scores[name] for name in SCORES]
