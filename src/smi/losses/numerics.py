"""Prepare embeddings for a loss: check them, and leave autocast for float32 or better.

N samples, K coordinates.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


@contextmanager
def float32_island(*embeddings: Tensor, same_shape: bool = True) -> Iterator[list[Tensor]]:
    """Yield the embeddings in float32, or in float64 if one of them is, with autocast off."""
    check_embeddings(*embeddings, same_shape=same_shape)
    dtype = torch.float32
    for z in embeddings:
        dtype = torch.promote_types(dtype, z.dtype)
    with torch.autocast(embeddings[0].device.type, enabled=False):
        yield [z.to(dtype) for z in embeddings]


def check_embeddings(*embeddings: Tensor, same_shape: bool = True) -> None:
    """Raise a ValueError for embeddings on which no loss is defined."""
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
                "Embeddings must be dense and floating point, of 16, 32 or 64 bits; "
                f"got {z.dtype}, {z.layout}."
            )
        if z.numel() == 0:
            raise ValueError(f"Embeddings must not be empty; got shape {tuple(z.shape)}.")
        if z.device != first.device:
            raise ValueError(
                f"Embeddings must be on one device; got {first.device} and {z.device}."
            )
        if z.shape[1] != first.shape[1] or (same_shape and z.shape != first.shape):
            property_name = "shape" if same_shape else "number of coordinates"
            raise ValueError(
                f"Embeddings must have the same {property_name}; "
                f"got {tuple(first.shape)} and {tuple(z.shape)}."
            )


def check_lists(*lists: Sequence[Tensor]) -> None:
    """Raise a ValueError for a tensor in place of a list of views: its rows are not views."""
    for views in lists:
        if isinstance(views, Tensor):
            raise ValueError(
                "A list of tensors is needed, one for each view; "
                f"got one tensor of shape {tuple(views.shape)}."
            )


def check_positive(**settings: float) -> None:
    """Raise a ValueError for a setting below 1e-12 or not finite."""
    for name, value in settings.items():
        if not 1e-12 <= value < math.inf:
            raise ValueError(f"{name} must be positive, 1e-12 or more; got {value}.")


def check_share(**settings: float) -> None:
    """Raise a ValueError for a setting that is not between 0 and 1."""
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1; got {value}.")


def check_weights(**settings: float) -> None:
    """Raise a ValueError for a weight that is negative, NaN or infinite."""
    for name, value in settings.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite, 0 or more; got {value}.")


# A row is not divided by less than this, so that gradients stay finite.
MIN_SCALE = 1e-30


def peak(z: Tensor, dim: int) -> Tensor:
    """Return the largest magnitude along `dim`, detached, with `dim` kept.

    Dividing by it first keeps squares in range. The value and the gradient of a scale-free result
    do not change.
    """
    z = z.detach()
    return torch.maximum(z.amax(dim, keepdim=True), -z.amin(dim, keepdim=True))


def unit_rows(z: Tensor) -> Tensor:
    """Scale rows to length 1, in float32 or better.

    Rows of zeros, or of nothing above 1e-30, become zeros and have no gradient.
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))  # MIN_SCALE is 0 in float16
    largest = peak(z, 1)
    z = z / torch.where(largest >= MIN_SCALE, largest, torch.inf)
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z / torch.where(length > 0, length, torch.inf)


# Logits beyond this decide a softmax alone; infinite ones would make it NaN.
MAX_LOGIT = 1e30


def bounded(logits: Tensor) -> Tensor:
    """Clamp logits that overflowed, or nearly so: a softmax of them stays finite."""
    return logits.clamp(-MAX_LOGIT, MAX_LOGIT)


def off_diagonal(square: Tensor) -> Tensor:
    """Return the entries of a square matrix off its diagonal, without a copy: [K - 1, K]."""
    size = square.shape[0]  # len() would fix it when torch.export reads this
    return square.flatten()[:-1].view(size - 1, size + 1)[:, 1:] if size > 1 else square[:0]


def is_transformed() -> bool:
    """Return whether torch.func or forward-mode differentiation is at work."""
    in_torch_func: bool = torch._C._are_functorch_transforms_active()
    return in_torch_func or forward_ad._current_level >= 0


def is_composed() -> bool:
    """Return whether other parts of PyTorch read or transform the code: all but plain autograd.

    These are torch.compile, torch.export, torch.func and forward-mode differentiation. They do not
    take functions that write into given memory or that define their own backward pass as classes.
    """
    return torch.compiler.is_compiling() or is_transformed()


class _Product(torch.autograd.Function):
    """Compute a @ b with a backward pass outside autocast."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        grad_a = product(grad, b.T) if ctx.needs_input_grad[0] else None
        grad_b = product(a.T, grad) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class _TransformableProduct(torch.autograd.Function):
    """Compute `_Product` inside torch.func and forward-mode differentiation.

    It is slower to call than `_Product`, and torch.compile cannot read it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gradients: tuple[Tensor | None, Tensor | None] = _Product.backward(ctx, grad)
        return gradients

    @staticmethod
    def jvp(ctx: Any, tangent_a: Tensor | None, tangent_b: Tensor | None) -> Tensor | None:
        a, b = ctx.saved_tensors
        parts = []
        if tangent_a is not None:
            parts.append(product(tangent_a, b))
        if tangent_b is not None:
            parts.append(product(a, tangent_b))
        return sum(parts[1:], parts[0]) if parts else None


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in full precision, also when `backward` is called inside autocast.

    Autocast would otherwise change the products of the backward pass.
    """
    compiling = torch.compiler.is_compiling()
    function = _Product if compiling or not is_transformed() else _TransformableProduct
    with torch.autocast(a.device.type, enabled=False):
        result: Tensor = function.apply(a, b)
    return result


def gram(u: Tensor) -> Tensor:
    """Return all inner products between the rows of `u`: [N, N]."""
    if is_composed():
        return product(u, u.T)
    result: Tensor = _Gram.apply(u)
    return result


class _Gram(torch.autograd.Function):
    """Compute u @ u.T by symmetry: with half the products, forward and backward."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return symmetric_product(u)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return product(grad + grad.T, u)


def symmetric_product(u: Tensor) -> Tensor:
    """Return u @ u.T; on a CPU with most of its lower triangle copied from the upper one."""
    if not halves_products(u.device.type):
        return u @ u.T
    product = u.new_empty(len(u), len(u))
    _fill_symmetric(product, u)
    return product


def halves_products(device_type: str) -> bool:
    """Return whether half the products are faster than one large product.

    On a GPU they are not: they are dozens of small kernels instead of one.
    """
    return device_type == "cpu"


def _fill_symmetric(product: Tensor, u: Tensor) -> None:
    """Write u @ u.T into `product`, block by block."""
    if len(u) <= 128:  # smaller products gain nothing
        torch.mm(u, u.T, out=product)
        return
    half = (len(u) + 1) // 2
    torch.mm(u[:half], u[half:].T, out=product[:half, half:])
    product[half:, :half] = product[:half, half:].T
    _fill_symmetric(product[:half, :half], u[:half])
    _fill_symmetric(product[half:, half:], u[half:])
