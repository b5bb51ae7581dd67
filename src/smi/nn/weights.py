"""Read the weights of trained networks, and load them into the network of an encoder.

    tensors = timm_weights({"name": "resnet18.a1_in1k"}, image_size=64)   # the weights of the tag
    tensors = read_tensors(Path("weights.safetensors"))
    notes = load_weights(encoder.network, tensors, "weights.safetensors")

Nothing is downloaded before such weights are named. Of .pth, .pt and .bin files only tensors are
read, so no file runs code.
"""

import hashlib
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smi.errors import UserError
from smi.nn.encoders import is_import_path, timm_terms

Triple = tuple[float, float, float]

SCHEMES = ("hf-hub:", "local-dir:")  # of timm, for models outside its list
PICKLED = (".pth", ".pt", ".bin", ".tar")
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
MAX_NAMED_TENSORS = 3  # in a sentence
# Training scripts put the tensors under such keys, and such prefixes before their names.
WRAPPERS = ("state_dict", "model_state_dict", "model", "network")
PREFIXES = ("module.", "model.", "network.", "encoder.", "backbone.")
CLASSIFIERS = ("fc", "classifier", "head", "heads")
STEM = "conv1.weight"  # of a ResNet


@dataclass(frozen=True)
class Input:
    """Describe the input that trained weights expect."""

    mean: Triple
    std: Triple
    size: int  # pixels per side


# ------------------------------------------------------------------------------- timm and its hub


def input_of(settings: Mapping[str, Any]) -> Input | None:
    """Return the input of a timm network's weights; None if timm does not know it."""
    name = str(settings["name"])
    if is_import_path(name):
        return None
    import timm

    config = timm.get_pretrained_cfg(timm_terms(name, 224, {})[0])
    if config is None:
        return None
    return Input(_triple(config.mean), _triple(config.std), config.input_size[-1])


def _triple(values: Sequence[float]) -> Triple:
    red, green, blue = values
    return red, green, blue


def hub_network(name: str) -> tuple[dict[str, Any], Input]:
    """Return the settings and the input of a network that is named hf-hub:… or local-dir:….

    config.json is read from the hub's cache or downloaded.
    """
    from timm.models._hub import load_model_config_from_hf, load_model_config_from_path

    scheme, place = _scheme(name)
    try:
        if scheme == "hf-hub:":
            config, network, arguments = load_model_config_from_hf(place)
        else:
            config, network, arguments = load_model_config_from_path(place)
        mean, std = _triple(config["mean"]), _triple(config["std"])
        expected = Input(mean, std, config["input_size"][-1])
        return {"name": network, **(arguments or {})}, expected
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"config.json of {name} does not describe a timm model: {error}") from error
    except Exception as error:  # the hub's client raises errors of several libraries
        raise _not_there(name, place, error) from error


def timm_weights(settings: Mapping[str, Any], image_size: int) -> dict[str, Tensor]:
    """Return the weights that timm publishes for a network, from the hub's cache or downloaded.

    Position embeddings are those for images of this size.
    """
    name = str(settings["name"])
    if is_import_path(name):
        raise UserError(f"timm has no weights for {name}: give a file or a run")
    import timm

    arguments = {key: value for key, value in settings.items() if key not in ("name", "stem")}
    timm_name, arguments = timm_terms(name, image_size, arguments)
    config = timm.get_pretrained_cfg(timm_name)
    if config is None or not config.has_weights:
        tags = ", ".join(timm.list_pretrained(f"{name.partition('.')[0]}*")[:5])
        hint = f"it has {tags}" if tags else "start from a file or a run, or train from scratch"
        raise UserError(f"timm has no weights for {name}: {hint}")
    try:
        network = timm.create_model(timm_name, pretrained=True, num_classes=0, **arguments)
    except Exception as error:  # the hub's client raises errors of several libraries
        raise _not_there(name, config.hf_hub_id or "", error) from error
    return dict(network.state_dict())


def hub_weights(name: str) -> dict[str, Tensor]:
    """Return the tensors of a model that is named hf-hub:… or local-dir:…."""
    scheme, place = _scheme(name)
    if scheme == "local-dir:":
        files = [path for file in HUB_FILES if (path := Path(place) / file).is_file()]
        if not files:
            raise UserError(f"{place} holds none of {', '.join(HUB_FILES)}")
        return read_tensors(files[0])
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = place.partition("@")
    for file in HUB_FILES:
        try:
            return read_tensors(Path(hf_hub_download(repository, file, revision=revision or None)))
        except EntryNotFoundError as error:
            if file == HUB_FILES[-1] or "offline" in str(error).lower():
                raise _not_there(name, place, error) from error
        except UserError:
            raise
        except Exception as error:  # the hub's client raises errors of several libraries
            raise _not_there(name, place, error) from error
    raise AssertionError("unreachable")


