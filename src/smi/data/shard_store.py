"""Read the images of shards that are too many for a cache, a block of shards at a time.

A shard that cannot be read after all attempts is lost: it is listed among the bad files, and images
of other shards of its block stand in for its own. A run stops if too many images are lost.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

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
        self._ring.close()

    def _prepare(self, images: list[int]) -> Any:
        """Start to open the shards of images, and hold them until `_finish`."""
        held = sorted({self._shards.locate(i)[0] for i in images} - set(self._lost))
        self._ring.hold(held)
        self._ring.request(held)
        if not self._ring.wanted and held and held[-1] + 1 < len(self._shards.shards):
            self._ring.request([held[-1] + 1])  # images are read in turn
        return held

    def _finish(self, prepared: Any) -> None:
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
        if shard in self._lost or int(self._shards.starts[shard]) + row in self._reasons:
            return False
        try:
            return row < len(self._ring.get(shard))
        except LostError as error:
            self._lose(shard, str(error))
            return False

    def _lose(self, shard: int, reason: str) -> None:
        """Note that a shard is lost; stop if these are too many images."""
        self._lost[shard] = reason
        location = self._shards.shards[shard].location
        self.bad.append(BadFile(location, reason))
        lost = sum(self._shards.shards[number].num_images for number in self._lost)
        announce(f"warning: a shard is lost: {printable(reason)}")
        if lost > self._max_bad_share * len(self):
            raise UserError(
                f"{len(self._lost):,} of {len(self._shards.shards):,} shards of "
                f"{self._shards.root} cannot be read ({printable(reason)}), {lost:,} of "
                f"{len(self):,} images, above the accepted share of {self._max_bad_share:.0%}"
            )

    def _replacement(self, shard: int, row: int) -> tuple[int, int]:
        """Return the next row of a shard, or a row of the next shard that is not lost."""
        if shard not in self._lost:
            count = self._shards.shards[shard].num_images
            if len(self._reasons) < count or any(
                int(self._shards.starts[shard]) + r not in self._reasons for r in range(count)
            ):
                return shard, (row + 1) % count
            self._lose(shard, f"{self._shards.shards[shard].location}: no image can be read")
        near = [number for number in self._ring.wanted if number not in self._lost]
        later = [number for number in near if number > shard]
        if near:
            chosen = (later or near)[0]
        else:
            numbers = range(shard + 1, shard + len(self._shards.shards))
            count = len(self._shards.shards)
            chosen = next(n % count for n in numbers if n % count not in self._lost)
        return chosen, row % max(1, self._shards.shards[chosen].num_images)

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
