"""Present a part of the images of a store as a store."""

import torch
from torch import Tensor

from smi.data.pictures import Pictures
from smi.data.store import Reading, SquareReading, Store
from smi.errors import UserError


class Subset(Store):
    """Select images of a store: image i is image `index[i]` of the store.

    A bad file is replaced by the next good one of the subset.
    """

    def __init__(self, store: Store, index: Tensor):
        self.name = store.name
        self.split = store.split
        self.resolution = store.resolution
        self.classes = store.classes
        self.bad = store.bad
        self.keep = store.keep
        self.value_range = store.value_range
        self.labels = None if store.labels is None else store.labels[index]
        self._store = store
        self._index = index
        self._sorted, self._position = index.sort()  # to find images of the store

    def __len__(self) -> int:
        return len(self._index)

    def start(self, index: Tensor) -> Reading:
        """Start to read images of the store."""
        reading = self._store.start(self._index[index])

        def finish() -> tuple[Tensor | Pictures, Tensor]:
            images, loaded = reading()
            positions, missing = self._positions(index, loaded)
            for row in missing:
                replacement, _ = self._store.start(self._index[positions[[row]]])()
                image = replacement[0]
                if isinstance(images, Pictures):
                    images = images.replaced(row, image)
                else:
                    images[row] = image
            return images, positions

        return finish

    def start_squares(self, index: Tensor) -> SquareReading:
        """Start to read the central squares of images of the store."""
        reading = self._store.start_squares(self._index[index])

        def finish() -> tuple[Tensor, Tensor]:
            images, loaded = reading()
            positions, missing = self._positions(index, loaded)
            if missing:
                images[missing] = self._store[self._index[positions[missing]]]
            return images, positions

        return finish

    def _positions(self, index: Tensor, loaded: Tensor) -> tuple[Tensor, list[int]]:
        """Return the positions of images that the store loaded, and the rows to read again.

        The store's replacement for a bad file may not be in the subset. It may even be held out,
        so it is not used.
        """
        positions = self._find(loaded)
        missing = (positions < 0).nonzero()[:, 0].tolist()
        for row in missing:
            positions[row] = self._next_good(int(index[row]))
        return positions, missing

    def _find(self, images: Tensor) -> Tensor:
        """Return the positions of images of the store in the subset, or -1."""
        place = torch.searchsorted(self._sorted, images).clamp_max(len(self) - 1)
        return torch.where(self._sorted[place] == images, self._position[place], -1)

    def _next_good(self, position: int) -> int:
        for step in range(1, len(self)):
            candidate = (position + step) % len(self)
            _, loaded = self._store.start_squares(self._index[[candidate]])()
            found = int(self._find(loaded))
            if found >= 0:
                return found
        raise UserError(f"none of the {len(self):,} images chosen from {self.name} can be read")

    def close(self) -> None:
        """Close the underlying store."""
        self._store.close()
