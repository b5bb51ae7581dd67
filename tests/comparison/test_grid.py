"""The grid of a comparison: its rows, folders, commands and checks, without any training."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import yaml

from smi.comparison.grid import check_same, plan_grid
from smi.config.resolve import read_recipe
from smi.config.schema import plain
from smi.data import Batches, load
from smi.errors import UserError
from smi.nn.weights import digest_of
from smi.runs.checkpoint import save
from smi.runs.restore import build_method, build_views
from smi.training.configure import configure
from support.homemade import Net

TESTS = Path(__file__).parents[1]
SWEEP = "redundancy_weight=0.01,1"


@pytest.fixture(autouse=True)
def _our_modules(monkeypatch):
    monkeypatch.syspath_prepend(TESTS)


@pytest.fixture
def grid(tmp_path):
    """`grid(methods, …)`: plan runs on the digits in a temporary folder."""

    def make(methods, *, seeds=1, sweep=None, overrides=None, arguments=()):
        return plan_grid(
            "digits",
            {"encoder": "support.homemade.Net", "batch_size": 32, **(overrides or {})},
            methods=methods,
            seeds=range(seeds),
            sweep=sweep,
            folder=tmp_path,
            arguments=arguments,
        )

    return make


def start(run, *, status="running", num_images=512, **changes):
    """Write the folder of a run as `smi pretrain` leaves it."""
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(yaml.safe_dump(plain(run.config) | changes))
    (run.folder / "run.json").write_text(json.dumps({"status": status, "num_images": num_images}))
    (run.folder / "metrics.jsonl").write_text('{"step": 10}\n')


def test_runs_are_listed_seed_by_seed(grid):
    runs = grid(["SMI", "SimCLR"], seeds=2, sweep=SWEEP)
    assert runs.swept == "redundancy_weight"
    assert runs.seeds == (0, 1)
    assert [run.name for run in runs.runs] == [
        f"{row}, seed {seed}"
        for seed in (0, 1)
        for row in ("SMI, redundancy_weight=0.01", "SMI, redundancy_weight=1.0", "SimCLR")
    ]
    assert [run.value for run in runs.runs[:3]] == [0.01, 1.0, None]
    assert [run.config.seed for run in runs.runs] == [0, 0, 0, 1, 1, 1]


def test_methods_are_paired(grid):
    """One seed means one encoder, one order of images and one draw of views for all methods."""
    methods = ["SMI", "BarlowTwins", "SimCLR", "BYOL", "SwAV"]  # SwAV has small views behind two
    runs = grid(methods, seeds=2, sweep=SWEEP).runs
    assert len(runs) == 14
    store = load("digits", "pretrain")
    inputs: dict[int, list[list[torch.Tensor]]] = {0: [], 1: []}
    for run in runs:
        method = build_method(run.config, len(store))
        batch = Batches(store, 32, seed=run.config.seed).batch(3)
        views = build_views(run.config, method)(batch.images, batch.generator())
        inputs[run.seed].append([batch.index, *views[:2], *method.encoder.state_dict().values()])
    for first, *others in inputs.values():
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    different = [not torch.equal(a, b) for a, b in zip(inputs[0][0], inputs[1][0], strict=True)]
    assert all(different[:4])  # index, two views, weights of the convolution


def test_a_folder_is_named_after_its_row(grid, tmp_path):
    runs = grid(["SMI", "support.homemade.Agreement"], sweep="SMI.widths=[16,8],[8]").runs
    assert [str(run.folder.relative_to(tmp_path)) for run in runs] == [
        "runs/SMI,widths=[16,8]/seed-0",
        "runs/SMI,widths=[8]/seed-0",
        "runs/support.homemade.Agreement/seed-0",
    ]


def test_the_default_value_shares_its_folder_with_the_run_without_a_sweep(grid):
    (alone,) = grid(["SMI"]).runs
    default = alone.config.method["redundancy_weight"]
    swept = grid(["SMI"], sweep=f"redundancy_weight={default},{2 * default}").runs
    assert [run.folder == alone.folder for run in swept] == [True, False]
    assert swept[0].config == alone.config


@pytest.mark.parametrize(
    "sweep", ["method.redundancy_weight=0.1,0.10,1e-1", "redundancy_weight = 0.1, 0.1"]
)
def test_one_value_in_several_spellings_is_one_row(grid, sweep):
    (run,) = grid(["SMI"], sweep=sweep).runs
    assert run.row == "SMI, redundancy_weight=0.1"


def test_a_setting_can_be_swept_for_one_method_only(grid):
    rows = [run.row for run in grid(["SMI", "BarlowTwins"], sweep=f"SMI.{SWEEP}").runs]
    assert rows == ["SMI, redundancy_weight=0.01", "SMI, redundancy_weight=1.0", "BarlowTwins"]


def test_the_command_says_everything_that_makes_the_run(grid):
    run = grid(
        ["SMI"],
        sweep="widths=[16,8]",
        overrides={"optimizer.lr": 0.5, "data": "a folder"},
        arguments=["--device=cpu"],
    ).runs[0]
    assert shlex.split(run.command) == [
        "smi",
        "pretrain",
        "digits",
        "--method=SMI",
        "--seed=0",
        f"--out={run.folder}",
        "--device=cpu",
        "encoder=support.homemade.Net",
        "batch_size=32",
        "--optimizer.lr=0.5",
        "data=a folder",
        "--method.widths=[16,8]",
    ]


@pytest.mark.parametrize(
    ("methods", "sweep", "sentence"),
    [
        (["SMI"], "redundancy_weight", "a sweep is a setting and its values"),
        (["SMI"], "redundancy_weight=1,,2", "a sweep is a setting and its values"),
        (["SMI"], "=1", "a sweep is a setting and its values"),
        (["SMI"], "redundancy_weight=1,much", "must be a number"),
        (["SMI", "BYOL"], "redundancy_wieght=1", "is not a setting of SMI or BYOL: did you mean"),
        (["SMI", "BYOL"], "BYOL.redundancy_weight=1", "redundancy_weight is not a setting of BYOL"),
        (["SMI"], "num_images=1", "num_images is not a setting of SMI"),
        (["support.homemade.Limited"], "limit=1,null", "limit=null cannot be swept"),
    ],
)
def test_a_wrong_sweep_is_refused(grid, methods, sweep, sentence):
    with pytest.raises(UserError, match=sentence):
        grid(methods, sweep=sweep)


@pytest.mark.parametrize(
    ("status", "done", "failed"),
    [
        ("running", False, ""),
        ("finished", True, ""),
        ("stopped: the loss is NaN", True, "the loss is NaN"),
    ],
)
def test_the_state_of_a_run_is_read_from_its_folder(grid, status, done, failed):
    (run,) = grid(["SMI"]).runs
    assert (run.status, run.done, run.failed) == ("", False, "")
    start(run, status=status)
    assert (run.status, run.done, run.failed) == (status, done, failed)


def test_a_folder_with_another_run_is_refused(grid):
    (run,) = grid(["SMI"]).runs
    check_same(run, 512)  # nothing is there
    start(run)
    check_same(run, 512)
    with pytest.raises(UserError, match=r"SMI, seed 0: .*\(num_images is 512 .*, 500 now\)"):
        check_same(run, 500)
    longer = replace(run, config=replace(run.config, epochs=run.config.epochs + 1))
    with pytest.raises(UserError, match=r"different configuration \(epochs is .*another --out"):
        check_same(longer, 512)


def test_settings_of_other_methods_do_not_make_a_run_different(grid):
    (run,) = grid(["SMI"]).runs
    start(run, methods={"BYOL": {"widths": [8, 8]}})
    check_same(run, 512)


# ---------------------------------------------------------------------------- weights to start from


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Write the weights of a small network, and work in their folder; return their digest."""
    monkeypatch.chdir(tmp_path)
    tensors = Net().state_dict()
    save(tmp_path / "net.pth", dict(tensors))
    return digest_of(tensors)


