"""`fedveil account`: what a described mechanism, a recipe or a run costs in privacy."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveil.cli import console
from fedveil.cli.mechanism_args import add_arguments, described, document_of, show
from fedveil.core.errors import ConfigError
from fedveil.core.registry import extension

_PAPER: console.Options = {
    "--paper": (("fu", "hu", "liang", "cheng"), "whose claim"),
    "--c2": (float, "fu, cheng: their free constant (1)", 1.0),
    "--gradient-std": (float, "hu: noise std on every mean gradient"),
    "--batch-size": (int, "hu: records in one step"),
    "--local-steps": (int, "hu: steps in one round"),
    "--records": (int, "hu: records of one client"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", nargs="?", type=Path, help="a run directory or a recipe, instead of a description"
    )
    add_arguments(parser)
    console.add_options(parser, _PAPER, "beside it, what a paper would have claimed")


def execute(args: argparse.Namespace) -> int:
    from fedveil.cli.load_guarantee import RunProgress, guarantee_of

    if args.paper is not None:
        compare = extension("fedveil.papers", "account")
        if compare is None:
            raise ConfigError(
                "--paper: the papers' claims are in fedveil-lab, which is not installed. "
                "Run: pip install fedveil-lab"
            )
        code: int = compare(args)
        return code
    progress: RunProgress | None = None
    person = None
    if args.source is not None:
        guarantee, progress = guarantee_of(args.source)
    elif args.rounds is None:
        raise ConfigError(
            "--rounds: give the number of rounds, or name a recipe or a run directory"
        )
    else:
        guarantee, person = described(args, args.rounds).guarantees()

    def shown() -> None:
        show(guarantee, "What is guaranteed", person)
        if str(progress or ""):
            console.stdout().print(str(progress))

    begun = {} if progress is None else progress.to_dict()
    return console.answer(args, document_of(guarantee, person) | begun, shown)
