"""Feed the training loop: the batch of each step and its views, on the device.

A GPU should do nothing but the network. If the compiled kernel is there, a thread makes the views
of the next steps on the CPU, as uint8, and they are copied to the GPU while it computes. Without
the kernel the GPU makes its views itself. On a CPU the views of a step are made just before it:
a thread would take the cores from the network.
"""

import itertools
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from queue import SimpleQueue
from typing import Self

import torch
from torch import Tensor

from smi.data import Batch, Batches
from smi.data.decoder_pool import num_cores
from smi.views import Views

NUM_BUFFERS = 3  # steps: one being made, one being copied, one ready

Step = tuple[Batch, list[Tensor]]  # with index and views on the device


class Feeder:
    """Yield the batch and the views of every step from `start` on, without end.

    with Feeder(batches, views, device, start) as feeder:
        batch, x = next(feeder)

    Views are normalised float32 [N, 3, S, S], channels last. Leaving the block stops the thread.

    waiting: makes a context whose time counts as waiting for data.
    ahead: make views in a thread; None decides by the device.
    """

    def __init__(
        self,
        batches: Batches,
        views: Views,
        device: torch.device,
        start: int = 0,
        *,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        ahead: bool | None = None,
    ):
        self._batches = batches.starting_at(start)
        self._views = views
        self._device = device
        self._waiting = waiting
        if ahead is None:
            ahead = device.type != "cpu" and views.has_kernel
        self._ahead = (
            ViewsAhead(self._batches, views, device, batches.batch_size) if ahead else None
        )

    def __next__(self) -> Step:
        if self._ahead is not None:
            with self._waiting():
                return self._ahead.take()
        with self._waiting():
            batch = next(self._batches).to(self._device)
        views = self._views(batch.images, batch.generator())
        return batch, [view.to(memory_format=torch.channels_last) for view in views]

    def __iter__(self) -> Self:
        return self

    def close(self) -> None:
        """Stop the thread and finish the reading of images that was started."""
        if self._ahead is not None:
            self._ahead.close()
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Buffers:
    """Hold the views of one step on the CPU until they are copied to the device."""

    def __init__(self, views: Views, n: int, device: torch.device):
        self.pixels = views.buffers(n, dtype=torch.uint8, pinned=device.type == "cuda")
        self.copied: torch.cuda.Event | None = None  # follows the last copy on CUDA

    def wait(self) -> None:
        """Wait until the last copy has read the buffers, so that they can be filled again."""
        if self.copied is not None:
            self.copied.synchronize()


class ViewsAhead:
    """Make the views of the next steps in a thread.

    On CUDA the thread also starts the copies, on a stream of their own, from pinned memory. The
    stream of the network waits for them, the host does not. On other devices the caller copies: the
    memory is free again when its copy returns.
    """

    def __init__(
        self,
        batches: Generator[Batch, None, None],
        views: Views,
        device: torch.device,
        batch_size: int,
    ):
        self._batches = batches
        self._views = views
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ring = [Buffers(views, batch_size, device) for _ in range(NUM_BUFFERS)]
        self._free = threading.Semaphore(NUM_BUFFERS)  # buffers that `take` has returned
        self._ready: SimpleQueue[tuple[Batch, list[Tensor], Buffers] | BaseException] = (
            SimpleQueue()
        )
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="smi-views", daemon=True)
        self._thread.start()

    def take(self) -> Step:
        """Return the next step; raise the error of the thread if it failed."""
        step = self._ready.get()
        if isinstance(step, BaseException):
            self._ready.put(step)  # for every later call
            raise step
        batch, pixels, buffers = step
        if buffers.copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(buffers.copied)
            for tensor in (batch.index, *pixels):
                tensor.record_stream(stream)  # its memory belongs to the stream of the copies
        else:
            batch = replace(batch, index=batch.index.to(self._device))
            pixels = [view.to(self._device) for view in pixels]
        x = self._views.normalise(pixels)
        self._free.release()
        return batch, x

    def close(self) -> None:
        """Stop the thread."""
        self._stopping = True
        self._free.release()
        self._thread.join()

    def _work(self) -> None:
        # torchrun sets OMP_NUM_THREADS=1. The network, on its device, needs no core.
        torch.set_num_threads(num_cores())
        try:
            for buffers in itertools.cycle(self._ring):
                self._free.acquire()
                if self._stopping:
                    return
                batch = next(self._batches)
                buffers.wait()
                self._views.fill(buffers.pixels, batch.images, batch.generator())
                self._ready.put(self._start_copy(batch, buffers))
        except BaseException as error:
            self._ready.put(error)

    def _start_copy(self, batch: Batch, buffers: Buffers) -> tuple[Batch, list[Tensor], Buffers]:
        if self._stream is None:
            return batch, buffers.pixels, buffers
        with torch.cuda.stream(self._stream):
            index = batch.index.pin_memory().to(self._device, non_blocking=True)
            pixels = [view.to(self._device, non_blocking=True) for view in buffers.pixels]
            # The thread sleeps while it waits for a blocking event.
            buffers.copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            buffers.copied.record(self._stream)
        return replace(batch, index=index), pixels, buffers
