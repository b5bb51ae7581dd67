"""Check made-up metrics and those of real losses: problems are found, and health is not."""

import copy
import json
import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from smi import losses
from smi.health import Context, Watch, find_problems, nan_diagnosis
from smi.methods import METHOD_NAMES
from support.contexts import make_context

CONTEXT = make_context("SMI", batch_size=256, embedding_dim=4096, feature_dim=512, epochs=20)


def metrics(num_lines=100, epochs=20, seed=0, **series):
    """Return the lines of a healthy SMI run; a series is a number or a function of progress."""
    noise = random.Random(seed)
    healthy = {
        "loss": lambda p: 40 + 80 * math.exp(-5 * p),
        "gradient_norm": lambda p: 3 - 2 * p,
        "feature_std": lambda p: (0.2 + 0.6 * min(1, 5 * p)) / math.sqrt(512),
        "effective_rank": lambda p: 4 + 60 * p,
        "dependency": lambda p: 1 - math.exp(-9 * p),
        "anticorrelated": lambda p: 0.4 * math.exp(-40 * p),
        "waiting": 0.05,
        "lr": 1e-3,
    }
    lines = []
    for i in range(num_lines):
        p = (i + 1) / num_lines
        values = {name: (f(p) if callable(f) else f) for name, f in {**healthy, **series}.items()}
        values = {
            name: v * (1 + 0.03 * noise.gauss(0, 1)) if isinstance(v, float) and name != "lr" else v
            for name, v in values.items()
        }
        line = {
            "step": 10 * (i + 1),
            "epoch": epochs * p,
            **values,
            "terms": {},
            "ratio": 0.1,
            "feature_std_raw": 0.3,
        }
        line["timing"] = {
            "images_per_second": 900.0,
            "waiting": line.pop("waiting"),
            "peak_memory_mb": 900.0,
        }
        line["per_step"] = {
            "loss": [line["loss"]] * 10,
            "gradient_norm": [line["gradient_norm"]] * 10,
        }
        lines.append(line)
    return lines


def probe(line, knn, chance=0.1):
    return {"step": line["step"], "epoch": line["epoch"], "probe": {"knn": knn, "chance": chance}}


def watched(context, lines):
    watch = Watch(context)
    return [(line["step"], finding) for line in lines for finding in watch(line)]


def problems(context, lines):
    return {finding.kind: finding for _, finding in watched(context, lines)}


# ------------------------------------------------------------------------------------ false alarms


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_lines", [3, 12, 100, 1000])
@pytest.mark.parametrize(
    "context",
    [CONTEXT, make_context("SMI", 256, 4096, 512)],
    ids=["of 20 epochs", "of unknown length"],
)
def test_a_healthy_run_has_no_warnings(seed, num_lines, context):
    lines = metrics(num_lines, seed=seed)
    assert problems(context, lines) == {}
    assert all(finding.level == "ok" for finding in find_problems(context, lines))


def test_findings_of_a_healthy_run():
    lines = metrics()
    lines += [probe(lines[-1], 0.71)]
    found = {finding.kind: finding for finding in find_problems(CONTEXT, lines)}
    kinds = {
        "non_finite",
        "divergence",
        "exploding_gradient",
        "collapse",
        "dimensional_collapse",
        "loss_range",
        "anticorrelated",
        "data_bound",
        "chance",
    }
    assert set(found) == kinds
    assert all(
        finding.level == "ok" and finding.evidence and not finding.advice
        for finding in found.values()
    )
    assert "71.0%" in found["chance"].evidence


