"""Every parser works, or refuses by one sentence: seeds, their mutations, and earlier crashes."""

import importlib
import random
from pathlib import Path

import pytest

from smi.data import remote

CAMPAIGN = Path(__file__).parents[2] / "campaign"
NAMES = [
    *("time", "pattern", "sweep", "value", "facts", "metrics", "header", "weights", "list-txt"),
    *("list-csv", "list-jsonl", "index", "tar", "npy", "npz", "idx", "result", "comparison"),
    *("command", "recipe", "config", "parquet"),
]
# Inputs that were tracebacks once, or filled the memory.
CRASHES = [
    ("pattern", b"{0..99999999999}"),
    ("pattern", b"{a,b}" * 40),
    ("pattern", "{٣..٤}".encode()),
    ("value", b"!!int ''"),
    ("value", b"!!bool x"),
    ("value", b"!!timestamp x"),
    ("value", b"0x" + b"f" * 5000),
    ("value", b"1" + b":59" * 2000),
    ("recipe", b"epochs: 0x" + b"f" * 5000),
    ("recipe", b"epochs: !!int ''"),
    ("config", b"? [a, b]\n: 1\n"),
    ("facts", b'{"steps": 1' + b"0" * 400 + b', "steps_per_epoch": 3}'),
    ("index", b'{"shards": [{"name": "train-000000.tar", "bytes": 1e999, "images": 1}]}'),
]


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(CAMPAIGN)
    monkeypatch.setattr(remote, "MAX_LOCATIONS", remote.MAX_LOCATIONS)  # which a target lowers
    return importlib.import_module("fuzz")


def test_all_parsers_are_here(fuzz, tmp_path):
    assert sorted(NAMES) == sorted(fuzz.RUNS) == sorted(fuzz.targets(tmp_path))
    assert sum(fuzz.RUNS.values()) >= 10**6


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_mutations(fuzz, name, tmp_path):
    parse = fuzz.targets(tmp_path)[name]
    rng = random.Random(name)
    for seed in fuzz.seeds_of(name):
        fuzz.refused(lambda seed=seed: parse(seed))
        for _ in range(20):
            mutated = bytearray(seed)
            for _ in range(rng.randrange(1, 4)):
                start = rng.randrange(len(mutated) + 1)
                mutated[start : start + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
            fuzz.refused(lambda content=bytes(mutated): parse(content))


@pytest.mark.parametrize(("name", "content"), CRASHES)
def test_earlier_crashes(fuzz, name, content, tmp_path):
    fuzz.refused(lambda: fuzz.targets(tmp_path)[name](content))
