"""Log to real event files of TensorBoard, and to a fake of W&B, which needs an account."""

import sys
import types

import pytest

from smi.errors import UserError
from smi.training.loggers import create_loggers, flat_numbers

LINE = {
    "step": 7,
    "loss": 1.5,
    "terms": {"alignment": 1.0, "redundancy": 0.5},
    "ratio": None,
    "per_step": {"loss": [1.5]},
    "timing": {"waiting": 0.1},
}


def test_numbers_are_flat():
    assert flat_numbers(LINE) == {
        "loss": 1.5,
        "terms/alignment": 1.0,
        "terms/redundancy": 0.5,
        "timing/waiting": 0.1,
    }
    assert flat_numbers({"step": 7, "epoch": 1.0, "probe": {"knn": 0.5, "split": "val"}}) == {
        "epoch": 1.0,
        "probe/knn": 0.5,
    }
    line = {"step": 7, "probe": {"label_free": {"lidar": 3.5, "alpha_req": None}}}
    assert flat_numbers(line) == {"probe/label_free/lidar": 3.5}


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own dependencies
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (logger,) = create_loggers(["tensorboard"], tmp_path, {}, start=0)
    logger.log(LINE)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (event,) = events.Scalars("terms/alignment")
    assert (event.step, event.value) == (7, 1.0)


def test_wandb_resumes_its_run(tmp_path, monkeypatch):
    begun, logged = [], []

    class Run:
        def log(self, values, step):
            logged.append((step, values))

        def finish(self):
            logged.append("finished")

    fake = types.ModuleType("wandb")
    fake.init = lambda **options: begun.append(options) or Run()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        (logger,) = create_loggers(["wandb"], tmp_path, {"seed": 1}, start=0)
        logger.log(LINE)
        logger.close()
    assert begun[0] == begun[1]
    assert begun[0]["resume"] == "allow"
    assert begun[0]["config"] == {"seed": 1}
    assert logged[:2] == [(7, flat_numbers(LINE)), "finished"]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_logger_that_is_not_installed_is_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=f"smi-ssl\\[{name}\\]"):
        create_loggers([name], tmp_path, {}, start=0)
    with pytest.raises(UserError, match="there is no logger 'paper'"):
        create_loggers(["paper"], tmp_path, {}, start=0)
