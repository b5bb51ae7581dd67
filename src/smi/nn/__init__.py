"""Everything that holds state: queues, memory banks, centres, prototypes."""

from smi.nn.center import Center
from smi.nn.memory_bank import MemoryBank
from smi.nn.prototypes import Prototypes
from smi.nn.queue import Queue

__all__ = ["Center", "MemoryBank", "Prototypes", "Queue"]
