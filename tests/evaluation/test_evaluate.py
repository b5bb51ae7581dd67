"""`smi evaluate` through its real entry points, on a network of a few hundred weights."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import smi
from smi.cli import main
from smi.data import load
from smi.errors import UserError
from smi.evaluation import extract_labelled, knn_accuracy
from smi.evaluation.evaluate import evaluate, stored
from smi.evaluation.protocols import PROTOCOLS
from smi.evaluation.results import read_all
from smi.runs.checkpoint import save_encoder

TESTS = Path(__file__).parents[1]
SMI = str(Path(sys.executable).with_name("smi"))
TINY = {
    "encoder": "support.homemade.Net",
    "batch_size": 64,
    "epochs": 1,
    "method.widths": "[16, 16]",
    "log.probe_images": 200,
}


@pytest.fixture(autouse=True)
def _our_modules(monkeypatch):
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Pretrain the same network with SMI and with Barlow Twins."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TESTS)
        return [
            smi.pretrain("digits", out=folder / method, method=method, overrides=TINY).folder
            for method in ("SMI", "BarlowTwins")
        ]


@pytest.fixture
def run(trained, tmp_path):
    """Copy the first run, without results."""
    return copy_of(trained[0], tmp_path / "run")


def copy_of(folder, target):
    target.mkdir()
    (target / "checkpoints").mkdir()
    for name in (
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "encoder.safetensors",
        "checkpoints/last.pt",
    ):
        (target / name).write_bytes((folder / name).read_bytes())
    return target


def command(*words, **more):
    return subprocess.run(
        [SMI, "evaluate", *map(str, words), "--trust"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )


def write_folder(folder, classes, count, side=12, seed=0):
    """Write noisy images in one folder per class; each class has its own mean colour."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            noise = rng.normal(60 + 40 * (number % 4), 30, (side, side, 3))
            noise[..., 1] += 30 * number
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def test_the_command_writes_results_and_prints_their_table(run, smi_here):
    done = command(run, "--floors")
    assert done.returncode == 0, done.stderr
    rows = [line.split("  ")[0] for line in done.stdout.splitlines()[2:5]]
    assert rows == [
        f"{run}, epoch 1",
        "untrained support.homemade.Net, seed 0",
        "raw pixels, 8 × 8",
    ]
    for word in (
        "kNN",
        "linear-cached",
        "linear-cached top-5",
        "1 label",
        "10 labels",
        "vote of the 20 nearest of 1,614",
    ):
        assert word in done.stdout
    results = read_all(run)
    assert len(results) == 9
    for result in results:
        assert result.protocol["data"] == "digits"
        assert result.protocol["train"]["images"] == 1614
        assert result.protocol["test"] == {
            "split": "val",
            "images": 183,
            "which": result.protocol["test"]["which"],
        }
        assert result.made["date"]
    ours = next(r for r in results if r.subject == "encoder" and r.protocol["name"] == "knn")
    assert ours.encoder["method"] == "SMI"
    assert ours.encoder["epoch"] == 1
    assert ours.protocol["k"] == 20
    again = smi_here("evaluate", run, "--show")
    assert again.returncode == 0, again.stderr
    assert f"{ours.scores[0].value:.1%}" in again.stdout
    assert "raw pixels" not in again.stdout
    assert "raw pixels" in smi_here("evaluate", run, "--show", "--floors").stdout


def test_numbers_equal_those_of_independent_references(run):
    """The references are knn_accuracy, and scikit-learn's logistic regression with the same l2."""
    (_, (knn, linear)) = evaluate([run], protocols=["knn", "linear-cached"]).rows[0]
    encoder = smi.load(run)
    stores = load("digits", "train"), load("digits", "val")
    (h, y), (test_h, test_y) = (
        extract_labelled(encoder, s, mean=encoder.mean, std=encoder.std, size=8) for s in stores
    )
    assert knn.scores[0].value == knn_accuracy(h, y, test_h, test_y).top1
    scaler = StandardScaler().fit(h.numpy())
    theirs = LogisticRegression(C=1 / (linear.details["l2"] * len(h)), max_iter=5000, tol=1e-6).fit(
        scaler.transform(h.numpy()), y.numpy()
    )
    assert linear.scores[0].value == pytest.approx(
        theirs.score(scaler.transform(test_h.numpy()), test_y.numpy()), abs=1.5 / 183
    )


