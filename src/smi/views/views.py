"""Views of a batch: what is drawn (draws.py) applied to pixels, by the kernel (compiled.py) or by PyTorch's operations (pixels.py)."""

import torch
from torch import Generator, Tensor

from smi.views.compiled import find_kernel
from smi.views.draws import Parameters, draw
from smi.views.pixels import make_view
from smi.views.policies import Policy


class Views:
    """x1, x2 = Views(policy("cifar10"))(batch.images, batch.generator())

    Tensors on the CPU go through a kernel in C++ where a compiler is found, unless `compiled` is False; True insists on it. The two ways
    differ by rounding, far less than a grey level. Which one it is is settled here, once, and said by `backend`.
    """

    def __init__(self, policy: Policy, *, compiled: bool | None = None):
        self.policy = policy
        self._kernel = None if compiled is False else find_kernel()
        if compiled and self._kernel is None:
            raise RuntimeError(
                "the views' kernel could not be compiled, and nothing else was allowed"
            )
        self.backend = "torch" if self._kernel is None else "compiled"

    def __call__(self, images: Tensor, generator: Generator) -> list[Tensor]:
        """uint8 [N, 3, H, W] to normalised float32 [N, 3, S, S], one for each view; of a jigsaw, one for each patch.

        The generator is one of the CPU whatever device the images are on: the same seed gives the same views on all of them.
        """
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise ValueError(
                f"images must be uint8 [N, 3, H, W], not {str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            )
        if generator.device.type != "cpu":
            raise ValueError(
                f"views are drawn on the CPU, so the generator must be there too, not on {generator.device}"
            )
        return [self.apply(images, parameters) for parameters in self.draw(images, generator)]

    def draw(self, images: Tensor, generator: Generator) -> list[Parameters]:
        n, _, height, width = images.shape
        return [
            parameters
            for view in self.policy.views
            for parameters in draw(view, n, height, width, generator)
        ]

    def apply(self, images: Tensor, parameters: Parameters) -> Tensor:
        make = (
            self._kernel if self._kernel is not None and images.device.type == "cpu" else make_view
        )
        return make(images, parameters, self.policy.mean, self.policy.std)
