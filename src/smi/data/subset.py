"""Some of a store's images, as a store."""

import torch
from torch import Tensor

from smi.data.store import Reading, Store
from smi.errors import UserError


class Subset(Store):
    """Image i is image `index[i]` of the store."""

    def __init__(self, store: Store, index: Tensor):
        self.name, self.split, self.resolution, self.classes, self.bad = (
            store.name,
            store.split,
            store.resolution,
            store.classes,
            store.bad,
        )
        self.labels = None if store.labels is None else store.labels[index]
        self._store, self._index = store, index
        self._place = {int(image): place for place, image in enumerate(index)}

    def __len__(self) -> int:
        return len(self._index)

    def start(self, index: Tensor) -> Reading:
        reading = self._store.start(self._index[index])

        def finish() -> tuple[Tensor, Tensor]:
            images, seen = reading()
            places = [self._place.get(image) for image in seen.tolist()]
            for row, place in enumerate(places):
                if (
                    place is None
                ):  # what stands in for a bad file is not one of ours, and may have been kept apart: the next of ours does
                    images[row], places[row] = self._next_good(int(index[row]))
            return images, torch.tensor(places, dtype=torch.long)

        return finish

    def _next_good(self, place: int) -> tuple[Tensor, int]:
        for step in range(1, len(self)):
            images, seen = self._store.start(self._index[[(place + step) % len(self)]])()
            if int(seen[0]) in self._place:
                return images[0], self._place[int(seen[0])]
        raise UserError(f"none of the {len(self):,} images chosen from {self.name} can be read")

    def close(self) -> None:
        self._store.close()
