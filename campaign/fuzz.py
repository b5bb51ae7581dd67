"""Fuzz every parser with atheris, guided by the coverage of smi's own code.

python campaign/fuzz.py                    more than a million inputs (many minutes)
python campaign/fuzz.py --quick            a few thousand
python campaign/fuzz.py --target recipe --runs 100000

An input survives if the parser works, or refuses it by one sentence. Each kind of crash is kept in
--crashes as a file; a mended one becomes a case of tests/campaign/test_fuzz.py.
"""

import argparse
import hashlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

from attempt import fault_of
from record import Record

from smi.errors import TrainingError, UserError

HOW_TO_INSTALL = (
    "fuzzing needs atheris, which has wheels for Linux and Python 3.11: "
    "pip install --target DIR atheris, then run this with DIR on PYTHONPATH"
)
Target = Callable[[bytes], object]
# Inputs of the full form, by target: slow parsers get fewer.
RUNS = {
    "time": 300_000,
    "pattern": 200_000,
    "sweep": 250_000,
    "facts": 150_000,
    "metrics": 50_000,
    "value": 20_000,
    "header": 20_000,
    "weights": 30_000,
    "list-txt": 20_000,
    "list-csv": 20_000,
    "list-jsonl": 20_000,
    "index": 20_000,
    "tar": 10_000,
    "npy": 5_000,
    "npz": 3_000,
    "idx": 10_000,
    "result": 10_000,
    "comparison": 5_000,
    "command": 5_000,
    "recipe": 3_000,
    "config": 2_000,
    "parquet": 2_000,
}
QUICK_SHARE = 0.002
SECONDS_PER_INPUT, MEGABYTES = 20, 4096