@pytest.mark.parametrize(
    ("context", "loss"),
    [
        # MoCo's queue is random at first, so its loss begins near 0 and climbs to its plateau.
        (
            make_context("MoCo", 256, 128, 512, queue_size=65536, epochs=20),
            lambda p: 9.5 * (1 - math.exp(-30 * p)) - 2 * p + 0.05,
        ),
        # BYOL learns the constant first, and then has more to predict.
        (
            make_context("BYOL", 256, 256, 512, epochs=20),
            lambda p: 4 - 3.6 * (1 - math.exp(-60 * p)) + 1.6 * math.sin(2 * p),
        ),
        (
            make_context("SimSiam", 256, 2048, 512, epochs=20),
            lambda p: -0.9 * (1 - math.exp(-10 * p)),
        ),
        (make_context("DINO", 256, 65536, 512, epochs=20), lambda p: 11.0 - 6 * p),
        (
            make_context("SwAV", 256, 128, 512, num_prototypes=3000, epochs=20),
            lambda p: 8.0 - (2 * p if p > 0.15 else 0),
        ),
        (
            make_context("VICReg", 256, 8192, 512, epochs=20),
            lambda p: 25 - 12 * (1 - math.exp(-9 * p)),
        ),
        (
            make_context("BarlowTwins", 256, 8192, 512, epochs=20),
            lambda p: 1700 + 5500 * math.exp(-9 * p),
        ),
        (make_context("SimCLR", 256, 128, 512, epochs=20), lambda p: 4.9 + 1.3 * math.exp(-9 * p)),
        (
            make_context("support.homemade.Agreement", 256, None, 512, epochs=20),
            lambda p: 100 - p,
        ),
        (Context("unknown.Method", 256, None, 512, epochs=20), lambda p: 100 - p),
    ],
    ids=lambda value: value.method if isinstance(value, Context) else "",
)
def test_other_objectives_in_good_health(context, loss):
    steady = metrics(loss=lambda p: loss(p), anticorrelated=0.4)
    assert problems(context, steady) == {}


def test_single_unusual_lines_are_not_findings():
    lines = metrics()
    for i, (name, value) in enumerate(
        [
            ("loss", 1e5),
            ("gradient_norm", 1e9),
            ("feature_std", 0.0),
            ("effective_rank", 1.0),
            ("loss", -1.0),
        ]
    ):
        lines[50 + 7 * i][name] = value
    lines[70]["timing"]["waiting"] = 1.0
    for line in lines:
        line["per_step"] = {}
    assert problems(CONTEXT, lines) == {}


def test_an_untrained_network_is_not_a_finding():
    early = metrics(
        epochs=1,
        num_lines=40,
        feature_std=0.008 / math.sqrt(512),
        effective_rank=1.1,
        loss=150.0,
        anticorrelated=0.5,
    )
    assert problems(CONTEXT, early) == {}


# ---------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize(
    ("kind", "series", "words"),
    [
        (
            "collapse",
            {"feature_std": lambda p: 0.02 * math.exp(-20 * p)},
            "all images look the same",
        ),
        ("collapse", {"feature_std": 1e-4 / math.sqrt(512)}, "all images look the same"),
        ("collapse", {"effective_rank": lambda p: 1 + 9 * math.exp(-30 * p)}, "one direction"),
        (
            "dimensional_collapse",
            {"effective_rank": lambda p: 3 + 25 * math.exp(-20 * p)},
            "few of their dimensions",
        ),
        ("divergence", {"loss": lambda p: 120 + 300 * p}, "well above its start"),
        (
            "divergence",
            {"loss": lambda p: 40 + 80 * abs(1 - 3 * min(p, 0.67))},
            "risen almost to its start again",
        ),
        ("exploding_gradient", {"gradient_norm": lambda p: 3 * math.exp(12 * p)}, "explode"),
        ("exploding_gradient", {"gradient_norm": math.inf}, "NaN or infinite"),
        ("not_learning", {"loss": lambda p: 114 + 0.2 * math.sin(99 * p)}, "has not moved"),
        ("loss_range", {"loss": lambda p: 2.0 - 3 * p}, "lower than it can be"),
        ("loss_range", {"loss": lambda p: 160 - 10 * p}, "worse than that of random"),
        ("anticorrelated", {"anticorrelated": 0.45}, "opposites"),
        ("data_bound", {"waiting": 0.6}, "waits for images"),
    ],
)
def test_each_problem_is_reported_once_with_numbers_and_advice(kind, series, words):
    lines = metrics(200, **series)
    if "loss" in series:
        for line in lines:  # noise of a few per cent would hide it
            line["loss"] = series["loss"](line["epoch"] / 20)
    found = watched(CONTEXT, lines)
    assert [finding.kind for _, finding in found] == [kind]
    step, finding = found[0]
    assert words in finding.sentence
    assert finding.level == "warning"
    assert f"step {step}" in finding.evidence
    assert finding.advice.endswith(".")
    (last,) = [f for f in find_problems(CONTEXT, lines) if f.level != "ok"]
    assert (last.kind, last.sentence) == (finding.kind, finding.sentence)


