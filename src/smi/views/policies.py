"""The recipes' augmentations, as numbers. A policy is the views that are made of every image; policy("cifar10") finds one by name.

Every recipe also comes as <recipe>-multicrop (two large views and six small ones) and <recipe>-jigsaw (a view and its shuffled patches).
"""

from dataclasses import dataclass, replace

from smi.errors import UserError

Triple = tuple[float, float, float]
Range = tuple[float, float]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class View:
    """How one view is drawn. What ends in _p is a probability; the colour jitter's four strengths are torchvision's."""

    size: int  # pixels of a side
    scale: Range  # of the crop's area, as a share of the image's
    ratio: Range = (3 / 4, 4 / 3)  # of the crop's width to its height
    pad: int = 0  # black pixels around the image before it is cropped
    grid: int = 1  # above 1: the crop becomes grid x grid shuffled patches of `size`, each a view
    flip_p: float = 0.5
    jitter_p: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    gray_p: float = 0.2
    blur_p: float = 0.5
    sigma: Range = (0.1, 2.0)  # of the blur, in pixels
    solarize_p: float = 0.0

    @property
    def blur_kernel(self) -> int:
        """About a tenth of the side, and odd: 3 at 32 pixels, 17 at 160, 23 at 224."""
        return 2 * (self.size // 20) + 1


@dataclass(frozen=True)
class Policy:
    name: str
    views: tuple[View, ...]
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD


def _twice(view: View) -> tuple[View, View]:
    return view, view


_CIFAR = _twice(View(32, scale=(0.2, 1.0)))
_IMAGENETTE = _twice(View(160, scale=(0.08, 1.0), saturation=0.4, solarize_p=0.2))
_IMAGENET = View(224, scale=(0.08, 1.0), blur_p=1.0)
# Grey strokes that fill their 8 x 8 pixels: mirrored they would be other signs, and colour says nothing. They move and grow within a
# frame one pixel wider, seldom so far that a 0 opens into a u, and their ink is paler or darker.
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

RECIPES = {
    "cifar10": Policy("cifar10", _CIFAR, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Policy("cifar100", _CIFAR, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenette": Policy("imagenette", _IMAGENETTE),
    "imagewoof": Policy("imagewoof", _IMAGENETTE),
    # The second view is always solarized, as the paper prints it; BYOL and Barlow Twins, which it follows, do so with 0.2.
    "imagenet": Policy("imagenet", (_IMAGENET, replace(_IMAGENET, blur_p=0.1, solarize_p=1.0))),
    "digits": Policy("digits", _twice(_DIGITS), (0.3053,) * 3, (0.3760,) * 3),
}
VARIANTS = ("multicrop", "jigsaw")


def policy(name: str, *, size: int | None = None) -> Policy:
    """A recipe's policy or a variant of it; `size` gives its large views another side, and the small ones in proportion."""
    recipe, dash, variant = name.partition("-")
    if recipe not in RECIPES or (dash and variant not in VARIANTS):
        suffixes = " or ".join(f"-{variant}" for variant in VARIANTS)
        raise UserError(
            f"there is no policy {name!r}: choose one of {', '.join(RECIPES)}, alone or with {suffixes} behind it"
        )
    if size is not None and size < 1:
        raise UserError(f"views must have 1 pixel or more to a side, not {size}")
    found = RECIPES[recipe]
    if variant == "multicrop":
        found = multicrop(found)
    elif variant == "jigsaw":
        found = jigsaw(found)
    if size is None:
        return found
    largest = max(view.size for view in found.views)
    return replace(
        found,
        views=tuple(
            replace(view, size=max(1, round(view.size * size / largest))) for view in found.views
        ),
    )


def multicrop(recipe: Policy, *, num_local: int = 6) -> Policy:
    """SwAV's and DINO's: beside the large views, small ones of the areas below theirs, 96 pixels for the others' 224.

    Small views are blurred half the time and never solarized, as DINO's are.
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
    """PIRL's: the first view, and 3 x 3 patches of a crop of six tenths or more, 64 pixels each for the view's 224."""
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
