"""What a run is: frozen dataclasses, read from a recipe (YAML) and what was asked on top of it, dotted: {"optimizer.lr": 1e-3}.

config = resolve("cifar10", {"method": "BarlowTwins", "epochs": 100})

A recipe is a name (one of recipes/*.yaml), or a file such as the config.yaml that every run leaves: resolving that again gives the run.
"""

import dataclasses
import difflib
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from smi.errors import UserError
from smi.methods import find_method, name_of, settings_of
from smi.views import RECIPES as POLICIES


@dataclass(frozen=True)
class Data:
    source: str  # a name or a folder
    resolution: int | None = None  # pixels of a side that images are kept at; None: their own, or 256 for files
    images: int | None = None  # train on so many of them, drawn from the seed; None: all
    validation: float = 0.0  # this share of the training images is kept apart, and probes look at it instead of the set's own val


@dataclass(frozen=True)
class Views:
    policy: str  # whose augmentations: cifar10, cifar100, imagenette, imagewoof, imagenet, digits
    size: int  # pixels of a side
    solarize_p: tuple[float, float] | None = None  # of the first and the second view; None: the policy's


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
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings each method takes under this recipe

    def text(self) -> str:
        """As YAML."""
        return yaml.safe_dump(plain(self), sort_keys=False, allow_unicode=True, width=120)


RECIPES = tuple(
    sorted(file.name.removesuffix(".yaml") for file in (resources.files("smi") / "recipes").iterdir() if file.name.endswith(".yaml"))
)

SHORT = {"data": "data.source", "method": "method.name", "encoder": "encoder.name", "views": "views.policy", "optimizer": "optimizer.name"}


def resolve(recipe: str | Path, asked: Mapping[str, Any] | None = None) -> Config:
    """A recipe with what was asked on top. Another method or encoder than the recipe's starts from its own defaults."""
    raw = read_recipe(recipe)
    asked = {SHORT.get(key, key): value for key, value in (asked or {}).items()}
    methods = _mapping(raw.get("methods") or {}, "methods")
    for key in [key for key in asked if key.startswith("methods.")]:
        _put({"methods": methods}, key, asked.pop(key))

    method = _named(raw.pop("method", "SMI"), "method")
    name = name_of(_text(asked.pop("method.name", method["name"]), "method"))
    own = {name_of(str(known)): _of_method(str(known), settings or {}) for known, settings in methods.items()}
    method = {"name": name} | own.get(name, {}) | ({**method, "name": name} if name == name_of(method["name"]) else {})

    encoder = _named(raw.pop("encoder", "resnet50"), "encoder")
    other = _text(asked.pop("encoder.name", encoder["name"]), "encoder")
    encoder = encoder if other == encoder["name"] else {"name": other}

    raw |= {"method": method, "encoder": encoder, "methods": own}
    for key, value in asked.items():
        _put(raw, key, value)
    raw["method"] = _method(raw["method"])
    config: Config = _dataclass(Config, raw, "")
    check(config)
    return config


def read_recipe(recipe: str | Path) -> dict[str, Any]:
    path = Path(recipe)
    if str(recipe) in RECIPES:
        text = (resources.files("smi") / "recipes" / f"{recipe}.yaml").read_text()
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        text = path.read_text()
    elif path.suffix in (".yaml", ".yml"):
        raise UserError(f"there is no file {path}")
    else:
        raise UserError(f"there is no recipe {str(recipe)!r}: {_hint(str(recipe), RECIPES)} (or name a YAML file)")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{recipe} is not YAML: {' '.join(str(error).split())}") from error
    return _mapping(found, str(recipe))


def check(config: Config) -> None:
    positive = {
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "optimizer.lr": config.optimizer.lr,
        "views.size": config.views.size,
        "log.every": config.log.every,
        "log.save_every": config.log.save_every,
        "log.probe_images": config.log.probe_images,
    }
    for name, value in positive.items():
        if value <= 0:
            raise UserError(f"{name} must be above 0, not {value}")
    for name, value in {
        "optimizer.weight_decay": config.optimizer.weight_decay,
        "optimizer.warmup_epochs": config.optimizer.warmup_epochs,
        "optimizer.final_lr": config.optimizer.final_lr,
        "optimizer.lr_vectors": config.optimizer.lr_vectors or 0,
        "log.probe_every": config.log.probe_every,
    }.items():
        if value < 0:
            raise UserError(f"{name} must be 0 or more, not {value}")
    if config.views.policy not in POLICIES:
        raise UserError(
            f"views.policy must be one of {', '.join(POLICIES)}, not {config.views.policy!r}: methods add their small views themselves"
        )
    if "image_size" in config.encoder:
        raise UserError("encoder.image_size is not a setting: views.size is what the encoder is given")
    for name, number in config.method.items():
        if isinstance(number, int) and not isinstance(number, bool) and number < 0:
            raise UserError(f"method.{name} must be 0 or more, not {number}")
        if isinstance(number, tuple) and min(number) < 1:
            raise UserError(f"method.{name} must be 1 or more each, not {', '.join(map(str, number))}")
    if config.data.resolution is not None and config.data.resolution < 1:
        raise UserError(f"data.resolution must be 1 or more, not {config.data.resolution}")
    if not 0 <= config.data.validation < 1:
        raise UserError(f"data.validation must be a share of the images from 0 to below 1, not {config.data.validation}")
    if config.optimizer.warmup_epochs >= config.epochs:
        raise UserError(f"optimizer.warmup_epochs ({config.optimizer.warmup_epochs:g}) must be below epochs ({config.epochs})")
    if config.data.images is not None and config.data.images < 2:
        raise UserError(f"data.images must be 2 or more, not {config.data.images}")


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
        first = (resources.files("smi") / "recipes" / f"{name}.yaml").read_text().splitlines()[0]
        print(f"{name:17} {first.removeprefix('# ')}")


