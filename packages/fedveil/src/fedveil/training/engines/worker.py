"""The main program of a local worker process; started by `Workers`, never by hand."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback

_LIFELINE = 0  # standard input: its end is the leader's


def main() -> None:
    """Read the setup, and follow the leader until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to handle
    threading.Thread(target=_end_with_leader, daemon=True).start()

    from multiprocessing.connection import Connection

    import torch

    from fedveil.training.engines.memory import keep_freed_memory
    from fedveil.training.engines.processes import Follower, follow

    team = Follower(Connection(int(sys.argv[1])), int(sys.argv[2]))
    try:
        setup = team.hear()
        torch.set_num_threads(setup.threads)
        keep_freed_memory()
        follow(team, *setup.build())
    except EOFError:  # the leader has left
        os._exit(0)


def _end_with_leader() -> None:
    """Leave as soon as the leader does, even from the middle of a computation."""
    while os.read(_LIFELINE, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    code = 0
    try:
        main()
    except BaseException:  # the leader reads the last line and reports it
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the thread on the lifeline would keep an ordinary exit waiting
