"""The command line: a table of commands, and one handler that calls their functions.

A command names the function it calls; its options have the names of that function's parameters. The
function is imported when the command runs, so that `smi --help` does not wait for torch.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn

from smi import __version__
from smi.errors import TrainingError, UserError, sentence
from smi.files import expand
from smi.imports import trust
from smi.inventory import THINGS
from smi.terminal import aside, has_colours, paint, printable_json, say, suggest

MAX_NUMBER = 10**15  # of images, steps and the like
Option = tuple[str, dict[str, Any]]  # a flag or a name, and its arguments for argparse


@dataclass(frozen=True)
class Command:
    """Describe one command.

    calls: the function, as "module:function"; its parameters have the names of the options.
    instead: for an option, the function to call instead if that option is given.
    needs: for an option that only `calls` needs, the sentence to print if it is missing.
    overrides: the options that are settings of the configuration; they and dotted settings become
        the function's parameter `overrides`.
    shows: a function that formats the result for printing; None prints the result itself.
    """

    name: str
    calls: str
    help: str
    description: str
    options: tuple[Option, ...]
    instead: dict[str, str] = field(default_factory=dict)
    needs: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] | None = None
    shows: str | None = None


def option(name: str, metavar: str, help: str, **arguments: Any) -> Option:
    """Describe an option with a value; a default is added to the help text."""
    if arguments.get("default") is not None:
        help += " (default: %(default)s)"
    kind = path if arguments.get("type") is Path else arguments.get("type", text)
    return name, {"metavar": metavar, "help": help, **arguments, "type": kind}


def count(name: str, metavar: str, help: str, **arguments: Any) -> Option:
    """Describe an option whose value is a whole number of 1 or more."""
    return option(name, metavar, help, type=positive, **arguments)


def flag(name: str, help: str, **arguments: Any) -> Option:
    """Describe an option without a value."""
    return name, {"help": help, "action": "store_true", **arguments}


FORM_NAMES = {"json": "JSON", "markdown": "Markdown", "latex": "LaTeX", "csv": "CSV"}


def form(name: str) -> Option:
    """Describe the flag that prints a result in another format."""
    return f"--{name}", {
        "help": f"print {FORM_NAMES[name]} instead of text",
        "dest": "form",
        "action": "store_const",
        "const": name,
    }


def positive(value: str) -> int:
    """Parse a whole number of 1 or more."""
    return number(value, least=1, kind="a whole number of 1 or more")


def number(value: str, *, least: int = 0, kind: str = "a whole number of 0 or more") -> int:
    """Parse a whole number."""
    try:
        parsed = int(value)
    except ValueError:
        parsed = least - 1
    if not least <= parsed <= MAX_NUMBER:
        shown = value if len(value) <= 20 else f"{value[:20]}…"
        raise argparse.ArgumentTypeError(f"must be {kind}, not {shown!r}")
    return parsed


def text(value: str) -> str:
    """Return a value that is not empty."""
    if not value.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return value


def path(value: str) -> Path:
    """Parse a path that is not empty."""
    return Path(text(value))


# ---------------------------------------------------------------------------------------- options

ROOT = option(
    "--root", "DIR", "folder of the named datasets (default: data in smi's cache folder)", type=Path
)
RUNTIME = (
    ROOT,
    option("--device", "cuda|mps|cpu", "device to compute on (default: the first available)"),
    count("--num-workers", "W", "processes that decode image files (default: one per core)"),
)
TRUST = flag("--trust", "run code of your own that a run's folder or a file names")
RECIPE = (
    option("recipe", "RECIPE", "a name (see `smi list recipes`) or a YAML file", nargs="?"),
    option(
        "--data",
        "NAME|PATH|URL",
        "a dataset's name, an image folder, a list of images, an .npy, .npz or idx file, or "
        "shards; several with a pattern such as 'photos/{a,b}' or 'shards/{000..099}.tar', or by "
        "repeating it",
        action="append",
    ),
    option(
        "--encoder", "NAME", "a timm name, resnet-small (see `smi list encoders`) or an import path"
    ),
    option(
        "--init",
        "SOURCE",
        "weights to start from: timm (those of the encoder's name), a run, a file, hf-hub:ORG/NAME "
        "or local-dir:PATH (default: that of the recipe, or none)",
    ),
    count("--epochs", "E", "number of passes over the images"),
    count("--steps", "N", "number of steps, instead of --epochs"),
    count("--batch-size", "N", "images per step, over all devices together"),
    flag("--published", "train each method as its authors do (the recipe's as_published)"),
    option(
        "--sync-batch-norm",
        "true|false",
        "batch norm over all devices (default: as the authors of the method)",
    ),
    count(
        "--average-every",
        "K",
        "with several processes, average weights every K steps instead of gradients in each "
        "(methods that exchange nothing else)",
    ),
    option(
        "--precision",
        "auto|float32|bfloat16|float16",
        "number format of the networks (auto: bfloat16 on GPUs and CPUs that gain by it)",
    ),
    count(
        "--accumulate", "K", "parts of a batch that pass through the network in turn, for memory"
    ),
    flag(
        "--checkpoint-activations",
        "compute activations twice instead of keeping them: less memory, slower",
        default=None,
    ),
    TRUST,
    *RUNTIME,
    option(
        "--log-to",
        "tensorboard|wandb",
        "also log to TensorBoard or W&B; can be repeated",
        dest="loggers",
        action="append",
    ),
    flag(
        "--compile", "use torch.compile: slower to start, may be faster on a GPU", dest="compiled"
    ),
)
GROUPS = {  # parameters that group several options
    "runtime": ("smi.device:Runtime", ("device", "root", "num_workers")),
    "launch": ("smi.comparison.compare:Launch", ("loggers", "compiled")),
}
SETTINGS = (  # options that are settings
    "encoder",
    "init",
    "epochs",
    "steps",
    "batch_size",
    "precision",
    "accumulate",
    "checkpoint_activations",
    "sync_batch_norm",
    "average_every",
)
ENCODER = option("source", "RUN", "a run's folder, an encoder file, timm:NAME or hf-hub:ORG/NAME")
TARGET = option(
    "target",
    "NAME|PATH",
    "a dataset's name, an image folder (./digits if it is a folder) or an array file",
)
IMAGES = option("--data", "NAME|PATH", "images to use (default: those used for pretraining)")
PROTOCOLS = option(
    "--protocol",
    "NAME",
    "knn, linear-cached, fewshot, linear, finetune or all (default: the first three)",
    dest="protocols",
    nargs="+",
)
TIME = option(
    "--time",
    "30m|2h|1d",
    "time of a run, instead of --epochs: the first steps are timed, then epochs and images chosen",
)
LABELLED_IMAGES = count(
    "--images", "N", "number of labelled training images to evaluate with (default: all)"
)
SEED = option("--seed", "S", "seed of all draws", type=number, default=0)
FEATURE_PRECISION = option(
    "--precision",
    "auto|float32|bfloat16|float16",
    "number format of the encoder; auto is bfloat16 on GPUs that support it",
    default="float32",
)
JSON = form("json")
EXPORT_FORMATS = ("safetensors", "timm", "torchvision", "onnx", "hf-hub")


# --------------------------------------------------------------------------------------- commands

# As `smi --help` shows them: by what one wants to do.
COMMAND_GROUPS = {
    "start": ("demo", "data", "list"),
    "train": ("pretrain", "compare", "doctor"),
    "use an encoder": ("classify", "evaluate", "embed", "neighbours", "export"),
    "see results": ("report", "figure", "table", "reproduce"),
    "scale": ("shard",),
}

COMMANDS = (
    Command(
        "demo",
        "smi.demo:demo",
        "pretrain SMI and Barlow Twins on digits, then compare them with few labels (two minutes)",
        "Pretrain SMI and Barlow Twins with identical settings on the digits that come with "
        "scikit-learn. Then compare linear classifiers with few labels on their features and on "
        "raw pixels.",
        (option("--out", "DIR", "folder of the runs", type=Path, default=Path("runs/demo")),),
    ),
    Command(
        "data",
        "smi.training.foretell:foretell",
        "download a dataset by name, or describe any source of images and what pretraining does",
        "Download a dataset by name (digits, cifar10, cifar100, stl10, imagenette, imagewoof; for "
        "imagenet it explains which files to put where), or describe any source: its images, the "
        "files that cannot be read, and what pretraining would do. With --views, draw some images "
        "and, beside each, random views of it.",
        (
            TARGET,
            option("--views", "FILE", "draw random views into a PNG", type=Path, dest="out"),
            option(
                "--recipe",
                "NAME",
                "with --views: a recipe (see `smi list recipes`), or the views of a method's "
                "authors: byol, simclr, mocov1, mocov2, swav, dino, dinovit, pirl; cifar10 and "
                "others also with -multicrop or -jigsaw (default: the recipe that pretraining "
                "would choose)",
            ),
            SEED,
            count("--rows", "R", "with --views: number of images", default=6),
            JSON,
            *RUNTIME,
        ),
        instead={"out": "smi.training.views_sheet:write_sheet"},
    ),
    Command(
        "list",
        "smi.inventory:list_things",
        "list recipes, methods, encoders, runs, or the settings of a recipe",
        "List the recipes; the methods and what each needs, or the settings of one method; useful "
        "encoders with their size and training speed on this machine; the runs below a folder; or "
        "every setting of a recipe with its value and meaning.",
        (
            option("what", "WHAT", "recipes, methods, encoders, runs or settings", choices=THINGS),
            option("name", "NAME", "a method, the folder of runs, or a recipe", nargs="?"),
            count("--image-size", "S", "pixels of a side, for encoders", default=32),
            JSON,
        ),
    ),
    Command(
        "pretrain",
        "smi.training.pretrain:pretrain",
        "pretrain an encoder on a dataset or an image folder; rerun the command to resume",
        "Pretrain an encoder. With only --data and --out, the recipe is chosen from the images, "
        "the machine and --time. Any setting of a recipe can be given by its dotted name: "
        "--optimizer.lr 1e-3, --method.redundancy_weight 0.1. Rerun the same command to resume. "
        "With several processes: torchrun --nproc-per-node 8 -m smi pretrain imagenet --out DIR.",
        (
            option("--out", "DIR", "the run's folder", type=Path),
            option(
                "--method", "NAME", "SMI, BarlowTwins, ... (`smi list methods`) or an import path"
            ),
            option("--seed", "S", "seed of the run (default: that of the recipe, 0)", type=number),
            flag("--fresh", "start over; the content of DIR is moved to another folder"),
            TIME,
            flag("--dry-run", "print the plan and stop; with --time, after a few steps"),
            *RECIPE,
            JSON,
        ),
        instead={"dry_run": "smi.training.pretrain:preview"},
        needs={"out": "name the run's folder: --out runs/mine"},
        overrides=(*SETTINGS, "seed"),
        shows="smi.training.plan:Outcome",
    ),
    Command(
        "compare",
        "smi.comparison.compare:compare",
        "compare methods with seeds, intervals and paired differences; rerun to resume",
        "Pretrain several methods with the same seeds, evaluate every run in the same way, and "
        "compare: mean and 95 % interval of each score (with two seeds, both values), paired "
        "differences to the first method, "
        "time per step, share of the loss in it, and peak memory. Options and dotted settings are "
        "those of `smi pretrain`; --methods.SMI.widths [512,512] is for one method only. Rerun "
        "the same command to resume. With another method, seed or value, only the missing runs "
        "are made.",
        (
            option("--methods", "NAME", "names or import paths", nargs="+", required=True),
            option("--out", "DIR", "folder of runs, tables and figure", type=Path, required=True),
            count("--seeds", "N", "number of seeds, counted from 0", default=3),
            option(
                "--sweep",
                "KEY=V1,V2,...",
                "values of a setting for all methods that have it, such as "
                "redundancy_weight=0.01,0.1; or for one, SMI.redundancy_weight=0.01,0.1",
            ),
            flag("--choose", "say which value of --sweep is best, without labels"),
            TIME,
            PROTOCOLS,
            LABELLED_IMAGES,
            *RECIPE,
            JSON,
        ),
        overrides=SETTINGS,
    ),
    Command(
        "doctor",
        "smi.health.diagnosis:diagnose",
        "check whether a run is learning, collapsing or diverging, and how to fix it",
        "Read a run's metrics and print what is healthy and what is not, with the evidence.",
        (option("run", "RUN", "the run's folder", type=Path), JSON),
    ),
    Command(
        "evaluate",
        "smi.evaluation.evaluate:evaluate",
        "evaluate encoders: nearest neighbours, linear classifiers, few labels, fine-tuning",
        "Evaluate encoders on labelled images. Protocols: knn, linear-cached and fewshot (the "
        "default, seconds); linear (the paper's: SGD with light augmentation) and finetune (1 %, "
        "10 % and all labels), which take minutes to hours. Each result is a file in the run's "
        "eval/ folder, with its protocol. Use several processes with: torchrun --nproc-per-node 8 "
        "-m smi evaluate RUN.",
        (
            option(
                "sources",
                "RUN",
                "run folders, encoder files, timm:NAME or hf-hub:ORG/NAME",
                nargs="+",
            ),
            option(
                "--data",
                "NAME|PATH|URL",
                "labelled images (default: those used for pretraining); several by repeating it",
                action="append",
            ),
            PROTOCOLS,
            flag("--student", "evaluate the student of a DINO run, which exports its teacher"),
            flag(
                "--floors",
                "also evaluate the weights that a run started from, the untrained encoder and raw "
                "pixels",
            ),
            LABELLED_IMAGES,
            count("--epochs", "E", "epochs of linear and finetune (default: 100 and 20)"),
            SEED,
            FEATURE_PRECISION,
            flag("--show", "print the stored results and compute nothing"),
            TRUST,
            JSON,
            *RUNTIME,
        ),
        instead={"show": "smi.evaluation.evaluate:stored"},
    ),
    Command(
        "embed",
        "smi.inference.embed:embed",
        "write the features of all images of a dataset or folder, with their file names",
        "Write the features of every image, in the order of the paths, as .npz, .parquet or .csv.",
        (
            ENCODER,
            option(
                "--data",
                "NAME|PATH|URL",
                "a dataset, folder, list, array file or shards; several by repeating it",
                required=True,
                action="append",
            ),
            option(
                "--out",
                "FILE",
                "FILE.npz, .parquet or .csv; for shards also a folder, with a file for each shard",
                type=Path,
                required=True,
            ),
            count("--batch-size", "N", "number of images in memory at a time", default=256),
            FEATURE_PRECISION,
            TRUST,
            JSON,
            *RUNTIME,
        ),
    ),
    Command(
        "neighbours",
        "smi.inference.neighbours:neighbours",
        "find the images most similar to one or more query images (writes a contact sheet)",
        "Write a PNG with one row per query: the query, then its most similar images.",
        (
            ENCODER,
            option(
                "--data",
                "NAME|PATH|URL",
                "images to search; several by repeating it",
                required=True,
                action="append",
            ),
            option(
                "--query",
                "IMAGE",
                "image files to search for",
                dest="queries",
                nargs="+",
                type=Path,
                required=True,
            ),
            option("--out", "FILE", "the PNG to write", type=Path, default=Path("neighbours.png")),
            count("--k", "K", "number of similar images per query", default=8),
            TRUST,
            JSON,
            *RUNTIME,
        ),
    ),
    Command(
        "classify",
        "smi.inference.classify:classify",
        "train a classifier on labelled images, then label images with it",
        "With --data, train a classifier on labelled images and keep it in the folder --out: a "
        "linear classifier on frozen features or the fine-tuned encoder, whichever is better on "
        "images that are kept apart. Without --data, label images with the classifier in SOURCE: "
        "CSV with a confidence for each label, a calibrated probability.",
        (
            option(
                "source",
                "SOURCE",
                "to train: a run's folder, an encoder file, an exported folder or timm:NAME; to "
                "label: the folder of a classifier",
            ),
            option("images", "IMAGES", "image files, folders or other sources to label", nargs="*"),
            option(
                "--data",
                "NAME|PATH|URL",
                "labelled images to train on, such as a folder with one folder per class; several "
                "by repeating it",
                action="append",
            ),
            option(
                "--out",
                "DIR|FILE",
                "to train: the classifier's folder; to label: FILE.csv or FILE.json instead of "
                "the terminal",
                type=Path,
            ),
            option(
                "--epochs",
                "E",
                "epochs of fine-tuning; 0 skips it (default: 20, or those that fit into ten "
                "minutes)",
                type=number,
            ),
            option(
                "--seed",
                "S",
                "seed of the images kept apart and of fine-tuning",
                type=number,
                default=0,
            ),
            TRUST,
            JSON,
            *RUNTIME,
        ),
    ),
    Command(
        "export",
        "smi.inference.export:export",
        "export the encoder for other libraries, or to Hugging Face's hub: timm, ONNX and others",
        "Write the encoder with its preprocessing, load it with the other library, and compare "
        "the two on real images. A classifier becomes one ONNX file, with its encoder. hf-hub "
        "writes a folder in timm's layout with a page about the run; hf-hub:ORG/NAME also uploads "
        "it in one commit, into a new private repository or one that exists, with the token of "
        "`hf auth login` or HF_TOKEN.",
        (
            option("source", "RUN", "a run's folder, an encoder file, timm:NAME, or a classifier"),
            option(
                "--to", "|".join(EXPORT_FORMATS), "the format, or hf-hub:ORG/NAME", required=True
            ),
            option("--out", "DIR", "folder to create (default: RUN/export/FORMAT)", type=Path),
            option("--data", "NAME|PATH", "images to compare on (default: those of pretraining)"),
            TRUST,
            JSON,
            ROOT,
        ),
    ),
    Command(
        "report",
        "smi.reporting.report:report",
        "write one page about runs and comparisons: health, curves, features, images, settings",
        "Write one self-contained page that opens in any browser, without a network: the training, "
        "its health, every curve and figure, t-SNE with the images, nearest neighbours, evaluation "
        "with protocols, and the command that repeats each run. Results of slow computations are "
        "stored in the run folders, so a second report takes seconds.",
        (
            option("sources", "RUN", "folders of `smi pretrain` and `smi compare`", nargs="+"),
            option("--out", "FILE", "the page", type=Path, default=Path("report.html")),
            IMAGES,
            TRUST,
            JSON,
            *RUNTIME,
        ),
    ),
    Command(
        "figure",
        "smi.figures.catalogue:write_figure",
        "draw the paper's figures for any runs: to print (.svg, .png, .pdf) and to explore (.html)",
        "Draw one of the paper's figures. FILE.html opens without a network: hover, zoom, rotate. "
        "FILE.svg, .png and .pdf need pip install 'smi-ssl[figures]' and Chrome or Chromium.",
        (
            option("name", "NAME", "a name that `smi figure --list` shows", nargs="?"),
            option("sources", "RUN", "folders of runs or comparisons, or encoders", nargs="*"),
            option("--out", "FILE", "FILE.html, .svg, .png or .pdf", type=Path),
            IMAGES,
            count(
                "--images",
                "N",
                "maximum number of images (default: 2000; eigenspectrum and variance-violin ten "
                "per coordinate, pairs 512, maps 4)",
            ),
            SEED,
            flag("--list", "list the figures and exit"),
            TRUST,
            JSON,
            *RUNTIME,
        ),
        instead={"list": "smi.figures.catalogue:list_figures"},
        needs={
            "name": "name a figure: `smi figure --list` shows them",
            "out": "name the file to write: --out {name}.html",
        },
    ),
    Command(
        "table",
        "smi.paper.paper_tables:make_table",
        "print the paper's tables with your runs beside its numbers, or a comparison",
        "Print Table 1 (accuracy by method), 2 (cost of each loss) or 3 (Barlow Twins against SMI "
        "by dataset): the paper's numbers in one group of columns, those of your runs in another. "
        "Table 2 counts the cost of losses for any --batch, --dim and --devices. "
        "`comparison` prints the result of `smi compare` again.",
        (
            option(
                "name",
                "1|2|3|comparison",
                "the table to print",
                choices=("1", "2", "3", "comparison"),
            ),
            option("sources", "RUN", "folders of evaluated runs, or of comparisons", nargs="*"),
            IMAGES,
            count("--batch", "N", "for Table 2: samples on each device (default: 256)"),
            count("--dim", "K", "for Table 2: coordinates of an embedding (default: 8192)"),
            count("--devices", "W", "for Table 2: devices that train together (default: 8)"),
            flag("--measure", "for Table 2: also measure time and memory on this machine"),
            form("markdown"),
            form("latex"),
            form("csv"),
            JSON,
        ),
    ),
    Command(
        "reproduce",
        "smi.paper.reproduce:reproduce",
        "repeat the paper's experiments at a chosen scale: tables, figures and claims",
        "Make the paper's runs at a scale, then its tables and figures, and DIR/index.html: each "
        "claim of the paper beside the measurement. minutes: the digits that come with "
        "scikit-learn, within 15 minutes on two cores. hours: small encoders on CIFAR-10, "
        "ImageNette or your own image folder. paper: the paper's own recipes. Rerun the same "
        "command to resume.",
        (
            option("names", "NAME", "names as in `smi reproduce --list` (default: all)", nargs="*"),
            option("--scale", "minutes|hours|paper", "size of the runs"),
            option("--out", "DIR", "folder of runs, tables, figures and the page", type=Path),
            count("--seeds", "N", "number of seeds", default=3),
            option("--data", "NAME|PATH", "a dataset of the scale, or a labelled image folder"),
            flag(
                "--list",
                "list the names and scales, with --scale also every run's command, and exit",
            ),
            JSON,
            *RUNTIME,
        ),
        instead={"list": "smi.paper.reproducible:list_items"},
        needs={
            "scale": "choose a scale: --scale minutes, hours or paper",
            "out": "name a folder: --out reproduced",
        },
    ),
    Command(
        "shard",
        "smi.data.shard_writer:write_shards",
        "write the images of a folder into tar shards, for an object store or many machines",
        "Write the images of a folder or a list into tar shards that WebDataset and `--data` read, "
        "with an index and checksums. Rerun the command to continue after an interruption.",
        (
            option("data", "PATH", "an image folder or a list of images"),
            option("--out", "DIR|URL", "where to write shards", required=True),
            option("--size", "256MB", "size of a shard, about", default="256MB"),
            ROOT,
        ),
    ),
)


# ------------------------------------------------------------------------------------- the handler


def main() -> None:
    """Run the command that sys.argv names."""
    root = parser()
    words, settings = split_settings(sys.argv[1:], root)
    arguments, unknown = root.parse_known_args(words)
    if unknown and not take_rest(arguments, unknown):
        arguments.parser.refuse(unknown)
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may hold letters it cannot print
        sys.stdout.reconfigure(errors="backslashreplace")
    if settings and arguments.command.overrides is None:
        arguments.parser.error(f"{next(iter(settings))} is not a setting of this command")
    try:
        run(arguments, settings)
        sys.stdout.flush()
    except UserError as error:
        complain(error)
        sys.exit(2)
    except TrainingError as error:
        complain(error)
        sys.exit(1)
    except BrokenPipeError:  # the reader of the output is gone, as with `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        complain(f"{error.strerror or error}{where}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        sys.exit(getattr(interrupt, "exit_code", 130))


def take_rest(arguments: argparse.Namespace, words: list[str]) -> bool:
    """Add words behind an option to the command's list of names, which argparse has closed."""
    lists = [name for name, about in arguments.command.options if about.get("nargs") == "*"]
    if not lists or any(word.startswith("-") for word in words):
        return False
    getattr(arguments, lists[0]).extend(words)
    return True


