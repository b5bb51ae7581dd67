"""Resolve a recipe (YAML) and dotted overrides such as {"optimizer.lr": 1e-3} to a `Config`.

config = resolve("cifar10", {"method": "BarlowTwins", "epochs": 100})

A recipe is a name (one of recipes/*.yaml) or a YAML file. The config.yaml that every run writes is
such a file: resolving it gives the configuration of the run.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smi.config.coerce import check_names, to_dataclass, to_mapping, to_named, to_text, to_type
from smi.config.published import apply_published
from smi.config.schema import RECIPES, SHORT, Config, read_text, require_recipe
from smi.errors import UserError
from smi.files import parse_yaml, read_yaml
from smi.imports import require_trust, trust
from smi.methods import find_method, name_of, settings_of
from smi.nn.encoders import MAX_IMAGE_SIDE, is_resnet_name, require_trusted_network
from smi.views import RECIPES as POLICIES

MAX_BASES = 10  # of a recipe, one below the other


def resolve(
    recipe: str | Path,
    overrides: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Config:
    """Resolve a recipe with overrides to a complete, validated configuration.

    A method or an encoder other than the recipe's starts from its own defaults. With `published`,
    the recipe's section `as_published` for the method comes before the overrides.
    defaults: settings for those that neither the recipe nor the overrides have.

    An import path in a YAML file is refused unless an override names it, too, or files are trusted.
    """
    raw = read_recipe(recipe)
    overrides = {SHORT.get(key, key): value for key, value in (overrides or {}).items()}
    if "views.input_size" not in overrides:
        _keep_ratio(raw, overrides.get("views.size"))
    for key, value in (defaults or {}).items():
        _put_default(raw, key, value)
    raw = apply_published(raw, overrides, recipe)
    methods = to_mapping(raw.get("methods") or {}, "methods")
    for key in [key for key in overrides if key.startswith("methods.")]:
        _put({"methods": methods}, key, overrides.pop(key))
    _trust_overrides(overrides)
    for path in [name for name in map(str, methods) if "." in name]:
        require_trust(path, recipe)
    learning_rates = _take_learning_rates(methods)
    by_method = {
        name_of(str(name)): _partial_settings(str(name), settings or {})
        for name, settings in methods.items()
    }

    method = to_named(raw.pop("method", "SMI"), "method")
    name = name_of(to_text(overrides.pop("method.name", method["name"]), "method"))
    if "." in name:
        require_trust(name, recipe)
    from_recipe = {**method, "name": name} if name == name_of(method["name"]) else {}
    method = {"name": name} | by_method.get(name, {}) | from_recipe

    encoder = to_named(raw.pop("encoder", "resnet50"), "encoder")
    encoder_name = to_text(overrides.pop("encoder.name", encoder["name"]), "encoder")
    if encoder_name != encoder["name"]:
        # A recipe for photographs divides their side by four, and not only its own network does.
        keeps_stem = encoder.get("stem") in ("standard", "quarter") and is_resnet_name(encoder_name)
        encoder = {"name": encoder_name} | ({"stem": "standard"} if keeps_stem else {})
    require_trusted_network(encoder, recipe)

    raw |= {"method": method, "encoder": encoder, "methods": by_method}
    if name in learning_rates and not overrides.get("published", raw.get("published")):
        _put(raw, "optimizer.lr", learning_rates[name])
    for key, value in overrides.items():
        _put(raw, key, value)
    raw["method"] = _complete_settings(raw["method"])
    if to_mapping(raw.get("data") or {}, "data").get("source") is None:
        raise UserError(f"{recipe} has no images of its own: name them with --data DIR")
    config: Config = to_dataclass(Config, raw, "")
    check_config(config)
    return config


def _trust_overrides(overrides: Mapping[str, Any]) -> None:
    """Trust the import paths that the user names: a file may name these, too."""
    for key in ("method.name", "encoder.name"):
        if isinstance(path := overrides.get(key), str) and "." in path:
            trust(path)


def read_recipe(recipe: str | Path, depth: int = 0) -> dict[str, Any]:
    """Read a recipe by its name or from a YAML file, which may name a base that it changes."""
    require_recipe(recipe)
    if str(recipe) in RECIPES:
        return parse_yaml(read_text(str(recipe)), recipe)
    path = Path(recipe)
    return _with_base(read_yaml(path), path, depth)


def _with_base(raw: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
    """Return the base of a recipe with its changes; a base is a recipe or a file beside it."""
    base = raw.pop("base", None)
    if base is None:
        return raw
    if depth == MAX_BASES:
        raise UserError(f"{path} has more than {MAX_BASES} bases")
    beside = path.parent / to_text(base, f"base of {path}")
    settings = read_recipe(beside if beside.is_file() else base, depth + 1)
    if isinstance(raw.get("optimizer"), Mapping) and "lr" in raw["optimizer"]:
        # It is for all methods, also for those that have one of their own in the base.
        _take_learning_rates(settings.get("methods") or {})
    settings.pop("as_published", None)  # it would replace what this recipe changes
    views = raw.get("views")
    if isinstance(views, Mapping) and "input_size" not in views:
        _keep_ratio(settings, views.get("size"))
    return _changed(settings, raw)


def _keep_ratio(raw: dict[str, Any], size: Any) -> None:
    """Scale the size of whole images in a recipe to a new size of views; None changes nothing."""
    views = raw.get("views")
    if not isinstance(views, Mapping):
        return
    if None in (size, views.get("size"), views.get("input_size")):
        return
    old, new = (to_type(pixels, int, "views.size") for pixels in (views["size"], size))
    whole = to_type(views["input_size"], int, "views.input_size")
    if old > 0:
        raw["views"] = {**views, "input_size": (2 * whole * new + old) // (2 * old)}  # rounded


def _changed(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with changes. Another method or encoder does not keep settings of the old."""
    settings = dict(base)
    for name, value in changes.items():
        before = base.get(name)
        if name in ("method", "encoder") and before is not None and value is not None:
            before, value = to_named(before, name), _named_like(value, before, name)
            if before["name"] != value["name"]:
                before = None
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = _changed(dict(before), value)
        settings[name] = value
    return settings


