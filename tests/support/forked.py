"""Run scripts in processes that need not import torch and timm, which takes seconds."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["torch", "timm", "sklearn.datasets", "smi.training.pretrain", "smi.evaluation.evaluate"]
)


class Forked:
    """Run a script in a process of its own, with the methods of `subprocess.Popen`.

    It is forked from one that has imported torch and timm, which saves seconds of each process. So
    variables that Python or libraries read when they start (PYTHONPATH) have no effect.
    leads: let it lead a group of processes, as a command in a terminal does.
    enter: called in the process before all else.
    """

    def __init__(
        self,
        script: str | Path,
        *arguments: object,
        env: Mapping[str, str],
        cwd: Path | None = None,
        leads: bool = False,
        enter: Callable[[], None] | None = None,
    ):
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        for path in self._outputs:
            path.touch()
        words = [str(word) for word in (script, *arguments)]
        self._process = SERVER.Process(
            target=_run, args=(words, dict(env), cwd, self._outputs, leads, enter)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.join(timeout)
        output, errors = (path.read_text() for path in self._outputs)
        if self.returncode is None:  # `kill` removes the outputs, so the error quotes their ends
            quoted = f"a forked process, which printed\n{output[-2000:]}\n{errors[-2000:]}"
            raise subprocess.TimeoutExpired(quoted, timeout or 0)
        return output, errors

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def _run(
    words: list[str],
    environment: dict[str, str],
    cwd: Path | None,
    outputs: list[Path],
    leads: bool,
    enter: Callable[[], None] | None,
) -> None:
    """Become the process: take its environment, its arguments and its streams."""
    if leads:
        os.setsid()
    if enter is not None:
        enter()
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    if cwd is not None:
        os.chdir(cwd)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if environment.get("PYTHONWARNINGS") == "error":  # Python has read it before
        warnings.simplefilter("error")
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))  # as Python does
    runpy.run_path(words[0], run_name="__main__")
