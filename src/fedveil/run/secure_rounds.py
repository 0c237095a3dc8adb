"""Secure sums in the rounds of a run: who is lost, what is masked, what comes out.

Every client's integers (its shaped update on the grid, with its own noise share) go into a sum of
which the server learns nothing else. `full` masks them for real, one client after the other, so
memory stays that of a few updates; `modelled` adds the same integers. Training is cut into the same
chunks and noise comes from the same streams, so both give the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from fedveil.client.update_pipeline import Shaping
from fedveil.core.errors import BadInput
from fedveil.engines.contract import Cohort, Engine, RoundSum
from fedveil.methods.parts.adaptive_clipping import ClipTracking
from fedveil.methods.parts.aggregation import COUNT, UPDATE, SecureSums
from fedveil.methods.parts.modular_grid import Ints, NoisyIntegers
from fedveil.methods.parts.noise_placement import InShares, Occasion
from fedveil.plan.plan import Plan, Released
from fedveil.secagg.dropouts import Losses, draw_losses
from fedveil.secagg.errors import NotReleased
from fedveil.secagg.rounds import ModelledRound, OpenRound, Stopwatch
from fedveil.secagg.simulation import Simulation
from fedveil.server.optimizers import State

# How long training and noise take depends on data and on secrets; the protocol's phases do not.
_SECRET = ("train", "noise")
_PROTOCOL = ("enrol", "share", "mask", "add", "confirm", "unmask")


@dataclass(frozen=True)
class Attendance:
    """Who came to a round. Under a secure sum its server sees this in any case."""

    cohort: int
    survivors: int
    not_released: str = ""  # why the round gave no sum; empty if it did

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"cohort": self.cohort, "survivors": self.survivors}
        return document | ({"not_released": self.not_released} if self.not_released else {})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Attendance:
        reason = str(document.get("not_released", ""))
        return cls(int(document["cohort"]), int(document["survivors"]), reason)


@dataclass(frozen=True)
class SecureRound:
    """What became of a round: nothing was released if `released` is None."""

    attendance: Attendance
    result: RoundSum | None = None  # of the survivors; not for the eyes of a protected run
    released: Released | None = None


class SecureRounds:
    """Takes the sums of a plan's rounds, and keeps the time."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        protection, terms = plan.method.protection, plan.terms
        if terms is None or terms.secure is None or not isinstance(protection, InShares):
            raise BadInput("plan: it takes no secure sums")
        self._plan, self._engine = plan, engine
        self._protection, self._terms = protection, terms
        self.sums: SecureSums = terms.secure
        self._simulation = Simulation(self.sums.terms, self.sums.mode)
        self._watch = Stopwatch()

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase; a protected run shows the protocol's phases only."""
        spent = self._watch.seconds
        shown = _PROTOCOL if self._plan.protected else (*_SECRET, *_PROTOCOL)
        return {name: spent[name] for name in shown if name in spent}

    def round(
        self, weights: Tensor, shaping: Shaping, state: State, occasion: Occasion
    ) -> SecureRound:
        """Train the clients that are not lost, and release the average of their updates.

        The average is over the survivors. Their number is public here, for no credit is claimed
        for a secret cohort.
        """
        members = occasion.cohort
        stream = occasion.randomness.stream("losses", occasion.round)
        losses = draw_losses([int(member) for member in members], self.sums.dropout, stream)
        came = len(members) - len(losses.before_upload)
        try:
            result, total, survivors = self._updates(weights, shaping, losses, occasion)
            present = replace(occasion, cohort=survivors)
            count = self._count(result.norms, shaping, losses, occasion, present)
        except NotReleased as refusal:
            return SecureRound(Attendance(len(members), came, str(refusal)))
        released = self._plan.averaged(total, count, len(survivors), shaping, state)
        return SecureRound(Attendance(len(members), len(survivors)), result, released)

    def _updates(
        self, weights: Tensor, shaping: Shaping, losses: Losses, occasion: Occasion
    ) -> tuple[RoundSum, Tensor, Cohort]:
        """The engine's result, the private sum of updates, and the survivors."""
        protection, terms, round = self._protection, self._terms, occasion.round
        integers = protection.integers(terms, shaping, round)
        width = shaping.width(terms.layout)
        opened = self._open(integers, width, losses, occasion)
        wanted = np.array(opened.wanted, dtype=np.int64)
        present = replace(occasion, cohort=wanted)
        if integers is None:
            with self._watch.phase("train"):
                result = self._engine.round_sum(weights, wanted, round, shaping)
            with self._watch.phase("noise"):
                private = protection.protect(terms, result.total, shaping, present)
            for member in opened.wanted:
                opened.add(member, np.zeros(1, dtype=np.int64))
            self._settled(opened)
            return result, private, wanted
        if isinstance(opened, ModelledRound):
            with self._watch.phase("train"):
                result = self._engine.round_sum(weights, wanted, round, shaping)
            self._add_sum(opened, result.total.numpy(), integers, present)
        else:
            result = self._stream(opened, weights, shaping, integers, present)
        whole = self._settled(opened)
        return result, protection.decode(terms, whole, shaping, round), wanted

    def _stream(
        self,
        opened: OpenRound,
        weights: Tensor,
        shaping: Shaping,
        integers: NoisyIntegers,
        present: Occasion,
    ) -> RoundSum:
        """Train, and mask each client's integers as soon as they are there."""
        wanted, inner = present.cohort, Stopwatch()

        def take(where: Cohort, rows: Tensor) -> None:
            with inner.phase("take"):
                self._add_each(opened, wanted[where], rows.numpy(), integers, present.stream)

        outer = Stopwatch()
        with outer.phase("train"):
            result = self._engine.round_sum(weights, wanted, present.round, shaping, take)
        self._spend("train", outer.seconds["train"] - inner.seconds.get("take", 0.0))
        return result

    def _count(
        self,
        norms: Tensor,
        shaping: Shaping,
        losses: Losses,
        occasion: Occasion,
        present: Occasion,
    ) -> float | None:
        """The tracked clip's count, by a secure sum of its own over the same cohort."""
        rule, terms = self._plan.method.clip_rule, self._terms
        if not isinstance(rule, ClipTracking):
            return None
        clip = shaping.clip or terms.clip
        own, bits, halves = rule.halves(self._protection, terms, norms, clip, present.round)
        integers = self._protection.integers(own, bits, present.round)
        if integers is None:
            return rule.count(self._protection, terms, norms, clip, present)
        asked = replace(occasion, purpose=COUNT)
        opened = self._open(integers, halves.shape[1], losses, asked)
        streams = replace(present, purpose=COUNT)
        if isinstance(opened, ModelledRound):
            self._add_sum(opened, halves.sum(dim=0).numpy(), integers, streams)
        else:
            rows = halves.numpy()
            self._add_each(opened, present.cohort, rows, integers, streams.stream)
        whole = self._settled(opened)
        return float(self._protection.decode(own, whole, bits, present.round))

    def _open(
        self, integers: NoisyIntegers | None, width: int, losses: Losses, occasion: Occasion
    ) -> OpenRound:
        """A round for these integers; where there are none, for zeros that stand for them."""
        purpose = UPDATE if occasion.purpose == "noise" else occasion.purpose
        members = [int(member) for member in occasion.cohort]
        dimension, word = (1, 32) if integers is None else (width, integers.word)
        opened = self._simulation.open(occasion.round, members, dimension, word, losses, purpose)
        if len(opened.wanted) < self.sums.fewest:
            raise NotReleased(
                f"{len(opened.wanted)} of {len(members)} devices survived, need {self.sums.fewest}"
            )
        return opened

    def _add_sum(
        self, opened: ModelledRound, total: Ints, integers: NoisyIntegers, present: Occasion
    ) -> None:
        with self._watch.phase("noise"):
            noisy = integers.noisy_sum(total, map(present.stream, present.cohort))
        opened.add_sum(opened.wanted, noisy)

    def _add_each(
        self,
        opened: OpenRound,
        clients: Iterable[Any],
        rows: Ints,
        integers: NoisyIntegers,
        stream: Callable[[int], Any],
    ) -> None:
        for client, row in zip(clients, rows, strict=True):
            with self._watch.phase("noise"):
                noisy = integers.noisy(row, stream(int(client)))
            opened.add(int(client), noisy)

    def _settled(self, opened: OpenRound) -> Ints:
        """The sum, once the round has been closed; time is added to that of earlier rounds."""
        found = opened.finish()
        for phase, seconds in found.report.seconds.items():
            self._spend(phase, seconds)
        return found.total

    def _spend(self, phase: str, seconds: float) -> None:
        self._watch.seconds[phase] = self._watch.seconds.get(phase, 0.0) + seconds
