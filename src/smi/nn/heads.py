"""What stands between features and a loss."""

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
    activation: Callable[[], nn.Module] = _relu,
) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between them, the last one bare: mlp(F, 4096, 4096, 4096) is Barlow Twins' projector.

    bias: of layers without a batch norm behind them, which would take it away again.
    last_norm: batch norm without scale and shift behind the last layer too, as SimSiam has it.
    """
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        normed = last_norm if last else norm
        layers.append(nn.Linear(inputs, outputs, bias=bias and not normed))
        if normed:
            layers.append(nn.BatchNorm1d(outputs, affine=not last))
        if not last:
            layers.append(activation())
    return nn.Sequential(*layers)
