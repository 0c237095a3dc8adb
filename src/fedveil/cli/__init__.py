"""The command line. Each command is a module of this package and is imported only when named."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import NoReturn

from fedveil.cli import console
from fedveil.core.errors import ConfigError, FedveilError
from fedveil.engines.memory import keep_freed_memory

COMMANDS = {
    "run": "train a model from a recipe; with no argument, the default job",
    "predict": "what the model of a run says about new rows",
    "evaluate": "how good the model of a run is on rows whose label is known",
    "report": "one page about runs: result, guarantee, what it rests on; no network needed",
    "account": "what a described mechanism, a recipe or a run costs in privacy",
    "calibrate": "the noise, rounds or rate that a privacy budget buys",
    "plan": "how to spend a budget: rounds, local steps, cohort, and what to expect",
    "reproduce": "the papers' tables and figures, run again on real data",
    "compare": "recipes side by side at equal epsilon, over several seeds",
    "audit": "attack what a recipe promises: lower bounds on epsilon",
    "attack": "what others could learn from uploads and models, in pictures",
    "check": "the true epsilon of a configuration written for another system",
    "methods": "which methods there are, whose data they protect, and from whom",
    "data": "which data sets there are; a schema file for a table",
    "federation": "across machines: found a federation, see who is there, run a recipe",
    "site": "across machines: an owner's side; join, start, ledger, pause, leave",
    "hub": "across machines: the process that carries out a federation's runs",
    "completion": "a script by which a shell completes commands and options",
}


_TABLES = (".csv", ".csv.gz", ".parquet")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments:") and message.endswith(_TABLES):
            message = "--data takes one name: for several tables a folder, or 'DIR/*.csv' in quotes"
        raise ConfigError(f"{message} (see {self.prog} --help)")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 bad input, 130 interrupted, 1 else."""
    if arguments is None:  # a process of our own
        arguments = sys.argv[1:]
        keep_freed_memory()
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


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("fedveil"))
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        raise ConfigError(f"unknown command {name!r}: {hint}")
    args = parser_of(name).parse_args(arguments[1:])
    code: int = import_module(f"fedveil.cli.{name}").execute(args)
    return code


def parser_of(name: str) -> argparse.ArgumentParser:
    """What a command understands; the reference pages are made from it too."""
    parser = _Parser(prog=f"fedveil {name}", description=COMMANDS[name])
    import_module(f"fedveil.cli.{name}").configure(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser


def _usage() -> str:
    lines = [f"  fedveil {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "Differentially private federated learning.",
            "",
            *lines,
            "",
            "fedveil NAME --help says more.",
        ]
    )
