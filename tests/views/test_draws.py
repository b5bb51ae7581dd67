"""Compare the distributions of draws with torchvision; seeds are fixed, so results never change."""

from dataclasses import replace

import pytest
import torch
import torchvision.transforms.v2 as tv
from scipy.stats import chisquare, ks_2samp, kstest
from torchvision.transforms import RandomResizedCrop

from smi.views import View, policy
from smi.views.draws import PATCH_SHARE, draw, draw_box

NUM_DRAWS = 20_000


def same(n: int, height: int, width: int) -> torch.Tensor:
    """Return the shapes of n equal images."""
    return torch.tensor([[height, width]]).expand(n, 2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("view", "height", "width"),
    [
        (policy("cifar10").views[0], 32, 32),
        (policy("imagenet").views[0], 256, 256),
        (policy("imagenette").views[0], 90, 200),
        (View(32, scale=(0.7, 1.0)), 40, 64),  # many tries do not fit: some crops are the fallback
    ],
)
def test_crops(view, height, width):
    ours = draw_box(view, same(NUM_DRAWS, height, width), generator())
    image = torch.empty(3, height, width)
    theirs = torch.tensor(
        [
            RandomResizedCrop.get_params(image, list(view.scale), list(view.ratio))
            for _ in range(4000)
        ]
    ).double()
    top, left, h, w = ours.unbind(1)
    assert (
        (top >= 0) & (left >= 0) & (h > 0) & (w > 0) & (top + h <= height) & (left + w <= width)
    ).all()
    assert torch.equal(ours, ours.round())
    for side in range(4):
        assert ks_2samp(ours[:, side], theirs[:, side]).pvalue > 0.01
    for f in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
        lambda b: b[:, 0] + b[:, 2],
        lambda b: b[:, 1] + b[:, 3],
    ):
        assert ks_2samp(f(ours), f(theirs)).pvalue > 0.01


