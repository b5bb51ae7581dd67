import json
import math
from pathlib import Path

import pytest
import yaml

from smi.errors import UserError
from smi.health.diagnosis import print_doctor

CONFIG = {
    "method": {"name": "SMI", "widths": [4096, 4096, 4096], "redundancy_weight": 0.01},
    "encoder": "resnet18",
    "data": "cifar10",
    "batch_size": 512,
    "epochs": 20,
}
RUN = {
    "feature_dim": 512,
    "embedding_dim": 4096,
    "world_size": 2,
    "batch_per_device": 256,
    "num_images": 50000,
    "status": "running",
}


def line(i: int, **other: float) -> dict:
    p = i / 100
    return {
        "step": 10 * i,
        "epoch": 20 * p,
        "loss": 40 + 80 * math.exp(-5 * p),
        "gradient_norm": 3.0,
        "feature_std": 0.02,
        "effective_rank": 4 + 60 * p,
        "anticorrelated": 0.01,
        "lr": 1e-3,
        "timing": {"images_per_second": 900.0, "waiting": 0.02, "peak_memory_mb": 800.0},
        **other,
    }


@pytest.fixture
def run(tmp_path):
    def make(lines, tail=""):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
        (tmp_path / "run.json").write_text(json.dumps(RUN))
        (tmp_path / "metrics.jsonl").write_text(
            "".join(json.dumps(entry) + "\n" for entry in lines) + tail
        )
        return tmp_path

    return make


def printed(folder, capsys, as_json=False):
    print_doctor(folder, as_json=as_json)
    return capsys.readouterr().out


def test_a_healthy_run(run, capsys):
    text = printed(run([line(i) for i in range(1, 101)]), capsys)
    assert text.startswith(
        "This run looks healthy.\n  SMI, step 1,000, epoch 20 of 20, running\n\nok "
    )
    assert "warning" not in text
    assert "for SMI with N = 256, K = 4096 the least is 3.523, random embeddings give" in text


def test_trouble_comes_with_evidence_and_advice(run, capsys):
    text = printed(run([line(i, timing={"waiting": 0.7}) for i in range(1, 101)]), capsys)
    assert text.startswith("This run needs attention: one thing is wrong.\n")
    first = text.split("\n\n")[1].splitlines()
    assert first[0] == "warning  The machine waits for images."
    assert "70%" in first[1]
    assert first[2].startswith("         What to do: ")


def test_a_broken_run_as_json(run, capsys):
    lines = [line(i) for i in range(1, 50)] + [line(50, loss=math.nan)]
    found = json.loads(printed(run(lines), capsys, as_json=True))
    assert found["verdict"].startswith("This run is broken")
    assert found["findings"][0]["kind"] == "non_finite"
    assert found["findings"][0]["level"] == "stop"
    assert found["steps"] == 500
    assert found["expected_range"][0] == pytest.approx(3.523, abs=1e-3)


def test_a_line_that_a_crash_cut_short_is_ignored(run, capsys):
    lines = [line(i) for i in range(1, 101)]
    whole = printed(run(lines), capsys)
    for tail in (
        '{"step": 1010, "loss": 4',
        '{"step": 1010, "lo{"step": 1010, "loss": 40.0}\n',
        "[1, 2]\n",
        "\n",
        "\x00\x00",
    ):
        assert printed(run(lines, tail), capsys) == whole


@pytest.mark.parametrize("num_lines", [0, 3])
def test_too_early(run, capsys, num_lines):
    assert printed(run([line(i) for i in range(1, num_lines + 1)]), capsys).startswith(
        f"It is too early to say: there are {num_lines} lines"
    )


def test_steps_and_epochs_that_are_no_numbers(run, capsys):
    lines = [line(i) for i in range(1, 101)] + [{"step": math.inf, "epoch": math.nan, "loss": 1.0}]
    assert "looks healthy" in json.loads(printed(run(lines), capsys, as_json=True))["verdict"]


def test_without_metrics_or_details(run, capsys):
    folder = run([])
    (folder / "metrics.jsonl").unlink()
    (folder / "run.json").write_text("{}")
    (folder / "config.yaml").write_text("method: SMI\n")
    assert "too early" in printed(folder, capsys)
    assert json.loads(printed(folder, capsys, as_json=True))["expected_range"] is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.yaml", None, "is not the folder of a run: it has no config.yaml"),
        ("run.json", None, "is not the folder of a run: it has no run.json"),
        ("config.yaml", "a: [", "is not YAML"),
        ("config.yaml", "- 1", "names no method"),
        ("run.json", "{", "is not JSON"),
        ("run.json", "[]", "does not describe a run"),
    ],
)
def test_a_folder_that_is_no_run_is_one_sentence(run, name, content, words):
    folder = run([line(1)])
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=words) as error:
        print_doctor(folder, as_json=False)
    assert "\n" not in str(error.value)


def test_no_folder(tmp_path: Path):
    with pytest.raises(UserError, match="there is no folder"):
        print_doctor(tmp_path / "nothing", as_json=True)