def is_cached(name: str) -> bool:
    """Return whether the weights of a timm name are in the cache of the hub."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    config = timm.get_pretrained_cfg(name)
    if config is None or config.hf_hub_id is None:
        return False
    file = config.hf_hub_filename or HUB_FILES[0]
    return isinstance(try_to_load_from_cache(config.hf_hub_id, file), str)


def _scheme(name: str) -> tuple[str, str]:
    scheme = next(scheme for scheme in SCHEMES if name.startswith(scheme))
    return scheme, name.removeprefix(scheme)


def _not_there(name: str, repository: str, error: Exception) -> UserError:
    """Return the sentence for weights that are not on this machine and cannot be downloaded."""
    if name.startswith("local-dir:"):
        return UserError(f"{name} cannot be read: {_first_line(error)}")
    from huggingface_hub.constants import HF_HUB_CACHE

    return UserError(
        f"the weights of {name} are not in the hub's cache ({HF_HUB_CACHE}) and cannot be "
        f"downloaded ({_first_line(error)}). Run `hf download {repository}` on a machine with a "
        "network and copy its cache, or give a file: --init FILE.safetensors"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(".:")[:200] if lines else type(error).__name__


# ------------------------------------------------------------------------------------------- files


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, or of a .pth, .pt or .bin file without its code."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if path.suffix in PICKLED:
            content = torch.load(path, map_location="cpu", weights_only=True)
        else:
            content = load_file(path)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds more than tensors, and reading it could run code: save its state_dict "
            "as .safetensors where you trust it"
        ) from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise UserError(f"{path} holds no weights: {_first_line(error)}") from error
    return _unwrapped(content, path)


def _unwrapped(content: Any, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a network that a checkpoint may hold beside other things."""
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    tensors = {
        str(name): tensor
        for name, tensor in (content.items() if isinstance(content, Mapping) else ())
        if isinstance(tensor, Tensor)
    }
    if not tensors:
        raise UserError(f"{path} holds no weights: there are no tensors in it")
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Hash names, types, shapes and values: equal weights have equal digests on any machine."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().tobytes())
    return digest.hexdigest()[:16]


# ----------------------------------------------------------------------------------------- loading


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor], source: str) -> list[str]:
    """Load tensors into a network without a classifier; return notes on what was changed.

    All tensors of the network must be there. A classifier is dropped. The 7 x 7 stem of a ResNet
    is cut to its centre if the network has a 3 x 3 stem.
    """
    expected = network.state_dict()
    given = _renamed(network, dict(tensors), expected)
    notes = []
    if head := [name for name in given if name not in expected and _is_classifier(network, name)]:
        notes.append(f"the classifier of {source} is dropped ({_names(head)})")
        given = {name: tensor for name, tensor in given.items() if name not in head}
    if STEM in given and STEM in expected and given[STEM].shape != expected[STEM].shape:
        centre = _centre(given[STEM], expected[STEM])
        if centre is not None:
            side = given[STEM].shape[-1]
            notes.append(f"of the {side} x {side} stem the centre of 3 x 3 is kept")
            given[STEM] = centre
    # Files of old versions of PyTorch do not count batches.
    counters = {name: t for name, t in expected.items() if name.endswith("num_batches_tracked")}
    given = counters | given
    _require_fit(network, given, expected, source)
    network.load_state_dict(given)
    return notes


def _renamed(
    network: nn.Module, given: dict[str, Tensor], expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Rename tensors of another layout where timm knows how; resize position embeddings."""
    if all(name in given and given[name].shape == t.shape for name, t in expected.items()):
        return given
    rename = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if rename is None:
        return given
    try:
        return dict(rename(given, network))
    except (KeyError, RuntimeError, TypeError, AttributeError, ValueError):
        return given  # another layout; the sentence below names what does not fit


def _is_classifier(network: nn.Module, name: str) -> bool:
    config = getattr(network, "pretrained_cfg", None) or {}
    own = config.get("classifier") or ()
    names = {*CLASSIFIERS, *((own,) if isinstance(own, str) else own)}
    return any(name.startswith(f"{classifier}.") for classifier in names)


def _centre(stem: Tensor, expected: Tensor) -> Tensor | None:
    """Return the centre of a larger kernel with as many channels; None for other shapes."""
    if stem.ndim != 4 or stem.shape[:2] != expected.shape[:2]:
        return None
    margin = (stem.shape[-1] - expected.shape[-1]) // 2
    if margin < 1 or expected.shape[-1] + 2 * margin != stem.shape[-1]:
        return None
    return stem[..., margin:-margin, margin:-margin].contiguous()


def _require_fit(
    network: nn.Module, given: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str
) -> None:
    """Raise a UserError that says what does not fit."""
    missing = [name for name in expected if name not in given]
    unused = [name for name in given if name not in expected]
    shapes = [
        f"{name} is {list(given[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    reasons = []
    if missing:
        reasons.append(f"{_count(missing)} missing ({_names(missing)})")
    if unused:
        reasons.append(f"{_count(unused)} not part of it ({_names(unused)})")
    if shapes:
        reasons.append(f"{_count(shapes)} of another shape ({_names(shapes)})")
    if reasons:
        raise UserError(
            f"{source} does not fit {type(network).__name__}: {', '.join(reasons)}. "
            "Name the network of the weights with --encoder"
        )


def _count(names: Sequence[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"


def _names(names: Sequence[str]) -> str:
    more = ", …" if len(names) > MAX_NAMED_TENSORS else ""
    return ", ".join(names[:MAX_NAMED_TENSORS]) + more