SHAPES = [(256, 512), (512, 256), (256, 256), (256, 342), (1, 2), (40, 20)]


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.8, 1.0)])
def test_crops_of_images_of_different_shapes(scale):
    """Compare the crops of each shape within one batch with torchvision's for that shape."""
    view = View(224, scale=scale)
    shapes = torch.tensor(SHAPES).repeat(3000, 1)
    ours = draw_box(view, shapes, generator())
    crop = tv.RandomResizedCrop(224, scale=scale)
    for i, (height, width) in enumerate(SHAPES):
        boxes = ours[i :: len(SHAPES)]
        image = torch.empty(3, height, width)
        params = [crop.make_params([image]) for _ in range(3000)]
        theirs = torch.tensor(
            [[p[name] for name in ("top", "left", "height", "width")] for p in params]
        )
        top, left, h, w = boxes.unbind(1)
        assert ((top >= 0) & (left >= 0) & (top + h <= height) & (left + w <= width)).all()
        assert ((h > 0) & (w > 0)).all()
        for side in range(4):
            assert ks_2samp(boxes[:, side], theirs[:, side]).pvalue > 0.001
        assert ks_2samp(boxes[:, 2] * boxes[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > 0.001


def test_an_image_has_the_same_crop_beside_others():
    view = policy("imagenet").views[0]
    equal = draw_box(view, same(4, 300, 300), generator())
    mixed = draw_box(view, torch.tensor([[300, 300], [20, 900], [300, 300], [7, 7]]), generator())
    assert torch.equal(equal[::2], mixed[::2])


@pytest.mark.parametrize(("height", "width"), [(10, 100), (100, 10)])
def test_crops_that_never_fit_are_central_as_in_torchvision(height, width):
    view = View(8, scale=(1.0, 1.0))
    expected = RandomResizedCrop.get_params(
        torch.empty(3, height, width), list(view.scale), list(view.ratio)
    )
    assert draw_box(view, same(3, height, width), generator()).tolist() == [list(expected)] * 3


def test_padding_gives_crops_of_the_padded_image():
    view = replace(policy("digits").views[0], pad=1)
    wide = draw_box(replace(view, pad=0), same(NUM_DRAWS, 10, 10), generator())
    wide[:, :2] -= 1
    assert torch.equal(draw_box(view, same(NUM_DRAWS, 8, 8), generator()), wide)


def test_jitter():
    view = View(32, scale=(0.2, 1.0), brightness=0.4, contrast=0.3, saturation=0.2, hue=0.1)
    (ours,) = draw(view, same(NUM_DRAWS, 32, 32), generator())
    for column, (low, high) in enumerate([(0.6, 1.4), (0.7, 1.3), (0.8, 1.2), (-0.1, 0.1)]):
        assert kstest(ours.factors[:, column], "uniform", (low, high - low)).pvalue > 0.01
    jitter = tv.ColorJitter(0.4, 0.3, 0.2, 0.1)
    theirs = [jitter.make_params([]) for _ in range(2000)]
    for column, name in enumerate(["brightness", "contrast", "saturation", "hue"]):
        assert (
            ks_2samp(
                ours.factors[:, column], [params[f"{name}_factor"] for params in theirs]
            ).pvalue
            > 0.01
        )
    orders = (ours.order * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1]
    assert len(orders) == 24
    assert chisquare(orders).pvalue > 0.01


def test_a_strength_above_one_does_not_go_below_black():
    (ours,) = draw(View(8, scale=(0.5, 1.0), brightness=1.5), same(NUM_DRAWS, 8, 8), generator())
    assert kstest(ours.factors[:, 0], "uniform", (0, 2.5)).pvalue > 0.01


def test_probabilities_and_sigma():
    view = View(
        32,
        scale=(0.2, 1.0),
        flip_p=0.5,
        jitter_p=0.8,
        gray_p=0.2,
        blur_p=0.1,
        solarize_p=0.3,
        sigma=(0.1, 2.0),
    )
    (ours,) = draw(view, same(NUM_DRAWS, 32, 32), generator())
    for name, p in {"flip": 0.5, "jitter": 0.8, "gray": 0.2, "blur": 0.1, "solarize": 0.3}.items():
        assert (
            abs(getattr(ours, name).float().mean().item() - p)
            < 3 * (p * (1 - p) / NUM_DRAWS) ** 0.5
        ), name
    assert kstest(ours.sigma, "uniform", (0.1, 1.9)).pvalue > 0.01
    happened = torch.stack([ours.flip, ours.jitter, ours.gray, ours.blur, ours.solarize]).float()
    assert (torch.corrcoef(happened) - torch.eye(5)).abs().max() < 0.03


@pytest.mark.parametrize(("p", "expected"), [(0.0, False), (1.0, True)])
def test_never_and_always(p, expected):
    view = View(32, scale=(0.2, 1.0), flip_p=p, jitter_p=p, gray_p=p, blur_p=p, solarize_p=p)
    (ours,) = draw(view, same(NUM_DRAWS, 32, 32), generator())
    for name in ("flip", "jitter", "gray", "blur", "solarize"):
        assert (getattr(ours, name) == expected).all()


def test_patches_of_a_jigsaw():
    view = policy("imagenet-jigsaw").views[1]
    nine = draw(view, same(500, 256, 256), generator())
    assert len(nine) == 9
    boxes = torch.stack([patch.box for patch in nine], 1)  # [N, 9, 4]
    area = boxes[:, 0, 2] * boxes[:, 0, 3] * 9 / PATCH_SHARE**2
    assert (area / 256**2 >= 0.59).all()
    for i in range(500):
        top, left, h, w = boxes[i].unbind(1)
        apart = (top[:, None] >= top + h - 1e-3) | (top >= (top + h)[:, None] - 1e-3)
        apart |= (left[:, None] >= left + w - 1e-3) | (left >= (left + w)[:, None] - 1e-3)
        assert (apart | torch.eye(9, dtype=torch.bool)).all()
    first = boxes[:, 0, 0].argsort()
    # the first patch may come from any row
    assert boxes[:, 0, 0][first[0]] < 100 < boxes[:, 0, 0][first[-1]]
    assert all(torch.equal(patch.flip, nine[0].flip) for patch in nine)
    assert not torch.equal(nine[0].factors, nine[1].factors)


def test_a_seed_decides_all_draws():
    view = policy("imagenet").views[0]
    (a,), (b,), (c,) = (draw(view, same(64, 256, 256), generator(seed)) for seed in (1, 1, 2))
    for name, value in vars(a).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, getattr(b, name))
    assert not torch.equal(a.box, c.box)
