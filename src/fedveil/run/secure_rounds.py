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

from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.core.errors import ConfigError
from fedveil.engines.contract import Cohort, Engine, RoundSum
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.aggregation import COUNT, UPDATE, SecureSums
from fedveil.methods.parts.modular_grid import Ints, NoisyIntegers
from fedveil.methods.parts.noise_placement import RoundContext, SecureNoisePlacement
from fedveil.planning.plan import Plan, Released
from fedveil.secagg.dropouts import Dropouts, draw_dropouts
from fedveil.secagg.errors import NotReleased
from fedveil.secagg.rounds import ModelledRound, OpenRound, Stopwatch
from fedveil.secagg.simulation import Simulation
from fedveil.server.optimizers import State

# How long training and noise take depends on data and on secrets; the protocol's phases do not.
_SECRET = ("train", "noise")
_PROTOCOL = ("enrol", "share", "mask", "add", "confirm", "unmask")


@dataclass(frozen=True)
class RoundDropouts:
    """Who came to a round. Under a secure sum its server sees this in any case."""

    cohort: int
    survivors: int
    not_released: str = ""  # why the round gave no sum; empty if it did

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"cohort": self.cohort, "survivors": self.survivors}
        return document | ({"not_released": self.not_released} if self.not_released else {})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RoundDropouts:
        reason = str(document.get("not_released", ""))
        return cls(int(document["cohort"]), int(document["survivors"]), reason)


@dataclass(frozen=True)
class SecureRound:
    """What became of a round: nothing was released if `released` is None."""

    dropouts: RoundDropouts
    result: RoundSum | None = None  # of the survivors; not for the eyes of a protected run
    released: Released | None = None


class SecureRounds:
    """Takes the sums of a plan's rounds, and keeps the time."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        placement, context = plan.method.placement, plan.context
        if (
            context is None
            or context.secure is None
            or not isinstance(placement, SecureNoisePlacement)
        ):
            raise ConfigError("plan: it takes no secure sums")
        self._plan, self._engine = plan, engine
        self._protection, self._terms = placement, context
        self.sums: SecureSums = context.secure
        self._simulation = Simulation(self.sums.params, self.sums.mode)
        self._watch = Stopwatch()

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase; a protected run shows the protocol's phases only."""
        spent = self._watch.seconds
        shown = _PROTOCOL if self._plan.protected else (*_SECRET, *_PROTOCOL)
        return {name: spent[name] for name in shown if name in spent}

    def round(
        self, weights: Tensor, pipeline: UpdatePipeline, state: State, this_round: RoundContext
    ) -> SecureRound:
        """Train the clients that are not lost, and release the average of their updates.

        The average is over the survivors. Their number is public here, for no credit is claimed
        for a secret cohort.
        """
        members = this_round.cohort
        stream = this_round.randomness.stream("losses", this_round.round_number)
        losses = draw_dropouts([int(member) for member in members], self.sums.dropout, stream)
        came = len(members) - len(losses.before_upload)
        try:
            result, total, survivors = self._updates(weights, pipeline, losses, this_round)
            present = replace(this_round, cohort=survivors)
            count = self._count(result.norms, pipeline, losses, this_round, present)
        except NotReleased as refusal:
            return SecureRound(RoundDropouts(len(members), came, str(refusal)))
        released = self._plan.averaged(total, count, len(survivors), pipeline, state)
        return SecureRound(RoundDropouts(len(members), len(survivors)), result, released)

    def _updates(
        self, weights: Tensor, pipeline: UpdatePipeline, losses: Dropouts, this_round: RoundContext
    ) -> tuple[RoundSum, Tensor, Cohort]:
        """The engine's result, the private sum of updates, and the survivors."""
        placement, context, round_number = self._protection, self._terms, this_round.round_number
        integers = placement.integers(context, pipeline, round_number)
        width = pipeline.width(context.layout)
        opened = self._open(integers, width, losses, this_round)
        wanted = np.array(opened.wanted, dtype=np.int64)
        present = replace(this_round, cohort=wanted)
        if integers is None:
            with self._watch.phase("train"):
                result = self._engine.round_sum(weights, wanted, round_number, pipeline)
            with self._watch.phase("noise"):
                private = placement.protect(context, result.total, pipeline, present)
            for member in opened.wanted:
                opened.add(member, np.zeros(1, dtype=np.int64))
            self._settled(opened)
            return result, private, wanted
        if isinstance(opened, ModelledRound):
            with self._watch.phase("train"):
                result = self._engine.round_sum(weights, wanted, round_number, pipeline)
            self._add_sum(opened, result.total.numpy(), integers, present)
        else:
            result = self._stream(opened, weights, pipeline, integers, present)
        whole = self._settled(opened)
        return result, placement.decode(context, whole, pipeline, round_number), wanted

    def _stream(
        self,
        opened: OpenRound,
        weights: Tensor,
        pipeline: UpdatePipeline,
        integers: NoisyIntegers,
        present: RoundContext,
    ) -> RoundSum:
        """Train, and mask each client's integers as soon as they are there."""
        wanted, inner = present.cohort, Stopwatch()

        def take(where: Cohort, rows: Tensor) -> None:
            with inner.phase("take"):
                self._add_each(opened, wanted[where], rows.numpy(), integers, present.stream)

        outer = Stopwatch()
        with outer.phase("train"):
            result = self._engine.round_sum(weights, wanted, present.round_number, pipeline, take)
        self._spend("train", outer.seconds["train"] - inner.seconds.get("take", 0.0))
        return result

    def _count(
        self,
        norms: Tensor,
        pipeline: UpdatePipeline,
        losses: Dropouts,
        this_round: RoundContext,
        present: RoundContext,
    ) -> float | None:
        """The tracked clip's count, by a secure sum of its own over the same cohort."""
        rule, context = self._plan.method.clip_rule, self._terms
        if not isinstance(rule, AdaptiveClipping):
            return None
        clip = pipeline.clip or context.clip
        own, bits, halves = rule.halves(
            self._protection, context, norms, clip, present.round_number
        )
        integers = self._protection.integers(own, bits, present.round_number)
        if integers is None:
            return rule.count(self._protection, context, norms, clip, present)
        asked = replace(this_round, purpose=COUNT)
        opened = self._open(integers, halves.shape[1], losses, asked)
        streams = replace(present, purpose=COUNT)
        if isinstance(opened, ModelledRound):
            self._add_sum(opened, halves.sum(dim=0).numpy(), integers, streams)
        else:
            rows = halves.numpy()
            self._add_each(opened, present.cohort, rows, integers, streams.stream)
        whole = self._settled(opened)
        return float(self._protection.decode(own, whole, bits, present.round_number))

    def _open(
        self, integers: NoisyIntegers | None, width: int, losses: Dropouts, this_round: RoundContext
    ) -> OpenRound:
        """A round for these integers; where there are none, for zeros that stand for them."""
        purpose = UPDATE if this_round.purpose == "noise" else this_round.purpose
        members = [int(member) for member in this_round.cohort]
        dimension, word = (1, 32) if integers is None else (width, integers.word)
        opened = self._simulation.open(
            this_round.round_number, members, dimension, word, losses, purpose
        )
        if len(opened.wanted) < self.sums.fewest:
            raise NotReleased(
                f"{len(opened.wanted)} of {len(members)} devices survived, need {self.sums.fewest}"
            )
        return opened

    def _add_sum(
        self, opened: ModelledRound, total: Ints, integers: NoisyIntegers, present: RoundContext
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
