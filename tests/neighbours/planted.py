"""Bugs to be found: a detector that nobody saw detect is no detector.

Each is a context that puts one mistake into the program. Most were there once; the others are
plausible ones of the same kinds. `MOST` says within how many pairs, from case 0 on, the search
must find each (`test_planted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fedveil import assemble
from fedveil.data import encoding, table
from fedveil.data.assignment import Assignment
from fedveil.engine import contract, directory
from fedveil.engine import run as run_module
from fedveil.engine.algebra import AlgebraEngine
from fedveil.engine.checkpoint import fingerprint, load_checkpoint
from fedveil.engine.directory import RunDirectory
from fedveil.engine.mlp import MlpGradients, _factors, _sizes
from fedveil.engine.rows import RowEngine
from fedveil.engine.run import Run
from fedveil.engine.secure import SecureRounds
from fedveil.local import shaping as shaping_module
from fedveil.local.batches import step_counts
from fedveil.local.rule import LearningRate
from fedveil.methods import central_noise
from fedveil.methods.clip_rules import ClipTracking
from fedveil.methods.gradient_noise import GradientNoise
from fedveil.methods.protection import Terms
from fedveil.planning.plan import Plan
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.units import Adjacency

from .cases import RESUMED, Case

PLANTED: dict[str, Callable[[], AbstractContextManager[object]]] = {}
MOST: dict[str, int] = {}
WHERE: dict[str, Callable[[Case], bool]] = {}


def plant(most: int, where: Callable[[Case], bool] = lambda case: True) -> Callable[[Any], Any]:
    """Register a bug by its function's name. `where` says which cases it can concern at all: the
    others are not run, which saves time and finds nothing less."""

    def keep(function: Callable[[], Any]) -> Callable[[], Any]:
        name = function.__name__
        PLANTED[name], MOST[name], WHERE[name] = function, most, where
        return function

    return keep


def _by_record(case: Case) -> bool:
    return case.kind.by_record and case.engine in ("auto", "mlp")


def _scheduled(case: Case) -> bool:
    return case.seed % RESUMED == 0


def _tracked(case: Case) -> bool:
    return "clip_quantile" in case.table["privacy"]


def _dealt(case: Case) -> bool:
    return case.path != "direct"


@plant(100, _dealt)
def one_lottery_for_all_rows() -> Any:
    """Hold-outs and caps drawn by one generator over all rows, not by each owner's name."""

    def words(self: Assignment, seed: int, purpose: str) -> Any:
        return np.random.default_rng(seed).integers(2**63, size=len(self.rows), dtype=np.uint64)

    return patch.object(Assignment, "row_words", words)


@plant(100)
def clients_train_together() -> Any:
    """Chunks and padding as in simulations: others show in the low-order bits."""
    real = run_module._job
    return patch.object(run_module, "_job", lambda *args: replace(real(*args), isolated=False))


@plant(100, lambda case: case.table["training"]["schedule"] == "inverse")
@contextmanager
def rates_of_the_longest_client() -> Iterator[None]:
    """A decaying rate that counts the steps of the client that takes the most."""
    real, rates, longest = Run._round, LearningRate.of_round, 0

    def training(self: Run, last: bool) -> Any:
        nonlocal longest
        longest = int(step_counts(self.plan.federation.sizes, self.plan.local).max())
        try:
            return real(self, last)
        finally:
            longest = 0

    def of_round(self: LearningRate, round: int, steps: int) -> list[float]:
        return rates(self, round, max(steps, longest))

    with patch.object(Run, "_round", training), patch.object(LearningRate, "of_round", of_round):
        yield


@plant(100, _by_record)
def one_record_poisons_its_batch() -> Any:
    """An example that is not finite gets the factor zero: zero times infinity is no zero."""

    def sums(self: MlpGradients, errors: Any, states: Any, *args: Any) -> Any:
        doubles = [[part.double() for part in parts] for parts in (errors, states)]
        return _ghostly(self, *doubles, *args)

    return patch.object(MlpGradients, "_clipped_sums", sums)


@plant(100, lambda case: _by_record(case) and not case.kind.classes)
def norms_underflow() -> Any:
    """Squares of single precision, which may be zero where the gradient is not."""

    def sums(self: MlpGradients, errors: Any, states: Any, *args: Any) -> Any:
        finite = torch.stack([part.isfinite().all(dim=1) for part in (*errors, *states)]).all(dim=0)
        for part in (*errors, *states):
            part.masked_fill_(~finite[:, None], 0.0)
        return _ghostly(self, errors, states, *args)

    return patch.object(MlpGradients, "_clipped_sums", sums)


