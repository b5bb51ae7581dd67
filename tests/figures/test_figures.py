"""Figures against plain references: the numbers in them, what they refuse, the files they are written to."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from plotly import graph_objects as go

import smi
from smi.cli import main
from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.config.resolve import resolve
from smi.errors import UserError
from smi.figures import catalogue as figures
from smi.figures import landscape as land
from smi.figures.catalogue import FIGURES, Asked, write_figure
from smi.figures.curves import loss
from smi.figures.eigenspectrum import cumulative_variance, of_shares
from smi.figures.energy_maps import energies
from smi.figures.gradient_norm import rolling_mean
from smi.figures.style import DASHES, looks
from smi.figures.tsne import embed
from smi.figures.variance_violin import of_variances, relative_variance
from smi.paper.tables import print_table
from smi.runs.encoder import load
from smi.runs.names import called
from smi.runs.restore import create, create_views
from smi.runs.run import Run
from support.made_up import write_result, write_run

OURS = {"encoder": "resnet-small", "epochs": 1, "batch_size": 64}
SETTINGS = {
    "method.widths": [32, 32],
    "log.probe_every": 0,
    "encoder.channels": [8, 8, 16, 16],
    "views.size": 16,
    "data.images": 256,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two tiny runs on digits."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("SMI", "BarlowTwins"):
        smi.pretrain("digits", out=folder / method, method=method, settings=SETTINGS, **OURS)
    return [folder / "SMI", folder / "BarlowTwins"]


@pytest.fixture
def pair(tmp_path):
    return [
        write_run(tmp_path / "a", "SMI", level=1),
        write_run(tmp_path / "b", "BarlowTwins", level=10, weight=0.005, seed=1),
    ]


def drawn(name, runs, **asked):
    return FIGURES[name].make(
        Asked(tuple(Run(run.folder if isinstance(run, Run) else run) for run in runs), **asked)
    )


def trace(figure, name):
    (found,) = [t for t in figure.data if t.name == name and t.showlegend is not False]
    return found


# --------------------------------------------------------------------------------------------------------------------- what is logged


def test_gradient_norm_is_the_rolling_mean_of_every_step(pair):
    figure = drawn("gradient-norm", pair)
    norms = [norm for line in pair[1].metrics() for norm in line["per_step"]["gradient_norm"]]
    plain = [np.mean(norms[max(0, i - 49) : i + 1]) for i in range(len(norms))]
    found = trace(figure, "Barlow Twins")
    np.testing.assert_allclose(found.y, plain, rtol=1e-10)
    assert list(found.x) == list(range(1, 121))
    assert figure.layout.yaxis.type == "log"
    np.testing.assert_allclose(rolling_mean([1.0, 2.0, 6.0], 2), [1, 1.5, 4])


def test_one_bad_step_does_not_spoil_the_mean_of_all_later_ones():
    np.testing.assert_allclose(rolling_mean([1e30, 1.0, 1.0, 3.0], 2), [1e30, 5e29, 1, 2])
    np.testing.assert_allclose(
        rolling_mean([1.0, np.nan, np.nan, 3.0, 5.0], 2), [1, 1, np.nan, 3, 4]
    )


def test_a_long_run_is_thinned_to_what_can_be_seen(tmp_path):
    run = write_run(tmp_path / "long", epochs=120)
    found = trace(drawn("gradient-norm", [run]), "SMI")
    assert 1200 < len(found.x) <= 2000
    assert found.x[-1] == 4800
    norms = [norm for line in run.metrics() for norm in line["per_step"]["gradient_norm"]]
    assert found.y[-1] == pytest.approx(np.mean(norms[-50:]))


def test_feature_std_and_ratio_are_what_was_logged(pair):
    for name, key in (("feature-std", "feature_std"), ("ratio", "ratio")):
        found = trace(drawn(name, pair), "SMI")
        assert list(found.y) == [line[key] for line in pair[0].metrics()]
        assert list(found.x) == [line["epoch"] for line in pair[0].metrics()]


def test_a_ratio_takes_two_terms(pair, tmp_path):
    alone = write_run(tmp_path / "c", "SimCLR", weight=None, ratio=False)
    figure = drawn("ratio", [*pair, alone])
    assert [t.name for t in figure.data] == ["SMI", "Barlow Twins"]
    assert "SimCLR" in figure.layout.annotations[-1].text
    with pytest.raises(UserError, match="one term only"):
        drawn("ratio", [alone])


def test_runs_look_the_same_everywhere_and_differ_without_colour(pair, tmp_path):
    sweep = [write_run(tmp_path / str(weight), weight=weight) for weight in (0.001, 0.1, 1.0)]
    names = called([*pair, *sweep])
    assert list(names) == [
        "SMI, λ = 0.01",
        "Barlow Twins",
        "SMI, λ = 0.001",
        "SMI, λ = 0.1",
        "SMI, λ = 1",
    ]
    found = looks(names)
    assert len({look.dash for look in found.values()}) == 5
    assert len({look.symbol for look in found.values()}) == 5
    for name in ("gradient-norm", "feature-std", "ratio"):
        figure = drawn(name, [*pair, *sweep])
        assert {t.name: t.line.dash for t in figure.data} == {
            label: look.dash for label, look in found.items()
        }
    assert looks({"only": pair[1]})["only"].dash == DASHES[1]  # a method's own, alone too


def test_names_tell_runs_apart(tmp_path):
    runs = [write_run(tmp_path / "x" / str(seed), seed=seed) for seed in (0, 1)]
    assert list(called(runs)) == ["SMI, seed 0", "SMI, seed 1"]
    same = [write_run(tmp_path / name) for name in ("one", "two")]
    assert list(called(same)) == ["SMI, one", "SMI, two"]
    other = write_run(tmp_path / "other", data="cifar10")
    assert list(called([runs[0], other])) == ["SMI, digits", "SMI, cifar10"]
    with pytest.raises(UserError, match="given twice"):
        called([runs[0], Run(runs[0].folder)])


# ----------------------------------------------------------------------------------------------------------------------------- seeds


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Three of each of two methods, evaluated."""
    folder, found = tmp_path_factory.mktemp("seeds"), []
    for method, level, top1 in (("SMI", 1, 0.8), ("BarlowTwins", 10, 0.7)):
        for seed in range(3):
            found.append(
                write_run(
                    folder / method / f"seed-{seed}", method, level=level, seed=seed, weight=0.01
                )
            )
            write_result(found[-1], top1 + seed / 100)
    return found


