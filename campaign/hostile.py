"""Damage every file of a run, and give hostile files and names to every reader.

python campaign/hostile.py                 all kinds of trials (many minutes)
python campaign/hostile.py --times 20      more changed values of each file (hours)
python campaign/hostile.py --quick         a few of each

A trial survives if the reader works, or refuses by one sentence; if memory and time stay small; if
no code of a file runs; and if nothing is written outside the folder of the trial.
"""

import argparse
import contextlib
import copy
import csv
import gzip
import io
import json
import math
import os
import pickle
import random
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
import yaml
from attempt import Action, attempt
from PIL import Image
from record import Record

import smi
from smi.cli import main as smi_main
from smi.comparison.comparison import Comparison
from smi.data.describe import describe_data
from smi.data.download import extract
from smi.data.lists import read_list
from smi.data.remote import describe
from smi.data.shard_files import count_images, open_shard
from smi.evaluation.evaluate import stored
from smi.figures.catalogue import write_figure
from smi.paper.paper_tables import make_table
from smi.runs.collect import collect_runs
from smi.terminal import quietly
from smi.training.pretrain import preview

SETTINGS = {
    "encoder": "resnet-small",
    "encoder.channels": [8, 8, 8, 8],
    "encoder.stem_width": 4,
    "method.widths": [8, 8],
    "epochs": 1,
    "batch_size": 32,
    "data.images": 128,
    "log.every": 1,
    "log.probe_images": 100,
}
MARKER = "marker-of-executed-code"
ODD_NAMES = (
    "new\nline",
    "\x1b[31mred\x1b[0m\x07",
    "‮gpj.exe",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "=1+1",
    "@SUM(A1)",
    "-2+3",
    "](javascript:alert(1))",
    "| a | b |",
    "'; rm -rf ~; '",
    "$(touch x)",
    "..",
    "{a,b}",
    "*",
    "a\\b",
    "\udcff",
    "x" * 200,
    " ",
    "-rf",
)
VALUES: tuple[Any, ...] = (
    None,
    [],
    {},
    "x",
    "",
    -1,
    0,
    True,
    1e308,
    math.nan,
    math.inf,
    10**400,
    10**17,
    0.5,
    "‮\x1b[31m<b>",
    [[[[[[1]]]]]],
    {"a": {"a": {"a": 1}}},
    [None],
    ["x", {}],
    20_000,
)