def _ghostly(
    self: MlpGradients, errors: Any, states: Any, mask: Any, clip: Any, denominator: float
) -> Any:
    """Clipped gradients from the norms of their parts, without any care."""
    norms = 0.0
    for error, state in _sizes(errors, states, clip.order):
        norms = norms + error * (state + 1.0)
    factors = _factors(norms, clip, self._roundings * 2.0**-24) / denominator
    if mask is not None:
        factors = factors * mask
    width = max(slot.stop for layer in self._stack for slot in (layer.weight, layer.bias))
    rows = errors[0].new_empty(len(norms), width)
    for layer, error, state in zip(self._stack, errors, states, strict=True):
        scaled = error * factors[:, None]
        layer.weight_of(rows).copy_(torch.bmm(scaled, state.transpose(1, 2)))
        layer.bias_of(rows).copy_(scaled.sum(dim=2))
    return rows.float()


@plant(100, _scheduled)
@contextmanager
def a_killed_round_is_run_again() -> Iterator[None]:
    """After a crash the schedule goes back to the cohort whose round was not stored."""

    def reserve(self: Ledger, round: int) -> None:
        self._append({"round": self.reserved}, reserved=self.reserved + 1)

    def load(self: RunDirectory) -> Any:
        return load_checkpoint(self._checkpoint, self._fingerprint)

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


@plant(100, lambda case: case.kind.by_record)
def grids_of_their_own() -> Any:
    """Accounted with the first round's grid, which later ones need not be in proportion to."""
    real = GradientNoise._mechanism

    def mechanism(self: GradientNoise, terms: Terms) -> Any:
        found = real(self, terms)
        if isinstance(found, DiscreteGaussianSum):
            return replace(found, granularity=self._upload_grid(terms, 0))
        return found

    return patch.object(GradientNoise, "_mechanism", mechanism)


@plant(100)
def the_divisor_counts_clients() -> Any:
    """Add-remove, while sums are divided by those that came."""
    real = Plan.release

    def release(self: Plan, total: Any, norms: Any, *args: Any) -> Any:
        found = real(self, total, norms, *args)
        share = self.sampling.expected_cohort / max(1, len(norms))
        return replace(found, average=found.average * share)

    return patch.object(Plan, "release", release)


