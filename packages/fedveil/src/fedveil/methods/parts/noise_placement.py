"""The one seam between a method and its noise.

    noise = method.placement.fit(facts)  # knows all that follows from the facts of a plan
    at = RoundNoise(noise, ...)  # one sum of one round: pipeline, cohort, randomness

A placement ties two things that must never drift apart: the noise that is drawn, and the privacy
event that is accounted for it. Both are methods of one class and follow from the same facts.
Plan, ledger, hub, auditor and tuner ask the fitted noise; nobody asks what kind it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedveil.core.arguments import check_fields, one_of, plain_numbers, settle
from fedveil.core.arrays import Ints
from fedveil.core.errors import PrivacyRefusal
from fedveil.core.randomness import Randomness, Stream
from fedveil.core.units import Adjacency, Arithmetic, Trust, Unit
from fedveil.data.federation import Federation
from fedveil.methods.parts.clip_rule import ClipRule, FixedClip
from fedveil.privacy.clipping import Clip
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import Gaussian, joint_noise_multiplier
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.privacy.noise.grid import (
    choose_granularity,
    protect_sum,
    protect_sum_laplace,
    unsnap,
)
from fedveil.privacy.noise.modular_grid import NoisyIntegers
from fedveil.privacy.noise.simulated import gaussian, laplace
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.refusals import AdjacencyRefused
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import CappedPoisson, Poisson, Sampling, takes_part
from fedveil.privacy.secure_sums.aggregation import COUNT, UPDATE, SecureSums
from fedveil.privacy.translation import usual_adjacency
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import ClientStatistic, UpdatePipeline
from fedveil.training.models.flat import Layout
from fedveil.training.server.optimizers import Optimizer

Cohort = npt.NDArray[np.int64]


class Noise(StrEnum):
    """The distribution of the noise: `GAUSSIAN` needs an L2 clip, `LAPLACE` an L1 clip."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"

    @property
    def deviation(self) -> float:
        """Standard deviation of noise of scale 1."""
        return 1.0 if self is Noise.GAUSSIAN else math.sqrt(2)


class Bounded(StrEnum):
    """The quantity of a client that is bounded, and so where an auditor puts its canary."""

    UPDATE = "update"
    GRADIENT = "gradient"  # every example's, in every local step; noise goes in there
    BALLOT = "ballot"
    STATISTIC = "statistic"  # of its records, sent once instead of an update


class Drawn(StrEnum):
    """Who draws the noise, and so what whoever takes the sums sees of it."""

    BY_SERVER = "by the server"  # once, on the sum: uploads are seen as they are
    BY_EACH = "by each client"  # undivided, on what it sends: no upload needs another one
    IN_SHARES = "in shares"  # a part each, under a secure sum


@dataclass(frozen=True)
class NoiseContext:
    """The facts that noise is fitted to, as the plan has decided them.

    `noise_multiplier` is the noise (std, or scale for Laplace) on the sum over the clip norm of one
    protected unit. `pipeline` holds the first round's clip. `secure` is how sums are hidden from
    whoever takes them; None if they are not. `public_clients` is the number of clients if it was
    declared in public; None if it was counted. `clip_rule` says how the clip changes; None: never.
    """

    sampling: Sampling
    rounds: int
    local: LocalTraining
    pipeline: UpdatePipeline
    federation: Federation = field(repr=False)
    module: nn.Module = field(repr=False)
    layout: Layout = field(repr=False)
    arithmetic: Arithmetic
    noise_multiplier: float = 1.0
    secure: SecureSums | None = None
    public_clients: int | None = None
    clip_rule: ClipRule | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, arithmetic=one_of(Arithmetic))

    @property
    def clients(self) -> int:
        """The number of clients that the noise, the grid and the divisor are fitted to."""
        return self.public_clients or self.federation.clients

    @property
    def exact(self) -> bool:
        return self.arithmetic is Arithmetic.EXACT

    @property
    def rule(self) -> ClipRule:
        return self.clip_rule or FixedClip(self.pipeline.clip)

    @property
    def clip(self) -> Clip:
        """The bound on one contribution; without one there is no sensitivity and no epsilon."""
        if self.pipeline.clip is None:
            raise PrivacyRefusal(
                "updates are not clipped, so one client may change the sum without bound",
                "set privacy.clip_norm",
            )
        return self.pipeline.clip

    @property
    def cohort_size(self) -> int:
        return cohort_size(self.sampling)

    @property
    def bought(self) -> tuple[Release, ...]:
        """The releases that bought the data's statistics; everybody contributes to them in full."""
        bought = self.federation.bought
        return () if bought is None else bought.releases


