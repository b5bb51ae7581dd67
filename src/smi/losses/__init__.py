"""Compute the objectives: pure functions of embeddings, and modules that return a scalar.

A function returns its named terms; a module returns the scalar to minimise.
"""

from smi.losses.barlow_twins import BarlowTwinsLoss, barlow_twins_loss
from smi.losses.dino import DINOLoss, dino_loss
from smi.losses.info_nce import InfoNCELoss, info_nce_loss
from smi.losses.negative_cosine import NegativeCosineLoss, negative_cosine_loss
from smi.losses.nt_xent import NTXentLoss, nt_xent_loss
from smi.losses.smi import SMILoss, smi_loss, smi_loss_plain
from smi.losses.swav import SwAVLoss, sinkhorn, swav_loss
from smi.losses.terms import Terms
from smi.losses.vicreg import VICRegLoss, vicreg_loss

__all__ = [
    "BarlowTwinsLoss",
    "DINOLoss",
    "InfoNCELoss",
    "NTXentLoss",
    "NegativeCosineLoss",
    "SMILoss",
    "SwAVLoss",
    "Terms",
    "VICRegLoss",
    "barlow_twins_loss",
    "dino_loss",
    "info_nce_loss",
    "negative_cosine_loss",
    "nt_xent_loss",
    "sinkhorn",
    "smi_loss",
    "smi_loss_plain",
    "swav_loss",
    "vicreg_loss",
]
