"""Read the images of shards that are too many for a cache, a block of shards at a time.

A shard that cannot be read after all attempts is lost: it is listed among the bad files, and images
of other shards of its block stand in for its own. A run stops if too many images are lost.
"""

import hashlib
import os
import weakref
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from smi.data.decoder import BadFile, Keep, Target
from smi.data.folders import MAX_BAD_SHARE
from smi.data.order import Order, ShardOrder
from smi.data.remote import LostError
from smi.data.ring import Ring
from smi.data.shards import ShardSet
from smi.data.store import StreamingStore
from smi.errors import UserError
from smi.files import cache_home
from smi.terminal import announce, printable


class ShardStore(StreamingStore):
    """Decode images of shards on demand in worker processes."""

    def __init__(
        self,
        shards: ShardSet,
        resolution: int,
        *,
        keep: Keep = "aspect",
        num_workers: int | None = None,
        max_bad_share: float = MAX_BAD_SHARE,
    ):
        super().__init__(
            shards, resolution, keep=keep, num_workers=num_workers, max_bad_share=max_bad_share
        )
        digest = hashlib.sha256()
        shards.update_digest(digest)
        self._shards = shards
        self._lost: dict[int, str] = {}  # shards, with the reasons
        self._ring = Ring(shards.shards, cache_home() / "ring" / digest.hexdigest()[:24])
        self._ring_finalizer = weakref.finalize(self, self._ring.close)

    def order(self, batch_size: int, seed: int) -> Order:
        """Return an order in blocks of shards; its use fetches the shards ahead."""
        order = ShardOrder(
            np.diff(self._shards.starts),
            np.array([shard.num_bytes for shard in self._shards.shards], dtype=np.int64),
            batch_size,
            seed,
        )
        return _FetchingOrder(order, self._ring)

    def close(self) -> None:
        """Stop the workers, and remove fetched shards."""
        super().close()
        self._ring_finalizer()

    def _prepare(self, images: list[int]) -> list[int]:
        """Start to open the shards of images, and hold them until `_finish`."""
        held = sorted({self._shards.locate(i)[0] for i in images} - set(self._lost))
        self._ring.hold(held)
        self._ring.request(held)
        if not self._ring.wanted and held and held[-1] + 1 < len(self._shards.shards):
            self._ring.request([held[-1] + 1])  # images are read in turn
        return held

    def _finish(self, prepared: list[int]) -> None:
        self._ring.release(prepared)

    def _name(self, i: int) -> str:
        shard, row = self._shards.locate(i)
        return self._ring.get(shard).names[row]

    def _target(self, i: int) -> Target:
        shard, row = self._shards.locate(i)
        return self._ring.get(shard).target(row)

    def _next_good(self, i: int) -> int:
        """Return an image, or another one if it is bad or its shard is lost."""
        shard, row = self._shards.locate(i)
        while not self._is_readable(shard, row):
            shard, row = self._replacement(shard, row)
        return int(self._shards.starts[shard]) + row

    def _is_readable(self, shard: int, row: int) -> bool:
        i = int(self._shards.starts[shard]) + row
        if shard in self._lost or i in self._reasons:
            return False
        location = self._shards.shards[shard].location
        try:
            count = len(self._ring.get(shard))
        except LostError as error:
            self._lose(shard, str(error))
            return False
        if not count:
            self._lose(shard, f"{location}: it holds no images")
        elif row >= count:
            self._reasons[i] = "missing"
            self.bad.append(BadFile(f"{location}/{row}", "the shard has fewer images"))
        return 0 <= row < count

    def _lose(self, shard: int, reason: str) -> None:
        """Note that a shard is lost; stop if these are too many images."""
        self._lost[shard] = reason
        self.bad.append(BadFile(self._shards.shards[shard].location, reason))
        lost = sum(self._shards.shards[number].num_images for number in self._lost)
        announce(f"warning: a shard is lost: {printable(reason)}")
        num_processes = int(os.environ.get("WORLD_SIZE", "1"))  # each reads its part of the shards
        if lost > self._max_bad_share * len(self) / num_processes or lost == len(self):
            raise UserError(
                f"{len(self._lost):,} of {len(self._shards.shards):,} shards of "
                f"{self._shards.root} cannot be read ({printable(reason)}), {lost:,} of "
                f"{len(self):,} images, above the accepted share of {self._max_bad_share:.0%}"
                + (f" for one of {num_processes} processes" if num_processes > 1 else "")
            )

    def _replacement(self, shard: int, row: int) -> tuple[int, int]:
        """Return the next good row of a shard, or a row of another shard that is not lost."""
        if shard not in self._lost:
            count = min(len(self._ring.get(shard)), self._shards.shards[shard].num_images)
            start = int(self._shards.starts[shard])
            later = ((row + step) % count for step in range(1, count + 1))
            good = next((r for r in later if start + r not in self._reasons), None)
            if good is not None:
                return shard, good
            self._lose(shard, f"{self._shards.shards[shard].location}: no image can be read")
        numbers = [*self._ring.wanted, *range(len(self._shards.shards))]
        left = [n for n in numbers if n not in self._lost and self._shards.shards[n].num_images]
        chosen = next((n for n in left if n > shard), left[0])
        return chosen, row % self._shards.shards[chosen].num_images

    def _note_tried(self, i: int) -> None:
        self._num_tried += 1  # a mark for each of a billion images would be a gigabyte


@dataclass(frozen=True)
class _FetchingOrder:
    """Tell the ring which shards the steps need."""

    order: ShardOrder
    ring: Ring

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps_per_epoch

    def images(self, step: int, first: int, last: int) -> Tensor:
        """Return images `first` to `last` of a step."""
        blocks = self.order.shards(step, first, last)
        self.ring.want([shard for block in blocks for shard in block])
        return self.order.images(step, first, last)
