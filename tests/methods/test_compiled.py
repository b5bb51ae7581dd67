"""Compiled forward passes do not depend on numbers that change during training."""

import pytest
from torch import _dynamo as dynamo

from support.tiny import NAMES, batch, make, views

pytestmark = pytest.mark.no_cover  # Dynamo is slow enough


@pytest.fixture(autouse=True)
def fresh():
    dynamo.reset()
    yield
    dynamo.reset()


# Dynamo looks at the gradients of PIRL's embeddings where its code is divided.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("DINO", {"crops": 1}),
        ("SwAV", {"crops": 1, "queue_from_epoch": 0}),
        ("SwAV", {"crops": 1, "queue_size": 0}),
        ("PIRL", {}),
        *((name, {}) for name in NAMES if name not in ("DINO", "SwAV", "PIRL")),
    ],
)
def test_epochs_do_not_compile_again(name, settings):
    """Train through two epochs; a second compilation of the same code is an error."""
    method, plain = make(name, **settings), make(name, **settings)
    method.compile(backend="eager")
    losses = {}
    for step in range(4):
        for model in (method, plain):
            model.progress, model.epoch = step / 40, step // 2
            with dynamo.config.patch(error_on_recompile=step > 0):
                out = model(views(model, 6, 1 + step), batch(6, 1 + step))
            out.loss.backward()
            model.zero_grad()
            model.after_step()
            losses[model, step] = out.loss.item()
        assert losses[method, step] == pytest.approx(losses[plain, step], rel=1e-4)


def test_swav_compiles_once_more_when_its_queue_starts():
    method = make("SwAV", crops=1, queue_from_epoch=1)
    method.compile(backend="eager")
    for method.epoch in (0, 1, 2, 3):
        with dynamo.config.patch(error_on_recompile=method.epoch >= 2):
            method(views(method, 6), batch(6))
        method.after_step()
