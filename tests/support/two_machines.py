"""Make two machines of this one: two network namespaces, joined by a cable, each with a disk.

with two_machines(folder) as (a, b):
    process = a.start("smi", "pretrain", …)

Both see their disk at the same path, `folder / "disk"`, and not that of the other: it is
`folder / "disk-a"` and `folder / "disk-b"` outside. Needs root.
"""

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.digits import environment
from support.forked import Forked

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x20000, 0x4000000, 0x40000000  # of Linux
CABLE = "cable"  # name of the network interface
ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
ENTER = """
mount --bind "$1" "$2" && mount --bind "$3" /etc/hosts && hostname "$4" && cd "$2" && shift 4 &&
exec "$@"
"""


@dataclass(frozen=True)
class Machine:
    """A network namespace with an address, a host name and a disk of its own."""

    name: str
    namespace: str
    address: str
    folder: Path

    @property
    def disk(self) -> Path:
        """Return the disk, as it is seen from outside."""
        return self.folder / f"disk-{self.name}"

    def start(self, *words: object, **more: str) -> "subprocess.Popen[str]":
        """Start a command on the disk of this machine; its process id is that of the command."""
        disk = self.folder / "disk"
        variables = {"HOME": str(disk), "SMI_CACHE": str(disk / "cache")}
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts"]
        return subprocess.Popen(
            [*enter, "sh", "-c", ENTER, "sh", self.disk, disk, self.folder / "hosts", self.name]
            + [str(word) for word in words],
            env=environment(**variables, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fork(self, script: str | Path, *arguments: object, **more: str) -> Forked:
        """Run a script as `start` does, in a process forked from one that has imported torch."""
        disk = self.folder / "disk"
        variables = {"HOME": str(disk), "SMI_CACHE": str(disk / "cache")}
        enter = functools.partial(_enter, self)
        return Forked(
            script, *arguments, env=environment(**variables, **more), cwd=disk, enter=enter
        )

    def kill(self) -> None:
        """Kill all processes of this machine at once."""
        for number in run("ip", "netns", "pids", self.namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)

    def sent_bytes(self) -> int:
        """Return the bytes that have left this machine, with the headers of all packets."""
        return int(self.run("cat", f"/sys/class/net/{CABLE}/statistics/tx_bytes"))

    def run(self, *words: str) -> str:
        """Run a command in the network of this machine."""
        return run("ip", "netns", "exec", self.namespace, *words)


def _enter(machine: Machine) -> None:
    """Move this process to a machine, as `ip netns exec` and `unshare` do with a command."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{machine.namespace}") as namespace:
        failed = libc.setns(namespace.fileno(), CLONE_NEWNET)
    if failed or libc.unshare(CLONE_NEWNS | CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "the process cannot enter its machine")
    run("mount", "--make-rprivate", "/")
    run("mount", "--bind", str(machine.disk), str(machine.folder / "disk"))
    run("mount", "--bind", str(machine.folder / "hosts"), "/etc/hosts")
    socket.sethostname(machine.name)


@contextlib.contextmanager
def fast_cable(a: Machine, b: Machine) -> Iterator[None]:
    """Join two machines as fast as this one can."""
    ends = ["netns", a.namespace, "type", "veth", "peer", "name", CABLE, "netns", b.namespace]
    run("ip", "link", "add", CABLE, *ends)
    yield


Cable = Callable[[Machine, Machine], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def two_machines(folder: Path, cable: Cable = fast_cable) -> Iterator[tuple[Machine, Machine]]:
    """Join two machines by a cable, and remove them with all of their processes at the end."""
    machines = [
        Machine(name, f"smi-{os.getpid()}-{name}", address, folder)
        for name, address in ADDRESSES.items()
    ]
    (folder / "disk").mkdir(exist_ok=True)
    names = {"localhost": "127.0.0.1"} | ADDRESSES
    (folder / "hosts").write_text("".join(f"{names[name]} {name}\n" for name in names))
    with contextlib.ExitStack() as stack:
        for machine in machines:
            machine.disk.mkdir(exist_ok=True)
            run("ip", "netns", "add", machine.namespace)
            stack.callback(run, "ip", "netns", "del", machine.namespace)
            stack.callback(machine.kill)
        a, b = machines
        stack.enter_context(cable(a, b))
        for machine in machines:
            connect(machine)
        yield a, b


def connect(machine: Machine) -> None:
    """Give the interfaces of a machine their addresses."""
    machine.run("ip", "address", "add", f"{machine.address}/24", "dev", CABLE)
    for name in ("lo", CABLE):
        machine.run("ip", "link", "set", name, "up")


@functools.cache
def why_not() -> str:
    """Return why there can be no machines here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "unshare") if shutil.which(name) is None]:
        return f"there is no {missing[0]} here"
    name = f"smi-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return "network namespaces cannot be made here"
    run("ip", "netns", "del", name)
    return ""


def run(*words: str) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