# ------------------------------------------------------------------------------------------------------------- from text to types


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    place = raw
    for part in path:
        below = place.setdefault(part, {})
        if not isinstance(below, dict):
            raise UserError(f"{key} is not a setting: {part} has none below it")
        place = below
    place[last] = value


def _of_method(name: str, raw: Any) -> dict[str, Any]:
    """Some settings of a method, checked against its signature."""
    raw, settings = _mapping(raw, f"methods.{name}"), settings_of(find_method(name))
    _check_names(raw, settings, f"methods.{name}.", f" of {name}")
    return {key: _typed(value, settings[key].annotation, f"methods.{name}.{key}") for key, value in raw.items()}


def _method(raw: dict[str, Any]) -> dict[str, Any]:
    """Complete: every setting of the method, as its signature has it where nothing else is said."""
    settings = {name: p for name, p in settings_of(find_method(raw["name"])).items() if name != "num_images"}
    _check_names([key for key in raw if key != "name"], settings, "method.", f" of {raw['name']}")
    complete = {"name": raw["name"]}
    for name, p in settings.items():
        if name in raw:
            complete[name] = _typed(raw[name], p.annotation, f"method.{name}")
        elif p.default is inspect.Parameter.empty:
            raise UserError(f"method.{name} of {raw['name']} has no default: set it")
        else:
            complete[name] = p.default
    return complete


def _dataclass(kind: Any, raw: Any, where: str) -> Any:
    raw = _mapping(raw, where.rstrip(".") or "a recipe")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    kinds = typing.get_type_hints(kind)
    _check_names(raw, fields, where, "")
    missing = [
        name
        for name, f in fields.items()
        if name not in raw and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"{where}{missing[0]} is not set, and has no default")
    return kind(**{name: _typed(value, kinds[name], f"{where}{name}") for name, value in raw.items()})


def _check_names(names: Iterable[str], known: Iterable[str], where: str, owner: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {where}{close[0]}?" if close else f"there are {', '.join(known)}" if known else "there are none"
            raise UserError(f"{where}{name} is not a setting{owner}: {hint}")


def _typed(value: Any, kind: Any, where: str) -> Any:
    """The value in this type, or a sentence."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, f"{where}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _guessed(value, where)
    if origin in (types.UnionType, typing.Union):
        if (value is None or value in ("null", "None")) and types.NoneType in arguments:
            return None
        (only,) = [argument for argument in arguments if argument is not types.NoneType][:1]
        return _typed(value, only, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise UserError(f"{where} must be one of {', '.join(map(str, arguments))}, not {value!r}: {_hint(str(value), map(str, arguments))}")
    if origin is dict:
        return {key: _typed(item, arguments[1], f"{where}.{key}") for key, item in _mapping(value, where).items()}
    if origin in (tuple, list):
        value = _guessed(value, where)
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            raise UserError(f"{where} must have a value or more")
        each = arguments[0]
        if origin is tuple and arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise UserError(f"{where} must be {len(arguments)} values, not {len(items)}")
        return origin(_typed(item, each, where) for item in items)
    return _scalar(value, kind, where)


def _guessed(value: Any, where: str) -> Any:
    """Words of the command line where no type says what they are: numbers, lists, true, null; else text."""
    if not isinstance(value, str):
        return value
    try:
        found = yaml.safe_load(value) if value else value
    except yaml.YAMLError as error:
        raise UserError(f"{where} cannot be read: {value!r}") from error
    try:
        return float(found) if isinstance(found, str) else found  # YAML 1.1 takes 1e-3 for text
    except ValueError:
        return found


def _scalar(value: Any, kind: Any, where: str) -> Any:
    if kind is bool and (isinstance(value, bool) or str(value).lower() in ("true", "false")):
        return str(value).lower() == "true"
    if kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)  # YAML 1.1 takes 1e-3 for text
        except ValueError:
            number = math.nan
        if math.isfinite(number) and (kind is float or number == int(number)):
            return kind(value) if not isinstance(value, str) else kind(number)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    raise UserError(f"{where} must be {names.get(kind, getattr(kind, '__name__', kind))}, not {value!r}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must have settings below it (name: value), not {value!r}")
    return dict(value)


def _named(value: Any, where: str) -> dict[str, Any]:
    found = {"name": value} if isinstance(value, str) else _mapping(value, where)
    if not isinstance(found.get("name"), str):
        raise UserError(f"{where}.name is not set")
    return found


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where} must be a name, not {value!r}")
    return value


def _hint(wrong: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(wrong, known, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
