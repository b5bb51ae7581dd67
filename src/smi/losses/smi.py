"""Compute the SMI loss (arXiv:2606.08332): dependencies between samples, not features.

N samples on this device, K embedding coordinates, V views. Row i of view a and row j of view b
depend on each other by

    M(rho_ij) = -1/2 log(1 - rho_ij^2 + eps),

with rho_ij their Pearson correlation over the K coordinates. With lambda the redundancy weight, the
loss is

    sum over pairs of views a < b   of  sum_i    logcosh(M(rho_ii) - target)       (alignment)
    + lambda * sum over a <= b      of  sum_i!=j logcosh(M(rho_ij) + shift)        (redundancy)

`smi_loss_plain` follows these formulas. `smi_loss` gives the same value with an analytic gradient,
tile by tile.
"""

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from smi.losses.numerics import (
    MIN_SCALE,
    float32_island,
    is_composed,
    off_diagonal,
    peak,
    product,
    symmetric_product,
)
from smi.losses.terms import Terms

Reduction = Literal["sum", "mean"]
Weight = float | Literal["auto"]

REDUNDANCY_WEIGHT = 0.01  # the paper's lambda
AUTO_REDUNDANCY = 7.0  # "auto": lambda times the other samples of the batch
TARGET = 1.0
SHIFT = 0.06
EPS = 1e-6

# Rows and columns of a tile, where the whole matrix is too large: enough for products at full
# speed, few enough for the cache. A GPU has no such cache, and waits for every kernel to start.
TILE_SIZE = 1024
GPU_TILE_SIZE = 4096  # 67 MB for each matrix of a tile


