"""Resolve the configuration of a run, with the weights that it starts from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smi.config.resolve import read_recipe, resolve
from smi.config.schema import RECIPES, SHORT, Config
from smi.data.sources import holds_arrays
from smi.errors import UserError
from smi.files import expand, read_yaml
from smi.nn import create_encoder
from smi.nn.encoders import (
    MAX_CIFAR_STEM_SIDE,
    Encoder,
    is_import_path,
    is_resnet,
    is_resnet_name,
    stem_of,
)
from smi.nn.weights import SCHEMES, digest_of, has_large_stem, hub_network, load_weights
from smi.runs.encoder import WEIGHTS, read_weights
from smi.runs.run import Run, has_steps
from smi.runs.start import TIMM, Start, absolute_start, find_start
from smi.views.normalisation import KEPT_SHARE

# Pixels per side on a CPU, if neither recipe nor user says them. Crops show objects larger than
# whole images do, so that an encoder is best at larger images than its views (arXiv:1906.06423).
CPU_VIEW_SIZE = 96
CPU_INPUT_SIZE = 128
GPU_VIEW_SIZE = 224
STORED_SHARE = 1.5  # least side of stored images, divided by that of the views of a CPU
MAX_CUT_STEM_SIDE = 32  # pixels; up to these, the centre of a trained 7 x 7 stem serves better
# Sections and names of the settings that follow from weights.
FOLLOWING = (
    *(("views", name) for name in ("size", "input_size", "mean", "std")),
    ("data", "resolution"),
)


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

    folder: of the run. If it has taken steps, settings that an earlier version did not have are
    those of that version. fresh: it will be renamed, so it does not count.
    """
    run = Run(folder) if has_steps(folder) and not fresh else None
    configured = _configure(recipe, requested, run, device)
    if run is None:
        return configured
    earlier = _earlier_settings(run, configured.config, recipe)
    return _configure(recipe, {**earlier, **requested}, run, device) if earlier else configured


def _configure(
    recipe: str | Path, requested: Mapping[str, Any], run: Run | None, device: torch.device
) -> Configured:
    draft = resolve(recipe, requested, {"views.size": CPU_VIEW_SIZE})
    settings = {SHORT.get(key, key): value for key, value in requested.items()}
    name = str(draft.encoder["name"])
    chosen = _has_input_size(recipe, settings)
    if draft.init.source is None:
        if name.startswith(SCHEMES):  # the network of the hub, without its weights
            settings |= {f"encoder.{key}": value for key, value in hub_network(name)[0].items()}
        config = resolve(recipe, settings, _sizes(device))
        return Configured(_with_input_size(config, chosen=chosen))
    has_size = _has_size(recipe, settings)
    start, defaults = _find(draft, run, device, has_size)
    settings["init.source"] = start.source
    if str(settings.get("encoder.name", SCHEMES[0])).startswith(SCHEMES):
        # Nobody names another network, so it is that of the weights.
        settings |= {f"encoder.{name}": value for name, value in start.encoder.items()}
    config = resolve(recipe, settings, defaults)
    if not has_size:  # a repeated configuration has all sizes
        config = _with_small_files(config, start)
    return _read(config, start, chosen=chosen)


def _has_size(recipe: str | Path, settings: Mapping[str, Any]) -> bool:
    """Return whether somebody has chosen the size of views."""
    views = read_recipe(recipe).get("views")
    in_recipe = isinstance(views, Mapping) and views.get("size") is not None
    return in_recipe or settings.get("views.size") is not None


def _has_input_size(recipe: str | Path, settings: Mapping[str, Any]) -> bool:
    """Return whether the user has chosen the size of whole images.

    That of a recipe of this package suits its own encoder. Another may need the size of views.
    """
    own = {} if str(recipe) in RECIPES else read_yaml(Path(recipe))
    views = own.get("views")
    in_file = isinstance(views, Mapping) and views.get("input_size") is not None
    return in_file or settings.get("views.input_size") is not None


def _with_small_files(config: Config, start: Start) -> Config:
    """Store files at a size that suits the small views of a CPU, unless somebody chose one."""
    size = config.views.whole_size
    made_smaller = start.input is not None and start.input.size > size
    if (
        config.views.size != CPU_VIEW_SIZE
        or not made_smaller
        or config.data.resolution is not None
        or holds_arrays(config.data.source)
    ):
        return config
    resolution = round(max(STORED_SHARE * config.views.size, size / KEPT_SHARE))
    return replace(config, data=replace(config.data, resolution=resolution))


def _with_whole_stem(config: Config, tensors: Mapping[str, Tensor]) -> Config:
    """Keep the stem of a trained ResNet, unless somebody chose another or images are very small.

    A stem for small images would take sixteen times the work at the same size.
    """
    encoder = config.encoder
    if (
        "stem" in encoder
        or not has_large_stem(tensors)
        or config.views.size <= MAX_CUT_STEM_SIDE
        or config.views.size > MAX_CIFAR_STEM_SIDE
        or not is_resnet_name(encoder["name"])
    ):
        return config
    return replace(config, encoder=encoder | {"stem": "standard"})