def test_perfect_predictions_are_a_collapse():
    context = make_context("SimSiam", 256, 2048, 512, epochs=20)
    lines = metrics(loss=lambda p: -1 + 1e-7 * p, feature_std=lambda p: 0.15 / math.sqrt(512))
    for line in lines:
        line["loss"] = -0.9999
    assert set(problems(context, lines)) == {"collapse"}


def test_a_problem_that_has_passed_keeps_its_evidence():
    lines = metrics(waiting=lambda p: 0.6 if p < 0.3 else 0.01)
    (finding,) = [f for f in find_problems(CONTEXT, lines) if f.kind == "data_bound"]
    assert finding.level == "warning"
    assert (
        "of the time is spent waiting for images at step 100," in finding.evidence
    )  # the tenth line, the first that can tell
    assert finding.evidence.endswith("no longer true at step 1000")


@pytest.mark.parametrize(
    ("knn", "chance", "is_problem"),
    [(0.105, 0.1, True), (0.3, 0.1, False), (0.012, 0.01, True), (0.03, 0.01, False)],
)
def test_accuracy_against_chance(knn, chance, is_problem):
    lines = metrics()
    lines = [
        *lines[:20],
        probe(lines[19], chance, chance),
        *lines[20:90],
        probe(lines[89], knn, chance),
        *lines[90:],
        probe(lines[-1], knn, chance),
    ]
    found = problems(CONTEXT, lines)
    assert set(found) == ({"chance"} if is_problem else set())


def test_an_early_probe_at_chance_is_not_a_finding():
    lines = metrics()
    assert problems(CONTEXT, [*lines[:10], probe(lines[9], 0.1), *lines[10:]]) == {}


def test_features_that_get_worse():
    lines = metrics()
    probes = [probe(lines[i], knn) for i, knn in [(0, 0.9), (30, 0.85), (60, 0.8), (99, 0.7)]]
    assert (
        "worse"
        in problems(CONTEXT, sorted([*lines, *probes], key=lambda line: line["step"]))[
            "chance"
        ].sentence
    )


# ------------------------------------------------------------------------ weights to start from


