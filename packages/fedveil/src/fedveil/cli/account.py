"""`fedveil account`: what a described mechanism, a recipe or a run costs in privacy."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveil.cli import console
from fedveil.cli.mechanism_args import (
    add_arguments,
    described,
    document_of,
    refuse_beside,
    show,
)
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
    from fedveil.run.guarantees import guarantee_of, unfinished, way_to_certify

    if args.paper is not None:
        compare = extension("fedveil.papers", "account")
        if compare is None:
            raise ConfigError(
                "--paper: the papers' claims are in fedveil-lab, which is not installed. "
                "Run: pip install fedveil-lab"
            )
        code: int = compare(args)
        return code
    progress, person, certify = None, None, None
    if args.source is not None:
        refuse_beside(args)
        guarantee, progress = guarantee_of(args.source)
        certify = None if guarantee.certified else way_to_certify(args.source)
    elif args.rounds is None:
        raise ConfigError(
            "--rounds: give the number of rounds, or name a recipe or a run directory"
        )
    else:
        guarantee, person = described(args, args.rounds).guarantees()

    def show_answer() -> None:
        show(guarantee, "What is guaranteed", person)
        if progress is not None and (sentence := unfinished(progress)):
            console.say(sentence)
        if certify is not None:
            console.say(certify, heading="To certify this, run:", command=True)

    return console.answer(args, document_of(guarantee, person) | (progress or {}), show_answer)
