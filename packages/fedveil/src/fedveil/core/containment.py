"""Keeping an error in somebody else's code from ending a protected run.

That a run stops, and where, is seen by everybody. If the values of an example can make a loss, a
layer or a callback raise, the stop tells that such an example is there, and no noise hides it. So
what raises counts as nothing, and nothing is said about it. A simulation raises as usual: that is
where an error is looked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


class contained:  # noqa: N801
    """Ends the block, and nothing else, at whatever is raised in it; `failed` says whether.

    Only Ctrl-C passes: whoever presses it ends the run, and no data do.

    >>> with contained() as attempt:
    ...     raise SystemExit(3)
    >>> attempt.failed
    True
    """

    failed = False

    def __enter__(self) -> contained:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        self.failed = kind is not None
        return kind is not None and not issubclass(kind, KeyboardInterrupt)


@contextmanager
def silence() -> Iterator[None]:
    """Show no warnings inside the block, nor raise them: which values overflow is private."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