def targets(folder: Path) -> dict[str, Target]:
    """Return the parsers by name; those of files read from a folder in memory."""
    from smi.cli import parser, split_settings
    from smi.comparison.comparison import Comparison
    from smi.comparison.grid import _parse_sweep, _rows
    from smi.config.coerce import to_type
    from smi.config.resolve import resolve
    from smi.data import remote
    from smi.data.arrays import read_arrays
    from smi.data.lists import read_list
    from smi.data.remote import File, LostError
    from smi.data.shard_files import Shard, count_images, open_shard
    from smi.data.shard_index import _read_written, read_class_names
    from smi.evaluation.results import read as read_result
    from smi.evaluation.results import results_table, stamp
    from smi.files import parse_json
    from smi.runs.encoder import check_preprocessing, read_weights
    from smi.runs.run import Facts, Run
    from smi.training.budget import parse_time

    root = parser()

    def text(data: bytes) -> str:
        return data.decode(errors="surrogateescape")

    def file(name: str, data: bytes) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    def value(data: bytes) -> None:
        for kind in (int, float, bool, str, tuple[int, ...], list[float], int | None):
            refused(lambda kind=kind: to_type(text(data), kind, "setting"))

    def pattern(data: bytes) -> None:
        remote.MAX_LOCATIONS = 1000  # a million names would take a second
        remote.expand_braces(text(data))

    def sweep(data: bytes) -> None:
        refused(lambda: _parse_sweep(text(data)))
        if len(data) % 200 == 7:  # resolving each value takes longer
            refused(lambda: _rows("digits", {}, ["SMI"], text(data)))

    def facts(data: bytes) -> None:
        parsed = Facts.parse(parse_json(data, "run.json"))
        parsed.epochs  # noqa: B018

    def metrics(data: bytes) -> None:
        file("config.yaml", b"")
        file("metrics.jsonl", data)
        run = Run(folder)
        run.metrics()
        run.probes()

    def header(data: bytes) -> None:
        about = {"__metadata__": {"smi": text(data).encode(errors="replace").decode()}}
        tensor = {"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
        content = json.dumps(about | tensor).encode()
        path = file("x.safetensors", len(content).to_bytes(8, "little") + content + b"\0")
        check_preprocessing(read_weights(path)[1], path)

    def weights(data: bytes) -> None:
        read_weights(file("y.safetensors", data))

    def index(data: bytes) -> None:
        file("shards.json", data)
        locations = [str(folder / "train-000000.tar")]
        _read_written(locations)
        read_class_names(Shard(locations[0], 1, "", 1), locations)

    def shard(suffix: str) -> Target:
        def read(data: bytes) -> None:
            path = file(f"x.{suffix}", data)
            described = File(str(path), len(data), "")
            refused(lambda: count_images(described))
            try:
                open_shard(described, folder)
            except LostError as error:
                raise UserError(error) from error

        return read

    def array(name: str) -> Target:
        return lambda data: read_arrays(file(name, data))

    def command(data: bytes) -> None:
        words = [word for word in text(data).split("\n") if "\0" not in word]
        stderr, sys.stderr = sys.stderr, io.StringIO()
        stdout, sys.stdout = sys.stdout, io.StringIO()
        try:
            rest, _ = split_settings(words, root)
            root.parse_known_args(rest)
        except SystemExit as error:
            if error.code not in (0, 2):
                raise
            message = sys.stderr.getvalue().rstrip("\n")
            if error.code == 2 and not message.isprintable():
                raise AssertionError(f"not printable: {message!r:.200}") from error
        finally:
            sys.stderr, sys.stdout = stderr, stdout

    def recipe(data: bytes) -> None:
        resolve(file("recipe.yaml", data))

    def config(data: bytes) -> None:
        file("config.yaml", data)
        run = Run(folder)
        repr(run)
        run.resolve()

    def result(data: bytes) -> None:
        document = parse_json(data, "result.json")
        if isinstance(document.get("protocol"), dict):  # else no input would get further
            document["stamp"] = stamp(document["protocol"])
        path = file("result.json", json.dumps(document).encode())
        results_table([("x", [read_result(path)])]).text()

    def comparison(data: bytes) -> None:
        file("comparison.json", data)
        read = Comparison.read(folder)
        read.text()
        read.csv()

    return {
        "time": lambda data: parse_time(text(data)),
        "pattern": pattern,
        "sweep": sweep,
        "value": value,
        "facts": facts,
        "metrics": metrics,
        "header": header,
        "weights": weights,
        "list-txt": lambda data: read_list(str(file("x.txt", data))),
        "list-csv": lambda data: read_list(str(file("x.csv", data))),
        "list-jsonl": lambda data: read_list(str(file("x.jsonl", data))),
        "index": index,
        "tar": shard("tar"),
        "parquet": shard("parquet"),
        "npy": array("x.npy"),
        "npz": array("x.npz"),
        "idx": array("x-images-idx3-ubyte"),
        "command": command,
        "recipe": recipe,
        "config": config,
        "result": result,
        "comparison": comparison,
    }


def refused(action: Callable[[], object]) -> None:
    """Call a parser; a good sentence for the user is no crash."""
    try:
        action()
    except (UserError, TrainingError) as error:
        if fault := fault_of(str(error)):
            raise AssertionError(fault) from error


def seeds_of(name: str) -> list[bytes]:
    """Return inputs that the parser accepts, from which the fuzzer starts."""
    import numpy as np

    from smi.config.resolve import resolve

    about = {
        "encoder": {"name": "resnet18"},
        "image_size": 8,
        "mean": [0.5, 0.5, 0.5],
        "std": [1, 1, 1],
        "about": {"step": 1, "epoch": 1.5},
    }
    shards = {"shards": [{"name": "train-000000.tar", "bytes": 9, "images": 1}], "classes": ["a"]}
    protocol = {"name": "knn", "data": "digits", "test": {"images": 10}, "draws": 1}
    run = {"seed": 0, "folder": "x/y", "command": "smi", "failed": "", "device": "cpu", "steps": 5}
    run |= {"results": [{"stamp": "s", "score": "kNN", "value": 0.5}], "halved": ""}
    rows = [{"name": "SMI", "method": "SMI", "value": None, "runs": [run], "loss_ms": 1.5}]
    protocols = [{"stamp": "s", "sentence": "x", **protocol}]
    comparison = {"seeds": [0], "swept": None, "protocols": protocols, "rows": rows, "notes": []}
    stored = {"stamp": "", "protocol": protocol, "subject": "encoder", "encoder": {"digest": "d"}}
    stored |= {"scores": [{"name": "kNN", "value": 0.5}], "sentence": "x", "notes": []}
    line = {"step": 1, "loss": 0.5, "epoch": 0.1, "terms": {"a": 1}, "timing": {"b": 2}}
    probe = {"step": 1, "probe": {"knn": 0.5, "chance": 0.1, "label_free": {"rank_me": 2}}}
    recipe = (Path(__file__).parent.parent / "src/smi/config/recipes/digits.yaml").read_bytes()
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, np.zeros((2, 8, 8), np.uint8))
    np.savez_compressed(npz, images=np.zeros((2, 8, 8), np.uint8), labels=np.arange(2))

    def as_json(value: object) -> bytes:
        return json.dumps(value).encode()

    by_name: dict[str, list[bytes]] = {
        "time": [b"30m", b"1.5h", b"1e3s", b"2d"],
        "pattern": [b"a/{0..9}.tar", b"{a,b}{000..099}", b"s3://x/{1,2}/*"],
        "sweep": [b"redundancy_weight=0.01,0.1", b"SMI.widths=[1,2],[3,4]"],
        "value": [
            b"1e-3",
            b"[1, 2]",
            b"true",
            b"null",
            b"0x1f",
            b"1:30",
            b"2001-01-01",
            b"&a [*a]",
        ],
        "facts": [as_json({"steps": 5, "steps_per_epoch": 2, "peak_lr": [0.1], "method": {}})],
        "metrics": [as_json(line) + b"\n" + as_json(probe) + b"\n"],
        "header": [as_json(about)],
        "weights": [_safetensors(about)],
        "list-txt": [b"a.png\tcat\nb/c.jpg\tdog\n"],
        "list-csv": [b'path,label,split\na.png,cat,train\n"b,c.png",dog,val\n'],
        "list-jsonl": [b'{"path": "a.png", "label": "cat", "split": "val"}\n'],
        "index": [as_json(shards)],
        "tar": _tars(),
        "parquet": _parquets(),
        "npy": [npy.getvalue()],
        "npz": [npz.getvalue()],
        "idx": [b"\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02" + bytes(8)],
        "command": [
            b"pretrain\ndigits\n--out\nx\n--optimizer.lr=1e-3\nepochs=3",
            b"compare\n--methods\nSMI\n--out\nx\n--sweep\na=1,2",
            b"evaluate\nx\n--protocol\nknn\n--images\n5",
        ],
        "recipe": [recipe],
        "config": [resolve("digits").text().encode()],
        "result": [as_json(stored)],
        "comparison": [as_json(comparison)],
    }
    return by_name[name]


