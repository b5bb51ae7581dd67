"""Resolve the configuration of a run, with the weights that it starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smi.config.resolve import resolve
from smi.config.schema import SHORT, Config
from smi.data.sources import ARRAY_DATASETS
from smi.errors import UserError
from smi.nn import create_encoder
from smi.nn.weights import SCHEMES, digest_of, load_weights
from smi.runs.run import START, Run, is_run
from smi.runs.start import Start, absolute_start, find_start

CPU_VIEW_SIZE = 64  # pixels per side of views on a CPU, if neither recipe nor user says it
STORED_SHARE = 1.5  # side of stored images, divided by that of such views


@dataclass(frozen=True)
class Configured:
    """Hold a configuration, and the weights of the encoder before the first step.

    weights: of Encoder.network; None trains from scratch.
    notes: sentences on what the weights lost or changed.
    """

    config: Config
    weights: dict[str, Tensor] | None = None
    notes: tuple[str, ...] = ()


def configure(
    recipe: str | Path,
    requested: Mapping[str, Any],
    *,
    folder: Path,
    device: torch.device,
    fresh: bool = False,
) -> Configured:
    """Resolve a recipe and requested settings; find the weights to start from.

    folder: of the run. If it exists, settings that an earlier version did not have are those of
    that version. fresh: it will be renamed, so it does not count.
    """
    configured = _configure(recipe, requested, folder, device)
    if fresh or not is_run(folder):
        return configured
    earlier = _earlier_settings(folder, configured.config)
    return _configure(recipe, {**earlier, **requested}, folder, device) if earlier else configured


def _configure(
    recipe: str | Path, requested: Mapping[str, Any], folder: Path, device: torch.device
) -> Configured:
    draft = resolve(recipe, requested, {"views.size": CPU_VIEW_SIZE})
    if draft.init.source is None:
        return Configured(resolve(recipe, requested))
    start = _find(absolute_start(draft.init.source), draft, folder)
    settings = {SHORT.get(key, key): value for key, value in requested.items()}
    settings["init.source"] = start.source
    if str(settings.get("encoder.name", SCHEMES[0])).startswith(SCHEMES):
        # Nobody names another network, so it is that of the weights.
        settings |= {f"encoder.{name}": value for name, value in start.encoder.items()}
    config = resolve(recipe, settings, _input_settings(start, draft, device))
    return _read(config, start)


def _find(source: str, draft: Config, folder: Path) -> Start:
    """Find the weights; a run that is resumed may take them from its own folder."""
    try:
        return find_start(source, draft.encoder)
    except UserError:
        kept = folder / START
        if is_run(folder) and kept.is_file() and Run(folder).init_source == source:
            return replace(find_start(str(kept), draft.encoder), source=source)
        raise


def _input_settings(start: Start, draft: Config, device: torch.device) -> dict[str, Any]:
    """Return settings that follow from the weights, for those that nobody has chosen."""
    if start.input is None:
        return {}
    size = start.input.size
    settings: dict[str, Any] = {}
    if device.type == "cpu" and size > CPU_VIEW_SIZE:
        size = CPU_VIEW_SIZE
        if draft.data.source not in ARRAY_DATASETS:
            settings["data.resolution"] = round(STORED_SHARE * size)
    return settings | {
        "views.size": size,
        "views.mean": start.input.mean,
        "views.std": start.input.std,
    }


def _read(config: Config, start: Start) -> Configured:
    """Read the weights into a network of the configuration, and record their digest."""
    encoder = create_encoder(**config.encoder, image_size=config.views.size)
    notes = load_weights(encoder.network, start.read(config.views.size), start.source)
    weights = dict(encoder.network.state_dict())
    digest = digest_of(weights)
    if config.init.digest not in (None, digest):
        raise UserError(
            f"the weights of {start.source} are not those of the configuration: their digest is "
            f"{digest}, and {config.init.digest} is recorded"
        )
    config = replace(config, init=replace(config.init, digest=digest))
    return Configured(config, weights, tuple(notes))


def _earlier_settings(folder: Path, config: Config) -> dict[str, Any]:
    """Return the settings that a run of an earlier version had without naming them."""
    run = Run(folder)
    same_method = run.config["method"]["name"] == config.method["name"]
    return {
        name: value
        for name, value in run.earlier_settings().items()
        if same_method or not name.startswith("method.")
    }
