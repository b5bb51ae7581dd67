import pytest
import torch

from smi.evaluation.accuracy import top_k


def test_top_k_counts(on_mps):
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])
    assert top_k(scores, torch.tensor([0, 5, 0])) == (1.0, 1.0)
    assert top_k(scores, torch.tensor([4, 0, 5])) == (0.0, pytest.approx(1 / 3))
    assert top_k(scores[:, :5], torch.tensor([0, 0, 0])) == (pytest.approx(2 / 3), None)
    assert top_k(on_mps(scores), torch.tensor([4, 0, 5])) == (0.0, pytest.approx(1 / 3))