def test_the_slow_protocols(run, monkeypatch):
    monkeypatch.setattr("smi.evaluation.finetune.MIN_STEPS", 5)
    rows = evaluate([run], protocols=["linear", "finetune"], epochs=2, floors=True).rows
    assert [len(results) for _, results in rows] == [2, 2, 1]  # pixels cannot be fine-tuned
    linear, finetune = rows[0][1]
    assert [epoch["epoch"] for epoch in linear.details["curves"]] == [1, 2]
    assert linear.scores[0].value == pytest.approx(
        linear.details["curves"][-1]["test_top1"], abs=1e-6
    )
    assert linear.protocol["epoch reported"] == "last"
    assert linear.protocol["epochs"] == 2
    assert [score.name for score in finetune.scores] == [
        "1% of labels",
        "10% of labels",
        "100% of labels",
    ]
    assert [finetune.details[share]["labels"] for share in ("1%", "10%", "100%")] == [20, 162, 1614]


def test_stored_results_are_reused_until_the_weights_change(run, monkeypatch):
    first = evaluate([run], protocols=["knn"])
    cases = []
    protocol = PROTOCOLS["knn"]
    counted = dataclasses.replace(
        protocol, run=lambda case: cases.append(case) or protocol.run(case)
    )
    monkeypatch.setitem(PROTOCOLS, "knn", counted)
    assert evaluate([run], protocols=["knn"]) == first
    assert not cases
    fewer = evaluate([run], protocols=["knn"], images=500)
    assert fewer.rows[0].results[0].stamp != first.rows[0].results[0].stamp
    assert len(cases) == 1
    state = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    for name, weights in state["method"].items():
        if name.startswith("encoder.") and weights.ndim > 1:
            weights.mul_(-1)
    torch.save(state, run / "checkpoints" / "last.pt")
    evaluate([run], protocols=["knn"])
    assert len(cases) == 2
    # Both are kept, in rows of their own.
    (old, new) = stored([run], protocols=["knn"], data="digits").rows
    assert len(old.results) + len(new.results) == 3


def test_two_runs_side_by_side(trained, tmp_path, monkeypatch):
    runs = [copy_of(folder, tmp_path / folder.name) for folder in trained]
    seconds = iter(range(100))
    monkeypatch.setattr(
        "smi.evaluation.evaluate.time.perf_counter", lambda: next(seconds) ** 2
    )  # so that all durations differ
    evaluation = evaluate(runs, protocols=["knn"], floors=True)
    assert len(evaluation.rows) == 4  # the untrained encoder and the pixels are the same for both
    assert len({result.stamp for row in evaluation.rows for result in row.results}) == 1
    assert "not comparable" not in evaluation.text()
    evaluate(runs[:1], protocols=["knn"], images=400)
    assert "not comparable: knn (a) and knn (b)" in stored(runs, protocols=["knn"]).text()


