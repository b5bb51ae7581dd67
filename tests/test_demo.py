"""The main job, cut short."""

import re

import smi.demo
from smi.demo import demo
from smi.evaluation import protocols
from support.quick import make_clouds_quick


def test_the_demo_trains_compares_and_says_what_next(tmp_path, capsys, monkeypatch):
    pretrain = smi.demo.pretrain

    def on_few_images(*words, overrides, **options):
        return pretrain(*words, overrides=overrides | {"data.images": 256}, **options)

    monkeypatch.setattr(smi.demo, "pretrain", on_few_images)
    monkeypatch.setattr(protocols, "NUM_DRAWS", 5)
    make_clouds_quick(monkeypatch)
    demo(tmp_path / "demo", epochs=1)
    said = capsys.readouterr().out
    rows = {
        name: re.search(rf"^{name} .*$", said, re.MULTILINE)[0]
        for name in ("raw pixels", "SMI", "BarlowTwins")
    }
    pixels = [float(number) for number in re.findall(r"([\d.]+)%", rows["raw pixels"])]
    assert 50 < pixels[0] < 75  # one label of each class
    assert pixels[-1] > 93  # all of them
    assert all(len(re.findall(r"%", row)) == 7 for row in rows.values())
    page = tmp_path / "demo" / "report.html"
    assert str(page) in said
    text = page.read_text()
    assert "Effective rank" in text
    assert "<script src=" not in text  # opens without a network
    assert (tmp_path / "demo" / "SMI" / "encoder.safetensors").is_file()
    assert "What to try next" in said
