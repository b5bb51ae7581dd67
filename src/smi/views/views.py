"""Make views of a batch: draw parameters (draws.py) and apply them to pixels.

The pixels are computed by the compiled kernel (compiled.py) or by PyTorch operations (pixels.py).
"""

import torch
from torch import Generator, Tensor

from smi.views.compiled import find_kernel
from smi.views.draws import Parameters, draw
from smi.views.pixels import make_view
from smi.views.policies import Policy


class Views:
    """Make all views of a policy.

    x1, x2 = Views(policy("cifar10"))(batch.images, batch.generator())

    Tensors on the CPU use a C++ kernel if a compiler is found. With compiled=False the kernel is
    not used; with compiled=True a missing kernel is an error. The two backends differ by rounding,
    by far less than a grey level. The choice is made once, here; `backend` names it.
    """

    def __init__(self, policy: Policy, *, compiled: bool | None = None):
        self.policy = policy
        self._kernel = None if compiled is False else find_kernel()
        if compiled and self._kernel is None:
            raise RuntimeError("compiled=True, but the kernel for views could not be compiled")
        self.backend = "torch" if self._kernel is None else "compiled"

    def __call__(self, images: Tensor, generator: Generator) -> list[Tensor]:
        """Turn uint8 [N, 3, H, W] into normalised float32 [N, 3, S, S], one tensor per view.

        A jigsaw gives one tensor per patch. The generator is always on the CPU, so that a seed
        gives the same views on all devices.
        """
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            dtype = str(images.dtype).removeprefix("torch.")
            raise ValueError(f"images must be uint8 [N, 3, H, W], not {dtype} {list(images.shape)}")
        if generator.device.type != "cpu":
            raise ValueError(f"the generator must be on the CPU, not on {generator.device}")
        return [self.apply(images, parameters) for parameters in self.draw(images, generator)]

    def draw(self, images: Tensor, generator: Generator) -> list[Parameters]:
        """Draw the parameters of all views of a batch."""
        n, _, height, width = images.shape
        return [
            parameters
            for view in self.policy.views
            for parameters in draw(view, n, height, width, generator)
        ]

    def apply(self, images: Tensor, parameters: Parameters) -> Tensor:
        """Make one view of a batch."""
        kernel = self._kernel if images.device.type == "cpu" else None
        make = make_view if kernel is None else kernel
        return make(images, parameters, self.policy.mean, self.policy.std)