def run(arguments: argparse.Namespace, settings: dict[str, str]) -> None:
    """Call the function of a command and print its result."""
    command: Command = arguments.command
    values = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("command", "parser", "form")
    }
    if values.pop("trust", False):
        trust()
    instead = next((path for name, path in command.instead.items() if values[name]), None)
    values = {
        name: value
        for name, value in values.items()
        if name not in command.instead or not isinstance(value, bool)
    }
    if instead is None:
        for name, sentence in command.needs.items():
            if values[name] is None:
                raise UserError(sentence.format(**values))
    if command.overrides is not None:
        named = {name: values.pop(name) for name in command.overrides}
        chosen = {name: value for name, value in named.items() if value is not None}
        values["overrides"] = {**settings, **chosen}
    given = {name: value for name, value in values.items() if value is not None}
    check_early(command, given)
    function = load_function(instead or command.calls)
    form = getattr(arguments, "form", None) or "text"
    with aside() if form == "json" else contextlib.nullcontext():
        result = function(**matching(function, given))
    if command.shows and instead is None:
        result = load_function(command.shows)(result)
    if os.environ.get("RANK", "0") == "0":  # under torchrun, all processes have the result
        show(result, form)
    if hasattr(result, "raise_if_failed"):
        result.raise_if_failed()


