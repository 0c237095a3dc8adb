"""Engines from outside the package: one file each, found by name.

    @engine("mine")
    def build(job: Job, chunk: int | None, device: torch.device) -> Engine: ...

Installed packages name theirs in the entry-point group `fedveil.engines`. An engine is chosen by
its name (`engine.name`), never by itself; `contract_suite.check_engine` tells whether it computes
what it must. Protected runs hand it one client at a time, so it need not keep clients apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedveil.core.registry import Registry
from fedveil.training.engines.contract import Engine, Job

Build = Callable[[Job, int | None, torch.device], Engine]
WhyNot = Callable[[Job, torch.device], str | None]


@dataclass(frozen=True)
class EngineEntry:
    """An engine by name: how it is made, and why it cannot run a job, in one clause."""

    name: str
    build: Build
    why_not: WhyNot
    module: str  # where other processes import it


OUTSIDE: Registry[EngineEntry] = Registry("engine", "fedveil.engines", None)


def engine(name: str, why_not: WhyNot = lambda job, device: None) -> Callable[[Build], Build]:
    """Register a function that makes an engine for a job: `chunk` is how many clients may train
    together, None if that is left open."""

    def add(build: Build) -> Build:
        origin = f"{build.__module__}.{build.__qualname__}"
        OUTSIDE.add(name, EngineEntry(name, build, why_not, build.__module__), origin)
        return build

    return add
