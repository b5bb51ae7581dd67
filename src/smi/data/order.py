"""Order the images of an epoch: a pure function of seed and step, without saved state.

`Shuffled` is a permutation of all images. A billion of them would be 8 GB, and shards on a far disk
would be read image by image. `ShardOrder` therefore shuffles twice: the shards of an epoch, and the
images of a block of shards.

    shards, permuted by (seed, epoch)   | 7 2 9 | 4 0 1 | 8 5 3 | 6 ...
    lane 0                              | block | block |
    lane 1                                              | block | ...

An epoch is cut into lanes of the same number of images. Every step takes as many images of each
lane, so its images come from as many blocks. A lane is cut into blocks of whole shards; a shard on
the border belongs to two lanes. Step, lane and place in it give the image by arithmetic.

The images of a step do not depend on the number of processes. If that divides the number of lanes,
no two processes read the same shard, except on borders. N is the batch size of all processes.
"""

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smi.seeds import derive, permutation

MAX_LANES = 8
BLOCK_BYTES = 2**28  # of shards, read and shuffled together; a larger shard is a block


class Order(Protocol):
    """Give the images of every step."""

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps in an epoch."""

    def images(self, step: int, first: int, last: int) -> Tensor:
        """Return images `first` to `last` of the N images of a step: int64."""


class Shuffled:
    """Permute all images in every epoch; images left over at its end are dropped."""

    def __init__(self, num_images: int, batch_size: int, seed: int):
        self.steps_per_epoch = num_images // batch_size
        self._num_images = num_images
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1  # of the permutation
        self._permutation = torch.empty(0, dtype=torch.long)

    def images(self, step: int, first: int, last: int) -> Tensor:
        """Return images `first` to `last` of a step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._permutation = permutation(self._num_images, self._seed, epoch)
        start = position * self._batch_size
        return self._permutation[start + first : start + last]


