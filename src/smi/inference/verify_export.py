"""Compare an export with its encoder on real images before the export is kept."""

import runpy
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from smi.data import load as load_images
from smi.errors import UserError
from smi.inference.export_network import SCRIPT
from smi.runs.encoder import Pretrained
from smi.seeds import permutation

MAX_DIFFERENCE = 1e-4  # of features, and of the input that load.py makes
NUM_IMAGES = 16
MAX_REASON_LENGTH = 200  # characters of another library's error message


def reason_of(error: BaseException) -> str:
    """Return the message of another library's error on one line."""
    return " ".join(str(error).split())[:MAX_REASON_LENGTH]


def verification_images(
    encoder: Pretrained, data: str | Path | None, root: str | Path | None
) -> tuple[list[Image.Image], str]:
    """Return real images and the name of their dataset.

    data: None takes the dataset of the pretraining, or two photographs if it is not available.
    """
    source = data if data is not None else encoder.about.get("data")
    if source is not None:
        try:
            return _sample(source, encoder.resolution, root or encoder.root), str(source)
        except UserError:
            if data is not None:
                raise
    missing = f" ({source} is not available)" if source is not None else ""
    return sample_photographs(), f"two photographs of scikit-learn{missing}"


def _sample(source: str | Path, resolution: int, root: str | Path | None) -> list[Image.Image]:
    # Without a cache, only these few images of a folder are decoded, to the same pixels.
    try:
        store = load_images(source, "val", resolution=resolution, root=root, max_cache_bytes=0)
    except UserError:  # a folder of few images may hold out none
        store = load_images(source, "train", resolution=resolution, root=root, max_cache_bytes=0)
    try:
        pixels = store[permutation(len(store), 0, 0)[:NUM_IMAGES]]
    finally:
        store.close()
    return [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in pixels]


def sample_photographs() -> list[Image.Image]:
    """Return pieces of the two photographs of scikit-learn."""
    from sklearn.datasets import load_sample_images

    pieces = []
    for pixels in load_sample_images().images:  # uint8 [427, 640, 3]
        photograph = Image.fromarray(pixels)
        width, height = photograph.width // 2, photograph.height // 2
        corners = [
            (left * width // 3, top * height) for top in range(2) for left in range(NUM_IMAGES // 4)
        ]
        pieces += [
            photograph.crop((left, top, left + width, top + height)) for left, top in corners
        ]
    return pieces


def compare_features(
    folder: Path, encoder: Pretrained, images: list[Image.Image], to: str, output: str = "features"
) -> float:
    """Return the largest difference between the features of an export and of its encoder.

    output: the function of load.py that computes them.

    Raise a UserError if the export cannot be loaded, or if it differs too much.
    """
    # Each image, and a wide part of it that preprocessing must crop.
    shapes = [
        image
        for whole in images
        for image in (whole, whole.crop((0, 0, whole.width, max(1, whole.height * 3 // 4))))
    ]
    expected_inputs = encoder.transform(shapes)
    x = expected_inputs[::2].contiguous()
    batches = (x, x[:1])
    try:
        script = runpy.run_path(str(folder / SCRIPT))
        model = script["load"]()
        inputs = torch.cat([torch.as_tensor(script["preprocess"](image)) for image in shapes])
        features = [
            torch.as_tensor(script[output](model, part.numpy() if to == "onnx" else part))
            for part in batches
        ]
    except Exception as error:  # any error makes the export useless
        raise UserError(
            f"the export cannot be loaded and run again, so nothing was written: {reason_of(error)}"
        ) from error
    _check_difference(inputs, expected_inputs, "inputs of the export's load.py")
    with torch.inference_mode():
        expected = [encoder(part) for part in batches]
    return max(
        _check_difference(ours, theirs, f"{to}'s {output}")
        for ours, theirs in zip(features, expected, strict=True)
    )


def _check_difference(actual: Tensor, expected: Tensor, name: str) -> float:
    """Return the largest difference, or raise a UserError if it is too large or NaN."""
    if actual.shape != expected.shape:
        raise UserError(
            f"{name} are {list(actual.shape)} and the encoder's {list(expected.shape)}, so nothing "
            "was written"
        )
    difference = (actual - expected).abs().max().item()
    if not difference <= MAX_DIFFERENCE:  # also if it is NaN
        raise UserError(
            f"{name} differ from the encoder's by up to {difference:.1e}, above "
            f"{MAX_DIFFERENCE:.0e}, so nothing was written"
        )
    return difference
