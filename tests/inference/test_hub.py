"""Encoders that are uploaded to a stand-in for the hub, and loaded from it again."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import yaml
from huggingface_hub import constants

import smi
from smi import imports
from smi.errors import UserError
from smi.evaluation import results
from smi.evaluation.results import Score
from smi.inference.export import export
from smi.intervals import interval
from smi.nn import create_encoder
from smi.runs.checkpoint import save_encoder
from smi.runs.start import find_start
from support.digits import tiny
from support.hub import READ, serving, sha
from support.inference import draw

# The client of the hub uploads bytes in a way that its own library calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>'")

NAME = "org/tiny"
PLACE = f"hf-hub:{NAME}"
NET = "support.homemade.Net"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train a network that timm can build for two steps, and evaluate it."""
    out = tmp_path_factory.mktemp("runs") / "a"
    network = {"encoder": "test_resnet", "encoder.stem": "standard"}
    short = {"steps": 2, "batch_size": 32, "log.probe_every": 0, "method.widths": [8, 8]}
    smi.pretrain("digits", out=out, overrides=network | short, quiet=True)
    smi.evaluate([out], protocols=["knn"], images=100, floors=True, quiet=True)
    return out


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(Path("cat.jpg"), 1, (8, 8))  # timm resizes in another way
    with serving(tmp_path / "cache") as hub:
        yield hub


def made_up(folder: Path, name: str, **settings: object) -> Path:
    """Write an encoder with random weights, for squares of 12 pixels that are resized to 8."""
    encoder = create_encoder(name, image_size=8, **settings)
    about = {"encoder": {"name": name, **settings}, "image_size": 8, "resolution": 12}
    about |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "about": {"data": "digits"}}
    save_encoder(folder / "encoder.safetensors", encoder.network.state_dict(), about)
    return folder / "encoder.safetensors"


