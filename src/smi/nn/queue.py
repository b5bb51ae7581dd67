"""Store MoCo's queue of keys (He et al. 2020)."""

import torch
from torch import Tensor, nn

from smi.distributed import join
from smi.losses.numerics import unit_rows


class Queue(nn.Module):
    """Store the last `size` keys, scaled to length 1; the oldest are overwritten first.

        queue = Queue(65536, dim=128)
        loss = info_nce_loss(query, key, queue.keys)
        queue.push(key)

    It starts with random directions, drawn from `seed`. Keys of all devices enter in the order of
    ranks. So the queue is the same on every device.
    """

    keys: Tensor  # [size, dim]
    position: Tensor

    def __init__(self, size: int, dim: int, *, seed: int = 0):
        super().__init__()
        keys = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("keys", unit_rows(keys))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Store the keys [N, dim] of all devices."""
        size = len(self.keys)
        keys = unit_rows(join(keys.detach().to(self.keys)))[-size:]
        slots = (self.position + torch.arange(len(keys), device=self.keys.device)) % size
        # A new tensor, not an in-place change: the backward pass of this step may need the old one.
        self.keys = self.keys.index_copy(0, slots, keys)
        self.position = (self.position + len(keys)) % size
