import json

import pytest

from smi.nn import catalogue as listing


def test_encoders_with_their_sizes_and_speed(monkeypatch, capsys):
    monkeypatch.setattr(listing, "NAMES", ("resnet-small", "vit_tiny_patch16_224"))
    monkeypatch.setattr(listing, "BATCH", 2)
    listing.print_encoders(image_size=16, as_json=True)
    document = json.loads(capsys.readouterr().out)
    small, vit = document["encoders"]
    assert small["encoder"] == "resnet-small"
    assert small["dim"] == 256
    assert small["million_parameters"] == pytest.approx(1.23, abs=0.01)
    assert small["gmacs"] == pytest.approx(0.016, abs=0.001)
    assert small["views_per_second"] > 0
    assert vit["arguments"] == {"patch_size": 4}
    assert document["machine"]

    listing.print_encoders(image_size=16, as_json=False)
    text = capsys.readouterr().out
    assert "vit_tiny_patch16_224 patch_size=4" in text
    assert document["machine"] in text


def test_large_images_keep_large_patches():
    assert listing.arguments_for("vit_tiny_patch16_224", 224) == {}