def with_probes(lines, *scores, start=None, images=1000, criterion="knn"):
    """Add probes at equal distances, the last after the last line, and one before the first."""

    def line(step, epoch, score):
        values = {criterion: score, "chance": 0.1, "images": images}
        return {"step": step, "epoch": epoch, "probe": values}

    places = [lines[len(lines) * (i + 1) // len(scores) - 1] for i in range(len(scores))]
    probes = [
        line(place["step"], place["epoch"], score)
        for place, score in zip(places, scores, strict=True)
    ]
    first = [] if start is None else [line(0, 0.0, start)]
    return first + sorted([*lines, *probes], key=lambda line: line["step"])


def findings(context, lines):
    return {finding.kind: finding for finding in find_problems(context, lines)}


STARTED = replace(
    CONTEXT,
    started_from="timm",
    statistics="keep",
    select="best",
    kept="epoch 10, with 70.0%",
)


def test_an_encoder_that_is_better_than_its_start():
    found = findings(STARTED, with_probes(metrics(), 0.7, 0.68, start=0.6))
    assert {finding.level for finding in found.values()} == {"ok"}
    assert found["start"].sentence == "The encoder is better than the weights it started from."
    assert found["start"].evidence == (
        "kNN on held-out images 68.0% at epoch 20, 60.0% at the start; kept: epoch 10, with 70.0%"
    )


def test_an_encoder_that_is_as_good_as_its_start():
    """With 1,000 images, two standard errors of 60 % are 3.1 %."""
    found = findings(STARTED, with_probes(metrics(), 0.58, 0.57, start=0.6))
    assert {finding.level for finding in found.values()} == {"ok"}
    assert "about as good as" in found["start"].sentence
    unknown = findings(replace(STARTED, kept=""), with_probes(metrics(), 0.57, start=0.6))
    assert unknown["start"].evidence.endswith("57.0% at epoch 20, 60.0% at the start")


@pytest.mark.parametrize(
    ("context", "advice", "missing"),
    [
        (STARTED, "Lower --optimizer.lr", "statistics"),
        (replace(STARTED, statistics="update"), "--init.statistics keep", "select=best"),
        (replace(STARTED, select="last"), "With select=best", "statistics"),
    ],
)
def test_an_encoder_that_is_worse_than_its_start(context, advice, missing):
    lines = with_probes(metrics(), 0.7, 0.5, start=0.6)
    (_, finding) = watched(context, lines)[-1]
    assert (finding.kind, finding.level) == ("start", "warning")
    assert finding.sentence == "The encoder is worse than the weights it started from."
    assert "50.0% at epoch 20, 60.0% at the start" in finding.evidence
    assert advice in finding.advice
    assert missing not in finding.advice
    assert set(problems(context, lines)) == {"start"}  # not a second time, as "worse than at first"


def test_an_early_dip_below_the_start_is_not_a_finding():
    lines = with_probes(metrics(), 0.4, 0.62, 0.64, 0.65, start=0.6)
    assert problems(STARTED, lines) == {}


def test_without_labels_retrieval_is_compared():
    lines = with_probes(metrics(), 0.4, start=0.6, criterion="retrieval")
    finding = problems(STARTED, lines)["start"]
    assert finding.evidence.startswith("retrieval of views on held-out images 40.0%")
    found = findings(STARTED, with_probes(metrics(), 0.9, start=0.6, criterion="retrieval"))
    assert found["chance"].sentence == "Features separate the images."


def test_what_needs_no_labels_is_evidence():
    lines = with_probes(metrics(), 0.6)
    assert "without labels" not in findings(CONTEXT, lines)["chance"].evidence
    lines[-1]["probe"]["label_free"] = {"rank_me": 71.3, "lidar": "many", "retrieval": 0.5}
    evidence = findings(CONTEXT, lines)["chance"].evidence
    assert evidence.endswith("; without labels: retrieval 50.0%, RankMe 71.3")
    lines = with_probes(metrics(), 0.6, criterion="retrieval")
    lines[-1]["probe"]["label_free"] = {"rank_me": 71.3, "retrieval": 0.6}
    evidence = findings(CONTEXT, lines)["chance"].evidence
    assert evidence.endswith("; without labels: RankMe 71.3")  # retrieval is there already


def test_few_images_need_a_larger_difference():
    assert problems(STARTED, with_probes(metrics(), 0.55, 0.55, start=0.6, images=100)) == {}
    assert "start" in problems(STARTED, with_probes(metrics(), 0.55, 0.55, start=0.6, images=5000))


def test_a_loss_that_weights_make_low_from_the_start_is_not_a_finding():
    """The same lines from scratch would not have moved."""
    flat = metrics(loss=45.0)
    for line in flat:
        line["loss"] = 45.0
    assert set(problems(CONTEXT, flat)) == {"not_learning"}
    assert problems(STARTED, flat) == {}
    for line in flat:
        line["loss"] = 114.0  # that of random embeddings
    assert set(problems(STARTED, flat)) == {"not_learning"}
    assert problems(STARTED, with_probes(flat, *[0.64] * 10, start=0.6)) == {}


def test_a_loss_of_unknown_range_may_rise_from_a_low_start():
    own = Context("own.Method", 256, None, 512, epochs=20)
    rising = metrics(loss=lambda p: 0.01 + 0.05 * p)
    assert set(problems(own, rising)) == {"divergence"}
    started = replace(own, started_from="weights.pth")
    assert problems(started, rising) == {}
    assert set(problems(started, metrics(loss=lambda p: 0.01 + p))) == {"divergence"}


def test_an_encoder_of_many_kinds_of_images_may_lose_dimensions():
    falling = metrics(effective_rank=lambda p: 3 + 60 * math.exp(-20 * p))
    assert set(problems(STARTED, falling)) == {"dimensional_collapse"}
    better = with_probes(falling, *[0.7] * 10, start=0.6)
    assert problems(STARTED, better) == {}
    worse = with_probes(falling, *[0.5] * 10, start=0.6)
    assert set(problems(STARTED, worse)) == {"dimensional_collapse", "start"}


def test_a_collapse_is_found_also_with_weights():
    collapsed = metrics(feature_std=lambda p: 0.03 * math.exp(-20 * p))
    lines = with_probes(collapsed, 0.2, 0.11, 0.1, start=0.6)
    assert set(problems(STARTED, lines)) == {"collapse", "chance", "start"}


# --------------------------------------------------------------------------------------------- NaN


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_loss_that_is_not_finite(value):
    lines = metrics(gradient_norm=lambda p: 2.0 if p < 0.5 else 60.0)[:60]
    lines[-1]["loss"] = value
    lines[-1]["per_step"]["loss"] = [50.5] * 6 + [value] * 4
    found = watched(CONTEXT, lines)
    assert [(step, finding.kind, finding.level) for step, finding in found] == [
        (600, "non_finite", "stop")
    ]
    finding = found[0][1]
    assert finding == nan_diagnosis(CONTEXT, lines)
    assert "at step 597; last finite loss 50.5 at step 596; learning rate 0.001" in finding.evidence
    assert "largest gradient norm" in finding.evidence
    assert "gradients grew" in finding.advice.lower()
    assert "0.0003333" in finding.advice


def test_a_sudden_overflow_points_to_precision():
    lines = metrics(20)
    lines[-1]["loss"] = math.inf
    finding = nan_diagnosis(CONTEXT, lines)
    assert "float32" in finding.advice
    assert nan_diagnosis(CONTEXT, lines[:-1]) is None


def test_at_the_very_first_step():
    finding = nan_diagnosis(CONTEXT, [{"step": 1, "loss": math.nan}])
    assert finding.evidence == "loss nan at step 1"


# -------------------------------------------------------------------------- lines added one by one


def test_repeated_lines_change_nothing_and_a_new_watch_catches_up():
    lines = metrics(waiting=0.5, effective_rank=lambda p: 3 + 25 * math.exp(-20 * p))
    watch = Watch(CONTEXT)
    first = [finding for line in lines[:60] for finding in watch(line)]
    again = copy.deepcopy(vars(watch))
    assert [finding for line in lines[:60] for finding in watch(line)] == []
    assert vars(watch) == again
    resumed = Watch(CONTEXT)
    assert [
        finding for line in json.loads(json.dumps(lines[:60])) for finding in resumed(line)
    ] == first
    assert vars(resumed) == vars(watch)
    assert [resumed(line) for line in lines[60:]] == [watch(line) for line in lines[60:]]


def test_steps_that_a_resumed_run_repeats_count_once():
    lines = metrics()
    broken = copy.deepcopy(lines[40:50])
    for line in broken:
        line["loss"] = math.nan
    mended = [*lines[:40], *broken, probe(lines[49], 0.1), *lines[40:]]
    assert find_problems(CONTEXT, mended) == find_problems(CONTEXT, lines)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["loss", "knn", "chance", "waiting"]), inner, max_size=3)
    ),
    max_leaves=4,
)
number = st.floats(allow_nan=False, allow_infinity=False)
names = [
    "epoch",
    "loss",
    "gradient_norm",
    "feature_std",
    "effective_rank",
    "dependency",
    "anticorrelated",
    "lr",
]
finite_lines = st.lists(
    st.fixed_dictionaries(
        {"timing": st.fixed_dictionaries({"waiting": number}), **dict.fromkeys(names, number)}
    ),
    max_size=60,
)
odd_lines = st.lists(
    st.dictionaries(
        st.sampled_from([*names, "step", "timing", "per_step", "probe"]), anything, max_size=8
    )
    | st.fixed_dictionaries(
        {
            "step": st.integers(0, 3),
            "probe": st.dictionaries(
                st.sampled_from(["knn", "retrieval", "chance", "images"]), number | anything
            ),
        }
    ),
    max_size=30,
)
settings_of_methods = st.dictionaries(
    st.sampled_from(
        ["temperature", "redundancy_weight", "eps", "shift", "target", "num_negatives"]
    ),
    anything,
)


