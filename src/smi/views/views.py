"""Make views of a batch: draw parameters (draws.py) and apply them to pixels.

The pixels are computed by the compiled kernel (compiled.py) or by PyTorch operations (pixels.py).
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from smi.data.pictures import Pictures
from smi.views.compiled import find_kernel
from smi.views.draws import Parameters, draw, shapes_of
from smi.views.normalisation import normalise
from smi.views.pixels import make_views
from smi.views.policies import Policy

NO_MEAN = (0.0, 0.0, 0.0)
UNIT_STD = (1.0, 1.0, 1.0)


class Views:
    """Make all views of a policy.

    x1, x2 = Views(policy("cifar10"))(batch.images, batch.generator())

    Images on the CPU use a C++ kernel if a compiler is found. With compiled=False the kernel is
    not used; with compiled=True a missing kernel is an error. The two backends differ by rounding,
    by far less than a grey level. The choice is made once, here; `backend` names it.
    """

    def __init__(self, policy: Policy, *, compiled: bool | None = None):
        self.policy = policy
        self._kernel = None if compiled is False else find_kernel()
        if compiled and self._kernel is None:
            raise RuntimeError("compiled=True, but the kernel for views could not be compiled")
        self.has_kernel = self._kernel is not None
        self.backend = "compiled" if self.has_kernel else "torch"

    def __call__(self, images: Tensor | Pictures, generator: Generator) -> list[Tensor]:
        """Turn images into normalised float32 [N, 3, S, S], one tensor per view, channels last.

        images: uint8 [N, 3, H, W], or images of different shapes.
        generator: always on the CPU, so that a seed gives the same views on all devices.

        A jigsaw gives one tensor per patch.
        """
        drawn = self.draw(images, generator)
        if self._kernel is None or images.device.type != "cpu":
            return make_views(images, drawn, self.policy.mean, self.policy.std)
        return [self._kernel(images, p, self.policy.mean, self.policy.std) for p in drawn]

    def buffers(
        self, n: int, dtype: torch.dtype = torch.float32, pinned: bool = False
    ) -> list[Tensor]:
        """Return tensors on the CPU for all views of n images, to be filled by `fill`.

        dtype: float32 for normalised values, or uint8 for whole grey levels, which take a quarter
            of the memory and are normalised on the device by `normalise`.
        pinned: in memory from which CUDA copies without waiting.
        """
        return [
            torch.empty(
                (n, 3, view.size, view.size),
                dtype=dtype,
                pin_memory=pinned,
                memory_format=torch.channels_last,
            )
            for view in self.policy.views
            for _ in range(view.grid**2)
        ]

    def fill(
        self, buffers: Sequence[Tensor], images: Tensor | Pictures, generator: Generator
    ) -> None:
        """Make all views of images on the CPU into buffers of `self.buffers`."""
        drawn = self.draw(images, generator)
        mean, std = self.policy.mean, self.policy.std
        if self._kernel is not None:
            for buffer, parameters in zip(buffers, drawn, strict=True):
                self._kernel(images, parameters, mean, std, out=buffer)
            return
        in_levels = buffers[0].dtype == torch.uint8
        if in_levels:
            mean, std = NO_MEAN, UNIT_STD
        for buffer, view in zip(buffers, make_views(images, drawn, mean, std), strict=True):
            buffer.copy_(view.mul_(255).round_() if in_levels else view)

    def normalise(self, pixels: Sequence[Tensor]) -> list[Tensor]:
        """Turn uint8 views into normalised float32 on their device, channels last."""
        return [normalise(view, self.policy.mean, self.policy.std) for view in pixels]

    def draw(self, images: Tensor | Pictures, generator: Generator) -> list[Parameters]:
        """Draw the parameters of all views of a batch."""
        if isinstance(images, Tensor) and (
            images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8
        ):
            dtype = str(images.dtype).removeprefix("torch.")
            raise ValueError(f"images must be uint8 [N, 3, H, W], not {dtype} {list(images.shape)}")
        if generator.device.type != "cpu":
            raise ValueError(f"the generator must be on the CPU, not on {generator.device}")
        shapes = shapes_of(images)
        return [
            parameters for view in self.policy.views for parameters in draw(view, shapes, generator)
        ]

    def apply(self, images: Tensor | Pictures, parameters: Parameters) -> Tensor:
        """Make one view of a batch."""
        mean, std = self.policy.mean, self.policy.std
        if self._kernel is None or images.device.type != "cpu":
            return make_views(images, [parameters], mean, std)[0]
        return self._kernel(images, parameters, mean, std)