@pytest.mark.parametrize("name", ["gradient-norm", "feature-std", "ratio"])
def test_seeds_are_thin_lines_and_their_mean_with_one_legend_entry(seeds, name):
    figure = drawn(name, seeds)
    listed = [t for t in figure.data if t.showlegend]
    assert [t.name for t in listed] == ["SMI", "Barlow Twins"]
    thin = [
        t for t in figure.data if t.showlegend is False and t.line.color == listed[0].line.color
    ]
    assert [t.name for t in thin] == ["SMI, seed 0", "SMI, seed 1", "SMI, seed 2"]
    assert all(t.line.width < listed[0].line.width for t in thin)
    np.testing.assert_allclose(listed[0].y, np.mean([t.y for t in thin], axis=0))
    assert "(3 seeds)" in figure.layout.annotations[-1].text.replace("<br>", " ")


def test_the_loss_of_one_row_is_shown_as_it_is_and_of_several_as_a_share(seeds):
    alone = loss(called(seeds[:3]))
    mean = trace(alone, "SMI")
    np.testing.assert_allclose(
        mean.y, np.mean([[line["loss"] for line in run.metrics()] for run in seeds[:3]], axis=0)
    )
    assert alone.layout.yaxis.title.text == "loss"
    both = loss(called(seeds))
    assert [t.name for t in both.data if t.showlegend] == ["SMI", "Barlow Twins"]
    thin = [t for t in both.data if t.showlegend is False]
    assert len(thin) == 6
    for t, run in zip(thin, seeds, strict=True):
        first, *_ = values = [line["loss"] for line in run.metrics()]
        low = min(values)
        high = first if low < first else max(values)
        np.testing.assert_allclose(t.y, [(v - low) / (high - low) for v in values])
        assert list(t.customdata) == values  # under the pointer is the loss itself