def code_of(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def metadata_of(card: str) -> dict[str, object]:
    return yaml.safe_load(card.split("---")[1])


# --------------------------------------------------------------------------------- there and back


def test_timm_and_smi_load_the_encoder_of_a_run_again(run, hub, command):
    code, said, _ = command("export", str(run), "--to", PLACE, "--out", "out")
    assert code == 0
    commit = sha(NAME, 1)
    assert len(hub.repositories[NAME]) == 2  # an empty one, and one commit
    written, _, *lines, difference, uploaded = said.splitlines()
    assert written.startswith("out: model.safetensors (")
    assert difference == "largest difference 0 on 16 images of digits"
    assert uploaded == f"uploaded to {PLACE}: private, until you change it on its page"
    assert hub.private == {NAME}
    names: dict[str, object] = {"smi": smi, "timm": timm}
    for line in lines:
        assert f'"{PLACE}@{commit}"' in line or line.startswith("transform")
        exec(line, names)
    ours = smi.load(run)
    loaded = names["encoder"]
    assert loaded.digest() == ours.digest()
    assert (loaded.about, loaded.resolution) == (ours.about, ours.resolution)
    x = torch.randn(4, 3, 8, 8)
    expected = ours(x)
    assert expected.std() > 0.01
    for model in (loaded, names["model"], timm.create_model(PLACE, pretrained=True).eval()):
        assert torch.equal(model(x), expected)
    assert torch.equal(loaded.transform("cat.jpg"), ours.transform("cat.jpg"))


def test_the_code_of_the_page_runs(run, hub):
    export(run, to=PLACE, out="out", quiet=True)
    card = hub.files(NAME)["README.md"].decode()
    expected = smi.load(run)(smi.load(run).transform(["cat.jpg"]))
    for code in code_of(card):
        names: dict[str, torch.Tensor] = {}
        exec(code, names)
        assert torch.cosine_similarity(names["h"], expected).item() > 0.999
    assert len(code_of(card)) == 2
    folder = Path("out/README.md").read_text()
    assert folder == card


def test_the_code_of_a_folder_runs_in_the_folder(run, hub, monkeypatch):
    folder = export(run, to="hf-hub", quiet=True)
    expected = smi.load(run)(smi.load(run).transform(["cat.jpg"]))
    shutil.copy("cat.jpg", folder)
    monkeypatch.chdir(folder)
    card = Path("README.md").read_text()
    assert "\n# test_resnet\n" in card
    assert len(code_of(card)) == 2
    for code in code_of(card):
        exec(code, names := {})
        assert torch.cosine_similarity(names["h"], expected).item() > 0.999
    shutil.rmtree(folder)


def test_a_later_load_asks_nothing(run, hub, monkeypatch):
    export(run, to=PLACE, out="out", quiet=True)
    digest = smi.load(PLACE).digest()
    hub.requests.clear()
    assert smi.load(PLACE).digest() == digest
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert smi.load(PLACE).digest() == digest
    assert hub.requests == []


def test_a_revision_keeps_its_encoder(tmp_path, hub):
    digests = []
    for _ in range(2):
        source = made_up(tmp_path, "test_resnet", stem="standard")
        export(source, to=PLACE, out="out", quiet=True)
        digests.append(smi.load(source).digest())
    assert digests[0] != digests[1]
    assert [smi.load(f"{PLACE}@{sha(NAME, number)}").digest() for number in (1, 2)] == digests
    assert smi.load(PLACE).digest() == digests[1]
    with pytest.raises(UserError, match=r"hf-hub:org/tiny@v9 .*cannot be downloaded"):
        smi.load(f"{PLACE}@v9")


def test_other_commands_and_a_start_take_it(run, hub, command, tmp_path):
    export(run, to=PLACE, out="out", quiet=True)
    draw(tmp_path / "images" / "a.png", 1)
    assert command("embed", PLACE, "--data", "images", "--out", "e.npz")[0] == 0
    ours = smi.load(run)
    start = find_start(PLACE, {"name": "resnet18"})
    assert (start.source, start.encoder) == (PLACE, {"name": "test_resnet", "stem": "standard"})
    assert (start.input.mean, start.input.size) == (ours.mean, ours.image_size)
    weights = start.read(8)
    assert all(torch.equal(weights[key], w) for key, w in ours.network.state_dict().items())


# ------------------------------------------------------------------ networks that timm cannot build


def test_a_stem_that_timm_lacks(tmp_path, hub, command):
    source = made_up(tmp_path, "resnet18", layers=[1, 1, 1, 1], channels=[8, 8, 8, 8])
    code, said, _ = command("export", str(source), "--to", PLACE, "--out", "out")
    assert code == 0
    assert "; timm has no cifar stem, but load.py works without smi" in said
    assert smi.load(PLACE).digest() == smi.load(source).digest()
    with pytest.raises(RuntimeError, match="resnet18 of smi: timm has no cifar stem"):
        timm.create_model(PLACE, pretrained=True)
    card = hub.files(NAME)["README.md"].decode()
    assert "`timm.create_model` cannot load it, because timm has no cifar stem." in card
    assert metadata_of(card)["library_name"] == "smi"
    start = find_start(PLACE, {"name": "resnet18"})
    assert start.encoder["stem"] == "cifar"


def test_code_that_a_repository_names_is_not_imported(tmp_path, hub, monkeypatch, capsys):
    source = made_up(tmp_path, NET)
    export(source, to=PLACE, out="out")
    assert f'smi.load("{PLACE}@{sha(NAME, 1)}", trust=True)' in capsys.readouterr().out
    digest = smi.load(source).digest()
    card = hub.files(NAME)["README.md"].decode()
    assert f"It needs the class `{NET}`, whose code is not in this repository." in card
    monkeypatch.setattr(imports, "_named", set())
    for read in (smi.load, lambda place: find_start(place, {"name": "resnet18"})):
        with pytest.raises(UserError, match=f"{PLACE} names code to run, {NET}: if you trust"):
            read(PLACE)
    assert smi.load(PLACE, trust=True).digest() == digest


@pytest.mark.parametrize(
    ("exported", "sentence"),
    [
        ({"digest": "0123456789abcdef"}, "config.json describes 0123456789abcdef, and its weights"),
        ({"digest": 7}, "smi.digest is '7'"),
        ({"encoder": {}}, "smi.encoder.name is missing"),
        ({"encoder": 3}, "it has no section 'smi.encoder'"),
        (None, "smi is not a section"),
    ],
)
def test_a_changed_configuration_is_noticed(tmp_path, hub, exported, sentence):
    export(made_up(tmp_path, "test_resnet", stem="standard"), to=PLACE, out="out", quiet=True)
    files = hub.files(NAME)
    config = json.loads(files["config.json"])
    config["smi"] = "text" if exported is None else config["smi"] | exported
    files["config.json"] = json.dumps(config).encode()
    with pytest.raises(UserError, match=sentence):
        smi.load(PLACE)


def test_changed_weights_are_noticed(tmp_path, hub):
    export(made_up(tmp_path, "test_resnet", stem="standard"), to=PLACE, out="out", quiet=True)
    files = hub.files(NAME)
    *rest, last = files["model.safetensors"]
    files["model.safetensors"] = bytes([*rest, last ^ 1])
    with pytest.raises(UserError, match="its weights have changed since they were written"):
        smi.load(PLACE)


def test_a_configuration_does_not_reach_the_loader_of_timm(tmp_path, hub):
    export(made_up(tmp_path, "test_resnet", stem="standard"), to=PLACE, out="out", quiet=True)
    files = hub.files(NAME)
    config = json.loads(files["config.json"])
    config["smi"]["encoder"] |= {"checkpoint_path": "/evil.pth", "image_size": 9, "pretrained": 1}
    files["config.json"] = json.dumps(config).encode()
    start = find_start(PLACE, {"name": "resnet18"})
    assert start.encoder == {"name": "test_resnet", "stem": "standard"}


# ---------------------------------------------------------------------------------------- the page


def test_the_page_holds_the_facts_of_the_run(run, hub):
    export(run, to=PLACE, out="out", quiet=True)
    files = hub.files(NAME)
    card = files["README.md"].decode()
    assert metadata_of(card) == {
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["smi", "self-supervised-learning", "image-feature-extraction", "timm"],
    }
    encoder, facts = smi.load(run), smi.Run(run).facts
    (result,) = [r for r in results.read_all(run) if r.subject == "encoder"]
    for fact in (
        f"| digest | {encoder.digest()} ",
        f"| its parameters | {facts.encoder_parameters:,} |",
        "| images | 1,614 of digits, 8 pixels |",
        "step 2, 32 images per step |",
        f"| this encoder | {result.scores[0].value:.1%} |",
        f"stamp {result.stamp}: {result.sentence}",
        "| raw pixels, 8 × 8 |",
        "```bash\nsmi pretrain recipe.yaml --out runs/again\n```",
        "seed 0",
        f"smi {smi.__version__}",
    ):
        assert fact in card
    stored = json.loads(files["evaluation.json"])
    assert [r["subject"] for r in stored].count("encoder") == 1
    assert all(str(run.parent) not in content.decode("latin-1") for content in files.values())


def test_the_recipe_repeats_the_run(run, hub, tmp_path):
    export(run, to="hf-hub", out="out", quiet=True)
    again = smi.pretrain("out/recipe.yaml", out="again", quiet=True)
    assert smi.load(again).digest() == smi.load(run).digest()


def test_the_recipe_names_the_number_format_that_auto_chose(tmp_path, monkeypatch):
    monkeypatch.setattr("smi.device.trains_faster_in_bfloat16", lambda network: True)
    trained = tiny(tmp_path / "a", precision="auto")
    assert trained.config["precision"] == "auto"
    export(trained, to="hf-hub", out=tmp_path / "out", quiet=True)
    recipe = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    assert recipe["precision"] == "bfloat16"


@pytest.mark.parametrize(
    ("data", "init", "method", "options", "started"),
    [
        (
            "/home/someone/my photos",
            "/home/someone/weights.pth",
            "SMI",
            "--data 'PATH/my photos' --init PATH/weights.pth",
            "weights.pth",
        ),
        (
            "https://someone:pw@h.org/x.tar?X-Cred=AKIA/s3/aws4&X-Sig=someone",
            "local-dir:/home/someone/vit",
            "my.module.Method",
            "--data PATH/x.tar --init local-dir:PATH/vit --trust",
            "vit",
        ),
        ("/home/someone/digits", "timm", "SMI", "--data PATH/digits", "timm"),
        ("hf:org/images:train", "hf-hub:org/vit", "SMI", "", "hf-hub:org/vit"),
    ],
)
def test_a_page_names_what_a_run_was_made_of(
    run, hub, tmp_path, data, init, method, options, started
):
    """The command has what others need to repeat the run, and nothing has a path or a secret."""
    secret = tmp_path / "a"
    shutil.copytree(run, secret, ignore=shutil.ignore_patterns("export"))
    config = yaml.safe_load((secret / "config.yaml").read_text())
    config["data"]["source"] = data
    config["init"]["source"] = init
    config["method"]["name"] = method
    (secret / "config.yaml").write_text(yaml.safe_dump(config))
    export(secret, to="hf-hub", out="out", data="digits", quiet=True)
    files = [path.read_bytes() for path in Path("out").iterdir()]
    assert not any(b"someone" in content for content in files)
    card = Path("out/README.md").read_text()
    options = f" {options}" if options else ""
    assert f"\nsmi pretrain recipe.yaml{options} --out runs/again\n" in card
    assert f"| started from | {started} |" in card
    assert (f"the weights {started}, which are not in this" in card) == ("--init" in options)
    assert "whose licence may bind it" in card


def test_runs_that_differ_by_their_seed_give_an_interval(run, hub, tmp_path):
    (result,) = [r for r in results.read_all(run) if r.subject == "encoder"]
    values = (0.5, 0.52, 0.6)
    for seed, value in enumerate(values):
        folder = tmp_path / "row" / f"seed-{seed}"
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("eval", "export"))
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"seed": seed}))
        results.write(folder, replace(result, scores=(Score("kNN", value),)))
    export(tmp_path / "row" / "seed-0", to="hf-hub", out="out", quiet=True)
    card = Path("out/README.md").read_text()
    assert "| this encoder | 50.0% |" in card
    assert f"| mean of 3 seeds | {Score('kNN', *interval(values))} |" in card
    assert len(json.loads(Path("out/evaluation.json").read_text())) == 1


