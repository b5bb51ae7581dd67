"""Judge an encoder without labels, by random views of held-out images and by its features.

found = label_free(encoder, store, views, whole=h)
found.retrieval        # how often a view of an image finds another view of it
found.rank_me          # and lidar, alpha_req, learnability

All are of features, as encoders are used. The authors of RankMe and LiDAR also use embeddings.

n images, q views of each, F coordinates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smi.data.store import Store
from smi.device import Precision, autocast, device_of
from smi.evaluation.accuracy import check_finite
from smi.evaluation.features import evaluation_mode
from smi.evaluation.knn import nearest
from smi.seeds import derive
from smi.views import Views

MAX_IMAGES = 1000
NUM_VIEWS = 4
IMAGES_PER_BATCH = 128
LIDAR_DAMPING = 1e-4  # of the mean variance within images, added to each
ALPHA_RANKS = (6, 50)  # of the eigenvalues on the line; the first ones are seldom on it
NUM_MEANS_STEPS = 20


@dataclass(frozen=True)
class LabelFree:
    """Hold the criteria of one encoder.

    retrieval: the share of views whose nearest neighbour, by cosine similarity, among one view of
        each image is the view of their own image: between 1 / n, by chance, and 1.
    rank_me: RankMe of whole images, between 1 and min(n, F).
    lidar: LiDAR of views, between 1 and min(n, F); None if there are fewer than F views to spare.
    alpha_req: α-ReQ of whole images, said to be best at 1; None if the rank is too low to say.
    learnability: cluster learnability of whole images, between 0 and 1. A collapsed encoder has 1.
    """

    retrieval: float
    rank_me: float
    lidar: float | None
    alpha_req: float | None
    learnability: float
    num_images: int


def sample(store: Store) -> Tensor:
    """Return the indices of at most MAX_IMAGES images, spread evenly: neighbours may be alike."""
    num_images = min(len(store), MAX_IMAGES)
    return torch.arange(num_images) * len(store) // max(1, num_images)


def label_free(
    encoder: nn.Module,
    store: Store,
    views: Views,
    whole: Tensor,
    *,
    seed: int = 0,
    precision: Precision = "float32",
) -> LabelFree:
    """Measure all criteria on the images of a store.

    views: a policy whose first view is made several times. whole: features of whole images [n, F].
    The same seed gives the same views, so that encoders are compared on equal terms. More images
    make retrieval harder.
    """
    of_views = _view_features(encoder, store, views, seed, precision)  # [n, q, F]
    h = whole.cpu().double()
    for features in (of_views, h):
        check_finite(features)
    return LabelFree(
        retrieval(of_views),
        rank_me(h),
        lidar(of_views),
        alpha_req(h),
        cluster_learnability(h, seed=seed),
        len(h),
    )


def retrieval(h: Tensor) -> float:
    """Return how often the second view of an image is nearest to its first: h [n, q, F]."""
    _, index = nearest(h[:, 1].float(), h[:, 0].float(), k=1)
    return (index[:, 0] == torch.arange(len(h))).double().mean().item()


def rank_me(h: Tensor) -> float:
    """Return RankMe (arXiv:2210.02885): exp of the entropy of the normalised singular values.

    h: features [n, F], not centred. The result is between 1 and min(n, F), and 1 for zeros.
    """
    return _exp_entropy(_squared_singular_values(h).sqrt())


def lidar(h: Tensor) -> float | None:
    """Return LiDAR (arXiv:2312.04000): the rank of the differences between images.

    It is exp of the entropy of the eigenvalues of W^-½ B W^-½, where W is the covariance within the
    views of an image and B that of images. h: features [n, q, F]. There are two changes. The
    constant added to W is a share of its mean variance, so that the scale of features does not
    matter. The covariance of the means of q views is B + W / q; with the authors' 50 views the
    second part is small, with a few it would count as rank. So 1 / q is subtracted from
    eigenvalues, and those that noise alone may have (Wachter 1980) are 0.

    It is None if the views are too few for W: n (q - 1) <= F.
    """
    h = h.double()
    n, q, dim = h.shape
    if n * (q - 1) <= dim:
        return None
    means = h.mean(1)  # [n, F]
    inside = (h - means[:, None]).flatten(0, 1)
    within = inside.T @ inside / (n * (q - 1))
    variance = within.diagonal().mean()
    if not variance > 0:
        return 1.0
    within.diagonal().add_(LIDAR_DAMPING * variance)
    factor = torch.linalg.cholesky(within)
    # The eigenvalues are the squared singular values of the whitened, centred means.
    whitened = torch.linalg.solve_triangular(factor, (means - means.mean(0)).T, upper=False)
    values = _squared_singular_values(whitened) / max(1, n - 1)
    a, b = dim / n, dim / (n * (q - 1))
    noise = ((1 + (a + b - a * b) ** 0.5) / (1 - b)) ** 2 / q
    return _exp_entropy(torch.where(values > noise, values - 1 / q, 0))


def alpha_req(h: Tensor) -> float | None:
    """Return α-ReQ (Agrawal et al. 2022): how fast the eigenvalues of the covariance decay.

    It is minus the slope of log eigenvalue against log rank, by least squares weighted by
    1 / rank. h: features [n, F]. It is None if fewer than two of these eigenvalues are positive.
    """
    h = h.double()
    first, last = ALPHA_RANKS
    values = _squared_singular_values(h - h.mean(0))[first - 1 : last]
    values = values[values > 0]
    if len(values) < 2:
        return None
    ranks = torch.arange(first, first + len(values), dtype=torch.double)
    x, y, weight = ranks.log(), values.log(), 1 / ranks
    x = x - (weight * x).sum() / weight.sum()
    return float(-(weight * x * y).sum() / (weight * x * x).sum())


def cluster_learnability(h: Tensor, *, seed: int = 0) -> float:
    """Return cluster learnability (arXiv:2206.01251): how well neighbours predict clusters.

    Features are divided by their norm and clustered by k-means into about √n clusters. In random
    order, the nearest row before a row predicts its cluster; the share of correct ones is returned.
    h: features [n, F].
    """
    generator = torch.Generator().manual_seed(derive(seed, "learnability"))
    h = nn.functional.normalize(h.double(), dim=1)[torch.randperm(len(h), generator=generator)]
    clusters = _k_means(h, max(1, round(len(h) ** 0.5)), generator)
    later = torch.ones(len(h), len(h), dtype=torch.bool).triu()
    before = (h @ h.T).masked_fill_(later, -torch.inf)[1:].argmax(1)
    return (clusters[before] == clusters[1:]).sum().item() / max(1, len(before))


def _k_means(h: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Return the cluster of each row, int64 [n], by Lloyd's algorithm from k-means++ centres."""
    centres = h[:1]
    for _ in range(num_clusters - 1):
        squares = torch.cdist(h, centres).square().amin(1)
        squares += torch.finfo(squares.dtype).tiny  # all rows may be equal
        centres = torch.cat([centres, h[squares.multinomial(1, generator=generator)]])
    for _ in range(NUM_MEANS_STEPS):
        clusters = torch.cdist(h, centres).argmin(1)
        counts = clusters.bincount(minlength=num_clusters)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, clusters, h)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return torch.cdist(h, centres).argmin(1)


