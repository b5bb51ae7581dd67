"""Hold images of different shapes as one row of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from smi.device import upload


@dataclass(frozen=True)
class Pictures:
    """Hold N images of different shapes without padding.

    Image i has the bytes [3, h, w] from `start[i]` on, where (h, w) is `shape[i]`. The small
    tensors `start` and `shape` are always on the CPU, so that the host never waits for a device
    to learn a shape.
    """

    pixels: Tensor  # uint8 [total bytes]
    start: Tensor  # int64 [N]
    shape: Tensor  # int64 [N, 2]: height, width

    @classmethod
    def join(cls, images: Sequence[Tensor]) -> "Pictures":
        """Copy images, each uint8 [3, h, w], into one row of bytes."""
        sizes = torch.tensor([0, *(image.numel() for image in images)])
        shape = torch.tensor([image.shape[1:] for image in images], dtype=torch.long)
        pixels = torch.cat([torch.empty(0, dtype=torch.uint8), *(x.flatten() for x in images)])
        return cls(pixels, sizes.cumsum(0)[:-1], shape.reshape(-1, 2))

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, i: int) -> Tensor:
        """Return image i, uint8 [3, h, w], without a copy."""
        start = int(self.start[i])
        height, width = self.shape[i].tolist()
        return self.pixels[start : start + 3 * height * width].view(3, height, width)

    @property
    def device(self) -> torch.device:
        """Return the device of the pixels."""
        return self.pixels.device

    def to(self, device: torch.device | str) -> "Pictures":
        """Return the images with their pixels on another device."""
        return replace(self, pixels=upload(self.pixels, device))

    def padded(self) -> Tensor:
        """Return uint8 [N, 3, H, W] for the largest height and width, black outside the images."""
        height, width = self.shape.amax(0).tolist() if len(self) else (0, 0)
        images = self.pixels.new_zeros(len(self), 3, height, width)
        for i, (h, w) in enumerate(self.shape.tolist()):
            images[i, :, :h, :w] = self[i]
        return images

    def squares(self, side: int) -> Tensor:
        """Return the central squares, uint8 [N, 3, side, side]."""
        images = self.pixels.new_empty(len(self), 3, side, side)
        for i, (height, width) in enumerate(self.shape.tolist()):
            top = (height - side) // 2
            left = (width - side) // 2
            images[i] = self[i][:, top : top + side, left : left + side]
        return images

    def replaced(self, row: int, image: Tensor) -> "Pictures":
        """Return the images with another image, uint8 [3, h, w], in one row."""
        start = self.start.clone()
        shape = self.shape.clone()
        start[row] = len(self.pixels)
        shape[row] = torch.tensor(image.shape[1:])
        return Pictures(torch.cat([self.pixels, image.flatten()]), start, shape)
