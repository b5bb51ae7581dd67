"""Compare every operation of both backends with torchvision, on the same images and parameters."""

from dataclasses import replace

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from smi.data import Pictures
from smi.views import RECIPES, View, Views, policy
from smi.views.compiled import find_kernel
from smi.views.draws import draw, shapes_of
from smi.views.pixels import follow_plan, gaussian_kernel, make_plans, make_view
from support.cases import NO_MEAN, UNIT_STD, nothing, pictures, select

N = 12
ON = torch.ones(N, dtype=torch.bool)


@pytest.fixture(scope="module")
def compiled_kernel():
    """Return the compiled kernel, or skip the test if it cannot be compiled."""
    kernel = find_kernel()
    if kernel is None:
        pytest.skip("the kernel cannot be compiled: no working C++ compiler")
    return kernel


@pytest.fixture(params=["torch", "compiled"])
def make(request):
    """Return a function of each backend from (images, parameters) to pixels from 0 to 255."""
    backend = make_view if request.param == "torch" else request.getfixturevalue("compiled_kernel")
    return lambda images, parameters: backend(images, parameters, NO_MEAN, UNIT_STD) * 255


def close(actual: Tensor, images: Tensor, expected, levels: float = 1.0) -> None:
    """Compare with torchvision on float images (0.02 grey levels) and on uint8 images (one level).

    torchvision truncates the results of uint8 images to whole levels.
    """
    floats = torch.stack([expected(i, image.float() / 255) for i, image in enumerate(images)]) * 255
    assert (actual - floats).abs().max() < 0.02
    bytes_ = torch.stack([expected(i, image) for i, image in enumerate(images)])
    assert (actual - bytes_).abs().max() <= levels + 0.02


BOXES = [
    (0, 0, 40, 48),
    (3, 5, 20, 31),
    (10, 0, 30, 8),
    (39, 47, 1, 1),
    (0, 20, 40, 2),
    (7, 7, 33, 41),
]


@pytest.mark.parametrize("size", [2, 3, 7, 16, 32, 33, 40, 64, 100])
@pytest.mark.parametrize("flip", [False, True])
def test_bicubic_crop(make, size, flip):
    # torchvision clips uint8 images after each direction, so theirs are neither dark nor bright.
    images = pictures(N, 40, 48) // 2 + 64
    box = torch.tensor([BOXES[i % len(BOXES)] for i in range(N)])
    actual = make(images, nothing(N, 40, 48, size, box=box.float(), flip=ON & flip, bicubic=True))

    def expected(i, image):
        top, left, height, width = box[i].tolist()
        image = tv.resized_crop(
            image,
            top,
            left,
            height,
            width,
            [size, size],
            interpolation=tv.InterpolationMode.BICUBIC,
            antialias=True,
        )
        image = image.clamp(0, 1) if image.is_floating_point() else image
        return tv.horizontal_flip(image) if flip else image

    # Two roundings, of which the second resize may enlarge the first by a quarter.
    close(actual, images, expected, levels=1.13)


def test_bicubic_is_not_bilinear(make):
    images = pictures(N, 40, 48)
    bilinear, bicubic = (
        make(images, nothing(N, 40, 48, 32, bicubic=flag)) for flag in (False, True)
    )
    assert (bilinear - bicubic).abs().max() > 5


@pytest.mark.parametrize("bicubic", [False, True])
def test_images_of_different_shapes_are_made_like_each_alone(make, bicubic):
    images = [pictures(1, height, width, seed)[0] for seed, (height, width) in enumerate(SHAPES)]
    together = Pictures.join(images)
    view = View(24, scale=(0.2, 1.0), blur_p=0.5, solarize_p=0.3, pad=1)
    (parameters,) = draw(view, together.shape, torch.Generator().manual_seed(0))
    parameters = replace(parameters, bicubic=bicubic)
    actual = make(together, parameters)
    for i, image in enumerate(images):
        alone = make(image[None], select(parameters, torch.tensor([i])))
        assert torch.allclose(actual[i], alone[0], atol=0.05)


