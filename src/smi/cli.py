"""The command line: parses, imports what the command needs, calls one function."""

import argparse
import io
import os
import sys
from pathlib import Path
from typing import NoReturn

from smi import __version__
from smi.errors import UserError


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A user's mistake is one sentence and exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main() -> None:
    arguments = parser().parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal need not know every letter of a file's name
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except UserError as error:
        print(f"smi: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output left, as `head` does: what is left of it has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"smi: {error.strerror}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def parser() -> Parser:
    root = Parser(prog="smi", description="Self-supervised pretraining on modest hardware.", allow_abbrev=False)
    root.add_argument("--version", action="version", version=f"smi {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_cost(commands)
    _add_data(commands)
    _add_views(commands)
    return root


def _add_cost(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "cost",
        help="what each loss costs: multiply-accumulates, matrix entries, bytes sent, time and memory",
        description="What each loss costs per step. The defaults give the paper's Table 2.",
        allow_abbrev=False,
    )
    command.add_argument("--batch", type=_positive, default=256, metavar="N", help="samples on each device (default: %(default)s)")
    command.add_argument("--dim", type=_positive, default=8192, metavar="K", help="embedding coordinates (default: %(default)s)")
    command.add_argument("--devices", type=_positive, default=8, metavar="W", help="devices that train together (default: %(default)s)")
    command.add_argument("--measure", action="store_true", help="also time each loss at N x K on this machine, with its peak memory")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(run=_cost)


def _cost(arguments: argparse.Namespace) -> None:
    from smi.analysis.cost import print_cost

    print_cost(batch=arguments.batch, dim=arguments.dim, devices=arguments.devices, measured=arguments.measure, as_json=arguments.json)


def _add_data(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "data",
        help="download a set of images by name, or describe a folder of them",
        description="Download a set by name (digits, cifar10, cifar100, stl10, imagenette, imagewoof; imagenet: says what to put where), "
        "or describe any folder: what is in it, what cannot be read, what pretraining would use.",
        allow_abbrev=False,
    )
    command.add_argument("target", metavar="NAME|PATH", help="a name, or a folder of images (./digits for a folder of that name)")
    command.add_argument("--root", type=Path, metavar="DIR", help="where named sets lie (default: data in smi's cache folder)")
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_data)


def _data(arguments: argparse.Namespace) -> None:
    from smi.data.describe import print_data

    print_data(arguments.target, root=arguments.root, as_json=arguments.json)


def _add_views(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "views",
        help="draw what pretraining would see of some images: a contact sheet",
        description="Write a PNG with some images of a set or folder and, beside each, several draws of its views under a recipe.",
        allow_abbrev=False,
    )
    command.add_argument("target", metavar="NAME|PATH", help="a name, or a folder of images (./digits for a folder of that name)")
    command.add_argument(
        "--recipe",
        metavar="NAME",
        help="digits, cifar10, cifar100, imagenette, imagewoof or imagenet, also with -multicrop or -jigsaw (default: that of the name)",
    )
    command.add_argument("--out", type=Path, default=Path("views.png"), metavar="FILE", help="the PNG to write (default: %(default)s)")
    command.add_argument("--root", type=Path, metavar="DIR", help="where named sets lie (default: data in smi's cache folder)")
    command.add_argument("--seed", type=int, default=0, metavar="S", help="which images and draws (default: %(default)s)")
    command.add_argument("--rows", type=_positive, default=6, metavar="R", help="how many images (default: %(default)s)")
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
