"""Record steps: lines, averages, NaN, pending values and warnings."""

import json
import math

import pytest
import torch

from smi.config.resolve import resolve
from smi.errors import TrainingError
from smi.health import Finding
from smi.losses import Terms
from smi.methods import Output
from smi.runs.run import Facts, Run
from smi.terminal import quietly
from smi.training import journal as module
from smi.training.bar import Length
from smi.training.journal import Journal
from smi.training.run_facts import health_context
from smi.training.signals import Stop

CONFIG = resolve("digits", {"epochs": 2})
FACTS = Facts(
    batch_per_device=4, embedding_dim=6, feature_dim=5, num_views=2, world_size=1, num_images=40
)
LENGTH = Length(steps=20, steps_per_epoch=10, images_per_step=4)


@pytest.fixture
def run(tmp_path):
    with Run.claim(tmp_path / "a", CONFIG, num_images=40) as claimed:
        yield claimed


def open_journal(run, *, log_every=4, **options) -> Journal:
    journal = Journal(run, LENGTH, log_every=log_every, device=torch.device("cpu"), **options)
    journal.start_watch(health_context(CONFIG, FACTS))
    return journal


def output(**terms: float) -> Output:
    values = {name: torch.tensor(value) for name, value in terms.items()}
    return Output(Terms(**values), torch.randn(4, 5), torch.randn(4, 6), torch.randn(4, 6))


def record(journal: Journal, *losses: float, norm: float = 1.0) -> None:
    """Record one step per loss."""
    for loss in losses:
        out = output(alignment=loss / 4, redundancy=3 * loss / 4)
        journal.record(journal.done + 1, out, torch.tensor(norm), lr=0.1)


def test_a_line_is_due_every_few_steps_and_at_the_end_of_an_epoch(run):
    journal = open_journal(run)
    record(journal, *map(float, range(1, 21)))
    journal.close()
    lines = run.metrics()
    assert [line["step"] for line in lines] == [4, 8, 10, 12, 16, 20]
    assert [line["epoch"] for line in lines] == [0.4, 0.8, 1.0, 1.2, 1.6, 2.0]
    assert [line["loss"] for line in lines] == [2.5, 6.5, 9.5, 11.5, 14.5, 18.5]
    losses = [loss for line in lines for loss in line["per_step"]["loss"]]
    assert losses == list(map(float, range(1, 21)))


def test_a_line_holds_terms_of_the_last_step_and_averages_of_all(run):
    journal = open_journal(run, log_every=2)
    record(journal, 4.0, norm=1.0)
    record(journal, 8.0, norm=3.0)
    journal.close()
    (line,) = run.metrics()
    assert line["terms"] == {"alignment": 2.0, "redundancy": 6.0}
    assert line["ratio"] == 3.0
    assert line["gradient_norm"] == 2.0
    assert line["per_step"] == {"loss": [4.0, 8.0], "gradient_norm": [1.0, 3.0]}
    assert line["lr"] == 0.1
    assert {"feature_std", "effective_rank", "dependency", "timing"} <= line.keys()


def test_the_ratio_needs_two_terms(run):
    journal = open_journal(run, log_every=1)
    journal.record(1, output(alignment=2.0), torch.tensor(1.0), lr=0.1)
    journal.record(2, output(alignment=0.0, spread=2.0), torch.tensor(1.0), lr=0.1)
    journal.record(3, output(alignment=2.0, a=1.0, b=2.0), torch.tensor(1.0), lr=0.1)
    journal.close()
    assert [line["ratio"] for line in run.metrics()] == [None, None, 1.5]


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_a_line_that_is_not_finite_stops_the_run(loss, norm, run):
    journal = open_journal(run, log_every=2)
    record(journal, 1.0)
    with pytest.raises(TrainingError):
        record(journal, loss, norm=norm)
    journal.close()
    assert run.metrics() == []
    (line,) = run.lines()
    assert (line["step"], line["loss"]) == (2, None)
    text = (run.folder / "metrics.jsonl").read_text()
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


