"""Keeping an error in somebody else's code from ending a protected run.

That a run stops, and where, is seen by everybody. If the values of an example can make a loss, a
layer or a callback raise, the stop tells that such an example is there, and no noise hides it. So
what raises counts as nothing, and nothing is said about it. A simulation raises as usual: that is
where an error is looked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def or_else(call: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return what `call` returns, or, if it raises whatever, what `otherwise` returns.

    Only Ctrl-C passes: whoever presses it ends the run, and no data do.
    """
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit too: a loss may call exit()
        return otherwise()


@contextmanager
def silence() -> Iterator[None]:
    """Show no warnings inside the block, nor raise them: which values overflow is private."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
