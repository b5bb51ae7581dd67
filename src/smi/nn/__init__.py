"""Hold everything with state: encoders, heads, teachers, queues, banks, centres, prototypes."""

from smi.nn.center import Center
from smi.nn.ema import Ema
from smi.nn.encoders import Encoder, create_encoder
from smi.nn.heads import mlp
from smi.nn.memory_bank import MemoryBank
from smi.nn.prototypes import Prototypes
from smi.nn.queue import Queue

__all__ = ["Center", "Ema", "Encoder", "MemoryBank", "Prototypes", "Queue", "create_encoder", "mlp"]
