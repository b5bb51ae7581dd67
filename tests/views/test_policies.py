import pytest

from smi.errors import UserError
from smi.views import RECIPES, policy

# size, scale, flip, b/c/s/h, jitter, gray, blur, kernel, solarize
TABLE = {
    "cifar10": [(32, (0.2, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.5, 3, 0)] * 2,
    "cifar100": [(32, (0.2, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.5, 3, 0)] * 2,
    "imagenette": [(160, (0.08, 1), 0.5, (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, 0.5, 17, 0.2)] * 2,
    "imagewoof": [(160, (0.08, 1), 0.5, (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, 0.5, 17, 0.2)] * 2,
    "imagenet": [
        (224, (0.08, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 1.0, 23, 0),
        (224, (0.08, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.1, 23, 1.0),
    ],
    "byol": [
        (224, (0.08, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 1.0, 23, 0),
        (224, (0.08, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.1, 23, 0.2),
    ],
    "simclr": [(224, (0.08, 1), 0.5, (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 23, 0)] * 2,
    "mocov1": [(224, (0.2, 1), 0.5, (0.4, 0.4, 0.4, 0.4), 1.0, 0.2, 0, 23, 0)] * 2,
    "mocov2": [(224, (0.2, 1), 0.5, (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, 0.5, 23, 0)] * 2,
    "swav": [(224, (0.08, 1), 0.5, (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 23, 0)] * 2,
    "dino": [
        (224, (0.14, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 1.0, 23, 0),
        (224, (0.14, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.1, 23, 0.2),
    ],
    "dinovit": [
        (224, (0.4, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 1.0, 23, 0),
        (224, (0.4, 1), 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.1, 23, 0.2),
    ],
    "pirl": [(224, (0.08, 1), 0.5, (0.4, 0.4, 0.4, 0.2), 1.0, 0.2, 0, 23, 0)] * 2,
    "digits": [(8, (0.64, 1), 0, (0.4, 0.4, 0, 0), 0.8, 0, 0, 1, 0)] * 2,
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_numbers(name):
    actual = [
        (
            v.size,
            v.scale,
            v.flip_p,
            (v.brightness, v.contrast, v.saturation, v.hue),
            v.jitter_p,
            v.gray_p,
            v.blur_p,
            v.blur_kernel,
            v.solarize_p,
        )
        for v in policy(name).views
    ]
    assert actual == TABLE[name]
    assert all(v.sigma == (0.1, 2.0) for v in policy(name).views)
    assert (
        all(v.ratio == (3 / 4, 4 / 3) and v.pad == 0 for v in policy(name).views)
        or name == "digits"
    )


def test_multicrop():
    views = policy("imagenet-multicrop").views
    assert [view.size for view in views] == [224, 224, 96, 96, 96, 96, 96, 96]
    assert {view.scale for view in views[:2]} == {(0.14, 1.0)}
    assert {view.scale for view in views[2:]} == {(0.05, 0.14)}
    assert [view.solarize_p for view in views] == [0, 1.0, 0, 0, 0, 0, 0, 0]
    assert [view.blur_p for view in views] == [1.0, 0.1, *[0.5] * 6]
    assert [view.size for view in policy("cifar10-multicrop").views] == [
        32,
        32,
        14,
        14,
        14,
        14,
        14,
        14,
    ]


@pytest.mark.parametrize(
    ("name", "large", "small"),
    [
        ("swav", (0.14, 1.0), (0.05, 0.14)),
        ("dino", (0.14, 1.0), (0.05, 0.14)),
        ("dinovit", (0.4, 1.0), (0.05, 0.4)),
    ],
)
def test_small_views_as_their_authors_make_them(name, large, small):
    views = policy(f"{name}-multicrop").views
    assert [view.size for view in views] == [224, 224, *[96] * 6]
    assert [view.scale for view in views] == [large, large, *[small] * 6]
    assert all((view.blur_p, view.solarize_p) == (0.5, 0) for view in views[2:])
    assert {view.interpolation for view in views} == {policy(name).views[0].interpolation}


def test_crops_of_authors_who_interpolate_by_cubics():
    cubic = [name for name in RECIPES if policy(name).views[0].interpolation == "bicubic"]
    assert cubic == ["byol", "simclr", "dino", "dinovit"]
    assert policy("swav").std == (0.228, 0.224, 0.225)


def test_jigsaw():
    whole, patches = policy("imagenet-jigsaw").views
    assert whole == policy("imagenet").views[0]
    assert (patches.size, patches.grid, patches.scale) == (64, 3, (0.6, 1.0))


def test_size_scales_all_views():
    assert [view.size for view in policy("imagenet-multicrop", size=112).views] == [
        112,
        112,
        *[48] * 6,
    ]
    assert policy("imagenet", size=112).views[0].blur_kernel == 11


@pytest.mark.parametrize(
    "name", ["cifar", "", "cifar10-", "cifar10-multi", "multicrop", "imagenet-jigsaw-multicrop"]
)
def test_an_unknown_name(name):
    with pytest.raises(UserError, match="there is no policy"):
        policy(name)


def test_a_size_below_one_pixel():
    with pytest.raises(UserError, match="1 pixel or more"):
        policy("cifar10", size=0)
