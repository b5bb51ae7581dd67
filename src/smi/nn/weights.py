"""Read the weights of trained networks, and load them into the network of an encoder.

    tensors = timm_weights({"name": "resnet18.a1_in1k"}, image_size=64)   # the weights of the tag
    tensors = read_tensors(Path("weights.safetensors"))
    notes = load_weights(encoder.network, tensors, "weights.safetensors")

Nothing is downloaded before such weights are named. Of .pth, .pt and .bin files only tensors are
read, so no file runs code.
"""

import hashlib
import pickle
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from smi.errors import UserError
from smi.files import check_fields, damaged, expand, read_json
from smi.imports import refused
from smi.nn.encoders import (
    SMALL_RESNET,
    is_import_path,
    no_tag,
    require_harmless,
    require_timm_name,
    require_trusted_network,
    timm_terms,
)

Triple = tuple[float, float, float]

HUB_SCHEME = "hf-hub:"
LOCAL_SCHEME = "local-dir:"
SCHEMES = (HUB_SCHEME, LOCAL_SCHEME)  # of timm, for models outside its list
PICKLED = (".pth", ".pt", ".bin", ".tar", ".ckpt")
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
HUB_CONFIG = "config.json"
# The section of config.json that `smi export` adds to those of timm.
EXPORT_KEY = "smi"
EXPORT_KINDS = {"encoder": {"name": str}, "digest": str}
# Arguments in config.json that are not used: an encoder has no classifier, the file does not choose
# another network, and other files are not read.
HUB_IGNORED = (
    *("name", "image_size", "stem", "num_classes"),
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"),
)
MAX_NAMED_TENSORS = 3  # in a sentence
# Training scripts put the tensors under such keys, and such prefixes before their names.
WRAPPERS = ("state_dict", "model_state_dict", "model", "network")
PREFIXES = ("_orig_mod.", "module.", "model.", "network.", "encoder.", "backbone.")
CLASSIFIERS = ("fc", "classifier", "head", "heads")
STEM = "conv1.weight"  # of a ResNet
CONNECT_SECONDS = 5


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
    config = _published(name)
    if config is None:
        return None
    return Input(_triple(config.mean), _triple(config.std), config.input_size[-1])


def _published(name: str) -> Any:
    """Return what timm knows of the weights of a network; None if it knows nothing."""
    import timm

    require_timm_name(name)
    timm_name, _ = timm_terms(name, 224, {})
    try:
        return timm.get_pretrained_cfg(timm_name)
    except RuntimeError as error:
        raise no_tag(timm_name) from error


def _triple(values: Sequence[float]) -> Triple:
    red, green, blue = values
    return red, green, blue


