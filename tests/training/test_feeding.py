"""Feed the loop: the same steps with and without a thread, its end, and the order on CUDA."""

import contextlib
import itertools
import threading

import numpy as np
import pytest
import torch

from smi.data import Batch, Batches
from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.training import feeding
from smi.training.feeding import NUM_BUFFERS, Feeder, ViewsAhead
from smi.views import Views, policy

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def views():
    made = Views(policy("digits"))
    if not made.has_kernel:
        pytest.skip("no C++ compiler here")
    return made


def noise_batches() -> Batches:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    return Batches(ArrayStore(ArraySet("noise", "pretrain", (pixels,))), 6, seed=3)


@pytest.fixture
def batches() -> Batches:
    return noise_batches()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "smi-views"]


@pytest.mark.parametrize("start", [0, 4])
def test_the_thread_gives_the_same_steps_up_to_rounding(views, batches, start):
    """Whole grey levels are copied to the device, so views differ by half a level at most."""
    with (
        Feeder(noise_batches(), views, CPU, start) as plain,
        Feeder(batches, views, CPU, start, ahead=True) as ahead,
    ):
        assert threads() == ["smi-views"]
        for step in range(start, start + 2 * NUM_BUFFERS + 1):
            expected, x = next(plain)
            batch, y = next(ahead)
            assert torch.equal(batch.index, expected.index)
            assert torch.equal(batch.index, noise_batches().index(step))
            assert batch.seed == expected.seed
            assert len(x) == len(y) == 2
            for a, b in zip(x, y, strict=True):
                assert a.is_contiguous(memory_format=torch.channels_last)
                assert b.is_contiguous(memory_format=torch.channels_last)
                level = 1 / (255 * torch.tensor(views.policy.std)[:, None, None])
                assert ((a - b).abs() <= 0.51 * level).all()
    assert threads() == []


def test_a_step_is_not_changed_by_later_ones(views, batches):
    with Feeder(batches, views, CPU, ahead=True) as feeder:
        _, first = next(feeder)
        copies = [view.clone() for view in first]
        for _ in range(2 * NUM_BUFFERS):
            next(feeder)
    assert all(torch.equal(a, b) for a, b in zip(first, copies, strict=True))


@pytest.mark.parametrize(
    ("device", "has_kernel", "expected"),
    [("cpu", True, False), ("cuda", True, True), ("mps", True, True), ("cuda", False, False)],
)
def test_the_device_and_the_kernel_decide(device, has_kernel, expected, batches, monkeypatch):
    started = []
    monkeypatch.setattr(feeding, "ViewsAhead", lambda *arguments: started.append(arguments[2]))
    chosen = type("Views", (), {"has_kernel": has_kernel})
    Feeder(batches, chosen, torch.device(device))
    assert started == ([torch.device(device)] if expected else [])


def test_only_reading_counts_as_waiting_on_a_cpu(views, batches):
    entered = []

    class Waiting:
        def __enter__(self):
            entered.append(1)

        def __exit__(self, *error):
            entered.append(0)

    class Watched:
        has_kernel = True

        def __call__(self, images, generator):
            assert entered == [1, 0]  # the block is left
            return views(images, generator)

    with Feeder(batches, Watched(), CPU, waiting=Waiting) as feeder:
        next(feeder)
    assert entered == [1, 0]


def test_an_error_of_the_thread_reaches_the_loop(views, batches, monkeypatch):
    index = batches.index

    def fail(step):
        if step == 5:
            raise OSError("the disk is gone")
        return index(step)

    monkeypatch.setattr(batches, "index", fail)
    with Feeder(batches, views, CPU, ahead=True) as feeder:
        with pytest.raises(OSError, match="the disk is gone"):
            list(itertools.islice(feeder, 10))
        with pytest.raises(OSError, match="the disk is gone"):
            next(feeder)
    assert threads() == []


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_leaving_early_leaves_no_thread(taken, views, batches):
    with contextlib.suppress(KeyboardInterrupt), Feeder(batches, views, CPU, ahead=True) as feeder:
        for _ in range(taken):
            next(feeder)
        raise KeyboardInterrupt
    assert threads() == []