def check_early(command: Command, values: dict[str, Any]) -> None:
    """Refuse names that do not exist before torch is imported, which takes seconds."""
    from smi.config.schema import require_recipe
    from smi.methods import name_of

    recipe = values.get("recipe") if command.overrides is not None else None
    if values.get("what") == "settings":
        recipe = values.get("name")
    if recipe is not None:
        require_recipe(recipe)
    for method in [values.get("method") or "SMI", *values.get("methods", [])]:
        name_of(method)
    form = values.get("to", EXPORT_FORMATS[0]).partition(":")[0]
    if form not in EXPORT_FORMATS:
        raise UserError(f"there is no format {form!r}: {suggest(form, EXPORT_FORMATS)}")
    for name in ("run", "source", "sources"):
        given = values.get(name, [])
        for source in given if isinstance(given, list) else [given]:
            is_scheme = ":" in str(source).partition("/")[0]  # timm:NAME, hf-hub:ORG/NAME
            if not is_scheme and not expand(source).exists():
                other = "comparison" if command.name in ("report", "figure", "table") else "encoder"
                raise UserError(f"there is no run or {other} {source}")


def load_function(path: str) -> Callable[..., Any]:
    """Import "module:function"."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def matching(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Select the values that a function takes; some of them are grouped in one parameter."""
    parameters = inspect.signature(function).parameters
    for parameter, (path, names) in GROUPS.items():
        if parameter in parameters:
            group = {name: values.pop(name) for name in names if name in values}
            values[parameter] = load_function(path)(**group)
    selected = {name: value for name, value in values.items() if name in parameters}
    for name, value in list(selected.items()):
        if value == [] and parameters[name].default is not inspect.Parameter.empty:
            del selected[name]  # an option that was not given
    return selected