class Hostile:
    """Hold the folder of the trials and their record."""

    def __init__(self, folder: Path, record: Record, *, quick: bool, seed: int, times: int = 1):
        self.folder = folder
        self.record = record
        self.quick = quick
        self.times = times
        self.random = random.Random(seed)
        self.marker = folder / "working" / MARKER
        self.original = folder / "original"
        self.trial = folder / "trial"
        (folder / "working").mkdir(parents=True)
        os.chdir(folder / "working")
        Path("evil_module.py").write_text(
            f"open({str(self.marker)!r}, 'w').close()\n"
            "import torch\n"
            "class Net(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.c = torch.nn.Conv2d(3, 4, 3)\n"
            "    def forward(self, x):\n"
            "        return self.c(x).mean((2, 3))\n"
        )

    def make_original(self, *, reported: bool) -> None:
        """Make a run, its results and an export; also a comparison and a report."""
        with quietly():
            smi.pretrain("digits", out=self.original / "run", overrides=SETTINGS)
            smi.evaluate([self.original / "run"], protocols=["knn"], images=100)
            smi.export(self.original / "run", to="safetensors")
            if reported:
                self._make_reports()
        checkpoint = self.original / "run" / "checkpoints" / "last.pt"
        state = torch.load(checkpoint, weights_only=True)
        torch.save(state, self.original / "state.pt")

    def _make_reports(self) -> None:
        arguments = ["compare", "digits", "--methods", "SMI", "SimCLR", "--seeds", "1"]
        arguments += ["--out", str(self.original / "compared"), "--protocol", "knn"]
        arguments += ["--images", "100"]
        arguments += [f"{key}={json.dumps(v)}" for key, v in SETTINGS.items() if "." not in key]
        arguments += [f"--{k}={json.dumps(v)}" for k, v in SETTINGS.items() if "." in k]
        self.command(*[word.replace('"', "") for word in arguments])
        smi.report([self.original / "run"], self.original / "report.html")

    @staticmethod
    def command(*words: str) -> None:
        """Run a command in this process."""
        before, sys.argv = sys.argv, ["smi", *map(str, words)]
        try:
            smi_main()
        finally:
            sys.argv = before

    def fresh(self) -> None:
        """Restore the folder of the trial."""
        shutil.rmtree(self.trial, ignore_errors=True)
        shutil.copytree(self.original, self.trial)

    def try_all(self, case: str, detail: str, actions: list[Action]) -> None:
        """Count the outcome of each action."""
        outside = self._files_outside()
        for outcome in attempt(actions, marker=self.marker):
            self.record.add(case, ok=outcome.ok, detail=f"{detail}, {outcome.name}: {outcome.text}")
        if (written := self._files_outside() - outside) != set():
            self.record.add(case, ok=False, detail=f"{detail}: wrote {sorted(written)[:3]}")

    def _files_outside(self) -> set[str]:
        """Return the files of the folder that no trial may write to."""
        roots = (self.folder / "working", self.folder / "outside")
        return {
            str(path) for root in roots for path in root.rglob("*") if "results" not in path.name
        }

    def some(self, items: list[Any], most: int) -> list[Any]:
        """Return all items, or a part that the seed chooses."""
        most = max(3, most // 5) if self.quick else most * self.times
        return items if len(items) <= most else self.random.sample(items, most)

    # ------------------------------------------------------------------------------ readers

    def readers(self, kind: str) -> list[Action]:
        """Return the functions that read a kind of file of the trial's run."""
        run, compared = self.trial / "run", self.trial / "compared"
        out = self.trial / "out.html"
        every: dict[str, Callable[[], object]] = {
            "properties": lambda: _properties(run),
            "diagnose": lambda: smi.diagnose(run).text(),
            "load": lambda: smi.load(run)(torch.zeros(1, 3, 8, 8)),
            "show": lambda: stored([run]).text() + json.dumps(stored([run]).plain()),
            "resume": lambda: smi.pretrain(
                run / "config.yaml", out=run, quiet=True, overrides={"data.images": 128}
            ),
            "repeat": lambda: preview(run / "config.yaml", out=self.trial / "again").text(),
            "figure": lambda: write_figure("feature-std", [run], out=out),
            "report": lambda: smi.report([run], out, quiet=True),
            "table": lambda: make_table("comparison", [compared]).text(),
            "table 1": lambda: make_table("1", [run]).text(),
            "comparison": lambda: _comparison(compared),
            "collect": lambda: collect_runs([compared]),
            "comparison figure": lambda: smi.report([compared], out, quiet=True),
            "file": lambda: smi.load(run / "encoder.safetensors"),
            "export": lambda: smi.load(run / "export" / "safetensors"),
            "init": lambda: preview(
                "digits",
                out=self.trial / "again",
                overrides={"init": str(run / "encoder.safetensors"), "epochs": 1},
            ),
        }
        names = {
            "config": ("properties", "diagnose", "load", "repeat", "figure", "resume", "table 1"),
            "facts": ("properties", "diagnose", "load", "figure", "resume"),
            "metrics": ("properties", "diagnose", "figure", "resume"),
            "checkpoint": ("properties", "load", "resume"),
            "weights": ("file", "export", "init"),
            "result": ("show", "table 1", "figure"),
            "comparison": ("table", "comparison", "collect"),
            "portrait": ("report",),
        }[kind]
        return [(name, every[name]) for name in names]

    def quick_readers(self, kind: str, *, share: float) -> list[Action]:
        """Return the readers of a kind; those that take seconds only in a share of the trials."""
        slow = () if self.random.random() < share else ("resume", "figure", "repeat", "init")
        return [reader for reader in self.readers(kind) if reader[0] not in slow]

    # ------------------------------------------------------------------------------ damage

    def damage_text(self) -> None:
        """Cut, empty and replace every file of the run."""
        files = self.files()
        for kind, name in files:
            for damage, change in TEXT_DAMAGES.items():
                if self.quick and damage in ("50 MB", "a million ["):
                    continue
                self.fresh()
                path = self.trial / name
                path.write_bytes(change(path.read_bytes(), self.random))
                readers = self.quick_readers(kind, share=0.1)
                self.try_all("damaged text and bytes", f"{name} {damage}", readers)

    def files(self) -> list[tuple[str, str]]:
        """Return the kinds and paths of all files of the run that are read."""
        result = next((self.original / "run" / "eval").glob("*.json"))
        portrait = next((self.original / "run" / "figures").glob("*.json"))
        return [
            ("config", "run/config.yaml"),
            ("facts", "run/run.json"),
            ("metrics", "run/metrics.jsonl"),
            ("checkpoint", "run/checkpoints/last.pt"),
            ("weights", "run/encoder.safetensors"),
            ("weights", "run/export/safetensors/encoder.safetensors"),
            ("result", str(result.relative_to(self.original))),
            ("comparison", "compared/comparison.json"),
            ("portrait", str(portrait.relative_to(self.original))),
        ]

    def damage_structure(self) -> None:
        """Replace each value of each text file, and remove each key."""
        for kind, name in self.files():
            if kind in ("checkpoint", "weights", "portrait"):
                continue
            text = (self.original / name).read_text()
            if kind == "metrics":
                document: Any = [json.loads(line) for line in text.splitlines()]
            else:
                document = yaml.safe_load(text) if kind == "config" else json.loads(text)
            changes = [(place, value) for place in _places(document) for value in (*VALUES, _GONE)]
            for place, value in self.some(changes, 25):
                self.fresh()
                changed = _replaced(document, place, value)
                (self.trial / name).write_text(_written(kind, changed), errors="surrogatepass")
                readers = self.quick_readers(kind, share=0.05)
                shown = "removed" if value is _GONE else repr(value)[:30]
                self.try_all("damaged structure", f"{name} {place} {shown}", readers)

    def damage_result_stamps(self) -> None:
        """Change a result and give it the right stamp, as somebody could."""
        from smi.evaluation.results import stamp

        name = dict(self.files())["result"]
        document = json.loads((self.original / name).read_text())
        changes = [(p, v) for p in _places(document["protocol"]) for v in (*VALUES, _GONE)]
        for place, value in self.some(changes, 10):
            self.fresh()
            protocol = _replaced(document["protocol"], place, value)
            with contextlib.suppress(ValueError, TypeError):
                changed = document | {"protocol": protocol, "stamp": stamp(protocol)}
                (self.trial / name).write_text(json.dumps(changed))
                self.try_all(
                    "damaged structure", f"stamped {place} {value!r:.30}", self.readers("result")
                )

    def damage_checkpoint(self) -> None:
        """Flip bits, and write checkpoints of a wrong structure."""
        path = "run/checkpoints/last.pt"
        content = (self.original / path).read_bytes()
        for _ in range(5 if self.quick else 30):
            place, bit = self.random.randrange(len(content)), self.random.randrange(8)
            self.fresh()
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            (self.trial / path).write_bytes(flipped)
            self.try_all("bit flips", f"{path} byte {place}", [*self.readers("checkpoint")[:2]])
        state = torch.load(self.original / "state.pt", weights_only=True)
        changes = [
            (p, v) for p in _places(state, depth=3) for v in (*VALUES[:9], torch.zeros(2), _GONE)
        ]
        for place, value in self.some(changes, 15):
            self.fresh()
            torch.save(_replaced(state, place, value), self.trial / path)
            self._unfinish()
            self.try_all(
                "damaged structure",
                f"{path} {place} {value!r:.30}",
                self.quick_readers("checkpoint", share=0.3),
            )
        for name, made in self.odd_checkpoints():
            self.fresh()
            (self.trial / path).write_bytes(made)
            self._unfinish()
            self.try_all("hostile checkpoints", name, self.readers("checkpoint"))

    def _unfinish(self) -> None:
        """Let a resumed run read its checkpoint."""
        path = self.trial / "run" / "run.json"
        facts = json.loads(path.read_text())
        path.write_text(json.dumps(facts | {"status": "training"}))

    def odd_checkpoints(self) -> Iterator[tuple[str, bytes]]:
        """Yield checkpoints that would run code, or are not checkpoints at all."""

        def saved(value: object, **options: Any) -> bytes:
            file = io.BytesIO()
            torch.save(value, file, **options)
            return file.getvalue()

        yield "code", saved({"step": 1, "method": _Trap(self.marker)})
        yield "code, old format", saved(_Trap(self.marker), _use_new_zipfile_serialization=False)
        yield "bare pickle", pickle.dumps({"step": 1, "method": _Trap(self.marker)})
        yield "a list", saved([1, 2])
        yield "a tensor", saved(torch.zeros(3))
        yield "another method", saved({"step": 1, "method": {"encoder.x": torch.zeros(2)}})
        yield "a whole module", saved(torch.nn.Linear(2, 2))
        yield (
            "large views",
            saved({"step": 1, "method": {"encoder.x": torch.zeros(1).expand(10**11)}}),
        )
        bomb = io.BytesIO()
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(
                "archive/data.pkl", b"\0" * (20_000_000 if self.quick else 900_000_000)
            )
        yield "zip bomb", bomb.getvalue()
        torchscript = io.BytesIO()
        with contextlib.suppress(Exception):
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), torchscript)
        yield "TorchScript", torchscript.getvalue()

    # ------------------------------------------------------------------------------ weights

    def hostile_headers(self) -> None:
        """Change the header of the encoder file, and its bytes."""
        from safetensors.torch import load_file, save_file

        path = self.original / "run" / "encoder.safetensors"
        tensors = load_file(path)
        with path.open("rb") as file:
            raw = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header = json.loads(raw["__metadata__"]["smi"])
        changes = [(place, value) for place in _places(header) for value in (*VALUES, _GONE)]
        odd = [
            (("encoder",), header["encoder"] | more)
            for more in (
                {"layers": [0, 0, 0, 0]},
                {"layers": [10**9] * 4},
                {"channels": [65_536] * 4},
                {"channels": [2**31] * 4},
                {"checkpoint_path": "/etc/passwd"},
                {"pretrained_cfg": {"url": "http://localhost/x"}},
                {"pretrained": True},
                {"features_only": True},
                {"x=__import__('os').system('touch y'), y": None},
                {"name": "evil_module.Net"},
                {"name": "resnet18.a1_in1k"},
                {"name": "hf-hub:a/b"},
                {"name": "local-dir:."},
                {"name": "vit_giant_patch14_224"},
                {"name": "os.system"},
                {"name": ".."},
                {"stem": "x"},
                {"stem": []},
                {"name": "vit_tiny_patch16_224", "patch_size": 0},
                {"name": "vit_tiny_patch16_224", "img_size": 10**6},
            )
        ]
        for place, value in [*self.some(changes, 30), *odd]:
            self.fresh()
            changed = _replaced(header, place, value)
            target = self.trial / "run" / "encoder.safetensors"
            save_file(tensors, target, {"smi": json.dumps(changed)})
            shutil.copy(target, self.trial / "run" / "export" / "safetensors")
            readers = [("load", partial(smi.load, target))]
            if value is None or (place, value) in odd:
                readers.append(("export", partial(smi.export, target, to="timm", quiet=True)))
                readers.append(self.readers("weights")[-1])
            self.try_all("hostile headers of weights", f"{place} {value!r:.60}", readers)
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        odd_bytes = {
            "a header of 2^63 bytes": (2**63).to_bytes(8, "little") + content[8:],
            "a header of 10^9 bytes": (10**9).to_bytes(8, "little") + content[8:],
            "no header": bytes(8),
            "offsets beyond the end": content.replace(
                b'"data_offsets":[0,', b'"data_offsets":[9,', 1
            ),
            "deep": (200_000).to_bytes(8, "little") + b"[" * 200_000,
            "cut": content[: 8 + length // 2],
            "cut in the weights": content[: len(content) // 2],
        }
        for name, changed_bytes in odd_bytes.items():
            self.fresh()
            (self.trial / "run" / "encoder.safetensors").write_bytes(changed_bytes)
            self.try_all("hostile headers of weights", name, [self.readers("weights")[0]])

    def hostile_pickles(self) -> None:
        """Give pickles and arrays of objects where weights and arrays are expected."""
        self.fresh()
        trap = _Trap(self.marker)
        (self.trial / "x.pth").write_bytes(pickle.dumps(trap))
        torch.save({"state_dict": trap}, self.trial / "y.pth")
        np.save(self.trial / "x.npy", np.array([trap], dtype=object), allow_pickle=True)
        np.savez(self.trial / "x.npz", images=np.array([trap], dtype=object))
        hub = self.trial / "hub"
        hub.mkdir()
        config = {
            "architecture": "resnet18",
            "pretrained_cfg": {"mean": [0, 0, 0], "std": [1, 1, 1], "input_size": [3, 32, 32]},
        }
        (hub / "config.json").write_text(json.dumps(config))
        torch.save({"fc": trap}, hub / "pytorch_model.bin")
        actions: list[Action] = [
            ("pth", lambda: smi.load(f"timm:resnet18@{self.trial / 'x.pth'}")),
            ("pth of torch", lambda: smi.load(f"timm:resnet18@{self.trial / 'y.pth'}")),
            ("npy", lambda: describe_data(str(self.trial / "x.npy")).text()),
            ("npz", lambda: describe_data(str(self.trial / "x.npz")).text()),
            ("hub", lambda: smi.load(f"local-dir:{hub}")),
            ("checkpoint as config", lambda: preview(self.trial / "x.pth", out="x")),
        ]
        self.try_all("pickles", "a trap", actions)
        changes = [(place, value) for place in _places(config) for value in (*VALUES, _GONE)]
        extra = [
            (("model_args",), {"layers": [10**9] * 4}),
            (("model_args",), {"channels": [65_536] * 4}),
            (("architecture",), "evil_module.Net"),
        ]
        for place, value in [*self.some(changes, 12), *extra]:
            (hub / "config.json").write_text(json.dumps(_replaced(config, place, value)))
            self.try_all(
                "hostile configurations of a hub",
                f"{place} {value!r:.40}",
                [("hub", lambda: smi.load(f"local-dir:{hub}"))],
            )

    # ------------------------------------------------------------------------------ code

    def import_paths(self) -> None:
        """Name code in a recipe, a configuration and a header."""
        for name, section in (("method", "method"), ("encoder", "encoder")):
            self.fresh()
            path = self.trial / "run" / "config.yaml"
            config = yaml.safe_load(path.read_text())
            config[section]["name"] = "evil_module.Net"
            path.write_text(yaml.safe_dump(config))
            run, out = self.trial / "run", self.trial / "out"
            to = "safetensors" if self.quick else "onnx"
            actions: list[Action] = [
                *self.readers("config"),
                ("embed", lambda r=run, o=out: smi.embed(r, data="digits", out=f"{o}.npz")),
                ("evaluate", lambda r=run: smi.evaluate([r], images=100, quiet=True)),
                ("report", lambda r=run, o=out: smi.report([r], f"{o}.html", quiet=True)),
                ("export", lambda r=run, to=to: smi.export(r, to=to, quiet=True)),
                ("neighbours", lambda r=run: smi.neighbours(r, data="digits", queries=["x.png"])),
                ("recipe", lambda p=path: preview(p, out=self.trial / "again")),
                ("init", lambda r=run: preview("digits", out="x", overrides={"init": str(r)})),
                ("doctor", lambda r=run: smi.diagnose(r).text()),
            ]
            if name == "encoder":  # a comparison names its own methods
                compare = partial(smi.compare, ["SMI"], recipe=path, seeds=1)
                actions.append(("compare", partial(compare, out=self.trial / "c")))
            self.try_all("import paths in files", name, actions)

    # ------------------------------------------------------------------------------ YAML

    def hostile_yaml(self) -> None:
        """Give recipes with tags, bombs and odd values."""
        recipe = "data: {source: digits}\nviews: {policy: digits, size: 8}\n"
        recipe += "optimizer: {name: adamw, lr: 0.001}\nepochs: 1\nbatch_size: 32\n"
        laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n"
            for i in range(9)
        )
        texts = {
            "plain": recipe,
            "billion laughs": laughs,
            "laughs in a string": recipe + f"method: {{name: SMI, widths: {json.dumps(laughs)}}}\n",
            "itself": "a: &a [*a]\n",
            "itself as a key": "&a ? *a : 1\n",
            "merge": recipe + "x: &x {y: 1}\nz: {<<: [*x, *x]}\n",
            "deep": "a: " + "[" * 5000,
            "deep mapping": "{a: " * 3000,
            "tabs": "\t\t- : - :\n",
            "hex": recipe.replace("epochs: 1", "epochs: 0x" + "f" * 9000),
            "base 60": recipe.replace("epochs: 1", "epochs: 1" + ":59" * 3000),
            "digits": recipe.replace("epochs: 1", "epochs: " + "9" * 400),
            "many digits": recipe.replace("epochs: 1", "epochs: " + "9" * 9000),
            "documents": recipe + "---\na: 1\n",
            "NUL": recipe + "\0",
            "bidi": recipe + "‮x: 1\n",
            "anchors": "".join(f"a{i}: &a{i} 1\n" for i in range(5000)),
            "long key": recipe + "x" * 5000 + ": 1\n",
            "1 MB": recipe + "# " + "x" * 10**6,
        }
        for tag in (
            *(
                "python/object/apply:os.system [touch x]",
                "python/name:os.system",
                "python/tuple [1]",
            ),
            *("python/object/new:os.system [touch x]", "python/module:os", "binary '!'", "bool x"),
            *(
                "int ''",
                "float ''",
                "timestamp x",
                "set {a, b}",
                "omap [a: 1]",
                "pairs [a]",
                "null 1",
            ),
        ):
            texts[f"tag {tag}"] = recipe.replace("epochs: 1", f"epochs: !!{tag}")
        path = self.trial / "recipe.yaml"
        path.parent.mkdir(exist_ok=True)
        for name, text in texts.items():
            path.write_text(text, errors="surrogatepass")
            self.try_all("recipes", name, [("recipe", lambda: preview(path, out=self.trial / "y"))])

    # ------------------------------------------------------------------------------ images

    def hostile_images(self) -> None:
        """Decode damaged, enormous and misleading images."""
        from smi.runs.encoder import square

        folder = self.trial / "images"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in hostile_pictures(self.random, quick=self.quick):
            path = folder / name
            path.write_bytes(content)
            self.try_all("images", name, [("decode", partial(square, path, 32))])
        if hasattr(os, "mkfifo"):
            os.mkfifo(folder / "pipe.png")
        (folder / "loop.png").symlink_to("loop.png")
        (folder / "device.png").symlink_to("/dev/zero")
        good = Image.fromarray(np.zeros((40, 40, 3), np.uint8))
        for i in range(30):
            good.save(folder / f"good-{i}.png")
        self.try_all(
            "images", "a folder of all", [("data", lambda: describe_data(str(folder)).text())]
        )

    # ------------------------------------------------------------------------------ data files

    def hostile_data(self) -> None:
        """Read hostile lists, arrays, shards and archives."""
        folder = self.trial / "data"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (self.folder / "outside").mkdir(exist_ok=True)
        for name, content in hostile_lists():
            path = folder / name
            path.write_bytes(content)
            self.try_all(
                "lists",
                name,
                [("list", partial(read_list, str(path))), ("data", partial(_describe, path))],
            )
        for name, content in hostile_arrays(quick=self.quick):
            path = folder / name
            path.write_bytes(content)
            self.try_all("arrays", name, [("data", partial(_describe, path))])
        for name, content in hostile_tars():
            path = folder / name
            path.write_bytes(content)
            self.try_all("shards", name, _shard_readers(path, folder))
        for name, content in hostile_parquet(quick=self.quick):
            path = folder / name
            path.write_bytes(content)
            self.try_all("shards", name, _shard_readers(path, folder))
        self.hostile_indices(folder / "shards")
        for name, content in hostile_archives(self.folder / "outside"):
            path = folder / name
            path.write_bytes(content)
            target = folder / "extracted" / "inner"
            target.parent.mkdir(exist_ok=True)
            self.try_all("archives", name, [("extract", partial(extract, path, target))])
            shutil.rmtree(target.parent, ignore_errors=True)
        for name in ODD_NAMES:
            extracted = _tar_bytes([(f"inner/{name}.txt", b"x")])
            (folder / "odd.tar").write_bytes(extracted)
            target = folder / "extracted" / "inner"
            target.parent.mkdir(exist_ok=True)
            self.try_all(
                "archives", repr(name), [("extract", partial(extract, folder / "odd.tar", target))]
            )
            shutil.rmtree(target.parent, ignore_errors=True)

    def hostile_indices(self, folder: Path) -> None:
        """Read shards beside a shards.json with false facts, and write over it."""
        folder.mkdir()
        content = _tar_bytes([(f"{i}.png", _png(8, 8)) for i in range(12)])
        (folder / "train-000000.tar").write_bytes(content)
        index = {"shards": [{"name": "train-000000.tar", "bytes": len(content), "images": 12}]}
        changes = [(place, value) for place in _places(index) for value in (*VALUES, _GONE)]
        names = (
            "../../outside/x",
            "/etc/passwd",
            "..",
            "",
            "precious.txt",
            "train-000000.tar/../x",
        )
        changes += [(("shards", 0, "name"), name) for name in names]
        source = self.trial / "few"
        source.mkdir(exist_ok=True)
        (source / "a.png").write_bytes(_png(8, 8))
        for place, value in self.some(changes, 15):
            (folder / "shards.json").write_text(json.dumps(_replaced(index, place, value)))
            described = partial(_describe, folder)
            self.try_all("shards", f"shards.json {place} {value!r:.30}", [("data", described)])
        out = folder / "written"
        for name in names:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            (out / "precious.txt").write_text("x")
            (out / "shards.json").write_text(
                json.dumps(_replaced(index, ("shards", 0, "name"), name))
            )
            written = partial(smi_shard, source, out)
            self.try_all("shards", f"written over {name!r}", [("shard", written)])
            kept = (out / "precious.txt").is_file()
            self.record.add("shards", ok=kept, detail=f"{name!r} made `smi shard` remove a file")

    # ------------------------------------------------------------------------------ names

    def hostile_names(self) -> None:
        """Name runs, classes and files hostilely, and look at everything that is written."""
        for name in self.some([name for name in ODD_NAMES if name != ".."], 4):
            self._try_name(name)

    def _try_name(self, name: str) -> None:
        self.fresh()
        file_name = name.replace("/", "")
        data = self.trial / "photos"
        for label in (file_name, "plain"):
            (data / label).mkdir(parents=True)
            for i in range(12):
                (data / label / f"{file_name[:80]}{i}.png").write_bytes(_png(9, 9, seed=i))
        run = self.trial / file_name
        shutil.copytree(self.trial / "run", run)
        self._rename_inside(run, name)
        compared = self.trial / "compared" / "comparison.json"
        document = json.loads(compared.read_text())
        document["rows"][0]["name"] = document["rows"][0]["method"] = name
        compared.write_text(json.dumps(document))
        where = self.trial / "shown"
        where.mkdir()
        actions: list[Action] = [
            ("data", lambda: _shown(where / "data.txt", "data", str(data))),
            (
                "data as JSON",
                lambda: _shown(where / "data.json.txt", "data", str(data), "--json"),
            ),
            ("doctor", lambda: _shown(where / "doctor.txt", "doctor", str(run))),
            ("show", lambda: _shown(where / "show.txt", "evaluate", "--show", str(run))),
            (
                "table",
                lambda: _shown(where / "table.txt", "table", "comparison", str(compared.parent)),
            ),
            ("csv", lambda: _rewritten(compared.parent)),
            ("report", lambda: smi.report([run], where / "report.html", quiet=True, data=data)),
            ("page", lambda: smi.report([compared.parent], where / "page.html", quiet=True)),
            ("figure", lambda: write_figure("feature-std", [run], out=where / "figure.html")),
            ("embed", lambda: smi.embed(run, data=data, out=where / "h.npz")),
            (
                "no run",
                lambda: _shown(where / "none.txt", "doctor", str(self.trial / f"no{name}")),
            ),
        ]
        self.try_all("names", repr(name)[:40], actions)
        for fault in faults_of_output(where, compared.parent):
            self.record.add("names", ok=False, detail=f"{name!r:.40}: {fault}")

    def _rename_inside(self, run: Path, name: str) -> None:
        """Put the name into the files of a run."""
        path = run / "run.json"
        facts = json.loads(path.read_text())
        facts["status"] = facts["device"] = facts["method"]["display_name"] = name
        path.write_text(json.dumps(facts))
        result = next((run / "eval").glob("*.json"))
        document = json.loads(result.read_text())
        document["sentence"] = name
        document["notes"] = [name]
        document["scores"][0]["name"] = name
        result.write_text(json.dumps(document))

    # ------------------------------------------------------------------------------ arguments

    def hostile_arguments(self) -> None:
        """Give odd words to the command line."""
        long, many = "9" * 400, "9" * 5000
        words = [
            *(
                ["pretrain", "digits", "--out", "x", f"--{name}", value]
                for name in (
                    "epochs",
                    "batch-size",
                    "seed",
                    "steps",
                    "accumulate",
                    "data.images",
                    "method.widths",
                    "optimizer.lr",
                    "views.size",
                    "time",
                    "encoder.layers",
                    "method.redundancy_weight",
                    "data.resolution",
                    "log.every",
                    "init",
                )
                for value in (
                    long,
                    many,
                    "-1",
                    "0",
                    "nan",
                    "1e400",
                    "",
                    "[",
                    "[0,0]",
                    "{}",
                    "‮",
                    "\0",
                )
            ),
            *(
                ["cost", f"--{name}", value]
                for name in ("batch", "dim", "devices")
                for value in (long, "0", "-1", "x", "1e9")
            ),
            ["data", "{0..99999999999}"],
            ["data", "{a,b}" * 40],
            ["data", "x" * 5000],
            ["data", "http://localhost:1/x.tar"],
            ["data", "nonsense://x"],
            ["evaluate", "\0"],
            ["pretrain", "x" * 10_000],
            ["pretrain", "digits", "--out", "x", "--" + "a." * 2000 + "b", "1"],
            ["compare", "--methods", "SMI", "--out", "x", "--sweep", "=" * 300],
            ["compare", "--methods", "evil_module\x1b[31m", "--out", "x"],
            ["embed", "timm:" + "x" * 3000, "--data", "digits", "--out", "x.npz"],
            ["figure", "\x1b[31m", "x", "--out", "x.html"],
            ["shard", "digits", "--out", "x", "--size", long],
            ["pretrain", "--out", "/etc/passwd", "digits"],
            ["pretrain", "--out", "/proc/x/y", "digits"],
            ["report", "/etc", "--out", "x.html"],
            ["table", "comparison", "/etc"],
        ]
        for line in self.some(words, 40):
            if line[0] == "pretrain":
                line = [*line, "--dry-run"] if "--out" in line else line
            action = partial(self.command, *line)
            self.try_all("arguments", " ".join(line)[:80], [("command", action)])
            for path in Path(".").iterdir():
                if path.name != "evil_module.py" and path.name != "__pycache__":
                    shutil.rmtree(path, ignore_errors=True)


_GONE = object()


class _Trap:
    """Write the marker when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.marker}",))


def _properties(folder: Path) -> None:
    run = smi.Run(folder)
    repr(run)
    run.facts  # noqa: B018
    run.metrics()
    run.probes()
    run.normalization  # noqa: B018
    run.finished  # noqa: B018
    run.differences(run.resolve(), num_images=3)


def _comparison(folder: Path) -> None:
    comparison = Comparison.read(folder)
    comparison.text()
    comparison.markdown()
    comparison.csv()
    json.dumps(comparison.plain())


def _describe(path: Path) -> None:
    """Print what `smi data` says about a path."""
    describe_data(str(path)).text()


def _shard_readers(path: Path, folder: Path) -> list[Action]:
    """Return the readers of a shard."""
    shard = describe(str(path))
    opened = _lost_is_a_sentence(partial(open_shard, shard, folder))
    return [("count", partial(count_images, shard)), ("open", opened)]


def _lost_is_a_sentence(action: Callable[[], object]) -> Callable[[], object]:
    """Count a lost shard as a refusal: training goes on without it."""
    from smi.data.remote import LostError
    from smi.errors import UserError

    def run() -> object:
        try:
            return action()
        except LostError as error:
            raise UserError(error) from error

    return run


def smi_shard(source: Path, out: Path) -> None:
    """Write shards of a folder."""
    from smi.data.shard_writer import write_shards

    write_shards(str(source), out=str(out))


def _shown(path: Path, *words: str) -> None:
    """Write what a command prints to a file."""
    with (
        path.open("w", errors="backslashreplace") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
        contextlib.suppress(SystemExit),
    ):
        Hostile.command(*words)


def _rewritten(folder: Path) -> None:
    """Write the tables of a comparison again."""
    Comparison.read(folder).write(folder)


def faults_of_output(folder: Path, compared: Path) -> Iterator[str]:
    """Yield what is not escaped in the files that commands wrote or printed."""
    for path in folder.glob("*.txt"):
        text = path.read_text(errors="surrogateescape")
        bad = {c for c in text if not c.isprintable() and c != "\n"}
        if bad:
            yield f"{path.name} shows {sorted(bad)!r:.40}"
        if "Traceback" in text:
            yield f"{path.name} is a traceback"
    for path in folder.glob("*.html"):
        text = path.read_text(errors="surrogateescape")
        for tag in ("<script>alert", "<img src=x", "</script>alert"):
            if tag in text:
                yield f"{path.name} holds {tag}"
        if "‮" in text:
            yield f"{path.name} reverses text"
    table = compared / "table.csv"
    if table.is_file():
        for row in csv.reader(io.StringIO(table.read_text())):
            for cell in row:
                if re.match(r"[=+@\t\r]|-(?![\d.]+(e-?\d+)?$)", cell) and cell != "-":
                    yield f"table.csv has the formula {cell!r:.40}"
    table = compared / "table.md"
    if table.is_file():
        text = table.read_text()
        if re.search(r"<(script|img)|(?<!\\)\]\(|\x1b|‮", text):
            yield "table.md is not escaped"


# ---------------------------------------------------------------------------------- damage


TEXT_DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda content, _: b"",
    "cut": lambda content, _: content[: len(content) // 2],
    "cut by a byte": lambda content, _: content[:-1],
    "random": lambda content, r: r.randbytes(5000),
    "not UTF-8": lambda content, _: content[:40] + b"\xff\xfe\x80" + content[40:],
    "text": lambda content, _: b"hello\n",
    "NUL": lambda content, _: bytes(1000),
    "a million [": lambda content, _: b"[" * 10**6,
    "nested objects": lambda content, _: b'{"a":' * 50_000,
    "a number": lambda content, _: b"9" * 6000,
    "50 MB": lambda content, _: b'{"a": "' + b"x" * 50_000_000 + b'"}',
    "a list": lambda content, _: b"[1, 2]\n",
    "null": lambda content, _: b"null\n",
    "twice": lambda content, _: content + content,
    "CRLF": lambda content, _: content.replace(b"\n", b"\r\n"),
    "a picture": lambda content, _: _png(8, 8),
}


def _places(value: Any, prefix: tuple[Any, ...] = (), depth: int = 8) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each value inside nested values."""
    places = [prefix] if prefix else []
    if depth and isinstance(value, dict):
        for key in value:
            places += _places(value[key], (*prefix, key), depth - 1)
    elif depth and isinstance(value, list | tuple):
        for i in range(min(len(value), 3)):
            places += _places(value[i], (*prefix, i), depth - 1)
    return places


def _replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a place, or without it."""
    changed = copy.deepcopy(document)
    *path, last = place
    level = changed
    for key in path:
        level = level[key]
    if isinstance(level, tuple):
        return changed
    if value is _GONE:
        del level[last]
    else:
        level[last] = value
    return changed


def _written(kind: str, document: Any) -> str:
    """Write a document as its file has it."""
    if kind == "config":
        return str(yaml.safe_dump(document))
    if kind == "metrics":
        return "".join(json.dumps(line) + "\n" for line in document)
    return json.dumps(document)


# ---------------------------------------------------------------------------------- pictures


def _png(width: int, height: int, seed: int = 0) -> bytes:
    """Return a small PNG."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def _png_of(width: int, height: int, depth: int, colour: int, data: bytes, *extra: bytes) -> bytes:
    """Return a PNG that claims any size."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = b"".join(extra) + _chunk(b"IDAT", zlib.compress(data))
    return b"\x89PNG\r\n\x1a\n" + head + body + _chunk(b"IEND", b"")


def hostile_pictures(rng: random.Random, *, quick: bool) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of files that pretend to be images."""
    plain: dict[str, bytes] = {}
    picture = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    )
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        file = io.BytesIO()
        picture.save(file, kind)
        plain[kind] = file.getvalue()
    for kind, content in plain.items():
        suffix = kind.lower()
        yield f"empty.{suffix}", b""
        yield f"half.{suffix}", content[: len(content) // 2]
        for i in range(3 if quick else 12):
            damaged = bytearray(content)
            for _ in range(rng.randrange(1, 12)):
                # headers matter more than pixels
                place = rng.randrange(min(200, len(content)) if i % 2 else len(content))
                damaged[place] = rng.randrange(256)
            yield f"damaged-{i}.{suffix}", bytes(damaged)
    side = 2**31 - 1
    yield "giant.png", _png_of(side, side, 8, 2, b"\0" * 1000)
    yield "wide.png", _png_of(200_000_001, 1, 8, 2, b"\0" * 1000)
    yield "zero.png", _png_of(0, 0, 8, 2, b"")
    yield "thin.png", _png_of(1, 100_000, 8, 0, b"\0" * 200_000)
    if not quick:
        yield "bomb.png", _png_of(10_000, 10_000, 8, 0, bytes(10_001 * 10_000))
    long = b"\0" * 100_000_000
    text = b"Comment\0\0" + zlib.compress(long)
    yield "text-bomb.png", _png_of(8, 8, 8, 2, b"\0" * 200, _chunk(b"zTXt", text))
    profile = b"icc\0\0" + zlib.compress(long)
    yield "profile-bomb.png", _png_of(8, 8, 8, 2, b"\0" * 200, _chunk(b"iCCP", profile))
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + rng.randbytes(500)
    file = io.BytesIO()
    picture.save(file, "JPEG", exif=exif, icc_profile=rng.randbytes(3000))
    yield "junk.jpg", file.getvalue()
    frames = [Image.new("P", (4, 4), i % 256) for i in range(50 if quick else 3000)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], loop=0)
    yield "endless.gif", file.getvalue()
    yield "giant.gif", b"GIF89a\xff\xff\xff\xff\xf7\0\0" + plain["GIF"][13:]
    yield "polyglot.jpg", plain["JPEG"] + b"<script>alert(1)</script>"
    zipped = io.BytesIO(plain["JPEG"])
    zipped.seek(0, 2)
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr("x.py", "raise SystemExit")
    yield "zip.jpg", zipped.getvalue()
    yield "page.gif", b"GIF89a/*<html><script>alert(1)</script>*/"
    yield "svg.png", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    yield "postscript.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) print\n"
    yield (
        "giant.bmp",
        b"BM"
        + struct.pack("<IHHIIiiHHIIiiII", 100, 0, 0, 54, 40, 2**30, 2**30, 1, 24, 0, 0, 0, 0, 0, 0),
    )
    yield "tiff-loop.tif", b"II*\0\x08\0\0\0\x01\0\0\x01\x03\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"
    yield "tiff-many.tif", b"II*\0\x08\0\0\0\xff\xff" + rng.randbytes(65_535 * 12)


