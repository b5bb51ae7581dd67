"""Find the weights that a run starts from: of timm, of its hub, of another run or of a file.

start = find_start("timm", {"name": "resnet18.a1_in1k"})
tensors = start.read(image_size=64)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from smi.errors import UserError
from smi.files import expand
from smi.nn.encoders import SMALL_RESNET, is_resnet_name, stem_of
from smi.nn.weights import (
    LOCAL_SCHEME,
    SCHEMES,
    Input,
    hub_export,
    hub_network,
    hub_weights,
    input_of,
    read_tensors,
    timm_weights,
)
from smi.runs.encoder import Pretrained, has_header, load
from smi.runs.run import is_run

TIMM = "timm"


@dataclass(frozen=True)
class Start:
    """Describe weights before they are read.

    source: their name, as a sentence or config.yaml has it.
    encoder: the arguments of `create_encoder` for their network.
    input: the input that they expect; None if nothing says so.
    read: returns the tensors for images of a size.
    """

    source: str
    encoder: dict[str, Any]
    input: Input | None
    read: Callable[[int], Mapping[str, Tensor]]


def find_start(source: str, encoder: Mapping[str, Any]) -> Start:
    """Find weights by their source; those of timm and of foreign files are not read yet.

    encoder: the network to use, if the source does not name its own. "timm" stands for the weights
    of that network's name.
    """
    if not source:
        raise UserError("--init is empty: name the weights to start from")
    name = str(encoder["name"])
    if source == TIMM and name.startswith(SCHEMES):
        source = absolute_start(name)
    if source == TIMM:
        settings = dict(encoder)
        return Start(TIMM, settings, input_of(settings), lambda size: timm_weights(settings, size))
    if source.startswith(SCHEMES):
        settings, expected = hub_network(source)
        if hub_export(source) is not None:  # by smi, so its digest is checked
            return Start(source, settings, expected, lambda size: load(source).network.state_dict())
        return Start(source, settings, expected, lambda size: hub_weights(source))
    path = expand(source)
    if path.is_dir() or (path.is_file() and has_header(path)):
        return _of_encoder(load(path))
    if path.is_file():
        settings = dict(encoder)
        return Start(str(path), settings, input_of(settings), lambda size: read_tensors(path))
    raise UserError(
        f"there are no weights {source!r}: give timm, the folder of a run, a .safetensors file, "
        "hf-hub:ORG/NAME or local-dir:PATH"
    )


def _of_encoder(encoder: Pretrained) -> Start:
    """Describe the weights of a run or of a file that names its network."""
    settings = dict(encoder.settings)
    if is_resnet_name(str(settings["name"])) or settings["name"] == SMALL_RESNET:
        # Another image size must not change the stem.
        settings["stem"] = stem_of(
            encoder.network, str(settings["name"]), encoder.image_size, settings.get("stem")
        )
    return Start(
        str(encoder.source),
        settings,
        Input(encoder.mean, encoder.std, encoder.image_size),
        lambda size: encoder.network.state_dict(),
    )


def absolute_start(source: str) -> str:
    """Return the absolute path of a run, a file or a folder: a configuration works anywhere."""
    if source.startswith(LOCAL_SCHEME):
        return f"{LOCAL_SCHEME}{expand(source.removeprefix(LOCAL_SCHEME)).resolve()}"
    if source == TIMM or source.startswith(SCHEMES):
        return source
    path = expand(source)
    return str(path.resolve()) if path.exists() or is_run(path) else source
