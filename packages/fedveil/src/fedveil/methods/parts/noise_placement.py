"""What a method says about its noise: where it is added, and which releases that makes.

A placement ties two things that must never drift apart: the noise that is drawn, and the privacy
event that is accounted for it. Both follow from the same `NoiseContext`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedveil.core.arguments import check_fields, one_of, plain_numbers
from fedveil.core.arrays import Ints
from fedveil.core.errors import PrivacyRefusal
from fedveil.core.randomness import Randomness, Stream
from fedveil.core.units import Adjacency, Arithmetic, Trust, Unit
from fedveil.data.federation import Federation
from fedveil.privacy.clipping import Clip
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.privacy.noise.grid import protect_sum, protect_sum_laplace, unsnap
from fedveil.privacy.noise.modular_grid import NoisyIntegers
from fedveil.privacy.noise.simulated import gaussian, laplace
from fedveil.privacy.refusals import AdjacencyRefused
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import CappedPoisson, Poisson, Sampling
from fedveil.privacy.secure_sums.aggregation import SecureSums
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


@dataclass(frozen=True)
class NoiseContext:
    """What the plan has decided when it asks a noise placement to do its part.

    `noise_multiplier` is the noise (std, or scale for Laplace) on the sum over the clip norm of one
    protected unit. `pipeline` holds the first round's clip. `secure` is how sums are hidden from
    whoever takes them; None if they are not. `public_clients` is the number of clients if it was
    declared in public; None if it was counted.
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
    def clip(self) -> Clip:
        """The bound on one contribution; without one there is no sensitivity and no epsilon."""
        if self.pipeline.clip is None:
            raise PrivacyRefusal(
                "updates are not clipped, so one client may change the sum without bound",
                "set privacy.clip_norm",
            )
        return self.pipeline.clip

    def honest_shares(self, assumed: int | None) -> int | None:
        """Noise shares that are sure to be in every sum; `assumed` where nobody sees to it."""
        return assumed if self.secure is None else self.secure.honest_shares


@dataclass(frozen=True)
class RoundNoise:
    """What the noise of one round follows from: the plan, what clients send, and which round."""

    context: NoiseContext
    pipeline: UpdatePipeline
    round_number: int = 0

    @property
    def clip(self) -> Clip:
        return self.pipeline.clip or self.context.clip

    @property
    def grid(self) -> float | None:
        return self.pipeline.granularity

    @property
    def scale(self) -> float:
        """The noise z C (std, or scale for Laplace) on what the clip C bounds."""
        return self.context.noise_multiplier * self.clip.norm


@dataclass(frozen=True)
class RoundContext:
    """One use of noise: in which round, on whose sum, from which randomness, and what for.

    `memory` is what the run remembers of earlier noise, where that goes into later rounds.
    """

    round_number: int
    cohort: Cohort
    randomness: Randomness
    purpose: str = "noise"
    memory: NoiseMemory | None = field(default=None, repr=False, compare=False)

    def stream(self, client: int = -1) -> Stream:
        """The stream of the server's noise, or of one client's."""
        return self.randomness.stream(self.purpose, self.round_number, int(client))

    def streams(self) -> Iterator[Stream]:
        """The streams of the cohort's clients."""
        return map(self.stream, self.cohort)


class NoisePlacement(Protocol):
    """One way to make a method private."""

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        """Who is protected from whom; refuses what cannot be proved. The plan adds the rest."""
        ...

    def local(self, context: NoiseContext) -> LocalTraining:
        """What clients do, with any noise that belongs into their steps."""
        ...

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int
    ) -> UpdatePipeline:
        """What leaves a client in this round, with this clip, on the grid that its noise needs."""
        ...

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        """Everything that leaves in `rounds` rounds."""
        ...

    def protect(self, at: RoundNoise, total: Tensor, this_round: RoundContext) -> Tensor:
        """The private sum, float32 `[parameters]`, from the engine's sum of shaped updates."""
        ...

    def noise_steps(self, at: RoundNoise) -> float | None:
        """Std (Laplace: scale) of the noise that is drawn at once, in steps of its grid; None if
        it is drawn as floating-point numbers."""
        ...


