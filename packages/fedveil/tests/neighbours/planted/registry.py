"""The list of planted bugs, and which cases each can concern."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..cases import RESUMED, Case

PLANTED: dict[str, Callable[[], AbstractContextManager[object]]] = {}
MOST: dict[str, int] = {}
WHERE: dict[str, Callable[[Any], bool]] = {}
NEAR: dict[str, int] = {}
AMONG: dict[str, str] = {}


def plant(
    most: int,
    where: Callable[[Any], bool] = lambda case: True,
    near: int = 0,
    among: str = "cases",
) -> Callable[[Any], Any]:
    """Register a bug by its function's name. `where` says which cases it can concern at all: the
    others are not run, which saves time and finds nothing less. A bug that is rare is looked for
    from case `near` on, shortly before one that shows it, and by the slow tests from case 0 on. It
    is looked for `among` deep cases, sheets that are read, or jobs that are carried out."""

    def keep(function: Callable[[], Any]) -> Callable[[], Any]:
        name = function.__name__
        PLANTED[name], MOST[name], WHERE[name], NEAR[name] = function, most, where, near
        AMONG[name] = among
        return function

    return keep


def by_record(case: Case) -> bool:
    return case.kind.by_record and case.engine in ("auto", "mlp")


def scheduled(case: Case) -> bool:
    return case.seed % RESUMED == 0


def tracked(case: Case) -> bool:
    return "clip_quantile" in case.table["privacy"]


def correlated(case: Case) -> bool:
    return "correlated" in case.table["privacy"]


def dealt(case: Case) -> bool:
    return case.path != "direct"
