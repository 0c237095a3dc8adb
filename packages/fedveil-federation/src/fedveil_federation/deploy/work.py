"""What a plan has a site compute: updates, the bits of a tracked clip, or counts for a score."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import torch

from fedveil.core.arrays import Ints
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Federation
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.planning.own_budgets import by_coins, restrained, restrained_rule
from fedveil.planning.plan import Plan
from fedveil.privacy.secure_sums.aggregation import COUNT, SecureSums
from fedveil.run.run import job_of
from fedveil.run.sums import update_sum
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Engine, RoundRequest
from fedveil.training.engines.isolated import isolated_federation
from fedveil.training.models.features import Featurizer, with_features
from fedveil_federation.deploy.envelope import BadFrame, Message
from fedveil_federation.deploy.plan_document import PlanDocument, terms_at
from fedveil_federation.secagg.privacy_terms import PrivacyTerms

_log = logging.getLogger(__name__)


class Shared(Protocol):
    """A secure sum as one site sees it."""

    @property
    def width(self) -> int: ...
    @property
    def word(self) -> int: ...
    def upload(self, client: int, row: Ints) -> Ints: ...


class Work(ABC):
    """One site's part in a plan. Requests name the round (from 0) and a sum's purpose."""

    def __init__(
        self,
        document: PlanDocument,
        terms: dict[str, PrivacyTerms],
        sums: SecureSums | None,
        rounds: int,
        participations: int,
    ) -> None:
        self.document, self.terms, self.sums = document, terms, sums
        self.rounds, self.participations = rounds, participations

    @abstractmethod
    def schedule(self, number: int) -> list[int] | None:
        """Who takes part in a round, by a public schedule; None if it is drawn at random."""

    @abstractmethod
    def summands(self, request: Message) -> Shared:
        """The secure sum that a request is about."""

    def stated(self, request: Message) -> PrivacyTerms:
        """The cost that the sum must state for taking part."""
        return self.terms[request.text("purpose")]

    def charged(self, stated: PrivacyTerms) -> PrivacyTerms:
        """Return the cost for the owner of this site of a sum that states this."""
        return stated

    @abstractmethod
    def row(self, request: Message) -> Ints:
        """Return this site's contribution to the sum, without noise."""

    def upload(self, request: Message) -> Ints:
        """Return this site's upload where no secure sum is taken."""
        raise BadFrame("this plan has no noise for single uploads")

    def new_round(self) -> None:
        """Forget the last one, if anything of it was kept."""
        return

    def close(self) -> None:
        """Free what was kept: there are no more rounds."""
        return


