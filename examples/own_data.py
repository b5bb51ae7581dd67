"""Pretrain on a data source of your own: any object with a length and items.

python examples/own_data.py

An item is an image (PIL, or a uint8 array), a pair of image and label, or a dictionary. Labels are
used for evaluation only. The images are copied once into smi's cache folder, so that a run can be
resumed and evaluated by other processes. Folders, lists, arrays and shards need no such class:
see docs/data.md.
"""

import random
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

import smi

SHAPES = ("circle", "square", "triangle")


class Shapes:
    """Draw shapes of random size, place and colour; an item always has the same picture."""

    def __init__(self, length: int, *, seed: int, side: int = 24):
        self.length = length
        self.seed = seed
        self.side = side

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Image.Image, str]:
        """Return an image and its label."""
        generator = random.Random(self.seed * self.length + index)
        label = SHAPES[index % len(SHAPES)]
        image = Image.new("RGB", (self.side, self.side), _colour(generator, 0, 110))
        radius = generator.uniform(0.25, 0.4) * self.side
        x, y = (generator.uniform(radius, self.side - radius) for _ in range(2))
        fill = _colour(generator, 140, 255)
        pencil = ImageDraw.Draw(image)
        if label == "circle":
            pencil.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
        else:
            corners = 4 if label == "square" else 3
            pencil.regular_polygon((x, y, radius), corners, fill=fill)
        return image, label


def _colour(generator: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(generator.randint(low, high) for _ in range(3))


def main(out: str | Path, epochs: int = 8, length: int = 900) -> smi.Run:
    """Train on drawn shapes, and print the accuracy on others."""
    data = {"train": Shapes(length, seed=0), "val": Shapes(length // 3, seed=1)}
    overrides = {"epochs": epochs, "batch_size": 64, "log.probe_every": 0}
    run = smi.pretrain("cifar10-small", data=data, out=out, overrides=overrides, quiet=True)
    print(smi.evaluate(run, protocols=["knn"], floors=True, quiet=True).text())
    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
