"""What a run is: frozen dataclasses, read from a recipe (YAML) and what was asked on top of it, dotted: {"optimizer.lr": 1e-3}.

config = resolve("cifar10", {"method": "BarlowTwins", "epochs": 100})

A recipe is a name (one of recipes/*.yaml), or a file such as the config.yaml that every run leaves: resolving that again gives the run.
"""

import inspect
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from smi.config.coerce import (
    check_names,
    hint,
    to_dataclass,
    to_mapping,
    to_named,
    to_text,
    to_type,
)
from smi.config.schema import RECIPES, SHORT, Config
from smi.errors import UserError
from smi.methods import find_method, name_of, settings_of
from smi.views import RECIPES as POLICIES


def resolve(recipe: str | Path, asked: Mapping[str, Any] | None = None) -> Config:
    """A recipe with what was asked on top. Another method or encoder than the recipe's starts from its own defaults."""
    raw = read_recipe(recipe)
    asked = {SHORT.get(key, key): value for key, value in (asked or {}).items()}
    methods = to_mapping(raw.get("methods") or {}, "methods")
    for key in [key for key in asked if key.startswith("methods.")]:
        _put({"methods": methods}, key, asked.pop(key))

    method = to_named(raw.pop("method", "SMI"), "method")
    name = name_of(to_text(asked.pop("method.name", method["name"]), "method"))
    own = {
        name_of(str(known)): _of_method(str(known), settings or {})
        for known, settings in methods.items()
    }
    method = (
        {"name": name}
        | own.get(name, {})
        | ({**method, "name": name} if name == name_of(method["name"]) else {})
    )

    encoder = to_named(raw.pop("encoder", "resnet50"), "encoder")
    other = to_text(asked.pop("encoder.name", encoder["name"]), "encoder")
    encoder = encoder if other == encoder["name"] else {"name": other}

    raw |= {"method": method, "encoder": encoder, "methods": own}
    for key, value in asked.items():
        _put(raw, key, value)
    raw["method"] = _method(raw["method"])
    config: Config = to_dataclass(Config, raw, "")
    check(config)
    return config


def read_recipe(recipe: str | Path) -> dict[str, Any]:
    path = Path(recipe)
    if str(recipe) in RECIPES:
        text = (resources.files("smi.config") / "recipes" / f"{recipe}.yaml").read_text()
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        text = path.read_text()
    elif path.suffix in (".yaml", ".yml"):
        raise UserError(f"there is no file {path}")
    else:
        raise UserError(
            f"there is no recipe {str(recipe)!r}: {hint(str(recipe), RECIPES)} (or name a YAML file)"
        )
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{recipe} is not YAML: {' '.join(str(error).split())}") from error
    return to_mapping(found, str(recipe))


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
        raise UserError(
            "encoder.image_size is not a setting: views.size is what the encoder is given"
        )
    for name, number in config.method.items():
        if isinstance(number, int) and not isinstance(number, bool) and number < 0:
            raise UserError(f"method.{name} must be 0 or more, not {number}")
        if isinstance(number, tuple) and min(number) < 1:
            raise UserError(
                f"method.{name} must be 1 or more each, not {', '.join(map(str, number))}"
            )
    if config.data.resolution is not None and config.data.resolution < 1:
        raise UserError(f"data.resolution must be 1 or more, not {config.data.resolution}")
    if not 0 <= config.data.validation < 1:
        raise UserError(
            f"data.validation must be a share of the images from 0 to below 1, not {config.data.validation}"
        )
    if config.optimizer.warmup_epochs >= config.epochs:
        raise UserError(
            f"optimizer.warmup_epochs ({config.optimizer.warmup_epochs:g}) must be below epochs ({config.epochs})"
        )
    if config.data.images is not None and config.data.images < 2:
        raise UserError(f"data.images must be 2 or more, not {config.data.images}")


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
    raw, settings = to_mapping(raw, f"methods.{name}"), settings_of(find_method(name))
    check_names(raw, settings, f"methods.{name}.", f" of {name}")
    return {
        key: to_type(value, settings[key].annotation, f"methods.{name}.{key}")
        for key, value in raw.items()
    }


def _method(raw: dict[str, Any]) -> dict[str, Any]:
    """Complete: every setting of the method, as its signature has it where nothing else is said."""
    settings = {
        name: p for name, p in settings_of(find_method(raw["name"])).items() if name != "num_images"
    }
    check_names([key for key in raw if key != "name"], settings, "method.", f" of {raw['name']}")
    complete = {"name": raw["name"]}
    for name, p in settings.items():
        if name in raw:
            complete[name] = to_type(raw[name], p.annotation, f"method.{name}")
        elif p.default is inspect.Parameter.empty:
            raise UserError(f"method.{name} of {raw['name']} has no default: set it")
        else:
            complete[name] = p.default
    return complete
