"""Bugs of parts that are given to a run, or that it is shared among."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from fedveil.core.containment import contained
from fedveil.run.callbacks import Audience
from fedveil.run.run import Run

from .. import worlds
from .registry import plant


@plant(300, lambda case: case.given == "quiet", near=298)
def a_given_engine_is_believed() -> Any:
    """Whoever made it, and whichever noise it adds."""
    return patch.object(Run, "_certify_nothing", lambda self, why: None)


@plant(300, lambda case: "public_clients" in case.table["privacy"] and case.path != "direct")
def machines_by_position() -> Any:
    """If a client is missing, those behind it train on another machine."""

    def home_parts(federation: Any, parts: int) -> Any:
        return np.arange(federation.clients) % parts

    return patch.object(worlds, "home_parts", home_parts)


@plant(60, lambda job: job.command == "callback", among="jobs")
def a_callback_that_raises_ends_the_run() -> Any:
    """What it has seen are figures on the clients' own test examples."""

    def round_told(self: Audience, report: Any) -> bool:
        return any(one.on_round(report) for one in self._callbacks)

    return patch.object(Audience, "round", round_told)


@plant(600, lambda case: case.loss == "fragile", near=2565)
def a_loss_that_raises_ends_the_run() -> Any:
    """Whose record it was that made it raise, everybody knows."""
    return patch.object(contained, "__exit__", lambda self, *error: False)
