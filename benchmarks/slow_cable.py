"""Join two network namespaces by a slow cable: a delay, and bits per second.

with two_machines(folder, slow_cable(delay=0.01, rate=100e6)) as (a, b): …

Each namespace gets a TAP interface. A process reads the frames of one and writes them to the other
when they would have arrived. Linux can do this itself (tc netem), but not every kernel has it.
"""

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # of <linux/if_tun.h>
CLONE_NEWNET = 0x40000000  # of <linux/sched.h>
MTU = 9000  # bytes of a frame; fewer frames cost less time of the processor
MAX_FRAMES = 1000  # on their way; more are lost, as in netem


def slow_cable(delay: float, rate: float):
    """Return a cable for `two_machines`. delay: seconds each way. rate: bits per second."""

    @contextlib.contextmanager
    def join(a, b) -> Iterator[None]:
        from support.two_machines import CABLE

        words = [CABLE, a.namespace, b.namespace, str(delay), str(rate)]
        process = subprocess.Popen(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()  # both interfaces are there
            for machine in (a, b):
                machine.run("ip", "link", "set", CABLE, "mtu", str(MTU))
            yield
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    return join


def open_interface(name: str, namespace: str) -> int:
    """Make a TAP interface in a namespace, and return the file of its frames."""
    with open(f"/var/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    frames = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(frames, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return frames


class Direction:
    """Carry frames from one interface to another, each when it would have arrived."""

    def __init__(self, source: int, target: int, delay: float, rate: float):
        self._source = source
        self._target = target
        self._delay = delay
        self._seconds_per_byte = 8 / rate
        self._frames: deque[tuple[float, bytes]] = deque()
        self._waiting = threading.Semaphore(0)
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        free_at = 0.0  # when the sender is free again
        while True:
            frame = os.read(self._source, MTU + 100)
            if len(self._frames) >= MAX_FRAMES:
                continue
            free_at = max(time.monotonic(), free_at) + len(frame) * self._seconds_per_byte
            self._frames.append((free_at + self._delay, frame))
            self._waiting.release()

    def _write(self) -> None:
        while True:
            self._waiting.acquire()
            arrives_at, frame = self._frames.popleft()
            time.sleep(max(0.0, arrives_at - time.monotonic()))
            with contextlib.suppress(OSError):  # the interface is down
                os.write(self._target, frame)


if __name__ == "__main__":
    name, *namespaces, delay, rate = sys.argv[1:]
    ends = [open_interface(name, namespace) for namespace in namespaces]
    for source, target in (ends, reversed(ends)):
        Direction(source, target, float(delay), float(rate))
    print("ready", flush=True)
    threading.Event().wait()
