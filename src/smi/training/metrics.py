"""Measure features h [N, F] and a pair of projections z [N, K] on their device."""

import torch
from torch import Tensor

from smi.losses.numerics import unit_rows
from smi.losses.smi import correlation, dependency


@torch.no_grad()
def representation_metrics(h: Tensor, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
    """Return scalars under the names that metrics.jsonl uses."""
    h = h.float()
    rho = correlation(z1.float(), z2.float())
    return {
        "feature_std": feature_std(unit_rows(h)),
        "feature_std_raw": feature_std(h),
        "effective_rank": effective_rank(h),
        "dependency": dependency(rho).mean(),
        "anticorrelated": (rho < 0).float().mean(),
    }


def feature_std(h: Tensor) -> Tensor:
    """Average the std of each coordinate over the samples; 0 for a single sample.

    For rows of length 1 it is at most 1/sqrt(F).
    """
    return h.std(dim=0, correction=min(1, len(h) - 1)).mean()


def effective_rank(h: Tensor) -> Tensor:
    """Return the exponential of the entropy of the covariance spectrum; 0 for constant features.

    It estimates how many directions the features use.
    """
    h = h - h.mean(dim=0)
    h = h / h.abs().amax().clamp_min(1e-30)
    gram = h @ h.T if len(h) < h.shape[1] else h.T @ h  # the smaller of two with the same spectrum
    gram = gram.nan_to_num()  # eigvalsh fails on NaN
    if gram.device.type == "mps":
        gram = gram.cpu()  # eigvalsh does not run on MPS
    spectrum = torch.linalg.eigvalsh(gram).clamp_min(0)
    share = spectrum / spectrum.sum().clamp_min(1e-30)
    entropy = -torch.special.xlogy(share, share).sum()
    return torch.where(spectrum.sum() > 0, entropy.exp(), 0).to(h.device)
