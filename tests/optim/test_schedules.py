import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from smi.optim import constant, cosine, create_optimizer, lr_factor, set_lr, steps

share = st.floats(0, 1)
part = st.floats(0, 0.99)
number = st.floats(-1e6, 1e6)


@given(number, number)
def test_cosine_meets_its_ends_and_its_middle(start, end):
    assert cosine(start, end, 0.0) == start
    assert cosine(start, end, 1.0) == end
    assert cosine(start, end, 0.5) == pytest.approx((start + end) / 2, abs=1e-9)


@given(number, number, share)
def test_cosine_stays_between_its_ends(start, end, progress):
    slack = 1e-9 * max(abs(start), abs(end))
    assert min(start, end) - slack <= cosine(start, end, progress) <= max(start, end) + slack


@pytest.mark.parametrize("num_epochs", [5, 200, 1000])
def test_steps_fall_at_whole_epochs(num_epochs):
    values = [steps(epoch / num_epochs) for epoch in range(num_epochs + 1)]
    assert values == [1.0] * (num_epochs * 3 // 5) + [0.1] * (num_epochs // 5) + [0.01] * (
        num_epochs // 5 + 1
    )


@given(st.sampled_from(["cosine", "step", "constant"]), part, share)
def test_begins_at_zero_or_at_the_peak_and_ends_at_the_final_value(schedule, warmup, final):
    assert lr_factor(schedule, 0.0, warmup, final) == (0.0 if warmup else 1.0)
    assert (
        lr_factor(schedule, 1.0, warmup, final)
        == {"cosine": final, "step": 0.01, "constant": 1.0}[schedule]
    )
    if warmup < 0.6:
        assert lr_factor(schedule, warmup, warmup, final) == 1.0


@given(st.sampled_from(["cosine", "step", "constant"]), st.floats(0, 0.5), share)
def test_rises_then_falls(schedule, warmup, final):
    progress = [i / 500 for i in range(501)]
    values = [lr_factor(schedule, p, warmup, final) for p in progress]
    slack = 1e-12
    for (p, a), (q, b) in itertools.pairwise(zip(progress, values, strict=True)):
        if q <= warmup:
            assert b >= a
        elif p >= warmup:
            assert b <= a + slack
    assert all(0 <= value <= 1 + slack for value in values)


@given(st.floats(0.1, 0.5), share)
def test_cosine_has_no_jumps(warmup, final):
    values = [lr_factor("cosine", i / 1000, warmup, final) for i in range(1001)]
    assert (
        max(abs(b - a) for a, b in itertools.pairwise(values)) < 0.011
    )  # a straight rise over a tenth of training is 0.01


def test_schedule_of_barlow_twins():
    epochs, warm = 300, 10
    for epoch in (0, 5, 10, 100, 299):
        expected = (
            epoch / warm if epoch < warm else cosine(1, 0.001, (epoch - warm) / (epochs - warm))
        )
        assert lr_factor("cosine", epoch / epochs, warm / epochs, 0.001) == pytest.approx(
            expected, rel=1e-12
        )


@pytest.mark.parametrize(
    "arguments",
    [
        ("cosine", -0.1, 0.0, 0.0),
        ("cosine", 1.1, 0.0, 0.0),
        ("cosine", 1.0, 1.0, 0.0),
        ("linear", 0.5, 0.0, 0.0),
    ],
)
def test_mistakes(arguments):
    with pytest.raises(ValueError, match=r"must be|choose"):
        lr_factor(*arguments)


def test_set_lr_is_a_share_of_each_peak():
    optimizer = create_optimizer(
        nn.Linear(2, 2), name="SGD", lr=0.2, lr_vectors=0.0048, weight_decay=0.0
    )
    for factor in (0.0, 0.25, 1.0, 0.5):  # always of the peak, never of the last value
        set_lr(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [0.2 * factor, 0.0048 * factor]
    assert constant(0.3) == 1.0