def test_a_second_upload_keeps_the_licence_and_removes_old_files(run, hub):
    export(run, to=PLACE, out="out", quiet=True)
    files = hub.files(NAME)
    assert b"No licence is stated yet" in files["README.md"]
    licence = b"---\nlicense: other\nlicense_name: mine\nlicense_link: LICENSE\n"
    files["README.md"] = files["README.md"].replace(b"---\n", licence, 1)
    others = {"notes.md": b"of its owner", "model.onnx": b"of its owner, too"}
    files |= others
    hub.private.clear()
    export(run / "encoder.safetensors", to=PLACE, out="out", quiet=True)
    files = hub.files(NAME)
    card = files["README.md"].decode()
    named = {key: value for key, value in metadata_of(card).items() if "license" in key}
    assert named == {"license": "other", "license_name": "mine", "license_link": "LICENSE"}
    assert "No licence" not in card
    assert "recipe.yaml" not in files
    assert files.items() >= others.items()
    assert hub.private == set()  # it stays as it was


# ---------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("place", "token", "sentence"),
    [
        (PLACE, None, "there is no token for the hub: run `hf auth login`, or set HF_TOKEN"),
        (PLACE, READ, "the token may not write there. Name a repository of your own, or run"),
        ("hf-hub:other/tiny", "hf_write", "the token may not write there."),
        (PLACE, "hf_wrong", "the hub does not accept the token. Please run `hf auth login`"),
        ("hf-hub:tiny", "hf_write", "'tiny' is not the name of a repository: write it as ORG/NAME"),
        ("hf-hub:org/ti ny", "hf_write", "is not the name of a repository"),
        ("hf-hub:org/tiny@v1", "hf_write", "is not the name of a repository"),
        ("hf-hub:", "hf_write", "'' is not the name of a repository"),
        ("hub", "hf_write", "there is no format 'hub': did you mean hf-hub?"),
        ("onnx:x", "hf_write", "there is no format 'onnx:x'"),
    ],
)
def test_a_mistake_is_one_sentence(run, hub, command, monkeypatch, place, token, sentence):
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    code, _, err = command("export", str(run), "--to", place, "--out", "out")
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("smi: ")]
    assert sentence in line
    assert hub.repositories == {}