# ---------------------------------------------------------------------------------- data files


def hostile_lists() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of lists of images."""
    lines = {
        "outside": "../../../../etc/passwd\n/etc/passwd\n/dev/zero\n/dev/stdin\n/proc/self/mem\n",
        "url": "file:///etc/passwd\nfile:///dev/zero\nnonsense://x\n",
        "odd": "\0\n\x1b[31mred\n‮x.png\n<script>\n",
        "long": "x" * 5_000_000 + "\n",
        "blank": "\n\n \n\t\n",
        "labels": "a.png\t=1+1\nb.png\t\x1b[31m\nc.png\t" + "x" * 100_000 + "\n",
    }
    for name, text in lines.items():
        yield f"{name}.txt", text.encode()
        table = "path,label,split\n" + "".join(f"{line},x,train\n" for line in text.split("\n"))
        yield f"{name}.csv", table.encode()
        rows = (json.dumps({"path": line, "label": line}) for line in text.split("\n"))
        yield f"{name}.jsonl", "\n".join(rows).encode()
    for i, value in enumerate(VALUES):
        yield f"path-{i}.jsonl", json.dumps({"path": value}).encode()
        yield f"label-{i}.jsonl", json.dumps({"path": "x.png", "label": value}).encode()
        yield f"split-{i}.jsonl", json.dumps({"path": "x.png", "split": value}).encode()
    yield "deep.jsonl", b'{"path":' * 100_000
    yield "quote.csv", b'path,label\n"' + b"x" * 200_000
    yield "wide.csv", b"," * 200_000
    yield "latin.txt", b"\xe9.png\n"
    yield "surrogate.jsonl", b'{"path": "\\ud800.png", "label": "\\udfff"}'
    yield "binary.csv", bytes(range(256)) * 20


def hostile_arrays(*, quick: bool) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of array files."""

    def npy(shape: str, descr: str = "'|u1'", body: bytes = b"\0" * 100) -> bytes:
        head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
        head += b" " * (63 - (len(head) + 10) % 64) + b"\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body

    odd = {
        "huge": npy("(1000000000000, 8, 8)"),
        "negative": npy("(-1, 8, 8)"),
        "overflow": npy("(9223372036854775807, 9223372036854775807, 4)"),
        "empty": npy("(0, 8, 8)"),
        "objects": npy("(2, 8, 8)", "'|O'"),
        "void": npy("(2, 8, 8)", "'|V100'"),
        "fields": npy("(2,)", "[('a', '<i4'), ('b', '|O')]"),
        "code": npy("__import__('os').system('touch x')"),
        "deep": npy("(" * 5000 + ")" * 5000),
        "scalar": npy("()"),
        "many axes": npy("(" + "1," * 64 + ")"),
        "dates": npy("(1, 8, 8)", "'<M8[s]'", b"\0" * 512),
        "text": npy("(1, 8, 8)", "'<U4'", b"\0" * 1024),
        "complex": npy("(1, 8, 8)", "'<c16'", b"\0" * 1024),
        "nan": npy("(1, 8, 8)", "'<f8'", struct.pack("<d", math.nan) * 64),
        "infinite": npy("(1, 8, 8)", "'<f8'", struct.pack("<d", math.inf) * 64),
        "large": npy(
            "(1, 8, 8)", "'<f8'", struct.pack("<d", 1e308) * 32 + struct.pack("<d", -1e308) * 32
        ),
    }
    for name, content in odd.items():
        yield f"{name}.npy", content
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images.npy", content)
        yield f"{name}.npz", file.getvalue()
        yield f"cut-{name}.npz", file.getvalue()[:-30]
    bomb = io.BytesIO()
    size = 10**6 if quick else 3 * 10**8
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", npy(f"({size}, 1, 1)", body=bytes(size)))
    yield "bomb.npz", bomb.getvalue()
    claimed = bytearray(bomb.getvalue())
    place = claimed.rfind(b"PK\x01\x02") + 24
    claimed[place : place + 4] = b"\xff\xff\xff\xfe"
    yield "claims.npz", bytes(claimed)
    for name, head in {
        "huge": b"\0\0\x08\x03" + struct.pack(">III", 2**31, 2**31, 2**31),
        "axes": b"\0\0\x08\xff" + b"\0\0\0\1" * 255,
        "none": b"\0\0\x08\x00",
        "cut": b"\0\0\x08\x03\0",
        "type": b"\0\0\x07\x03" + bytes(12),
        "plain": b"\0\0\x08\x03" + struct.pack(">III", 2, 8, 8) + bytes(128),
    }.items():
        yield f"{name}-images-idx3-ubyte", head + b"\0" * 20 * (name != "plain")
        yield f"{name}-images-idx3-ubyte.gz", gzip.compress(head)
    zeros = bytes(10**6 if quick else 5 * 10**8)
    yield (
        "bomb-images-idx3-ubyte.gz",
        gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 2, 8, 8) + zeros),
    )


