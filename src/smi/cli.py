"""The command line: parses, imports what the command needs, calls one function."""

import argparse
import difflib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from smi import __version__
from smi.errors import TrainingError, UserError


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A user's mistake is one sentence and exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def options_with_value(self) -> set[str]:
        """Of this command and those below it: what follows one of them is its value, whatever it looks like."""
        found = {
            option
            for action in self._actions
            for option in action.option_strings
            if action.nargs != 0
        }
        below = [
            action.choices
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
        ]
        return found.union(
            *(command.options_with_value() for choices in below for command in choices.values())
        )

    def refuse(self, unknown: list[str]) -> NoReturn:
        close = difflib.get_close_matches(
            unknown[0].split("=")[0], [o for a in self._actions for o in a.option_strings], 1
        )
        self.error(f"there is no {unknown[0]}" + (f": did you mean {close[0]}?" if close else ""))


def main() -> None:
    root = parser()
    words, settings = split_settings(sys.argv[1:], root)
    arguments, unknown = root.parse_known_args(words)
    if unknown:
        arguments.parser.refuse(unknown)
    if settings and "settings" not in arguments:
        arguments.parser.error(f"there is no {next(iter(settings))} to set here")
    if settings:
        arguments.settings = settings
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a terminal need not know every letter of a file's name
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except UserError as error:
        _say(error)
        sys.exit(2)
    except TrainingError as stopped:
        _say(stopped)
        sys.exit(1)
    except (
        BrokenPipeError
    ):  # the reader of our output left, as `head` does: what is left of it has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(
            f"smi: {error.strerror}{f': {error.filename}' if error.filename else ''}",
            file=sys.stderr,
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        sys.exit(getattr(interrupt, "exit_code", 130))


def _say(error: Exception) -> None:
    if (
        os.environ.get("RANK", "0") == "0"
    ):  # of the processes that torchrun starts, one speaks for all
        print(f"smi: {error}", file=sys.stderr)


def parser() -> Parser:
    root = Parser(
        prog="smi",
        description="Self-supervised pretraining on modest hardware.",
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"smi {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_demo,
        _add_pretrain,
        _add_compare,
        _add_doctor,
        _add_evaluate,
        _add_embed,
        _add_neighbours,
        _add_export,
        _add_methods,
        _add_encoders,
        _add_data,
        _add_views,
        _add_cost,
        _add_figure,
        _add_table,
        _add_report,
        _add_reproduce,
    ):
        add(commands)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return root


SETTING = re.compile(r"(?:--)?([a-z]\w*(?:\.\w+)+)(?:=(.*))?|([a-z]\w*)=(.*)", re.DOTALL)


def split_settings(words: list[str], root: Parser) -> tuple[list[str], dict[str, str]]:
    """Apart from the rest: --optimizer.lr 1e-3, --optimizer.lr=1e-3, optimizer.lr=1e-3, epochs=3."""
    rest: list[str] = []
    settings: dict[str, str] = {}
    waiting = iter(words)
    with_value = root.options_with_value()
    for word in waiting:
        match = None if rest and rest[-1] in with_value else SETTING.fullmatch(word)
        name, value = (
            (match[1] or match[3], match[2] if match[1] else match[4]) if match else (None, None)
        )
        if name is None or (value is None and not word.startswith("--")):
            rest.append(word)
            continue
        if value is None:
            value = next(waiting, None)
            if value is None:
                root.error(f"{word} needs a value")
        settings[name] = value
    return rest, settings


def _add_pretrain(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "pretrain",
        help="pretrain an encoder on a set or a folder of images; again, to go on where it stopped",
        description="Pretrain an encoder. With only --data and --out a recipe is chosen from the images and the machine. Any setting of a "
        "recipe can be given too, dotted: --optimizer.lr 1e-3, --method.redundancy_weight 0.1. The same command again goes on where it "
        "stopped. Several processes: torchrun --nproc-per-node 8 -m smi pretrain imagenet --out DIR.",
        allow_abbrev=False,
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="the run's folder")
    command.add_argument(
        "--method",
        metavar="NAME",
        help="SMI, BarlowTwins, ... (`smi methods`), or the import path of your own",
    )
    command.add_argument("--seed", type=int, metavar="S")
    command.add_argument(
        "--fresh", action="store_true", help="start over; what is in DIR is moved aside"
    )
    command.add_argument("--list", action="store_true", help="list the recipes and stop")
    _add_pretraining(command)
    command.set_defaults(run=_pretrain, settings={})