@dataclass(frozen=True)
class NoisePlacement(ABC):
    """One way to make a method private: a frozen dataclass whose fields are its settings.

    A method holds it as it was described. `fit` returns a copy that knows the facts of a plan;
    everything below but the class attributes and the settings needs a fitted one. What is not
    overridden is right for a trusted aggregator that adds noise to the sum of clipped updates: such
    a placement has to write `mechanism` and `protect` only.

    Attributes:
        bounded: What of one client is bounded.
        drawn: Who draws the noise.
        fixed_clip: Noise of one round is used in others, so that the clip must not change.
        secret_coins: Clients may toss secret coins: those who add no update add their noise alone.
        white: Noise is independent between coordinates and rounds, and `deviation` knows its size.
        not_audited: What no game of an audit tries out, a phrase each.
        one_draw: Draw continuous noise of all clients at once: the same law of sums, for
            simulations on public data. It protects nobody.
    """

    one_draw: bool = field(default=False, kw_only=True, repr=False)
    _facts: NoiseContext | None = field(default=None, init=False, repr=False, compare=False)

    bounded: ClassVar[Bounded] = Bounded.UPDATE
    fixed_clip: ClassVar[bool] = False
    secret_coins: ClassVar[bool] = False
    white: ClassVar[bool] = False
    not_audited: ClassVar[tuple[str, ...]] = ()

    @property
    def drawn(self) -> Drawn:
        return Drawn.BY_SERVER

    @property
    def secure_sum(self) -> bool:
        """Whether clients hide their vectors from whoever sums them."""
        return self.drawn is Drawn.IN_SHARES

    @property
    def single_uploads(self) -> bool:
        """Whether one update may leave a client's machine without a secure sum over it: for a
        server that is trusted with it, or with the client's own noise."""
        return self.drawn is not Drawn.IN_SHARES and self.bounded is Bounded.UPDATE

    @property
    def adjacency(self) -> Adjacency | None:
        """The change to hide; None: the one that the sampling's proof is about."""
        return None

    @property
    def colluders(self) -> int:
        """Clients that work with whoever sees the sums."""
        return 0

    @property
    def honest_shares(self) -> int | None:
        """Noise shares that are sure to be in every sum; None: as the secure sum has it."""
        return None

    def fit(self, facts: NoiseContext) -> Self:
        """Return this noise, fitted to the facts of a plan."""
        return self._fit_as(type(self), facts)

    def _fit_as(self, kind: type[Self], facts: NoiseContext) -> Self:
        """Make the fitted noise from the settings alone: nothing else is taken over."""
        if self.one_draw and facts.exact:
            raise PrivacyRefusal(
                "noise in one draw protects nobody", "use it for trials on public data"
            )
        settings = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        fitted = kind(**settings)
        settle(fitted, _facts=facts)
        return fitted

    @property
    def facts(self) -> NoiseContext:
        if self._facts is None:
            raise ValueError(f"{type(self).__name__} has no facts yet; call fit first")
        return self._facts

    def scaled(self, noise_multiplier: float) -> Self:
        """Return the same noise with another multiplier."""
        return self.fit(replace(self.facts, noise_multiplier=noise_multiplier))

    # What is proved.

    @abstractmethod
    def mechanism(self) -> Mechanism:
        """Return what one participation releases, in any round: the proof."""

    def privacy_model(self) -> PrivacyModel:
        """Return who is protected from whom; refuse what cannot be proved. The plan adds more."""
        if self.drawn is Drawn.IN_SHARES:
            return self._in_shares(Unit.CLIENT, Adjacency.ZERO_OUT)
        adjacency = default_adjacency(self.facts, self.adjacency)
        return PrivacyModel(Unit.CLIENT, adjacency, Trust.CENTRAL, colluders=self.colluders)

    def _in_shares(self, unit: Unit, usual: Adjacency) -> PrivacyModel:
        """Protected from a server that sees noisy sums alone, by the noise shares in them."""
        return PrivacyModel(
            unit,
            self.adjacency or usual,
            Trust.DISTRIBUTED,
            colluders=self.colluders,
            honest_shares=self.counted_shares,
            contributions=1 if unit is Unit.PERSON else None,
        )

    @property
    def counted_shares(self) -> int | None:
        """Noise shares that are sure to be in every sum; as assumed where nobody sees to it."""
        secure = self.facts.secure
        return self.honest_shares if secure is None else secure.honest_shares

    def release(self, rounds: int) -> Release:
        """Return all that leaves through this sum in `rounds` rounds.

        A random cohort that is no secret gives no credit: where uploads or cohorts are seen, its
        clients may be drawn every round. Nor does it hide less than a whole client: the other
        records of a client come with it, and what they add shows that it is there.
        """
        sampling, seen = takes_part(self.facts.sampling), None
        secret = self.drawn is Drawn.BY_SERVER and self.privacy_model().unit is Unit.CLIENT
        if sampling.amplifies and not secret:
            seen = sampling.max_participations(rounds)
        return Release(self.mechanism(), sampling, rounds, participations=seen)

    def releases(self, rounds: int) -> tuple[Release, ...]:
        """Return everything that leaves in `rounds` rounds, a tracked clip's count included."""
        update = self.release(rounds)
        if self.count is None:
            return (update,)
        count = self.count.release(rounds)
        if isinstance(update.mechanism, Gaussian) and isinstance(count.mechanism, Gaussian):
            # Both see the same cohort: one Gaussian, sampled once.
            joint = joint_noise_multiplier(
                update.mechanism.noise_multiplier, count.mechanism.noise_multiplier
            )
            return (replace(update, mechanism=Gaussian(joint)),)
        if isinstance(update.mechanism, PoissonSampled) and isinstance(
            count.mechanism, PoissonSampled
        ):
            # Both rest on the same secret coin: one event, at the joint norm of the two.
            both = (*update.mechanism.mechanisms, *count.mechanism.mechanisms)
            return (replace(update, mechanism=replace(update.mechanism, mechanisms=both)),)
        if update.amplified:
            raise PrivacyRefusal(
                "two kinds of noise on one secret cohort have no proved joint amplification",
                "use Gaussian noise, or a fixed clip",
            )
        return update, count

    @cached_property
    def count(self) -> NoisePlacement | None:
        """The noise on the second sum of a round, a tracked clip's count; None if there is none."""
        rule = self.facts.rule
        if not rule.tracked:
            return None
        return self.fit(rule.count_facts(self.facts, self.privacy_model().trust))

    @property
    def noise_ratio(self) -> float:
        """The error of the weights beside that of independent noise of the same multiplier."""
        return 1.0

    def record_uses(self) -> Ints | None:
        """Return how often a round touches a record of each client, where records are protected."""
        return None

    # What clients do.

    def statistic(self, federation: Federation, module: nn.Module) -> ClientStatistic | None:
        """Return what each client sends instead of an update; None: updates. Needs no fitting."""
        return None

    @property
    def server(self) -> Optimizer | None:
        """The server's step from a released statistic to weights; None: the method's own step."""
        return None

    @property
    def local(self) -> LocalTraining:
        """The local training of a client, with any noise that belongs into its steps."""
        return self.facts.local

    def pipeline(self, clip: Clip | None = None, round_number: int = 0) -> UpdatePipeline:
        """Return what leaves a client in a round with this clip, on the grid that noise needs.

        By default clipped, and in exact arithmetic on a grid on which neither the updates nor the
        noise lose anything that could be noticed.
        """
        facts, clip = self.facts, clip or self.facts.clip
        shape = facts.pipeline
        if not facts.exact:
            return shape if clip == shape.clip else replace(shape, clip=clip)
        scale, width = facts.noise_multiplier * clip.norm, shape.width(facts.layout)
        grid = choose_granularity(clip.norm, scale, width, facts.clients, order=clip.order)
        return replace(shape, clip=clip, granularity=grid)

    def upload(self, at: RoundNoise, row: Ints, stream: Stream) -> Ints:
        """Return what a client sends of its row on the grid, int64 `[width]`.

        The row itself for a trusted server; else with the client's own noise or noise share.
        """
        if self.drawn is Drawn.BY_SERVER:
            return row
        if at.integers is None:
            raise ValueError("a noise share is an integer, and this sum has none")
        return at.integers.noisy(row, stream)

    # What becomes of a sum.

    def at(self, clip: Clip | None = None, round_number: int = 0) -> RoundNoise:
        """Return the sum of a round with this clip, of which only the cohort is not known."""
        shape, layout = self.pipeline(clip, round_number), self.facts.layout
        return RoundNoise(self, shape, layout, round_number, np.zeros(0, np.int64), Randomness(0))

    def deviation(self, at: RoundNoise, clients: int) -> float | None:
        """Return the standard deviation of the noise on a coordinate of the sum of so many clients.

        None: it is not the same for all, or not known.
        """
        return None

    @abstractmethod
    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        """Return the private sum, float32 `[width]`, of updates that were summed in the open."""

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        """Return what goes into a secure sum; None if that is no vector of integers."""
        return None

    def decode(self, at: RoundNoise, whole: Ints) -> Tensor:
        """Return the private sum, float32, from the sum of what clients have sent (`upload`)."""
        if self.drawn is Drawn.BY_SERVER:
            return self.protect(at, torch.from_numpy(whole))
        if at.integers is None:
            raise ValueError("no integers were summed")
        return torch.from_numpy(at.integers.values(whole)).float()

    def noise_steps(self, at: RoundNoise) -> float | None:
        """Return std (Laplace: scale) of noise that is drawn at once, in steps of its grid; None
        if it is drawn as floating-point numbers."""
        return None if at.grid is None else at.scale / at.grid


