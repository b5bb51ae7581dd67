"""Choose the images for training and for probes."""

from smi.config.resolve import resolve
from smi.training.images import Images


def test_validation_images_are_kept_from_training():
    config = resolve("digits", {"data.validation": 0.2, "data.images": 1000})
    images = Images.open(config)
    assert len(images.pretrain) == len(images.bank) == 1000
    assert len(images.held_out) == round(0.2 * 1614)
    apart = {image.numpy().tobytes() for image in images.held_out[:]}
    shown = {image.numpy().tobytes() for image in images.pretrain[:]}
    assert len(apart & shown) <= 1  # two of scikit-learn's digits may be alike to the pixel
