"""Memory of large kernels that is used again instead of going back to the system after each."""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE = 1 << 30  # bytes


@cache
def keep_freed_memory() -> bool:
    """Let this process keep up to a gigabyte that it frees; whether it can (glibc alone can).

    A training step allocates and frees tens of megabytes many times over. By default the system
    takes each large piece back and clears it anew page by page, which shows most in recurrent
    networks (a fifth of an LSTM's time). It holds for the whole process, so fedveil does it in
    processes of its own alone: workers and the command line. In yours, call it yourself.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _LARGE))