def test_a_value_that_is_not_finite_is_never_saved(run):
    """It may wait for its line when a checkpoint or a probe is due."""
    journal = open_journal(run, log_every=100)
    record(journal, 1.0)
    journal.check_finite()
    record(journal, math.nan)
    with pytest.raises(TrainingError):
        journal.state()
    journal.close()
    (line,) = run.lines()
    assert line["per_step"]["loss"] == [1.0, None]


def test_pending_values_survive_a_checkpoint(run):
    journal = open_journal(run)
    record(journal, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    state = journal.state()
    record(journal, 99.0, 99.0)
    journal.close()
    assert state["pending"]["loss"].tolist() == [5.0, 6.0]
    run.cut_metrics(state["position"])
    assert [line["step"] for line in run.metrics()] == [4]
    resumed = open_journal(run, start=6, pending=state["pending"])
    record(resumed, 7.0, 8.0)
    resumed.close()
    assert [line["per_step"]["loss"] for line in run.metrics()] == [
        [1.0, 2.0, 3.0, 4.0],
        [5.0, 6.0, 7.0, 8.0],
    ]


def test_a_probe_is_a_line_of_its_own(run):
    journal = open_journal(run)
    record(journal, 1.0, 2.0)
    journal.record_probe({"knn": 0.5})
    journal.close()
    assert run.lines() == [{"step": 2, "epoch": 0.2, "probe": {"knn": 0.5}}]


def test_a_line_is_printed_per_epoch_unless_the_caller_wants_silence(run, capsys):
    journal = open_journal(run)
    journal.record_probe({"knn": 0.25})
    for _ in range(10):
        record(journal, 2.0)
        journal.show()
    journal.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("epoch 1/2  loss 2  feature std ")
    assert "kNN 25.0%" in line
    with quietly():
        silent = open_journal(run, start=10)
        for _ in range(10):
            record(silent, 2.0)
            silent.show()
        silent.close()
    assert capsys.readouterr() == ("", "")


def test_the_speed_leaves_pauses_out(run, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    journal = open_journal(run, log_every=2)
    record(journal, 1.0)
    with journal.paused():
        clock[0] += 100.0
    with journal.waiting():
        clock[0] += 1.0
    clock[0] += 3.0
    record(journal, 1.0)
    journal.close()
    timing = run.metrics()[0]["timing"]
    assert timing["images_per_second"] == 2.0  # two steps of four images in four seconds
    assert timing["waiting"] == 0.25


class Alarm:
    """Warn about every line."""

    def __init__(self, context):
        self.steps = []
        Alarm.last = self

    def __call__(self, line):
        self.steps.append(line["step"])
        return [Finding("test", "warning", f"trouble at {line['step']}", "numbers", "do less")]


def test_warnings_are_printed_once_also_after_a_resume(run, monkeypatch, capsys):
    monkeypatch.setattr(module, "Watch", Alarm)
    journal = open_journal(run)
    record(journal, 1.0, 1.0, 1.0, 1.0)
    journal.close()
    assert "warning: trouble at 4 (numbers) do less" in capsys.readouterr().err
    resumed = open_journal(run, start=4)
    assert Alarm.last.steps == [4]
    assert capsys.readouterr().err == ""
    record(resumed, 1.0, 1.0, 1.0, 1.0)
    resumed.close()
    assert Alarm.last.steps == [4, 8]
    assert capsys.readouterr().err.count("warning") == 1


class Recorder:
    """Keep the lines that a logger is given."""

    def __init__(self):
        self.lines = []
        self.closed = False

    def log(self, line):
        self.lines.append(line)

    def close(self):
        self.closed = True


def test_loggers_receive_every_line(run):
    logger = Recorder()
    journal = open_journal(run, loggers=[logger])
    record(journal, 1.0, 1.0, 1.0, 1.0)
    journal.record_probe({"knn": 0.5})
    journal.close()
    assert logger.lines == run.lines()
    assert logger.closed


def test_other_ranks_write_nothing(run, monkeypatch, capsys):
    monkeypatch.setattr(module, "rank", lambda: 1)
    journal = open_journal(run, log_every=1)
    record(journal, 1.0)
    journal.show()
    assert journal.state()["position"] == 0
    with pytest.raises(TrainingError):
        record(journal, math.nan)
    journal.close()
    assert not (run.folder / "metrics.jsonl").exists()
    assert capsys.readouterr() == ("", "")


def test_pending_values_of_a_checkpoint_move_to_the_device(run):
    journal = Journal(
        run, LENGTH, log_every=4, device=torch.device("meta"), pending={"loss": torch.ones(2)}
    )
    journal.close()
    assert [value.device.type for value in journal._pending["loss"]] == ["meta", "meta"]


def test_a_signal_in_another_process_stops_this_one_at_the_next_line(run, monkeypatch):
    def mean_with_a_stopped_process(values):
        values = values.clone()
        values[-1] = 0.5
        return values

    monkeypatch.setattr(module, "all_mean", mean_with_a_stopped_process)
    journal = open_journal(run)
    stop = Stop()
    journal.agree_on(stop)
    record(journal, 1.0, 2.0, 3.0)
    assert not stop.requested
    record(journal, 4.0)
    journal.close()
    assert stop.requested
    assert run.metrics()[-1]["per_step"]["loss"] == [1.0, 2.0, 3.0, 4.0]


# ---------------------------------------------------------------------------------------- float16


def test_steps_that_overflow_are_counted_and_left_out(run):
    journal = open_journal(run, log_every=3)
    for loss, skipped in ((math.inf, True), (4.0, False), (math.nan, True)):
        out = output(alignment=loss)
        norm = torch.tensor(math.nan if skipped else 1.0)
        journal.record(journal.done + 1, out, norm, lr=0.1, skipped=skipped, scale=lambda: 512.0)
        journal.check_finite()
    journal.close()
    (line,) = run.metrics()
    assert (line["loss"], line["scale"], line["skipped"]) == (4.0, 512.0, 2)
    assert line["per_step"] == {"loss": [4.0], "gradient_norm": [1.0]}


def test_a_line_without_a_step_that_was_taken_has_no_loss(run):
    journal = open_journal(run, log_every=1)
    out = output(alignment=math.nan)
    journal.record(1, out, torch.tensor(math.nan), lr=0.1, skipped=True, scale=lambda: 2.0)
    journal.record(2, output(alignment=1.0), torch.tensor(1.0), lr=0.1, scale=lambda: 2.0)
    journal.close()
    first, second = run.lines()
    assert (first["step"], first["skipped"], first["scale"]) == (1, 1, 2.0)
    assert "loss" not in first
    assert (second["skipped"], second["loss"]) == (0, 1.0)


def test_the_number_of_steps_that_overflowed_is_in_a_checkpoint(run):
    journal = open_journal(run, log_every=3)
    nan = torch.tensor(math.nan)
    journal.record(1, output(alignment=1.0), nan, lr=0.1, skipped=True, scale=lambda: 2.0)
    pending = journal.state()["pending"]
    journal.close()
    assert pending.keys() == {"skipped"}
    assert pending["skipped"].tolist() == [1.0]


def test_a_resumed_journal_checks_earlier_lines_without_keeping_them(run, monkeypatch):
    journal = open_journal(run, log_every=1)
    record(journal, *map(float, range(1, 11)))
    journal.record_probe({"knn": 0.5})
    journal.close()
    checked = []
    monkeypatch.setattr(
        module.Watch, "__call__", lambda self, line: checked.append(line["step"]) or []
    )
    resumed = open_journal(run, start=10)
    assert checked == [*range(1, 11), 10]
    assert resumed._last["step"] == 10
    assert resumed._probe == {"knn": 0.5}
    kept = [value for value in vars(resumed).values() if isinstance(value, list)]
    assert kept == []
    resumed.close()
