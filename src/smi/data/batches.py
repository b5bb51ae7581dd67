"""Choose the images of every step: a pure function of (seed, step, rank, world size).

The order of an epoch is drawn from (seed, epoch). It is cut into steps of W x N images, and each
step into the N images of each rank. Images left over at the end of an epoch are dropped. The ranks
of a step therefore never share an image, training can start at any step, and no state is saved. A
step has the same images for every W.

N is the batch size, n the number of images in the store, W the number of processes.
"""

import contextlib
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from smi.data.pictures import Pictures
from smi.data.store import Reading, Store
from smi.device import upload
from smi.errors import UserError
from smi.seeds import derive

NUM_BATCHES_AHEAD = 2  # batches that are read while one is used


@dataclass(frozen=True)
class Batch:
    """Hold images and their indices. Labels are left out on purpose."""

    images: Tensor | Pictures  # uint8 [N, 3, S, S], or images of different shapes
    index: Tensor  # int64 [N], into the store
    seed: int  # for the random draws of this batch, such as its views

    def generator(self) -> torch.Generator:
        """Return a new generator on the CPU, the same at every call and for every device."""
        return torch.Generator().manual_seed(self.seed)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch with its tensors on another device."""
        return replace(
            self,
            images=(
                self.images.to(device)
                if isinstance(self.images, Pictures)
                else upload(self.images, device)
            ),
            index=upload(self.index, device),
        )


class Batches:
    """Serve the batches of a store, from any step.

    for batch in Batches(store, 256, seed=0).starting_at(step): ...
    """

    def __init__(
        self, store: Store, batch_size: int, *, seed: int, rank: int = 0, world_size: int = 1
    ):
        if batch_size < 1:
            raise UserError(f"the batch size must be 1 image or more, not {batch_size}")
        if not 0 <= rank < world_size:
            raise UserError(f"rank {rank} is not one of {world_size} processes")
        self.store = store
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self._order = store.order(batch_size * world_size, seed)
        self.steps_per_epoch = self._order.steps_per_epoch
        if self.steps_per_epoch == 0:
            processes = f" on each of {world_size} processes" if world_size > 1 else ""
            raise UserError(
                f"{store.name} has {len(store):,} images, fewer than one batch of "
                f"{batch_size:,}{processes}: make the batch smaller"
            )

    def index(self, step: int) -> Tensor:
        """Return the images of the store that this rank uses at a step: int64 [N]."""
        if step < 0:
            raise ValueError(f"steps count from 0, not {step}")
        start = self.rank * self.batch_size
        return self._order.images(step, start, start + self.batch_size)

    def batch(self, step: int) -> Batch:
        """Read the batch of one step."""
        return self._finish(step, self.store.start(self.index(step)))

    def starting_at(self, step: int = 0) -> Generator[Batch, None, None]:
        """Yield batches from this step on, without end, reading the next ones ahead."""
        readings = deque(self._start(s) for s in range(step, step + NUM_BATCHES_AHEAD))
        try:
            while True:
                current, reading = readings.popleft()
                readings.append(self._start(current + NUM_BATCHES_AHEAD))
                yield self._finish(current, reading)
        finally:
            # A caller that stops early leaves batches that were started: finish them, so that
            # the store gets their memory back.
            for _, reading in readings:
                with contextlib.suppress(Exception):
                    reading()

    def _start(self, step: int) -> tuple[int, Reading]:
        return step, self.store.start(self.index(step))

    def _finish(self, step: int, reading: Reading) -> Batch:
        images, index = reading()
        return Batch(images, index, derive(self.seed, "batch", step, self.rank))
