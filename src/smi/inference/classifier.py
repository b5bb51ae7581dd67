"""Hold a classifier: an encoder, a linear head on its features, and the names of the classes.

classifier = load_classifier("classifiers/birds")
labels, confidences = classifier.predict(["a.jpg", "b.jpg"])

Its folder holds classifier.safetensors, with all of this, and scores.json for people and scripts.
N images of S x S pixels, F features, C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from smi.device import device_of
from smi.errors import UserError
from smi.files import check_fields, damaged, expand, finite
from smi.nn import Encoder
from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import Pretrained, build_encoder, read_weights
from smi.terminal import printable
from smi.views.policies import Triple

CLASSIFIER = "classifier.safetensors"
ENCODER_PREFIX, HEAD_PREFIX = "encoder.", "head."
CLASSIFIER_KINDS = {"classes": list, "temperature": (int, float), "scores": {}, "protocol": {}}
PREDICT_BATCH_SIZE = 256

Images = str | Path | Image.Image | Tensor | Sequence[str | Path | Image.Image]


class Classifier(nn.Module):
    """Turn images into labels with a confidence.

    head: scores [N, C] of features. classes: their names. temperature: divides the scores before
    the softmax, so that a confidence is a calibrated probability. scores: accuracy and log loss of
    each way of training, on images that were kept apart. protocol: how it was trained. source: its
    folder, if it has one. summary: sentences about its training.
    """

    def __init__(
        self,
        encoder: Pretrained,
        head: nn.Linear,
        *,
        classes: Sequence[str],
        temperature: float = 1.0,
        scores: Mapping[str, Any] | None = None,
        protocol: Mapping[str, Any] | None = None,
        source: Path | None = None,
        summary: str = "",
    ):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.classes = tuple(classes)
        self.temperature = temperature
        self.scores = dict(scores or {})
        self.protocol = dict(protocol or {})
        self.source = source
        self.summary = summary
        self.requires_grad_(False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the probabilities [N, C] of images that `encoder.transform` prepared."""
        return self.probabilities(self.encoder(x))

    def probabilities(self, h: Tensor) -> Tensor:
        """Return the probabilities [N, C] of features [N, F]."""
        scores: Tensor = self.head(h)
        return (scores / self.temperature).softmax(1)

    def predict(self, images: Images) -> tuple[list[str], list[float]]:
        """Return the label of each image and its confidence, a probability.

        labels, confidences = classifier.predict(["a.jpg", "b.jpg"])

        images: files, PIL images, or uint8 [N, 3, H, H]; one or several. A few batches are in
        memory at a time. `smi.classify` takes whole folders.
        """
        labels: list[str] = []
        confidences: list[float] = []
        for x in self._batches(images):
            with torch.inference_mode():
                best = self(x).max(1)
            labels += [self.classes[i] for i in best.indices.tolist()]
            confidences += best.values.tolist()
        return labels, confidences

    def _batches(self, images: Images) -> Iterator[Tensor]:
        """Yield the images as the encoder takes them, batch by batch."""
        if isinstance(images, str | Path | Image.Image):
            images = [images]
        if isinstance(images, Tensor) and images.ndim == 3:
            images = images[None]
        for start in range(0, len(images), PREDICT_BATCH_SIZE):
            batch = images[start : start + PREDICT_BATCH_SIZE]
            for item in batch if not isinstance(batch, Tensor) else ():
                if isinstance(item, str | Path) and expand(item).is_dir():
                    raise UserError(f"{item} is a folder: smi.classify(...) takes folders")
            yield self.encoder.transform(batch)

    def text(self) -> str:
        """Return the number of classes, or sentences about the training that just ended."""
        return self.summary or f"a classifier of {len(self.classes):,} classes"

    def plain(self) -> dict[str, Any]:
        """Return scores, protocol and classes, ready for JSON."""
        plain: dict[str, Any] = finite(
            {"scores": self.scores, "protocol": self.protocol, "classes": self.classes}
        )
        return plain

    def from_pixels(self) -> Pretrained:
        """Return one network from pixels between 0 and 1 to probabilities, for an export."""
        encoder = self.encoder
        return Pretrained(
            Encoder(_FromPixels(self), len(self.classes)),
            settings=encoder.settings,
            image_size=encoder.image_size,
            resolution=encoder.resolution,
            value_range=encoder.value_range,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            source=self.source or encoder.source,
            about=encoder.about,
            root=encoder.root,
        )