@st.composite
def contexts(draw):
    """Draw contexts of all methods with possible and impossible sizes and settings."""
    return make_context(
        draw(st.sampled_from([*METHOD_NAMES, "smi", "support.homemade.Agreement"])),
        batch_size=draw(st.integers(0, 10**6)),
        embedding_dim=draw(st.none() | st.integers(0, 10**6)),
        feature_dim=draw(st.integers(0, 10**6)),
        num_views=draw(st.integers(0, 9)),
        world_size=draw(st.integers(1, 9)),
        epochs=draw(st.none() | st.floats(0, 1e9)),
        **draw(settings_of_methods),
    )


@given(contexts(), finite_lines)
def test_finite_lines_never_crash(context, lines):
    lines = [{"step": step + 1, **line} for step, line in enumerate(lines)]
    reported = [finding.kind for _, finding in watched(context, lines)]
    assert len(reported) == len(set(reported))
    assert "non_finite" not in reported
    assert set(reported) == {
        finding.kind for finding in find_problems(context, lines) if finding.level != "ok"
    }


@given(contexts(), odd_lines)
def test_odd_lines_never_crash(context, lines):
    watch = Watch(context)
    for line in lines:
        watch(line)
    for finding in find_problems(context, lines):
        assert finding.sentence
        assert finding.evidence
    nan_diagnosis(context, lines)


