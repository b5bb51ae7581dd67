"""Write load.py, the script of an export that loads the encoder without smi."""

from string import Template

from smi.inference.export_network import FORMATS, Network

ONNX_FEATURES = """\
    return model.run(["$output"], {"images": x})[0]"""
TORCH_FEATURES = """\
    with torch.inference_mode():
        return model(x)"""
SHOW_FEATURES = """\
print(f"{path}: {list(h.shape)}", *(f"{value:.4f}" for value in h[0, :5].tolist()), "...")"""
SHOW_LABEL = """\
print(f"{path}: {ABOUT['classes'][int(p[0].argmax())]!r} {p[0].max():.4f}")"""
LOAD_TEMPLATE = Template('''\
"""Load the $kind $label: $dim $output of an image. Needs $needs.

model = load()
$letter = $output(model, preprocess(Image.open("cat.jpg")))    # [1, $dim]

From a terminal: python load.py IMAGE...
"""

import json
import sys
from pathlib import Path

$imports
$own
HERE = Path(__file__).resolve().parent
ABOUT = json.loads((HERE / "preprocessing.json").read_text(encoding="utf-8"))


def load():
    """Return the model on the CPU."""
$load


def preprocess(image):
    """Return the centre of a PIL image, resized and normalised: float32 [1, 3, S, S]."""
    side, size = ABOUT["resize_shorter_side"], ABOUT["input_size"][-1]
    kept = ABOUT["center_crop"][0]
    # A large JPEG is decoded at a fraction of its size, as in training.
    image.draft(image.mode, (side, side))
    image = ImageOps.exif_transpose(image)
    if (image.mode.startswith("I") or image.mode == "F") and "value_range" in ABOUT:
        low, high = ABOUT["value_range"]  # these values become 0 and 255
        scale = 255 / (high - low)
        offset = 0.5 - low * scale
        image = image.convert("F").point(lambda value: value * scale + offset).convert("L")
    elif image.mode.startswith("I"):  # 16 bits: only the upper 8 are used
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
    elif image.mode != "CMYK":
        image = image.convert("RGB")
    if image.size != (side, side):
        short = min(image.size)
        left, top = (image.width - short) / 2, (image.height - short) / 2
        box = (left, top, left + short, top + short)
        image = image.resize((side, side), Image.Resampling.BILINEAR, box=box)
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    margin = round((side - kept) / 2)
    image = image.crop((margin, margin, margin + kept, margin + kept))
    # Channels become floats first, so that the second resize does not round to grey levels.
    channels = [channel.convert("F") for channel in image.convert("RGB").split()]
    channels = [channel.resize((size, size), Image.Resampling.BILINEAR) for channel in channels]
    mean = np.array(ABOUT["mean"], dtype=np.float32)[:, None, None]
    std = np.array(ABOUT["std"], dtype=np.float32)[:, None, None]
    x = ((np.stack([np.asarray(channel) for channel in channels]) / 255 - mean) / std)[None]
    return $result


def $output(model, x):
    """Return the $output [N, $dim] of images [N, 3, S, S], for any N."""
$features


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python load.py IMAGE...")
    model = load()
    for path in sys.argv[1:]:
        with Image.open(path) as image:
            $letter = $output(model, preprocess(image))
        $show
''')


def load_script(network: Network, dim: int, to: str, output: str = "features") -> str:
    """Return the text of load.py for an export to one format.

    dim: the number of features, or of classes where the output is called probabilities.
    """
    imports, needs, lines = _loading(network, to)
    if to != "onnx":
        lines = [*lines, "return model.eval()"]
    own_import = f"\nfrom {network.module} import {network.name.rpartition('.')[2]}\n"
    return LOAD_TEMPLATE.substitute(
        label=network.label,
        kind="encoder" if output == "features" else "classifier",
        output=output,
        letter="h" if output == "features" else "p",
        show=SHOW_FEATURES if output == "features" else SHOW_LABEL,
        dim=dim,
        needs=needs,
        imports="\n".join(
            [
                "import numpy as np",
                *(f"import {name}" for name in sorted(imports)),
                "from PIL import Image, ImageOps",
            ]
        ),
        own=own_import if network.own and to != "onnx" else "",
        load="\n".join(f"    {line}" for line in lines),
        result="x" if to == "onnx" else "torch.from_numpy(x)",
        features=Template(ONNX_FEATURES).substitute(output=output)
        if to == "onnx"
        else TORCH_FEATURES,
    )


def _loading(network: Network, to: str) -> tuple[list[str], str, list[str]]:
    """Return the modules to import, the packages needed in words, and the body of `load`."""
    file = f'HERE / "{FORMATS[to].file}"'
    if to == "onnx":
        providers = 'providers=["CPUExecutionProvider"]'
        lines = [f"return onnxruntime.InferenceSession({file}, {providers})"]
        return ["onnxruntime"], "onnxruntime, numpy and Pillow", lines
    if to == "timm":
        if network.stem == "standard":
            lines = network.code(to, f"checkpoint_path=str({file})")
        else:
            load = f"timm.models.load_checkpoint(model, str({file}))  # strict"
            lines = [*network.code(to), load]
        return ["torch", "timm"], to, lines
    if to == "torchvision":
        weights = f"torch.load({file}, weights_only=True)"
        lines = [*network.code(to), f"model.load_state_dict({weights}, strict=True)"]
        return ["torch", "torchvision"], to, lines
    weights = f"safetensors.torch.load_file({file})"
    lines = [*network.code(to), f"model.load_state_dict({weights}, strict=True)"]
    imports = ["torch", "safetensors.torch", *([] if network.own else ["timm"])]
    library = network.module if network.own else "timm"
    return imports, f"safetensors, torch, numpy, Pillow and {library}", lines