def test_a_swept_setting_tells_runs_apart(tmp_path):
    runs = []
    for value in (0.1, 0.5):
        for seed in (0, 1):
            runs.append(
                write_run(tmp_path / f"{value}" / f"seed-{seed}", "SimCLR", seed=seed, weight=None)
            )
            config = runs[-1].folder / "config.yaml"
            config.write_text(
                config.read_text().replace("name: SimCLR", f"name: SimCLR\n  temperature: {value}")
            )
    runs = [Run(run.folder) for run in runs]
    assert list(called(runs))[:2] == [
        "SimCLR, temperature=0.1, seed 0",
        "SimCLR, temperature=0.1, seed 1",
    ]
    assert [t.name for t in drawn("feature-std", runs).data if t.showlegend] == [
        "SimCLR, temperature=0.1",
        "SimCLR, temperature=0.5",
    ]


def test_the_mean_ends_where_a_seed_does(tmp_path):
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    lines = (runs[1].folder / "metrics.jsonl").read_text().splitlines()
    (runs[1].folder / "metrics.jsonl").write_text("\n".join(lines[:8]) + "\n")
    assert trace(drawn("feature-std", runs), "SMI").x[-1] == 1.0


def test_only_what_differs_by_its_seed_alone_is_joined(tmp_path):
    runs = [
        write_run(tmp_path / "a", seed=0),
        write_run(tmp_path / "b", seed=1, epochs=2),
        write_run(tmp_path / "c", seed=1),
    ]
    again = write_run(tmp_path / "d", seed=1)
    assert [t.name for t in drawn("ratio", runs).data if t.showlegend] == [
        "SMI, 3 epochs",
        "SMI, 2 epochs",
    ]
    assert (
        len([t for t in drawn("ratio", [runs[0], runs[2], again]).data if t.showlegend]) == 3
    )  # a seed twice: no seeds of one


def test_accuracies_of_seeds_are_means_with_intervals(seeds):
    figure = drawn("accuracy-std", seeds)
    point = trace(figure, "SMI")
    assert list(point.y) == pytest.approx([81])
    assert point.x[0] == pytest.approx(
        np.mean(
            [
                np.mean([m["feature_std"] for m in run.metrics() if m["epoch"] > 2])
                for run in seeds[:3]
            ]
        )
    )
    (bar,) = [t for t in drawn("std-summary", seeds).data if isinstance(t, go.Bar)]
    assert list(bar.y) == pytest.approx([81, 71])
    assert list(bar.error_y.array) == pytest.approx([4.3027 / 3**0.5] * 2, rel=1e-3)  # Student's
    curve = trace(drawn("linear-curves", seeds), "SMI")
    assert list(curve.y) == pytest.approx([8.1, 16.2, 24.3, 32.4])


def test_features_of_seeds_are_averaged_or_put_together(seeds):
    runs = called(seeds)
    shares = {name: np.linspace(0.5 + i / 100, 1, 4) for i, name in enumerate(runs)}
    figure = of_shares(runs, shares, 100, of="images")
    assert [t.name for t in figure.data if t.showlegend is not False] == [
        "SMI: 4 for 90 %",
        "Barlow Twins: 4 for 90 %",
    ]
    np.testing.assert_allclose(trace(figure, "SMI: 4 for 90 %").y, 100 * np.linspace(0.51, 1, 4))
    violins = of_variances(runs, {name: np.full(4, 0.5) for name in runs}, 100, of="images").data
    assert [(t.name, len(t.y)) for t in violins] == [("SMI", 12), ("Barlow Twins", 12)]


