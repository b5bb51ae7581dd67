"""PIRL: an image and its jigsaw, both known by what a memory bank holds of the image."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.losses import Terms, info_nce_loss
from smi.methods.base import Method, Output, together
from smi.nn import Encoder, MemoryBank
from smi.seeds import derive
from smi.views import Policy, jigsaw

NUM_PATCHES = 9


class PIRL(Method):
    """Tell an image's entry in a memory bank from those of others, by the image and by nine shuffled patches of it.

    num_images: of the training set, each with an entry in the bank.
    jigsaw_weight: the patches' share of the loss, the paper's lambda.
    momentum: of the entries.
    """

    paper = "Misra and van der Maaten 2020, arXiv:1912.01991"
    stored = "memory bank"
    gathers = True

    z: Tensor  # of the step under way, [N, K]
    index: Tensor

    def __init__(
        self,
        encoder: Encoder,
        *,
        num_images: int = 50_000,
        dim: int = 128,
        temperature: float = 0.07,
        jigsaw_weight: float = 0.5,
        num_negatives: int = 32_000,
        momentum: float = 0.5,
    ):
        super().__init__(encoder)
        self.projector = nn.Linear(encoder.dim, dim)
        self.patch_projector = nn.Linear(encoder.dim, dim)
        self.jigsaw_projector = nn.Linear(NUM_PATCHES * dim, dim)
        self.bank = MemoryBank(num_images, dim, momentum=momentum)
        self.jigsaw_weight, self.num_negatives = jigsaw_weight, num_negatives
        self.loss = partial(info_nce_loss, temperature=temperature)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        x, *patches = views
        h = self.encoder(x)
        z = self.projector(h)
        h_patches = torch.stack(together(self.encoder, patches), dim=1)  # [N, 9, F]
        z_jigsaw = self.jigsaw_projector(self.patch_projector(h_patches).flatten(1))  # [N, K]
        entries = self.bank.entries[batch.index]
        generator = torch.Generator().manual_seed(derive(batch.seed, "negatives"))
        negatives = self.bank.negatives(batch.index, self.num_negatives, generator=generator)
        by_jigsaw, by_image = (
            self.loss(z_jigsaw, entries, negatives),
            self.loss(z, entries, negatives),
        )
        terms = {
            name: self.jigsaw_weight * by_jigsaw[name] + (1 - self.jigsaw_weight) * by_image[name]
            for name in by_image
        }
        self.z, self.index = z.detach(), batch.index
        return Output(Terms(**terms), h, z, z_jigsaw)

    def policy(self, recipe: Policy) -> Policy:
        return jigsaw(recipe)

    def after_step(self) -> None:
        self.bank.update(self.index, self.z)
