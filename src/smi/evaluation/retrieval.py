"""Judge an encoder without labels: how often a view of an image finds the other view of it.

result = view_retrieval(encoder, store, views)
result.share     # between 1 / n, by chance, and 1
result.rank      # of the features of one view: a collapsed encoder may still tell images apart
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smi.data.store import Store
from smi.device import Precision, autocast, device_of
from smi.evaluation.knn import nearest
from smi.seeds import derive
from smi.views import Views

IMAGES_PER_BATCH = 128


@dataclass(frozen=True)
class ViewRetrieval:
    """Hold the share of views that find the other view of their image, and the features' rank."""

    share: float
    rank: float
    num_images: int


def view_retrieval(
    encoder: nn.Module,
    store: Store,
    views: Views,
    *,
    seed: int = 0,
    precision: Precision = "float32",
) -> ViewRetrieval:
    """Measure for how many images the second view is nearest to the first, by cosine similarity.

    views: a policy whose first view is made twice. The same seed gives the same views, so that
    encoders are compared on equal terms. More images make it harder.
    """
    first, second = _features(encoder, store, views, seed, precision)
    _, index = nearest(second, first, k=1)
    correct = index[:, 0] == torch.arange(len(index), device=index.device)
    return ViewRetrieval(correct.double().mean().item(), rank_me(first), len(first))


def rank_me(h: Tensor) -> float:
    """Return RankMe (arXiv:2210.02885): exp of the entropy of the normalised singular values.

    h: features [n, F], not centred. The result is between 1 and min(n, F), and 1 for zeros.
    """
    values = torch.linalg.svdvals(h.cpu().double())
    shares = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp())


@torch.no_grad()
def _features(
    encoder: nn.Module, store: Store, views: Views, seed: int, precision: Precision
) -> tuple[Tensor, Tensor]:
    """Return the features of two random views of every image, in evaluation mode."""
    device = device_of(encoder)
    was_training = encoder.training
    encoder.eval()
    pairs = []
    for start in range(0, len(store), IMAGES_PER_BATCH):
        images, _ = store.start(torch.arange(start, min(start + IMAGES_PER_BATCH, len(store))))()
        generator = torch.Generator().manual_seed(derive(seed, "retrieval", start))
        pair = []
        for _ in range(2):
            x = views.apply(images, views.draw(images, generator)[0]).to(device)
            with autocast(device, precision):
                pair.append(encoder(x).float())
        pairs.append(pair)
    encoder.train(was_training)
    first, second = (torch.cat(features) for features in zip(*pairs, strict=True))
    return first, second
