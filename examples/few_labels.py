"""From a folder of photographs to a classifier with a few labels.

python examples/few_labels.py                  # crops of two photographs, a minute
python examples/few_labels.py ~/photos 5       # your folder, and labels of each class

In your folder, the name of a subfolder is the class of its images. The encoder is trained on all
images and sees no labels. A linear classifier is then given a few labels of each class, and asked
for the others.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image
from sklearn.linear_model import LogisticRegression

import smi

# Parts of scikit-learn's photographs (by danielbuechele and vultilion, CC BY 2.0) that show one
# thing: rows and columns.
PARTS = {
    "petals": ("flower.jpg", (125, 320), (210, 405)),
    "leaves": ("flower.jpg", (0, 427), (0, 150)),
    "temple": ("china.jpg", (160, 330), (110, 300)),
    "sky": ("china.jpg", (0, 170), (380, 630)),
}
SIDE = 48  # pixels


def write_crops(folder: Path, number: int = 150) -> None:
    """Write random crops of each part in random light, in a folder of its own."""
    generator = np.random.default_rng(0)
    for name, (photograph, rows, columns) in PARTS.items():
        (folder / name).mkdir(parents=True)
        pixels = load_sample_image(photograph)
        for i in range(number):
            side = generator.integers(40, 90)
            top = generator.integers(rows[0], rows[1] - side)
            left = generator.integers(columns[0], columns[1] - side)
            crop = pixels[top : top + side, left : left + side]
            light = generator.uniform(0.4, 1.3, size=3)  # of red, green and blue
            crop = (crop * light + generator.uniform(-20, 60)).clip(0, 255).astype(np.uint8)
            Image.fromarray(crop).resize((SIDE, SIDE)).save(folder / name / f"{i:03d}.png")


def few_labels(features: NDArray[np.float32], labels: NDArray[np.int64], shots: int) -> list[float]:
    """Return the accuracies of ten classifiers, each with its own `shots` labels of each class."""
    features = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-6)
    scores = []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(labels))
        given = np.concatenate([order[labels[order] == c][:shots] for c in np.unique(labels)])
        others = np.setdiff1d(order, given)
        classifier = LogisticRegression(C=0.1, max_iter=1000).fit(features[given], labels[given])
        scores.append(float(classifier.score(features[others], labels[others])))
    return scores


def main(
    photographs: Path, out: Path, shots: int = 1, overrides: dict[str, object] | None = None
) -> dict[str, float]:
    """Train, and return the mean accuracy of the untrained and of the trained encoder."""
    run = smi.pretrain(data=photographs, out=out / "run", overrides=overrides)
    trained = smi.load(run)
    accuracies = {}
    for name, encoder in {"untrained": trained.untrained(), "trained": trained}.items():
        files = sorted(path for path in photographs.glob("*/*") if path.is_file())
        classes, labels = np.unique([path.parent.name for path in files], return_inverse=True)
        parts = [files[i : i + 64] for i in range(0, len(files), 64)]
        h = np.concatenate([encoder(encoder.transform(p)).detach().numpy() for p in parts])
        scores = few_labels(h, labels, shots)
        accuracies[name] = sum(scores) / len(scores)
        print(
            f"{name}: {accuracies[name]:.1%} with {shots} label(s) of each of {len(classes)} "
            f"classes, {min(scores):.1%} to {max(scores):.1%} over ten draws of the labels"
        )
    return accuracies


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        if len(sys.argv) > 1:
            shots = int(sys.argv[2]) if len(sys.argv) > 2 else 5
            main(Path(sys.argv[1]).expanduser(), Path(temporary), shots)
        else:
            write_crops(Path(temporary) / "crops")
            short = {"epochs": 12, "optimizer.lr": 1e-3, "log.probe_every": 0}
            main(Path(temporary) / "crops", Path(temporary), 3, short)
