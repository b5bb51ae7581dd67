"""Convert words of a recipe or a command line to the types that settings have, or say in a sentence why not."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import yaml

from smi.errors import UserError


def to_dataclass(kind: Any, raw: Any, where: str) -> Any:
    raw = to_mapping(raw, where.rstrip(".") or "a recipe")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    kinds = typing.get_type_hints(kind)
    check_names(raw, fields, where, "")
    missing = [
        name
        for name, f in fields.items()
        if name not in raw
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"{where}{missing[0]} is not set, and has no default")
    return kind(
        **{name: to_type(value, kinds[name], f"{where}{name}") for name, value in raw.items()}
    )


def check_names(names: Iterable[str], known: Iterable[str], where: str, owner: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = (
                f"did you mean {where}{close[0]}?"
                if close
                else f"there are {', '.join(known)}"
                if known
                else "there are none"
            )
            raise UserError(f"{where}{name} is not a setting{owner}: {hint}")


def to_type(value: Any, kind: Any, where: str) -> Any:
    """The value in this type, or a sentence."""
    if dataclasses.is_dataclass(kind):
        return to_dataclass(kind, value, f"{where}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _guessed(value, where)
    if origin in (types.UnionType, typing.Union):
        if (value is None or value in ("null", "None")) and types.NoneType in arguments:
            return None
        (only,) = [argument for argument in arguments if argument is not types.NoneType][:1]
        return to_type(value, only, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise UserError(
            f"{where} must be one of {', '.join(map(str, arguments))}, not {value!r}: {hint(str(value), map(str, arguments))}"
        )
    if origin is dict:
        return {
            key: to_type(item, arguments[1], f"{where}.{key}")
            for key, item in to_mapping(value, where).items()
        }
    if origin in (tuple, list):
        value = _guessed(value, where)
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            raise UserError(f"{where} must have a value or more")
        each = arguments[0]
        if origin is tuple and arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise UserError(f"{where} must be {len(arguments)} values, not {len(items)}")
        return origin(to_type(item, each, where) for item in items)
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
    if (
        kind in (int, float)
        and isinstance(value, int | float | str)
        and not isinstance(value, bool)
    ):
        try:
            number = float(value)  # YAML 1.1 takes 1e-3 for text
        except ValueError:
            number = math.nan
        if math.isfinite(number) and (kind is float or number == int(number)):
            return kind(value) if not isinstance(value, str) else kind(number)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    raise UserError(
        f"{where} must be {names.get(kind, getattr(kind, '__name__', kind))}, not {value!r}"
    )


def to_mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must have settings below it (name: value), not {value!r}")
    return dict(value)


def to_named(value: Any, where: str) -> dict[str, Any]:
    found = {"name": value} if isinstance(value, str) else to_mapping(value, where)
    if not isinstance(found.get("name"), str):
        raise UserError(f"{where}.name is not set")
    return found


def to_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where} must be a name, not {value!r}")
    return value


def hint(wrong: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(wrong, known, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
