"""Convert values of a recipe or a command line to the types of the settings."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from smi.errors import UserError
from smi.files import parse_yaml_value
from smi.terminal import suggest

MAX_SHOWN = 60  # characters of a wrong value
MAX_NUMBER = 10**15  # of whole numbers: larger ones are not exact as float64


def to_dataclass(kind: Any, raw: Any, where: str) -> Any:
    """Convert a mapping to a dataclass; `where` is the dotted prefix of its fields."""
    raw = to_mapping(raw, where.rstrip(".") or "a recipe")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    kinds = typing.get_type_hints(kind)
    check_names(raw, fields, where, "")
    if missing := missing_names(kind, raw):
        verb = "is not set, and has" if len(missing) == 1 else "are not set, and have"
        raise UserError(f"{', '.join(where + name for name in missing)} {verb} no default")
    return kind(
        **{name: to_type(value, kinds[name], f"{where}{name}") for name, value in raw.items()}
    )


def missing_names(kind: Any, raw: Mapping[str, Any]) -> list[str]:
    """Return the settings without a default that are not there, with those of sections below."""
    kinds = typing.get_type_hints(kind)
    names = []
    for field in dataclasses.fields(kind):
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        value = raw.get(field.name)
        if dataclasses.is_dataclass(kinds[field.name]) and (required or value is not None):
            section = value if isinstance(value, Mapping) else {}
            below = missing_names(kinds[field.name], section)
            names += [f"{field.name}.{name}" for name in below]
        elif required and field.name not in raw:
            names.append(field.name)
    return names


def check_names(names: Iterable[str], options: Iterable[str], where: str, owner: str) -> None:
    """Raise a UserError for the first name that is not one of the options."""
    options = list(options)
    for name in names:
        if name not in options:
            hint = suggest(str(name), options, where)
            raise UserError(f"{where}{name} is not a setting{owner}: {hint}")


def to_type(value: Any, kind: Any, where: str) -> Any:
    """Convert a value to a type, or raise a UserError that names the setting `where`."""
    if dataclasses.is_dataclass(kind):
        return to_dataclass(kind, value, f"{where}.")
    if kind is Any:
        return _guess(value, where)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if (value is None or value in ("null", "None")) and types.NoneType in arguments:
            return None
        for words in (a for a in arguments if typing.get_origin(a) is Literal):
            if value in typing.get_args(words):
                return value
        (first,) = [argument for argument in arguments if argument is not types.NoneType][:1]
        return to_type(value, first, where)
    if origin is Literal:
        return _to_option(value, arguments, where)
    if origin is dict:
        return {
            key: to_type(item, arguments[1], f"{where}.{key}")
            for key, item in to_mapping(value, where).items()
        }
    if origin in (tuple, list):
        return _to_sequence(value, origin, arguments, where)
    return _to_scalar(value, kind, where)


def _to_option(value: Any, options: tuple[Any, ...], where: str) -> Any:
    """Return the value if it is one of the options."""
    if value in options:
        return value
    names = list(map(str, options))
    hint = suggest(str(value), names)
    raise UserError(f"{where} must be one of {', '.join(names)}, not {_shown(value)}: {hint}")


def _to_sequence(value: Any, origin: Any, arguments: tuple[Any, ...], where: str) -> Any:
    """Convert a list, or a single value, to a tuple or a list of the right type and length."""
    value = _guess(value, where)
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise UserError(f"{where} must have at least one value")
    if origin is tuple and arguments[-1] is not Ellipsis and len(items) != len(arguments):
        raise UserError(f"{where} must be {len(arguments)} values, not {len(items)}")
    return origin(to_type(item, arguments[0], where) for item in items)


def _guess(value: Any, where: str) -> Any:
    """Convert text without a declared type to a number, a list, true or null, or keep it."""
    if not isinstance(value, str):
        return value
    try:
        parsed = parse_yaml_value(value, where) if value else value
    except UserError as error:
        raise UserError(f"{where} cannot be read: {_shown(value)}") from error
    try:
        return float(parsed) if isinstance(parsed, str) else parsed  # YAML 1.1: 1e-3 is text
    except ValueError:
        return parsed


def _to_scalar(value: Any, kind: Any, where: str) -> Any:
    """Convert to bool, str, int or float."""
    if kind is bool and (isinstance(value, bool) or str(value).lower() in ("true", "false")):
        return str(value).lower() == "true"
    if kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if (
        kind in (int, float)
        and isinstance(value, int | float | str)
        and not isinstance(value, bool)
    ):
        try:
            number = float(value)  # YAML 1.1 takes 1e-3 for text
        except (ValueError, OverflowError):
            number = math.nan
        in_range = math.isfinite(number) and (kind is float or abs(number) <= MAX_NUMBER)
        if in_range and (kind is float or number == int(number)):
            return kind(value) if not isinstance(value, str) else kind(number)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    expected = names.get(kind, getattr(kind, "__name__", kind))
    raise UserError(f"{where} must be {expected}, not {_shown(value)}")


def _shown(value: Any) -> str:
    """Return a value for a sentence, cut if it is long."""
    shown = repr(value)
    return f"{shown[:MAX_SHOWN]}…" if len(shown) > MAX_SHOWN else shown


def to_mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a dictionary, or raise a UserError."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must have settings below it (name: value), not {_shown(value)}")
    return dict(value)


def to_named(value: Any, where: str) -> dict[str, Any]:
    """Return a dictionary with a name, also for a name alone."""
    settings = {"name": value} if isinstance(value, str) else to_mapping(value, where)
    if not isinstance(settings.get("name"), str):
        raise UserError(f"{where}.name is not set")
    return settings


def to_text(value: Any, where: str) -> str:
    """Return text, or raise a UserError."""
    if not isinstance(value, str):
        raise UserError(f"{where} must be a name, not {_shown(value)}")
    return value