@dataclass(frozen=True)
class RoundNoise:
    """One sum of one round: what is summed, and the noise that goes in.

    Attributes:
        noise: The fitted noise; None if the method adds none.
        pipeline: What leaves a client.
        layout: Of the vector that is summed.
        round_number: From 0.
        cohort: The clients whose vectors are summed.
        randomness: Where the noise is drawn from.
        purpose: `UPDATE`, or `COUNT` for a tracked clip's count.
        memory: What the run remembers of earlier noise, where that goes into later rounds.
    """

    noise: NoisePlacement | None
    pipeline: UpdatePipeline
    layout: Layout
    round_number: int
    cohort: Cohort
    randomness: Randomness
    purpose: str = UPDATE
    memory: NoiseMemory | None = field(default=None, repr=False, compare=False)

    @property
    def width(self) -> int:
        return self.pipeline.width(self.layout)

    @property
    def integer(self) -> bool:
        return self.pipeline.granularity is not None

    @property
    def grid(self) -> float | None:
        return self.pipeline.granularity

    @property
    def clip(self) -> Clip:
        return self.pipeline.clip or self._fitted.facts.clip

    @property
    def clip_norm(self) -> float | None:
        return None if self.pipeline.clip is None else float(self.pipeline.clip.norm)

    @property
    def scale(self) -> float:
        """The noise z C (std, or scale for Laplace) on what the clip C bounds."""
        return self._fitted.facts.noise_multiplier * self.clip.norm

    @property
    def _fitted(self) -> NoisePlacement:
        if self.noise is None:
            raise ValueError("a sum without noise")
        return self.noise

    @cached_property
    def integers(self) -> NoisyIntegers | None:
        """The integers that clients send into a secure sum; None if they send none."""
        return None if self.noise is None else self.noise.integers(self)

    @property
    def word(self) -> int:
        """Bits of the words that carry the integers of a masked sum."""
        return 32 if self.integers is None else self.integers.word

    def stream(self, client: int = -1) -> Stream:
        """The stream of the server's noise, or of one client's."""
        name = "noise" if self.purpose == UPDATE else self.purpose
        return self.randomness.stream(name, self.round_number, int(client))

    def streams(self) -> Iterator[Stream]:
        """The streams of the cohort's clients."""
        return map(self.stream, self.cohort)

    def protect(self, total: Tensor, clients: Cohort) -> Tensor:
        """Return the private sum from one that was taken in the open, of these clients."""
        if self.noise is None:
            return total
        at = self if clients is self.cohort else replace(self, cohort=clients)
        return self.noise.protect(at, total)

    def upload(self, client: int, row: Ints) -> Ints:
        """Return what a client sends of its integers."""
        return self._fitted.upload(self, row, self.stream(client))

    def decode(self, whole: Ints) -> Tensor:
        """Return the private sum from the sum of what clients sent."""
        return self._fitted.decode(self, whole)

    @cached_property
    def count(self) -> RoundNoise | None:
        """The sum of a tracked clip's counts over the same cohort; None if there is none."""
        noise = None if self.noise is None else self.noise.count
        if noise is None:
            return None
        shape = noise.pipeline(None, self.round_number)
        return replace(self, noise=noise, pipeline=shape, layout=noise.facts.layout, purpose=COUNT)


