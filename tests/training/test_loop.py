"""Stop, save and resume: the loop through real runs, and its parts alone."""

import contextlib
import functools
import os
import shutil
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import smi
from smi.errors import TrainingError, UserError
from smi.runs import checkpoint
from smi.training import loop, signals, step
from smi.training.feeding import Feeder
from smi.training.signals import Interrupted, Stop, stop_signals
from smi.views import Views, policy
from support.digits import SMI, TESTS, WIDTHS, command, digits, environment, same_run, tiny
from support.forked import Forked
from support.signals import signal_in_step
from support.two_processes import finish

# --------------------------------------------------------------------------------------- stopping


def test_a_signal_is_noted_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_signals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        assert stop.signal == signal.SIGTERM
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_second_interrupt_ends_at_once():
    with stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_several_processes_agree_before_they_stop(monkeypatch):
    monkeypatch.setattr(signals, "world_size", lambda: 2)
    with stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        assert not stop.requested
        stop.agree()
        assert stop.requested
        assert stop.signal == signal.SIGINT
    elsewhere = Stop()
    elsewhere.agree()  # the signal arrived in another process
    assert elsewhere.requested
    assert elsewhere.signal == signal.SIGTERM


def test_a_signal_leaves_a_checkpoint_of_its_step(tmp_path, capsys):
    overrides = {"log.every": 5, "log.save_every": 1000}
    with pytest.raises(Interrupted) as stopped, signal_in_step(13):
        tiny(tmp_path / "a", **overrides)
    assert stopped.value.step == 13
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    run = smi.Run(tmp_path / "a")
    state = run.state()
    assert state["step"] == 13
    assert len(state["journal"]["pending"]["loss"]) == 3  # after the line of step 10
    assert run.facts.status == "training"
    said = capsys.readouterr().out
    assert "stopped after step 13 of 25; rerun the same command to resume from there" in said
    assert tiny(tmp_path / "a", **overrides).finished
    assert "resumed    after step 13, epoch 0.5" in capsys.readouterr().out
    tiny(tmp_path / "whole", **overrides)
    same_run(tmp_path / "whole", tmp_path / "a")


def test_the_command_stops_with_the_exit_code_of_its_signal(tmp_path):
    settings = [*WIDTHS, "--epochs", "40", "--log.save_every", "1000", "--log.every", "7"]
    process = Forked(*SMI, *digits(tmp_path / "a", *settings), env=environment(), cwd=TESTS)
    wait_for_lines(process, tmp_path / "a", 3)
    process.send_signal(signal.SIGTERM)
    ((code, output, errors),) = finish([process])
    assert code == 128 + signal.SIGTERM, errors
    run = smi.Run(tmp_path / "a")
    state = run.state()
    assert f"stopped after step {state['step']:,} of 1,000" in output
    logged = sum(len(line["per_step"]["loss"]) for line in run.metrics())
    # No step is lost between two lines.
    assert state["step"] == logged + len(state["journal"]["pending"].get("loss", ()))


def wait_for_lines(process, folder, count: int) -> None:
    """Wait until metrics.jsonl has some lines, or the process has ended."""
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and not (
        metrics.is_file() and metrics.read_bytes().count(b"\n") >= count
    ):
        time.sleep(0.01)


# --------------------------------------------------------------------------------------- resuming


