"""The long run: `python -m tests.neighbours --pairs 1000000 --processes 2`."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from multiprocessing import get_context

from .search import Found, examine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this case alone, and show it")
    parser.add_argument("--first", type=int, help="number of the first case; none: a random one")
    parser.add_argument("--pairs", type=int, default=1000, help="stop after so many")
    parser.add_argument("--minutes", type=float, help="or after so long")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--plant", help="with this bug in the program (see planted.py)")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a violation")
    parser.add_argument("--coverage", action="store_true", help="say what was tried")
    args = parser.parse_args()
    if args.seed is not None:
        found = _examine((args.seed, args.plant))
        print(found, found.refused and f"refused: {found.refused}", dict(found.tags), sep="\n")
        return bool(found.violations)
    first = secrets.randbits(40) if args.first is None else args.first
    print(f"cases from {first} on (--first {first} repeats this search)", flush=True)
    return _search(args, first)


def _search(args: argparse.Namespace, first: int) -> int:
    began, told = time.monotonic(), time.monotonic()
    pairs = cases = refused = wrong = 0
    tags: Counter[str] = Counter()
    with ExitStack() as stack:
        for found in _founds(stack, first, args):
            cases, pairs, refused = cases + 1, pairs + found.pairs, refused + bool(found.refused)
            tags += found.tags
            if found.refused:
                tags[f"refused: {found.refused[:70]}"] += 1
            if found.violations:
                wrong += 1
                print(f"\nafter {pairs:,} pairs, {found}", flush=True)
            seconds = time.monotonic() - began
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{pairs:,} pairs, {cases:,} cases, {seconds / 60:.0f} min", flush=True)
            late = args.minutes is not None and seconds > 60 * args.minutes
            if late or pairs >= args.pairs or (wrong and not args.go_on):
                break
    seconds = time.monotonic() - began
    print(
        f"{pairs:,} pairs of {cases:,} cases ({refused:,} refused) in {seconds:,.0f} s, "
        f"{wrong:,} with violations"
    )
    if args.coverage:
        print(*(f"{number:8} {tag}" for tag, number in sorted(tags.items())), sep="\n")
    return bool(wrong)


def _founds(stack: ExitStack, first: int, args: argparse.Namespace) -> Iterator[Found]:
    work = ((seed, args.plant) for seed in count(first))
    if args.processes == 1:
        return map(_examine, work)
    os.environ["OMP_NUM_THREADS"] = "1"
    pool = stack.enter_context(get_context("spawn").Pool(args.processes))
    return pool.imap(_examine, _bounded(work), chunksize=20)


def _bounded(work: Iterator[tuple[int, str | None]]) -> Iterator[tuple[int, str | None]]:
    """The pool reads ahead: not for ever."""
    return (item for item, _ in zip(work, range(10_000_000), strict=False))


def _examine(work: tuple[int, str | None]) -> Found:
    from .planted import PLANTED

    seed, plant = work
    with ExitStack() as stack:
        if plant is not None:
            stack.enter_context(PLANTED[plant]())
        return examine(seed)


if __name__ == "__main__":
    sys.exit(main())