class _FromPixels(nn.Module):
    """Normalise pixels between 0 and 1 and classify them."""

    mean: Tensor  # [3, 1, 1]
    std: Tensor

    def __init__(self, classifier: Classifier):
        super().__init__()
        self.classifier = classifier
        device = device_of(classifier, None)
        self.register_buffer("mean", _per_channel(classifier.encoder.mean).to(device))
        self.register_buffer("std", _per_channel(classifier.encoder.std).to(device))

    def forward(self, pixels: Tensor) -> Tensor:
        probabilities: Tensor = self.classifier((pixels - self.mean) / self.std)
        return probabilities


def _per_channel(values: Triple) -> Tensor:
    return torch.tensor(values)[:, None, None]


# --------------------------------------------------------------------------------------- the folder


def is_classifier(source: str | Path) -> bool:
    """Return whether a source is the folder of a classifier, or its file."""
    path = expand(source)
    return (path / CLASSIFIER).is_file() or (path.name == CLASSIFIER and path.is_file())


def load_classifier(source: str | Path, *, trust: bool = False) -> Classifier:
    """Load a classifier that `smi classify` or `smi.classify` trained.

    classifier = smi.load_classifier("classifiers/birds")
    labels, confidences = classifier.predict(["a.jpg", "b.jpg"])

    trust: import and call a network of your own that the file names by an import path.
    """
    path = expand(source)
    if not is_classifier(path):
        missing = f"there is no {path}" if not path.exists() else f"{path} is not a classifier"
        raise UserError(
            f"{printable(missing)}: train one with `smi classify RUN --data LABELLED --out DIR`"
        )
    folder, file = (path, path / CLASSIFIER) if path.is_dir() else (path.parent, path)
    weights, about = read_weights(file)
    check_fields(about, CLASSIFIER_KINDS, file)
    classes = _check_classes(about["classes"], file)
    encoder = build_encoder(_below(weights, ENCODER_PREFIX), about, file, trust=trust)
    head = _build_head(_below(weights, HEAD_PREFIX), len(classes), encoder.dim, file)
    if not 0 < about["temperature"] < float("inf"):
        raise damaged(file, f"temperature must be above 0, not {about['temperature']}")
    return Classifier(
        encoder,
        head,
        classes=classes,
        temperature=float(about["temperature"]),
        scores=about["scores"],
        protocol=about["protocol"],
        source=folder,
    )


def save_classifier(folder: Path, classifier: Classifier) -> None:
    """Write classifier.safetensors into a folder, whole or not at all."""
    encoder = classifier.encoder
    header = {
        "encoder": encoder.settings,
        "image_size": encoder.image_size,
        "resolution": encoder.resolution,
        "mean": encoder.mean,
        "std": encoder.std,
        "value_range": encoder.value_range,
        "about": encoder.origin(),
        "classes": classifier.classes,
        "temperature": classifier.temperature,
        "scores": classifier.scores,
        "protocol": classifier.protocol,
    }
    weights = {f"{ENCODER_PREFIX}{k}": v for k, v in encoder.network.state_dict().items()}
    weights |= {f"{HEAD_PREFIX}{k}": v for k, v in classifier.head.state_dict().items()}
    save_encoder(folder / CLASSIFIER, weights, header)


def _below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }


def _check_classes(classes: list[Any], file: Path) -> list[str]:
    if len(classes) < 2 or not all(isinstance(name, str) for name in classes):
        raise damaged(file, "its classes must be two names or more")
    if len({*classes}) < len(classes):
        raise damaged(file, "two of its classes have the same name")
    return classes


def _build_head(weights: Mapping[str, Tensor], num_classes: int, dim: int, file: Path) -> nn.Linear:
    """Return the linear head, or raise a UserError if its tensors do not fit."""
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    if shapes != {"weight": [num_classes, dim], "bias": [num_classes]}:
        raise damaged(file, f"its head must have {num_classes} rows of {dim} weights, not {shapes}")
    if not all(t.dtype == torch.float32 and t.isfinite().all() for t in weights.values()):
        raise damaged(file, "its head has weights that are not finite float32 numbers")
    head = nn.Linear(dim, num_classes)
    head.load_state_dict(weights)
    return head
