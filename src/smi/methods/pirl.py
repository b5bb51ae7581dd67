"""Train with PIRL: find an image's entry in a memory bank by the image and by its jigsaw."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.losses import Terms, info_nce_loss
from smi.losses.info_nce import TEMPERATURE
from smi.losses.loss_range import cross_entropy_range
from smi.methods.base import LossSetup, Method, Output, together
from smi.methods.description import LossRange
from smi.nn import Encoder, MemoryBank
from smi.nn.memory_bank import BANK_MOMENTUM
from smi.seeds import derive
from smi.views import Policy, jigsaw

NUM_PATCHES = 9


class PIRL(Method):
    """Find an image's entry in a memory bank by the image and by nine shuffled patches of it.

    num_images: in the training set; each has an entry in the bank.
    dim: of the embeddings.
    image_blur: blur the view of the image as the recipe does; the authors do not.
    jigsaw_weight: the share of the patches in the loss, the paper's lambda.
    num_negatives: entries of other images, drawn for each batch.
    temperature: similarities are divided by it; lower makes the softmax sharper.
    momentum: of the entries.
    """

    display_name = "PIRL"
    paper = "Misra and van der Maaten 2020, arXiv:1912.01991"
    stored = "memory bank"
    gathers = True
    collapse_remedies = "Use more negatives, or lower the learning rate."

    z: Tensor  # of the current step, [N, K]
    index: Tensor

    def __init__(
        self,
        encoder: Encoder,
        *,
        num_images: int = 50_000,
        dim: int = 128,
        image_blur: bool = False,
        temperature: float = TEMPERATURE,
        jigsaw_weight: float = 0.5,
        num_negatives: int = 32_000,
        momentum: float = BANK_MOMENTUM,
    ):
        super().__init__(encoder)
        self.projector = nn.Linear(encoder.dim, dim)
        self.patch_projector = nn.Linear(encoder.dim, dim)
        self.jigsaw_projector = nn.Linear(NUM_PATCHES * dim, dim)
        self.bank = MemoryBank(num_images, dim, momentum=momentum)
        self.image_blur = image_blur
        self.jigsaw_weight = jigsaw_weight
        self.num_negatives = num_negatives
        self.loss = partial(info_nce_loss, temperature=temperature)

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features of the image, and projections of the image and of its jigsaw."""
        x, *patches = views
        h = self.encoder(x)
        z = self.projector(h)
        h_patches = torch.stack(together(self.encoder, patches), dim=1)  # [N, 9, F]
        z_jigsaw = self.jigsaw_projector(self.patch_projector(h_patches).flatten(1))  # [N, K]
        return h, z, z_jigsaw

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return InfoNCE of image and jigsaw against entries of the bank."""
        h, z, z_jigsaw = embeddings
        negatives = self._negatives(batch)
        entries = self.bank.entries[batch.index]
        by_jigsaw = self.loss(z_jigsaw, entries, negatives)
        by_image = self.loss(z, entries, negatives)
        terms = {
            name: self.jigsaw_weight * by_jigsaw[name] + (1 - self.jigsaw_weight) * by_image[name]
            for name in by_image
        }
        self.z = z.detach()
        self.index = batch.index
        return Output(Terms(**terms), h, z, z_jigsaw)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _negatives(self, batch: Batch) -> Tensor:
        """Draw entries of other images; outside compiled code, which would depend on the seed."""
        generator = torch.Generator().manual_seed(derive(batch.seed, "negatives"))
        return self.bank.negatives(batch.index, self.num_negatives, generator=generator)

    def policy(self, recipe: Policy) -> Policy:
        """Return one view of the image and nine of its patches."""
        policy = jigsaw(recipe)
        image, patches = policy.views
        if not self.image_blur:
            image = replace(image, blur_p=0.0)
        return replace(policy, views=(image, patches))

    def after_step(self) -> None:
        """Update the entries of the batch in the bank."""
        self.bank.update(self.index, self.z)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the range of a cross-entropy over the entry and the negatives."""
        num_negatives = int(cls._setting(setup, "num_negatives"))
        if num_negatives < 1:
            return None
        temperature = cls._setting(setup, "temperature")
        return cross_entropy_range(num_negatives + 1, temperature, setup.embedding_dim)