def _tar_bytes(members: list[tuple[str, bytes]]) -> bytes:
    """Return a tar file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", errors="surrogateescape") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _with_size(content: bytes, field: bytes) -> bytes:
    """Return a tar file whose first header has another size, with a right checksum."""
    head = bytearray(content[:512])
    head[124:136] = field.ljust(12, b"\0")[:12]
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return bytes(head) + content[512:]


def hostile_tars() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of tar shards."""
    plain = _tar_bytes([("0.png", _png(8, 8)), ("0.cls", b"3"), ("1.png", _png(8, 8))])
    yield "plain.tar", plain
    yield "negative.tar", _with_size(plain, b"\xff" * 11 + b"\x00")
    yield "back.tar", _with_size(plain, b"\xff" * 10 + b"\xfc\x00")
    yield "large.tar", _with_size(plain, b"77777777777\0")
    yield "enormous.tar", _with_size(plain, b"\x80" + b"\x7f" * 11)
    yield "letters.tar", _with_size(plain, b"abcdefghijk\0")
    yield "cut.tar", plain[:700]
    yield "zeros.tar", bytes(10_240)
    yield "text.tar", b"hello" * 1000
    yield "gzip.tar", gzip.compress(plain)
    for name, header in (("long", b"L"), ("pax", b"x"), ("global", b"g")):
        info = tarfile.TarInfo("x")
        info.type = header
        info.size = 0
        block = info.tobuf(tarfile.USTAR_FORMAT)
        yield f"chain-{name}.tar", block * 3000 + plain
        info.size = 8
        yield (
            f"odd-{name}.tar",
            info.tobuf(tarfile.USTAR_FORMAT) + b"99 a=b\n\n".ljust(512, b"\0") + plain,
        )
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S", b"7"):
        info = tarfile.TarInfo("0.png")
        info.type = kind
        info.linkname = "../../etc/passwd"
        info.size = 10**10
        yield f"type-{kind.hex()}.tar", info.tobuf(tarfile.GNU_FORMAT) + plain
    for i, value in enumerate(VALUES):
        members = [
            ("0.png", _png(8, 8)),
            ("0.json", json.dumps({"label": value, "path": value}).encode()),
        ]
        yield f"json-{i}.tar", _tar_bytes(members)
    yield "deep.tar", _tar_bytes([("0.png", _png(8, 8)), ("0.json", b"[" * 500_000)])
    yield "names.tar", _tar_bytes([(f"{name}{i}.png", b"x") for i, name in enumerate(ODD_NAMES)])
    yield "many.tar", _tar_bytes([(f"{i}.png", b"") for i in range(5000)])


