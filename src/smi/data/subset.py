"""Some of a store's images, as a store."""

import torch
from torch import Tensor

from smi.data.store import Reading, Store


class Subset(Store):
    """Image i is image `index[i]` of the store."""

    def __init__(self, store: Store, index: Tensor):
        self.name, self.split, self.resolution, self.classes, self.bad = store.name, store.split, store.resolution, store.classes, store.bad
        self.labels = None if store.labels is None else store.labels[index]
        self._store, self._index = store, index
        self._place = {int(image): place for place, image in enumerate(index)}

    def __len__(self) -> int:
        return len(self._index)

    def start(self, index: Tensor) -> Reading:
        reading = self._store.start(self._index[index])

        def finish() -> tuple[Tensor, Tensor]:
            images, seen = reading()
            # What stands in for a bad file may not be one of ours; it then goes by the place that was asked for.
            places = [self._place.get(image, place) for image, place in zip(seen.tolist(), index.tolist(), strict=True)]
            return images, torch.tensor(places, dtype=torch.long)

        return finish

    def close(self) -> None:
        self._store.close()