def _named_like(value: Any, before: Any, where: str) -> dict[str, Any]:
    """Return settings with a name; without one they change those of the base."""
    if isinstance(value, Mapping) and "name" not in value:
        return {"name": to_named(before, where)["name"], **value}
    return to_named(value, where)


def check_config(config: Config) -> None:
    """Raise a UserError for a value out of its range."""
    _check_numbers(config)
    _check_method(config.method)
    if config.views.policy not in POLICIES:
        raise UserError(
            f"views.policy must be one of {', '.join(POLICIES)}, not {config.views.policy!r}: "
            "methods add their small views themselves"
        )
    if "image_size" in config.encoder:
        raise UserError("encoder.image_size is not a setting: use views.size")
    data = config.data
    if data.resolution is not None and data.resolution < 1:
        raise UserError(f"data.resolution must be 1 or more, not {data.resolution}")
    if not 0 <= data.validation < 1:
        raise UserError(
            "data.validation must be a share of the images from 0 to below 1, "
            f"not {data.validation}"
        )
    if data.images is not None and data.images < 2:
        raise UserError(f"data.images must be 2 or more, not {data.images}")
    if config.select == "best" and not (data.validation and config.log.probe_every):
        raise UserError(
            "select: best chooses by probes of held-out training images: data.validation and "
            "log.probe_every must be above 0"
        )
    for name, size in {"size": config.views.size, "input_size": config.views.whole_size}.items():
        if size > MAX_IMAGE_SIDE:
            raise UserError(f"views.{name} must be at most {MAX_IMAGE_SIDE}, not {size}")
    for name in ("solarize_p", "blur_p"):
        for probability in getattr(config.views, name) or ():
            if not 0 <= probability <= 1:
                raise UserError(f"views.{name} must be between 0 and 1, not {probability:g}")
    warmup = config.optimizer.warmup_epochs
    if config.steps is None and warmup >= config.epochs:
        raise UserError(
            f"optimizer.warmup_epochs ({warmup:g}) must be below epochs ({config.epochs})"
        )


def _check_numbers(config: Config) -> None:
    positive = {
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "optimizer.lr": config.optimizer.lr,
        "views.size": config.views.size,
        "log.every": config.log.every,
        "log.save_every": config.log.save_every,
        "log.probe_images": config.log.probe_images,
        "accumulate": config.accumulate,
        "steps": 1 if config.steps is None else config.steps,
        "average_every": config.average_every,
    }
    if config.views.input_size is not None:
        positive["views.input_size"] = config.views.input_size
    if config.optimizer.clip is not None:
        positive["optimizer.clip"] = config.optimizer.clip
    for name, value in positive.items():
        if value <= 0:
            raise UserError(f"{name} must be above 0, not {value}")
    not_negative = {
        "optimizer.weight_decay": config.optimizer.weight_decay,
        "optimizer.warmup_epochs": config.optimizer.warmup_epochs,
        "optimizer.final_lr": config.optimizer.final_lr,
        "optimizer.final_weight_decay": config.optimizer.final_weight_decay or 0,
        "optimizer.lr_vectors": config.optimizer.lr_vectors or 0,
        "data.cache_gb": config.data.cache_gb,
        "log.keep_every": config.log.keep_every,
        "log.probe_every": config.log.probe_every,
    }
    for name, value in not_negative.items():
        if value < 0:
            raise UserError(f"{name} must be 0 or more, not {value}")


def _check_method(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 0:
            raise UserError(f"method.{name} must be 0 or more, not {value}")
        if isinstance(value, tuple) and min(value) < 1:
            raise UserError(
                f"method.{name} must be 1 or more each, not {', '.join(map(str, value))}"
            )


# ----------------------------------------------------------------------------- from text to types


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested dictionaries."""
    *path, last = key.split(".")
    level = raw
    for part in path:
        child = level.setdefault(part, {})
        if not isinstance(child, dict):
            raise UserError(f"{key} is not a setting: {part} has no settings of its own")
        level = child
    level[last] = value


def _put_default(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key that is missing or null."""
    section, _, name = key.rpartition(".")
    level = raw.get(section, {}) if section else raw
    if isinstance(level, dict) and level.get(name) is None:
        _put(raw, key, value)


def _take_learning_rates(methods: dict[str, Any]) -> dict[str, Any]:
    """Remove the learning rates from the settings of methods, and return them by method.

    A recipe may name one for a method, because the best one differs as other settings do.
    """
    rates = {}
    for name, settings in methods.items():
        if isinstance(settings, Mapping) and "lr" in settings:
            methods[name] = {key: value for key, value in settings.items() if key != "lr"}
            rates[name_of(str(name))] = settings["lr"]
    return rates


def _partial_settings(name: str, raw: Any) -> dict[str, Any]:
    """Check the given settings of a method against its signature."""
    raw = to_mapping(raw, f"methods.{name}")
    settings = settings_of(find_method(name))
    check_names(raw, settings, f"methods.{name}.", f" of {name}")
    return {
        key: to_type(value, settings[key].annotation, f"methods.{name}.{key}")
        for key, value in raw.items()
    }


def _complete_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """Return every setting of the method, with the defaults of its signature."""
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
