"""Rebuild the method and the views of a run."""

import json
from dataclasses import replace

import pytest
import torch
import yaml

import smi
from smi.config.resolve import resolve
from smi.errors import UserError
from smi.runs.restore import build_method, build_views, load_method, load_views
from smi.runs.run import Facts, Run
from smi.training.images import Images
from support.digits import same, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("run") / "a"
    settings = {"data.images": 128, "log.probe_every": 0}
    settings |= {"views.solarize_p": [0.0, 1.0], "views.blur_p": [0.3, 0.0]}
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
    assert [view.blur_p for view in views.policy.views] == [0.3, 0.0]
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


def test_dino_exports_its_teacher_and_keeps_its_student(tmp_path):
    settings = {"encoder": "support.homemade.Net", "epochs": 1, "batch_size": 64}
    narrow = {"method.widths": [8, 8], "method.num_outputs": 16, "method.momentum": 0.5}
    run = smi.pretrain(
        "digits",
        out=tmp_path / "a",
        method="DINO",
        overrides=settings | narrow | {"data.images": 256},
        quiet=True,
    )
    method = load_method(run)
    teacher = dict(method.teacher.network[0].network.state_dict())
    student = dict(method.encoder.network.state_dict())
    file = run.folder / "encoder.safetensors"
    for exported in (smi.load(run), smi.load(file), run.encoder()):
        same(dict(exported.network.state_dict()), teacher)
    for trained in (smi.load(run, student=True), run.encoder(student=True)):
        same(dict(trained.network.state_dict()), student)
    assert not torch.equal(teacher["conv.weight"], student["conv.weight"])
    with pytest.raises(UserError, match="holds one encoder, not a student beside it"):
        smi.load(file, student=True)

    # The last probe of the training was of the teacher.
    images = Images.open(run.resolve(), root=None, num_workers=1)
    probe = images.probe(load_views(run, method).policy, run.resolve())
    assert run.probes()[-1]["probe"]["knn"] == probe(smi.load(run))["knn"]
    images.close()

    # In a run of an earlier version, run.json names the student.
    facts = json.loads((run.folder / "run.json").read_text())
    facts["method"]["exported_encoder"] = "encoder"
    (run.folder / "run.json").write_text(json.dumps(facts))
    same(dict(smi.load(run).network.state_dict()), student)


@pytest.mark.parametrize(
    ("method", "setting", "earlier"),
    [("MoCo", "key_parts", 1), ("MoCoV2", "key_parts", 1), ("PIRL", "image_blur", True)],
)
def test_runs_from_before_a_setting_keep_their_meaning(tmp_path, method, setting, earlier):
    config = resolve("digits", {"method": method})
    assert config.method[setting] != earlier
    with Run.claim(tmp_path / "a", config, num_images=10) as run:
        assert run.resolve() == config
        plain = run.config
        del plain["method"][setting]
        (run.folder / "config.yaml").write_text(yaml.safe_dump(plain))
        assert run.resolve().method == {**config.method, setting: earlier}
        assert run.differences(config) == [
            f"method.{setting} is {earlier} in the folder, {config.method[setting]} was requested"
        ]


def test_runs_on_several_devices_from_before_synchronised_batch_norms(tmp_path):
    config = resolve("digits", {"method": "BYOL"})
    with Run.claim(tmp_path / "a", config, num_images=10) as run:
        plain = run.config
        del plain["sync_batch_norm"]
        (run.folder / "config.yaml").write_text(yaml.safe_dump(plain))
        for world_size, expected in ((1, None), (2, False)):
            run.write_facts(Facts(world_size=world_size))
            assert run.resolve().sync_batch_norm is expected


def test_the_setting_of_the_interpolation_overrides_the_policy(run):
    config = run.resolve()
    method = build_method(config, 128)
    for setting, expected in (("bicubic", "bicubic"), ("bilinear", "bilinear"), (None, "bilinear")):
        chosen = replace(config, views=replace(config.views, interpolation=setting))
        views = build_views(chosen, method).policy.views
        assert {view.interpolation for view in views} == {expected}
        assert [view.solarize_p for view in views] == [0.0, 1.0]