def test_all_runs_start_from_the_same_weights(grid, weights, tmp_path):
    runs = grid(["SMI", "SimCLR"], seeds=2, overrides={"init": "net.pth"}).runs
    assert {run.config.init.digest for run in runs} == {weights}
    assert {run.config.init.source for run in runs} == {str(tmp_path / "net.pth")}
    assert [run.config.seed for run in runs] == [0, 0, 1, 1]
    for run in runs:
        words = shlex.split(run.command)
        assert words[-2:] == [f"--init.source={tmp_path}/net.pth", f"--init.digest={weights}"]
        assert not any(word.startswith("init=") for word in words)


def test_the_weights_decide_the_size_of_views_that_nobody_chose(tmp_path):
    """The recipe `adapt` has no size."""
    network = timm.create_model("resnet10t", num_classes=0)
    save(tmp_path / "r10.pth", dict(network.state_dict()))
    overrides = {"encoder": "resnet10t", "init": str(tmp_path / "r10.pth"), "data": "digits"}

    def plan(**given):
        given = {"methods": ["SMI"], "seeds": [0], "sweep": None, "folder": tmp_path} | given
        return plan_grid("adapt", overrides | given.pop("overrides", {}), **given).runs

    for device, size in (("cpu", 96), ("cuda", 176)):
        stem = {"encoder.stem": "standard"}
        (run,) = plan(overrides=stem, device=torch.device(device))
        assert run.config.views.size == size
        assert run.config.views.mean == (0.485, 0.456, 0.406)
    rows = plan(overrides=stem, sweep="redundancy_weight=0.03,0.1", device=torch.device("cpu"))
    assert [run.folder.parent.name for run in rows] == ["SMI,redundancy_weight=0.03", "SMI"]
    with pytest.raises(UserError, match=r"views\.size is not set"):
        plan(overrides={"init": None})


