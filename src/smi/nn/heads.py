"""Create the networks between features and a loss."""

from collections.abc import Callable
from itertools import pairwise

from torch import nn


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def mlp(
    *widths: int,
    bias: bool = False,
    norm: bool = True,
    last_norm: bool = False,
    last_scale: bool = False,
    activation: Callable[[], nn.Module] = _relu,
) -> nn.Sequential:
    """Create linear layers with batch norm and ReLU between them, and none after the last.

        mlp(F, 4096, 4096, 4096)        # SMI's projector

    bias: of layers without a batch norm after them; a batch norm would remove it.
    last_norm: add a batch norm without scale and shift after the last layer, as SimSiam does.
    last_scale: give that batch norm a scale, but no shift, as SimCLR does.
    """
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        normed = last_norm if last else norm
        layers.append(nn.Linear(inputs, outputs, bias=bias and not normed))
        if normed:
            norm_layer = nn.BatchNorm1d(outputs, affine=last_scale or not last)
            if last and last_scale:
                norm_layer.bias.requires_grad_(False)  # it stays 0
            layers.append(norm_layer)
        if not last:
            layers.append(activation())
    return nn.Sequential(*layers)