def _squared_singular_values(h: Tensor) -> Tensor:
    """Return them in descending order, in float64; those of rounding errors are 0."""
    h = h.double()
    gram = h @ h.T if len(h) < h.shape[1] else h.T @ h
    values = torch.linalg.eigvalsh(gram).flip(0)
    noise = len(values) * torch.finfo(values.dtype).eps * values[:1]
    return torch.where(values > noise, values, 0)


def _exp_entropy(values: Tensor) -> float:
    """Return exp of the entropy of the shares of values in their sum."""
    shares = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp())


@torch.no_grad()
def _view_features(
    encoder: nn.Module, store: Store, views: Views, seed: int, precision: Precision
) -> Tensor:
    """Return the features of random views of every image: [n, q, F] on the CPU."""
    device = device_of(encoder)
    batches = []
    with evaluation_mode(encoder):
        for start in range(0, len(store), IMAGES_PER_BATCH):
            images, _ = store.start(
                torch.arange(start, min(start + IMAGES_PER_BATCH, len(store)))
            )()
            generator = torch.Generator().manual_seed(derive(seed, "retrieval", start))
            parts = []
            for _ in range(NUM_VIEWS):
                x = views.apply(images, views.draw(images, generator)[0]).to(device)
                with autocast(device, precision):
                    parts.append(encoder(x).float().cpu())
            batches.append(torch.stack(parts, 1))
    return torch.cat(batches)
