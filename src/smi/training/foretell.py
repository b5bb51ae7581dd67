"""Describe a source of images, and foretell what pretraining on it would do, for `smi data`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smi.data.cache import cache_bytes, is_cached
from smi.data.describe import (
    DatasetDescription,
    FolderDescription,
    ShardsDescription,
    describe_data,
)
from smi.data.folders import FileSet
from smi.data.sources import resolve_source
from smi.device import Runtime
from smi.errors import UserError
from smi.files import cache_home
from smi.terminal import quietly


@dataclass(frozen=True)
class Foretold:
    """Hold the description of images, and the recipe that `smi pretrain --data` would choose."""

    description: DatasetDescription | FolderDescription | ShardsDescription
    recipe: str | None  # None: pretraining would refuse these images
    sentence: str

    def text(self) -> str:
        """Format the description and the choice for a terminal."""
        lines = self.description.text().split("\n")
        if self.recipe is None:
            lines = [line for line in lines if not line.startswith("Pretraining would use")]
        return "\n".join([*lines, self.sentence])

    def plain(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return self.description.plain() | {"recipe": self.recipe, "choice": self.sentence}


def foretell(target: str, *, runtime: Runtime = Runtime(), quiet: bool = False) -> Foretold:
    """Describe images as `describe_data` does, at the resolution that pretraining would use.

    print(foretell("photos").text())
    """
    root = None if runtime.root is None else Path(runtime.root)
    with quietly(quiet):
        description = describe_data(target, root=root)
        from smi.config.choose import choose_recipe  # imports torch, which takes seconds
        from smi.config.resolve import read_recipe

        try:
            choice = choose_recipe(target, root, runtime.choose_device())
        except UserError as error:
            return Foretold(description, None, f"Pretraining would stop: {error}.")
        section = read_recipe(choice.recipe).get("data") or {}
        resolution = choice.settings.get("data.resolution") or section.get("resolution")
        if resolution and isinstance(description, ShardsDescription):
            description = replace(description, resolution=resolution)
        if resolution and isinstance(description, FolderDescription):
            files = resolve_source(target, "train", root)
            if isinstance(files, FileSet):
                description = _at(description, files, resolution)
        return Foretold(description, choice.recipe, f"It would choose {choice.sentence}.")


def _at(description: FolderDescription, files: FileSet, resolution: int) -> FolderDescription:
    """Return the description with the cache of another resolution."""
    return replace(
        description,
        resolution=resolution,
        cached=is_cached(files, resolution, cache_home() / "images"),
        cache_bytes=cache_bytes(files, resolution, "aspect"),
    )
