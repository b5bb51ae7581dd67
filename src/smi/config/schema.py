"""Define a run's configuration as frozen dataclasses, and list the recipes. Imports no torch."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from smi.errors import UserError
from smi.terminal import suggest


@dataclass(frozen=True)
class Data:
    """Choose the images."""

    source: str  # the name of a dataset, or a folder
    resolution: int | None = None  # pixels per side to store; None: their own, 256 for files
    images: int | None = None  # train on this many, drawn from the seed; None: all
    validation: float = 0.0  # share of the training images held out; probes use it, not val
    keep: Literal["aspect", "square"] = "aspect"  # of an image in a file: all, or its centre
    cache_gb: float = 50.0  # decoded images above this size are not stored, but decoded each time


@dataclass(frozen=True)
class Views:
    """Choose the augmentations."""

    policy: str  # that of a recipe (cifar10, imagenet, …) or of authors (byol, simclr, swav, …)
    size: int  # pixels per side
    input_size: int | None = None  # of whole images, as encoders are used; None: size
    solarize_p: tuple[float, float] | None = None  # of both views; None: as in the policy
    blur_p: tuple[float, float] | None = None  # of both views; None: as in the policy
    interpolation: Literal["bilinear", "bicubic"] | None = None  # None: as in the policy
    mean: tuple[float, float, float] | None = None  # of pixels in [0, 1]; None: as in the policy
    std: tuple[float, float, float] | None = None  # as mean

    @property
    def whole_size(self) -> int:
        """Return the pixels per side of whole images, as the trained encoder is used."""
        return self.input_size or self.size


@dataclass(frozen=True)
class Init:
    """Choose the weights to start from."""

    source: str | None = None  # timm, hf-hub:…, local-dir:…, a run, a file; None: from scratch
    digest: str | None = None  # of these weights, set by the first run; others are refused
    statistics: Literal["keep", "update"] = "keep"  # of batch norms; update: as from scratch


@dataclass(frozen=True)
class Optimizer:
    """Choose the optimizer and the learning rate."""

    name: Literal["AdamW", "LARS", "LARC", "SGD"]  # the optimizer
    lr: float  # peak learning rate; a method's own lr in a recipe replaces it
    weight_decay: float  # of matrices; of vectors with decay_vectors
    scale_lr: bool = False  # multiply learning rates by batch_size / 256
    lr_vectors: float | None = None  # for biases and norms; None: lr
    momentum: float = 0.9  # of LARS, LARC and SGD
    warmup_epochs: float = 0.0  # the learning rate rises linearly for so long
    schedule: Literal["cosine", "step", "constant"] | None = None  # None: the method's own
    final_lr: float = 0.0  # end of the cosine, as a share of the peak
    constant_lr: tuple[str, ...] | None = None  # parts of the method without a schedule
    decay_vectors: bool = False  # weight decay, and LARS' or LARC's factor, for vectors too
    final_weight_decay: float | None = None  # end of a cosine; None: weight decay is constant
    clip: float | None = None  # longest gradient of each parameter; None: not clipped


@dataclass(frozen=True)
class Log:
    """Choose how often metrics, probes and checkpoints are written."""

    every: int = 10  # steps between two lines of metrics.jsonl
    probe_every: float = 1.0  # epochs between two probes; 0: never
    save_every: float = 1.0  # epochs between two checkpoints
    probe_images: int = 10_000  # at most, of training images and of held-out images
    keep_every: float = 0.0  # epochs between two checkpoints that are kept; 0: only the last


@dataclass(frozen=True)
class Config:
    """Hold the complete configuration of a run."""

    data: Data
    views: Views
    encoder: dict[str, Any]  # the encoder's name (`smi list encoders`) and arguments
    method: dict[str, Any]  # the method's name (`smi list methods`) and settings
    optimizer: Optimizer
    epochs: int  # passes over the training images
    batch_size: int  # on all devices together
    steps: int | None = None  # of the whole run, instead of epochs
    init: Init = field(default_factory=Init)
    select: Literal["last", "best"] = "last"  # encoder to export: best is that of the best probe
    seed: int = 0  # of all draws: weights, order of images, views
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # number format
    accumulate: int = 1  # parts of a batch that pass through the network one after another
    checkpoint_activations: bool = False  # compute activations twice instead of keeping them
    sync_batch_norm: bool | None = None  # between GPUs; None: as the authors of the method
    average_every: int = 1  # steps; above 1, processes average weights and not gradients
    published: bool = False  # the optimizer, views and settings that the method's authors publish
    log: Log = field(default_factory=Log)
    # Settings that the recipe gives to each method, if that method is chosen.
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the configuration as YAML."""
        return yaml.safe_dump(plain(self), sort_keys=False, allow_unicode=True, width=120)


RECIPES = tuple(
    sorted(
        file.name.removesuffix(".yaml")
        for file in (resources.files("smi.config") / "recipes").iterdir()
        if file.name.endswith(".yaml")
    )
)

# Short names of settings, as the command line and `overrides` take them.
SHORT = {
    "data": "data.source",
    "method": "method.name",
    "encoder": "encoder.name",
    "init": "init.source",
    "views": "views.policy",
    "optimizer": "optimizer.name",
}


@dataclass(frozen=True)
class RecipeList:
    """List the recipes with one sentence each."""

    recipes: tuple[tuple[str, str], ...]  # name and sentence

    def text(self) -> str:
        """Return one line per recipe."""
        return "\n".join(f"{name:17} {sentence}" for name, sentence in self.recipes)

    def plain(self) -> dict[str, Any]:
        """Return names and sentences for JSON."""
        return {"recipes": [{"name": name, "sentence": text} for name, text in self.recipes]}


def list_recipes() -> RecipeList:
    """Return all recipes; the first line of each file is its description."""
    return RecipeList(
        tuple((name, read_text(name).splitlines()[0].removeprefix("# ")) for name in RECIPES)
    )


def require_recipe(recipe: str | Path) -> None:
    """Raise a UserError if there is no recipe of this name, or no such YAML file."""
    path = Path(recipe)
    if str(recipe) in RECIPES or (path.suffix in (".yaml", ".yml") and path.is_file()):
        return
    if path.suffix in (".yaml", ".yml"):
        raise UserError(f"there is no file {path}")
    hint = suggest(str(recipe), RECIPES)
    raise UserError(f"there is no recipe {str(recipe)!r}: {hint} (or name a YAML file)")


def read_text(recipe: str) -> str:
    """Read the YAML of a named recipe."""
    return (resources.files("smi.config") / "recipes" / f"{recipe}.yaml").read_text()


def plain(config: Any) -> dict[str, Any]:
    """Convert a configuration to dictionaries, lists, numbers and text."""

    def simplify(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: simplify(item) for key, item in value.items()}
        return [simplify(item) for item in value] if isinstance(value, list | tuple) else value

    settings: dict[str, Any] = simplify(dataclasses.asdict(config))
    return settings


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Describe the changes: `optimizer.lr is 0.001 in the folder, 0.01 was requested`."""
    return [
        f"{key} is {before} in the folder, {after} was requested"
        for key, before, after in changed_settings(old, new)
    ]


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the dotted name, old and new value of each setting that differs; "unset" if absent."""
    before = dict(flat(old))
    after = dict(flat(new))
    return [
        (key, before.get(key, "unset"), after.get(key, "unset"))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield dotted names and their values."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