SHAPES = [(40, 40), (1, 30), (64, 20), (20, 64), (3, 2), (33, 47)]


@pytest.mark.usefixtures("compiled_kernel")
def test_the_kernel_refuses_images_outside_their_bytes():
    kernel = find_kernel()
    images = Pictures.join(list(pictures(2, 8, 8)))
    for change in (
        {"start": torch.tensor([0, 193])},
        {"start": torch.tensor([-1, 192])},
        {"shape": torch.tensor([[8, 8], [9, 8]])},
        {"shape": torch.tensor([[8, 8], [0, 8]])},
    ):
        with pytest.raises(ValueError, match="outside"):
            kernel(replace(images, **change), nothing(2, 8, 8), NO_MEAN, UNIT_STD)


@pytest.mark.usefixtures("compiled_kernel")
def test_the_kernel_refuses_a_tensor_that_it_cannot_write_to():
    kernel = find_kernel()
    for out in (
        torch.empty(2, 3, 8, 8),
        torch.empty(2, 3, 9, 9, memory_format=torch.channels_last),
        torch.empty(2, 3, 8, 8, memory_format=torch.channels_last, dtype=torch.float64),
    ):
        with pytest.raises(ValueError, match="out must be float32 or uint8"):
            kernel(pictures(2, 8, 8), nothing(2, 8, 8), NO_MEAN, UNIT_STD, out=out)


@pytest.mark.parametrize("name", ["imagenette", "cifar10-jigsaw", "cifar10-multicrop"])
def test_the_host_never_waits_for_the_device(name):
    """Run the operations on imaginary CUDA tensors: reading a value of one would be an error."""
    chosen = policy(name, size=32)
    drawn = Views(chosen, compiled=False).draw(
        pictures(N, 40, 48), torch.Generator().manual_seed(0)
    )
    plans = make_plans(drawn, chosen.mean, chosen.std, torch.device("cpu"))
    with FakeTensorMode() as mode:
        images = torch.empty(N, 3, 40, 48, dtype=torch.uint8, device="cuda")
        for plan in plans:
            tensors = {
                field: mode.from_tensor(value).to("cuda")
                for field, value in vars(plan).items()
                if isinstance(value, Tensor)
            }
            x = follow_plan(images, replace(plan, **tensors))
            assert x.device.type == "cuda"
            assert x.shape == (N, 3, plan.size, plan.size)


def test_all_parameters_reach_the_device_in_one_copy(monkeypatch):
    copies = []

    def record(tensor, device):
        copies.append((tensor.dtype, str(device)))
        return tensor

    monkeypatch.setattr("smi.views.pixels.upload", record)
    Views(policy("imagenette-multicrop", size=32), compiled=False)(
        pictures(N, 40, 48), torch.Generator()
    )
    assert copies == [(torch.float32, "cpu")]


@pytest.mark.parametrize("size", [2, 7, 16, 32, 33, 40, 64, 100])
@pytest.mark.parametrize("flip", [False, True])
def test_resized_crop(make, size, flip):
    images = pictures(N, 40, 48)
    box = torch.tensor([BOXES[i % len(BOXES)] for i in range(N)])
    actual = make(images, nothing(N, 40, 48, size, box=box.float(), flip=ON & flip))

    def expected(i, image):
        top, left, height, width = box[i].tolist()
        image = tv.resized_crop(image, top, left, height, width, [size, size], antialias=True)
        return tv.horizontal_flip(image) if flip else image

    close(actual, images, expected)


def test_crop_of_a_padded_image(make):
    images = pictures(N, 8, 8)
    box = torch.tensor([[-1, -1, 10, 10], [-2, 3, 7, 7], [0, 0, 8, 8], [5, 5, 5, 5]]).repeat(3, 1)
    actual = make(images, nothing(N, 8, 8, 9, pad=2, box=box.float()))

    def expected(i, image):
        top, left, height, width = box[i].tolist()
        return tv.resized_crop(
            tv.pad(image, [2, 2, 2, 2]), top + 2, left + 2, height, width, [9, 9], antialias=True
        )

    close(actual, images, expected)


