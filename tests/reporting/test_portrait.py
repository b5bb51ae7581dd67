"""Portraits: when a saved one is used, and when it is computed again."""

import json
from dataclasses import replace

import pytest
import torch

from smi.data import load as load_images
from smi.figures.sample import Sample
from smi.reporting.portrait import (
    MAX_IMAGES,
    NUM_NEIGHBOURS,
    NUM_QUERIES,
    Portrait,
    PortraitMaker,
    _enough_features,
    load_portrait,
)
from smi.runs.encoder import load
from smi.runs.run import Run

CPU = torch.device("cpu")


@pytest.fixture
def run(runs):
    return Run(runs[0])


@pytest.fixture
def saved(run):
    (path,) = (run.folder / "figures").glob("portrait-*.json")
    return path


@pytest.fixture
def sample(run):
    return Sample("digits", run.facts.root, images=MAX_IMAGES)


@pytest.fixture(autouse=True)
def _marked(monkeypatch):
    """A computed portrait says so, in no time."""
    monkeypatch.setattr(PortraitMaker, "make", lambda self: Portrait({}, {"images": "computed"}))


def is_computed(portrait):
    return portrait.missing.get("images") == "computed"


def test_a_saved_portrait_is_used(run, sample, saved):
    portrait = load_portrait(run, sample, CPU)
    assert portrait.parts == json.loads(saved.read_text())["parts"]
    assert portrait.missing == {}
    assert len(portrait.parts["neighbours"]) == NUM_QUERIES


@pytest.mark.parametrize(
    "change",
    [
        {"again": True},  # a part was missing that may be possible now
        {"format": 1},
        {"which": "other images"},
    ],
)
def test_an_outdated_portrait_is_computed_again(run, sample, saved, change):
    document = json.loads(saved.read_text())
    assert document["again"] is False
    saved.write_text(json.dumps(document | change))
    assert is_computed(load_portrait(run, sample, CPU))
    assert json.loads(saved.read_text())["missing"] == {"images": "computed"}  # and saved


@pytest.mark.parametrize("text", ["{", "{}", ""])
def test_a_damaged_portrait_is_computed_again(run, sample, saved, text):
    saved.write_text(text)
    assert is_computed(load_portrait(run, sample, CPU))


def test_other_weights_or_settings_have_another_portrait(run, sample, saved):
    before = saved.read_text()
    assert is_computed(load_portrait(run, Sample("digits", sample.root, images=20), CPU))
    with run.checkpoint.open("ab") as file:
        file.write(b"0")
    assert is_computed(load_portrait(run, sample, CPU))
    assert len(list(saved.parent.glob("portrait-*.json"))) == 3
    assert saved.read_text() == before


def test_a_run_without_a_checkpoint_has_no_portrait(run, sample):
    run.checkpoint.unlink()
    portrait = load_portrait(run, sample, CPU)
    assert portrait.parts == {}
    assert f"{run.folder} has no checkpoint yet" in portrait.missing["encoder"]


def test_images_that_are_gone_leave_the_saved_portrait(run, tmp_path):
    sample = Sample(str(tmp_path / "gone"))
    before = load_portrait(run, sample, CPU)
    assert str(tmp_path / "gone") in before.missing["images"]
    folder = tmp_path / "gone"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(b"0")
    assert is_computed(load_portrait(run, sample, CPU))
    for name in ("a.png", "b.png"):
        (folder / name).unlink()
    folder.rmdir()
    assert is_computed(load_portrait(run, sample, CPU))  # what was saved


def test_spectra_have_ten_images_for_each_coordinate(run, sample):
    encoder, held_out = load(run), len(load_images("digits", "val"))
    few = replace(sample, images=20)
    blocks = _enough_features(encoder, few, torch.zeros(20, encoder.dim))
    assert sum(map(len, blocks)) == min(10 * encoder.dim, held_out)
    assert sum(map(len, blocks)) > 20
    h = torch.zeros(10 * encoder.dim, encoder.dim)
    (block,) = _enough_features(encoder, replace(sample, images=len(h)), h)
    assert len(block) == len(h)


def test_neighbours_are_sorted_and_do_not_contain_the_query(run, sample):
    maker = PortraitMaker(run, sample, CPU)
    maker.parts["labels"] = [i % 3 for i in range(30)]
    h = torch.randn(30, 5)
    h[1] = h[0]  # a duplicate is a neighbour all the same
    maker._add_neighbours(h)
    rows = maker.parts["neighbours"]
    assert [maker.parts["labels"][row["query"]] for row in rows[:3]] == [0, 1, 2]
    u = torch.nn.functional.normalize(h, dim=1)
    for row in rows:
        indices = [i for i, _ in row["near"]]
        similarities = [similarity for _, similarity in row["near"]]
        assert row["query"] not in indices
        assert len(set(indices)) == NUM_NEIGHBOURS
        assert similarities == sorted(similarities, reverse=True)
        expected = u @ u[row["query"]]
        expected[row["query"]] = -1
        assert similarities == pytest.approx(
            expected.sort(descending=True)[0][:7].tolist(), abs=1e-4
        )


@pytest.mark.parametrize(
    ("error", "is_incomplete"), [(RuntimeError("odd"), False), (MemoryError("full"), True)]
)
def test_a_part_that_fails_leaves_a_sentence(run, sample, error, is_incomplete):
    maker = PortraitMaker(run, sample, CPU)

    def fail():
        raise error

    assert maker._attempt("maps", fail) is None
    assert maker.missing["maps"].startswith(f"maps could not be computed ({type(error).__name__}: ")
    assert maker.is_incomplete is is_incomplete