def hostile_parquet(*, quick: bool) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of Parquet shards."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return
    images = [{"bytes": _png(8, 8), "path": name} for name in ("a", "\x1b[31m", "../x")]

    def written(
        columns: dict[str, Any], metadata: dict[bytes, bytes] | None = None, **options: Any
    ) -> bytes:
        table = pa.table(columns)
        file = io.BytesIO()
        parquet.write_table(table.replace_schema_metadata(metadata), file, **options)
        return file.getvalue()

    plain = written({"image": images, "label": [0, 1, 10**6]})
    yield "plain.parquet", plain
    rng = random.Random(0)
    for i in range(5 if quick else 12):
        damaged = bytearray(plain)
        for _ in range(rng.randrange(1, 6)):
            start = len(plain) * 2 // 3 if i % 2 else 0
            damaged[rng.randrange(start, len(plain))] = rng.randrange(256)
        yield f"damaged-{i}.parquet", bytes(damaged)
    yield "cut.parquet", plain[:-4]
    yield "empty.parquet", b""
    yield "magic.parquet", b"PAR1" + b"\xff" * 4 + b"PAR1"
    yield "no-images.parquet", written({"x": [1, 2]})
    yield "labels.parquet", written({"image": images, "label": [[1], [2], [3]]})
    for i, value in enumerate(VALUES):
        with contextlib.suppress(ValueError):
            info = {
                b"huggingface": json.dumps(
                    {"info": {"features": {"label": {"names": value}}}}
                ).encode()
            }
            yield f"names-{i}.parquet", written({"image": images, "label": [0, 1, 2]}, info)
    size = 10**7 if quick else 4 * 10**8
    yield (
        "bomb.parquet",
        written({"image": [{"bytes": bytes(size), "path": "x"}]}, compression="zstd"),
    )
    same = [{"bytes": b"x" * 1000, "path": "x"}] * (1000 if quick else 300_000)
    yield "repeated.parquet", written({"image": same}, compression="zstd")


