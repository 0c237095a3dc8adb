"""The main program of a local worker process; started by `Workers`, never by hand."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback

_LIFELINE = 0  # standard input: the setup comes here, and its end is the leader's


def main() -> None:
    """Read the setup, join the group, and follow the leader until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to handle
    blob = _read(int.from_bytes(_read(8), "little"))
    threading.Thread(target=_end_with_leader, daemon=True).start()

    import torch
    from torch._C._distributed_c10d import TCPStore

    from fedveil.training.engines.memory import keep_freed_memory
    from fedveil.training.engines.process_group import Group, local_group
    from fedveil.training.engines.processes import Setup, follow

    port, rank, size, setup = pickle.loads(blob)
    if not isinstance(setup, Setup):
        raise TypeError(f"setup: {type(setup)}")
    torch.set_num_threads(setup.threads)
    keep_freed_memory()
    store = TCPStore("127.0.0.1", port, size, is_master=False)
    engine, job = setup.build()
    store.add("ready", 1)
    group = Group(local_group(store, rank, size), torch.device("cpu"), lambda: None)
    follow(group, engine, job)


def _read(length: int) -> bytes:
    parts = []
    while length:
        part = os.read(_LIFELINE, min(length, 1 << 20))
        if not part:
            os._exit(0)  # the leader left before it said anything
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


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
