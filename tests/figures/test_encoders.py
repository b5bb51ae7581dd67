"""Test figures of encoders without a run, and the names of encoders and of their weights."""

import json

import pytest
import timm
import yaml
from safetensors.torch import save_file

from smi.errors import UserError
from smi.figures.catalogue import FIGURES, draw_figure, write_figure
from smi.runs.names import encoder_name, name_encoders, run_names, shared_settings
from smi.runs.run import Run
from support.figures import caption
from support.made_up import write_run

OF_ENCODERS = ("eigenspectrum", "variance-violin", "energy-maps", "tsne")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Write random weights of a network of timm as a folder of its hub, and as a file."""
    folder = tmp_path_factory.mktemp("hub")
    weights = timm.create_model("resnet10t", num_classes=0).state_dict()
    save_file(weights, folder / "model.safetensors")
    save_file(weights, folder / "r10.safetensors")
    config = {"input_size": [3, 96, 96], "mean": [0.5] * 3, "std": [0.2] * 3}
    about = {"architecture": "resnet10t", "num_classes": 0, "pretrained_cfg": config}
    (folder / "config.json").write_text(json.dumps(about))
    return folder


def titles(figure):
    """Return the names of encoders in a figure of several panels."""
    return [note.text for note in figure.layout.annotations if note.name != "caption"]


def test_figures_of_features_need_only_an_encoder(hub):
    source = f"local-dir:{hub}"
    options = {"data": "digits", "images": 12}
    spectrum = draw_figure("eigenspectrum", source, **options)
    assert spectrum.data[0].name.startswith(f"{hub.name}: ")
    (violin,) = draw_figure("variance-violin", source, **options).data
    assert violin.name == hub.name
    assert titles(draw_figure("tsne", source, **options)) == [hub.name]
    maps = draw_figure("energy-maps", source, data="digits", images=1)
    assert titles(maps)[:2] == ["image", hub.name]
    assert "held-out images of digits" in caption(spectrum)


def test_a_run_and_encoders_side_by_side(trained, hub):
    sources = [
        trained[0],
        trained[1] / "encoder.safetensors",
        f"timm:resnet10t@{hub}/r10.safetensors",
    ]
    names = ["SMI", "encoder.safetensors", "resnet10t, r10.safetensors"]
    figure = draw_figure("eigenspectrum", sources, images=12)  # the dataset of the run
    assert [trace.name.rpartition(":")[0] for trace in figure.data] == names
    assert len({trace.line.color for trace in figure.data}) == 3
    assert len({trace.line.dash for trace in figure.data}) == 3
    figure = draw_figure("variance-violin", sources, images=12)
    assert [trace.name for trace in figure.data] == names
    maps = draw_figure("energy-maps", sources[::2], images=1)
    assert titles(maps)[:3] == ["image", "SMI", "resnet10t<br>r10.safetensors"]  # a wide title


def test_an_encoder_alone_does_not_name_its_images(hub):
    with pytest.raises(UserError, match="which images to show: name them with --data"):
        draw_figure("tsne", [f"local-dir:{hub}"])


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in OF_ENCODERS])
def test_figures_of_training_need_a_run(name, hub, tmp_path):
    """So does an exported folder, which is only an encoder, too."""
    assert not FIGURES[name].of_encoders
    for source in (f"local-dir:{hub}", hub, hub / "r10.safetensors"):
        with pytest.raises(UserError, match=f"^the figure {name} needs the folder of a run, and "):
            write_figure(name, [source], tmp_path / "x.html")


def test_an_encoder_that_is_given_twice(hub):
    with pytest.raises(UserError, match="is given twice"):
        draw_figure("tsne", [f"local-dir:{hub}"] * 2, data="digits")


def test_a_folder_that_is_neither_is_not_a_run(tmp_path):
    with pytest.raises(UserError, match=r"is not a run: it has no config\.yaml"):
        draw_figure("tsne", [tmp_path], data="digits")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("timm:resnet18.a1_in1k", "resnet18.a1_in1k"),
        ("timm:resnet18@/tmp/a/weights.pth", "resnet18, weights.pth"),
        ("hf-hub:timm/resnet18.a1_in1k", "timm/resnet18.a1_in1k"),
        ("local-dir:/tmp/a/lite0/", "lite0"),
        ("runs/a/encoder.safetensors", "encoder.safetensors"),
        ("timm", "timm"),
        ("C:/weights.pth", "weights.pth"),
    ],
)
def test_encoders_have_short_names(source, name):
    assert encoder_name(source) == name


def test_ambiguous_names_of_encoders_are_their_sources():
    sources = ["a/net.pth", "b/net.pth", "local-dir:c/SMI", "timm:resnet18"]
    assert name_encoders(sources, ["SMI"]) == {
        "a/net.pth": "a/net.pth",
        "b/net.pth": "b/net.pth",
        "local-dir:c/SMI": "local-dir:c/SMI",
        "resnet18": "timm:resnet18",
    }


def started(folder, source):
    """Write a run that started from weights."""
    run = write_run(folder)
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    config["init"] = {"source": source, "digest": "0", "statistics": "keep"}
    (run.folder / "config.yaml").write_text(yaml.safe_dump(config))
    return Run(run.folder)


def test_runs_are_named_by_the_weights_that_they_started_from(tmp_path):
    scratch = write_run(tmp_path / "a")
    runs = [scratch, started(tmp_path / "b", "timm"), started(tmp_path / "c", "/tmp/lite0.pth")]
    assert run_names(runs) == ["SMI, from scratch", "SMI, from timm", "SMI, from lite0.pth"]
    assert "from" not in shared_settings([scratch])
    assert "from" not in shared_settings(runs)
    assert ", from timm, " in shared_settings(runs[1:2])