class ShardOrder:
    """Permute shards in every epoch, and images in every block of shards.

    num_images, num_bytes: of each shard, int64 [S]. Fewer than N images are left over at the end of
    an epoch, others each time. Image i is row i - starts[s] of shard s.
    """

    def __init__(
        self,
        num_images: NDArray[np.int64],
        num_bytes: NDArray[np.int64],
        batch_size: int,
        seed: int,
        *,
        block_bytes: int | None = None,
    ):
        lanes = math.gcd(batch_size, MAX_LANES)
        while lanes > max(1, len(num_images)):
            lanes //= 2
        self.num_lanes = lanes
        self.steps_per_epoch = int(num_images.sum()) // batch_size
        self._num_images = num_images
        self._num_bytes = num_bytes
        self._starts = np.concatenate([[0], num_images.cumsum()])  # [S + 1]
        self._per_step = batch_size // lanes  # images of a lane
        self._seed = seed
        self._block_bytes = BLOCK_BYTES if block_bytes is None else block_bytes
        self._epoch = -1
        self._shards = np.empty(0, dtype=np.int64)  # of the epoch, permuted
        self._ends = np.empty(0, dtype=np.int64)  # of these shards, as positions in the epoch
        self._borders: dict[int, NDArray[np.int64]] = {}  # of each lane
        self._blocks: dict[int, tuple[int, int, Tensor]] = {}  # of each lane: the current one

    def images(self, step: int, first: int, last: int) -> Tensor:
        """Return images `first` to `last` of a step."""
        parts = []
        for lane in range(first // self._per_step, math.ceil(last / self._per_step)):
            begin = lane * self._per_step
            places = range(max(first, begin) - begin, min(last, begin + self._per_step) - begin)
            parts.append(self._of_lane(step, lane, places))
        return torch.cat(parts)

    def shards(self, step: int, first: int, last: int) -> list[list[int]]:
        """Return the shards of the blocks of a step, then those of the blocks after them.

        There is a list for each block. Blocks of the next epoch are not among them.
        """
        self._start_epoch(step // self.steps_per_epoch)
        lanes = range(first // self._per_step, math.ceil(last / self._per_step))
        blocks = [(lane, self._block_at(lane, self._position(step, lane))) for lane in lanes]
        blocks += [(lane, block + 1) for lane, block in blocks]
        found = []
        for lane, block in blocks:
            borders = self._borders_of(lane)
            if block + 1 < len(borders):
                found.append(self._shards[borders[block] : borders[block + 1]].tolist())
        return found

    def _of_lane(self, step: int, lane: int, places: range) -> Tensor:
        """Return images of a lane at a step, which may lie in two blocks or more."""
        self._start_epoch(step // self.steps_per_epoch)
        position = self._position(step, lane)
        at, stop = position + places.start, position + places.stop
        parts = []
        while at < stop:
            start, images = self._block_images(lane, at)
            end = min(stop, start + len(images))
            parts.append(images[at - start : end - start])
            at = end
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)

    def _start_epoch(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._shards = permutation(len(self._num_images), self._seed, epoch).numpy()
        self._ends = self._num_images[self._shards].cumsum()
        self._borders = {}
        self._blocks = {}

    def _position(self, step: int, lane: int) -> int:
        """Return the position in the epoch of the first image of a lane at a step."""
        in_lane = step % self.steps_per_epoch * self._per_step
        return lane * self.steps_per_epoch * self._per_step + in_lane

    def _lane_end(self, lane: int) -> int:
        return (lane + 1) * self.steps_per_epoch * self._per_step

    def _start_of(self, shard: int) -> int:
        """Return the position of the first image of a shard of the permutation."""
        return int(self._ends[shard - 1]) if shard else 0

    def _borders_of(self, lane: int) -> NDArray[np.int64]:
        """Return the first shard of each block of a lane, and the first after its last block.

        Blocks begin with the first shard of the lane, and each holds as many as its bytes allow.
        """
        if lane not in self._borders:
            lane_start = self._position(self._epoch * self.steps_per_epoch, lane)
            first = int(np.searchsorted(self._ends, lane_start, side="right"))
            last = int(np.searchsorted(self._ends, self._lane_end(lane) - 1, side="right"))
            borders, size = [first], 0
            for i, num_bytes in enumerate(
                self._num_bytes[self._shards[first : last + 1]].tolist(), first
            ):
                size += num_bytes
                if i > borders[-1] and size > self._block_bytes:
                    borders.append(i)
                    size = num_bytes
            self._borders[lane] = np.array([*borders, last + 1])
        return self._borders[lane]

    def _block_at(self, lane: int, position: int) -> int:
        """Return the block of a lane that holds a position."""
        shard = np.searchsorted(self._ends, position, side="right")
        return int(np.searchsorted(self._borders_of(lane), shard, side="right")) - 1

    def _block_images(self, lane: int, position: int) -> tuple[int, Tensor]:
        """Return the first position of the block at a position, and its images, shuffled."""
        start, end, images = self._blocks.get(lane, (0, 0, torch.empty(0)))
        if start <= position < end:
            return start, images
        block = self._block_at(lane, position)
        first, after = self._borders_of(lane)[block : block + 2].tolist()
        lane_start = self._position(self._epoch * self.steps_per_epoch, lane)
        start = max(lane_start, self._start_of(first))
        end = min(self._lane_end(lane), self._start_of(after))
        seed = derive(self._seed, "block", self._epoch, lane, first)
        shuffled = torch.randperm(end - start, generator=torch.Generator().manual_seed(seed))
        positions = start + shuffled.numpy()
        at = np.searchsorted(self._ends, positions, side="right")  # [n], in the permutation
        begins = np.concatenate([[0], self._ends])[at]
        images = torch.from_numpy(self._starts[self._shards[at]] + positions - begins)
        self._blocks[lane] = (start, end, images)
        return start, images
