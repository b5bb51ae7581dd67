"""Define a network and a method as a user does, small enough for tests."""

import copy

import torch
from torch import nn

from smi.losses import Terms
from smi.methods import Method, Output
from smi.nn import mlp


class Net(nn.Module):
    """Compute features with one convolution."""

    def __init__(self, width: int = 8, drop: float = 0.0):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.norm(self.conv(x)).relu().mean(dim=(2, 3)))


class OneSize(Net):
    """Take images of 64 pixels only."""

    def forward(self, x):
        if x.shape[-1] != 64:
            raise ValueError("expected images of 64 pixels")
        return super().forward(x)


class Agreement(Method):
    """Bring two views together; the loss or its gradient can be made NaN."""

    def __init__(
        self, encoder, *, weight: float = 1.0, fails_at: float = 2.0, gradient_fails_at: float = 2.0
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, 16, 16)
        self.weight = weight
        self.fails_at = fails_at
        self.gradient_fails_at = gradient_fails_at

    def forward(self, views, batch):
        h = [self.encoder(x) for x in views]
        z = [self.projector(features) for features in h]
        loss = self.weight * (z[0] - z[1]).square().mean()
        if self.progress >= self.fails_at:
            loss = loss * torch.nan
        if self.progress >= self.gradient_fails_at:
            loss.register_hook(lambda gradient: gradient * torch.nan)
        return Output(Terms(alignment=loss), h[0], z[0], z[1])


class Limited(Agreement):
    """A method with a setting that may be None."""

    def __init__(self, encoder, *, limit: float | None = None):
        super().__init__(encoder)
        self.limit = limit


class Slow(Agreement):
    """Export a second encoder, which follows the trained one."""

    exported_encoder = "slow"

    def __init__(self, encoder):
        super().__init__(encoder)
        self.slow = copy.deepcopy(encoder).requires_grad_(False)

    def after_step(self):
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.encoder.parameters(), strict=True):
                slow.lerp_(fast, 0.1)


class Large(Agreement):
    """Run out of memory if more than `most` images are on a device at once."""

    def __init__(self, encoder, *, most: int = 16):
        super().__init__(encoder)
        self.most = most

    def forward(self, views, batch):
        if len(views[0]) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(views, batch)
