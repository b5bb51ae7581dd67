"""Rebuild the method and the views of a run."""

import pytest
import torch

import smi
from smi.runs.restore import build_method, load_method, load_views
from smi.runs.run import Run
from support.digits import same, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("run") / "a"
    settings = {"data.images": 128, "log.probe_every": 0, "views.solarize_p": [0.0, 1.0]}
    return tiny(folder, **settings)


def test_the_method_has_the_weights_of_the_checkpoint(run):
    method = load_method(run)
    state = run.state()
    same(dict(method.state_dict()), dict(state["method"]))
    untrained = build_method(run.resolve(), 128)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(method.parameters(), untrained.parameters(), strict=True)
    )


def test_a_state_that_is_loaded_already_is_used(run):
    state = run.state()
    state["method"]["encoder.network.conv.weight"] *= 2
    method = load_method(run, device="cpu", state=state)
    assert torch.equal(
        method.encoder.network.conv.weight, 2 * load_method(run).encoder.network.conv.weight
    )


def test_methods_under_one_seed_start_from_one_encoder(run):
    config = run.resolve()
    first = build_method(config, 128)
    torch.manual_seed(12345)
    second = build_method(config, 64)
    same(dict(first.state_dict()), dict(second.state_dict()))


def test_the_views_are_those_of_the_configuration(run):
    views = load_views(run, load_method(run))
    assert [view.solarize_p for view in views.policy.views] == [0.0, 1.0]
    assert {view.size for view in views.policy.views} == {8}


def test_a_method_may_export_another_encoder(tmp_path):
    settings = {"encoder": "support.homemade.Net", "epochs": 1, "batch_size": 64}
    run = smi.pretrain(
        "digits",
        out=tmp_path / "a",
        method="support.homemade.Slow",
        overrides=settings | {"data.images": 128, "log.probe_every": 0},
        quiet=True,
    )
    method = load_method(run)
    exported = dict(smi.load(run).network.state_dict())
    same(exported, dict(method.slow.network.state_dict()))
    same(exported, dict(smi.load(run.folder / "encoder.safetensors").network.state_dict()))
    assert not torch.equal(exported["conv.weight"], method.encoder.network.conv.weight)
