"""`fedveil reproduce`: run the papers' tables and figures again."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveil.core.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="an experiment, or list")
    parser.add_argument(
        "--scale", choices=("quick", "full"), default="quick", help="minutes or hours (quick)"
    )
    parser.add_argument("--seeds", type=int, help="how often each case is run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value in all cases: a recipe key, or a setting of the page as T",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where results are kept (results)",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="write from finished runs, or draw what was written before; run nothing",
    )


def execute(args: argparse.Namespace) -> int:
    if args.seeds is not None and args.seeds < 1:
        raise ConfigError(f"--seeds {args.seeds}: must be at least 1")
    from fedveil_lab.reproduction import command

    return command.execute(args)