OPERATIONS = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]


@pytest.mark.parametrize("kind", range(4))
def test_one_jitter(make, kind):
    images = pictures(N, 24, 24)
    values = torch.linspace(-0.5, 0.5, N) if kind == 3 else torch.linspace(0, 2, N)
    factors = torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(N, 1)
    factors[:, kind] = values
    actual = make(images, nothing(N, 24, 24, jitter=ON, factors=factors))
    # For a uint8 image, torchvision also truncates the grey reference of contrast and saturation,
    # here with a weight of up to one.
    close(
        actual,
        images,
        lambda i, image: OPERATIONS[kind](image, values[i].item()),
        levels=2.0 if kind in (1, 2) else 1.0,
    )


def test_jitter_in_every_order(make):
    orders = torch.tensor(
        [
            [a, b, c, 6 - a - b - c]
            for a in range(4)
            for b in range(4)
            for c in range(4)
            if len({a, b, c}) == 3
        ]
    )
    images = pictures(len(orders), 16, 16)
    factors = torch.tensor([[1.3, 0.7, 1.4, 0.08]]).repeat(len(orders), 1)
    actual = make(
        images,
        nothing(
            len(orders),
            16,
            16,
            jitter=torch.ones(len(orders), dtype=torch.bool),
            order=orders,
            factors=factors,
        ),
    )
    for i, image in enumerate(images):
        x = image.float() / 255
        for kind in orders[i].tolist():
            x = OPERATIONS[kind](x, factors[i, kind].item())
        assert (actual[i] - x * 255).abs().max() < 0.02


def test_gray(make):
    images = pictures(N, 16, 16)
    actual = make(images, nothing(N, 16, 16, gray=ON))
    close(actual, images, lambda i, image: tv.rgb_to_grayscale(image, 3))


@pytest.mark.parametrize(("size", "kernel"), [(8, 3), (32, 3), (33, 7), (64, 17)])
def test_blur(make, size, kernel):
    images = pictures(N, size, size)
    sigma = torch.linspace(0.1, 2, N)
    actual = make(images, nothing(N, size, size, blur=ON, sigma=sigma, blur_kernel=kernel))
    floats = (
        torch.stack(
            [
                tv.gaussian_blur(image / 255, [kernel] * 2, [s.item()])
                for image, s in zip(images, sigma, strict=True)
            ]
        )
        * 255
    )
    assert (actual - floats).abs().max() < 0.1  # the compiled kernel leaves out negligible taps
    bytes_ = torch.stack(
        [
            tv.gaussian_blur(image, [kernel] * 2, [s.item()])
            for image, s in zip(images, sigma, strict=True)
        ]
    )
    assert (actual - bytes_).abs().max() < 1


def test_gray_then_blur(make):
    images = pictures(N, 32, 32)
    actual = make(
        images, nothing(N, 32, 32, gray=ON, blur=ON, blur_kernel=5, sigma=torch.full((N,), 1.5))
    )
    close(
        actual,
        images,
        lambda i, image: tv.gaussian_blur(tv.rgb_to_grayscale(image, 3), [5, 5], [1.5]),
        levels=1.5,
    )


def test_solarize(make):
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(N, 3, 16, 16)
    actual = make(levels, nothing(N, 16, 16, solarize=ON))
    expected = tv.solarize(levels, 128)
    assert (actual - expected).abs().max() < 1e-3


def test_neutral_parameters_change_nothing(make):
    images = pictures(N, 16, 16)
    assert (make(images, nothing(N, 16, 16)) - images).abs().max() < 1e-3


