"""What every loss does to its embeddings first: check them, and leave autocast for float32 or better. N samples, K coordinates."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def float32_island(*embeddings: Tensor, same_shape: bool = True) -> Iterator[list[Tensor]]:
    """Yield the embeddings in the widest of their types and float32, with autocast off."""
    check(*embeddings, same_shape=same_shape)
    dtype = torch.float32
    for z in embeddings:
        dtype = torch.promote_types(dtype, z.dtype)
    with torch.autocast(embeddings[0].device.type, enabled=False):
        yield [z.to(dtype) for z in embeddings]


def check(*embeddings: Tensor, same_shape: bool = True) -> None:
    """Raise one clear ValueError for what no loss is defined on."""
    first = embeddings[0]
    for z in embeddings:
        if z.ndim != 2:
            raise ValueError(
                f"Embeddings must be [samples, coordinates]; got shape {tuple(z.shape)}."
            )
        if (
            z.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
            or z.layout != torch.strided
        ):
            raise ValueError(
                f"Embeddings must be dense and floating point, of 16, 32 or 64 bits; got {z.dtype}, {z.layout}."
            )
        if z.numel() == 0:
            raise ValueError(f"Embeddings must not be empty; got shape {tuple(z.shape)}.")
        if z.device != first.device:
            raise ValueError(
                f"Embeddings must be on one device; got {first.device} and {z.device}."
            )
        if z.shape[1] != first.shape[1] or (same_shape and z.shape != first.shape):
            what = "shape" if same_shape else "number of coordinates"
            raise ValueError(
                f"Embeddings must have the same {what}; got {tuple(first.shape)} and {tuple(z.shape)}."
            )


def check_lists(*lists: Sequence[Tensor]) -> None:
    """A tensor is a sequence of its rows, and rows are no views."""
    for views in lists:
        if isinstance(views, Tensor):
            raise ValueError(
                f"A list of tensors is needed, one for each view; got one tensor of shape {tuple(views.shape)}."
            )


def check_positive(**knobs: float) -> None:
    for name, value in knobs.items():
        if not 1e-12 <= value < math.inf:
            raise ValueError(f"{name} must be positive, 1e-12 or more; got {value}.")


def check_share(**knobs: float) -> None:
    for name, value in knobs.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1; got {value}.")


def check_finite(**knobs: float) -> None:
    for name, value in knobs.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite; got {value}.")


SMALLEST = 1e-30  # below it a row's largest coordinate is nothing to scale by, so that gradients stay finite


def peak(z: Tensor, dim: int) -> Tensor:
    """The largest magnitude along `dim`, kept as a dimension and as a constant.

    Dividing by it first keeps squares in range, and leaves value and gradient of a scale-free result as they are.
    """
    z = z.detach()
    return torch.maximum(z.amax(dim, keepdim=True), -z.amin(dim, keepdim=True))


def unit_rows(z: Tensor) -> Tensor:
    """Rows scaled to length 1. A row of zeros stays zeros and has no gradient."""
    z = z / peak(z, 1).clamp_min(SMALLEST)
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z / torch.where(length > 0, length, 1)


def off_diagonal(square: Tensor) -> Tensor:
    """All entries of a square matrix but those of its diagonal, without a copy: [K - 1, K]."""
    size = len(square)
    return square.flatten()[:-1].view(size - 1, size + 1)[:, 1:] if size > 1 else square[:0]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        return product(grad, b.T) if ctx.needs_input_grad[0] else None, product(
            a.T, grad
        ) if ctx.needs_input_grad[1] else None


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, in full precision also when `backward` is called inside autocast, which reaches the products of a backward pass."""
    with torch.autocast(a.device.type, enabled=False):
        result: Tensor = _Product.apply(a, b)
    return result


def gram(u: Tensor) -> Tensor:
    """All inner products between the rows of `u`: [N, N]."""
    result: Tensor = _Gram.apply(u)
    return result


class _Gram(torch.autograd.Function):
    """u @ u.T by symmetry: less in the forward pass, and one product instead of two in the backward pass."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return symmetric_product(u)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return product(grad + grad.T, u)


def symmetric_product(u: Tensor) -> Tensor:
    """u @ u.T, most of its lower triangle copied from the upper one."""
    product = u.new_empty(len(u), len(u))
    _fill_symmetric(product, u)
    return product


def _fill_symmetric(product: Tensor, u: Tensor) -> None:
    if len(u) <= 128:  # smaller products gain nothing
        torch.mm(u, u.T, out=product)
        return
    half = (len(u) + 1) // 2
    torch.mm(u[:half], u[half:].T, out=product[:half, half:])
    product[half:, :half] = product[:half, half:].T
    _fill_symmetric(product[:half, :half], u[:half])
    _fill_symmetric(product[half:, half:], u[half:])