def test_sets_call_their_runs_alike(tmp_path):
    runs = [
        write_run(tmp_path / f"{data}{weight}", data=data, weight=weight)
        for data, weight in (("digits", 0.1), ("digits", 1.0))
    ]
    runs.append(write_run(tmp_path / "other", data="cifar10", weight=0.1))
    assert {data: list(some) for data, some in Asked(tuple(runs)).by_data().items()} == {
        "digits": ["SMI, λ = 0.1", "SMI, λ = 1"],
        "cifar10": ["SMI, λ = 0.1"],
    }


@pytest.fixture
def comparison(seeds, tmp_path):
    """A folder of them, made elsewhere and moved; one run failed."""
    shutil.copytree(seeds[0].folder.parents[1], tmp_path / "c" / "runs")
    rows = [
        Row(
            m,
            None,
            m,
            tuple(
                TrainedRun(
                    s, f"before/runs/{m}/seed-{s}", "", failed="NaN" * (m == "SMI" and s == 0)
                )
                for s in range(3)
            ),
        )
        for m in ("SMI", "BarlowTwins")
    ]
    Comparison(tuple(rows), (0, 1, 2), None, {}).write(tmp_path / "c")
    return tmp_path / "c"


def test_a_comparison_stands_for_its_finished_runs(comparison, tmp_path, capsys, monkeypatch):
    taken = []
    monkeypatch.setitem(
        FIGURES,
        "ratio",
        replace(FIGURES["ratio"], make=lambda asked: taken.append(asked.runs) or go.Figure()),
    )
    monkeypatch.setitem(FIGURES, "tsne", replace(FIGURES["tsne"], make=FIGURES["ratio"].make))
    for name in ("ratio", "tsne"):
        write_figure(name, [comparison], tmp_path / "x.html")
        assert capsys.readouterr().err == "left out: SMI, seed 0, which failed\n"
    names = [[str(run.folder.relative_to(comparison / "runs")) for run in runs] for runs in taken]
    assert names[0] == [f"{m}/seed-{s}" for m in ("SMI", "BarlowTwins") for s in range(3)][1:]
    assert names[1] == ["SMI/seed-1", "BarlowTwins/seed-0"]  # what takes long: the first of each
    print_table(3, [comparison])
    assert "71.0 ± 2.5 (3)" in capsys.readouterr().out
    (comparison / "comparison.json").write_text("{}")
    with pytest.raises(UserError, match="does not describe a comparison"):
        write_figure("ratio", [comparison], tmp_path / "x.html")


# ------------------------------------------------------------------------------------------------------------------------ accuracies


def test_results_on_a_folder_are_found(tmp_path):
    """Results spell a folder with a slash behind its name."""
    runs = [
        write_run(tmp_path / str(weight), data="/elsewhere/photos", weight=weight)
        for weight in (0.1, 1.0)
    ]
    for run in runs:
        write_result(run, 0.5, data="photos/")
    assert list(trace(drawn("accuracy-std", runs), "SMI").y) == pytest.approx([50, 50])


def test_names_are_no_html(tmp_path):
    runs = [write_run(tmp_path / name, data="/elsewhere/<b>&amp;") for name in ("<i>one", "two")]
    figure = drawn("ratio", runs)
    assert [t.name for t in figure.data] == ["SMI, &lt;i&gt;one", "SMI, two"]
    assert "&lt;b&gt;&amp;amp;" in figure.layout.annotations[-1].text


def test_accuracy_against_std(pair, tmp_path):
    sweep = [
        write_run(tmp_path / str(weight), weight=weight, level=weight * 50)
        for weight in (0.1, 0.001)
    ]
    for run, top1 in zip([*pair, *sweep], (0.8, 0.7, 0.75, 0.6), strict=True):
        write_result(run, top1)
    figure = drawn("accuracy-std", [*pair, *sweep])
    ours = trace(figure, "SMI")
    assert list(ours.text) == ["λ = 0.001", "λ = 0.01", "λ = 0.1"]
    assert list(ours.y) == pytest.approx([60, 80, 75])
    last = [line["feature_std"] for line in pair[0].metrics() if line["epoch"] > 2]
    assert ours.x[1] == pytest.approx(np.mean(last))
    assert list(trace(figure, "Barlow Twins").y) == pytest.approx([70])


