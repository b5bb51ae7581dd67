"""Pretrain a network of your own.

python examples/own_encoder.py
smi pretrain digits --encoder own_encoder.TinyNet --encoder.width 48 --out runs/own   # in examples/

An encoder is any module that turns images [N, 3, S, S] into features [N, F]. The arguments of its
constructor are settings.
"""

import tempfile
from pathlib import Path

from torch import Tensor, nn

import smi


class TinyNet(nn.Module):
    """Compute 4 × width features with two convolutions."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, 4 * width, 3, stride=2, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(4 * width)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature map [N, F, H, W]: figures of where an encoder looks need it."""
        x = self.first_norm(self.first(x)).relu()
        return self.second_norm(self.second(x)).relu()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [N, F]."""
        return self.forward_features(x).mean(dim=(2, 3))


def main(out: str | Path, epochs: int = 3) -> smi.Run:
    """Train on digits, load the encoder, and print its accuracy."""
    overrides = {"epochs": epochs, "encoder": "own_encoder.TinyNet", "encoder.width": 48}
    run = smi.pretrain("digits", out=out, overrides=overrides, quiet=True)
    encoder = smi.load(run)  # the network, its weights and its preprocessing
    print(f"{encoder.dim} features of images of {encoder.image_size} pixels")
    print(smi.evaluate(run, protocols=["knn"], floors=True, quiet=True).text())
    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
