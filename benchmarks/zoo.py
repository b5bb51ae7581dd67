"""Collect the encoders behind the README's tables, each with its results and a digest.

    python benchmarks/zoo.py write runs/cifar10 runs/demo/SMI
                                    writes dist/zoo/, which a release attaches: NAME/ and zoo.json;
                                    and results/zoo.json, the list in the repository
    python benchmarks/zoo.py check dist/zoo/NAME runs/again
                                    compares folders of the zoo, or runs, with the list
    python benchmarks/zoo.py repeat NAME --data DATA --out runs/again
                                    trains an encoder again from the list, and compares it
    python benchmarks/zoo.py show   prints the table of docs/zoo.md

A comparison stands for the run of the first seed of each row. A folder of the zoo is that of
`smi export --to hf-hub`, so it can be uploaded as it is. The list has all settings of each run, but
no path of this machine: DATA is where datasets and folders of images are.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

import smi
from machine import RESULTS, command
from smi.comparison.comparison import Comparison, Estimate
from smi.data import DATASET_NAMES
from smi.errors import UserError
from smi.evaluation.results import TRAINED, read_all
from smi.files import make_folder, write_json, write_text
from smi.runs.collect import is_comparison, locate_run
from smi.runs.names import dataset_name, display_row_name
from smi.runs.run import Run
from smi.terminal import counted

SCORES = {"kNN": "kNN", "linear-cached": "linear"}
OUT = RESULTS.parent / "dist" / "zoo"
INDEX = "zoo.json"
WEIGHTS = "model.safetensors"
Entry = dict[str, Any]


def write(sources: list[Path], out: Path, index: Path, commit: str) -> list[str]:
    """Write a folder for each encoder, and add them to the list; return their names."""
    entries = {}
    for source in sources:
        for row, run, scores in _chosen(source):
            name = _name(row, run)
            if name in entries:
                raise UserError(f"{name} stands for two runs: give one of them")
            if not (commit or run.facts.commit):
                raise UserError(f"{run.folder} does not record its commit: name it by --commit")
            folder = out / name
            smi.export(run, to="hf-hub", out=folder)
            entries[name] = _entry(name, row, run, folder, scores, commit)
    make_folder(out)
    write_json(out / INDEX, {"encoders": list(entries.values())})
    kept = {entry["name"]: entry for entry in read_index(index)} if index.is_file() else {}
    write_json(index, {"encoders": list((kept | entries).values())})
    return list(entries)


def _chosen(source: Path) -> list[tuple[str, Run, dict[str, Estimate]]]:
    """Return the rows of a comparison, or one run: name, run of the first seed, scores."""
    if not is_comparison(source):
        run = Run(source)
        digest = smi.load(run).digest()
        values = {
            score.name: Estimate.of({run.config["seed"]: score.value})
            for result in read_all(run.folder)
            if result.subject == TRAINED and result.encoder["digest"] == digest
            for score in result.scores
        }
        return [(run.config["method"]["name"], run, _shown(values))]
    comparison = Comparison.read(source)
    chosen = []
    for row in comparison.rows:
        finished = [run for run in row.runs if not run.failed]
        if finished:
            values = {column[1]: comparison.score(row, column) for column in comparison.columns}
            run = Run(locate_run(source, finished[0].folder))
            chosen.append((row.name, run, _shown(values)))
    return chosen


def _shown(values: dict[str, Estimate | None]) -> dict[str, Estimate]:
    return {name: value for name, value in values.items() if name in SCORES and value is not None}


def _name(row: str, run: Run) -> str:
    """Return ENCODER.METHOD_IMAGES, as timm names weights."""
    words = (row, dataset_name(run))
    tag = "_".join(re.sub(r"[^a-z0-9._]+", "-", word.lower()) for word in words)
    return f"{str(run.config['encoder']['name']).partition('.')[0]}.{tag}"


def _entry(
    name: str, row: str, run: Run, folder: Path, scores: dict[str, Estimate], commit: str
) -> Entry:
    """Describe an encoder of the zoo."""
    facts = run.facts
    weights = (folder / WEIGHTS).read_bytes()
    return {
        "name": name,
        "method": display_row_name(row),
        "images": f"{facts.num_images:,} of {dataset_name(run)}",
        "scores": {
            score: {"values": list(e.values), "seeds": list(e.seeds)} for score, e in scores.items()
        },
        "digest": smi.load(folder).digest(),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "bytes": len(weights),
        "commit": commit or facts.commit,
        "date": (facts.started or "")[:10],
        "device": facts.device,
        "recipe": yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8")),
    }


def read_index(index: Path) -> list[Entry]:
    """Read the list of encoders."""
    entries: list[Entry] = json.loads(index.read_text(encoding="utf-8"))["encoders"]
    return entries


def check(folders: list[Path], index: Path) -> list[str]:
    """Compare encoders with the list; return a sentence for each that it does not have."""
    by_digest = {entry["digest"]: entry for entry in read_index(index)}
    problems = []
    for folder in folders:
        digest = smi.load(folder).digest()
        entry = by_digest.get(digest)
        weights = folder / WEIGHTS
        if entry is None:
            problems.append(f"{folder}: no encoder of the list has the digest {digest}")
        elif weights.is_file() and _sha256(weights) != entry["sha256"]:
            problems.append(f"{weights}: another file than that of {entry['name']}")
        else:
            print(f"{folder}: {entry['name']}, digest {digest}")
    return problems


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def repeat(name: str, data: Path | None, out: Path, index: Path) -> list[str]:
    """Train an encoder of the list again; return a sentence if it is not the same."""
    entries = {entry["name"]: entry for entry in read_index(index)}
    if name not in entries:
        raise UserError(f"there is no {name} in the list: choose one of {', '.join(entries)}")
    recipe = entries[name]["recipe"]
    if data is not None and recipe["data"]["source"] not in DATASET_NAMES:
        recipe["data"]["source"] = str(data / recipe["data"]["source"])
    make_folder(out.parent)
    path = out.with_name(f"{out.name}.yaml")
    write_text(path, yaml.safe_dump(recipe, sort_keys=False))
    run = smi.pretrain(path, out=out, runtime=smi.Runtime(root=data))
    return check([run.folder], index)


def show(index: Path) -> str:
    """Format the list as Markdown."""
    entries = read_index(index)
    heads = ["name", "method", "images", *SCORES.values(), "seeds", "MB", "digest"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|" + "---:|" * (len(SCORES) + 2) + "---|"]
    for entry in entries:
        scores = [entry["scores"].get(score) for score in SCORES]
        seeds = max((len(score["seeds"]) for score in scores if score), default=1)
        cells = [f"`{entry['name']}`", entry["method"], entry["images"], *map(_cell, scores)]
        cells += [str(seeds), f"{entry['bytes'] / 1e6:.1f}", f"`{entry['digest']}`"]
        lines.append(f"| {' | '.join(cells)} |")
    made = dict.fromkeys(
        f"{entry['date']}, commit {entry['commit']}, {_device(entry)}." for entry in entries
    )
    return "\n".join([*lines, "", *made])


def _device(entry: Entry) -> str:
    """Return the device of an encoder; earlier versions wrote "1 threads"."""
    return re.sub(r"(\d+) threads", lambda m: counted(int(m[1]), "thread"), entry["device"])


def _cell(score: dict[str, Any] | None) -> str:
    """Format a score: its mean and 95 % interval, or the values of one seed or two."""
    if score is None:
        return ""
    estimate = Estimate.of(dict(zip(score["seeds"], score["values"], strict=True)))
    return str(estimate).replace("%", "")


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("action", choices=("write", "check", "repeat", "show"))
    parser.add_argument("sources", nargs="*", help="folders; for repeat, a name of the list")
    parser.add_argument("--out", type=Path, help="folder to write (default of write: dist/zoo)")
    parser.add_argument(
        "--data", type=Path, help="folder of datasets and image folders, for repeat"
    )
    parser.add_argument("--index", type=Path, default=RESULTS / INDEX, help="the list")
    parser.add_argument("--commit", default="", help="of the code that made runs without one")
    given = parser.parse_args()
    if given.action == "show":
        print(show(given.index))
        return
    if not given.sources or (given.action == "repeat" and given.out is None):
        parser.error("write and check need folders, and repeat a name and --out")
    folders = [Path(source) for source in given.sources]
    problems = []
    if given.action == "write":
        print(*write(folders, given.out or OUT, given.index, given.commit), sep="\n")
    elif given.action == "check":
        problems = check(folders, given.index)
    else:
        problems = repeat(given.sources[0], given.data, given.out, given.index)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