def noisy_integers(
    law: Noise, whole: Ints, scale: float, grid: float | None, stream: Stream
) -> Ints:
    """Return integers with noise that is drawn exactly, in steps of the grid."""
    if grid is None:
        raise ValueError("only vectors on a grid have integers")
    add = protect_sum if law is Noise.GAUSSIAN else protect_sum_laplace
    return add(whole, scale, grid, stream)


def on_grid(whole: Ints, grid: float | None) -> Tensor:
    """Return what integers stand for on a grid, float32."""
    if grid is None:
        raise ValueError("only vectors on a grid have integers")
    return torch.from_numpy(unsnap(whole, grid)).float()


def noisy_sum(
    law: Noise, total: Tensor, scale: float, grid: float | None, stream: Stream
) -> Tensor:
    """Return a sum with noise that is drawn once, float32."""
    if grid is None:
        draw = gaussian if law is Noise.GAUSSIAN else laplace
        return (total + torch.from_numpy(draw(stream, total.numel(), scale))).float()
    return on_grid(noisy_integers(law, total.numpy(), scale, grid, stream), grid)


def with_shares(at: RoundNoise, total: Tensor, scale: float, law: Noise = Noise.GAUSSIAN) -> Tensor:
    """Return a sum with the noise of every client, each drawn by itself, float32.

    Args:
        at: The round's sum; where it has integers, shares are drawn on its grid.
        total: The sum without noise.
        scale: The noise of one client where it is continuous.
        law: Its distribution.
    """
    if at.integers is not None:
        return at.decode(at.integers.noisy_sum(total.numpy(), at.streams()))
    noisy, size, clients = total.double().numpy().copy(), len(total), len(at.cohort)
    if at.noise is not None and at.noise.one_draw:
        draw = np.random.default_rng(at.stream().words(4))
        if law is Noise.GAUSSIAN:
            noisy += scale * math.sqrt(clients) * draw.standard_normal(size)
        else:  # n Laplace variables add up to the difference of two Gamma(n)
            noisy += scale * (draw.gamma(clients, size=size) - draw.gamma(clients, size=size))
    else:
        drawn = gaussian if law is Noise.GAUSSIAN else laplace
        for stream in at.streams():
            noisy += drawn(stream, size, scale)
    return torch.from_numpy(noisy).float()