def test_only_numbers_of_one_protocol_share_a_figure(pair):
    first, second = pair
    with pytest.raises(
        UserError, match=re.escape(f"`smi evaluate {first.folder} --protocol linear`")
    ):
        drawn("accuracy-std", pair)
    write_result(first, 0.9, protocol="linear")
    write_result(first, 0.8, protocol="linear-cached")
    write_result(second, 0.7, protocol="linear-cached")
    figure = drawn("accuracy-std", pair)
    assert list(trace(figure, "SMI").y) == pytest.approx([80])  # linear is not there for both
    shutil.rmtree(second.folder / "eval")
    write_result(second, 0.7, protocol="linear", epochs=9)
    with pytest.raises(UserError, match="different protocols"):
        drawn("accuracy-std", pair)
    with pytest.raises(UserError, match="no linear or linear-cached results on cifar10"):
        drawn("accuracy-std", pair, data="cifar10")
    with pytest.raises(UserError, match="two runs or more"):
        drawn("accuracy-std", [first])


def test_results_of_older_weights_are_not_taken(pair):
    for run in pair:
        write_result(run, 0.5, protocol="linear", step=60)
        write_result(run, 0.6, protocol="linear-cached", step=120)
    assert list(trace(drawn("accuracy-std", pair), "SMI").y) == pytest.approx([60])


def test_of_a_run_that_went_on_since_no_older_accuracy_is_beside_newer_features(pair):
    for run in pair:
        write_result(run, 0.5, step=60)
    with pytest.raises(UserError, match="has no linear or linear-cached results yet"):
        drawn("accuracy-std", pair)


def test_std_summary_has_a_row_for_each_set(pair, tmp_path):
    others = [write_run(tmp_path / m, m, data="cifar10", level=2) for m in ("SMI", "BarlowTwins")]
    for number, run in enumerate([*pair, *others]):
        write_result(run, 0.5 + number / 10)
    figure = drawn("std-summary", [*pair, *others])
    bars = [t for t in figure.data if isinstance(t, go.Bar)]
    assert [list(bar.y) for bar in bars] == [pytest.approx([50, 60]), pytest.approx([70, 80])]
    lines = [t for t in figure.data if isinstance(t, go.Scatter)]
    assert [t.showlegend for t in lines] == [True, True, False, False]
    assert list(lines[2].y) == [line["feature_std"] for line in others[0].metrics()]


def test_linear_curves(pair):
    for run in pair:
        write_result(run, 0.8)
    figure = drawn("linear-curves", pair)
    held_out = trace(figure, "SMI")
    assert list(held_out.y) == pytest.approx([8, 16, 24, 32])
    training = next(t for t in figure.data if t.name == "SMI" and t.showlegend is False)
    assert list(training.y) == pytest.approx([40] * 4)
    assert training.line.width < held_out.line.width
    assert training.line.dash == held_out.line.dash
    for run in pair:
        shutil.rmtree(run.folder / "eval")
        write_result(run, 0.8, protocol="linear-cached")
    with pytest.raises(
        UserError, match=r"has no linear results yet: run `smi evaluate .* --protocol linear`$"
    ):
        drawn("linear-curves", pair)


# -------------------------------------------------------------------------------------------------------------------------- features


def test_cumulative_variance_is_numpys():
    h = np.random.default_rng(0).normal(size=(40, 6)) @ np.diag([5, 3, 1, 1, 0.1, 0])
    eigenvalues = np.sort(np.linalg.eigvals(np.cov(h.T)).real)[::-1]
    np.testing.assert_allclose(
        cumulative_variance(h), np.cumsum(eigenvalues) / eigenvalues.sum(), atol=1e-10
    )
    for bad in (np.ones((4, 3)), np.full((4, 3), np.nan)):
        with pytest.raises(UserError, match="all images are the same"):
            cumulative_variance(bad)


