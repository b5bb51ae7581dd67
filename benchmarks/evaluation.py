"""Compare evaluations with scikit-learn, and feature extraction with the bare encoder.

    python benchmarks/evaluation.py            minutes; writes results/benchmark-evaluation.json
    python benchmarks/evaluation.py --show     prints the table of the last run

There are 50,000 training and 10,000 test rows of 512 features in 10 classes, as many as in
CIFAR-10. The features are synthetic: their variances fall as those of trained encoders do, and no
coordinate is below zero except for some noise. All libraries use all cores and get the same float32
rows; the clock runs from there to the accuracy on the test rows.

scikit-learn is used as its documentation does. Nearest neighbours use the metric "cosine" and our
weights; and again the Euclidean metric on rows scaled to length 1, which gives the same ranking and
has a faster implementation. Logistic regression follows a StandardScaler, with the same
regularisation and enough iterations. All take turns in every round, after one round to warm up; a
ratio is the median over rounds of the ratio within a round.
"""

import os
import statistics
import time
from collections.abc import Callable

from machine import command, footer, main, stamp

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
NUM_TRAIN, NUM_TEST, NUM_FEATURES, NUM_CLASSES = 50_000, 10_000, 512, 10
K, TEMPERATURE, L2 = 20, 0.07, 1e-3
NUM_IMAGES, PIXELS, BATCH = 4096, 32, 256
OURS, COSINE, EUCLIDEAN, SKLEARN, BARE = (
    "smi",
    "scikit-learn, cosine",
    "scikit-learn, Euclidean",
    "scikit-learn",
    "bare encoder",
)

Contestants = dict[str, Callable[[], float | None]]


def run(arguments) -> dict:
    import sklearn
    import torch

    torch.manual_seed(0)
    train, test = features(arguments.train), features(arguments.test)
    results = {
        "nearest": turns(neighbours(train, test), arguments.rounds),
        "linear": turns(linear(train, test), arguments.rounds),
        "features": turns(extraction(), arguments.rounds),
    }
    rows = {"train": arguments.train, "test": arguments.test, "images": NUM_IMAGES}
    return stamp(
        f"{CORES} cores", torch=torch.__version__, **{"scikit-learn": sklearn.__version__}
    ) | {"rows": rows, **results}


def features(n: int):
    """Draw rows and labels; the classes are the same at every call, the rows are not."""
    import torch

    fixed = torch.Generator().manual_seed(1)
    spread = torch.arange(1, NUM_FEATURES + 1) ** -0.5
    mixing = torch.linalg.qr(torch.randn(NUM_FEATURES, NUM_FEATURES, generator=fixed)).Q
    centers = 0.25 * torch.randn(NUM_CLASSES, NUM_FEATURES, generator=fixed) * spread
    labels = torch.randint(NUM_CLASSES, (n,))
    h = torch.relu((torch.randn(n, NUM_FEATURES) * spread + centers[labels]) @ mixing)
    return h + 0.01 * torch.randn(n, NUM_FEATURES), labels


def neighbours(train, test) -> Contestants:
    import numpy as np
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.preprocessing import normalize

    from smi.evaluation import knn_accuracy

    x, y, xt, yt = (part.numpy() for part in (*train, *test))

    def cosine() -> float:
        model = KNeighborsClassifier(
            K, metric="cosine", weights=lambda d: np.exp((1 - d) / TEMPERATURE), n_jobs=-1
        )
        return model.fit(x, y).score(xt, yt)

    def euclidean() -> float:
        model = KNeighborsClassifier(
            K, weights=lambda d: np.exp((1 - d**2 / 2) / TEMPERATURE), n_jobs=-1
        )
        return model.fit(normalize(x), y).score(normalize(xt), yt)

    return {
        OURS: lambda: knn_accuracy(*train, *test, k=K, temperature=TEMPERATURE).top1,
        COSINE: cosine,
        EUCLIDEAN: euclidean,
    }


