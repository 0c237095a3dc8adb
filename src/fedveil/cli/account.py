"""`fedveil account`: what a described mechanism costs in privacy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli import checkout, console
from fedveil.cli import mechanism_args as described
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.cli.load_guarantee import Progress
    from fedveil.privacy.guarantee import Guarantee

PAPERS = ("fu", "hu", "liang", "cheng")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", nargs="?", type=Path, help="a run directory or a recipe, instead of a description"
    )
    described.add_arguments(parser)
    paper = parser.add_argument_group("beside it, what a paper would have claimed")
    paper.add_argument("--paper", choices=PAPERS)
    paper.add_argument("--c2", type=float, default=1.0, help="fu, cheng: their free constant (1)")
    paper.add_argument("--gradient-std", type=float, help="hu: noise std on every mean gradient")
    paper.add_argument("--batch-size", type=int, help="hu: records in one step")
    paper.add_argument("--local-steps", type=int, help="hu: steps in one round")
    paper.add_argument("--records", type=int, help="hu: records of one client")


def execute(args: argparse.Namespace) -> int:
    if args.paper is not None:
        code: int = checkout.reproduction("account").compare(args)
        return code
    if args.source is not None:
        from fedveil.cli import load_guarantee as stored

        return report(*stored.guarantee_of(args.source), args)
    return report(guarantee_of(args), None, args)


def guarantee_of(args: argparse.Namespace) -> Guarantee:
    """The guarantee of the mechanism that the arguments describe."""
    from fedveil.privacy.accounting import account
    from fedveil.privacy.releases import Release

    if args.rounds is None:
        raise ConfigError("--rounds: needed")
    sampling = described.sampling_of(args, args.rounds)
    mechanism = described.mechanism_of(args)
    release = Release(mechanism, sampling, args.rounds, args.uses, args.participations)
    privacy_model = described.privacy_model_of(args, sampling)
    delta = described.delta_of(args, release, privacy_model)
    tuning = described.tuning_of(args)
    return account([release], privacy_model=privacy_model, delta=delta, tuning=tuning)


def report(guarantee: Guarantee, progress: Progress | None, args: argparse.Namespace) -> int:
    """Print a guarantee, from wherever it came."""
    if args.json:
        console.emit(guarantee.to_dict() | ({} if progress is None else progress.to_dict()))
    else:
        described.show(guarantee, "What is guaranteed")
        if str(progress or ""):
            console.stdout().print(str(progress))
    return 0
