"""PIRL's memory bank (Misra and van der Maaten 2020)."""

import torch
from torch import Tensor, nn

from smi.distributed import join


class MemoryBank(nn.Module):
    """A slowly moving representation of length 1 for every image of the training set; random directions at the start.

    bank = MemoryBank(num_images, dim=128)
    loss = info_nce_loss(bank.entries[index], z, bank.negatives(index, 4096))
    bank.update(index, z)

    Updates of all devices are applied on every device, so the bank is the same on all of them; memory grows with the training set.
    """

    entries: Tensor  # [num_images, dim]

    def __init__(self, num_images: int, dim: int, *, momentum: float = 0.5, seed: int = 0):
        super().__init__()
        self.momentum = momentum
        entries = torch.randn(num_images, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("entries", nn.functional.normalize(entries, dim=1))

    def negatives(self, index: Tensor, num_negatives: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Entries of random images, none of them in `index`: [num_negatives, dim], with repetition where there are too few."""
        others = torch.ones(len(self.entries), dtype=torch.bool, device=self.entries.device)
        others[index] = False
        candidates = others.nonzero()[:, 0]
        if len(candidates) == 0:
            raise ValueError(f"A memory bank of {len(self.entries)} images has no negatives for a batch of all of them.")
        device = generator.device if generator else candidates.device
        chosen = torch.randint(len(candidates), (num_negatives,), generator=generator, device=device)
        return self.entries[candidates[chosen.to(candidates.device)]]

    @torch.no_grad()
    def update(self, index: Tensor, z: Tensor) -> None:
        index = join(index.to(self.entries.device))
        z = nn.functional.normalize(join(z.detach().to(self.entries.dtype)), dim=1)
        moved = self.momentum * self.entries[index] + (1 - self.momentum) * z
        self.entries = self.entries.index_copy(0, index, nn.functional.normalize(moved, dim=1))
