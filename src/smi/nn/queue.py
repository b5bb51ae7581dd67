"""MoCo's queue of keys (He et al. 2020)."""

import torch
from torch import Tensor, nn

from smi.distributed import join
from smi.losses.embeddings import unit_rows


class Queue(nn.Module):
    """The last `size` keys of length 1, oldest overwritten first; random directions at the start.

    queue = Queue(65536, dim=128)
    loss = info_nce_loss(query, key, queue.keys)
    queue.push(key)

    Keys of all devices enter in the order of ranks, and the start is drawn from `seed`, so the queue is the same on every device.
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
        size = len(self.keys)
        keys = unit_rows(join(keys.detach().to(self.keys)))[-size:]
        slots = (self.position + torch.arange(len(keys), device=self.keys.device)) % size
        # A new tensor, not a change in place: the loss of this step may still need the old one in its backward pass.
        self.keys = self.keys.index_copy(0, slots, keys)
        self.position = (self.position + len(keys)) % size