def test_relative_variance_has_its_bound():
    h = np.random.default_rng(0).normal(size=(500, 8))
    unit = h / np.linalg.norm(h, axis=1, keepdims=True)
    found = relative_variance(3 * h)
    np.testing.assert_allclose(found, 8 * np.var(unit, axis=0, ddof=1))
    assert found.mean() <= 500 / 499
    with pytest.raises(UserError, match="not finite"):
        relative_variance(np.full((4, 3), np.inf))


def test_eigenspectrum_and_violin_of_runs(trained):
    figure = drawn("eigenspectrum", trained, images=60)
    ours = figure.data[0]
    assert ours.name.startswith("SMI: ")
    assert len(ours.y) == 16
    assert ours.y[-1] == pytest.approx(100)
    assert all(np.diff(ours.y) >= -1e-9)
    violins = drawn("variance-violin", trained, images=60).data
    assert [t.name for t in violins] == ["SMI", "Barlow Twins"]
    assert [len(t.y) for t in violins] == [16, 16]


def test_runs_on_different_images_need_one_set(trained, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained[1], other)
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("source: digits", "source: cifar10"))
    with pytest.raises(
        UserError,
        match=r"different images \(cifar10, digits\): name one set for all of them with --data",
    ):
        drawn("eigenspectrum", [trained[0], other])
    assert len(drawn("eigenspectrum", [trained[0], other], data="digits", images=20).data) == 2


def test_energy_is_the_norm_over_channels(trained):
    encoder = load(trained[0])
    encoder.image_size = 32  # the last map has 4 x 4 places
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    energy, places = energies(encoder, images)
    features = encoder.map(encoder.transform(images)).detach()
    assert places == tuple(features.shape[2:]) == (4, 4)
    plain = features.square().sum(dim=1, keepdim=True).sqrt()
    expected = torch.nn.functional.interpolate(plain, (8, 8), mode="bilinear")[:, 0]
    torch.testing.assert_close(energy, expected)


def test_of_small_images_an_earlier_map_is_shown(trained):
    encoder = load(trained[0])
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    for size, last in ((8, 1), (16, 2)):
        encoder.image_size = size
        x = encoder.transform(images)
        assert encoder.map(x).shape[2:] == (last, last)
        energy, places = energies(encoder, images)
        assert places == (4, 4)
        before = [
            m
            for m in encoder.network.forward_intermediates(x, intermediates_only=True)
            if m.shape[-1] == 4
        ][-1].detach()
        plain = before.square().sum(dim=1, keepdim=True).sqrt()
        torch.testing.assert_close(
            energy, torch.nn.functional.interpolate(plain, (8, 8), mode="bilinear")[:, 0]
        )
    encoder.image_size = 2
    with pytest.raises(
        UserError, match="one place for images of 2 pixels, and none before it has 4 × 4"
    ):
        energies(encoder, images)


def test_energy_maps_have_a_row_for_each_image(trained):
    figure = drawn("energy-maps", trained, images=3)
    maps = [t for t in figure.data if isinstance(t, go.Heatmap)]
    pictures = [t for t in figure.data if isinstance(t, go.Image)]
    assert (len(maps), len(pictures)) == (6, 9)
    assert all(t.z.max() == 100 and t.z.min() == 0 and t.z.shape == (8, 8) for t in maps)


def test_tsne_shows_every_image_with_its_class(trained):
    figure = drawn("tsne", trained[:1], images=40)
    assert sum(len(t.x) for t in figure.data) == 40
    assert len({(t.marker.color, t.marker.symbol) for t in figure.data}) == len(figure.data)
    assert all(re.fullmatch(r"val/\d+<br>\d", text) for t in figure.data for text in t.text)
    with pytest.raises(UserError, match="five images or more"):
        embed(np.zeros((3, 4), dtype=np.float32))


