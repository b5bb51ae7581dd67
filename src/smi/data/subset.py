"""Present a part of the images of a store as a store."""

import torch
from torch import Tensor

from smi.data.store import Reading, Store
from smi.errors import UserError


class Subset(Store):
    """Select images of a store: image i is image `index[i]` of the store."""

    def __init__(self, store: Store, index: Tensor):
        self.name = store.name
        self.split = store.split
        self.resolution = store.resolution
        self.classes = store.classes
        self.bad = store.bad
        self.labels = None if store.labels is None else store.labels[index]
        self._store = store
        self._index = index
        self._position = {int(image): position for position, image in enumerate(index)}

    def __len__(self) -> int:
        return len(self._index)

    def start(self, index: Tensor) -> Reading:
        """Start to read; a bad file is replaced by the next good one of the subset."""
        reading = self._store.start(self._index[index])

        def finish() -> tuple[Tensor, Tensor]:
            images, store_index = reading()
            positions = [self._position.get(image) for image in store_index.tolist()]
            for row, position in enumerate(positions):
                # The store's replacement for a bad file may not be in the subset. It may even be
                # held out, so it is not used.
                if position is None:
                    images[row], positions[row] = self._next_good(int(index[row]))
            return images, torch.tensor(positions, dtype=torch.long)

        return finish

    def _next_good(self, position: int) -> tuple[Tensor, int]:
        for step in range(1, len(self)):
            images, index = self._store.start(self._index[[(position + step) % len(self)]])()
            if int(index[0]) in self._position:
                return images[0], self._position[int(index[0])]
        raise UserError(f"none of the {len(self):,} images chosen from {self.name} can be read")

    def close(self) -> None:
        """Close the underlying store."""
        self._store.close()
