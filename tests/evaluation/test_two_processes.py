"""Every protocol on two real processes gives the numbers of one."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import smi
from smi.cli import main
from smi.distributed import from_all_ranks, in_parts, processes, rank
from smi.evaluation import extract, extract_labelled, finetune
from smi.evaluation.evaluate import evaluate
from smi.runs.checkpoint import save_encoder
from support.colours import UNIT, colours
from support.two_processes import finish, start_two

TESTS = Path(__file__).parents[1]
MIN_STEPS = 60  # of fine-tuning
# Sums are rounded in another order. AdamW makes much of it for a bias before a batch norm, whose
# gradient is zero but for rounding: a few of the 120 test images may be decided by that.
FEW_IMAGES = 3.01 / 120
PROTOCOLS = ("knn", "linear-cached", "fewshot", "linear", "finetune")


def work(folder: Path) -> None:
    """Run one of the processes: features, and a function of rows that do not divide evenly."""
    with processes(torch.device("cpu")):
        h, labels = extract_labelled(network(), colours(700), **UNIT, together=True)
        x = torch.arange(15.0).view(5, 3).requires_grad_()
        y = in_parts(lambda rows: (1 + rank()) * rows.square(), x)
        y.sum().backward()
        results = {
            "features": h,
            "labels": labels,
            "y": y.detach(),
            "gradient": x.grad,
            "one row": in_parts(lambda row: 2 * row, torch.ones(1, 2)),
            "ranks": from_all_ranks(rank()),
        }
        torch.save(results, folder / f"{rank()}.pt")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten())


@pytest.mark.long
def test_features_are_those_of_one_process_on_both(tmp_path):
    for code, _, errors in finish(start_two(__file__, tmp_path)):
        assert code == 0, errors
    found = [torch.load(tmp_path / f"{number}.pt") for number in range(2)]
    store = colours(700)
    expected = extract(network(), store, **UNIT)
    x = torch.arange(15.0).view(5, 3)
    factor = torch.tensor([1.0, 1, 1, 2, 2])[:, None]  # the first process has three rows
    for number, result in enumerate(found):
        assert torch.equal(result["features"], expected)
        assert torch.equal(result["labels"], store.labels)
        assert torch.equal(result["y"], factor * x.square())
        own = torch.tensor([[1.0] * 3 + [0.0] * 2, [0.0] * 3 + [1.0] * 2])[number][:, None]
        # twice, because data parallelism takes the mean over the processes
        assert torch.equal(result["gradient"], 2 * own * factor * 2 * x)
        assert torch.equal(result["one row"], torch.full((1, 2), 2.0))
        assert result["ranks"] == [0, 1]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write an encoder of random weights twice, and labelled images with a broken one."""
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    encoder = smi.nn.create_encoder("support.homemade.Net", image_size=14)
    about = {
        "encoder": {"name": "support.homemade.Net"},
        "image_size": 14,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "resolution": 16,
        "about": {},
    }
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_encoder(tmp_path / name / "encoder.safetensors", encoder.network.state_dict(), about)
    rng = np.random.default_rng(0)
    for split, count in (("train", 90), ("val", 40)):
        for number, name in enumerate(("ant", "bee", "cow")):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                noise = rng.normal(110, 45, (18, 20, 3))
                noise[::2, :, number] += 22  # stripes of a colour: hard, but not hopeless
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    (tmp_path / "photos" / "train" / "bee" / "7.png").write_bytes(b"no image")
    return tmp_path


def test_every_protocol_gives_the_numbers_of_one_process(files, monkeypatch):
    """The encoder has a batch norm, which sees the joined batch in fine-tuning."""
    arguments = ["--data", files / "photos", "--protocol", "all", "--epochs", "3", "--json"]
    arguments.append("--trust")
    words = ["evaluate", files / "two" / "encoder.safetensors", *arguments]
    monkeypatch.setattr(finetune, "MIN_STEPS", MIN_STEPS)
    (code, said, errors), (other, silence, _) = finish(start_two(__file__, *words))
    assert (code, other, silence) == (0, 0, ""), errors
    one = evaluate(files / "one" / "encoder.safetensors", data=files / "photos", protocols=["all"],
                   epochs=3).plain()  # fmt: skip
    two = json.loads(said)
    assert [result["protocol"]["name"] for result in two] == list(PROTOCOLS)
    for expected, found in zip(one, two, strict=True):
        name = found["protocol"]["name"]
        assert found["stamp"] == expected["stamp"]
        assert found["protocol"]["crop"] == "centre 7/8"
        assert found["notes"] == expected["notes"]
        assert "1 file could not be read" in " ".join(found["notes"])
        assert found["made"]["processes"] == 2
        values = [[score["value"] for score in result["scores"]] for result in (expected, found)]
        assert values[1] == pytest.approx(values[0], abs=FEW_IMAGES), name
        assert any(1 / 3 < value < 1 for value in values[0]), name
    for expected, found in zip(one[3:], two[3:], strict=True):
        curves = [
            [result["details"]["curves"]]
            if "curves" in result["details"]
            else [share["curves"] for share in result["details"].values()]
            for result in (expected, found)
        ]
        for curve, other in zip(*curves, strict=True):
            for point, same in zip(curve, other, strict=True):
                for key, value in point.items():
                    tolerance = FEW_IMAGES if key == "test_top1" else 1e-4
                    assert same[key] == pytest.approx(value, rel=1e-3, abs=tolerance), key
    assert len(list((files / "two" / "eval").iterdir())) == len(PROTOCOLS)


if __name__ == "__main__":
    if sys.argv[1] == "evaluate":
        finetune.MIN_STEPS = MIN_STEPS
        main()
    else:
        work(Path(sys.argv[1]))
