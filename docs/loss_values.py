"""Print the loss of one pair of rows against its correlation, with the default settings.

Run `python docs/loss_values.py`; docs/method.md quotes the table.
"""

import inspect

import torch

from smi.losses import smi_loss
from smi.losses.smi import dependency, logcosh

CORRELATIONS = (0.0, 0.1, 0.5, 0.8, 0.9, 0.9299, 0.95, 0.99, 1.0)


def main() -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(smi_loss).parameters.items()
    }
    rho = torch.tensor(CORRELATIONS, dtype=torch.float64, requires_grad=True)
    m = dependency(rho, defaults["eps"])
    alignment = logcosh(m - defaults["target"])
    redundancy = defaults["redundancy_weight"] * logcosh(m + defaults["shift"])
    columns = [rho, m, slope(m, rho)]
    for value in (alignment, redundancy):
        columns += [value, slope(value, rho)]
    print("| ρ | M | dM/dρ | alignment | its slope | λ × redundancy | its slope |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for row in zip(*(column.tolist() for column in columns), strict=True):
        print("| " + " | ".join(f"{value + 0.0:.4g}" for value in row) + " |")


def slope(value: torch.Tensor, rho: torch.Tensor) -> torch.Tensor:
    """Return the derivative of each entry with respect to its correlation."""
    (gradient,) = torch.autograd.grad(value.sum(), rho, retain_graph=True)
    return gradient


if __name__ == "__main__":
    main()
