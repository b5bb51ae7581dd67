"""Give each loss as a function of two embeddings [N, K], all else fixed."""

import torch

from smi import losses

TWO_VIEWS = {
    "smi": losses.smi_loss,
    "smi_plain": losses.smi_loss_plain,
    "barlow_twins": losses.barlow_twins_loss,
    "vicreg": losses.vicreg_loss,
    "nt_xent": losses.nt_xent_loss,
    "info_nce": lambda z1, z2: losses.info_nce_loss(
        z1, z2, torch.ones(3, z1.shape[1], dtype=z1.dtype).cumsum(0).cumsum(1).sin()
    ),
    "negative_cosine": losses.negative_cosine_loss,
    "swav": lambda z1, z2: losses.swav_loss([z1, z2]),
    "dino": lambda z1, z2: losses.dino_loss(
        [z1], [z1, z2], torch.zeros(z1.shape[1], dtype=z1.dtype)
    ),
}
