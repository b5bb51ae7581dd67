"""List encoders with their sizes and speeds."""

import pytest

from smi.nn import catalogue


def test_encoders_with_their_sizes_and_speed(monkeypatch):
    monkeypatch.setattr(catalogue, "ENCODER_NAMES", ("resnet-small", "vit_tiny_patch16_224"))
    monkeypatch.setattr(catalogue, "TIMED_BATCH_SIZE", 2)
    encoders = catalogue.list_encoders(image_size=16)
    document = encoders.plain()
    assert set(document) == {"image_size", "batch", "machine", "encoders"}
    small, vit = document["encoders"]
    assert small["encoder"] == "resnet-small"
    assert small["dim"] == 256
    assert small["million_parameters"] == pytest.approx(1.23, abs=0.01)
    assert small["gmacs"] == pytest.approx(0.016, abs=0.001)
    assert small["views_per_second"] > 0
    assert vit["arguments"] == {"patch_size": 4}
    assert document["machine"]

    text = encoders.text()
    assert "vit_tiny_patch16_224 patch_size=4" in text
    assert document["machine"] in text


def test_large_images_keep_large_patches():
    assert catalogue.arguments_for("vit_tiny_patch16_224", 224) == {}