def show(result: Any, form: str) -> None:
    """Print a string, or an object with text() and plain(); a path only as JSON."""
    if isinstance(result, str):
        say(result)
    elif form == "json":
        plain = {"written": str(result)} if isinstance(result, Path) else result.plain()
        text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
        say(printable_json(text))
    elif form in ("markdown", "latex", "csv"):
        say(getattr(result, form)().rstrip("\n"))
    elif hasattr(result, "text"):
        say(result.text())


def complain(error: object) -> None:
    """Print an error as one sentence on stderr; under torchrun, once on each machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        name = paint("smi:", "red") if has_colours(sys.stderr) else "smi:"
        print(f"{name} {sentence(str(error))}", file=sys.stderr)


# -------------------------------------------------------------------------------------- the parser


class Parser(argparse.ArgumentParser):
    """Parse arguments, with one sentence and exit code 2 for a mistake."""

    takes_settings = False  # also takes the dotted settings of a recipe

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with code 2."""
        self.exit(2, f"{self.prog}: {sentence(message)} (see {self.prog} --help)\n")

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Report an unknown argument, with the closest option."""
        options = [name for action in self._actions for name in action.option_strings]
        name = unknown[0].split("=")[0]
        hint = suggest(name, options)
        if self.takes_settings and (setting := find_setting(name.lstrip("-").replace("-", "_"))):
            hint = f"did you mean --{setting}?"
        self.error(f"there is no {unknown[0]}" + (f": {hint}" if hint.endswith("?") else ""))

    def options_with_value(self) -> set[str]:
        """Return the options, also of all commands, that are followed by a value."""
        names = {
            name for action in self._actions for name in action.option_strings if action.nargs != 0
        }
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    names |= command.options_with_value()
        return names


def _command_list() -> str:
    """Return the commands by what one wants to do, with a line or two for each."""
    helps = {command.name: command.help for command in COMMANDS}
    lines = []
    for group, names in COMMAND_GROUPS.items():
        lines.append(f"{group}:")
        for name in names:
            indent = " " * 14
            text = textwrap.fill(helps[name], 100, initial_indent=indent, subsequent_indent=indent)
            lines.append(f"  {name:<12}{text.lstrip()}")
    return "\n".join([*lines, "", "`smi COMMAND --help` explains a command."])


class PrintCompletion(argparse.Action):
    """Print the script with which a shell completes commands, and exit."""

    def __call__(self, parser: Any, namespace: Any, shell: Any, option: str | None = None) -> None:
        """Describe every command and print the script."""
        from smi.completion import completion_script, describe

        (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        described = {
            command.name: describe(
                subparsers.choices[command.name],
                command.help,
                dotted_settings() if command.overrides is not None else [],
            )
            for command in COMMANDS
        }
        print(completion_script(shell, described), end="")
        parser.exit()


def parser() -> Parser:
    """Build the parser from the table of commands."""
    root = Parser(
        prog="smi",
        usage="smi [--help] [--version] [--completion SHELL] COMMAND ...",
        description="Self-supervised pretraining on modest hardware.",
        epilog=_command_list(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"smi {__version__}")
    root.add_argument(
        "--completion",
        action=PrintCompletion,
        choices=("bash", "zsh", "fish"),
        help='print a script that completes commands in a shell: eval "$(smi --completion bash)"',
    )
    commands = root.add_subparsers(
        prog="smi", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    for command in COMMANDS:
        subparser = commands.add_parser(
            command.name, description=command.description, allow_abbrev=False
        )
        for name, arguments in command.options:
            if arguments.get("dest") != "form":
                subparser.add_argument(name, **arguments)
        forms = [option for option in command.options if option[1].get("dest") == "form"]
        group = subparser.add_mutually_exclusive_group() if forms else subparser
        for name, arguments in forms:
            group.add_argument(name, **arguments)
        subparser.takes_settings = command.overrides is not None
        subparser.set_defaults(command=command, parser=subparser)
    return root


# Other names of settings that people try.
SYNONYMS = {
    "lambda": "method.redundancy_weight",
    "redundancy_weight": "method.redundancy_weight",
    "temperature": "method.temperature",
    "widths": "method.widths",
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "warmup": "optimizer.warmup_epochs",
    "image_size": "views.size",
}


def find_setting(name: str) -> str | None:
    """Return the dotted name of a setting by its last part, or by another word for it."""
    ends = (dotted for dotted in dotted_settings() if dotted.endswith(f".{name}"))
    return SYNONYMS.get(name) or next(ends, None)


def dotted_settings() -> list[str]:
    """Return the names of the settings that are in a section, such as optimizer.lr."""
    from smi.config.schema import Config

    sections = {field.name: field.type for field in fields(Config)}
    return [
        f"{section}.{field.name}"
        for section, kind in sections.items()
        if is_dataclass(kind)
        for field in fields(kind)
    ]


SETTING = re.compile(r"(?:--)?([a-z]\w*(?:\.\w+)+)(?:=(.*))?|([a-z]\w*)=(.*)", re.DOTALL)


def split_settings(words: list[str], root: Parser) -> tuple[list[str], dict[str, str]]:
    """Separate dotted settings from the other words.

    Settings are --optimizer.lr 1e-3, --optimizer.lr=1e-3, optimizer.lr=1e-3 and epochs=3.
    """
    rest: list[str] = []
    settings: dict[str, str] = {}
    remaining = iter(words)
    with_value = root.options_with_value()
    for word in remaining:
        match = None if rest and rest[-1] in with_value else SETTING.fullmatch(word)
        name, value = None, None
        if match:
            name = match[1] or match[3]
            value = match[2] if match[1] else match[4]
        if name is None or (value is None and not word.startswith("--")):
            rest.append(word)
            continue
        if value is None:
            value = next(remaining, None)
            if value is None:
                root.error(f"{word} needs a value")
        settings[name] = value
    return rest, settings