def test_importing_health_does_not_import_torch():
    code = "import sys, smi.health; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ------------------------------------------------------------------------------------- real losses


def train(loss, *, lr=3e-3, num_steps=160, optimizer=torch.optim.Adam, dim=32, with_projector=True):
    """Train a small network on noisy points of clusters; return the lines of a short run."""
    generator = torch.Generator().manual_seed(0)
    clusters = 3 * torch.randn(10, 16, generator=generator)
    encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    projector = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, dim))
    predictor = nn.Sequential(nn.Linear(dim, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, dim))
    module = nn.ModuleList([encoder, projector, predictor])
    optimizer = optimizer(module.parameters(), lr=lr)
    lines = []
    for step in range(1, num_steps + 1):
        x = clusters[torch.randint(10, (64,), generator=generator)] + torch.randn(
            64, 16, generator=generator
        )
        h = [encoder(x + 0.3 * torch.randn(64, 16, generator=generator)) for _ in range(2)]
        z = [projector(features) if with_projector else features for features in h]
        value = loss(*z, predictor)
        optimizer.zero_grad()
        value.backward()
        norm = torch.linalg.vector_norm(
            torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None])
        )
        optimizer.step()
        if step % 4 == 0:
            with torch.no_grad():
                unit = nn.functional.normalize(h[0], dim=1)
                spectrum = torch.linalg.svdvals((h[0] - h[0].mean(0)).nan_to_num(0, 0, 0)).square()
                share = (spectrum / spectrum.sum().clamp_min(1e-30)).clamp_min(1e-30)
                centred = [
                    nn.functional.normalize(view - view.mean(1, keepdim=True), dim=1) for view in z
                ]
                rho = (centred[0] * centred[1]).sum(1)
            lines.append(
                {
                    "step": step,
                    "epoch": step / 10,
                    "loss": value.item(),
                    "gradient_norm": norm.item(),
                    "lr": lr,
                    "feature_std": unit.std(0).mean().item(),
                    "effective_rank": (-(share * share.log()).sum()).exp().item(),
                    "anticorrelated": (rho < 0).double().mean().item(),
                    "timing": {"waiting": 0.01, "images_per_second": 1e4},
                }
            )
    return lines