def hostile_archives(outside: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of archives that want to leave their folder."""

    def archive_of(*members: tuple[str, bytes, str]) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, kind, link in members:
                info = tarfile.TarInfo(name)
                info.type = kind
                info.linkname = link
                content = b"x" if kind == tarfile.REGTYPE else b""
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return file.getvalue()

    file, link, hard = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
    yield "parent.tgz", archive_of(("inner/../../../outside/x", file, ""))
    yield "absolute.tgz", archive_of((str(outside / "x"), file, ""))
    yield "link.tgz", archive_of(("inner/l", link, str(outside)), ("inner/l/x", file, ""))
    yield (
        "relative link.tgz",
        archive_of(("inner/l", link, "../../../../outside"), ("inner/l/x", file, "")),
    )
    yield "hard link.tgz", archive_of(("inner/h", hard, "/etc/passwd"))
    yield "device.tgz", archive_of(("inner/d", tarfile.CHRTYPE, ""))
    yield "pipe.tgz", archive_of(("inner/p", tarfile.FIFOTYPE, ""))
    yield "no folder.tgz", archive_of(("x", file, ""))
    yield "file.tgz", archive_of(("inner", file, ""))
    yield "cut.tgz", archive_of(("inner/x", file, ""))[:60]
    yield "text.tgz", b"hello"
    yield "empty.tgz", b""


# ---------------------------------------------------------------------------------- the campaign


PARTS = (
    "damage_text",
    "damage_structure",
    "damage_result_stamps",
    "damage_checkpoint",
    "hostile_headers",
    "hostile_pickles",
    "import_paths",
    "hostile_yaml",
    "hostile_images",
    "hostile_data",
    "hostile_names",
    "hostile_arguments",
)
READS_ONLY_A_RUN = {"hostile_pickles", "import_paths", "hostile_yaml"}  # no comparison or report


def campaign(
    folder: Path, *, quick: bool, seed: int, parts: tuple[str, ...] = PARTS, times: int = 1
) -> Record:
    """Run the parts of the campaign in a folder and return their record."""
    torch.set_num_threads(1)
    record = Record("hostile", seed=seed)
    before = Path.cwd()
    os.environ["SMI_CACHE"] = str(folder / "cache")
    try:
        hostile = Hostile(folder, record, quick=quick, seed=seed, times=times)
        hostile.make_original(reported=not READS_ONLY_A_RUN.issuperset(parts))
        for part in parts:
            hostile.random = random.Random(f"{seed} {part}")
            getattr(hostile, part)()
            tried = sum(row["tried"] for row in record.cases.values())
            print(f"{part}: {tried:,} trials so far, {record.lost:,} lost", flush=True)
    finally:
        os.chdir(before)
    return record


def main() -> None:
    """Run the campaign and write its results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few trials of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", type=int, default=1, help="as many times more changed values")
    parser.add_argument("--part", choices=PARTS, action="append", help="only these parts")
    parser.add_argument("--no-write", action="store_true", help="do not write the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smi-hostile-") as folder:
        parts = tuple(arguments.part or PARTS)
        record = campaign(
            Path(folder),
            quick=arguments.quick,
            seed=arguments.seed,
            parts=parts,
            times=arguments.times,
        )
    tried = sum(row["tried"] for row in record.cases.values())
    print(f"{tried:,} trials, {record.lost:,} lost")
    if not arguments.no_write:
        print(record.write())
    sys.exit(record.lost > 0)


if __name__ == "__main__":
    main()
