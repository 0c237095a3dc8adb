"""Processes of a test's own that start at once: forks of one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from fedveil.cli import main
from fedveil.run import run

# A server that has imported everything and computed nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.engines.crash_child", "tests.processes"])


class Command:
    """`fedveil ARGUMENTS` in a folder; with `hold` it waits for a signal after its second round,
    however fast or slow it is."""

    def __init__(self, folder: Path, *arguments: str, hold: bool = False) -> None:
        self._errors = folder / f"stderr-{time.monotonic_ns()}"
        self._errors.touch()
        work = (folder, self._errors, arguments, hold)
        self.process = PROCESSES.Process(target=_execute, args=work)
        self.process.start()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def wait_for(self, begin: str, *, or_end: bool = False) -> None:
        """Until it has said a line that begins so, or, if that will do, has ended well."""
        while not any(line.startswith(begin) for line in self.errors.splitlines()):
            if not self.process.is_alive():
                assert or_end, self.errors
                assert self.process.exitcode == 0, self.errors
                return
            time.sleep(0.005)

    def end(self, number: int = signal.SIGKILL) -> int | None:
        """Send it a signal, and wait for its end: its exit code."""
        if self.process.is_alive():
            os.kill(self.process.pid or 0, number)
        self.process.join()
        return self.process.exitcode


def _execute(folder: Path, errors: Path, arguments: tuple[str, ...], hold: bool) -> None:
    os.chdir(folder)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored
    if hold:
        run.play_round = _held
    sys.exit(main(list(arguments)))


_play_round = run.play_round


def _held(playing: run.Run, last: bool) -> object:
    report = _play_round(playing, last)
    if report.round_number == 2:
        print("holding", file=sys.stderr, flush=True)
        while True:
            signal.pause()
    return report
