"""(d): a run that is killed anywhere and resumed, compared with what it may have done."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from fedveil.planning import recipe as recipes
from fedveil.privacy.ledger import Ledger
from fedveil.run.directory import RunDirectory
from fedveil.run.run import Run

from .cases import Case
from .checks import Violation, too_near
from .coupling import Streams
from .recording import Recorder, recording
from .worlds import NEVER, names_of, plan_for, prepared, scratch, speed_of

# Between these two moments a result may have left although nothing is stored.
_MOMENTS = (
    "after reserving",
    "after training",
    "before storing",
    "before storing",
    "after storing",
)


class Killed(BaseException):
    """The end of the process, as far as the program can see."""


def killed_and_resumed(case: Case, number: int) -> list[Violation]:
    """Run a case to its end with a few kills, and count how often each client took part."""
    draw = np.random.default_rng([case.seed, 4, number])
    streams = Streams(case.seed)
    recorder = Recorder(streams)
    folder = Path(tempfile.mkdtemp(prefix="neighbours-", dir=scratch())) / "run"
    state = patch.dict(os.environ, {"XDG_STATE_HOME": str(folder.parent)})
    try:
        with recording(recorder, bool(case.module), case.room) as notes, state:
            chosen, federation = prepared(case, case.clients)
            streams.name_clients(names_of(federation, case.clients))
            planned = plan_for(case, chosen, federation)
            table = recipes.to_table(chosen)
            RunDirectory.create(folder, planned, table).close()
            for _ in range(int(draw.integers(1, 5))):
                _session(case, chosen, federation, folder, draw)
            _session(case, chosen, federation, folder, None)
    finally:
        shutil.rmtree(folder.parent)
    releases = planned.releases(planned.method.rounds)
    accounted = max(release.counted_participations for release in releases)
    name, most = max(notes.taken.items(), key=lambda item: item[1], default=("", 0))
    if most > accounted:
        return [Violation("d", f"{name} took part {most} times, accounted {accounted}")]
    return list(too_near(notes, releases[0]))


def _session(case, chosen, federation, folder: Path, draw: np.random.Generator | None) -> None:
    """Open the run and go on, to the end or to the next kill."""
    planned = plan_for(case, chosen, federation)
    run = Run(planned, speed=speed_of(case), every=NEVER)
    directory = RunDirectory.open(folder, planned)
    try:
        run.keep_in(directory)
        if draw is None:
            for _ in run:
                pass
            return
        # Mostly the first round again and again: then its cohort would come too often.
        with _a_kill(run, int(draw.choice((1, 1, 1, 2, 3))), str(draw.choice(_MOMENTS))):
            for _ in run:
                pass
    except Killed:
        pass
    finally:
        run.close()
        directory.close()


@contextmanager
def _a_kill(run: Run, round_number: int, moment: str) -> Iterator[None]:
    """Kill in the `round`-th round from here."""
    left = round_number

    def due(here: str) -> None:
        nonlocal left
        left -= here == moment
        if here == moment and left == 0:
            raise Killed

    def around(function, here: str, after: bool):
        def wrapped(*args, **kwargs):
            if not after:
                due(here)
            result = function(*args, **kwargs)
            if after:
                due(here)
            return result

        return wrapped

    train, store, reserve = run.engine.updates, Run.store, Ledger.reserve

    def trained(*args):
        return iter(list(train(*args)))

    stored = around(around(store, "before storing", False), "after storing", True)
    with (
        patch.object(run.engine, "updates", around(trained, "after training", True)),
        patch.object(Run, "store", stored),
        patch.object(Ledger, "reserve", around(reserve, "after reserving", True)),
    ):
        yield