def test_json_and_a_file_of_an_encoder(run, tmp_path):
    file = tmp_path / "mine.safetensors"
    file.write_bytes((run / "encoder.safetensors").read_bytes())
    done = command(file, "--protocol", "knn", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["encoder"]["method"] == "SMI"
    assert (tmp_path / "mine-results" / "eval").is_dir()
    evaluation = evaluate([run], protocols=["knn"])
    assert found["scores"][0]["value"] == evaluation.rows[0].results[0].scores[0].value
    plain = evaluation.plain()
    assert json.loads(json.dumps(plain)) == plain
    assert plain[0]["protocol"] == found["protocol"]


def test_another_dataset_than_the_one_pretrained_on(run, tmp_path):
    data = write_folder(tmp_path / "photos" / "train", ["ant", "bee", "cow"], 12)
    write_folder(tmp_path / "photos" / "val", ["ant", "bee", "cow"], 5, seed=1)
    evaluation = evaluate([run], data=data.parent, protocols=["knn", "fewshot"])
    (_, (knn, few)) = evaluation.rows[0]
    assert knn.protocol["data"] == "photos/"
    assert knn.protocol["classes"] == 3
    assert knn.scores[0].value > 0.5
    assert [score.name for score in few.scores] == ["1 label", "5 labels", "10 labels"]
    assert "3 classes: top-5 accuracy would always be 100 %" in evaluation.text()


def test_classes_that_differ_are_noted(run, tmp_path):
    write_folder(tmp_path / "a" / "train", ["ant", "bee", "cow"], 8)
    write_folder(tmp_path / "a" / "val", ["bee", "cow", "dog"], 4, seed=1)
    text = evaluate([run], data=tmp_path / "a", protocols=["knn", "linear-cached"]).text()
    assert (
        "dog: no training images, so 4 of the 12 test images cannot be classified correctly" in text
    )
    assert "ant: no test images" in text
    write_folder(tmp_path / "b" / "train", ["ant", "bee"], 4)
    write_folder(tmp_path / "b" / "val", ["cow", "dog"], 4)
    with pytest.raises(UserError, match="no class of b/'s training images"):
        evaluate([run], data=tmp_path / "b")


def test_a_test_split_with_one_class_is_noted(run, tmp_path):
    write_folder(tmp_path / "a" / "train", ["ant", "bee", "cow"], 8)
    write_folder(tmp_path / "a" / "val", ["bee"], 4, seed=1)
    evaluation = evaluate([run], data=tmp_path / "a", protocols=["knn"])
    assert "ant, cow: no test images" in evaluation.text()


def test_other_images_under_the_same_names_are_another_protocol(run, tmp_path):
    """The folders have the same name, numbers of images and classes, and sizes of files."""
    for place, spread in (("x", 1), ("y", 2)):
        for split in ("train", "val"):
            write_folder(tmp_path / place / "photos" / split, ["ant", "bee", "cow"], 6, seed=spread)
    found = [
        evaluate([run], data=tmp_path / place / "photos", protocols=["knn"]).rows[0].results[0]
        for place in ("x", "y")
    ]
    assert found[0].protocol["data"] == found[1].protocol["data"]
    assert found[0].stamp != found[1].stamp


def test_stamps_differ_only_where_something_does(run, tmp_path):
    """An unused seed changes nothing, nor does how a folder with a broken file is read."""
    one, other = (
        evaluate([run], protocols=["knn", "fewshot"], seed=seed).rows[0].results for seed in (0, 1)
    )
    assert one[0].stamp == other[0].stamp
    assert one[1].stamp != other[1].stamp
    data = write_folder(tmp_path / "photos" / "train", ["ant", "bee", "cow"], 12).parent
    write_folder(data / "val", ["ant", "bee", "cow"], 5, seed=1)
    (data / "train" / "bee" / "0.png").write_bytes(b"no image")
    cached = evaluate([run], data=data, protocols=["knn"]).rows[0].results[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "smi.evaluation.labelled.load",
            lambda *words, **more: load(*words, **more, max_cache_bytes=0),
        )
        streamed = evaluate([run], data=data, protocols=["knn"]).rows[0].results[0]
    assert cached == streamed  # found again under its stamp
    assert "1 file could not be read" in " ".join(cached.notes)


def test_very_few_images_can_be_evaluated(run, tmp_path):
    write_folder(tmp_path / "few" / "train", ["ant", "bee"], 1)
    write_folder(tmp_path / "few" / "val", ["ant", "bee"], 2, seed=1)
    (_, (knn, linear, few)) = evaluate([run], data=tmp_path / "few").rows[0]
    assert knn.protocol["k"] == 2
    assert linear.protocol["l2 from"] == [1e-3]
    assert few.protocol["labels of each class"] == [1]


def test_all_sources_are_checked_before_any_is_evaluated(run, tmp_path):
    with pytest.raises(UserError, match="there is no run or encoder"):
        evaluate([run, tmp_path / "typo"], protocols=["knn"])
    assert not (run / "eval").exists()


def test_images_of_another_size_are_noted(tmp_path):
    """The network takes 16 pixels, and digits have 8."""
    about = {
        "encoder": {"name": "support.homemade.Net"},
        "image_size": 16,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "resolution": 16,
        "about": {},
    }
    encoder = smi.nn.create_encoder("support.homemade.Net", image_size=16)
    save_encoder(tmp_path / "encoder.safetensors", encoder.network.state_dict(), about)
    file = tmp_path / "encoder.safetensors"
    evaluation = evaluate([file], data="digits", protocols=["knn"])
    assert "images of 8 pixels were resized to 16, the size of this encoder's" in evaluation.text()
    with pytest.raises(UserError, match="does not name its pretraining dataset"):
        evaluate([tmp_path / "encoder.safetensors"])


def write_encoder(folder, *, size, resolution):
    """Write an encoder of random weights for files of `resolution` pixels."""
    about = {
        "encoder": {"name": "support.homemade.Net"},
        "image_size": size,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "resolution": resolution,
        "about": {},
    }
    folder.mkdir()
    torch.manual_seed(0)
    encoder = smi.nn.create_encoder("support.homemade.Net", image_size=size)
    save_encoder(folder / "encoder.safetensors", encoder.network.state_dict(), about)
    return folder / "encoder.safetensors"


def test_the_crop_is_part_of_the_protocol_only_where_there_is_one(tmp_path, run):
    """Stamps of whole images are those of earlier versions."""
    for split in ("train", "val"):
        write_folder(tmp_path / "photos" / split, ["ant", "bee", "cow"], 9, side=40)
    found = {
        resolution: evaluate(
            [write_encoder(tmp_path / str(resolution), size=28, resolution=resolution)],
            data=tmp_path / "photos",
            protocols=["knn", "linear", "finetune"] if resolution == 32 else ["knn"],
            epochs=1,
            floors=resolution == 32,
        )
        for resolution in (28, 32)
    }
    (whole,) = found[28].rows[0].results
    assert "crop" not in whole.protocol
    cropped = [result for row in found[32].rows for result in row.results]
    assert len(cropped) == 3 + 3 + 2
    assert all(result.protocol["crop"] == "centre 7/8" for result in cropped)
    assert all("centre crops of 7/8" in result.sentence for result in cropped)
    crops = {result.protocol.get("augmentation") for result in cropped}
    assert crops == {None, "crops of 0.08 to 1 of the area of the whole image, flip 0.5"}
    assert len({result.stamp for result in cropped if result.protocol["name"] == "knn"}) == 1
    assert whole.stamp not in {result.stamp for result in cropped}
    digits = evaluate([run], protocols=["knn"], floors=True)
    for row in digits.rows:
        assert list(row.results[0].protocol) == [
            "name", "data", "classes", "train", "test", "k", "temperature", "similarity"
        ]  # fmt: skip
    transfer = evaluate([tmp_path / "32" / "encoder.safetensors"], data="digits", protocols=["knn"])
    assert "crop" not in transfer.rows[0].results[0].protocol
    tiny = write_encoder(tmp_path / "tiny", size=4, resolution=4)
    noted = evaluate([tiny], data="digits", protocols=["knn"])
    assert "8 pixels were cropped to their centre of 7 and resized to 4" in noted.text()


def test_the_student_of_dino_beside_its_teacher(tmp_path, smi_here):
    few = {name: value for name, value in TINY.items() if name != "method.widths"}
    run = smi.pretrain(
        "digits", out=tmp_path / "dino", method="DINO", overrides=few | {"data.images": 320}
    )
    teacher = smi_here("evaluate", run.folder, "--protocol", "knn")
    student = smi_here("evaluate", run.folder, "--protocol", "knn", "--student")
    assert f"{run.folder}, epoch 1" in teacher.stdout
    assert f"student of {run.folder}, epoch 1" in student.stdout
    assert {result.subject for result in read_all(run.folder)} == {"encoder", "student"}
    for kind, name in (
        (False, f"{run.folder}, epoch 1"),
        (True, f"student of {run.folder}, epoch 1"),
    ):
        (row,) = stored([run], student=kind).rows
        assert row.name == name
    digests = {result.encoder["digest"] for result in read_all(run.folder)}
    assert digests == {smi.load(run).digest(), smi.load(run, student=True).digest()}
    assert len(digests) == 2
    shown = smi_here("evaluate", run.folder, "--student", "--show").stdout
    assert f"student of {run.folder}" in shown


def test_other_methods_are_their_own_students(run):
    (row,) = evaluate([run], protocols=["knn"], student=True).rows
    assert row.results[0].subject == "encoder"
    assert stored([run]).rows == [row]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_another_precision_is_another_protocol(run, monkeypatch, precision):
    monkeypatch.setattr("smi.evaluation.finetune.MIN_STEPS", 5)
    arguments = {"protocols": ["knn", "linear", "finetune"], "epochs": 1, "images": 600}
    full = evaluate([run], **arguments, precision="auto").rows[0].results
    less = evaluate([run], **arguments, precision=precision).rows[0].results
    for one, other in zip(full, less, strict=True):
        assert "precision" not in one.protocol  # auto is float32 on a CPU
        assert other.protocol == one.protocol | {"precision": precision}
        assert other.sentence == f"{one.sentence}, computed in {precision}"
        assert other.scores[-1].value == pytest.approx(one.scores[-1].value, abs=0.1)
    features = [result.details["curves"][0]["train_loss"] for result in (full[1], less[1])]
    assert features[0] != features[1]
    assert features[0] == pytest.approx(features[1], rel=0.02)


def test_protocols_on_features_larger_than_memory(run, tmp_path, monkeypatch):
    arguments = {"protocols": ["knn", "linear-cached", "fewshot", "linear"], "epochs": 1}
    held = evaluate([run], **arguments)
    other = copy_of(run, tmp_path / "other")
    monkeypatch.setattr("smi.evaluation.features.MAX_SHARE_OF_MEMORY", 0.0)
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    mapped = evaluate([other], **arguments)
    assert list((tmp_path / "cache").iterdir()) == []
    for one, two in zip(held.rows[0].results, mapped.rows[0].results, strict=True):
        assert one.stamp == two.stamp
        values = [[score.value for score in result.scores] for result in (one, two)]
        assert values[1] == pytest.approx(values[0], abs=1.01 / 183)


def test_mistakes_are_sentences(run, tmp_path, monkeypatch, capsys):
    flat = write_folder(tmp_path / "flat", ["x"], 5) / "x"
    write_folder(tmp_path / "one" / "train", ["ant", "bee"], 4)
    write_folder(tmp_path / "one" / "val", ["ant", "bee"], 4)
    for file in (tmp_path / "one" / "train" / "bee").iterdir():
        file.unlink()
    expected = {
        ("nowhere",): "there is no run or encoder nowhere",
        (run, "--data", flat): "has no labels",
        (run, "--data", tmp_path / "one"): "of one class (ant)",
        (run, "--images", "1"): "of one class",
        (run, "--data", "cifra10"): "did you mean cifar10",
        (run, "--protocol", "lineer"): "did you mean linear?",
        (run, "--images", "5000"): "has only 1,614",
        (run, "--show"): "has no such results yet",
        (run, "--epochs", "0"): "whole number of 1 or more",
        (run, "--precision", "float8"): "must be float32, bfloat16 or float16, not 'float8'",
    }
    for words, sentence in expected.items():
        monkeypatch.setattr(sys, "argv", ["smi", "evaluate", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        text = capsys.readouterr().err.splitlines()[-1]
        assert stop.value.code == 2
        assert sentence in text, (words, text)


# -------------------------------------------------------------------- runs and files with weights


@pytest.fixture(scope="module")
def adapted(trained, tmp_path_factory):
    """Continue from the first run."""
    settings = TINY | {"init": str(trained[0]), "data.images": 256, "optimizer.lr": 0.05}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TESTS)
        out = tmp_path_factory.mktemp("runs") / "adapted"
        return smi.pretrain("digits", out=out, overrides=settings).folder


def test_a_run_that_started_from_weights_has_a_third_floor(adapted, trained, tmp_path, smi_here):
    folder = copy_of(adapted, tmp_path / "adapted")
    (folder / "start.safetensors").write_bytes((adapted / "start.safetensors").read_bytes())
    evaluation = evaluate([folder], protocols=["knn"], floors=True)
    names = [row.name for row in evaluation.rows]
    assert names == [
        f"{folder}, epoch 1",
        "support.homemade.Net, off the shelf",
        "untrained support.homemade.Net, seed 0",
        "raw pixels, 8 × 8",
    ]
    ours, shelf, untrained, pixels = (row.results[0] for row in evaluation.rows)
    assert [result.subject for result in (ours, shelf, untrained, pixels)] == [
        "encoder",
        "off the shelf",
        "untrained encoder",
        "raw pixels",
    ]
    assert ours.stamp == shelf.stamp == untrained.stamp == pixels.stamp
    source = copy_of(trained[0], tmp_path / "source")
    (row,) = evaluate([source], protocols=["knn"]).rows
    assert shelf.scores == row.results[0].scores
    assert shelf.scores != ours.scores
    assert shelf.encoder["digest"] == smi.load(folder).off_the_shelf().digest()
    again = stored([folder], floors=True)
    assert [row.name for row in again.rows] == names
    assert [row.results for row in again.rows] == [row.results for row in evaluation.rows]
    assert [row.name for row in stored([folder]).rows] == names[:1]
    shown = smi_here("evaluate", folder, "--floors", "--show").stdout
    assert "support.homemade.Net, off the shelf" in shown
    assert len(list((folder / "eval").glob("knn-digits-off-the-shelf-*.json"))) == 1


def test_a_run_from_scratch_and_a_file_have_two_floors(run):
    for source in (run, run / "encoder.safetensors"):
        rows = evaluate([source], protocols=["knn"], floors=True).rows
        assert not any("off the shelf" in row.name for row in rows)
        assert len(rows) == 3


def test_two_runs_from_the_same_weights_share_their_third_floor(adapted, trained, tmp_path):
    folders = [copy_of(adapted, tmp_path / name) for name in ("a", "b")]
    for folder in folders:
        (folder / "start.safetensors").write_bytes((adapted / "start.safetensors").read_bytes())
    names = [row.name for row in evaluate(folders, protocols=["knn"], floors=True).rows]
    assert names.count("support.homemade.Net, off the shelf") == 1
    assert len(names) == 5


def test_a_network_of_timm_with_a_file_is_evaluated_into_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    data = write_folder(tmp_path / "photos" / "train", ["ant", "bee", "cow"], 6).parent
    write_folder(data / "val", ["ant", "bee", "cow"], 3, seed=1)
    network = timm.create_model("test_efficientnet", num_classes=3)
    torch.save(network.state_dict(), "weights.pth")
    source = "timm:test_efficientnet@weights.pth"
    with pytest.raises(UserError, match=f"{source} has no such results yet: run `smi evaluate "):
        stored([source])
    evaluation = evaluate([source], data=data, protocols=["knn"], floors=True)
    assert [row.name for row in evaluation.rows] == [
        source,
        "untrained test_efficientnet, seed 0",
        "raw pixels, 32 × 32",
    ]
    folder = tmp_path / "timm-test_efficientnet-weights.pth-results"
    assert len(list((folder / "eval").iterdir())) == 3
    assert evaluation.rows[0].results[0].encoder == {
        "digest": smi.load(source).digest(),
        "network": "test_efficientnet",
    }
    assert stored([source], floors=True) == evaluation
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "photos",
        folder.name,
        "weights.pth",
    ]


def test_the_data_of_published_weights_must_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = timm.create_model("test_efficientnet", num_classes=3)
    torch.save(network.state_dict(), "weights.pth")
    with pytest.raises(UserError, match="does not name its pretraining dataset: give labelled"):
        evaluate(["timm:test_efficientnet@weights.pth"])
