"""A run's configuration as frozen dataclasses, and the names of the recipes. No torch."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import yaml


@dataclass(frozen=True)
class Data:
    source: str  # a name or a folder
    resolution: int | None = (
        None  # pixels of a side that images are kept at; None: their own, or 256 for files
    )
    images: int | None = None  # train on so many of them, drawn from the seed; None: all
    validation: float = 0.0  # this share of the training images is kept apart, and probes look at it instead of the set's own val


@dataclass(frozen=True)
class Views:
    policy: str  # whose augmentations: cifar10, cifar100, imagenette, imagewoof, imagenet, digits
    size: int  # pixels of a side
    solarize_p: tuple[float, float] | None = (
        None  # of the first and the second view; None: the policy's
    )


@dataclass(frozen=True)
class Optimizer:
    name: Literal["AdamW", "LARS", "SGD"]
    lr: float
    weight_decay: float
    scale_lr: bool = False  # multiply learning rates by batch_size / 256
    lr_vectors: float | None = None  # of biases and norms; None: lr
    momentum: float = 0.9
    warmup_epochs: float = 0.0
    schedule: Literal["cosine", "step", "constant"] | None = None  # None: the method's own
    final_lr: float = 0.0  # where a cosine ends, as a share of the peak


@dataclass(frozen=True)
class Log:
    every: int = 10  # steps from one line of metrics.jsonl to the next
    probe_every: float = 1.0  # epochs from one look at held-out images to the next; 0: never
    save_every: float = 1.0  # epochs from one checkpoint to the next
    probe_images: int = 10_000  # at most, of training and of held-out images each


@dataclass(frozen=True)
class Config:
    data: Data
    views: Views
    encoder: dict[str, Any]  # its name, and arguments for what makes it
    method: dict[str, Any]  # its name, and its settings
    optimizer: Optimizer
    epochs: int
    batch_size: int  # on all devices together
    seed: int = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 where a GPU has it
    log: Log = field(default_factory=Log)
    methods: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # settings each method takes under this recipe

    def text(self) -> str:
        """As YAML."""
        return yaml.safe_dump(plain(self), sort_keys=False, allow_unicode=True, width=120)


RECIPES = tuple(
    sorted(
        file.name.removesuffix(".yaml")
        for file in (resources.files("smi.config") / "recipes").iterdir()
        if file.name.endswith(".yaml")
    )
)

SHORT = {
    "data": "data.source",
    "method": "method.name",
    "encoder": "encoder.name",
    "views": "views.policy",
    "optimizer": "optimizer.name",
}


def plain(config: Any) -> dict[str, Any]:
    """Dictionaries, lists, numbers and text only."""

    def simple(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: simple(item) for key, item in value.items()}
        return [simple(item) for item in value] if isinstance(value, list | tuple) else value

    found: dict[str, Any] = simple(dataclasses.asdict(config))
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two plain configurations, each as `optimizer.lr: 0.001 there, 0.01 asked`."""
    before, after = dict(flat(old)), dict(flat(new))
    return [
        f"{key}: {before.get(key, 'nothing')} there, {after.get(key, 'nothing')} asked"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Names with dots, and their values."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def print_recipes() -> None:
    """The first line of each is what it is for."""
    for name in RECIPES:
        first = (
            (resources.files("smi.config") / "recipes" / f"{name}.yaml").read_text().splitlines()[0]
        )
        print(f"{name:17} {first.removeprefix('# ')}")