def test_no_labels_is_a_sentence(trained, tmp_path):
    from PIL import Image

    for i in range(80):
        Image.fromarray(np.full((12, 12, 3), i, dtype=np.uint8)).save(tmp_path / f"{i}.png")
    with pytest.raises(UserError, match="have no labels to colour t-SNE by"):
        drawn("tsne", trained[:1], data=str(tmp_path))
    figure = drawn("eigenspectrum", trained[:1], data=str(tmp_path), images=40)
    assert "all of which may be trained on" in figure.layout.annotations[-1].text.replace(
        "<br>", " "
    )


# ------------------------------------------------------------------------------------------------------------------------- landscape


def test_landscape_is_the_formulas():
    curves = land.curves(land.Shape())
    rho, value, slope = curves["SMI, alignment"]
    m = -0.5 * np.log(1 - rho**2 + 1e-6)
    np.testing.assert_allclose(value, np.log(np.cosh(m - 1)), atol=1e-12)
    np.testing.assert_allclose(
        slope, np.abs(np.tanh(m - 1) * rho / (1 - rho**2 + 1e-6)), rtol=1e-9, atol=1e-12
    )
    _, value, slope = curves["SMI, redundancy"]
    np.testing.assert_allclose(value, np.log(np.cosh(m + 0.06)), atol=1e-12)
    np.testing.assert_allclose(
        slope, np.abs(np.tanh(m + 0.06) * rho / (1 - rho**2 + 1e-6)), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(curves["Barlow Twins, alignment"][2], 2 * (1 - rho), atol=1e-12)
    np.testing.assert_allclose(curves["Barlow Twins, redundancy"][1], rho**2, atol=1e-12)
    assert len(drawn("landscape", []).data) == 8


def test_landscape_shows_real_pairs_of_a_run(trained):
    figure = drawn("landscape", trained[:1], images=64)
    pictures = [t for t in figure.data if isinstance(t, go.Image)]
    assert len(pictures) == 6
    titles = [note.text for note in figure.layout.annotations if "M = " in note.text][:6]
    shown = [float(re.search(r"M = ([\d.]+)", text)[1]) for text in titles]
    assert [text.split(":")[0] for text in titles] == ["low", "middle", "high"] * 2
    assert shown[0] <= shown[1] <= shown[2]
    assert "of low, middle and high dependency" in figure.layout.annotations[-1].text.replace(
        "<br>", " "
    )
    with pytest.raises(UserError, match="one run, not of 2"):
        drawn("landscape", trained)
    with pytest.raises(UserError, match="too few"):
        drawn("landscape", trained[:1], images=5)


def test_pairs_take_no_float64_of_a_gpu(trained, on_mps):
    config = resolve(trained[0] / "config.yaml")
    method, images = create(config, 256), torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8)
    expected = land.positive_pairs(method, create_views(config, method), images)
    method.projector.register_forward_hook(lambda module, inputs, z: on_mps(z))
    np.testing.assert_allclose(
        land.positive_pairs(method, create_views(config, method), images).rho, expected.rho
    )


def test_pairs_are_what_the_loss_sees():
    """Embeddings that are known: identical views have the highest dependency there is."""
    from smi.losses.smi import dependency

    rho = np.array([0.0, 1.0, -0.5])
    pairs = land.Pairs(
        *[np.zeros((3, 4, 4, 3), dtype=np.uint8)] * 2,
        rho,
        dependency(torch.from_numpy(rho)).numpy(),
    )
    assert land.title(pairs, "high", 1) == "high: M = 6.91 (ρ = 1.00)"
    assert land.title(pairs, "low", 2) == "low: M = 0.14 (ρ = −0.50)"
    assert land.side_by_side(pairs.first[0], pairs.second[0]).shape == (4, 9, 3)


# ----------------------------------------------------------------------------------------------------------------------------- files


def test_html_opens_without_a_network(pair, tmp_path):
    out = write_figure("ratio", [run.folder for run in pair], tmp_path / "ratio.html")
    text = out.read_text()
    assert not re.search(r"<(script|link)[^>]*(src|href)=", text)
    assert "<title>smi: ratio</title>" in text
    assert len(text) > 1_000_000  # plotly.js is in it
    assert [path.name for path in tmp_path.iterdir() if "ratio" in path.name] == ["ratio.html"]


