"""Define the augmentations of the recipes as numbers.

A policy lists the views that are made of every image; policy("cifar10") finds one by name. Every
recipe also has the variants <recipe>-multicrop (two large views and six small ones) and
<recipe>-jigsaw (a view and its shuffled patches). Policies with the name of a method are those of
its authors for ImageNet.
"""

from dataclasses import dataclass, replace
from typing import Literal

from smi.errors import UserError

Triple = tuple[float, float, float]
Range = tuple[float, float]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class View:
    """Describe the distribution of one view.

    A name that ends in _p is a probability. The four strengths of the colour jitter are defined as
    in torchvision.
    """

    size: int  # side of the view, in pixels
    scale: Range  # area of the crop, as a share of the area of the image
    ratio: Range = (3 / 4, 4 / 3)  # width of the crop divided by its height
    pad: int = 0  # black pixels added around the image before it is cropped
    grid: int = 1  # above 1: the crop becomes grid x grid shuffled patches of `size`, each a view
    flip_p: float = 0.5
    jitter_p: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    gray_p: float = 0.2
    blur_p: float = 0.5
    sigma: Range = (0.1, 2.0)  # standard deviation of the blur, in pixels
    solarize_p: float = 0.0
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # of the resized crop

    @property
    def blur_kernel(self) -> int:
        """Return the width of the blur: odd, about a tenth of the side (3 at 32, 23 at 224)."""
        return 2 * (self.size // 20) + 1


@dataclass(frozen=True)
class Policy:
    """List the views that are made of every image, and the statistics to normalise them with."""

    name: str
    views: tuple[View, ...]
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD


def _twice(view: View) -> tuple[View, View]:
    return view, view


_CIFAR = _twice(View(32, scale=(0.2, 1.0)))
_IMAGENETTE = _twice(View(160, scale=(0.08, 1.0), saturation=0.4, solarize_p=0.2))
_IMAGENET = View(224, scale=(0.08, 1.0), blur_p=1.0)
# Digits are grey strokes that fill their 8 x 8 pixels. A mirrored digit would be another sign, and
# there is no colour, so neither flips nor colour changes are used. Crops move and enlarge them
# within a frame that is one pixel wider, rarely so far that a 0 looks like a u. Brightness and
# contrast change.
_DIGITS = View(
    8,
    scale=(0.64, 1.0),
    ratio=(0.85, 1 / 0.85),
    pad=1,
    flip_p=0.0,
    saturation=0.0,
    hue=0.0,
    gray_p=0.0,
    blur_p=0.0,
)

# As the authors' public code has them, for ImageNet.
_BYOL = View(224, scale=(0.08, 1.0), blur_p=1.0, interpolation="bicubic")
_BYOL_2 = replace(_BYOL, blur_p=0.1, solarize_p=0.2)
_SWAV = View(224, scale=(0.08, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
_MOCO_V2 = View(224, scale=(0.2, 1.0), saturation=0.4)
_MOCO_V1 = replace(_MOCO_V2, jitter_p=1.0, hue=0.4, blur_p=0.0)
_PIRL = replace(_MOCO_V1, scale=(0.08, 1.0), hue=0.2)


def _scaled(views: tuple[View, ...], scale: Range) -> tuple[View, ...]:
    return tuple(replace(view, scale=scale) for view in views)


RECIPES = {
    "cifar10": Policy("cifar10", _CIFAR, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Policy("cifar100", _CIFAR, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenette": Policy("imagenette", _IMAGENETTE),
    "imagewoof": Policy("imagewoof", _IMAGENETTE),
    # The second view is always solarized, as the paper states. BYOL and Barlow Twins, which the
    # paper follows, use a probability of 0.2.
    "imagenet": Policy("imagenet", (_IMAGENET, replace(_IMAGENET, blur_p=0.1, solarize_p=1.0))),
    "digits": Policy("digits", _twice(_DIGITS), (0.3053,) * 3, (0.3760,) * 3),
    "byol": Policy("byol", (_BYOL, _BYOL_2)),  # also of Barlow Twins and VICReg
    "simclr": Policy("simclr", _twice(replace(_SWAV, interpolation="bicubic"))),
    "mocov1": Policy("mocov1", _twice(_MOCO_V1)),
    "mocov2": Policy("mocov2", _twice(_MOCO_V2)),  # also of SimSiam
    "swav": Policy("swav", _twice(_SWAV), std=(0.228, 0.224, 0.225)),  # theirs has 0.228
    # With small views, multicrop() makes theirs of areas from 5 % up to the smallest large view.
    "dino": Policy("dino", _scaled((_BYOL, _BYOL_2), (0.14, 1.0))),  # for ResNets
    "dinovit": Policy("dinovit", _scaled((_BYOL, _BYOL_2), (0.4, 1.0))),  # for vision transformers
    "pirl": Policy("pirl", _twice(_PIRL)),
}
VARIANTS = ("multicrop", "jigsaw")


def policy(name: str, *, size: int | None = None) -> Policy:
    """Return the policy of a recipe or a variant of it, such as "cifar10-multicrop".

    `size` sets the side of the large views; small views are scaled in proportion.
    """
    recipe, dash, variant = name.partition("-")
    if recipe not in RECIPES or (dash and variant not in VARIANTS):
        suffixes = " or ".join(f"-{variant}" for variant in VARIANTS)
        raise UserError(
            f"there is no policy {name!r}: choose one of {', '.join(RECIPES)}, "
            f"alone or followed by {suffixes}"
        )
    if size is not None and size < 1:
        raise UserError(f"the side of a view must be 1 pixel or more, not {size}")
    chosen = RECIPES[recipe]
    if variant == "multicrop":
        chosen = multicrop(chosen)
    elif variant == "jigsaw":
        chosen = jigsaw(chosen)
    if size is None:
        return chosen
    largest = max(view.size for view in chosen.views)
    views = [replace(view, size=max(1, round(view.size * size / largest))) for view in chosen.views]
    return replace(chosen, views=tuple(views))


def multicrop(recipe: Policy, *, num_local: int = 6) -> Policy:
    """Add small views of small areas to the large views, as SwAV and DINO do.

    A small view has 96 pixels a side where a large one has 224. As in DINO, it is blurred with a
    probability of at most 0.5 and never solarized.
    """
    lower = max(0.14, recipe.views[0].scale[0])
    large = tuple(replace(view, scale=(lower, 1.0)) for view in recipe.views)
    first = recipe.views[0]
    small = replace(
        first,
        size=round(first.size * 96 / 224),
        scale=(0.05, lower),
        blur_p=min(first.blur_p, 0.5),
        solarize_p=0.0,
    )
    return replace(recipe, name=f"{recipe.name}-multicrop", views=(*large, *[small] * num_local))


def jigsaw(recipe: Policy) -> Policy:
    """Return the first view and 3 x 3 patches of a crop of 60% or more of the image, as PIRL does.

    A patch has 64 pixels a side where a view has 224.
    """
    first = recipe.views[0]
    patches = replace(
        first,
        size=round(first.size * 64 / 224),
        scale=(0.6, 1.0),
        grid=3,
        blur_p=0.0,
        solarize_p=0.0,
    )
    return replace(recipe, name=f"{recipe.name}-jigsaw", views=(first, patches))