def hub_network(name: str) -> tuple[dict[str, Any], Input]:
    """Return the settings and the input of a network that is named hf-hub:… or local-dir:….

    config.json is read from the hub's cache or downloaded.
    """
    from timm.models._hub import load_model_config_from_path

    exported = hub_export(name)
    folder = hub_file(name, HUB_CONFIG).parent  # timm reads one of the cache as any other
    try:
        config, network, arguments = load_model_config_from_path(folder)
        mean, std = _triple(config["mean"]), _triple(config["std"])
        expected = Input(mean, std, config["input_size"][-1])
        kept = _network_arguments(arguments or {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"config.json of {name} does not describe a timm model: {error}") from error
    if exported is not None:
        settings = exported["encoder"]
        require_trusted_network(settings, name)
        own = {key: settings[key] for key in ("name", "stem") if key in settings}
        return _network_arguments(settings) | own, expected
    require_timm_name(str(network))
    if is_import_path(str(network)):
        raise UserError(f"config.json of {name} names {network}, which would run code of the file")
    return {**kept, "name": str(network)}, expected


def _network_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of config.json that make a network."""
    return {key: value for key, value in arguments.items() if key not in HUB_IGNORED}


def hub_export(name: str) -> dict[str, Any] | None:
    """Return what config.json says of an encoder that `smi export` wrote; None of any other model.

    It has the arguments of `create_encoder`, with those that timm does not know, and a digest.
    """
    path = hub_file(name, HUB_CONFIG)
    try:
        exported = read_json(path).get(EXPORT_KEY)
    except UserError as error:
        raise UserError(f"config.json of {name} does not describe a timm model: {error}") from error
    if exported is None:
        return None
    if not isinstance(exported, dict):
        raise damaged(path, f"{EXPORT_KEY} is not a section")
    check_fields(exported, EXPORT_KINDS, path, f"{EXPORT_KEY}.")
    return exported


def timm_weights(settings: Mapping[str, Any], image_size: int) -> dict[str, Tensor]:
    """Return the weights that timm publishes for a network, from the hub's cache or downloaded.

    Position embeddings are those for images of this size.
    """
    name = str(settings["name"])
    if name == SMALL_RESNET or is_import_path(name):
        raise UserError(f"timm has no weights for {name}: give a file or a run")
    import timm

    require_harmless(settings)
    arguments = {key: value for key, value in settings.items() if key not in ("name", "stem")}
    timm_name, arguments = timm_terms(name, image_size, arguments)
    config = _published(name)
    if config is None or not config.has_weights:
        tags = ", ".join(timm.list_pretrained(f"{name.partition('.')[0]}*")[:5])
        hint = f"it has {tags}" if tags else "start from a file or a run, or train from scratch"
        raise UserError(f"timm has no weights for {name}: {hint}")
    cached = is_cached(name)
    try:
        if not cached and config.hf_hub_id is not None:
            require_network()
        # Without its classifier, timm would leave tensors that the weights lack at random.
        with _cache_only(cached):
            network: Any = timm.create_model(timm_name, pretrained=True, **arguments)
        if hasattr(network, "reset_classifier"):  # a few have none to remove
            network.reset_classifier(0)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise refused(error, f"the encoder {name} with the weights of timm") from error
    except Exception as error:  # the hub's client raises errors of several libraries
        raise _not_there(name, config.hf_hub_id or "", error) from error
    return dict(network.state_dict())


def hub_weights(name: str) -> dict[str, Tensor]:
    """Return the tensors of a model that is named hf-hub:… or local-dir:…."""
    return read_tensors(hub_file(name, *HUB_FILES))


def hub_file(name: str, *files: str) -> Path:
    """Return the first of some files that a model named hf-hub:… or local-dir:… has.

    Those of the hub are read from its cache or downloaded.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    scheme, place = _scheme(name)
    if scheme == LOCAL_SCHEME:
        folder = expand(place)
        if not folder.is_dir():
            raise UserError(f"{name} cannot be read: there is no folder {folder}")
        paths = [path for file in files if (path := folder / file).is_file()]
        if not paths:
            raise UserError(f"{name} holds no {' or '.join(files)}")
        return paths[0]
    repository, _, revision = place.partition("@")
    cached = [file for file in files if _in_cache(place, file)]
    try:
        if not cached:
            require_network()
        for file in cached or files:
            try:
                with _cache_only(bool(cached)):
                    return Path(hf_hub_download(repository, file, revision=revision or None))
            except LocalEntryNotFoundError as error:  # a kind of the next one: nobody was asked
                reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "no connection"
                raise OSError(f"the hub cannot be reached: {reason}") from error
            except EntryNotFoundError:
                continue
    except Exception as error:  # the hub's client raises errors of several libraries
        raise _not_there(name, place, error) from error
    raise _not_there(name, place, FileNotFoundError(f"it holds no {' or '.join(files)}"))


def is_cached(name: str) -> bool:
    """Return whether the weights of a timm name are in the cache of the hub."""
    if name == SMALL_RESNET or is_import_path(name):
        return False
    config = _published(name)
    if config is None or config.hf_hub_id is None:
        return False
    return _in_cache(config.hf_hub_id, config.hf_hub_filename or HUB_FILES[0])


def _in_cache(place: str, file: str) -> bool:
    """Return whether a file of a repository of the hub is in its cache."""
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = place.partition("@")
    try:
        return isinstance(try_to_load_from_cache(repository, file, revision=revision or None), str)
    except ValueError:  # not the name of a repository
        return False


@contextmanager
def _cache_only(cached: bool) -> Iterator[None]:
    """Ask the hub nothing inside the block if the files are in its cache."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or cached
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def require_network() -> None:
    """Raise an OSError at once if the hub cannot be reached: its client would try for a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():  # a proxy reaches what this machine cannot
        return
    host = urlsplit(constants.ENDPOINT)
    port = host.port or (443 if host.scheme == "https" else 80)
    socket.create_connection((host.hostname or "", port), timeout=CONNECT_SECONDS).close()


def _scheme(name: str) -> tuple[str, str]:
    scheme = next(scheme for scheme in SCHEMES if name.startswith(scheme))
    return scheme, name.removeprefix(scheme)


def _not_there(name: str, repository: str, error: Exception) -> UserError:
    """Return the sentence for weights that are not on this machine and cannot be downloaded."""
    from huggingface_hub.constants import HF_HUB_CACHE

    repository, _, revision = repository.partition("@")
    download = f"hf download {repository}" + (f" --revision {revision}" if revision else "")
    return UserError(
        f"the weights of {name} are not in the hub's cache ({HF_HUB_CACHE}) and cannot be "
        f"downloaded ({_first_line(error)}). Run `{download}` on a machine with a "
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
    if path.stat().st_size == 0:
        raise UserError(f"{path} holds no weights: it is empty")
    if path.suffix.lower() in PICKLED:
        return _unwrapped(_unpickled(path), path)
    try:
        return _unwrapped(load_file(path), path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} holds no weights: {_first_line(error)}") from error


def _unpickled(path: Path) -> Any:
    """Read a file of torch.save without running code of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other versions of the format
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "global" not in str(error).lower():
            raise UserError(f"{path} holds no weights: it is damaged, or not of PyTorch") from error
        raise UserError(
            f"{path} holds more than tensors, and reading it could run code: save its state_dict "
            "as .safetensors where you trust it"
        ) from error
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        raise UserError(f"{path} holds no weights: {_first_line(error)}") from error


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
    is folded if the network has a 3 x 3 stem.
    """
    expected = network.state_dict()
    given = _renamed(network, _without_prefixes(tensors, expected), expected)
    notes = []
    if head := [name for name in given if name not in expected and _is_classifier(network, name)]:
        notes.append(f"the classifier of {source} is dropped ({_names(head)})")
        given = {name: tensor for name, tensor in given.items() if name not in head}
    if has_large_stem(given) and _has_small_stem(network, given[STEM].shape[1]):
        notes.append("the 7 x 7 stem is folded to 3 x 3")
        given[STEM] = _folded(_folded(given[STEM], 2), 3)
    # Files of old versions of PyTorch do not count batches.
    counters = {name: t for name, t in expected.items() if name.endswith("num_batches_tracked")}
    given = counters | given
    _require_fit(network, given, expected, source)
    network.load_state_dict(given)
    return notes


def _without_prefixes(
    given: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Remove prefixes that all names have, up to the names of the network."""
    while given and not given.keys() & expected.keys():
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in given)), None)
        if prefix is None:
            break
        given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    return dict(given)


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
        return dict(rename(dict(given), network))
    except (LookupError, RuntimeError, TypeError, AttributeError, ValueError, AssertionError):
        return given  # another layout; the sentence below names what does not fit


def _is_classifier(network: nn.Module, name: str) -> bool:
    config = getattr(network, "pretrained_cfg", None) or {}
    own = config.get("classifier") or ()
    names = {*CLASSIFIERS, *((own,) if isinstance(own, str) else own)}
    return any(name.startswith(f"{classifier}.") for classifier in names)


def has_large_stem(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether tensors have the 7 x 7 stem of a ResNet."""
    return STEM in tensors and tensors[STEM].shape[-2:] == (7, 7)


def _has_small_stem(network: nn.Module, channels: int) -> bool:
    is_resnet = type(network).__module__ == "timm.models.resnet"
    return is_resnet and network.get_parameter(STEM).shape[1:] == (channels, 3, 3)


def _folded(stem: Tensor, dim: int) -> Tensor:
    """Sum the 7 weights of a dimension to 3, as if each pixel of the image were two."""
    return torch.cat(
        [part.sum(dim, keepdim=True) for part in torch.split(stem, [3, 2, 2], dim)], dim
    )


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
        layer = STEM.removesuffix("weight")
        if STEM in missing and all(name.startswith(layer) for name in (*missing, *unused, *shapes)):
            hint = "Keep the first layers of the weights with --encoder.stem standard"
        else:
            hint = "Name the network of the weights with --encoder"
        raise UserError(
            f"{source} does not fit {type(network).__name__}: {', '.join(reasons)}. {hint}"
        )


def _count(names: Sequence[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"


def _names(names: Sequence[str]) -> str:
    more = ", …" if len(names) > MAX_NAMED_TENSORS else ""
    return ", ".join(names[:MAX_NAMED_TENSORS]) + more