class Training(Work):
    """Trains on the site's rows as a simulation would.

    Where the plan has secret coins, the site tosses its own once a round. It trains whatever the
    coin says, and throws the update away if that is no; training that fails adds zero. So neither
    the time it takes nor a failure tells the coin. `scale` is the share of the clip, or of the bias
    of its secret batches' coins, that the site keeps to by its owner's policy, so that its own
    epsilon fits; nobody is told.
    """

    def __init__(
        self,
        document: PlanDocument,
        plan: Plan,
        number: int,
        data: Federation,
        randomness: Randomness,
        scale: float = 1.0,
    ) -> None:
        rounds = plan.method.rounds
        counted = plan.releases(rounds)[0].counted_participations
        super().__init__(document, document.terms(plan), plan.secure_sums, rounds, counted)
        self.plan, self._number, self._randomness = plan, number, randomness
        self._data, self._scale = data, scale
        if plan.federation.featurizer is None:  # features take their time: in the first round
            _ = self._engine
        self._norms: torch.Tensor | None = None  # of this round's update, [1]
        self._coin = -1, True  # the round that it was tossed for, and what it said

    @cached_property
    def _engine(self) -> Engine:
        job = job_of(self.plan, self._randomness.of_client(self._number))
        featurizer, own = self.plan.federation.featurizer, self._data
        if isinstance(featurizer, Featurizer):
            own = with_features(own, featurizer.features)
        rule = restrained_rule(self.plan.private_noise, job.rule, self._scale)
        job = replace(job, rule=rule, federation=_alone(own), isolated=True)
        return build_engine(job, threads=1)

    def schedule(self, number: int) -> list[int] | None:
        return scheduled(self.plan, number)

    def summands(self, request: Message) -> RoundNoise:
        updates = self._updates(request)
        return updates if request.header.get("purpose") != COUNT else self._count(updates)[0]

    def stated(self, request: Message) -> PrivacyTerms:
        if request.text("purpose") == COUNT:
            return super().stated(request)
        return terms_at(self.terms, self._updates(request))

    def charged(self, stated: PrivacyTerms) -> PrivacyTerms:
        (own,) = restrained(self.plan.private_noise, [stated.release], self._scale)
        return replace(stated, release=own)

    def row(self, request: Message) -> Ints:
        updates = self._updates(request)
        if request.header.get("purpose") == COUNT:
            return self._count(updates)[1]
        return self._trained(request.part(1), updates)

    def upload(self, request: Message) -> Ints:
        """Private by its own noise, or for a hub that is trusted to add the noise."""
        if self.sums is not None or not self.plan.private_noise.single_uploads:
            return super().upload(request)
        updates = self._updates(request)
        return updates.upload(self._number, self._trained(request.part(1), updates))

    def new_round(self) -> None:
        self._norms = None

    def close(self) -> None:
        if "_engine" in vars(self):
            self._engine.close()

    def _updates(self, request: Message) -> RoundNoise:
        """The sum of updates, under the clip that the hub says the released counts have led to.

        Noise is in proportion to the clip, so no clip costs more than another, if all sites have
        the same (`terms_at`).
        """
        rule, state = self.plan.private_noise.facts.rule, {}
        if rule.tracked:
            clip = request.header.get("clip")
            known = rule.state_at(clip) if type(clip) is float else None
            if known is None:
                raise BadFrame("the round's clip is none of those that the plan may come to")
            state = known
        own = np.array([self._number], np.int64)
        return update_sum(self.plan, request.number("round"), own, self._randomness, state)

    def _count(self, updates: RoundNoise) -> tuple[RoundNoise, Ints]:
        """The sum of a tracked clip's bits: whether this round's update was within the clip."""
        if updates.count is None:
            raise BadFrame("this plan tracks no clip")
        if self._norms is None:
            raise BadFrame("this site has not trained in this round, or has left it behind")
        rule = self.plan.private_noise.facts.rule
        halves: Ints = rule.halves(updates.count, updates.clip, self._norms)[0].numpy()
        return updates.count, halves

    def _trained(self, data: bytes, updates: RoundNoise) -> Ints:
        """This site's shaped update on the grid, int64 [width], from the shared weights.

        Whatever they are, what leaves is clipped and noisy.
        """
        weights = weights_of(data, self.plan.layout.size)
        alone, shape = np.zeros(1, np.int64), updates.pipeline
        if not by_coins(self.plan.private_noise):
            shape = shape.scaled(self._scale)
        number, sampling = updates.round_number, self.plan.sampling
        request = RoundRequest(weights, alone, number, shape)
        if self._coin[0] != number:  # one coin for whatever the round asks, and none for the next
            self._coin = number, sampling.coin(self._randomness, number, self._number)
        nothing = np.zeros(updates.width, np.int64)
        try:
            (own,) = self._engine.updates(request)
        except Exception:
            if sampling.coin_rate == 1:
                raise
            _log.exception("training failed: this site adds its noise share alone")
            return nothing
        self._norms = own.norms
        row: Ints = own.total.numpy()
        return row if self._coin[1] else nothing


@lru_cache(maxsize=2)  # for all runs of a site
def _alone(data: Federation) -> Federation:
    return isolated_federation(data, 0)


def weights_of(data: bytes, size: int) -> torch.Tensor:
    if len(data) != 4 * size:
        raise BadFrame(f"weights: {len(data)} bytes, the model has {size}")
    return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))


def scheduled(plan: Plan, number: int) -> list[int] | None:
    """Who takes part in a round of a plan; None if that is drawn at random."""
    if plan.sampling.amplifies:
        return None
    unused = Randomness(0).stream("cohort", number)  # a public schedule draws nothing
    return [int(one) for one in plan.sampling.draw(number, unused, plan.federation.clients)]