def linear(train, test) -> Contestants:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from smi.evaluation import linear_accuracy

    x, y, xt, yt = (part.numpy() for part in (*train, *test))

    def theirs() -> float:
        model = make_pipeline(
            StandardScaler(), LogisticRegression(C=1 / (L2 * len(x)), max_iter=1000)
        )
        return model.fit(x, y).score(xt, yt)

    return {OURS: lambda: linear_accuracy(*train, *test, grid=[L2]).top1, SKLEARN: theirs}


def extraction() -> Contestants:
    """Compare with the bare encoder on prepared batches: float, normalised, channels last."""
    import numpy as np
    import torch

    from smi.data.sources import ArraySet
    from smi.data.store import ArrayStore
    from smi.evaluation import extract
    from smi.nn import create_encoder

    pixels = np.random.default_rng(0).integers(
        0, 256, (NUM_IMAGES, 3, PIXELS, PIXELS), dtype=np.uint8
    )
    store = ArrayStore(ArraySet("noise", "train", (pixels,)))
    encoder = create_encoder("resnet-small", image_size=PIXELS).eval()
    ready = ((store[:] / 255 - 0.5) / 0.25).to(memory_format=torch.channels_last)

    def bare() -> None:
        with torch.inference_mode():
            for start in range(0, NUM_IMAGES, BATCH):
                encoder(ready[start : start + BATCH])

    def ours() -> None:
        extract(encoder, store, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), batch_size=BATCH)

    return {OURS: ours, BARE: bare}


def turns(contestants: Contestants, rounds: int) -> dict[str, dict[str, object]]:
    """Return the seconds of every round and the accuracy, by name."""
    measured: dict[str, dict] = {name: {"seconds": [], "accuracy": None} for name in contestants}
    for current in range(1 + rounds):
        for name, step in contestants.items():
            start = time.perf_counter()
            measured[name]["accuracy"] = step()
            seconds = time.perf_counter() - start
            if current > 0:
                measured[name]["seconds"].append(seconds)
    return measured


def ratio(measured: dict, opponent: str) -> float:
    """Return the median over rounds of the opponent's time divided by ours."""
    pairs = zip(measured[OURS]["seconds"], measured[opponent]["seconds"], strict=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def table(results: dict) -> str:
    rows, nearest, fitted, extracted = (
        results[name] for name in ("rows", "nearest", "linear", "features")
    )
    size = f"{rows['train']:,} × {NUM_FEATURES}"
    lines = [
        "| speed: ours ÷ theirs | measured | target |",
        "|---|---:|---:|",
        f"| nearest neighbours, {rows['test']:,} against {size} ÷ {COSINE} "
        f"| {ratio(nearest, COSINE):.1f} | ≥ 3 |",
        f"| the same ÷ {EUCLIDEAN}, rows of length 1 | {ratio(nearest, EUCLIDEAN):.1f} | |",
        f"| linear classifier, {size} ÷ {SKLEARN} | {ratio(fitted, SKLEARN):.1f} | ≥ 3 |",
        f"| features of {rows['images']:,} images of {PIXELS} px ÷ {BARE} "
        f"| {ratio(extracted, BARE):.2f} | ≥ 0.9 |",
        "",
        "| | seconds | accuracy, % |",
        "|---|---:|---:|",
    ]
    for label, measured in (
        ("nearest neighbours", nearest),
        ("linear classifier", fitted),
        ("features", extracted),
    ):
        for name, values in measured.items():
            accuracy = "" if values["accuracy"] is None else f"{100 * values['accuracy']:.2f}"
            lines.append(
                f"| {label}: {name} | {statistics.median(values['seconds']):.2f} | {accuracy} |"
            )
    return "\n".join([*lines, "", footer(results)])


if __name__ == "__main__":
    parser = command(__doc__)
    parser.add_argument("--train", type=int, default=NUM_TRAIN)
    parser.add_argument("--test", type=int, default=NUM_TEST)
    parser.add_argument("--rounds", type=int, default=3)
    main(parser, "evaluation", run, table)
