"""Export the encoder of the best probe, so that training never makes an encoder worse."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import smi
from smi.errors import UserError
from smi.nn import Encoder, create_encoder
from smi.training import selection as selecting
from smi.training.images import Images
from smi.training.selection import Selection
from smi.training.signals import Interrupted
from support.digits import same, same_run, tiny
from support.signals import signal_in_step

FEW = {
    "data.images": 256,
    "data.validation": 0.2,
    "batch_size": 64,
    "log.probe_images": 200,
    "log.every": 2,
}  # 4 steps
NET = "support.homemade.Net"
WORSE = {"method": "support.homemade.Agreement", "optimizer.lr": 3.0}  # collapses
BETTER = {"method.widths": [8, 8], "optimizer.lr": 0.05}
FILES = ("encoder.safetensors", "best.safetensors", "start.safetensors")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    """Pretrain a run to start from."""
    return tiny(tmp_path_factory.mktemp("runs") / "earlier", **FEW, **{"optimizer.lr": 0.01}).folder


def continued(out: Path, source: Path, epochs: int = 3, **settings: object) -> smi.Run:
    overrides = FEW | {"encoder": NET, "epochs": epochs, "init": str(source), "select": "best"}
    return smi.pretrain("digits", out=out, overrides=overrides | settings)


def header(path: Path) -> dict[str, object]:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["smi"])


def scores(run: smi.Run) -> list[float]:
    return [line["probe"]["knn"] for line in run.probes()]


@pytest.fixture(scope="module")
def worse(earlier, tmp_path_factory) -> smi.Run:
    """Continue from a run with a learning rate that makes its encoder worse."""
    return continued(tmp_path_factory.mktemp("runs") / "worse", earlier, **WORSE)


@pytest.fixture(scope="module")
def better(earlier, tmp_path_factory) -> smi.Run:
    """Continue from a run and keep a checkpoint of each epoch."""
    out = tmp_path_factory.mktemp("runs") / "better"
    return continued(out, earlier, epochs=4, **BETTER, **{"log.keep_every": 1})


def test_a_run_that_gets_worse_keeps_its_start(worse, earlier):
    assert scores(worse)[0] > max(scores(worse)[1:])
    start = load_file(worse.start)
    same(load_file(worse.folder / "encoder.safetensors"), start)
    same(start, load_file(earlier / "encoder.safetensors"))
    last = worse.state()["method"]["encoder.network.conv.weight"]
    assert not torch.equal(last, start["conv.weight"])
    about = header(worse.folder / "encoder.safetensors")
    assert about["selected"] == {"criterion": "knn", "score": scores(worse)[0], "images": 200}
    assert (about["about"]["step"], about["about"]["epoch"]) == (0, 0)


def test_the_kept_encoder_is_loaded_and_named(worse, earlier, tmp_path, capsys):
    encoder = smi.load(worse)
    same(dict(encoder.network.state_dict()), load_file(worse.best))
    assert (encoder.about["step"], encoder.about["epoch"]) == (0, 0)
    assert encoder.digest() == smi.load(worse.best).digest()
    assert encoder.digest() == encoder.off_the_shelf().digest()
    assert smi.load(worse.folder / "encoder.safetensors").digest() == encoder.digest()
    student = smi.load(worse, student=True)
    assert student.about["step"] == 12
    assert student.digest() != encoder.digest()
    continued(tmp_path / "again", earlier, **WORSE)
    said = capsys.readouterr().out
    assert f"kept the start, the best on held-out images: kNN {scores(worse)[0]:.1%}" in said


def test_the_encoder_of_the_best_probe_is_exported(better):
    best = header(better.best)
    assert best["selected"]["score"] == max(scores(better)) > scores(better)[0]
    step = best["about"]["step"]
    assert {line["step"]: line["probe"]["knn"] for line in better.probes()}[step] == (
        best["selected"]["score"]
    )
    kept = better.state(epoch=step / 4)["method"]
    same(load_file(better.best), {name: kept[f"encoder.network.{name}"] for name in best_names()})
    same(load_file(better.folder / "encoder.safetensors"), load_file(better.best))
    assert smi.load(better).about["step"] == step


def best_names() -> list[str]:
    return sorted(create_encoder(NET, image_size=8).network.state_dict())


@pytest.mark.parametrize("kind", ["worse", "better"])
@pytest.mark.parametrize("number", [2, 7, 11])
def test_a_resumed_run_keeps_the_same_encoder(kind, number, request, earlier, tmp_path):
    whole = request.getfixturevalue(kind)
    settings = WORSE if kind == "worse" else BETTER | {"log.keep_every": 1}
    epochs = 3 if kind == "worse" else 4
    with pytest.raises(Interrupted), signal_in_step(number):
        continued(tmp_path / "cut", earlier, epochs, **settings)
    cut = continued(tmp_path / "cut", earlier, epochs, **settings)
    same_run(whole.folder, cut.folder)
    for name in FILES:
        assert (whole.folder / name).read_bytes() == (cut.folder / name).read_bytes(), name


def test_probes_that_are_repeated_find_a_file_that_is_ahead(better, earlier, tmp_path):
    """The checkpoint is older than the best probe, as after a crash."""
    settings = BETTER | {"log.keep_every": 1}
    cut = continued(tmp_path / "cut", earlier, 4, **settings)
    (cut.folder / "checkpoints" / "epoch-2.pt").rename(cut.checkpoint)
    cut.set_status("training")
    (cut.folder / "encoder.safetensors").unlink()
    resumed = continued(tmp_path / "cut", earlier, 4, **settings)
    assert resumed.finished
    for name in FILES:
        assert (better.folder / name).read_bytes() == (resumed.folder / name).read_bytes(), name


def test_the_last_encoder_is_exported_by_default(earlier, tmp_path, capsys):
    run = continued(tmp_path / "a", earlier, **WORSE, select="last")
    assert not run.best.exists()
    state = run.state()["method"]
    same(
        load_file(run.folder / "encoder.safetensors"),
        {name: state[f"encoder.network.{name}"] for name in best_names()},
    )
    assert "selected" not in header(run.folder / "encoder.safetensors")
    assert smi.load(run).about["step"] == 12
    assert "kept" not in capsys.readouterr().out.partition("batch norm statistics kept")[2]


@pytest.mark.parametrize("setting", ["log.probe_every", "data.validation"])
def test_test_images_do_not_choose(setting, earlier, tmp_path):
    with pytest.raises(UserError, match="probes of held-out training images"):
        continued(tmp_path / "a", earlier, **{setting: 0})


def test_a_run_from_scratch_selects_among_its_own_probes(tmp_path):
    run = tiny(tmp_path / "a", **FEW, **{"epochs": 3, "select": "best", "optimizer.lr": 0.3})
    assert [line["step"] for line in run.probes()] == [0, 4, 8, 12]
    assert header(run.best)["selected"]["score"] == max(scores(run)[1:])  # not the untrained one
    assert smi.load(run).off_the_shelf() is None


def test_the_exported_encoder_is_the_one_that_is_selected(earlier, tmp_path):
    """A method may export another encoder than the one that the optimizer trains."""
    run = continued(tmp_path / "a", earlier, method="support.homemade.Slow")
    slow = smi.load(run)
    assert "student" not in slow.about
    same(load_file(run.best), dict(slow.network.state_dict()))
    student = smi.load(run, student=True)
    assert student.about["student"]
    assert student.about["step"] == 12


def test_a_new_run_in_the_folder_of_one_without_steps_forgets_its_best(tmp_path, earlier):
    run = continued(tmp_path / "a", earlier, **WORSE)
    run.checkpoint.unlink()
    first = (run.folder / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    (run.folder / "metrics.jsonl").write_text(first)
    again = tiny(tmp_path / "a", **FEW, select="best")
    assert again.init_source is None
    assert not again.start.exists()
    assert header(again.best)["about"]["step"] == 4


HEADER = {"encoder": {"name": NET}, "image_size": 8, "mean": [0, 0, 0], "std": [1, 1, 1]}


def make_header(job, step):
    return HEADER | {"about": {"step": step, "epoch": step}}


def test_only_better_probes_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(selecting, "encoder_header", make_header)
    job = SimpleNamespace(config=SimpleNamespace(select="best"), steps=9)
    (tmp_path / "config.yaml").touch()
    run = smi.Run(tmp_path)
    encoder = create_encoder(NET, image_size=8)
    selection = Selection(job, run)
    assert selection.sentence() == ""
    kept = []
    for step, knn in enumerate([0.3, 0.2, 0.5, 0.4]):
        with torch.no_grad():
            encoder.network.norm.bias.fill_(step)
        selection.offer(step, {"knn": knn, "images": 10}, encoder)
        weights, about = selection.result(encoder)
        assert weights["norm.bias"][0] == about["about"]["step"]
        kept.append(about["about"]["step"])
    assert kept == [0, 0, 2, 2]
    reopened = Selection(job, run)
    reopened.offer(5, {"knn": 0.45, "images": 10}, encoder)
    assert reopened.result(encoder)[1]["about"]["step"] == 2
    last = Selection(SimpleNamespace(config=SimpleNamespace(select="last"), steps=9), run)
    last.offer(6, {"knn": 0.9, "images": 10}, encoder)
    assert last.result(encoder)[1]["about"]["step"] == 9
    assert last.sentence() == ""


def test_without_labels_a_collapsed_encoder_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(selecting, "encoder_header", make_header)
    probes = [
        {"retrieval": 0.4, "label_free": {"rank_me": 50.0}, "images": 9},
        {"retrieval": 0.6, "label_free": {"rank_me": 20.0}, "images": 9},
        # tells images apart with a tenth of the rank
        {"retrieval": 0.9, "label_free": {"rank_me": 4.9}, "images": 9},
        {"retrieval": 0.5, "label_free": {"rank_me": 30.0}, "images": 9},
    ]
    (tmp_path / "config.yaml").touch()
    run = smi.Run(tmp_path)
    monkeypatch.setattr(run, "iterate_lines", lambda: iter([{"step": 3, "probe": probes[0]}]))
    init = SimpleNamespace(source=None)
    job = SimpleNamespace(config=SimpleNamespace(select="best", init=init))
    chosen = Selection(job, run)
    for step, probe in enumerate(probes):
        chosen.offer(step, probe, Encoder(torch.nn.Linear(2, 2), 2))
    kept = chosen.result(torch.nn.Identity())[1]
    assert kept["about"]["step"] == 1
    assert kept["selected"] == {"criterion": "retrieval", "score": 0.6, "images": 9}


# ------------------------------------------------------------------------------------ halfway


@pytest.fixture
def _halfway_is_best(monkeypatch):
    """Score the encoder halfway above all others."""
    offer = Selection.offer

    def prefer(self, step, probe, encoder, *, share=1.0):
        offer(self, step, dict(probe) | {"knn": 0.9 if share < 1 else 0.1}, encoder, share=share)

    monkeypatch.setattr(Selection, "offer", prefer)


@pytest.mark.usefixtures("_halfway_is_best")
def test_the_mean_of_start_and_trained_weights_is_kept_if_it_is_best(earlier, tmp_path, capsys):
    run = continued(tmp_path / "a", earlier, **BETTER)
    kept, start, trained = load_file(run.best), load_file(run.start), run.state()["method"]
    for name, tensor in kept.items():
        if tensor.is_floating_point():
            mean = (start[name].double() + trained[f"encoder.network.{name}"].double()) / 2
            torch.testing.assert_close(tensor, mean.float())
    assert not torch.equal(kept["conv.weight"], start["conv.weight"])
    assert header(run.best)["about"]["share"] == smi.load(run).about["share"] == 0.5
    same(dict(smi.load(run).network.state_dict()), kept)
    said = capsys.readouterr().out
    assert "kept the mean of the start and the encoder of epoch 3, the best on held-out" in said


def test_probes_record_the_encoder_halfway(worse, tmp_path):
    """It is measured like the others: the start has none, and all are below it here."""
    halfway = [line["probe"].get("halfway") for line in worse.probes()]
    assert halfway[0] is None
    assert all(0 <= score <= scores(worse)[0] for score in halfway[1:])
    run = tiny(tmp_path / "a", **FEW, select="best")
    assert not any("halfway" in line["probe"] for line in run.probes())


def test_the_score_halfway_is_that_of_the_mean(earlier, tmp_path, monkeypatch):
    probed = []
    measure = Images.probe

    def probe(self, *given):
        inner = measure(self, *given)

        def record(encoder):
            result = inner(encoder)
            weights = {k: v.clone() for k, v in encoder.network.state_dict().items()}
            probed.append((weights, result["knn"]))
            return result

        return record

    monkeypatch.setattr(Images, "probe", probe)
    run = continued(tmp_path / "a", earlier, epochs=1, **BETTER)
    (start, _), (trained, _), (mean, score) = probed
    assert run.probes()[-1]["probe"]["halfway"] == score
    for name in ("conv.weight", "norm.running_mean"):
        torch.testing.assert_close(mean[name], (start[name] + trained[name]) / 2)


def test_halfway_leaves_the_encoder_in_training_alone(earlier, tmp_path):
    run = smi.Run(earlier)
    run.write_start(load_file(earlier / "encoder.safetensors"), HEADER)
    job = SimpleNamespace(config=run.resolve(), device=torch.device("cpu"))
    job.config = dataclasses.replace(job.config, select="best")
    selection = Selection(job, run)
    encoder = create_encoder(NET, image_size=8)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    between = selection.halfway(encoder)
    same(before, dict(encoder.state_dict()))
    assert not torch.equal(between.network.conv.weight, encoder.network.conv.weight)
    run.start.unlink()
    assert selection.halfway(encoder) is None