def test_print(pair, tmp_path, monkeypatch):
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))):
        pytest.skip("no Chrome or Chromium here")
    sources = [run.folder for run in pair]
    assert b"<svg" in write_figure("ratio", sources, tmp_path / "ratio.svg").read_bytes()[:100]
    monkeypatch.setattr(
        go.Figure, "to_image", lambda self, **how: json.dumps(how).encode()
    )  # a browser takes seconds to start
    assert json.loads(write_figure("ratio", sources, tmp_path / "ratio.png").read_bytes()) == {
        "format": "png",
        "scale": 3,
    }


def test_without_kaleido_or_a_browser_it_says_what_to_install(pair, tmp_path, monkeypatch):
    sources = [run.folder for run in pair]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "kaleido", None)
        with pytest.raises(
            UserError, match=r"pip install 'smi-ssl\[figures\]'.*\.html needs neither"
        ):
            write_figure("ratio", sources, tmp_path / "ratio.svg")
    pytest.importorskip("kaleido", reason="kaleido is not installed")

    def fail(*_, **__):
        raise RuntimeError("Kaleido requires Google Chrome to be installed.")

    monkeypatch.setattr(go.Figure, "to_image", fail)
    with pytest.raises(UserError, match=r"Chrome or Chromium.*html needs none"):
        write_figure("ratio", sources, tmp_path / "ratio.svg")
    assert not list(tmp_path.glob("ratio*"))


@pytest.mark.parametrize(
    ("name", "out", "sentence"),
    [
        ("ratoi", "x.html", "did you mean ratio"),
        ("ratio", "x.pdf", r"ends in \.html, \.svg or \.png"),
        ("ratio", "nowhere/x.html", "there is no folder"),
        ("accuracy-std", "x.html", "takes 2 runs or more, not 1"),
    ],
)
def test_mistakes_are_found_before_anything_is_computed(
    pair, tmp_path, monkeypatch, name, out, sentence
):
    monkeypatch.setattr(figures, "Run", None)
    with pytest.raises(UserError, match=sentence):
        write_figure(name, [pair[0].folder], tmp_path / out)


def command(monkeypatch, *words):
    """The command's exit code."""
    monkeypatch.setattr(sys, "argv", ["smi", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return end.code
    return 0


def test_the_command_draws(pair, tmp_path, monkeypatch, capsys):
    assert (
        command(
            monkeypatch,
            "figure",
            "gradient-norm",
            *(run.folder for run in pair),
            "--out",
            tmp_path / "g.html",
        )
        == 0
    )
    assert capsys.readouterr().out.startswith(str(tmp_path / "g.html"))
    assert (tmp_path / "g.html").stat().st_size > 1_000_000


def test_the_command_lists_and_refuses(pair, monkeypatch, capsys):
    assert command(monkeypatch, "figure", "--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(FIGURES)
    for words in (
        ("figure",),
        ("figure", "ratio", pair[0].folder),
        ("figure", "linear-curves", pair[0].folder, "--out", "x.html"),
    ):
        assert command(monkeypatch, *words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_run_that_logged_nothing(pair, tmp_path):
    (pair[0].folder / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has logged nothing yet"):
        drawn("feature-std", pair)
    lines = [json.dumps({"step": 10, "epoch": 1.0, "loss": 1.0})]
    (pair[0].folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="no gradient norm of every step"):
        drawn("gradient-norm", pair)


def test_names_in_figures_are_letters(tmp_path):
    """Plotly reads links in its texts."""
    run = write_run(tmp_path / "a", data="<a href='javascript:hurt()'>x")
    page = write_figure("feature-std", [run.folder], tmp_path / "a.html").read_text()
    assert "\\u003ca href" not in page.split("Plotly.newPlot")[-1]
    assert "<a href='javascript" not in page
    assert "\\u0026lt;a href" in page or "&lt;a href" in page
