"""Describe how other libraries build the network of an encoder before they load its weights."""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smi.errors import UserError
from smi.nn.encoders import SMALL_RESNET, STEM_SHAPES, Stem, is_import_path, stem_of, timm_terms
from smi.nn.weights import HUB_SCHEME, LOCAL_SCHEME
from smi.runs.encoder import Pretrained

SCRIPT = "load.py"
MAX_CODE_WIDTH = 110  # characters of a line in load.py


@dataclass(frozen=True)
class Format:
    """Describe a target format."""

    file: str  # the file of weights
    imports: tuple[str, ...]  # packages that its load.py imports, beside torch
    install: str  # argument of pip install for those that may be missing


FORMATS = {
    "safetensors": Format("encoder.safetensors", ("safetensors",), "safetensors"),
    "timm": Format("model.safetensors", ("timm",), "timm"),
    "torchvision": Format("model.pth", ("torchvision",), "torchvision"),
    "hf-hub": Format("model.safetensors", ("timm",), "timm"),
    "onnx": Format("model.onnx", ("onnx", "onnxscript", "onnxruntime"), "'smi-ssl[onnx]'"),
}


@dataclass(frozen=True)
class Network:
    """Hold the arguments with which timm, torchvision or a user's class builds the network."""

    settings: dict[str, Any]  # arguments of `create_encoder`
    name: str  # timm's name without a tag, or the import path of a user's own network
    arguments: dict[str, Any]
    stem: Stem
    width: int  # channels after a stem that is not the standard one

    @classmethod
    def of(cls, encoder: Pretrained) -> "Network":
        """Describe the network of an encoder."""
        settings = dict(encoder.settings)
        label = settings["name"]
        if is_import_path(label):
            return cls(settings, label, _without(settings, "name", "stem"), "standard", 0)
        settings.pop("checkpoint_path", None)  # initial weights, on the disk of the training
        stem = stem_of(encoder.network, label, encoder.image_size, settings.get("stem"))
        settings["stem"] = stem
        name, arguments = timm_terms(label, encoder.image_size, _without(settings, "name", "stem"))
        name = name.partition(".")[0]  # its tag names weights of timm, and these are others
        width = (
            0 if stem == "standard" else int(encoder.network.get_parameter("conv1.weight").shape[0])
        )
        return cls(settings, name, arguments, stem, width)

    @property
    def label(self) -> str:
        """Return the name of the encoder in smi."""
        return str(self.settings["name"])

    @property
    def own(self) -> bool:
        """Return whether the network is a user's own class."""
        return is_import_path(self.name)

    @property
    def outside_timm(self) -> str:
        """Say why timm cannot build the network by its name; empty if it can."""
        if self.own:
            return f"timm has no {self.name}"
        return "" if self.stem == "standard" else f"timm has no {self.stem} stem"

    @property
    def module(self) -> str:
        """Return the module of a user's own class."""
        return self.name.rpartition(".")[0]

    def check(self, to: str) -> None:
        """Raise a UserError if the target library does not have this network."""
        if to not in ("timm", "torchvision"):
            return
        if self.own:
            raise UserError(
                f"{to} has no {self.name}, a network of your own: export it --to onnx or "
                "safetensors"
            )
        if to == "torchvision":
            models = importlib.import_module("torchvision.models")
            resnet = self.name.startswith(("resnet", "resnext", "wide_resnet")) and hasattr(
                models, self.name
            )
            if self.label == SMALL_RESNET or not resnet:
                raise UserError(
                    f"torchvision has no {self.label} with the same parameter names, only ResNets "
                    "such as resnet18 and resnet50: export it --to timm or onnx"
                )

    def code(self, to: str, *more: str) -> list[str]:
        """Return lines of Python that build the network, including its stem."""
        if self.own:
            lines = _call(f"model = {self.name.rpartition('.')[2]}", *self._keywords())
        elif to == "torchvision":
            lines = [
                *_call(f"model = torchvision.models.{self.name}"),
                "model.fc = torch.nn.Identity()  # features, not classes",
            ]
        else:
            arguments = [literal(self.name), "num_classes=0", *more, *self._keywords()]
            lines = _call("model = timm.create_model", *arguments)
        if self.stem != "standard":
            kernel, stride, padding = STEM_SHAPES[self.stem]
            lines += [
                f"# The stem is for small images: a convolution of {kernel} x {kernel} with "
                f"stride {stride}, and no pooling.",
                f"model.conv1 = torch.nn.Conv2d(3, {self.width}, {kernel}, stride={stride}, "
                f"padding={padding}, bias=False)",
                "model.maxpool = torch.nn.Identity()",
            ]
        return lines

    def how_to_load(self, folder: Path, to: str, size: int, output: str) -> list[str]:
        """Return Python code that loads the export and prepares its input.

        size: pixels per side of the input. output: what the network returns.
        """
        file = literal(str(folder / FORMATS[to].file))
        script = f"runpy.run_path({literal(str(folder / SCRIPT))})"
        if to == "safetensors":
            encoder = f"encoder = smi.load({literal(str(folder))})"
            return [f"{encoder}  # has encoder.transform; load.py does both without smi"]
        if to == "onnx":
            model = f"onnxruntime.InferenceSession({file})"
            name = output[0] if output != "features" else "h"
            return [
                f'x = {script}["preprocess"](image)  # float32 [1, 3, {size}, {size}]',
                f'{name} = {model}.run(None, {{"images": x}})[0]  # {output}; any batch '
                f"[N, 3, {size}, {size}]",
            ]
        if self.stem != "standard":
            return [
                f'model = {script}["load"]()  # {to} has no {self.stem} stem; load.py puts it in',
                f'transform = {script}["preprocess"]  # a PIL image to [1, 3, {size}, {size}]',
            ]
        if to == "torchvision":
            return [
                *self.code(to),
                f"model.load_state_dict(torch.load({file}, weights_only=True))",
                "model.eval()",
                f'transform = {script}["preprocess"]  # a PIL image to [1, 3, {size}, {size}]',
            ]
        return timm_lines(f"{LOCAL_SCHEME}{folder}", size)

    def how_to_load_from_hub(self, place: str, size: int) -> list[str]:
        """Return Python code that loads the export from the hub, or from its folder."""
        trust = ", trust=True" if self.own else ""
        encoder = f"encoder = smi.load({literal(place)}{trust})  # has encoder.transform"
        if self.outside_timm:
            return [f"{encoder}; {self.outside_timm}, but load.py works without smi"]
        source = place if place.startswith(HUB_SCHEME) else f"{LOCAL_SCHEME}{place}"
        return [encoder, *timm_lines(source, size)]

    def _keywords(self) -> list[str]:
        return [f"{name}={literal(value)}" for name, value in self.arguments.items()]


def timm_lines(source: str, size: int) -> list[str]:
    """Return Python code by which timm loads an export and prepares its input."""
    config = "timm.data.resolve_model_data_config(model)"
    return [
        f"model = timm.create_model({literal(source)}, pretrained=True).eval()",
        f"transform = timm.data.create_transform(**{config})  # an RGB image to "
        f"[3, {size}, {size}]",
    ]


def literal(value: Any) -> str:
    """Return a value as Python code."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _call(function: str, *arguments: str) -> list[str]:
    """Return a call as Python code, on several lines if it is long."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= MAX_CODE_WIDTH:
        return [line]
    return [f"{function}(", *(f"    {argument}," for argument in arguments), ")"]
