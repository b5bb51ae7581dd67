"""Write the script with which a shell completes commands, options, recipes and methods.

eval "$(smi --completion bash)"          in ~/.bashrc; zsh instead of bash in ~/.zshrc
smi --completion fish | source           in ~/.config/fish/config.fish
"""

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smi.config.schema import RECIPES
from smi.methods import METHOD_NAMES

NAMES: dict[str, tuple[str, ...]] = {
    "--method": METHOD_NAMES,
    "--methods": METHOD_NAMES,
    "--recipe": RECIPES,
    "--time": (),  # its metavar has examples
    "methods": METHOD_NAMES,  # smi list methods
    "settings": RECIPES,
}
ALTERNATIVES = re.compile(r"[a-z\d-]+(\|[a-z\d-]+)+")  # a metavar that lists the values

ZSH = """\
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""
BASH = """\
_smi() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" = 1 ]; then
        words={commands}
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
        *)
            case "${{COMP_WORDS[1]}}" in
{names}
            esac
            if [[ "$word" == -* ]]; then
                case "${{COMP_WORDS[1]}}" in
{options}
                esac
            fi
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _smi smi
"""


@dataclass(frozen=True)
class Completion:
    """Hold what can follow a command.

    options: with their help texts. values: of each option that has a known list of them; empty for
    an option with another value. names: what may stand without an option.
    """

    help: str
    options: dict[str, str]
    values: dict[str, tuple[str, ...]]
    names: tuple[str, ...]


def describe(parser: ArgumentParser, help: str, settings: Sequence[str]) -> Completion:
    """Read the options of a command from its parser; `settings` are the dotted ones it takes."""
    options: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}
    names: tuple[str, ...] = RECIPES if settings else ()
    for action in parser._actions:
        for name in action.option_strings:
            options[name] = (action.help or "") % {"default": action.default}
            if action.nargs != 0:
                listed = ALTERNATIVES.fullmatch(str(action.metavar))
                alternatives = tuple(listed[0].split("|")) if listed else ()
                values[name] = NAMES.get(name, alternatives)
        if not action.option_strings and action.choices:
            names += tuple(map(str, action.choices))
            values |= {name: NAMES[name] for name in names if name in NAMES}
    for name in settings:
        options[f"--{name}"] = "a setting of the recipe"
        values[f"--{name}"] = ()
    return Completion(help, options, values, names)


def completion_script(shell: str, commands: Mapping[str, Completion]) -> str:
    """Return the script for bash, zsh or fish."""
    if shell == "fish":
        return _fish(commands)
    befores: dict[tuple[str, ...], list[str]] = {}
    names, options = [], []
    for name, command in commands.items():
        for option, words in command.values.items():
            befores.setdefault(words, []).append(f'"{name} {option}"')
        names.append(f"            {name}) words={shlex.quote(' '.join(command.names))};;")
        options.append(f"                {name}) words={shlex.quote(' '.join(command.options))};;")
    # Without known values there are no words, and the shell completes the names of files.
    values = [
        f"        {'|'.join(before)}) words={shlex.quote(' '.join(words))};;"
        for words, before in befores.items()
    ]
    script = BASH.format(
        commands=shlex.quote(" ".join([*commands, "--help", "--version", "--completion"])),
        values="\n".join(values),
        names="\n".join(names),
        options="\n".join(options),
    )
    return (ZSH if shell == "zsh" else "") + script


def _fish(commands: Mapping[str, Completion]) -> str:
    lines = []
    for name, command in commands.items():
        first = f"complete -c smi -n __fish_use_subcommand -f -a {name}"
        lines.append(f"{first} -d {_fish_quote(command.help)}")
        here = f"complete -c smi -n '__fish_seen_subcommand_from {name}'"
        if command.names:
            lines.append(f"{here} -a {shlex.quote(' '.join(command.names))}")
        for option, help in command.options.items():
            words = command.values.get(option)
            taken = "" if words is None else " -r"
            taken += f" -f -a {shlex.quote(' '.join(words))}" if words else ""
            short = "-s" if not option.startswith("--") else "-l"
            lines.append(f"{here} {short} {option.lstrip('-')}{taken} -d {_fish_quote(help)}")
    return "\n".join(lines) + "\n"


def _fish_quote(text: str) -> str:
    """Quote a text for fish, which escapes inside single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
