"""Compare our gradient of Barlow Twins with that of its authors' code, on two real processes.

This is why `smi pretrain --published` divides the learning rate of biases and norms by the number
of processes.
"""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

from smi.losses import barlow_twins_loss
from support.digits import environment

N, WEIGHT = 6, 0.0051


def standardised(z: Tensor) -> Tensor:
    """Standardise over all processes, with a gradient, as synchronised batch norm does."""
    mean = all_reduce(z.sum(0)) / (2 * N)
    variance = all_reduce((z - mean).square().sum(0)) / (2 * N)
    return (z - mean) / (variance + 1e-5).sqrt()


def authors_loss(z1: Tensor, z2: Tensor) -> Tensor:
    """Sum the correlations over processes in place, which autograd does not see."""
    correlations = standardised(z1).T @ standardised(z2) / (2 * N)
    dist.all_reduce(correlations.detach())
    diagonal = correlations.diagonal()
    rest = correlations.square().sum() - diagonal.square().sum()
    return (diagonal - 1).square().sum() + WEIGHT * rest


def gradient(loss, rank: int) -> tuple[Tensor, Tensor]:
    """Return the value and the gradient that DDP averages."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)).double()
    )
    draws = torch.Generator().manual_seed(rank)  # each process has its own images
    x = torch.randn(N, 5, dtype=torch.float64, generator=draws)
    noise = 0.3 * torch.randn(N, 5, dtype=torch.float64, generator=draws)
    value = loss(*model(torch.cat([x, x + noise])).chunk(2))
    value.backward()
    return value.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


def work(rank: int) -> None:
    value, authors = gradient(authors_loss, rank)
    ours_value, ours = gradient(
        lambda z1, z2: barlow_twins_loss(z1, z2, redundancy_weight=WEIGHT).total, rank
    )
    torch.testing.assert_close(ours_value, value)
    torch.testing.assert_close(ours, 2 * authors)


def test_the_authors_gradient_is_a_share_of_ours(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(tmp_path), str(rank)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors


if __name__ == "__main__":
    store = dist.FileStore(str(Path(sys.argv[1]) / "store"), 2)
    dist.init_process_group(
        "gloo", store=store, rank=int(sys.argv[2]), world_size=2, timeout=timedelta(seconds=200)
    )
    work(int(sys.argv[2]))
    dist.destroy_process_group()
