import pytest
import torch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def views():
    """Correlated views in float64, as training sees them: `views(n, k, number=2)`."""

    def make(n: int, k: int, number: int = 2, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
        shared = torch.randn(n, k, dtype=torch.float64)
        return [(shared + 0.5 * torch.randn(n, k, dtype=torch.float64)).to(dtype).requires_grad_() for _ in range(number)]

    return make
