"""Start two processes that train together, as torchrun does."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from support.digits import environment
from support.forked import Forked

MARK = "----- end of a command -----"


def start_two(script: str, *arguments: object) -> list[Forked]:
    """Run a script as rank 0 and rank 1 of one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return [
        Forked(script, *arguments, env=environment(**shared, RANK=str(rank), LOCAL_RANK=str(rank)))
        for rank in range(2)
    ]


def finish(processes: list[Forked]) -> list[tuple[int | None, str, str]]:
    """Return the exit code, output and errors of each process; none may wait for the other."""
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, *output) for process, output in zip(processes, outputs, strict=True)
    ]


def run_together(*commands: list[str]) -> list["subprocess.CompletedProcess[str]"]:
    """Run commands of `smi` one after another in two processes; return what rank 0 says of each."""
    lists = [list(map(str, words)) for words in commands]
    (code, output, errors), _ = finish(start_two(__file__, json.dumps(lists)))
    assert code == 0, errors
    said = zip(commands, output.split(MARK), errors.split(MARK), strict=False)
    return [subprocess.CompletedProcess(words, 0, *streams) for words, *streams in said]


def _run_all(commands: list[list[str]]) -> None:
    from smi.cli import main
    from smi.distributed import processes

    with processes(torch.device("cpu")):
        for words in commands:
            with patch.object(sys, "argv", ["smi", *words]):
                main()
            for stream in (sys.stdout, sys.stderr):
                print(MARK, file=stream, flush=True)


def work_together(script: str, folder: Path) -> list[dict]:
    """Run a script as two ranks; return what each has saved in the folder (`join_and_work`)."""
    shared = environment(MASTER_ADDR="127.0.0.1", PYTHONWARNINGS="error")
    ranks = [Forked(script, folder, rank, env=shared) for rank in range(2)]
    for code, _, errors in finish(ranks):
        assert code == 0, errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def join_and_work(work: Callable[[int, Path], None]) -> None:
    """Join the other rank and call `work(rank, folder)`: the main part of such a script."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    store = dist.FileStore(str(folder / "store"), 2)
    timeout = timedelta(seconds=200)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    work(rank, folder)
    dist.destroy_process_group()


def is_rank_0() -> bool:
    """Return whether this process is rank 0, before and after it joins the group."""
    return os.environ["RANK"] == "0"


if __name__ == "__main__":
    _run_all(json.loads(sys.argv[1]))
