"""Find images (sources), store them (store) and serve them in batches (batches).

store = load("cifar10")                      # or a folder of images; `smi data NAME` downloads
for batch in Batches(store, 256, seed=0).starting_at(step):
    batch.images                             # uint8 [N, 3, S, S] or Pictures; never a label
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smi.data.batches import Batch as Batch
    from smi.data.batches import Batches as Batches
    from smi.data.decoder import BadFile as BadFile
    from smi.data.pictures import Pictures as Pictures
    from smi.data.sources import DATASET_NAMES as DATASET_NAMES
    from smi.data.store import Store as Store
    from smi.data.store import load as load
    from smi.data.store import write_bad as write_bad

# Imported on first use, because the decoding workers must start without importing torch.
_MODULES = {
    "BadFile": "decoder",
    "Batch": "batches",
    "Batches": "batches",
    "DATASET_NAMES": "sources",
    "Pictures": "pictures",
    "Store": "store",
    "load": "store",
    "write_bad": "store",
}

__all__ = ["DATASET_NAMES", "BadFile", "Batch", "Batches", "Pictures", "Store", "load", "write_bad"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'smi.data' has no attribute {name!r}")
    return getattr(import_module(f"smi.data.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