class SMILoss(nn.Module):
    """Wrap `smi_loss`: `SMILoss()(z1, z2)` is the scalar to minimise; more views work too.

    It is a sum over the N samples, as published, not a mean: random embeddings of 256 samples give
    about 114 where NT-Xent, a mean, gives about 6. `reduction="mean"` divides it by N, and its
    gradient too. Adam hardly notices that factor; SGD needs N times the learning rate.
    """

    def __init__(
        self,
        redundancy_weight: Weight = REDUNDANCY_WEIGHT,
        target: float = TARGET,
        shift: float = SHIFT,
        eps: float = EPS,
        reduction: Reduction = "sum",
    ):
        super().__init__()
        self.options = _Options(redundancy_weight, target, shift, eps, reduction)
        self.options.check()

    def forward(self, *views: Tensor) -> Tensor:
        """Return the scalar to minimise."""
        return _fused(views, self.options).total

    def extra_repr(self) -> str:
        """Return the settings, for printing the module."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options._asdict().items())


def smi_loss(
    z1: Tensor,
    z2: Tensor | None = None,
    *more: Tensor,
    redundancy_weight: Weight = REDUNDANCY_WEIGHT,
    target: float = TARGET,
    shift: float = SHIFT,
    eps: float = EPS,
    reduction: Reduction = "sum",
) -> Terms:
    """Make a sample's views depend on each other and different samples independent.

        terms = smi_loss(z1, z2)        # z1, z2: [N, K]; with three views smi_loss(z1, z2, z3)
        terms.total.backward()          # its parts: terms.alignment, terms.redundancy

    redundancy_weight: the paper's lambda, the weight of dependencies between different samples.
        "auto" is 7 / (N - 1): the number of redundant pairs for each aligned one grows with N - 1,
        so a number means something else in a batch of another size.
    target, shift: the zero of logcosh, for a sample's own views and for different samples.
    eps: keeps the dependency finite at a correlation of 1.
    reduction: "sum" over the N samples as published, or "mean", which divides value and gradient
        by N. Losses of other methods are means, so the sum looks large beside them: 256 random
        samples give about 114, and NT-Xent gives about 6.

    W devices: the mean of W local losses. No collective is needed beyond the averaging of gradients
    by DDP.

    Memory beyond inputs and gradients does not grow with N^2. The loss is differentiable twice
    (through `smi_loss_plain`). Inside torch.compile, torch.export, torch.func (grad, vmap, jvp) and
    forward-mode differentiation it is `smi_loss_plain`, whose memory does grow.

    The dependency is even in the correlation: an anti-correlated pair of views counts as aligned. A
    row without variance (a spread within the rounding of its largest coordinate, or of 1e-30) has
    correlation 0 with every row and no gradient. N = 1 has no redundancy.

    The loss is computed in float32, or in float64 if an input is, also under autocast. The gradient
    has the type of the input: in float16 it may overflow to infinity, as gradient scalers expect.
    Where |rho| is within 1e-6 of 1, eps and the rounding of float32 are of the same size, and
    dependencies are accurate to a tenth. One view, different shapes or devices, integers and
    settings out of range raise a ValueError. On a GPU, coordinates from 1e37 in float32 may give
    NaN, because their sum overflows.
    """
    return _fused(_views(z1, z2, more), _Options(redundancy_weight, target, shift, eps, reduction))


def smi_loss_plain(
    z1: Tensor,
    z2: Tensor | None = None,
    *more: Tensor,
    redundancy_weight: Weight = REDUNDANCY_WEIGHT,
    target: float = TARGET,
    shift: float = SHIFT,
    eps: float = EPS,
    reduction: Reduction = "sum",
) -> Terms:
    """Compute `smi_loss` by its formulas and autograd, with every N x N matrix in memory."""
    return _plain(_views(z1, z2, more), _Options(redundancy_weight, target, shift, eps, reduction))


def weight_in_batch(redundancy_weight: Weight, num_samples: int) -> float:
    """Return lambda for a batch of N samples on a device."""
    if redundancy_weight == "auto":
        return AUTO_REDUNDANCY / max(1, num_samples - 1)
    return float(redundancy_weight)


class _Options(NamedTuple):
    """Hold the settings of the loss."""

    redundancy_weight: Weight
    target: float
    shift: float
    eps: float
    reduction: Reduction

    def check(self) -> None:
        """Raise a ValueError for a setting out of range."""
        if self.reduction not in ("sum", "mean"):
            raise ValueError(f"reduction must be 'sum' or 'mean'; got {self.reduction!r}.")
        if not 1e-12 <= self.eps <= 1:
            raise ValueError(f"eps must be between 1e-12 and 1; got {self.eps}.")
        if not (abs(self.target) <= 20 and abs(self.shift) <= 20):
            raise ValueError(
                "target and shift must be between -20 and 20 nats; "
                f"got {self.target} and {self.shift}."
            )
        weight = self.redundancy_weight
        if weight != "auto" and (isinstance(weight, str) or not 0 <= weight < math.inf):
            raise ValueError(
                f"redundancy_weight must be 'auto' or finite, 0 or more; got {weight!r}."
            )

    @property
    def weight(self) -> float:
        """Return lambda, after `in_batch`."""
        assert not isinstance(self.redundancy_weight, str)
        return self.redundancy_weight

    def in_batch(self, num_samples: int) -> "_Options":
        """Return the settings with a number for the redundancy weight."""
        return self._replace(redundancy_weight=weight_in_batch(self.redundancy_weight, num_samples))

    def per(self, num_samples: int) -> float:
        """Return the factor of the sums over samples."""
        return 1 / num_samples if self.reduction == "mean" else 1.0


def _views(z1: Tensor, z2: Tensor | None, more: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (z1,) if z2 is None else (z1, z2, *more)


def _check(views: tuple[Tensor, ...], options: _Options) -> None:
    options.check()
    if len(views) < 2:
        raise ValueError(f"SMI needs two views or more of each sample; got {len(views)}.")


# ------------------------------------------------------------------------------ the plain path


def _plain(views: tuple[Tensor, ...], options: _Options) -> Terms:
    _check(views, options)
    with float32_island(*views) as zs:
        num_samples = zs[0].shape[0]  # len() would fix it when torch.export reads this
        options = options.in_batch(num_samples)
        per = options.per(num_samples)
        us = [_standardize(z) for z in zs]
        alignment = redundancy = zs[0].new_zeros(())
        for a, b in combinations_with_replacement(range(len(us)), 2):
            m = dependency(product(us[a], us[b].T), options.eps)  # [N, N]
            if a != b:
                alignment = alignment + logcosh(m.diagonal() - options.target).sum()
            redundancy = redundancy + logcosh(off_diagonal(m) + options.shift).sum()
        return Terms(alignment=per * alignment, redundancy=per * options.weight * redundancy)


def dependency(rho: Tensor, eps: float = EPS) -> Tensor:
    """Return M(rho), the mutual information in nats of two Gaussians with correlation rho.

    eps keeps it finite at rho = 1.
    """
    # Rounding may leave |rho| just above 1. The slope there is the slope at 1.
    rho = rho - (rho - rho.clamp(-1, 1)).detach()
    return -0.5 * torch.log(1 - rho.square() + eps)


def correlation(z1: Tensor, z2: Tensor) -> Tensor:
    """Return the correlation of each sample's pair of views over the coordinates: [N]."""
    return (_standardize(z1) * _standardize(z2)).sum(dim=1)