def test_a_default_value_shares_its_folder_also_with_weights(grid, weights):
    (alone,) = grid(["SMI"], overrides={"init": "net.pth"}).runs
    default = alone.config.method["redundancy_weight"]
    (swept,) = grid(
        ["SMI"], sweep=f"redundancy_weight={default}", overrides={"init": "net.pth"}
    ).runs
    assert (swept.folder, swept.config) == (alone.folder, alone.config)


def test_weights_that_changed_since_a_run_are_refused(grid, weights, tmp_path):
    (run,) = grid(["SMI"], overrides={"init": "net.pth"}).runs
    start(run)
    check_same(run, 512)
    other = Net().state_dict()
    save(tmp_path / "net.pth", dict(other))
    (now,) = grid(["SMI"], overrides={"init": "net.pth"}).runs
    with pytest.raises(
        UserError,
        match=rf"^SMI, seed 0: .* started from other weights \(digest {weights}\) than those of "
        rf".*net\.pth now \(digest {digest_of(other)}\)\. All runs of a comparison start from",
    ):
        check_same(now, 512)
    (scratch,) = grid(["SMI"]).runs
    with pytest.raises(UserError, match=r"init.digest is .* in the folder, None was requested"):
        check_same(scratch, 512)


def test_methods_that_would_start_from_different_weights_are_refused(grid, weights, monkeypatch):
    """For example, position embeddings for images of another size."""
    digests = iter("ab")
    real = configure

    def different(*arguments, **options):
        configured = real(*arguments, **options)
        init = replace(configured.config.init, digest=next(digests))
        return replace(configured, config=replace(configured.config, init=init))

    monkeypatch.setattr("smi.comparison.grid.configure", different)
    with pytest.raises(UserError, match=r"^SMI and SimCLR would start from different weights \("):
        grid(["SMI", "SimCLR"], overrides={"init": "net.pth"})


def test_weights_that_do_not_exist_are_refused(grid):
    with pytest.raises(UserError, match=r"there are no weights 'nowhere\.pth'"):
        grid(["SMI"], overrides={"init": "nowhere.pth"})


def test_methods_with_other_whole_images_are_refused(grid, monkeypatch):
    """A run of an earlier version keeps its size; a method that is added has that of today."""
    recipe = read_recipe("digits")
    monkeypatch.setattr("smi.config.resolve.read_text", lambda name: yaml.safe_dump(recipe))
    start(grid(["SMI"]).runs[0])
    recipe["views"]["input_size"] = 12
    assert grid(["SMI"]).runs[0].config.views.input_size is None
    with pytest.raises(UserError, match="SMI would be given images of 8 pixels and SimCLR of 12"):
        grid(["SMI", "SimCLR"])
    sizes = {"views.input_size": None}
    assert {
        run.config.views.whole_size for run in grid(["SMI", "SimCLR"], overrides=sizes).runs
    } == {8}