def symmetric(z1, z2, predictor):
    negative_cosine = losses.negative_cosine_loss
    return (
        negative_cosine(predictor(z1), z2.detach()).total
        + negative_cosine(predictor(z2), z1.detach()).total
    ) / 2


REAL = {
    "SMI": lambda z1, z2, _: losses.smi_loss(z1, z2).total,
    "BarlowTwins": lambda z1, z2, _: losses.barlow_twins_loss(z1, z2).total,
    "VICReg": lambda z1, z2, _: losses.vicreg_loss(z1, z2).total,
    "SimCLR": lambda z1, z2, _: losses.nt_xent_loss(z1, z2).total,
    "SimSiam": symmetric,
}


def small(method):
    return make_context(method, batch_size=64, embedding_dim=32, feature_dim=64, epochs=16)


@pytest.mark.parametrize("method", REAL)
def test_real_runs_that_learn_have_no_warnings(method):
    lines = train(REAL[method])
    assert problems(small(method), lines) == {}
    lowest, _ = small(method).description.loss_range
    assert min(line["loss"] for line in lines) >= lowest


def test_a_real_collapse():
    def attract(
        h1, h2, predictor
    ):  # SimSiam without what keeps it from collapsing: no predictor, no constant target
        return losses.negative_cosine_loss(h1, h2).total

    assert set(problems(small("SimSiam"), train(attract, lr=0.01, with_projector=False))) == {
        "collapse"
    }


def test_a_real_divergence():
    lines = train(REAL["VICReg"], lr=300.0, optimizer=torch.optim.SGD)
    assert {"divergence", "non_finite"} & set(problems(small("VICReg"), lines))


def test_an_untrained_encoder_must_become_better():
    found = findings(CONTEXT, with_probes(metrics(), 0.25, 0.3, start=0.2))
    assert found["start"].sentence == "The encoder is better than an untrained one."
    assert "the untrained encoder for 20.0%" in found["chance"].evidence
    for now, sentence in ((0.215, "hardly better"), (0.1, "worse")):
        found = findings(CONTEXT, with_probes(metrics(), now, now, start=0.2))
        assert found["start"].level == "warning"
        assert f"The encoder is {sentence} than an untrained one." == found["start"].sentence
        assert "chance" not in found or found["chance"].level != "ok"


def test_a_history_keeps_the_first_and_the_last_probes_only():
    from smi.health.history import History
    from smi.health.run_context import Context

    history = History(Context(method="SMI", batch_size=4, embedding_dim=8, feature_dim=8))
    for step in range(100):
        probe = {"knn": 0.1 + step / 1000, "chance": 0.1, "images": 100}
        history.add({"step": step, "epoch": step / 10, "probe": probe})
    assert [probe.step for probe in history.probes] == [0, 97, 98, 99]
