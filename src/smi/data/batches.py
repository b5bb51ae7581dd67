"""Which images arrive at which step: a pure function of (seed, step, rank, world size). N images in a batch, n in the store.

An epoch is a permutation drawn from (seed, epoch), cut into steps of W x N images and those into the N of each rank; what is left over at
the end of an epoch is dropped. So the ranks of a step never share an image, any step can come first, and no state is to be saved.
"""

import contextlib
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from smi.data.store import Reading, Store
from smi.errors import UserError
from smi.seeds import derive, permutation

AHEAD = 2  # batches being read while one is used


@dataclass(frozen=True)
class Batch:
    """Images and which they are. Labels are not here on purpose."""

    images: Tensor  # uint8 [N, 3, S, S]
    index: Tensor  # int64 [N], into the store
    seed: int  # for whatever is drawn for this batch, such as its views

    def generator(self) -> torch.Generator:
        """A fresh one, the same at every call; on the CPU wherever the images are, so that every device is given the same numbers."""
        return torch.Generator().manual_seed(self.seed)

    def to(self, device: torch.device | str) -> "Batch":
        return replace(
            self,
            images=self.images.to(device, non_blocking=True),
            index=self.index.to(device, non_blocking=True),
        )


class Batches:
    """for batch in Batches(store, 256, seed=0).starting_at(step): ..."""

    def __init__(
        self, store: Store, batch_size: int, *, seed: int, rank: int = 0, world_size: int = 1
    ):
        if batch_size < 1:
            raise UserError(f"a batch must hold 1 image or more, not {batch_size}")
        if not 0 <= rank < world_size:
            raise UserError(f"rank {rank} is not one of {world_size} processes")
        self.store, self.batch_size, self.seed, self.rank, self.world_size = (
            store,
            batch_size,
            seed,
            rank,
            world_size,
        )
        self.steps_per_epoch = len(store) // (batch_size * world_size)
        if self.steps_per_epoch == 0:
            processes = f" on each of {world_size} processes" if world_size > 1 else ""
            raise UserError(
                f"{store.name} has {len(store):,} images, fewer than one batch of {batch_size:,}{processes}: make the batch smaller"
            )
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def index(self, step: int) -> Tensor:
        """Which images of the store this rank is to see at this step: int64 [N]."""
        if step < 0:
            raise ValueError(f"steps count from 0, not {step}")
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(len(self.store), self.seed, epoch)
        start = (position * self.world_size + self.rank) * self.batch_size
        return self._order[start : start + self.batch_size]

    def batch(self, step: int) -> Batch:
        return self._finish(step, self.store.start(self.index(step)))

    def starting_at(self, step: int = 0) -> Generator[Batch, None, None]:
        """Batches from this step on, without end; the next ones are read while one is used."""
        reading = deque((s, self.store.start(self.index(s))) for s in range(step, step + AHEAD))
        try:
            while True:
                current, images = reading.popleft()
                reading.append((current + AHEAD, self.store.start(self.index(current + AHEAD))))
                yield self._finish(current, images)
        finally:
            for (
                _,
                unused,
            ) in (
                reading
            ):  # whoever stops early leaves batches that were begun: their memory is given back
                with contextlib.suppress(Exception):
                    unused()

    def _finish(self, step: int, reading: Reading) -> Batch:
        images, index = reading()
        return Batch(images, index, derive(self.seed, "batch", step, self.rank))