def _add_pretraining(command: Parser) -> None:
    """What a run is made of, one or many."""
    command.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="a name, as `smi pretrain --list` shows them, or a YAML file",
    )
    command.add_argument("--data", metavar="NAME|PATH", help="a set by name, or a folder of images")
    command.add_argument(
        "--encoder",
        metavar="NAME",
        help="one of timm's, resnet-small (`smi encoders`), or the import path of your own",
    )
    command.add_argument("--epochs", type=_positive, metavar="E")
    command.add_argument(
        "--batch-size", type=_positive, metavar="N", help="images per step, on all devices together"
    )
    command.add_argument(
        "--precision", metavar="auto|float32|bfloat16", help="auto: bfloat16 where a GPU has it"
    )
    _add_machine(command)
    command.add_argument(
        "--log-to",
        action="append",
        default=[],
        metavar="tensorboard|wandb",
        help="beside metrics.jsonl; may be repeated",
    )
    command.add_argument(
        "--compile",
        action="store_true",
        help="use torch.compile: slower to start, perhaps faster on a GPU",
    )


def _pretrain(arguments: argparse.Namespace) -> None:
    if arguments.list:
        from smi.config.schema import print_recipes

        return print_recipes()
    if arguments.out is None:
        raise UserError("give the run a folder: --out runs/mine")
    from smi.training.pretrain import pretrain, say_what_next

    names = ("out", "method", "seed", "fresh")
    return say_what_next(
        pretrain(**_pretraining(arguments), **{name: getattr(arguments, name) for name in names})
    )


