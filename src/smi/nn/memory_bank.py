"""PIRL's memory bank (Misra and van der Maaten 2020)."""

import torch
from torch import Tensor, nn

from smi.distributed import join
from smi.losses.embeddings import check_share, unit_rows


class MemoryBank(nn.Module):
    """A slowly moving representation of length 1 for every image of the training set; random directions at the start.

    bank = MemoryBank(num_images, dim=128)
    loss = info_nce_loss(bank.entries[index], z, bank.negatives(index, 4096))
    bank.update(index, z)

    Updates of all devices are applied on every device, so the bank is the same on all of them; memory grows with the training set. An image
    must come once in a batch.
    """

    entries: Tensor  # [num_images, dim]

    def __init__(self, num_images: int, dim: int, *, momentum: float = 0.5, seed: int = 0):
        super().__init__()
        check_share(momentum=momentum)
        self.momentum = momentum
        entries = torch.randn(num_images, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("entries", unit_rows(entries))

    def negatives(
        self, index: Tensor, num_negatives: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Entries of random images, none of them in `index`, drawn with replacement: [num_negatives, dim]."""
        num_others = len(self.entries) - len(index)
        if num_others < 1:
            raise ValueError(
                f"A memory bank of {len(self.entries)} images has no negatives for a batch of {len(index)}."
            )
        device = generator.device if generator else self.entries.device
        chosen = torch.randint(num_others, (num_negatives,), generator=generator, device=device).to(
            self.entries.device
        )
        # The r-th of the others is r, moved on by the images of the batch that come before it: as many as s_j - j <= r.
        taken = index.to(self.entries.device).sort().values
        chosen += torch.searchsorted(
            taken - torch.arange(len(taken), device=taken.device), chosen, right=True
        )
        return self.entries[chosen]

    @torch.no_grad()
    def update(self, index: Tensor, z: Tensor) -> None:
        index, z = join(index.to(self.entries.device)), unit_rows(join(z.detach().to(self.entries)))
        self.entries[index] = unit_rows(
            self.momentum * self.entries[index] + (1 - self.momentum) * z
        )
