"""The main program of a local worker process; started by `Workers`, never by hand."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Any


def main() -> None:
    """Read the setup, join the group, and follow the leader until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to handle
    lifeline = sys.stdin.buffer
    length = int.from_bytes(lifeline.read(8), "little")
    blob = lifeline.read(length)
    if not length or len(blob) < length:
        return
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()

    import torch
    from torch._C._distributed_c10d import TCPStore

    from fedveil.engine.processes import Setup, follow
    from fedveil.engine.team import Group, local_group

    port, rank, size, setup = pickle.loads(blob)
    if not isinstance(setup, Setup):
        raise TypeError(f"setup: {type(setup)}")
    torch.set_num_threads(setup.threads)
    store = TCPStore("127.0.0.1", port, size, is_master=False)
    engine = setup.build()
    store.add("ready", 1)
    follow(Group(local_group(store, rank, size), torch.device("cpu"), lambda: None), engine)


def _end_with(lifeline: Any) -> None:
    """Leave as soon as the leader does, even from the middle of a computation."""
    lifeline.read()
    os._exit(0)


if __name__ == "__main__":
    main()
