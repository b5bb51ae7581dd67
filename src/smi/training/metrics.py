"""What is logged of features h [N, F] and of a pair of projections z [N, K]: numbers, on their device."""

import torch
from torch import Tensor

from smi.losses.embeddings import unit_rows
from smi.losses.smi import correlation, dependency


@torch.no_grad()
def statistics(h: Tensor, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
    """The names of metrics.jsonl."""
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
    """The std over the samples of each coordinate, averaged over coordinates; 0 for one sample. Of rows of length 1, 1/sqrt(F) at most."""
    return h.std(dim=0, correction=min(1, len(h) - 1)).mean()


def effective_rank(h: Tensor) -> Tensor:
    """How many directions features use: the exponential of the entropy of their covariance's spectrum. 0 where they do not vary."""
    h = h - h.mean(dim=0)
    h = h / h.abs().amax().clamp_min(1e-30)
    gram = h @ h.T if len(h) < h.shape[1] else h.T @ h  # the smaller of two with the same spectrum
    spectrum = torch.linalg.eigvalsh(gram.nan_to_num().cpu()).clamp_min(
        0
    )  # on the CPU, for MPS cannot; without NaN, for neither can
    share = spectrum / spectrum.sum().clamp_min(1e-30)
    entropy = -torch.special.xlogy(share, share).sum()
    return torch.where(spectrum.sum() > 0, entropy.exp(), 0).to(h.device)
