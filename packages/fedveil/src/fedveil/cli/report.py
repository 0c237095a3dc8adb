"""`fedveil report`: how good runs are and what they guarantee, on one page."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from fedveil.cli import console
from fedveil.core.errors import ConfigError, FedveilError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Find = Callable[[], Sequence[Path]]  # which runs to show now

_OPTIONS: console.Options = {
    "--format": (("html", "json"), "a page to read, or the same as a document (html)", "html"),
    "--output FILE": (Path, "where to (report.html in the run; here, if there are several)"),
    "--watch": (bool, "serve the page on this machine while the runs grow, until Ctrl-C"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    if args.watch:
        with suppress(KeyboardInterrupt), watched(lambda: args.runs):
            Event().wait()
        return 0
    from fedveil.report.facts import document_of
    from fedveil.report.page import write

    documents = [document_of(path) for path in args.runs]
    file = args.output or _place(args.runs, args.format)
    write(documents, file, args.format)
    answer = {"file": str(file), "runs": documents}
    return console.answer(args, answer, lambda: console.say(str(file), heading="Report:"))


def newest_in(folder: Path) -> list[Path]:
    """Return the run that was begun last among those in a folder.

    Raises:
        ConfigError: There is none.
    """
    begun = {file.parent: file.stat().st_mtime_ns for file in folder.glob("*/recipe.toml")}
    if not begun:
        raise ConfigError(f"{folder}: no run yet")
    return [max(begun, key=lambda path: begun[path])]


@contextmanager
def watched(find: Find) -> Iterator[str]:
    """Serve the page of runs that may still grow, and say its address on stderr.

    Args:
        find: Returns the runs to show now.
    """
    from fedveil.report.facts import document_of
    from fedveil.report.live import served
    from fedveil.report.page import page

    @lru_cache(maxsize=1)  # a page is made anew when a file has changed
    def drawn(paths: tuple[Path, ...], changed: tuple[int, ...]) -> str:
        return page([document_of(path) for path in paths], live=True)

    def make() -> str:
        paths = tuple(find())
        files = [path / name for path in paths for name in ("metrics.jsonl", "result.json")]
        changed = (file.stat().st_mtime_ns if file.exists() else 0 for file in files)
        return drawn(paths, tuple(changed))

    with served(make) as address:
        print(f"Watch: {address}", file=sys.stderr, flush=True)  # never wrapped: it is to be copied
        yield address


@contextmanager
def watched_apart(folder: Path, *, newest: bool = False) -> Iterator[None]:
    """Serve the page of a run, or of the newest run in a folder, from another process.

    A page must neither slow a run down nor share settings of the process, such as the number of
    digits that accountants compute with.
    """
    from multiprocessing import get_context

    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(folder, newest, there), daemon=True)
    process.start()
    there.close()
    try:
        yield
    finally:
        process.terminate()
        process.join()
        here.close()


def _serve(folder: Path, newest: bool, starter: Connection) -> None:
    """Serve until the process that started this one is gone, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    with suppress(EOFError), watched(lambda: newest_in(folder) if newest else [folder]):
        starter.recv()


def write_report(path: Path) -> str | None:
    """Write a finished run's report.html; return where, or None after saying why there is none."""
    from fedveil.report.facts import document_of
    from fedveil.report.page import write

    file = path / "report.html"
    try:
        write([document_of(path)], file)
    except (FedveilError, OSError) as error:
        console.complain(f"no report was written ({error}); try again: fedveil report {path}")
        return None
    return str(file)


def _place(runs: Sequence[Path], kind: str) -> Path:
    return (runs[0] if len(runs) == 1 else Path()) / f"report.{kind}"
