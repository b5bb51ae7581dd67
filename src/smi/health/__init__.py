"""Is this run learning, collapsing, diverging, and what to do. Numbers in, sentences out; nothing here needs torch.

watch = Watch(context)                  # while it trains: each kind of trouble is told once
for finding in watch(line): ...         # line: as in metrics.jsonl
diagnose(context, lines)                # afterwards: what went wrong, and what looks healthy
"""

from smi.health.checks import Finding
from smi.health.ranges import Context, expected_range
from smi.health.watch import Watch, diagnose, nan_diagnosis

__all__ = ["Context", "Finding", "Watch", "diagnose", "expected_range", "nan_diagnosis"]
