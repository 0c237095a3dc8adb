"""Bugs around the noise: what is run again, what follows it, what is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fedveil.data import table
from fedveil.planning import assemble
from fedveil.planning.plan import Plan
from fedveil.privacy.ledger import Ledger
from fedveil.run import directory
from fedveil.run import round as round_module
from fedveil.run.directory import RunDirectory, fingerprint, load_checkpoint
from fedveil.run.run import Run

from ..cases import RESUMED
from .noise import local_rule
from .registry import plant, scheduled


@plant(600, scheduled, near=96)
@contextmanager
def a_killed_round_is_run_again() -> Iterator[None]:
    """After a crash the schedule goes back to the cohort whose round was not stored."""

    def reserve(self: Ledger, round_number: int) -> None:
        self._append({"round": self.reserved}, reserved=self.reserved + 1)

    def load(self: RunDirectory) -> Any:
        return load_checkpoint(self.path / directory.CHECKPOINT, self._fingerprint)

    def left(self: Run) -> int:
        rounds = self.plan.method.rounds - self.state.rounds
        return rounds if self._ledger is None else min(rounds, self._ledger.remaining)

    with ExitStack() as stack:
        again = property(lambda self: self.state.rounds)
        stack.enter_context(patch.object(Run, "next_round", again))
        stack.enter_context(patch.object(Run, "rounds_left", property(left)))
        stack.enter_context(patch.object(Ledger, "reserve", reserve))
        stack.enter_context(patch.object(RunDirectory, "load", load))
        yield


@plant(150, lambda case: "public_clients" in case.table["privacy"])
def the_divisor_counts_clients() -> Any:
    """Add-remove, while sums are divided by those that came."""
    return patch.object(round_module, "divisor", lambda plan, pipeline, clients: len(clients) or 1)


@plant(200, lambda case: case.kind.by_record)
def the_last_step_goes_without_noise() -> Any:
    """Noisy gradients but for the last, whose noise nothing brings later."""
    return local_rule(lambda rule: replace(rule, last_step_noise=False))


@plant(150, lambda case: case.seed % RESUMED == RESUMED // 2)
def a_fingerprint_of_the_data() -> Any:
    """A checkpoint that knows its run by a hash of sizes, labels and inputs."""

    def fingerprint_of(plan: Plan, recipe: bytes) -> str:
        return fingerprint(recipe, plan.federation)

    return patch.object(directory, "_fingerprint", fingerprint_of)


@plant(150, lambda case: case.path == "csv")
def notes_that_count() -> Any:
    """A remark on the data with a number of rows in it."""
    real = table.from_table

    def from_table(*args: Any, **kwargs: Any) -> Any:
        federation = real(*args, **kwargs)
        return replace(federation, notes=(*federation.notes, f"{len(federation.train)} rows."))

    return patch.object(assemble, "from_table", from_table)
