"""The time of a loss without networks, for every method."""

from pathlib import Path

import pytest
import torch
from torch import nn

from smi.comparison.loss_time import loss_seconds, networks
from smi.config.resolve import resolve
from smi.data import Batches, load
from smi.losses import SMILoss, Terms
from smi.methods import METHOD_NAMES, Method, Output
from smi.nn import create_encoder, mlp
from smi.runs.restore import build_method, build_views

TESTS = Path(__file__).parents[1]


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the encoder."""
    monkeypatch.syspath_prepend(TESTS)
    from support import homemade

    batch_sizes = []
    forward = homemade.Net.forward

    def counted(self, x):
        batch_sizes.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(homemade.Net, "forward", counted)
    return batch_sizes


@pytest.mark.parametrize("name", [*METHOD_NAMES, "support.homemade.Agreement"])
def test_networks_are_called_once_and_not_timed(name, calls):
    store = load("digits", "pretrain")
    config = resolve("digits", {"method": name, "encoder": "support.homemade.Net"})
    method = build_method(config, len(store))
    batch = Batches(store, 16, seed=0).batch(0)
    views = build_views(config, method)(batch.images, batch.generator())
    calls.clear()  # creating an encoder calls it too
    method(views, batch)
    num_calls = len(calls)
    random = torch.get_rng_state()
    seconds = loss_seconds(method, views, batch, repeats=3)
    assert seconds is not None
    assert seconds > 0
    assert len(calls) == 2 * num_calls  # the timed steps do not call it
    assert torch.equal(random, torch.get_rng_state())
    assert all("forward" not in vars(network) for network in networks(method))
    assert all(parameter.grad is None for parameter in method.encoder.parameters())


class ByModule(Method):
    """A method with a loss that is a module, and networks in a list."""

    def __init__(self, encoder):
        super().__init__(encoder)
        self.heads = nn.ModuleList([mlp(encoder.dim, 8, 8)])
        self.criterion = SMILoss()

    def forward(self, views, batch):
        h = [self.encoder(x) for x in views]
        z = [self.heads[0](features) for features in h]
        return Output(Terms(alignment=self.criterion(*z)), h[0], *z)


class Entangled(Method):
    """A method that calls a network by itself and inside another network."""

    def __init__(self, encoder):
        super().__init__(encoder)
        self.both = nn.Sequential(encoder, mlp(encoder.dim, 8, 8))

    def forward(self, views, batch):
        h, z = self.encoder(views[0]), [self.both(x) for x in views]
        return Output(Terms(alignment=(z[0] - z[1]).square().mean()), h, *z)


def test_a_loss_may_be_a_module_and_networks_may_be_in_lists(calls):
    method = ByModule(create_encoder("support.homemade.Net"))
    assert list(networks(method)) == [method.encoder, method.heads[0]]
    calls.clear()
    assert loss_seconds(method, list(torch.rand(2, 16, 3, 8, 8)), None, repeats=1) > 0
    assert len(calls) == 2


def test_a_method_that_cannot_be_timed_gives_none(calls):
    method = Entangled(create_encoder("support.homemade.Net"))
    assert loss_seconds(method, list(torch.rand(2, 16, 3, 8, 8)), None, repeats=1) is None
    assert "forward" not in vars(method.encoder)