@pytest.mark.parametrize("config", [None, b'{"architecture": "resnet18"}'])
def test_the_model_of_someone_else_is_not_overwritten(run, hub, command, config):
    files = {".gitattributes": b"", "README.md": b"---\nlicense: mit\n---\n"}
    foreign = files | {"model.safetensors": b"theirs"}
    hub.repositories[NAME] = [foreign if config is None else foreign | {"config.json": config}]
    code, _, err = command("export", str(run), "--to", PLACE, "--out", "out")
    assert (code, err) == (2, f"smi: {PLACE} holds another model: choose another name\n")
    assert len(hub.repositories[NAME]) == 1
    assert not Path("out").exists()
    hub.repositories[NAME] = [files]  # as the hub's own page creates it
    assert command("export", str(run), "--to", PLACE, "--out", "out")[0] == 0
    assert metadata_of(hub.files(NAME)["README.md"].decode())["license"] == "mit"


def test_a_repository_is_checked_before_anything_is_loaded(hub, tmp_path):
    (tmp_path / "damaged.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="'tiny' is not the name of a repository"):
        export(tmp_path / "damaged.safetensors", to="hf-hub:tiny")


def test_a_name_that_is_not_in_the_cache_offline(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"the hub cannot be reached: HF_HUB_OFFLINE is set"):
        smi.load(PLACE)


def test_an_upload_without_a_network_writes_nothing(run, hub, command, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    arguments = ("export", str(run), "--to", PLACE, "--out", "out")
    code, _, err = command(*arguments)
    assert (code, err) == (2, "smi: nothing is uploaded while HF_HUB_OFFLINE is set: unset it\n")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith(f"smi: asking for {PLACE} failed: ")
    assert "Connection refused" in err
    assert not Path("out").exists()


def test_a_failed_upload_leaves_the_folder_and_no_half_commit(run, hub, command):
    export(run, to=PLACE, out="out", quiet=True)
    before = dict(hub.files(NAME))
    hub.faults["/commit/"] = 500
    code, _, err = command("export", str(run / "encoder.safetensors"), "--to", PLACE)
    assert code == 2
    folder = run / "export-hf-hub"
    assert f"smi: {folder} is written, but uploading it to {PLACE} failed: " in err
    assert hub.files(NAME) == before
    assert smi.load(folder).digest() == smi.load(run).digest()
