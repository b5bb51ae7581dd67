"""Classifiers through their commands and from Python, on digits in folders of PNG files."""

import csv
import io
import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import smi
from smi.errors import UserError
from smi.inference import classifier as classifier_module
from smi.inference import train_classifier as training
from smi.inference.classifier import Classifier, load_classifier, save_classifier
from smi.nn import create_encoder
from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import read_weights
from support.inference import draw, names_in, start

WORDS = ("zero", "one", "two", "three")


def write_digits(folder: Path, first: int, count: int, words=WORDS) -> Path:
    """Write some digits as PNG files, in one folder per class."""
    digits = load_digits()
    for number, word in enumerate(words):
        (folder / word).mkdir(parents=True)
        images = digits.images[digits.target == number][first : first + count]
        for i, image in enumerate(images):
            grey = np.rint(image * (255 / 16)).astype(np.uint8)
            Image.fromarray(grey).resize((16, 16)).save(folder / word / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Hold an encoder of random weights, labelled digits, and a classifier trained on them."""
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMI_CACHE", str(place / "cache"))
        torch.manual_seed(0)
        made = create_encoder("resnet-small", image_size=8)
        about = {
            "encoder": {"name": "resnet-small"},
            "image_size": 8,
            "resolution": 8,
            "mean": [0.3, 0.3, 0.3],
            "std": [0.4, 0.4, 0.4],
            "about": {"method": "SMI", "data": "digits", "epoch": 1.0},
        }
        save_encoder(place / "encoder.safetensors", made.network.state_dict(), about)
        write_digits(place / "digits", 0, 20)
        write_digits(place / "split" / "train", 0, 20)
        write_digits(place / "split" / "val", 20, 10)
        write_digits(place / "new", 30, 5)
        smi.classify(
            place / "encoder.safetensors",
            data=place / "split",
            out=place / "classifier",
            epochs=1,
            quiet=True,
        )
        yield place


@pytest.fixture(autouse=True)
def _home(place, tmp_path, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", str(place / "cache"))
    monkeypatch.chdir(tmp_path)


def train(place: Path, out: Path, data: str = "split", **settings) -> Classifier:
    found = smi.classify(
        place / "encoder.safetensors", data=place / data, out=out, quiet=True, **settings
    )
    assert isinstance(found, Classifier)
    return found


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# ------------------------------------------------------------------------------------- the commands


def test_the_commands_train_and_label_as_python_does(place, tmp_path, command):
    code, out, err = command(
        *("classify", str(place / "encoder.safetensors"), "--data", str(place / "digits")),
        *("--out", "deep/mine", "--epochs", "1"),
    )
    assert code == 0, err
    decoding, tuning = err.splitlines()
    assert decoding.startswith("decoding 80 images")
    assert tuning.startswith("fine-tuning for 1 epoch, about ")
    scores, files, use = out.splitlines()
    assert " frozen and " in scores
    assert "on 16 of 80 images that were kept apart (a fifth of each class" in scores
    assert files.startswith("deep/mine: classifier.safetensors (")
    assert use == "label images with: smi classify deep/mine IMAGES..."
    assert names_in(tmp_path) == [
        "deep",
        "deep/mine",
        "deep/mine/classifier.safetensors",
        "deep/mine/scores.json",
    ]

    labelled = start("classify", "deep/mine", str(place / "new"))
    assert (labelled.returncode, labelled.stderr) == (0, "")
    code, out, err = command("classify", "deep/mine", str(place / "new"))
    assert (code, out, err) == (0, labelled.stdout, "")  # another process, the same confidences
    rows = rows_of(out)
    paths = sorted(str(path) for path in (place / "new").rglob("*.png"))
    assert [row["file"] for row in rows] == paths
    labels, confidences = smi.load_classifier("deep/mine").predict(paths)
    assert [row["label"] for row in rows] == labels
    assert [float(row["confidence"]) for row in rows] == pytest.approx(confidences, abs=2e-6)
    right = [row["label"] == Path(row["file"]).parent.name for row in rows]
    assert sum(right) >= 15  # of 20
    for row in rows:
        assert row["second_label"] != row["label"]
        assert float(row["second_confidence"]) <= float(row["confidence"])


def test_json_and_files(place, command):
    image = str(place / "new" / "one" / "00.png")
    code, out, err = command("classify", str(place / "classifier"), "--json", image)
    assert (code, err) == (0, "")
    (row,) = json.loads(out)
    assert row["file"] == image
    assert row["label"] in WORDS
    for name in ("labels.csv", "labels.json"):
        code, out, err = command("classify", str(place / "classifier"), image, "--out", name)
        assert (code, out, err) == (0, f"{name}: labels of 1 image\n", "")
    assert json.loads(Path("labels.json").read_text()) == [row]
    (line,) = rows_of(Path("labels.csv").read_text())
    assert float(line["confidence"]) == row["confidence"]


def test_training_prints_json_too(place, command):
    words = ("classify", str(place / "encoder.safetensors"), "--data", str(place / "split"))
    code, out, _ = command(*words, "--out", "mine", "--epochs", "0", "--json")
    assert code == 0
    plain = json.loads(out)
    stored = json.loads(Path("mine/scores.json").read_text())
    assert {name: stored[name] for name in plain} == plain
    assert plain["scores"]["skipped"] == "it was not asked for (--epochs 0)"
    assert plain["classes"] == sorted(WORDS)
    assert stored["made"]["versions"]["torch"] == torch.__version__.partition("+")[0]


def test_images_of_any_source_in_the_order_of_the_command(place, tmp_path, command):
    draw(tmp_path / "flat" / "b.png", 1)
    draw(tmp_path / "flat" / "a.png", 2)
    draw(tmp_path / "single.png", 3)
    shutil.copy("single.png", "without-suffix")
    (tmp_path / "flat" / "broken.jpg").write_bytes(b"nothing")
    Path("list.txt").write_text("single.png\n")
    np.save("array.npy", np.zeros((2, 8, 8, 3), dtype=np.uint8))
    words = ("single.png", "without-suffix", "flat", "list.txt", "array.npy", "./single.png")
    code, out, err = command("classify", str(place / "classifier"), *words)
    assert code == 0
    assert err.startswith("warning: 1 file cannot be read as an image and is left out: broken.jpg")
    rows = rows_of(out)
    names = [row["file"] for row in rows]
    assert names[:5] == ["single.png", "without-suffix", "flat/a.png", "flat/b.png", "single.png"]
    assert names[-1] == "single.png"
    assert len(names) == 8
    confidences = [row["confidence"] for row in rows]
    assert confidences[0] == confidences[1] == confidences[4] == confidences[7]
    assert confidences[5] == confidences[6]  # two black images


# -------------------------------------------------------------------------------------- the choices


def test_the_frozen_classifier_is_that_of_scikit_learn(place, tmp_path):
    classifier = train(place, tmp_path / "mine", epochs=0)
    scores = classifier.scores["frozen"]
    assert classifier.protocol["kept"] == "frozen"
    assert classifier.protocol["images"] == 80
    assert classifier.protocol["kept apart"] == "the split val"

    def read(part: str) -> tuple[np.ndarray, np.ndarray]:
        paths = sorted((place / "split" / part).rglob("*.png"))
        with torch.inference_mode():
            h = classifier.encoder(classifier.encoder.transform(paths))
        return h.double().numpy(), np.array([path.parent.name for path in paths])

    h, labels = read("train")
    mean, std = h.mean(0), np.where(h.std(0) > 0, h.std(0), 1)
    oracle = LogisticRegression(C=1 / (scores["l2"] * len(h)), max_iter=10_000, tol=1e-8)
    oracle.fit((h - mean) / std, labels)
    assert tuple(oracle.classes_) == classifier.classes
    apart, apart_labels = read("val")
    theirs = torch.from_numpy(oracle.decision_function((apart - mean) / std))
    with torch.inference_mode():
        ours = classifier.probabilities(torch.from_numpy(apart).float())
    expected = (theirs / classifier.temperature).softmax(1)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=2e-3)
    accuracy = oracle.score((apart - mean) / std, apart_labels)
    assert scores["accuracy"] == pytest.approx(accuracy)


def test_fine_tuning_is_kept_where_it_is_better(tmp_path, monkeypatch):
    """The network sees only grey, so only training it can tell the colours apart."""
    monkeypatch.setattr("smi.imports._named", {"support.homemade.Net"})
    net = create_encoder("support.homemade.Net", image_size=8)
    with torch.no_grad():
        weight = net.network.conv.weight
        weight.copy_(weight.mean(1, keepdim=True).expand_as(weight))
    about = {
        "encoder": {"name": "support.homemade.Net"},
        "image_size": 8,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
    save_encoder(tmp_path / "blind.safetensors", net.network.state_dict(), about)
    rng = np.random.default_rng(0)
    for channel, word in enumerate(("red", "green", "blue")):
        (tmp_path / "colours" / word).mkdir(parents=True)
        for i in range(40):
            pixels = rng.integers(0, 60, (8, 8, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(tmp_path / "colours" / word / f"{i}.png")
    blind = tmp_path / "blind.safetensors"
    classifier = smi.classify(
        blind, data=tmp_path / "colours", out=tmp_path / "mine", epochs=40, quiet=True
    )
    frozen, tuned = (classifier.scores[way]["accuracy"] for way in ("frozen", "fine-tuned"))
    assert frozen < 0.7 < 0.9 < tuned
    assert classifier.protocol["kept"] == "fine-tuned"
    again = load_classifier(tmp_path / "mine")
    labels, confidences = again.predict(sorted((tmp_path / "colours" / "red").iterdir()))
    assert labels.count("red") > 35
    assert classifier.predict(tmp_path / "colours" / "red" / "0.png")[1] == confidences[:1]
    given = smi.load(blind).network.state_dict()
    for name, tensor in net.network.state_dict().items():
        assert torch.equal(given[name], tensor)  # the encoder itself did not change


def test_fine_tuning_that_would_take_long_is_skipped_with_a_reason(place, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "MAX_FINE_TUNING_SECONDS", 0)
    classifier = train(place, tmp_path / "mine")
    assert "an epoch would take about" in classifier.scores["skipped"]
    assert "fine-tuning was skipped: an epoch would take about" in classifier.text()


def test_diverged_fine_tuning_is_not_kept(place, tmp_path, monkeypatch):
    right = training._train

    def diverges(*arguments):
        network = right(*arguments)
        torch.nn.init.constant_(network[1].weight, torch.nan)
        return network

    monkeypatch.setattr(training, "_train", diverges)
    classifier = train(place, tmp_path / "mine", epochs=1)
    assert classifier.protocol["kept"] == "frozen"
    assert classifier.scores["skipped"] == "its weights became NaN or infinite"


def test_calibration_lowers_or_keeps_the_held_out_log_loss(place):
    classifier = load_classifier(place / "classifier")
    for way in ("frozen", "fine-tuned"):
        scores = classifier.scores[way]
        assert scores["log_loss"] <= scores["log_loss_before_calibration"]
    kept = classifier.scores[classifier.protocol["kept"]]
    assert classifier.temperature == kept["temperature"]
    paths = sorted((place / "split" / "val").rglob("*.png"))
    labels = torch.tensor([classifier.classes.index(path.parent.name) for path in paths])
    with torch.inference_mode():
        p = classifier(classifier.encoder.transform(paths))
    own = p.gather(1, labels[:, None])
    assert -own.log().mean().item() == pytest.approx(kept["log_loss"], abs=1e-4)


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("ENCODER", "--data", "flat", "--out", "x"), "have no labels"),
        (("ENCODER", "--data", "one", "--out", "x"), "have no labels"),
        (("ENCODER", "--data", "same.npz", "--out", "x"), "are of one class (7)"),
        (("ENCODER", "--data", "few", "--out", "x"), "has only one image of b"),
        (("ENCODER", "--data", "unseen", "--out", "x"), "has no training images of c"),
        (("ENCODER", "--data", "bad", "--out", "x"), "cannot be read as images"),
        (("ENCODER", "--data", "nowhere", "--out", "x"), "there is no dataset or folder"),
        (("ENCODER", "--data", "SPLIT"), "name the folder of the classifier"),
        (("ENCODER", "--data", "SPLIT", "--out", "flat"), "exists and is not a classifier"),
        (("ENCODER", "--data", "SPLIT", "--out", "flat/0.png"), "is a file"),
        (("ENCODER", "flat", "--data", "SPLIT", "--out", "x"), "not both"),
        (("CLASSIFIER", "--data", "SPLIT", "--out", "x"), "is a classifier already"),
        (("nowhere", "--data", "SPLIT", "--out", "x"), "there is no run or encoder"),
        (("flat", "flat"), "flat is not a classifier: train one with `smi classify"),
        (("ENCODER", "flat"), "is not a classifier"),
        (("nowhere", "flat"), "there is no run or encoder nowhere"),
        (("CLASSIFIER",), "name the images to label"),
        (("CLASSIFIER", "nowhere.png"), "there is no image nowhere.png"),
        (("CLASSIFIER", "broken.png"), "smi: broken.png cannot be read: not an image"),
        (("CLASSIFIER", "flat", "--out", "x.txt"), "must end in one of these"),
        (("CLASSIFIER", "flat", "--out", "x/y.csv"), "there is no folder x"),
    ],
)
def test_a_mistake_is_one_sentence(place, tmp_path, command, words, sentence):
    for i in range(4):
        draw(tmp_path / "flat" / f"{i}.png", i)
        for folder in ("one/a", "few/a", "bad/a", "bad/b"):
            draw(tmp_path / folder / f"{i}.png", i)
        for folder in ("unseen/train/a", "unseen/train/b", "unseen/val/a", "unseen/val/c"):
            draw(tmp_path / folder / f"{i}.png", i)
        Path(f"bad/a/x{i}.png").write_bytes(b"nothing")
    draw(tmp_path / "few" / "b" / "0.png", 0)
    Path("broken.png").write_bytes(b"nothing")
    black = np.zeros((20, 8, 8), dtype=np.uint8)
    np.savez("same.npz", images=black, labels=np.full(20, 7))
    places = {
        "ENCODER": str(place / "encoder.safetensors"),
        "CLASSIFIER": str(place / "classifier"),
        "SPLIT": str(place / "split"),
    }
    names = names_in(tmp_path)
    code, out, err = command("classify", *(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    error = [line for line in err.splitlines() if not line.startswith("decoding")]
    assert len(error) == 1, err
    assert sentence in error[0]
    assert names_in(tmp_path) == names


def test_an_error_leaves_the_old_classifier_and_no_new_folder(place, tmp_path, monkeypatch):
    out = tmp_path / "mine"
    shutil.copytree(place / "classifier", out)
    before = (out / "classifier.safetensors").read_bytes()

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training, "save_classifier", fails)
    for folder in (out, tmp_path / "deep" / "new"):
        with pytest.raises(UserError, match="No space left on device"):
            train(place, folder, epochs=0)
    assert (out / "classifier.safetensors").read_bytes() == before
    assert names_in(tmp_path) == ["mine", "mine/classifier.safetensors", "mine/scores.json"]


def test_a_second_training_replaces_the_first(place, tmp_path):
    out = tmp_path / "mine"
    shutil.copytree(place / "classifier", out)
    train(place, out, data="digits", epochs=0)
    assert load_classifier(out).protocol["kept apart"] == "a fifth of each class, drawn with seed 0"
    (out / "export").mkdir()
    with pytest.raises(UserError, match="holds export, which the new classifier would not fit"):
        train(place, out, epochs=0)


# ------------------------------------------------------------------------------------ hostile names


def test_hostile_names_are_escaped(place, tmp_path, command):
    words = ("=cmd|' calc'!A0", "@evil\x1b[31m\x9b", "-1+1,\n2", "+x\u202e")
    write_digits(tmp_path / "labelled", 0, 6, words)
    code, out, err = command(
        *("classify", str(place / "encoder.safetensors"), "--data", "labelled"),
        *("--out", "mine", "--epochs", "0"),
    )
    assert code == 0, err
    assert load_classifier("mine").classes == tuple(sorted(words))
    (tmp_path / "labelled" / "=1+1.png").write_bytes(
        (tmp_path / "labelled" / words[0] / "00.png").read_bytes()
    )
    for form in ((), ("--json",), ("--out", "labels.csv")):
        code, out, err = command("classify", "mine", "labelled", "./labelled/=1+1.png", *form)
        assert code == 0
        assert err == ""
        text = Path("labels.csv").read_text() if form[:1] == ("--out",) else out
        assert all(c.isprintable() or c == "\n" for c in text)
        if form == ("--json",):
            rows = json.loads(text)
            assert {row["label"] for row in rows} <= {*words}
            assert f"labelled/{words[1]}/00.png" in {row["file"] for row in rows}
        else:
            rows = rows_of(text)
            assert len(text.splitlines()) == len(rows) + 1 == 27
            for row in rows:
                assert row["label"][0] == row["second_label"][0] == "'"
                assert row["file"].startswith("labelled/") or row["file"][:2] == "./"


def test_a_name_for_a_sentence_is_escaped(place, tmp_path, command):
    write_digits(tmp_path / "labelled", 0, 3, ("a\x1b[31m", "b"))
    for path in sorted((tmp_path / "labelled" / "a\x1b[31m").iterdir())[1:]:
        path.unlink()
    code, _, err = command(
        *("classify", str(place / "encoder.safetensors"), "--data", "labelled", "--out", "mine")
    )
    assert code == 2
    assert "has only one image of a\\x1b[31m" in err


# ----------------------------------------------------------------------------------------- the file


def test_predict_takes_files_images_and_tensors_in_batches(place, monkeypatch):
    classifier = load_classifier(place / "classifier")
    paths = sorted((place / "new").rglob("*.png"))
    labels, confidences = classifier.predict(paths)
    monkeypatch.setattr(classifier_module, "PREDICT_BATCH_SIZE", 7)
    pictures = [Image.open(path) for path in paths]
    for images in (paths, [str(path) for path in paths], pictures):
        again, more = classifier.predict(images)
        assert again == labels
        assert more == pytest.approx(confidences, abs=1e-6)
    pixels = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
    assert len(classifier.predict(pixels)[0]) == 9
    assert classifier.predict(pixels[0])[1] == pytest.approx(classifier.predict(pixels)[1][:1])
    assert classifier.predict([]) == ([], [])
    with pytest.raises(UserError, match="is a folder"):
        classifier.predict(place / "new")
    with pytest.raises(UserError, match="cannot be read"):
        classifier.predict([*paths, place / "nowhere.png"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": ["one", "two"]}, "its head must have 2 rows"),
        ({"classes": ["one"]}, "two names or more"),
        ({"classes": ["a", "b", "c", 4]}, "two names or more"),
        ({"classes": ["a", "b", "c", "a"]}, "the same name"),
        ({"classes": None}, "classes is missing"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"temperature": True}, "temperature is"),
        ({"scores": 3}, "no section 'scores'"),
        ({"std": [0, 1, 1]}, "std must be above 0"),
        ({"encoder": {"name": "os.system"}}, "names code to run"),
        ({"encoder": {"name": "resnet50"}}, "cannot be loaded"),
    ],
)
def test_a_changed_header_is_one_sentence(place, tmp_path, change, sentence):
    weights, about = read_weights(place / "classifier" / "classifier.safetensors")
    save_encoder(tmp_path / "classifier.safetensors", weights, about | change)
    with pytest.raises(UserError, match=sentence) as caught:
        load_classifier(tmp_path)
    assert "\n" not in str(caught.value)


def test_changed_weights_are_refused(place, tmp_path):
    file = tmp_path / "classifier.safetensors"
    content = bytearray((place / "classifier" / file.name).read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="its weights have changed"):
        load_classifier(tmp_path)
    file.write_bytes(b"nothing")
    with pytest.raises(UserError, match="is not a safetensors file"):
        load_classifier(tmp_path)
    classifier = load_classifier(place / "classifier")
    torch.nn.init.constant_(classifier.head.bias, torch.nan)
    save_classifier(tmp_path, classifier)
    with pytest.raises(UserError, match="not finite"):
        load_classifier(tmp_path)


# --------------------------------------------------------------------------------------------- ONNX


def test_onnx_is_one_file_that_equals_pytorch(place, tmp_path, command, capsys, monkeypatch):
    shutil.copytree(place / "classifier", tmp_path / "mine")
    code, out, err = command("export", "mine", "--to", "onnx")
    assert (code, err) == (0, "")
    folder = tmp_path / "mine" / "export" / "onnx"
    assert names_in(folder) == ["load.py", "model.onnx", "preprocessing.json"]
    assert "probabilities of 4 classes, for images of 8 × 8 pixels" in out
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == sorted(WORDS)
    classifier = load_classifier("mine")
    for n in (1, 5):
        pixels = torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8)
        (p,) = session.run(["probabilities"], {"images": pixels.float().div(255).numpy()})
        with torch.inference_mode():
            expected = classifier(classifier.encoder.transform(pixels))
        np.testing.assert_allclose(p, expected.numpy(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    about = json.loads((folder / "preprocessing.json").read_text())
    assert about["classes"] == sorted(WORDS)
    assert (about["mean"], about["std"]) == ([0, 0, 0], [1, 1, 1])  # the network normalises

    image = place / "new" / "two" / "01.png"
    monkeypatch.setattr(sys, "argv", ["load.py", str(image)])
    runpy.run_path(str(folder / "load.py"), run_name="__main__")
    (label,), (confidence,) = classifier.predict(image)
    printed, _, number = capsys.readouterr().out.strip().rpartition(" ")
    assert printed == f"{image}: {label!r}"
    assert float(number) == pytest.approx(confidence, abs=2e-4)


def test_only_onnx_holds_a_classifier(place, command):
    code, out, err = command("export", str(place / "classifier"), "--to", "timm")
    assert (code, out) == (2, "")
    assert "is a classifier, which is exported --to onnx" in err
