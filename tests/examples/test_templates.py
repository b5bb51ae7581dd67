"""Check the templates for clusters: they parse, fit the tools' formats, and name what exists."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from smi.cli import parser, split_settings
from smi.training.signals import START_AGAIN

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "examples" / "slurm" / "pretrain.sbatch"
PYTORCHJOB = ROOT / "examples" / "kubernetes" / "pytorchjob.yaml"
SKYPILOT = ROOT / "examples" / "skypilot" / "pretrain.yaml"
DOCKERFILE = ROOT / "Dockerfile"

# Fields as the documentation of each tool lists them; only those that a template may need.
REPLICA = {"replicas", "restartPolicy", "template"}
ELASTIC = {"rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone", "metrics"}
ELASTIC |= {"minReplicas", "maxReplicas", "maxRestarts"}
RUN_POLICY = {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"}
RUN_POLICY |= {"schedulingPolicy", "suspend"}
TASK = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup"}
TASK |= {"run", "config", "service"}
RESOURCES = {"infra", "accelerators", "cpus", "memory", "instance_type", "use_spot", "disk_size"}
RESOURCES |= {"disk_tier", "network_tier", "image_id", "ports", "labels", "job_recovery", "any_of"}
RECOVERY = {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}
SBATCH_OPTIONS = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time"}
SBATCH_OPTIONS |= {"signal", "requeue", "open-mode", "output"}
INSTRUCTIONS = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "CMD"}


def shell_words(text: str) -> list[str]:
    """Return the words of the torchrun command in a script."""
    line = re.search(r"torchrun .*", text.replace("\\\n", " "))
    return shlex.split(line[0])[1:]


def kubernetes_words() -> list[str]:
    worker = yaml.safe_load(PYTORCHJOB.read_text())["spec"]["pytorchReplicaSpecs"]["Worker"]
    program, *words = worker["template"]["spec"]["containers"][0]["command"]
    assert program == "torchrun"
    return words


COMMANDS = {
    "slurm": lambda: shell_words(re.sub(r"^#.*$", "", SBATCH.read_text(), flags=re.MULTILINE)),
    "kubernetes": kubernetes_words,
    "skypilot": lambda: shell_words(yaml.safe_load(SKYPILOT.read_text())["run"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_exist(name):
    """Variables of the shell stand for numbers and paths."""
    words = [re.sub(r"\$\{?\w+(:-\d+)?\}?", "1", word) for word in COMMANDS[name]()]
    words = words[: words.index("&")] if "&" in words else words
    launch = get_args_parser().parse_args(words)
    assert launch.module
    assert launch.training_script == "smi"
    rest, settings = split_settings(launch.training_script_args, parser())
    arguments, unknown = parser().parse_known_args(rest)
    assert not unknown
    assert not settings
    assert arguments.command.name == "pretrain"
    assert arguments.out is not None


# ------------------------------------------------------------------------------------------- SLURM


def test_the_options_of_sbatch():
    options = re.findall(r"^#SBATCH --([a-z-]+)", SBATCH.read_text(), re.MULTILINE)
    assert set(options) == SBATCH_OPTIONS


def test_the_script_of_slurm_is_correct_bash():
    subprocess.run(["bash", "-n", SBATCH], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, "--shell=bash", SBATCH], check=True)


@pytest.fixture
def slurm(tmp_path):
    """Return a function that starts the script with commands that only note how they are called."""

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def start(training: str) -> "subprocess.Popen[str]":
        write("torchrun", training)
        write("srun", 'exec "$@"')
        write("scontrol", f'echo "$@" >> {tmp_path}/called; [ "$1" = show ] && echo node-1')
        variables = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node", "SLURM_JOB_NUM_NODES": "2"}
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.Popen(["bash", SBATCH], env=os.environ | variables | path, text=True)

    return start, tmp_path


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_slurm_starts_a_stopped_job_again(number, slurm):
    start, folder = slurm
    saving = f"trap 'sleep 0.2; touch {folder}/saved; exit 1' TERM; touch {folder}/started"
    process = start(f"{saving}; while true; do sleep 0.05; done")
    while not (folder / "started").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=60) == 1
    assert (folder / "saved").exists()  # the script waits for the checkpoint
    assert (folder / "called").read_text().splitlines() == ["show hostnames node", "requeue 42"]


@pytest.mark.parametrize(
    ("code", "again"), [(0, False), (1, False), (2, False), (START_AGAIN, True)]
)
def test_slurm_starts_no_finished_or_failed_job_again(code, again, slurm):
    start, folder = slurm
    assert start(f"exit {code}").wait(timeout=60) == code
    assert ("requeue 42" in (folder / "called").read_text()) == again


# -------------------------------------------------------------------- Kubernetes, SkyPilot, Docker


def test_the_job_of_kubernetes():
    job = yaml.safe_load(PYTORCHJOB.read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    spec = job["spec"]
    assert spec.keys() <= {"nprocPerNode", "runPolicy", "elasticPolicy", "pytorchReplicaSpecs"}
    assert isinstance(spec["nprocPerNode"], str)
    assert spec["runPolicy"].keys() <= RUN_POLICY
    assert spec["elasticPolicy"].keys() <= ELASTIC
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert worker.keys() <= REPLICA
    assert worker["restartPolicy"] in {"Always", "OnFailure", "Never", "ExitCode"}
    limits = spec["elasticPolicy"]
    assert limits["minReplicas"] <= worker["replicas"] <= limits["maxReplicas"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"  # the operator looks for this name
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    variables = {item["name"]: item["value"] for item in container["env"]}
    assert all(isinstance(value, str) for value in variables.values())
    waits = int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert waits < pod["terminationGracePeriodSeconds"]


def test_the_task_of_skypilot():
    task = yaml.safe_load(SKYPILOT.read_text())
    assert task.keys() <= TASK
    assert task["resources"].keys() <= RESOURCES
    assert task["resources"]["job_recovery"].keys() <= RECOVERY
    (mount,) = task["file_mounts"].values()
    assert mount["mode"] in {"MOUNT", "COPY", "MOUNT_CACHED"}
    for script in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[script], text=True, check=True)


def test_the_dockerfile_copies_what_the_package_needs():
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line]
    assert {words[0] for words in lines} == INSTRUCTIONS
    copied = [name for words in lines if words[0] == "COPY" for name in words[1:-1]]
    assert all((ROOT / name).exists() for name in copied)
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert kept == ["*", *(f"!{name}" for name in copied)]