def test_operations_change_only_their_own_images(make):
    images = pictures(N, 16, 16)
    rows = torch.arange(N) % 3 == 0
    factors = torch.tensor([[0.5, 0.5, 0.5, 0.3]]).repeat(N, 1)
    for change in (
        {"flip": rows},
        {"jitter": rows, "factors": factors},
        {"gray": rows},
        {"blur": rows, "blur_kernel": 3},
        {"solarize": rows},
    ):
        actual = make(images, nothing(N, 16, 16, **change))
        assert (actual - images)[~rows].abs().max() < 1e-3
        assert (actual - images)[rows].abs().max() > 1


def test_the_blur_has_the_weights_of_torchvision():
    from torchvision.transforms.v2.functional._misc import _get_gaussian_kernel1d

    for sigma in (0.1, 0.7, 2.0):
        expected = _get_gaussian_kernel1d(17, sigma, torch.float32, torch.device("cpu"))
        assert torch.allclose(gaussian_kernel(torch.tensor([sigma]), 17)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    "name", [*RECIPES, "cifar10-multicrop", "cifar10-jigsaw", "imagenet-jigsaw"]
)
@pytest.mark.usefixtures("compiled_kernel")
def test_both_backends_make_the_same_views(name):
    chosen = policy(name, size=None if RECIPES[name.partition("-")[0]].views[0].size < 100 else 64)
    images = pictures(24, *(8, 8) if name == "digits" else (40, 48))
    compiled, plain = (
        Views(chosen, compiled=flag)(images, torch.Generator().manual_seed(3))
        for flag in (True, False)
    )
    std = torch.tensor(chosen.std)[:, None, None]
    for a, b in zip(compiled, plain, strict=True):
        assert ((a - b) * std * 255).abs().max() < 0.1


def test_the_order_of_images_does_not_matter(make):
    (parameters,) = draw(
        policy("imagenette", size=24).views[0],
        shapes_of(pictures(N, 32, 32)),
        torch.Generator().manual_seed(0),
    )
    images, shuffled = pictures(N, 32, 32), torch.randperm(N)
    assert torch.allclose(
        make(images[shuffled], select(parameters, shuffled)),
        make(images, parameters)[shuffled],
        atol=1e-3,
    )


@pytest.mark.usefixtures("compiled_kernel")
@pytest.mark.parametrize(
    ("recipe", "size", "side", "rounds"), [("digits", 8, 8, 300), ("imagenette", 32, 40, 30)]
)
def test_threads_do_not_change_the_pixels_of_the_kernel(recipe, size, side, rounds):
    """Compare to the bit, many times: threads share the images differently each time."""
    views = Views(policy(recipe, size=size), compiled=True)
    images, threads = pictures(64, side, side), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = views(images, torch.Generator().manual_seed(0))
        torch.set_num_threads(4)
        for _ in range(rounds):
            together = views(images, torch.Generator().manual_seed(0))
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    finally:
        torch.set_num_threads(threads)


SIZES = {
    "n": st.integers(0, 5),
    "height": st.integers(1, 50),
    "width": st.integers(1, 50),
    "size": st.integers(1, 70),
    "pad": st.integers(0, 3),
    "grid": st.sampled_from([1, 1, 2, 3]),
    "seed": st.integers(0, 2**32),
    "interpolation": st.sampled_from(["bilinear", "bicubic"]),
}


