"""Check whether a run is learning, collapsing or diverging, and say what to do.

    print(diagnose("runs/mine").text())     # the health of a run folder
    watch = Watch(context)                  # during training: each kind of problem once
    for finding in watch(line): ...         # line: as in metrics.jsonl

Numbers in, sentences out; nothing here needs torch.
"""

from smi.health.checks import Finding
from smi.health.diagnosis import Diagnosis, diagnose
from smi.health.run_context import Context
from smi.health.watch import Watch, find_problems, nan_diagnosis

__all__ = [
    "Context",
    "Diagnosis",
    "Finding",
    "Watch",
    "diagnose",
    "find_problems",
    "nan_diagnosis",
]
