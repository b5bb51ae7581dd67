"""The main job in two minutes: SMI and Barlow Twins on the digits that come with scikit-learn, and what few labels then suffice for."""

import time
from pathlib import Path

from torch import Tensor

from smi.analysis.curves import write_curves
from smi.data import load
from smi.evaluate import extract_labelled, few_shot, linear_accuracy, pixels
from smi.pretraining import pretrain
from smi.run import Run
from smi.tables import align
from smi.views import policy

METHODS = ("SMI", "BarlowTwins")
SHOTS = (1, 5, 10)


def demo(out: Path, *, epochs: int | None = None) -> None:
    begun = time.perf_counter()
    runs = {}
    for method in METHODS:
        runs[method] = pretrain("digits", out=out / method, method=method, epochs=epochs)
        print(flush=True)
    print("Accuracy on held-out digits of a linear classifier, given so many labels of each class")
    print("(mean and 95 % interval over draws of the labels; the encoders saw none):\n")
    print(align(["", *(f"{shots} label{'s' * (shots > 1)}" for shots in SHOTS), "all"], accuracies(runs)))
    curves = out / "curves.html"
    write_curves(runs, curves)
    print(f"\n{time.perf_counter() - begun:.0f} s.")
    print(f"runs      {', '.join(str(run.folder) for run in runs.values())} (settings, metrics, checkpoints)")
    print(f"curves    {curves} (open it in a browser)")
    print(f"encoder   {runs['SMI'].folder / 'encoder.safetensors'}; from Python: smi.load({str(runs['SMI'].folder)!r})")
    print("\nWhat to try next:")
    print(f"  smi doctor {runs['SMI'].folder}                      is it healthy, and how would one know")
    print(f"  smi evaluate {runs['SMI'].folder} --floors           more of what it is good for, beside an untrained encoder")
    print("  smi pretrain --data ~/photos --out runs/mine      your own images, no labels needed")
    print("  smi methods                                       the other objectives")


def accuracies(runs: dict[str, Run]) -> list[list[str]]:
    """A row for raw pixels, and one for each run's encoder."""
    train, val = load("digits", "train"), load("digits", "val")
    labels = [store.labels for store in (train, val)]
    rows = [_row("raw pixels", pixels(train), labels[0], pixels(val), labels[1])]
    seen = policy("digits")
    for name, run in runs.items():
        encoder = run.encoder()
        features = [extract_labelled(encoder, store, mean=seen.mean, std=seen.std) for store in (train, val)]
        rows.append(_row(name, *features[0], *features[1]))
    return rows


def _row(name: str, train: Tensor, train_labels: Tensor | None, val: Tensor, val_labels: Tensor | None) -> list[str]:
    assert train_labels is not None
    assert val_labels is not None
    cells = [f"{r.mean:.1%} ± {r.high - r.mean:.1%}" for r in few_shot(train, train_labels, val, val_labels, shots=SHOTS)]
    return [name, *cells, f"{linear_accuracy(train, train_labels, val, val_labels).top1:.1%}"]
