"""What stands between features and a loss."""

from itertools import pairwise

from torch import nn


def mlp(*widths: int, bias: bool = False, norm: bool = True, last_norm: bool = False) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between them, the last one bare: mlp(F, 4096, 4096, 4096) is Barlow Twins' projector.

    last_norm: batch norm without scale and shift behind the last layer too, as SimSiam has it.
    """
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        layers.append(nn.Linear(inputs, outputs, bias=bias))
        if not last:
            layers += [nn.BatchNorm1d(outputs)] if norm else []
            layers.append(nn.ReLU(inplace=True))
        elif last_norm:
            layers.append(nn.BatchNorm1d(outputs, affine=False))
    return nn.Sequential(*layers)