def cohort_size(sampling: Sampling) -> int:
    """Return how many noise shares are in every sum."""
    if isinstance(sampling, Poisson | CappedPoisson):
        raise PrivacyRefusal(
            "Poisson cohorts vary in size, so the number of noise shares in a sum is not certain",
            "use sampling balanced, round-robin, fixed or everyone under distributed trust",
        )
    return int(takes_part(sampling).expected_cohort)


def default_adjacency(context: NoiseContext, chosen: Adjacency | None) -> Adjacency:
    """The change that a trusted aggregator hides: `chosen`, or what is proved for the sampling.

    Whether a client was there at all is hidden only if nothing is computed from the true number of
    clients, so only if that was declared. A client that is absent also shifts everybody's turn in a
    schedule and frees a place in a cohort of limited size: there its data is zeroed or replaced.
    """
    declared = context.public_clients is not None
    if chosen is Adjacency.ADD_REMOVE and not declared:
        raise AdjacencyRefused(
            "add-remove hides whether a client was there at all, while rate, divisor and grid come "
            "from the true number of clients",
            "set privacy.public_clients to a public number that is not smaller, or use adjacency "
            "zero-out, which costs the same",
        )
    if chosen is not None:
        return chosen
    return usual_adjacency(Trust.CENTRAL, context.sampling, public_clients=declared)
