"""Apply the section `as_published` of a recipe: a method as its authors train it.

as_published:
  BYOL: {optimizer: {…}, views: {…}, method: {…}, epochs: 300, batch_size: 4096}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smi.config.coerce import check_names, to_mapping, to_named, to_text, to_type
from smi.config.schema import RECIPES, read_text
from smi.errors import UserError
from smi.methods import name_of

PARTS = ("optimizer", "views", "encoder", "method", "epochs", "batch_size")


def apply_published(
    raw: Mapping[str, Any], overrides: Mapping[str, Any], recipe: str | Path
) -> dict[str, Any]:
    """Return a recipe without `as_published`, changed by its part for the method if requested.

    The configuration of a published run has no such section: it is complete already.
    """
    rest = {key: value for key, value in raw.items() if key != "as_published"}
    sections = raw.get("as_published")
    was_published = to_type(raw.get("published", False), bool, "published")
    published = to_type(overrides.get("published", was_published), bool, "published")
    method = to_named(raw.get("method", "SMI"), "method")
    name = name_of(to_text(overrides.get("method.name", method["name"]), "method"))
    if was_published and sections is None:
        if not published or name != name_of(method["name"]):
            raise UserError(
                f"{recipe} is the configuration of {method['name']} as its authors publish it: "
                "for anything else, name the recipe that it was made from"
            )
        return rest
    if not published:
        return rest
    if sections is None:
        others = ", ".join(name for name in RECIPES if "\nas_published:" in read_text(name))
        raise UserError(
            f"{recipe} does not say how methods are published; recipes with a section "
            f"as_published: {others}"
        )
    sections = {
        name_of(str(key)): section or {}
        for key, section in to_mapping(sections, "as_published").items()
    }
    if name not in sections:
        raise UserError(f"as_published of {recipe} has {', '.join(sections)}, but not {name}")
    section = to_mapping(sections[name], f"as_published.{name}")
    check_names(section, PARTS, f"as_published.{name}.", "")
    return _apply(rest, name, method, section)


def _apply(
    raw: Mapping[str, Any], name: str, method: Mapping[str, Any], section: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a recipe with the changes of one section.

    `optimizer` and `views` replace those of the recipe; of its views, only their size stays.
    `encoder` and `method` add settings.
    """
    where = f"as_published.{name}"
    applied = dict(raw) | {"published": True}
    applied |= {
        key: section[key] for key in ("optimizer", "epochs", "batch_size") if key in section
    }
    if "views" in section:
        views = to_mapping(raw.get("views", {}), "views")
        size = {key: value for key, value in views.items() if key == "size"}
        applied["views"] = size | to_mapping(section["views"], f"{where}.views")
    if "encoder" in section:
        encoder = to_named(raw["encoder"], "encoder")
        applied["encoder"] = encoder | to_mapping(section["encoder"], f"{where}.encoder")
    methods = {
        name_of(str(key)): value
        for key, value in to_mapping(raw.get("methods") or {}, "methods").items()
    }
    settings = to_mapping(methods.get(name) or {}, f"methods.{name}")
    if name == name_of(method["name"]):
        settings |= {key: value for key, value in method.items() if key != "name"}
        applied["method"] = name
    settings |= to_mapping(section.get("method", {}), f"{where}.method")
    return applied | {"methods": methods | {name: settings}}