def test_a_killed_and_resumed_run_ends_with_the_same_weights(tmp_path):
    """Use kill -9 at any moment; with dropout, a teacher and a queue, whose state counts too."""
    settings = ["--method", "MoCoV2", "--method.queue_size", "128", "--method.widths", "[16, 8]"]
    settings += ["--epochs", "3", "--encoder.drop", "0.1"]
    settings += ["--log.save_every", "0.1", "--log.every", "7"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert command(*digits(whole, *settings)).returncode == 0
    cuts = (2, 6)
    kills = 0
    for lines in cuts:
        process = Forked(*SMI, *digits(cut, *settings), env=environment(), cwd=TESTS)
        wait_for_lines(process, cut, lines)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        finish([process])
    assert kills >= len(cuts) - 1
    result = command(*digits(cut, *settings))
    assert result.returncode == 0, result.stderr
    assert "resumed    after step" in result.stdout
    same_run(whole, cut)
    weights = [(folder / "encoder.safetensors").read_bytes() for folder in (whole, cut)]
    assert weights[0] == weights[1]


def test_a_run_fed_by_a_thread_resumes_to_the_bit(tmp_path, monkeypatch):
    """As on a GPU: when the signal comes, views of later steps are made already."""
    if not Views(policy("digits")).has_kernel:
        pytest.skip("no C++ compiler here")
    monkeypatch.setattr(loop, "Feeder", functools.partial(Feeder, ahead=True))
    with pytest.raises(Interrupted), signal_in_step(13):
        tiny(tmp_path / "a")
    tiny(tmp_path / "a")
    tiny(tmp_path / "whole")
    same_run(tmp_path / "whole", tmp_path / "a")
    assert not any(thread.name.startswith("smi-") for thread in threading.enumerate())


def test_a_run_of_an_earlier_version_is_resumed_by_the_same_command(tmp_path):
    """Its config.yaml does not name settings that came later; they have another default now."""
    settings = {"method": "MoCo", "method.queue_size": 128, "method.widths": [16, 8]}
    whole = tiny(tmp_path / "whole", **settings, **{"method.key_parts": 1})
    with pytest.raises(Interrupted), signal_in_step(13):
        tiny(tmp_path / "a", **settings, **{"method.key_parts": 1})
    path = tmp_path / "a" / "config.yaml"
    text = path.read_text()
    assert "  key_parts: 1\n" in text
    path.write_text(text.replace("  key_parts: 1\n", ""))
    assert tiny(tmp_path / "a", **settings).finished
    same_run(whole.folder, tmp_path / "a")
    with pytest.raises(UserError, match="key_parts is 1 in the folder, 4 was requested"):
        tiny(tmp_path / "a", **settings, **{"method.key_parts": 4})


def test_metrics_may_be_shorter_than_the_checkpoint_says(tmp_path):
    """A machine that loses power may keep the one and not the other."""
    with pytest.raises(Interrupted), signal_in_step(13):
        tiny(tmp_path / "a", **{"log.every": 5})
    metrics = tmp_path / "a" / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[: len(whole) // 2])
    run = tiny(tmp_path / "a", **{"log.every": 5})
    assert run.finished
    assert b"\0" not in metrics.read_bytes()


# ------------------------------------------------------------------------------------- first step


def test_run_json_is_written_after_the_first_step(tmp_path):
    with pytest.raises(Interrupted), signal_in_step(1):
        tiny(tmp_path / "a")
    facts = smi.Run(tmp_path / "a").facts
    assert facts.status == "training"
    assert facts.embedding_dim == 8
    assert facts.num_images == 1614


def test_a_first_step_that_fails_writes_no_run_json(tmp_path, monkeypatch):
    def fail(parameters):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(step, "gradient_norm", fail)
    with pytest.raises(UserError, match=r"SMI with these settings .* shapes do not match"):
        tiny(tmp_path / "a")
    assert not (tmp_path / "a" / "run.json").exists()


def test_a_later_error_is_not_blamed_on_the_settings(tmp_path, monkeypatch):
    original = step.gradient_norm
    calls = []

    def fail(parameters):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("a bug")
        return original(parameters)

    monkeypatch.setattr(step, "gradient_norm", fail)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        tiny(tmp_path / "a")


# ------------------------------------------------------------------------------------ NaN, saving


@pytest.mark.parametrize("failing", ["fails_at", "gradient_fails_at"])
@pytest.mark.parametrize("log_every", [7, 1000])
@pytest.mark.parametrize("probe_every", [0, 0.2])
def test_weights_that_are_not_finite_are_never_saved(
    failing, log_every, probe_every, tmp_path, smi_here
):
    """A line of metrics, a probe or a checkpoint may be the first to meet them."""
    overrides = {
        f"method.{failing}": 0.5,
        "encoder": "support.homemade.Net",
        "epochs": 2,
        "batch_size": 64,
        "log.every": log_every,
        "log.save_every": 0.04,
        "log.probe_every": probe_every,
    }
    with pytest.raises(TrainingError) as stopped:
        smi.pretrain(
            "digits",
            out=tmp_path / "a",
            method="support.homemade.Agreement",
            overrides=overrides,
            quiet=True,
        )
    run = smi.Run(tmp_path / "a")
    if run.checkpoint.is_file():
        state = run.state()
        assert state["step"] <= 25
        assert all(value.isfinite().all() for value in state["method"].values())
    assert run.facts.status == f"stopped: {stopped.value}"
    sentence = str(stopped.value).split(" (")[0]
    assert sentence in smi_here("doctor", run.folder).stdout


class FakeJournal:
    @contextlib.contextmanager
    def paused(self):
        yield

    def state(self):
        return {"pending": {}, "position": 0}


class FakeWriter:
    """Stand in for the thread that writes: `busy` until the test says otherwise."""

    def __init__(self, saved):
        self.saved = saved
        self.busy = False
        self.closed = False
        self.error = None

    def check(self):
        if self.error:
            raise self.error

    def start(self, path, state, keep_as):
        self.saved.append((state["step"], keep_as.name if keep_as else None))

    def wait(self):
        self.check()

    def close(self):
        self.closed = True


@pytest.fixture
def saver(tmp_path, monkeypatch):
    """Return a saver that needs one second to copy the state, its clock, and the saved steps."""
    clock = [0.0]
    saved = []

    def snapshot(state):
        clock[0] += 1.0
        return state

    module = torch.nn.Linear(1, 1)
    job = SimpleNamespace(
        method=module,
        optimizer=torch.optim.SGD(module.parameters()),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        batches=SimpleNamespace(steps_per_epoch=10),
        save_every=1,
        keep_every=0,
    )
    (tmp_path / "config.yaml").touch()
    monkeypatch.setattr(loop, "snapshot", snapshot)
    monkeypatch.setattr(loop, "Writer", lambda: FakeWriter(saved))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    return loop.Saver(job, FakeJournal(), smi.Run(tmp_path)), clock, saved


def test_checkpoints_take_a_small_share_of_the_time(saver):
    save, clock, saved = saver
    for done in range(1, 101):
        clock[0] += 1.0
        save(done, last=False)
    assert saved == [(done, None) for done in (1, 21, 41, 61, 81)]
    save(101, last=True)
    assert saved[-1] == (101, None)


def test_a_checkpoint_is_skipped_while_one_is_written_but_not_the_last(saver):
    save, clock, saved = saver
    save._writer.busy = True
    clock[0] += 1000
    save(1, last=False)
    assert saved == []
    save(2, last=True)
    assert saved == [(2, None)]


def test_kept_checkpoints_are_never_skipped(saver):
    save, _, saved = saver
    save._writer.busy = True
    save._job.keep_every = 5
    for done in range(1, 13):
        save(done, last=False)
    assert saved == [(5, "epoch-0.5.pt"), (10, "epoch-1.pt")]


def test_only_rank_0_saves(saver, monkeypatch):
    save, _, saved = saver
    monkeypatch.setattr(loop, "rank", lambda: 1)
    save(1, last=True)
    assert saved == []


def test_a_failed_write_stops_the_run_at_the_next_step(saver):
    save, _, _ = saver
    save._writer.error = OSError("no space left")
    with pytest.raises(OSError, match="no space left"):
        save(1, last=False)
    with pytest.raises(OSError, match="no space left"), save:
        pass  # or at its end
    assert save._writer.closed


def test_a_failed_write_does_not_hide_another_error(saver, capsys):
    save, _, _ = saver
    save._writer.error = OSError("no space left")
    with pytest.raises(ValueError, match="a bug"), save:
        raise ValueError("a bug")
    assert "the last checkpoint was not written: no space left" in capsys.readouterr().err


def test_kept_checkpoints_of_a_run(tmp_path):
    run = tiny(tmp_path / "a", epochs=2, **{"log.keep_every": 1})
    assert {path.name for path in run.checkpoint.parent.iterdir()} == {
        "last.pt",
        "epoch-1.pt",
        "epoch-2.pt",
    }
    states = run.state(1), run.state(2), run.state()
    assert [state["step"] for state in states] == [25, 50, 50]
    weights = [run.encoder(state).network.conv.weight for state in states]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])
    with pytest.raises(UserError, match="has no checkpoint of epoch 3"):
        run.state(3)


def test_a_disk_that_fails_is_the_error_of_the_run(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", fail)
    with pytest.raises(UserError, match="failed: No space left on device; it has no checkpoint"):
        tiny(tmp_path / "a", **{"log.save_every": 0.04})
    assert not smi.Run(tmp_path / "a").finished


def test_a_folder_that_is_removed_is_one_sentence(tmp_path, monkeypatch):
    save = checkpoint.save

    def remove_first(*arguments):
        shutil.rmtree(tmp_path / "a")
        save(*arguments)

    monkeypatch.setattr(checkpoint, "save", remove_first)
    sentence = r"writing to .*a failed: No such file or directory .*; it has no checkpoint"
    with pytest.raises(UserError, match=sentence):
        tiny(tmp_path / "a", **{"log.save_every": 0.04})
