"""The command line through its real entry point."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import smi
from smi.cli import COMMAND_GROUPS, COMMANDS, EXPORT_FORMATS, GROUPS, load_function
from smi.inference.export_network import FORMATS

SMI = Path(sys.executable).with_name("smi")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SMI), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_cost_prints_the_papers_table():
    result = run("table", "2", "--batch", "256")
    assert result.returncode == 0
    assert result.stderr == ""
    for number in ("137.43", "274.87", "103.07", "12.88", "24(256×255)"):
        assert number in result.stdout


def test_cost_json_and_measure():
    result = run(
        "table", "2", "--batch", "8", "--dim", "16", "--devices", "1", "--measure", "--json"
    )
    assert result.returncode == 0
    assert result.stderr == ""
    assert len(json.loads(result.stdout)["losses"]) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("table", "2", "--batch", "0"),
        ("table", "2", "--dim", "many"),
        ("table", "2", "--devices", "-1"),
        ("table", "2", "--bath", "3"),
        ("csot",),
        (),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "--help" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["pretrain", "digits", "--method", "SimCRL", "--out", "a"], "did you mean SimCLR?"),
        (["compare", "digits", "--methods", "SMI", "BYLO", "--out", "a"], "did you mean BYOL?"),
        (["list", "settings", "digts"], "did you mean digits?"),
        (["export", "a", "--to", "onx"], "did you mean onnx?"),
        (["doctor", "nowhere"], "there is no run"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_names_are_refused_before_torch(arguments, problem, smi_here, monkeypatch):
    monkeypatch.setattr("smi.cli.load_function", pytest.fail)  # it imports what a command needs
    result = smi_here(*arguments)
    assert result.returncode == 2
    assert problem in result.stderr


def test_the_formats_of_exports_are_known_without_torch():
    assert set(EXPORT_FORMATS) == set(FORMATS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([command.name, "--help"] for command in COMMANDS),
        ["table", "2", "--batch", "256"],
        ["list", "recipes"],
        ["list", "runs", "."],
        ["figure", "--list"],
        ["reproduce", "--list"],
    ],
    ids=" ".join,
)
def test_answers_without_torch(arguments):
    code = (
        "import sys, smi.cli; sys.argv = ['smi', *sys.argv[1:]]\n"
        "try: smi.cli.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_option_has_a_help_text_and_a_parameter(command):
    """Every option reaches the function that the command calls."""
    functions = map(load_function, (command.calls, *command.instead.values()))
    parameters = {name for f in functions for name in inspect.signature(f).parameters}
    overrides = set(command.overrides or ())
    assert overrides == set() or "overrides" in parameters
    for name, arguments in command.options:
        assert len(arguments["help"].split()) > 1, name
        dest = arguments.get("dest", name.removeprefix("--").replace("-", "_"))
        if dest in ("form", "trust") or dest in command.instead:  # the handler takes these
            continue
        grouped = {
            name
            for parameter, (_, names) in GROUPS.items()
            if parameter in parameters
            for name in names
        }
        assert dest in parameters | overrides | grouped, f"{command.name} {name}"
    for path in (*command.instead.values(), command.shows or command.calls):
        assert callable(load_function(path))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_required_parameter_has_an_option_that_is_given(command):
    """A parameter without a default is a required option, has a default or is in `needs`."""
    given = set(command.needs)
    for name, arguments in command.options:
        dest = arguments.get("dest", name.removeprefix("--").replace("-", "_"))
        positional = not name.startswith("--") and arguments.get("nargs") != "?"
        if positional or arguments.get("required") or arguments.get("default") is not None:
            given.add(dest)
    parameters = inspect.signature(load_function(command.calls)).parameters.values()
    assert {p.name for p in parameters if p.default is p.empty} <= given


WRONG = [
    ("pretrain", "digits"),
    ("pretrain", "digitz", "--out", "x"),
    ("pretrain", "digits", "--out", ""),
    ("pretrain", "digits", "--out", "x", "--precision", ""),
    ("pretrain", "digits", "--out", "x", "--epochs", "9" * 400),
    ("pretrain", "digits", "--out", "x", "--seed", "9" * 400),
    ("pretrain", "digits", "--out", "x", "--data.images", "9" * 400),
    ("pretrain", "digits", "--out", "x", "--views.blur_p", "[0, 2]"),
    ("pretrain", "digits", "--out", "x", "--views.size", "20000"),
    ("compare", "digits", "--methods", "SMI"),
    ("doctor", "nowhere"),
    ("evaluate", "nowhere"),
    ("embed", "nowhere", "--data", "digits", "--out", "x.npz"),
    ("neighbours", "nowhere", "--data", "digits", "--query", "x.png"),
    ("classify", "nowhere", "x.png"),
    ("classify", "nowhere", "--data", "digits", "--out", "x"),
    ("classify", "nowhere", "x.png", "--epochs", "-1"),
    ("export", "nowhere", "--to", "timm"),
    ("list", "methods", "SMEE"),
    ("list", "recipes", "SMI"),
    ("list", "runs", "nowhere"),
    ("list", "settings"),
    ("list", "settings", "digitz"),
    ("list", "nothing"),
    ("list", "encoders", "--image-size", "0"),
    ("data", "nowhere"),
    ("shard", "nowhere", "--out", "x"),
    ("data", "nowhere", "--views", "x.png"),
    ("table", "1", "--batch", "3"),
    ("figure",),
    ("figure", "gradient-norm", "--out", "x.html"),
    ("figure", "gradient-norn", "--out", "x.html"),
    ("table", "4"),
    ("table", "1", "nowhere"),
    ("table", "3", "--json", "--markdown"),
    ("report", "nowhere"),
    ("reproduce", "--scale", "minutes"),
    ("reproduce", "nothing", "--scale", "minutes", "--out", "x"),
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_mistake_in_any_command_is_one_sentence(arguments, smi_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = smi_here(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_sixteen_commands_at_most_each_in_a_group():
    groups = [name for names in COMMAND_GROUPS.values() for name in names]
    assert sorted(groups) == sorted(command.name for command in COMMANDS)
    assert len(COMMANDS) <= 16


def test_wrong_inputs_are_tried_for_every_command():
    assert {arguments[0] for arguments in WRONG} == {c.name for c in COMMANDS} - {"demo"}


def test_the_landscape_needs_no_run(smi_here, tmp_path):
    result = smi_here("figure", "landscape", "--out", tmp_path / "l.html")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "l.html").is_file()


def test_module_and_version():
    result = subprocess.run(
        [sys.executable, "-m", "smi", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == f"smi {smi.__version__}\n"


def test_a_closed_pipe_is_not_a_traceback():
    """A reader that is gone before anything is written, and a disk that is full."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for buffering in ({}, {"PYTHONUNBUFFERED": "1"}):
        command = f"{SMI} table 2 | (exec 0<&-; sleep 0.5)"
        result = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment | buffering,
        )
        assert result.stderr == ""


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full, which Linux has"
)
def test_a_full_disk_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [str(SMI), "table", "2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == "smi: No space left on device\n"


def test_too_large_to_measure_is_one_sentence():
    result = run("table", "2", "--measure", "--batch", "100000", "--dim", "1000000000")
    assert result.returncode == 2
    assert result.stderr.startswith("smi: there is not enough memory to measure")
    assert len(result.stderr.splitlines()) == 1


CALLABLES = (
    "pretrain",
    "evaluate",
    "compare",
    "report",
    "reproduce",
    "embed",
    "neighbours",
    "classify",
    "load_classifier",
    "export",
    "diagnose",
    "load",
    "Run",
    "SMILoss",
)


@pytest.mark.parametrize("name", CALLABLES)
def test_public_names_are_callables_whose_docstrings_show_a_call(name):
    function = getattr(smi, name)
    assert callable(function)
    assert re.search(rf"\b{name}\(.*\)", function.__doc__, re.DOTALL), f"smi.{name}"
    assert name in dir(smi)


QUIETABLE = [name for name in CALLABLES if name.islower() and not name.startswith("load")]


@pytest.mark.parametrize("name", QUIETABLE)
def test_public_functions_can_be_silenced(name):
    quiet = inspect.signature(getattr(smi, name)).parameters["quiet"]
    assert quiet.default is False
    assert quiet.kind is quiet.KEYWORD_ONLY


def test_public_modules():
    assert smi.SMILoss is smi.losses.SMILoss
    assert smi.nn.Queue
    assert smi.Runtime(device="cpu").device == "cpu"
    with pytest.raises(AttributeError, match="no attribute 'SMILos'"):
        _ = smi.SMILos


def test_the_library_prints_in_one_place():
    """Bare prints cannot be silenced: library code uses `say` and `announce`."""
    package = Path(smi.__file__).parent
    prints = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ]
    assert {place.split(":")[0] for place in prints} <= {"cli.py", "terminal.py"}, prints


@pytest.mark.parametrize(
    ("word", "setting"),
    [
        ("--lr", "--optimizer.lr"),
        ("--lambda", "--method.redundancy_weight"),
        ("--weight-decay=0", "--optimizer.weight_decay"),
        ("--resolution", "--data.resolution"),
    ],
)
def test_the_short_name_of_a_setting_is_answered_with_its_full_name(word, setting):
    result = run("pretrain", "digits", "--out", "x", word, "1")
    assert result.returncode == 2
    assert result.stderr.startswith(f"smi pretrain: there is no {word}: did you mean {setting}?")