def _safetensors(about: dict) -> bytes:
    tensor = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    head = json.dumps({"__metadata__": {"smi": json.dumps(about)}, **tensor}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(4)


def _tars() -> list[bytes]:
    import tarfile

    made = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            for name, content in (("0.png", b"x"), ("0.json", b'{"label": 3}'), ("é" * 40, b"")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        made.append(file.getvalue()[:6144])
    return made


def _parquets() -> list[bytes]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return [b"PAR1"]
    file = io.BytesIO()
    table = pa.table({"image": [{"bytes": b"x", "path": "a"}], "label": [1]})
    parquet.write_table(table, file)
    return [file.getvalue()]


# ------------------------------------------------------------------------------ one target


def fuzz(name: str, parse: Target, folder: Path, runs: int, seed: int, crashes: Path) -> None:
    """Fuzz one parser in this process, which ends with it."""
    import atheris

    corpus = folder / f"corpus-{name}"
    corpus.mkdir()
    for i, content in enumerate(seeds_of(name)):
        (corpus / f"seed-{i}").write_bytes(content)
    known: set[str] = set()

    def once(data: bytes) -> None:
        try:
            refused(lambda: parse(data))
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            place = [f for f in frames if "/smi/" in f.filename] or frames
            where = f"{Path(place[-1].filename).name}:{place[-1].lineno}"
            kind = f"{type(error).__name__} {where}"
            if kind not in known:
                known.add(kind)
                digest = hashlib.sha256(data).hexdigest()[:12]
                (crashes / f"{name}-{digest}").write_bytes(data)
                print(f"CRASH {kind}: {str(error)[:200]!r} {name}-{digest}", flush=True)

    options = [f"-runs={runs}", f"-seed={seed + 1}", f"-timeout={SECONDS_PER_INPUT}"]
    options += [f"-rss_limit_mb={MEGABYTES}", "-print_final_stats=1", "-max_len=8192"]
    options += [f"-artifact_prefix={crashes}/{name}-", "-verbosity=0", str(corpus)]
    atheris.Setup([sys.argv[0], *options], once)
    atheris.Fuzz()


# ------------------------------------------------------------------------------ all targets


def campaign(
    names: list[str], *, share: float, seed: int, crashes: Path, runs: int | None = None
) -> Record:
    """Fuzz parsers one after another, each in a fork of this process, and return the record."""
    import atheris

    record = Record("fuzz", seed=seed)
    crashes.mkdir(parents=True, exist_ok=True)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="smi-fuzz-", dir=memory) as scratch:
        folder = Path(scratch)
        os.environ["SMI_CACHE"] = str(folder / "cache")
        with atheris.instrument_imports(include=["smi"], enable_loader_override=False):
            parsers = targets(folder)
        for name in names:
            wanted = runs or max(20, int(share * RUNS[name]))
            log = folder / "log.txt"
            code = _forked(
                lambda n=name, w=wanted: fuzz(n, parsers[n], folder, w, seed, crashes), log
            )
            output = log.read_text(errors="replace")
            executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
            count = int(executed[1]) if executed else 0
            kinds = [line for line in output.splitlines() if line.startswith("CRASH")]
            if count < wanted:
                lines = output.strip().splitlines()
                why = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
                kinds.append(f"ended with {code} after {count:,} inputs: {why[:300]}")
            record.add(name, ok=True, count=max(0, count - len(kinds)))
            for kind in kinds:
                record.add(name, ok=False, detail=kind)
            print(f"{name}: {count:,} inputs, {len(kinds)} kinds of crashes", flush=True)
    return record


def _forked(action: Callable[[], None], log: Path) -> int:
    """Run an action in a fork that prints to a file, and return its exit code."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        os.dup2(target, 2)
        try:
            action()
        finally:
            os._exit(1)  # the fuzzer ends the process by itself
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Run the campaign and write its results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few thousand inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=RUNS, action="append", help="only these parsers")
    parser.add_argument("--runs", type=int, help="inputs of each parser")
    parser.add_argument("--crashes", type=Path, default=Path("crashes"))
    parser.add_argument("--no-write", action="store_true", help="do not write the results")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        sys.exit(HOW_TO_INSTALL)
    record = campaign(
        arguments.target or list(RUNS),
        share=QUICK_SHARE if arguments.quick else 1,
        seed=arguments.seed,
        crashes=arguments.crashes.resolve(),
        runs=arguments.runs,
    )
    tried = sum(row["tried"] for row in record.cases.values())
    print(f"{tried:,} inputs, {record.lost:,} kinds of crashes")
    if not arguments.no_write:
        print(record.write())
    sys.exit(record.lost > 0)


if __name__ == "__main__":
    main()