def logcosh(x: Tensor) -> Tensor:
    """Return log(cosh(x)), element by element."""
    return torch.log1p(2 * torch.sinh(x / 2).square())  # no cancellation near 0


def _standardize(z: Tensor) -> Tensor:
    """Centre rows and scale them to length 1, so that products are correlations.

    Rows without variance become zeros.
    """
    # The divisor is a constant: the result is scale-free, and squares stay in range.
    z = z / peak(z, 1).clamp_min(MIN_SCALE)
    z = z - z.mean(dim=1, keepdim=True)
    # Negated, so that a row with NaN counts as one with variance.
    varies = ~(torch.linalg.vector_norm(z.detach(), dim=1, keepdim=True) <= _flat(z))
    z = torch.where(varies, z, 0)
    return z / torch.where(varies, torch.linalg.vector_norm(z, dim=1, keepdim=True), 1)


def _flat(z: Tensor) -> float:
    """Return the length that rounding alone may leave of a centred row with peak 1."""
    return 16 * torch.finfo(z.dtype).eps * math.sqrt(z.shape[1])


# ------------------------------------------------------------------------------ the fused path


def _fused(views: tuple[Tensor, ...], options: _Options) -> Terms:
    if is_composed():
        return _plain(views, options)
    _check(views, options)
    with float32_island(*views) as zs:
        options = options.in_batch(len(zs[0]))
        per = options.per(len(zs[0]))
        needs_grad = torch.is_grad_enabled() and any(z.requires_grad for z in zs)
        total, alignment, redundancy = _SMI.apply(needs_grad, per, options, *zs)
        return Terms(total, alignment=alignment, redundancy=redundancy)


class _SMI(torch.autograd.Function):
    """Compute the loss and the gradient of its total in one sweep over the dependencies.

    Only the last step of the gradient is left to the backward pass. Everything else (the gradient
    of one term alone, a second derivative) takes the plain path.
    """

    @staticmethod
    def forward(
        ctx: Any, needs_grad: bool, per: float, options: _Options, *zs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*zs)
        ctx.per, ctx.options = per, options
        alignment, redundancy, ctx.gradient = _sweep(zs, needs_grad, options)
        alignment, redundancy = per * alignment, per * redundancy
        return alignment + redundancy, alignment, redundancy

    @staticmethod
    def backward(ctx: Any, *gs: Tensor | None) -> tuple[Tensor | None, ...]:
        zs, needs = ctx.saved_tensors, ctx.needs_input_grad[3:]
        total, alignment, redundancy = gs
        if total is alignment is redundancy is None:
            return (None,) * (3 + len(zs))
        if (
            total is None
            or alignment is not None
            or redundancy is not None
            or torch.is_grad_enabled()
        ):
            return (None, None, None, *_plain_gradient(zs, gs, needs, ctx.options))
        # It is finished in place, so it serves one pass; a second pass sweeps again.
        gradient, ctx.gradient = ctx.gradient, None
        with torch.autocast(zs[0].device.type, enabled=False):
            if gradient is None:
                gradient = _sweep(zs, True, ctx.options)[2]
            grads = gradient.finish(total * ctx.per).chunk(len(zs))
        return (
            None,
            None,
            None,
            *(grad if needed else None for grad, needed in zip(grads, needs, strict=True)),
        )


