"""The long run: `python -m tests.neighbours --pairs 1000000 --processes 2`.

With `--state FILE` it can be stopped at any moment; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path

from .planted.search import examine_with
from .search import Found
from .variants import VALUES

_Work = tuple[int, tuple[int, ...], str | None]  # case, values at each place, planted bug


@dataclass
class Progress:
    """What a search has done so far, over all its sittings."""

    first: int
    next: int  # case
    pairs: int = 0
    runs: int = 0
    refused: int = 0
    wrong: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)  # pairs by what changed
    cases: Counter[str] = field(default_factory=Counter)  # by tag
    by_tag: Counter[str] = field(default_factory=Counter)  # pairs

    def add(self, found: Found) -> None:
        self.next = found.seed + 1
        self.pairs += found.pairs
        self.runs += found.runs
        self.refused += bool(found.refused)
        self.wrong += bool(found.violations)
        self.kinds.update(found.kinds)
        for tag in [f"refused: {found.refused[:60]}"] if found.refused else found.tags:
            self.cases[tag] += 1
            self.by_tag[tag] += found.pairs

    def __str__(self) -> str:
        return (
            f"{self.pairs:,} pairs from {self.runs:,} runs of {self.next - self.first:,} cases "
            f"({self.refused:,} refused) in {self.seconds:,.0f} s, {self.wrong:,} with violations"
        )

    def coverage(self) -> str:
        lines = [f"{'pairs':>9} by change"]
        lines += [f"{number:9,} {kind}" for kind, number in sorted(self.kinds.items())]
        lines += [f"{'pairs':>9} {'cases':>7} by case"]
        lines += [f"{self.by_tag[tag]:9,} {self.cases[tag]:7,} {tag}" for tag in sorted(self.cases)]
        return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this case alone, and show it")
    parser.add_argument("--first", type=int, help="number of the first case; none: a random one")
    parser.add_argument("--pairs", type=int, default=1000, help="stop after so many")
    parser.add_argument("--minutes", type=float, help="or after so long")
    told = "at each of the three places that change: more give more pairs from one run"
    parser.add_argument("--values", type=int, nargs=3, default=VALUES, help=told)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--plant", help="with this bug in the program (see planted)")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a violation")
    parser.add_argument("--state", type=Path, help="keep what was done here, and go on from it")
    args = parser.parse_args(arguments)
    if args.seed is not None:
        found = examine_with((args.seed, tuple(args.values), args.plant))
        print(found, found.refused and f"refused: {found.refused}", *found.tags, sep="\n")
        print(f"{found.pairs} pairs from {found.runs} runs: {dict(found.kinds)}")
        return bool(found.violations)
    progress = _begun(args)
    print(f"cases from {progress.next} on (--first {progress.next} repeats this)", flush=True)
    try:
        wrong = _search(args, progress)
    finally:
        _keep(args.state, progress)
        print(progress, progress.coverage(), sep="\n", flush=True)
    return bool(wrong)


def _begun(args: argparse.Namespace) -> Progress:
    """From the state file, or from a case's number."""
    if args.state is None or not args.state.exists():
        first = secrets.randbits(40) if args.first is None else args.first
        return Progress(first, first)
    if args.first is not None:
        sys.exit(f"--first: {args.state} says where to go on; leave out one of the two")
    kept = json.loads(args.state.read_text())
    counts = ("kinds", "cases", "by_tag")
    return Progress(**{k: Counter(v) if k in counts else v for k, v in kept.items()})


def _keep(path: Path | None, progress: Progress) -> None:
    if path is not None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(vars(progress)))
        new.replace(path)


def _search(args: argparse.Namespace, progress: Progress) -> int:
    """How many cases of this sitting have violations."""
    before, wrong = progress.seconds, progress.wrong
    began = told = time.monotonic()
    with ExitStack() as stack:
        for found in _founds(stack, progress.next, args):
            progress.add(found)
            if found.violations:
                print(f"\nafter {progress.pairs:,} pairs, {found}", flush=True)
            now = time.monotonic()
            progress.seconds = before + now - began
            if now - told > 60:
                told = now
                print(progress, flush=True)
                _keep(args.state, progress)
            late = args.minutes is not None and now - began > 60 * args.minutes
            stopped = progress.wrong > wrong and not args.go_on
            if late or progress.pairs >= args.pairs or stopped:
                break
    return progress.wrong - wrong


def _founds(stack: ExitStack, first: int, args: argparse.Namespace) -> Iterator[Found]:
    """Yield what each case gives, in the order of their numbers.

    Only a few cases are handed out ahead. A multiprocessing pool would pickle millions of them, and
    may hang when it is ended in the middle of that.
    """
    work: Iterator[_Work] = ((seed, tuple(args.values), args.plant) for seed in count(first))
    if args.processes == 1:
        yield from map(examine_with, work)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    pool = ProcessPoolExecutor(args.processes, get_context("spawn"))
    stack.callback(pool.shutdown, wait=True, cancel_futures=True)
    waiting = deque(pool.submit(examine_with, one) for one in islice(work, 4 * args.processes))
    while waiting:
        yield waiting.popleft().result()
        waiting.append(pool.submit(examine_with, next(work)))


if __name__ == "__main__":
    sys.exit(main())