def test_views_use_the_cores_of_this_process_not_those_of_torch(batches, monkeypatch):
    """torchrun sets OMP_NUM_THREADS=1; the thread of the loop keeps its own number."""
    seen = []

    class Counted:
        has_kernel = True

        def buffers(self, n, dtype, pinned):
            return []

        def fill(self, buffers, images, generator):
            seen.append(torch.get_num_threads())

        def normalise(self, pixels):
            return pixels

    monkeypatch.setattr(feeding, "num_cores", lambda: 5)
    before = torch.get_num_threads()
    with Feeder(batches, Counted(), CPU, ahead=True) as feeder:
        next(feeder)
        assert torch.get_num_threads() == before
    assert seen[0] == 5


# ------------------------------------------------------------------------------------------- CUDA


class Device:
    """Stand in for CUDA: copies are carried out when something waits for them, not before."""

    def __init__(self):
        self.log = []  # what was called, and in which thread
        self.pending = []

    def note(self, *words):
        self.log.append((threading.current_thread().name, *words))

    def flush(self):
        while self.pending:
            self.pending.pop(0)()


class Host:
    """A tensor in pinned memory that holds one number."""

    def __init__(self, device, name):
        self.device = device
        self.name = name
        self.value = None

    def pin_memory(self):
        return self

    def to(self, target, non_blocking=False):
        assert target.type == "cuda"
        assert non_blocking
        copy = OnDevice(self.device, self.name)
        self.device.note("copy", self.name)
        self.device.pending.append(lambda: setattr(copy, "value", self.value))
        return copy


class OnDevice:
    def __init__(self, device, name):
        self.device = device
        self.name = name

    def record_stream(self, stream):
        self.device.note("record_stream", self.name, stream.name)


class Stream:
    def __init__(self, device, name):
        self.device = device
        self.name = name

    def wait_event(self, event):
        self.device.note("wait_event", self.name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Event:
    def __init__(self, device):
        self.device = device

    def record(self, stream):
        self.device.note("record", stream.name)

    def synchronize(self):
        self.device.note("synchronize")
        self.device.flush()


class NumberedViews:
    """Fill buffers with the number of the step."""

    def __init__(self, device):
        self.device = device
        self.made = 0
        self.filled = 0

    def buffers(self, n, dtype, pinned):
        assert dtype == torch.uint8
        assert pinned
        self.made += 1
        return [Host(self.device, f"{self.made}.{view}") for view in range(2)]

    def fill(self, buffers, images, generator):
        for buffer in buffers:
            self.device.note("fill", buffer.name)
            buffer.value = self.filled
        self.filled += 1

    def normalise(self, pixels):
        self.device.note("normalise")
        return pixels


@pytest.fixture
def cuda(monkeypatch):
    device = Device()
    current = Stream(device, "network")
    monkeypatch.setattr(torch.cuda, "Stream", lambda target: Stream(device, "copies"))
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: Event(device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda target: current)
    return device


def numbered_batches(device):
    step = 0
    while True:
        index = Host(device, "index")
        index.value = step
        yield Batch(torch.empty(0), index, step)
        step += 1


def test_a_buffer_is_filled_again_only_after_its_copy(cuda):
    views = NumberedViews(cuda)
    ahead = ViewsAhead(numbered_batches(cuda), views, torch.device("cuda", 0), 4)
    steps = [ahead.take() for _ in range(3 * NUM_BUFFERS)]
    ahead.close()
    cuda.flush()
    for step, (batch, pixels) in enumerate(steps):
        assert batch.index.value == step
        assert [view.value for view in pixels] == [step, step]  # not those of a later step
    # Only the thread waits for copies, and only for those of buffers that it used before.
    waits = [entry[0] for entry in cuda.log if entry[1] == "synchronize"]
    assert set(waits) == {"smi-views"}
    assert len(waits) == views.filled - NUM_BUFFERS


def test_the_stream_of_the_network_waits_before_it_uses_a_copy(cuda):
    ahead = ViewsAhead(numbered_batches(cuda), NumberedViews(cuda), torch.device("cuda", 0), 4)
    ahead.take()
    ahead.close()
    thread = [entry[1:] for entry in cuda.log if entry[0] == "smi-views"]
    assert thread[:6] == [
        ("fill", "1.0"),
        ("fill", "1.1"),
        ("copy", "index"),
        ("copy", "1.0"),
        ("copy", "1.1"),
        ("record", "copies"),
    ]
    main = [entry[1:] for entry in cuda.log if entry[0] != "smi-views"]
    assert main == [
        ("wait_event", "network"),
        ("record_stream", "index", "network"),
        ("record_stream", "1.0", "network"),
        ("record_stream", "1.1", "network"),
        ("normalise",),
    ]
