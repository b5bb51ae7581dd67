"""Count what a part of the campaign tried, survived and lost, and write it to results/.

record = Record("kills", seed=0)
record.add("pretrain, SMI", ok=True)
record.add("pretrain, SMI", ok=False, detail="encoder.safetensors differs")
record.write()                              results/campaign-kills.json
print(table())                              all parts, as Markdown
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from machine import RESULTS, footer, stamp

# In the order of docs/reliability.md.
PARTS = {
    "kills": "Kills",
    "power": "Power loss",
    "faults": "Faults",
    "hostile": "Hostile input",
    "fuzz": "Fuzzing",
    "sanitizers": "Sanitizers",
    "load": "Load",
    "elsewhere": "Other systems",
}


class Record:
    """Hold the trials of one part, by case."""

    def __init__(self, part: str, *, seed: int):
        self.part = part
        self.seed = seed
        self.cases: dict[str, dict] = {}

    def add(self, case: str, *, ok: bool, detail: str = "", count: int = 1) -> None:
        """Count trials of a case; `detail` says what was lost."""
        row = self.cases.setdefault(case, {"tried": 0, "survived": 0, "lost": []})
        row["tried"] += count
        row["survived"] += count if ok else 0
        if not ok:
            row["lost"].append(detail)
            print(f"LOST {case}: {detail}", flush=True)

    @property
    def lost(self) -> int:
        """Return the number of trials that were not survived."""
        return sum(row["tried"] - row["survived"] for row in self.cases.values())

    def write(self, folder: Path = RESULTS) -> Path:
        """Write the counts, with the date, the commit and the hardware."""
        about = stamp("2 cores")
        path = folder / f"campaign-{self.part}.json"
        document = about | {"seed": self.seed, "cases": self.cases}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path


def table(folder: Path = RESULTS) -> str:
    """Format the results of all parts that have been run as Markdown, one row for each command.

    A case is named "command: way"; the ways of a command are counted together.
    """
    lines = ["| | ways | tried | survived | lost |", "|---|---:|---:|---:|---:|"]
    footers = []
    for part, title in PARTS.items():
        path = folder / f"campaign-{part}.json"
        if not path.is_file():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        rows: dict[str, list[dict]] = {}
        for case, row in document["cases"].items():
            rows.setdefault(case.partition(":")[0], []).append(row)
        for name, counted in rows.items():
            tried, survived = (sum(row[key] for row in counted) for key in ("tried", "survived"))
            lines.append(
                f"| {title}: {name} | {len(counted)} | {tried:,} | {survived:,} "
                f"| {tried - survived:,} |"
            )
        footers.append(f"{title}: seed {document['seed']}, {footer(document)}")
    return "\n".join([*lines, "", *(f"{line}  " for line in footers)]).rstrip()


if __name__ == "__main__":
    print(table())