def _find(
    draft: Config, run: Run | None, device: torch.device, has_size: bool
) -> tuple[Start, dict[str, Any]]:
    """Find the weights, and the settings that follow from them.

    has_size: somebody has chosen the size of views, which is then that of whole images, too.
    run: to resume. It has kept a copy of its weights, in case they are not there any more.
    """
    source = absolute_start(str(draft.init.source))
    kept = None if run is None else _kept_start(run, source, draft)
    recorded = {}
    if run is not None and kept is not None:  # also if it is resumed on another device
        recorded = {f"{part}.{name}": run.config[part].get(name) for part, name in FOLLOWING}
    try:
        start = find_start(source, draft.encoder)
    except UserError:
        if kept is None:
            raise
        return kept, recorded
    if kept is not None:
        start = replace(start, read=_first_readable(start, kept))
    settings = recorded or _input_settings(start, device)
    if has_size and not recorded:
        settings.pop("views.input_size", None)
    return start, settings


def _kept_start(run: Run, source: str, draft: Config) -> Start | None:
    """Return the start that a run has kept, if it is that of this source."""
    recorded = run.init_source
    if recorded is None or not run.start.is_file():
        return None
    name = str(draft.encoder["name"])
    if source == TIMM and name.startswith(SCHEMES):
        source = absolute_start(name)
    paths = [Path(recorded)]
    if paths[0].name in WEIGHTS:  # of an export, which the command may name by its folder
        paths.append(paths[0].parent)
    if source != recorded and expand(source).resolve() not in paths:
        return None
    weights = run.start
    return Start(recorded, run.config["encoder"], None, lambda size: read_weights(weights)[0])


def _first_readable(start: Start, kept: Start) -> Callable[[int], Mapping[str, Tensor]]:
    """Return a function that reads the start or, if it cannot be read, the copy of the run."""

    def read(size: int) -> Mapping[str, Tensor]:
        try:
            return start.read(size)
        except UserError:
            return kept.read(size)

    return read


def _input_settings(start: Start, device: torch.device) -> dict[str, Any]:
    """Return settings that follow from the weights, for those that nobody has chosen."""
    if start.input is None:
        return _sizes(device)
    size = start.input.size
    on_cpu = device.type == "cpu"
    larger = on_cpu and size > CPU_VIEW_SIZE
    return {
        "views.size": min(size, CPU_VIEW_SIZE) if on_cpu else size,
        "views.input_size": min(size, CPU_INPUT_SIZE) if larger else None,
        "views.mean": start.input.mean,
        "views.std": start.input.std,
    }


def _sizes(device: torch.device) -> dict[str, Any]:
    """Return the size of views for networks that do not say theirs."""
    return {"views.size": CPU_VIEW_SIZE if device.type == "cpu" else GPU_VIEW_SIZE}


def _with_input_size(
    config: Config, encoder: Encoder | None = None, *, chosen: bool = True
) -> Config:
    """Settle the size of whole images: not every network takes another one than that of views.

    chosen: by the user. If not, whole images have the size of views where they must. The stem of a
    ResNet is recorded, because another image size must not change it.
    """
    views = config.views
    if views.whole_size == views.size:
        return config
    name = str(config.encoder["name"])
    encoder = encoder or create_encoder(**config.encoder, image_size=views.size)
    settings = config.encoder
    if is_resnet(encoder.network) and not is_import_path(name):
        stem = stem_of(encoder.network, name, views.size, settings.get("stem"))
        settings = settings | {"stem": stem}
    try:
        _require_fit(encoder, create_encoder(**settings, image_size=views.whole_size), name)
    except Exception:  # a network of the user may raise anything
        if chosen:
            raise
        return replace(config, views=replace(views, input_size=None))
    return replace(config, encoder=settings)


def _require_fit(encoder: Encoder, other: Encoder, name: str) -> None:
    """Raise a UserError if the weights of an encoder do not fit one for images of another size."""
    shapes = [{k: v.shape for k, v in e.state_dict().items()} for e in (encoder, other)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{name} has weights for each position, so whole images must have the size of views: "
            "leave out views.input_size"
        )


def _read(config: Config, start: Start, *, chosen: bool) -> Configured:
    """Read the weights into a network of the configuration, and record their digest.

    chosen: the user has chosen views.input_size.
    """
    tensors = start.read(config.views.size)
    config = _with_whole_stem(config, tensors)
    encoder = create_encoder(**config.encoder, image_size=config.views.size)
    config = _with_input_size(config, encoder, chosen=chosen)
    notes = load_weights(encoder.network, tensors, start.source)
    weights = dict(encoder.network.state_dict())
    digest = digest_of(weights)
    if config.init.digest not in (None, digest):
        raise UserError(
            f"the weights of {start.source} are not those of the configuration: their digest is "
            f"{digest}, and {config.init.digest} is recorded"
        )
    config = replace(config, init=replace(config.init, digest=digest))
    return Configured(config, weights, tuple(notes))


def _earlier_settings(run: Run, config: Config, recipe: str | Path) -> dict[str, Any]:
    """Return the settings that a run of an earlier version had without naming them."""
    same_method = run.config["method"]["name"] == config.method["name"]
    settings = {
        name: value
        for name, value in run.earlier_settings().items()
        if same_method or not name.startswith("method.")
    }
    # The recipe of another version may use the same encoder with images of another size.
    views = run.config["views"]
    scratch = config.init.source is None and run.init_source is None
    if str(recipe) in RECIPES and scratch and views["size"] == config.views.size:
        whole = views.get("input_size")
        if whole != config.views.input_size:
            settings["views.input_size"] = whole
    return settings
