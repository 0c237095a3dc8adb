"""The command line. Each command is a module of this package and is imported only when named."""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from functools import cache
from importlib import import_module
from typing import NamedTuple, NoReturn

from fedveil.cli import console
from fedveil.core import progress
from fedveil.core.errors import ConfigError, FedveilError
from fedveil.training.engines.memory import keep_freed_memory

COMMANDS = {
    "run": "train a model from a recipe; with no argument, the default job",
    "predict": "what the model of a run says about new rows",
    "evaluate": "how good the model of a run is on rows whose label is known",
    "report": "one page about runs: result, guarantee, what it rests on; no network needed",
    "account": "what a described mechanism, a recipe or a run costs in privacy",
    "calibrate": "the noise, rounds or rate that a privacy budget buys",
    "plan": "how to spend a budget: rounds, local steps, cohort, and what to expect",
    "compare": "recipes side by side at equal epsilon, over several seeds",
    "methods": "which methods there are, whose data they protect, and from whom",
    "data": "which data sets there are; a schema file for a table",
}


class Command(NamedTuple):
    """A command's help line and the module that defines `configure` and `execute`."""

    help: str
    module: str


@cache
def _installed() -> dict[str, Command]:
    """Return the commands of installed packages, from the entry-point group `fedveil.commands`."""
    from importlib.metadata import entry_points  # brings e-mail and zip files

    installed: dict[str, Command] = {}
    for entry in sorted(entry_points(group="fedveil.commands")):
        for name, text in entry.load().COMMANDS.items():
            installed.setdefault(name, Command(text, f"{entry.module}.{name}"))
    return installed


def commands() -> dict[str, Command]:
    """Return every command by name: this package's own first, then those of installed packages.

    Another package adds commands by naming a package in the entry-point group `fedveil.commands`.
    That package has a dictionary `COMMANDS` (name to help line) and one module a command. A name
    that this package uses cannot be taken over.
    """
    return {name: Command(text, f"fedveil.cli.{name}") for name, text in COMMANDS.items()} | {
        name: command for name, command in _installed().items() if name not in COMMANDS
    }


def command_of(name: str) -> Command | None:
    """Return a command by name. Installed packages are not looked at for this package's own."""
    if name in COMMANDS:
        return Command(COMMANDS[name], f"fedveil.cli.{name}")
    return _installed().get(name)


# Commands that need a package which may not be installed, and its name.
_ELSEWHERE = {
    **dict.fromkeys(("federation", "site", "hub"), "fedveil-federation"),
    **dict.fromkeys(("reproduce", "bound", "audit", "attack", "check"), "fedveil-lab"),
}

_TABLES = (".csv", ".csv.gz", ".parquet")
_WRONG_TYPE = re.compile(r"argument ([^:]+): invalid (.+) value: (.*)")
_WRONG_CHOICE = re.compile(r"argument ([^:]+): invalid choice: (.*) \(choose from (.*)\)")
_TYPES = {"float": "number", "int": "whole number"}


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments:") and message.endswith(_TABLES):
            message = "--data takes one name: for several tables a folder, or 'DIR/*.csv' in quotes"
        elif wrong := _WRONG_TYPE.fullmatch(message):
            message = f"{wrong[1]}: need a {_TYPES.get(wrong[2], wrong[2])}, got {wrong[3]}"
        elif wrong := _WRONG_CHOICE.fullmatch(message):
            choices = wrong[3].replace("'", "")
            message = f"{wrong[1]}: need one of {choices}, got {wrong[2]}"
        elif message.endswith("required: ACTION"):
            (actions,) = (one.choices for one in self._actions if one.metavar == "ACTION")
            message = f"name what to do: {', '.join(actions or ())}"
        raise ConfigError(f"{message} (see {self.prog} --help)")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 bad input, 130 interrupted, 1 else."""
    if arguments is None:  # a process of our own
        arguments = sys.argv[1:]
        keep_freed_memory()
        _silence_warnings()
    try:
        return _dispatch(arguments)
    except FedveilError as error:
        console.complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        console.complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        console.complain(f"{where}{error.strerror or error}")
        return 2


def _silence_warnings() -> None:
    """Let no library's warning reach the terminal: what it warns of may be one row of somebody's.

    Python's own option -W or PYTHONWARNINGS shows them again.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"  # of the processes that this one starts


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("fedveil"))
        return 0
    name = arguments[0]
    command = command_of(name)
    if command is None:
        from difflib import get_close_matches

        if name in _ELSEWHERE:
            package = _ELSEWHERE[name]
            raise ConfigError(
                f"fedveil {name} is a command of {package}, which is not installed. "
                f"Run: pip install {package}"
            )
        near = get_close_matches(name, commands(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(commands())}"
        raise ConfigError(f"unknown command {name!r}: {hint}")
    args = parser_of(name).parse_args(arguments[1:])
    with progress.hidden(getattr(args, "quiet", False)):
        code: int = import_module(command.module).execute(args)
    return code


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command; the reference pages are made from it too."""
    command = command_of(name) or commands()[name]
    parser = _Parser(prog=f"fedveil {name}", description=command.help)
    import_module(command.module).configure(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser


def _usage() -> str:
    lines = [f"  fedveil {name:<10} {text}" for name, (text, _) in commands().items()]
    return "\n".join(
        [
            "Differentially private federated learning.",
            "",
            *lines,
            "",
            "fedveil NAME --help says more.",
        ]
    )
