"""Store PIRL's memory bank (Misra and van der Maaten 2020)."""

import torch
from torch import Tensor, nn

from smi.device import upload
from smi.distributed import join
from smi.losses.numerics import check_share, unit_rows

BANK_MOMENTUM = 0.5


class MemoryBank(nn.Module):
    """Store a slowly moving embedding of length 1 for every training image.

        bank = MemoryBank(num_images, dim=128)
        loss = info_nce_loss(bank.entries[index], z, bank.negatives(index, 4096))
        bank.update(index, z)

    It starts with random directions, drawn from `seed`. Updates of all devices are applied on every
    device, so the bank is the same on all of them. Memory grows with the number of images. An image
    must occur only once in a batch.
    """

    entries: Tensor  # [num_images, dim]

    def __init__(
        self, num_images: int, dim: int, *, momentum: float = BANK_MOMENTUM, seed: int = 0
    ):
        super().__init__()
        check_share(momentum=momentum)
        self.momentum = momentum
        entries = torch.randn(num_images, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("entries", unit_rows(entries))

    def negatives(
        self, index: Tensor, num_negatives: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw entries of images outside `index`, with replacement: [num_negatives, dim]."""
        num_candidates = len(self.entries) - len(index)
        if num_candidates < 1:
            raise ValueError(
                f"A memory bank of {len(self.entries)} images has no negatives "
                f"for a batch of {len(index)}."
            )
        device = generator.device if generator else self.entries.device
        chosen = torch.randint(num_candidates, (num_negatives,), generator=generator, device=device)
        chosen = upload(chosen, self.entries.device)
        # The r-th candidate is image r plus the number of batch images before it, which is the
        # number of j with s_j - j <= r, where s is the sorted batch.
        batch = index.to(self.entries.device).sort().values
        chosen += torch.searchsorted(
            batch - torch.arange(len(batch), device=batch.device), chosen, right=True
        )
        return self.entries[chosen]

    @torch.no_grad()
    def update(self, index: Tensor, z: Tensor) -> None:
        """Move the entries of these images towards their embeddings z [N, dim]."""
        index = join(index.to(self.entries.device))
        z = unit_rows(join(z.detach().to(self.entries)))
        self.entries[index] = unit_rows(
            self.momentum * self.entries[index] + (1 - self.momentum) * z
        )