def any_batch(n, height, width, size, pad, grid, seed, interpolation):
    """Return images of any size, and drawn parameters for them."""
    view = View(
        size,
        scale=(0.05, 1.0),
        pad=pad,
        grid=grid,
        blur_p=0.5,
        solarize_p=0.3,
        interpolation=interpolation,
    )
    images = torch.empty(0, 3, height, width, dtype=torch.uint8)
    if n > 0:
        images = pictures(n, height, width, seed)
    return images, draw(view, shapes_of(images), torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(**SIZES)
def test_views_of_any_size_are_finite(n, height, width, size, pad, grid, seed, interpolation):
    images, drawn = any_batch(n, height, width, size, pad, grid, seed, interpolation)
    for parameters in drawn:
        x = make_view(images, parameters, NO_MEAN, UNIT_STD)
        assert x.shape == (n, 3, size, size)
        assert x.dtype == torch.float32
        assert ((x >= -1e-5) & (x <= 1 + 1e-5)).all()


@settings(max_examples=60)
@given(**SIZES)
def test_both_backends_agree_at_any_size(
    compiled_kernel, n, height, width, size, pad, grid, seed, interpolation
):
    images, drawn = any_batch(n, height, width, size, pad, grid, seed, interpolation)
    for parameters in drawn:
        x = make_view(images, parameters, NO_MEAN, UNIT_STD)
        assert torch.allclose(compiled_kernel(images, parameters, NO_MEAN, UNIT_STD), x, atol=4e-4)


def test_images_that_are_not_contiguous(make):
    images = pictures(N, 20, 20)
    parameters = nothing(N, 20, 20, 16)
    assert torch.allclose(
        make(images.to(memory_format=torch.channels_last), parameters),
        make(images, parameters),
        atol=1e-3,
    )
    halves = images[..., ::2, ::2]
    assert torch.allclose(
        make(halves, nothing(N, 10, 10, 16)),
        make(halves.contiguous(), nothing(N, 10, 10, 16)),
        atol=1e-3,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"box": torch.tensor([[0.0, 0.0, 17.0, 16.0]]).repeat(N, 1)}, "outside its image"),
        ({"box": torch.tensor([[-1.0, 0.0, 8.0, 8.0]]).repeat(N, 1)}, "outside its image"),
        ({"box": torch.full((N, 4), float("nan"))}, "outside its image"),
        ({"order": torch.full((N, 4), 4)}, "numbered 0 to 3"),
        ({"sigma": torch.ones(N - 1)}, "sigma must be"),
        ({"flip": torch.zeros(N)}, "flip must be"),
        ({"blur_kernel": 33}, "does not suit"),
        ({"pad": 2**31}, "padding must lie"),
        ({"factors": torch.full((N, 4), float("nan"))}, "factors of the jitter"),
        ({"factors": torch.full((N, 4), 1e38)}, "factors of the jitter"),
        ({"sigma": torch.zeros(N), "blur": torch.ones(N, dtype=torch.bool)}, "sigma of a blur"),
        ({"sigma": torch.full((N,), 1e-38), "blur": torch.ones(N, dtype=torch.bool)}, "of a blur"),
    ],
)
def test_the_kernel_refuses_parameters_outside_its_tensors(compiled_kernel, change, message):
    with pytest.raises(ValueError, match=message):
        compiled_kernel(
            pictures(N, 16, 16), replace(nothing(N, 16, 16), **change), NO_MEAN, UNIT_STD
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": torch.zeros(N, dtype=torch.int32)}, "must be torch.int64"),
        ({"shape": torch.full((N, 2), 16, dtype=torch.int32)}, "must be torch.int64"),
        ({"shape": torch.full((N - 1, 2), 16)}, "must be torch.int64"),
        ({"start": torch.full((N,), 2**63 - 1)}, "outside the"),
        ({"shape": torch.full((N, 2), 2**32)}, "outside the"),  # the product of both is 0
        ({"pixels": torch.zeros(N * 3 * 16 * 16)}, "must be torch.uint8"),
    ],
)
def test_the_kernel_refuses_tensors_that_do_not_fit(compiled_kernel, change, message):
    images = replace(Pictures.join(list(pictures(N, 16, 16))), **change)
    with pytest.raises(ValueError, match=message):
        compiled_kernel(images, nothing(N, 16, 16), NO_MEAN, UNIT_STD)


@pytest.mark.parametrize("std", [(0.5, 0.0, 0.5), (0.5, float("nan"), 0.5)])
def test_the_kernel_refuses_a_normalisation_that_is_not_finite(compiled_kernel, std):
    with pytest.raises(ValueError, match="must be finite"):
        compiled_kernel(pictures(N, 16, 16), nothing(N, 16, 16), NO_MEAN, std)