def _plain_gradient(
    zs: tuple[Tensor, ...],
    gs: tuple[Tensor | None, ...],
    needs: tuple[bool, ...],
    options: _Options,
) -> list[Tensor | None]:
    """Return the gradient of g0 * total + g1 * alignment + g2 * redundancy by autograd.

    It is itself differentiable if gradients are enabled.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: a view may depend on another, or be the same tensor. Its gradient must not be
        # passed on here, since the caller's graph does that.
        aliases = [
            z.view_as(z) if create_graph else z.detach().requires_grad_(needed)
            for z, needed in zip(zs, needs, strict=True)
        ]
        terms = _plain(tuple(aliases), options)
        values = (terms.total, terms.alignment, terms.redundancy)
        parts = [g * value for g, value in zip(gs, values, strict=True) if g is not None]
        wanted = [z for z, needed in zip(aliases, needs, strict=True) if needed]
        grads = iter(
            torch.autograd.grad(sum(parts[1:], parts[0]), wanted, create_graph=create_graph)
        )
    return [next(grads) if needed else None for needed in needs]


class _Gradient(NamedTuple):
    """Hold the gradient over the stacked views but for its last step.

    Rows are still to be multiplied by factors, after a product with the slopes if there are any.
    """

    rows: Tensor  # [V N, K]: the gradient, or the rows to multiply by the slopes
    factors: Tensor  # [V N, 1]
    slopes: Tensor | None  # [V N, V N]

    def finish(self, factor: Tensor) -> Tensor:
        """Return the gradient times `factor`, in the memory of `rows`."""
        if self.slopes is None:
            return self.rows.mul_(self.factors * factor)
        slopes = self.slopes.mul_(self.factors * factor)
        width = tile_size(slopes.device.type)
        for start in range(0, self.rows.shape[1], width):
            block = self.rows[:, start : start + width]
            block.copy_(slopes @ block)
        return self.rows


def _sweep(
    zs: tuple[Tensor, ...], needs_grad: bool, options: _Options
) -> tuple[Tensor, Tensor, _Gradient | None]:
    """Return the alignment, the weighted redundancy and the gradient of their sum.

    Entry (i, j) of slope s adds s u_j to the gradient of row i of the standardised views u, and
    s u_i to that of row j. Back in z, standardising removes the part along u_i: sum_j s_ij rho_ij,
    one number per row.
    """
    u, scale, flat = _center(zs)
    sweep = _sweep_whole if is_whole(len(u), u.shape[1], u.device.type) else _sweep_tiles
    return sweep(u, scale, flat, len(zs), needs_grad, options)


def tile_size(device_type: str) -> int:
    """Return the number of rows and columns of a tile on a device."""
    return TILE_SIZE if device_type == "cpu" else GPU_TILE_SIZE


def is_whole(num_rows: int, dim: int, device_type: str) -> bool:
    """Return whether the matrix between all rows is computed at once.

    It must be small compared with the rows. A GPU may also spend the memory of one tile on it.
    """
    return 2 * num_rows <= dim or (device_type != "cpu" and num_rows <= tile_size(device_type))


def _sweep_whole(
    u: Tensor, scale: Tensor, flat: Tensor, num_views: int, needs_grad: bool, options: _Options
) -> tuple[Tensor, Tensor, _Gradient | None]:
    """Compute the loss with one whole matrix, where it is small compared with u.

    The matrix holds the correlations, then the slopes; one product is left for the gradient.
    Entries are scaled instead of rows, which are longer. Between views, a pair of samples occurs
    twice: at (i, j) and at (j, i).
    """
    num_samples = len(u) // num_views
    blocks = (num_views, num_samples, num_views, num_samples)  # view a, sample i, view b, sample j
    same_view = torch.eye(num_views, dtype=u.dtype, device=u.device)
    rho = symmetric_product(u)
    length = rho.diagonal()[:, None].sqrt()
    inverse = torch.where(length > flat, length.reciprocal(), 0)  # [V N, 1]
    rho = rho.mul_(inverse).mul_(inverse.T).clamp_(-1, 1)
    value, slope = _logcosh_of_dependency(rho, options.shift, options.eps)
    pairs = rho.view(blocks).diagonal(dim1=1, dim2=3)  # [V, V, N]: each sample with itself
    aligned, pull = _logcosh_of_dependency(pairs, -options.target, options.eps)
    value.view(blocks).diagonal(dim1=1, dim2=3).zero_()
    alignment = (aligned.sum(dim=2) * (1 - same_view)).sum() / 2
    redundancy = options.weight * (value.view(blocks).sum(dim=(1, 3)) * (1 + same_view)).sum() / 2
    if not needs_grad:
        return alignment, redundancy, None
    slope.view(blocks).mul_(options.weight * (1 + same_view)[:, None, :, None])
    slope.view(blocks).diagonal(dim1=1, dim2=3).copy_(pull * (1 - same_view)[:, :, None])
    slope.diagonal().sub_(rho.mul_(slope).sum(dim=1))
    return alignment, redundancy, _Gradient(u, inverse / scale, slope.mul_(inverse.T))


def _sweep_tiles(
    u: Tensor, scale: Tensor, flat: Tensor, num_views: int, needs_grad: bool, options: _Options
) -> tuple[Tensor, Tensor, _Gradient | None]:
    """Compute the loss tile by tile; each tile adds to the gradient and is discarded."""
    length = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    inverse = torch.where(length > flat, length.reciprocal(), 0)  # [V N, 1]
    u *= inverse
    grad, along = torch.zeros_like(u) if needs_grad else None, torch.zeros_like(inverse)
    alignment = redundancy = u.new_zeros(())
    for rows, columns, same_view, on_diagonal in _tiles(
        num_views, len(u) // num_views, tile_size(u.device.type)
    ):
        rho = (u[rows] @ u[columns].T).clamp_(-1, 1)
        value, slope = _logcosh_of_dependency(rho, options.shift, options.eps)
        slope *= options.weight * (2 if same_view else 1)
        if on_diagonal:
            value.fill_diagonal_(0)
            slope.fill_diagonal_(0)
        if on_diagonal and not same_view:
            aligned, pull = _logcosh_of_dependency(rho.diagonal(), -options.target, options.eps)
            alignment = alignment + aligned.sum()
            slope.diagonal().copy_(pull)
        # Both triangles of a same-view matrix count, but only one is visited, except in tiles on
        # the diagonal.
        redundancy = redundancy + value.sum() * (2 if same_view and not on_diagonal else 1)
        if grad is not None:
            inner = rho.mul_(slope)
            grad[rows].addmm_(slope, u[columns])
            along[rows] += inner.sum(dim=1, keepdim=True)
            if rows != columns:
                grad[columns].addmm_(slope.T, u[rows])
                along[columns] += inner.sum(dim=0)[:, None]
    gradient = (
        None
        if grad is None
        else _Gradient(grad.addcmul_(along, u, value=-1), inverse / scale, None)
    )
    return alignment, options.weight * redundancy, gradient


def _tiles(
    num_views: int, num_samples: int, size: int
) -> Iterator[tuple[slice, slice, bool, bool]]:
    """Yield each tile: its rows, its columns, whether of one view, whether on the diagonal.

    These are all tiles of the matrices between views a < b, and those on or above the diagonal
    where a = b.
    """
    starts = range(0, num_samples, size)

    def rows_of(view: int, start: int) -> slice:
        first = view * num_samples
        return slice(first + start, first + min(start + size, num_samples))

    for a, b in combinations_with_replacement(range(num_views), 2):
        for i in starts:
            for j in starts[starts.index(i) if a == b else 0 :]:
                yield rows_of(a, i), rows_of(b, j), a == b, i == j


def _logcosh_of_dependency(rho: Tensor, shift: float, eps: float) -> tuple[Tensor, Tensor]:
    """Return logcosh(M(rho) + shift) and its derivative with respect to rho.

    With q = 1 - rho^2 + eps and y = exp(-(M + shift)) = sqrt(q) exp(-shift):
    cosh - 1 = (1 - y)^2 / 2y, tanh = (1 - y^2) / (1 + y^2), and M' = rho / q. So one logarithm and
    one square root are enough.
    """
    q = torch.addcmul(rho.new_ones(()), rho, rho, value=-1).add_(eps)
    y = q.sqrt().mul_(math.exp(-shift))
    value = (1 - y).square_().div_(y).mul_(0.5).log1p_()
    y.square_()
    slope = (1 - y).mul_(rho).div_(q.mul_(y.add_(1)))
    return value, slope


def _center(zs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the stacked views with centred and scaled rows, the scales, and the flat lengths.

    A row up to its flat length has no variance. The scale keeps squares in range. It is not the
    largest magnitude of a row, which takes two more passes, but the distance of its maximum from
    its mean. After centring that is at least 1/K of the largest magnitude, which is enough.
    """
    num_samples, dim = zs[0].shape
    u = zs[0].new_empty(len(zs) * num_samples, dim)
    mean, top = _mean_and_top(zs)
    shrink: Tensor | float = 1.0
    if u.device.type == "cpu" and not torch.isfinite(top - mean).all():
        # A sum overflowed. On a GPU, looking at it would stop all kernels.
        shrink = torch.where(torch.isfinite(top - mean), 1.0, 2.0**-64).to(u.dtype)
        zs = tuple(z * s for z, s in zip(zs, shrink.chunk(len(zs)), strict=True))
        mean, top = _mean_and_top(zs)
    rounding = torch.finfo(u.dtype).eps * torch.maximum(mean.abs(), top.abs()).clamp_min_(MIN_SCALE)
    scale = torch.maximum(top - mean, rounding)
    factor, offset = scale.reciprocal().chunk(len(zs)), (mean / scale).neg_().chunk(len(zs))
    for v, rows in enumerate(u.chunk(len(zs))):
        torch.addcmul(offset[v], zs[v], factor[v], out=rows)
    return u, scale / shrink, 16 * math.sqrt(dim) * rounding / scale


def _mean_and_top(zs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return the mean and the maximum of each row of the stacked views."""
    mean = torch.cat([z.mean(dim=1, keepdim=True) for z in zs])
    return mean, torch.cat([z.amax(dim=1, keepdim=True) for z in zs])
