import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from smi.evaluation.calibration import MAX_TEMPERATURE, fit_temperature, log_loss


def draw(n: int, sharpness: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores [n, 5], `sharpness` times too certain, and labels drawn from the true ones."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(n, 5, generator=generator)
    labels = scores.softmax(1).multinomial(1, generator=generator)[:, 0]
    return sharpness * scores, labels


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 7.0])
def test_the_temperature_undoes_too_much_or_too_little_certainty(sharpness):
    scores, labels = draw(20_000, sharpness)
    assert fit_temperature(scores, labels) == pytest.approx(sharpness, rel=0.05)


def test_the_temperature_is_scipys_with_one_more_row_of_a_uniform_label():
    scores, labels = draw(300, 3.0)

    def loss(log_temperature: float) -> float:
        log_p = (scores.double() / math.exp(log_temperature)).log_softmax(1)
        own = log_p.gather(1, labels[:, None]).mean()
        return -(300 * own + log_p.mean()).item() / 301

    found = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(scores, labels) == pytest.approx(math.exp(found.x), rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [2, 10, 50])
def test_the_log_loss_never_rises(n, seed):
    for sharpness in (0.1, 1.0, 10.0):
        scores, labels = draw(n, sharpness, seed)
        temperature = fit_temperature(scores, labels)
        assert log_loss(scores, labels, temperature) <= log_loss(scores, labels)
        assert 1 / MAX_TEMPERATURE <= temperature <= MAX_TEMPERATURE


def test_few_rows_that_are_all_correct_do_not_make_predictions_certain():
    scores = torch.eye(3)
    temperature = fit_temperature(scores, torch.arange(3))
    assert 0.05 < temperature < 1
    assert (scores / temperature).softmax(1).max() < 0.999


def test_scores_that_are_all_equal_stay():
    assert fit_temperature(torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])) == 1.0