@runtime_checkable
class SecureNoisePlacement(NoisePlacement, Protocol):
    """A placement under which clients hide their vectors from whoever sums them."""

    @property
    def secure_sum(self) -> bool:
        """Whether sums are taken securely."""
        ...

    @property
    def colluders(self) -> int: ...

    @property
    def honest_shares(self) -> int | None: ...

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        """What a client makes of its shaped update; None if that is no vector of integers."""
        ...

    def decode(self, at: RoundNoise, whole: Ints) -> Tensor:
        """The private sum, float32 `[parameters]`, from the sum of everybody's integers."""
        ...


@runtime_checkable
class StatisticNoise(NoisePlacement, Protocol):
    """Noise on a statistic of the clients' records, which they send instead of an update.

    The placement holds the statistic, so that its noise is fitted to what is sent.
    """

    def statistic(self, federation: Federation, module: nn.Module) -> ClientStatistic:
        """Return what each client computes, for the shapes of this federation and model."""
        ...

    def server(self, context: NoiseContext) -> Optimizer:
        """Return the server's step, from the released average to the weights of the model."""
        ...


def noisy_sum(
    law: Noise, total: Tensor, scale: float, grid: float | None, stream: Stream
) -> Tensor:
    """A sum with noise that is drawn once, float32."""
    if grid is None:
        draw = gaussian if law is Noise.GAUSSIAN else laplace
        return (total + torch.from_numpy(draw(stream, total.numel(), scale))).float()
    noisy = noisy_integers(law, total.numpy(), scale, grid, stream)
    return torch.from_numpy(unsnap(noisy, grid)).float()


def noisy_integers(law: Noise, whole: Ints, scale: float, grid: float, stream: Stream) -> Ints:
    add = protect_sum if law is Noise.GAUSSIAN else protect_sum_laplace
    return add(whole, scale, grid, stream)


def noise_of_each(law: Noise, total: Tensor, scale: float, this_round: RoundContext) -> Tensor:
    """A sum with continuous noise of every client, each drawn by itself, float32."""
    noisy, draw = total.double().numpy().copy(), gaussian if law is Noise.GAUSSIAN else laplace
    for stream in this_round.streams():
        noisy += draw(stream, len(noisy), scale)
    return torch.from_numpy(noisy).float()


def decoded(integers: NoisyIntegers | None, whole: Ints) -> Tensor:
    """The sum of everybody's integers as float32."""
    if integers is None:
        raise ValueError("no integers were summed")
    return torch.from_numpy(integers.values(whole)).float()


def in_shares(
    unit: Unit, adjacency: Adjacency, placement: SecureNoisePlacement, context: NoiseContext
) -> PrivacyModel:
    """Protected from a server that sees noisy sums alone, by the noise shares in them."""
    honest = context.honest_shares(placement.honest_shares)
    return PrivacyModel(
        unit, adjacency, Trust.DISTRIBUTED, colluders=placement.colluders, honest_shares=honest
    )


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


def worst_case(sampling: Sampling, rounds: int) -> int | None:
    """Participations to charge to somebody who sees the cohorts; None: as the sampler counts them.

    A random cohort that is no secret gives no credit: its clients may be drawn every round.
    """
    return sampling.max_participations(rounds) if sampling.amplifies else None


def fixed_cohort_size(sampling: Sampling) -> int:
    """How many noise shares are in every sum."""
    if isinstance(sampling, Poisson | CappedPoisson):
        raise PrivacyRefusal(
            "Poisson cohorts vary in size, so the number of noise shares in a sum is not certain",
            "use sampling balanced, round-robin, fixed or everyone under distributed trust",
        )
    return int(sampling.expected_cohort)