@plant(100, lambda case: case.engine in ("auto", "algebra"))
@contextmanager
def one_engine_forgets_to_clip() -> Iterator[None]:
    """Updates of the algebraic engine go to the grid as they are."""
    train, snap, clip = AlgebraEngine.round_sum, shaping_module.snap_rows, shaping_module.clip_rows
    inside = False

    @wraps(train)
    def round_sum(self: AlgebraEngine, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        inside = True
        try:
            return train(self, *args, **kwargs)
        finally:
            inside = False

    def wide(bound: Any) -> Any:
        return replace(bound, norm=bound.norm * 4) if inside else bound

    def clip_rows(rows: Any, bound: Any, **kwargs: Any) -> Any:
        return clip(rows, wide(bound), **kwargs)

    def snap_rows(rows: Any, grid: float, bound: Any) -> Any:
        return snap(rows, grid, wide(bound))

    with ExitStack() as stack:
        stack.enter_context(patch.object(AlgebraEngine, "round_sum", round_sum))
        stack.enter_context(patch.object(shaping_module, "clip_rows", clip_rows))
        stack.enter_context(patch.object(shaping_module, "snap_rows", snap_rows))
        yield


@plant(100, lambda case: "weight_cap" in case.table["training"])
def weights_without_a_cap() -> Any:
    """Clipped integers times a client's number of examples."""
    real = contract.shape_rows

    def shape_rows(updates: Any, shaping: Any, layout: Any, senders: Any, *args: Any) -> Any:
        shaped = real(updates, shaping, layout, senders, *args)
        if shaping.weight_cap is None:
            return shaped
        heavy = torch.from_numpy(np.maximum(1, senders.sizes // shaping.weight_cap))
        return replace(shaped, rows=shaped.rows * heavy[:, None])

    return patch.object(contract, "shape_rows", shape_rows)


@plant(100)
def replaced_accounted_as_zeroed() -> Any:
    """A replaced client moves a sum by two clips, not by one."""
    return patch.object(Adjacency, "sensitivity_factor", property(lambda self: 1))


@plant(100)
def kept_entries_are_scaled_up() -> Any:
    """LUS makes up for the entries it drops, after the clip."""
    real = contract.shape_rows

    def shape_rows(updates: Any, shaping: Any, *args: Any) -> Any:
        shaped = real(updates, shaping, *args)
        return replace(shaped, rows=shaped.rows * (2 if shaping.sparsity > 0.5 else 1))

    return patch.object(contract, "shape_rows", shape_rows)


@plant(100, _tracked)
def bits_of_the_client_beside() -> Any:
    """A tracked clip's bits, each from another client's norm."""
    real = ClipTracking.halves

    def halves(self: Any, protection: Any, terms: Any, norms: Any, *args: Any) -> Any:
        return real(self, protection, terms, norms.roll(1), *args)

    return patch.object(ClipTracking, "halves", halves)


@plant(100, lambda case: case.module == "dropout")
def one_generator_for_all_modules() -> Any:
    """Dropout from torch's own generator: what a client draws depends on who came before."""

    @contextmanager
    def nothing(self: RowEngine, *args: Any) -> Iterator[None]:
        yield

    return patch.object(RowEngine, "_module_randomness", nothing)


@plant(100, _tracked)
def noise_of_the_first_clip() -> Any:
    """A tracked clip moves, and the noise stays."""
    real = central_noise.CentralNoise.protect

    def protect(self: Any, terms: Terms, total: Any, shaping: Any, occasion: Any) -> Any:
        return real(self, terms, total, replace(shaping, clip=terms.clip), occasion)

    return patch.object(central_noise.CentralNoise, "protect", protect)


@plant(100, lambda case: case.kind.by_record)
def the_last_step_goes_without_noise() -> Any:
    """Noisy gradients but for the last, whose noise nothing brings later."""
    real = GradientNoise.local

    def local(self: GradientNoise, terms: Terms) -> Any:
        return replace(real(self, terms), last_step_noise=False)

    return patch.object(GradientNoise, "local", local)


@plant(100, lambda case: case.path == "csv")
def columns_centred_by_the_data() -> Any:
    """A schema is given, and yet the mean of all rows is taken off."""
    real = encoding.scaled

    def scaled(numbers: Any, column: Any) -> Any:
        found = real(numbers, column)
        return found - np.nanmean(found)

    return patch.object(encoding, "scaled", scaled)


@plant(100)
def half_of_the_shares() -> Any:
    """Only every other client of a secure sum adds its noise share."""
    real = SecureRounds._add_sum

    def add_sum(self: Any, opened: Any, total: Any, integers: Any, present: Any) -> None:
        fewer = replace(present, cohort=present.cohort[: (len(present.cohort) + 1) // 2])
        real(self, opened, total, integers, fewer)

    return patch.object(SecureRounds, "_add_sum", add_sum)


@plant(100, lambda case: case.seed % RESUMED == RESUMED // 2)
def a_fingerprint_of_the_data() -> Any:
    """A checkpoint that knows its run by a hash of sizes, labels and inputs."""

    def fingerprint_of(plan: Plan, recipe: bytes) -> str:
        return fingerprint(recipe, plan.federation)

    return patch.object(directory, "_fingerprint", fingerprint_of)


@plant(100, lambda case: case.path == "csv")
def notes_that_count() -> Any:
    """A remark on the data with a number of rows in it."""
    real = table.from_table

    def from_table(*args: Any, **kwargs: Any) -> Any:
        federation = real(*args, **kwargs)
        return replace(federation, notes=(*federation.notes, f"{len(federation.train)} rows."))

    return patch.object(assemble, "from_table", from_table)


@plant(100, lambda case: case.path == "csv")
def a_column_is_read_as_a_whole() -> Any:
    """One cell that is no number makes the numbers of its column missing."""
    real = encoding.encode

    def encode(values: Any, column: Any, out: Any) -> None:
        real(values, column, out)
        if column.kind == "number" and np.isnan(encoding.numbers_of(values, column)).any():
            out[:, 0] = 0.0

    return patch.object(table, "encode", encode)