def _pretraining(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `_add_pretraining` added, as the functions call it."""
    names = (
        "recipe",
        "data",
        "encoder",
        "epochs",
        "batch_size",
        "device",
        "root",
        "num_workers",
        "settings",
    )
    given = {name: getattr(arguments, name) for name in names}
    if arguments.precision:
        given["settings"] = given["settings"] | {"precision": arguments.precision}
    return given | {"loggers": arguments.log_to, "compiled": arguments.compile}


def _add_compare(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "compare",
        help="several methods under the same conditions, with seeds, intervals and paired differences; again, to go on where it stopped",
        description="Pretrain several methods under the same seeds, evaluate every run alike, and compare: mean and 95 % interval of each "
        "score, paired differences to the first method, time per step, share of the loss in it, peak memory. Flags and dotted settings are "
        "those of `smi pretrain`; --methods.SMI.widths [512,512] is for one method only. The same command again goes on where it stopped; "
        "with another method, seed or value only what is missing is run.",
        allow_abbrev=False,
    )
    command.add_argument(
        "--methods",
        nargs="+",
        required=True,
        metavar="NAME",
        help="`smi methods`, or import paths; the first is compared to",
    )
    command.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="the folder of runs, tables and figure",
    )
    command.add_argument(
        "--seeds",
        type=_positive,
        default=3,
        metavar="N",
        help="so many, from 0 on (default: %(default)s)",
    )
    command.add_argument(
        "--sweep",
        metavar="KEY=V1,V2,...",
        help="values of a setting of the methods that have it, redundancy_weight=0.01,0.1; or of one, SMI.redundancy_weight=0.01,0.1",
    )
    command.add_argument(
        "--protocol",
        nargs="+",
        metavar="NAME",
        help="as in `smi evaluate` (default: knn, linear-cached and fewshot)",
    )
    _add_pretraining(command)
    command.set_defaults(run=_compare, settings={})


def _compare(arguments: argparse.Namespace) -> None:
    from smi.comparison.compare import compare, print_comparison

    names = ("methods", "out", "seeds", "sweep")
    given = {name: getattr(arguments, name) for name in names}
    print_comparison(
        compare(**_pretraining(arguments), **given, protocols=arguments.protocol), arguments.out
    )


def _add_demo(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "demo",
        help="two minutes: SMI and Barlow Twins on digits, and what few labels then suffice for",
        description="Pretrain SMI and Barlow Twins on the digits that come with scikit-learn, with identical settings, and compare what a "
        "linear classifier does with few labels on their features and on raw pixels.",
        allow_abbrev=False,
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="where the runs go (default: %(default)s)",
    )
    command.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> None:
    from smi.demo import demo

    demo(arguments.out)


def _add_doctor(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "doctor",
        help="is a run learning, collapsing, diverging, and what to do",
        description="Read a run's metrics and say what is healthy and what is not, with the evidence.",
        allow_abbrev=False,
    )
    command.add_argument("folder", type=Path, metavar="RUN", help="the run's folder")
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_doctor)


def _print_result(result: Any, *, as_json: bool) -> None:
    print(json.dumps(result.plain(), indent=2) if as_json else result.text())


def _doctor(arguments: argparse.Namespace) -> None:
    from smi.health import diagnose

    _print_result(diagnose(arguments.folder), as_json=arguments.json)


def _add_evaluate(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "evaluate",
        help="what a run's encoder is good for: nearest neighbours, linear classifiers, few labels, fine-tuning",
        description="Evaluate encoders on labelled images. Protocols: knn, linear-cached and fewshot (the default: seconds), linear (the "
        "paper's: SGD with light augmentation) and finetune (1 %, 10 % and all labels), which take minutes to hours. Each result is a "
        "file in the run's eval/, with its protocol spelled out.",
        allow_abbrev=False,
    )
    command.add_argument(
        "sources", nargs="+", metavar="RUN", help="runs' folders, or files of encoders"
    )
    command.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="labelled images (default: what the run was pretrained on)",
    )
    command.add_argument(
        "--protocol",
        nargs="+",
        metavar="NAME",
        help="some of knn, linear-cached, fewshot, linear, finetune; or all",
    )
    command.add_argument(
        "--floors", action="store_true", help="the same of the untrained encoder and of raw pixels"
    )
    command.add_argument(
        "--images",
        type=_positive,
        metavar="N",
        help="use so many of the labelled training images (default: all)",
    )
    command.add_argument(
        "--epochs", type=_positive, metavar="E", help="of linear and finetune (default: 100 and 20)"
    )
    command.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="of draws and orders (default: %(default)s)",
    )
    command.add_argument(
        "--show", action="store_true", help="print the results there are, and compute none"
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add_machine(command)
    command.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    from smi.evaluation.evaluate import evaluate, print_results, stored

    if arguments.show:
        rows = stored(
            arguments.sources,
            protocols=arguments.protocol,
            data=arguments.data,
            floors=arguments.floors,
        )
    else:
        names = ("data", "floors", "images", "epochs", "seed", "root", "device", "num_workers")
        rows = evaluate(
            arguments.sources,
            protocols=arguments.protocol,
            **{name: getattr(arguments, name) for name in names},
        )
    print_results(rows, as_json=arguments.json)


def _add_embed(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "embed",
        help="features of all images of a folder, with their file names",
        description="Write the features of every image of a set or folder, in the order of their paths, as .npz or .parquet.",
        allow_abbrev=False,
    )
    command.add_argument("source", metavar="RUN", help="a run's folder, or a file of an encoder")
    command.add_argument(
        "--data", required=True, metavar="NAME|PATH", help="a folder of images, or a set by name"
    )
    command.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="FILE.npz or FILE.parquet"
    )
    command.add_argument(
        "--batch-size",
        type=_positive,
        default=256,
        metavar="N",
        help="images in memory at a time (default: %(default)s)",
    )
    _add_machine(command)
    command.set_defaults(run=_embed)


def _embed(arguments: argparse.Namespace) -> None:
    from smi.inference.embed import embed

    embed(
        arguments.source,
        data=arguments.data,
        out=arguments.out,
        batch_size=arguments.batch_size,
        root=arguments.root,
        device=arguments.device,
        num_workers=arguments.num_workers,
    )


def _add_neighbours(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "neighbours",
        help="the images of a folder that are nearest to some: a contact sheet",
        description="Write a PNG with a row for each query: the image, then those of the set or folder that are nearest to it.",
        allow_abbrev=False,
    )
    command.add_argument("source", metavar="RUN", help="a run's folder, or a file of an encoder")
    command.add_argument(
        "--data",
        required=True,
        metavar="NAME|PATH",
        help="where to look: a folder of images, or a set by name",
    )
    command.add_argument(
        "--query",
        required=True,
        nargs="+",
        type=Path,
        metavar="IMAGE",
        help="image files to look for",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("neighbours.png"),
        metavar="FILE",
        help="the PNG (default: %(default)s)",
    )
    command.add_argument(
        "--k",
        type=_positive,
        default=8,
        metavar="K",
        help="how many of each (default: %(default)s)",
    )
    _add_machine(command)
    command.set_defaults(run=_neighbours)


def _neighbours(arguments: argparse.Namespace) -> None:
    from smi.inference.embed import neighbours

    neighbours(
        arguments.source,
        data=arguments.data,
        queries=arguments.query,
        out=arguments.out,
        k=arguments.k,
        root=arguments.root,
        device=arguments.device,
        num_workers=arguments.num_workers,
    )


def _add_export(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "export",
        help="the encoder for other libraries: safetensors, timm, torchvision, ONNX",
        description="Write the encoder with its preprocessing, load it again with that library, and compare the two on real images.",
        allow_abbrev=False,
    )
    command.add_argument("source", metavar="RUN", help="a run's folder, or a file of an encoder")
    command.add_argument(
        "--to", required=True, metavar="FORMAT", help="safetensors, timm, torchvision or onnx"
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="a folder to make (default: export/FORMAT in the run's folder)",
    )
    command.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="images to compare on (default: what the run was pretrained on)",
    )
    command.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="where named sets lie (default: data in smi's cache folder)",
    )
    command.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> None:
    from smi.inference.export import export

    export(
        arguments.source,
        to=arguments.to,
        out=arguments.out,
        data=arguments.data,
        root=arguments.root,
    )


def _add_machine(command: Parser) -> None:
    command.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="where named sets lie (default: data in smi's cache folder)",
    )
    command.add_argument(
        "--device", metavar="cuda|mps|cpu", help="default: the first of these that is there"
    )
    command.add_argument(
        "--num-workers",
        type=_positive,
        metavar="W",
        help="processes that decode files (default: one per core)",
    )


def _add_methods(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "methods",
        help="the methods, and what each of them needs",
        description="List the methods with what each needs, or one of them with its settings.",
        allow_abbrev=False,
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="a method, to see its settings")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(run=_methods)


def _methods(arguments: argparse.Namespace) -> None:
    from smi.methods.catalogue import describe_methods

    _print_result(describe_methods(arguments.name), as_json=arguments.json)


def _add_encoders(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "encoders",
        help="some encoders, their size and how fast they train here",
        description="List sensible encoders with their size, and time a training step of each on this machine. Any name of timm works.",
        allow_abbrev=False,
    )
    command.add_argument(
        "--image-size",
        type=_positive,
        default=32,
        metavar="S",
        help="pixels of a side (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(run=_encoders)


def _encoders(arguments: argparse.Namespace) -> None:
    from smi.nn.catalogue import list_encoders

    _print_result(list_encoders(image_size=arguments.image_size), as_json=arguments.json)


def _add_cost(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "cost",
        help="what each loss costs: multiply-accumulates, matrix entries, bytes sent, time and memory",
        description="What each loss costs per step. The defaults give the paper's Table 2.",
        allow_abbrev=False,
    )
    command.add_argument(
        "--batch",
        type=_positive,
        default=256,
        metavar="N",
        help="samples on each device (default: %(default)s)",
    )
    command.add_argument(
        "--dim",
        type=_positive,
        default=8192,
        metavar="K",
        help="embedding coordinates (default: %(default)s)",
    )
    command.add_argument(
        "--devices",
        type=_positive,
        default=8,
        metavar="W",
        help="devices that train together (default: %(default)s)",
    )
    command.add_argument(
        "--measure",
        action="store_true",
        help="also time each loss at N x K on this machine, with its peak memory",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(run=_cost)


def _cost(arguments: argparse.Namespace) -> None:
    from smi.paper.cost import print_cost

    print_cost(
        batch=arguments.batch,
        dim=arguments.dim,
        devices=arguments.devices,
        measured=arguments.measure,
        as_json=arguments.json,
    )


def _add_figure(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "figure",
        help="the paper's figures, of any runs: to print (.svg, .png) and to explore (.html)",
        description="Draw one of the paper's figures of some runs. FILE.html opens without a network: hover, zoom, rotate. FILE.svg and "
        "FILE.png need pip install 'smi-ssl[figures]' and Chrome or Chromium. smi figure --list: which there are.",
        allow_abbrev=False,
    )
    command.add_argument(
        "name", nargs="?", metavar="NAME", help="which, as `smi figure --list` shows them"
    )
    command.add_argument(
        "sources", nargs="*", metavar="RUN", help="runs' folders, or those of comparisons"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="FILE.html, FILE.svg or FILE.png")
    command.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="images to look at (default: what the runs were pretrained on)",
    )
    command.add_argument(
        "--images",
        type=_positive,
        metavar="N",
        help="so many at most (default: 2000; pairs 512, energy maps 4)",
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="S", help="which images (default: %(default)s)"
    )
    command.add_argument("--list", action="store_true", help="list the figures and stop")
    _add_machine(command)
    command.set_defaults(run=_figure)


def _figure(arguments: argparse.Namespace) -> None:
    from smi.figures.catalogue import print_figures, write_figure

    if arguments.list:
        return print_figures()
    if arguments.name is None:
        raise UserError("name a figure: `smi figure --list` shows them")
    if arguments.out is None:
        raise UserError(f"give the figure a file: --out {arguments.name}.html")
    names = ("data", "root", "images", "seed", "device", "num_workers")
    write_figure(
        arguments.name,
        arguments.sources,
        arguments.out,
        **{name: getattr(arguments, name) for name in names},
    )
    return None


def _add_table(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "table",
        help="the paper's tables, with what runs scored here beside its numbers; comparisons",
        description="Print Table 1 (accuracy by method), 2 (what each loss costs) or 3 (Barlow Twins against SMI by data set): the paper's "
        "numbers in one group of columns, those of the given runs in another. comparison: what `smi compare` found, again.",
        allow_abbrev=False,
    )
    command.add_argument("name", choices=("1", "2", "3", "comparison"), metavar="1|2|3|comparison")
    command.add_argument(
        "sources",
        nargs="*",
        metavar="RUN",
        help="runs' folders, with results of `smi evaluate`, or comparisons'",
    )
    command.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="what they were evaluated on (default: what they were pretrained on)",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--markdown", dest="form", action="store_const", const="markdown", help="print Markdown"
    )
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    command.set_defaults(run=_table, form="text")


def _table(arguments: argparse.Namespace) -> None:
    from smi.paper.tables import print_table

    print_table(arguments.name, arguments.sources, data=arguments.data, form=arguments.form)


def _add_report(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "report",
        help="one page about runs and comparisons: health, curves, features, images, evaluation, settings",
        description="Write one self-contained page about runs and comparisons that opens in any browser, without a network: what was "
        "trained and how, health, every curve and figure, t-SNE that shows the images, neighbours, evaluation with protocols, and the "
        "command that makes each run again. What takes long is kept in the runs' folders, so a second report takes seconds.",
        allow_abbrev=False,
    )
    command.add_argument(
        "sources",
        nargs="+",
        metavar="RUN_OR_COMPARISON",
        help="folders of `smi pretrain` and `smi compare`",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: %(default)s)",
    )
    command.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="images to look at (default: what each run was pretrained on)",
    )
    _add_machine(command)
    command.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> None:
    from smi.reporting.report import report

    names = ("data", "root", "device", "num_workers")
    report(arguments.sources, arguments.out, **{name: getattr(arguments, name) for name in names})


def _add_reproduce(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "reproduce",
        help="what the paper ran, at a scale that suits the machine: its tables, figures, and its claims beside what was measured",
        description="Make the runs of the paper at a scale, then its tables and figures, and DIR/index.html: each claim of the paper "
        "beside what was measured here. minutes: the digits that come with scikit-learn, within 15 minutes on two cores. hours: small "
        "encoders on CIFAR-10, ImageNette or a folder of yours. paper: the paper's own recipes. The same command again goes on where it "
        "stopped.",
        allow_abbrev=False,
    )
    command.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="all (the default), or some, as `smi reproduce --list` shows them",
    )
    command.add_argument("--scale", metavar="minutes|hours|paper")
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder of runs, tables, figures and the page"
    )
    command.add_argument(
        "--seeds",
        type=_positive,
        default=3,
        metavar="N",
        help="of what is measured over seeds (default: %(default)s)",
    )
    command.add_argument(
        "--data",
        metavar="NAME|PATH",
        help="one of the scale's sets, or a folder of labelled images (--scale hours)",
    )
    command.add_argument(
        "--list",
        action="store_true",
        help="list the names, what runs each needs, and the scales, and stop",
    )
    _add_machine(command)
    command.set_defaults(run=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> None:
    from smi.paper.reproduce import print_items, reproduce

    if arguments.list:
        return print_items()
    if arguments.scale is None:
        raise UserError("choose a scale: --scale minutes, hours or paper")
    if arguments.out is None:
        raise UserError("give it a folder: --out reproduced")
    names = ("scale", "out", "seeds", "data", "root", "device", "num_workers")
    reproduce(arguments.names or ["all"], **{name: getattr(arguments, name) for name in names})
    return None


def _add_data(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "data",
        help="download a set of images by name, or describe a folder of them",
        description="Download a set by name (digits, cifar10, cifar100, stl10, imagenette, imagewoof; imagenet: says what to put where), "
        "or describe any folder: what is in it, what cannot be read, what pretraining would use.",
        allow_abbrev=False,
    )
    command.add_argument(
        "target",
        metavar="NAME|PATH",
        help="a name, or a folder of images (./digits for a folder of that name)",
    )
    command.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="where named sets lie (default: data in smi's cache folder)",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_data)


def _data(arguments: argparse.Namespace) -> None:
    from smi.data.catalogue import print_data

    print_data(arguments.target, root=arguments.root, as_json=arguments.json)


def _add_views(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "views",
        help="draw what pretraining would see of some images: a contact sheet",
        description="Write a PNG with some images of a set or folder and, beside each, several draws of its views under a recipe.",
        allow_abbrev=False,
    )
    command.add_argument(
        "target",
        metavar="NAME|PATH",
        help="a name, or a folder of images (./digits for a folder of that name)",
    )
    command.add_argument(
        "--recipe",
        metavar="NAME",
        help="digits, cifar10, cifar100, imagenette, imagewoof or imagenet, also with -multicrop or -jigsaw (default: that of the name)",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("views.png"),
        metavar="FILE",
        help="the PNG to write (default: %(default)s)",
    )
    command.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="where named sets lie (default: data in smi's cache folder)",
    )
    command.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="which images and draws (default: %(default)s)",
    )
    command.add_argument(
        "--rows",
        type=_positive,
        default=6,
        metavar="R",
        help="how many images (default: %(default)s)",
    )
    command.set_defaults(run=_views)


def _views(arguments: argparse.Namespace) -> None:
    from smi.views.sheet import write_sheet

    write_sheet(
        arguments.target,
        recipe=arguments.recipe,
        out=arguments.out,
        root=arguments.root,
        seed=arguments.seed,
        rows=arguments.rows,
    )


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, not {text!r}")
    return number
