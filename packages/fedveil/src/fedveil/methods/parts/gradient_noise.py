"""Noise on every local gradient (Hu et al.): one record, or one person, is protected.

Which proof applies is decided in `GradientNoise.proof`, from the model, the number of local steps
and the secure sum. Each proof is a class:

    GradientNoise   alone     uploads seen one by one, or several steps of a model that may expand:
                              the client's own noise, undivided
    OneStepNoise    one step  under a secure sum, all clients' noise covers the record
    ConvexNoise     convex    several steps of a non-expansive linear model under a secure sum
    SecretStepsNoise, SecretBatchNoise   the first two with secret Poisson batches, whose rate
                              lowers epsilon towards everybody but the record's own client
    TrustedNoise    trusted   one step, and whoever takes the sum adds the noise to it

The fourth way, clipping the whole update and adding noise once, protects clients and is
`DistributedNoise`.

Where a record is spoken of, it may be a person: the mean gradient of all its records is then
clipped once, and sizes of clients count persons. A person at up to k clients makes k contributions
to a round, each by its own coin. They are accounted as if all were in one sum, which is at least as
much as where each client's upload is seen: contributions to different uploads are orthogonal.

Exact arithmetic. Alone: each mean gradient is rounded to a grid and a Gaussian rounded to that grid
is added. Under a secure sum: uploads are rounded to the nearest point of a grid, and the last
step's noise is a discrete Gaussian share on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from torch import Tensor, nn

from fedveil.core.arguments import check_fields, flag, one_of
from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.certificate import non_expansive
from fedveil.methods.parts.local_steps import (
    least_noise,
    local_steps,
    longest_way,
    rates,
    uses_by_client,
)
from fedveil.methods.parts.noise_placement import (
    Bounded,
    Drawn,
    Noise,
    NoiseContext,
    NoisePlacement,
    RoundNoise,
    noisy_sum,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.mechanisms import DiscreteGaussianSum, Gaussian
from fedveil.privacy.noise.grid import power_of_two_below
from fedveil.privacy.noise.modular_grid import ModularGrid, NoisyIntegers, bits_for, largest_sum
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.refusals import AdjacencyRefused
from fedveil.privacy.releases import PrivacyModel
from fedveil.training.client.batches import unit_sizes
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline

_ROUNDING = 1e-3  # how much rounding an upload may add to what one record moves
_ROOM = 4.0  # uploads may be this much longer than gradients and noise make them; then they are cut
_LONGEST = 2.0**29  # of an upload, in steps of its grid: squares still add up in 64 bits
_BELOW_NOISE = 2.0**-10  # the grid of uploads that are private already, beside their noise
_WRAP = 1e-6  # probability that a round's sum leaves its words: costs accuracy, not privacy


@dataclass(frozen=True)
class GradientNoise(NoisePlacement):
    """Gaussian noise of std z G / batch_size on every mean gradient, per-example clip G.

    `secure_sum` hides single uploads from the server; whether that lowers epsilon is decided by
    `proof`. `colluders` bring no noise.

    As it stands this is the proof for a client alone: every noisy gradient is private by itself,
    whatever else is seen.
    """

    secure_sum: bool = True
    adjacency: Adjacency = Adjacency.REPLACE
    colluders: int = 0
    honest_shares: int | None = None
    trusted: bool = False

    bounded = Bounded.GRADIENT

    def __post_init__(self) -> None:
        check_fields(self, adjacency=one_of(Adjacency), secure_sum=flag, trusted=flag)
        if self.trusted and self.secure_sum:
            raise ConfigError(
                "gradient noise: a trusted server sees uploads as they are. Leave out secure_sum."
            )

    @property
    def drawn(self) -> Drawn:
        return Drawn.BY_EACH

    def fit(self, facts: NoiseContext) -> Self:
        _check(facts, self.secure_sum, self.trusted)
        counted = self.trusted or facts.local.batch_rate is not None
        if counted and self.adjacency is Adjacency.ADD_REMOVE:
            raise AdjacencyRefused(
                "add-remove hides whether a record was there at all, while batches and the bound "
                "on a sum follow from the true number of records",
                "use adjacency zero-out, which costs the same",
            )
        return self._fit_as(self.proof(facts), facts)  # type: ignore[arg-type]

    def proof(self, facts: NoiseContext) -> type[GradientNoise]:
        """Return the strongest proof that there is for these facts."""
        if type(self) not in _PROOFS:
            return type(self)  # somebody else's class, which has from here what it leaves out
        steps, secret = local_steps(facts), facts.local.batch_rate is not None
        if self.trusted:
            if steps.most > 1:
                raise PrivacyRefusal(
                    f"{steps.most} local steps, and noise on their sum alone: one record moves the "
                    "steps that follow by more than its clip",
                    "set training.local_steps to 1, or use privacy.trust distributed or local",
                )
            return TrustedNoise
        alone: type[GradientNoise] = SecretStepsNoise if secret else GradientNoise
        if not self.secure_sum:
            return alone
        if facts.local.projection_radius is not None:
            return alone  # what follows a client's own noise keeps it from adding up
        if steps.most == 1:
            return SecretBatchNoise if secret else OneStepNoise
        if secret:
            return alone
        honest = facts.cohort_size - self.colluders
        assumed = self.honest_shares if facts.secure is None else facts.secure.honest_shares
        if assumed is not None:
            honest = min(honest, assumed)
        if honest <= steps.uses or facts.local.per_person or non_expansive(facts) is None:
            return GradientNoise  # a clipped mean of gradients is not that of a convex loss
        return ConvexNoise

    def privacy_model(self) -> PrivacyModel:
        return PrivacyModel(
            self._unit, self.adjacency, Trust.LOCAL, contributions=self._contributions
        )

    @property
    def _unit(self) -> Unit:
        return Unit.PERSON if self.facts.local.per_person else Unit.RECORD

    @property
    def _contributions(self) -> int | None:
        """Contributions of one person to a sum; None where records are protected."""
        return _clip(self.facts).sites_per_person

    def mechanism(self) -> Mechanism:
        return NoisyGradients(*self._gradients)

    @property
    def _gradients(self) -> tuple[float, int, float, int, int]:
        """Bound, batch size, noise, steps, and uses of a record: what every proof starts from."""
        steps = local_steps(self.facts)
        return self._bound, self._batch, self._std, steps.most, steps.uses

    def record_uses(self) -> Ints | None:
        return uses_by_client(self.facts) if self.facts.local.batch_rate is None else None

    @property
    def local(self) -> LocalTraining:
        grid = self._gradient_grid if self.facts.exact else None
        return replace(self.facts.local, gradient_noise=self._std, gradient_grid=grid)

    def pipeline(self, clip: Clip | None = None, round_number: int = 0) -> UpdatePipeline:
        shape = self.facts.pipeline
        if self.facts.secure is None:
            return shape
        # Uploads are private as they are: bounding and rounding them costs no privacy. The grid
        # is far below the noise of an upload.
        noise = least_noise(self.facts, round_number) * self._std
        grid = power_of_two_below(_BELOW_NOISE * noise)
        room = min(self._reach(round_number), _LONGEST * grid)
        return replace(shape, clip=Clip(room), granularity=grid)

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        """The noise is in the updates already, but for the shares on a grid."""
        if at.integers is None:
            return total.float()
        return self.decode(at, at.integers.noisy_sum(total.numpy(), at.streams()))

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        grid, clip = at.grid, at.pipeline.clip
        if grid is None or clip is None:
            return None
        std, facts = self._share_std(at.round_number), self.facts
        sent = (facts.cohort_size, clip.norm, grid, std)
        bits = bits_for(largest_sum(*sent, _WRAP, facts.layout.size))
        return NoisyIntegers(ModularGrid(grid, bits), std)

    def noise_steps(self, at: RoundNoise) -> float | None:
        return self._std / self._gradient_grid if self.facts.exact else None

    def _share_std(self, round_number: int) -> float:
        """The noise that comes with an upload: none, for it is in the steps."""
        return 0.0

    def _reach(self, round_number: int) -> float:
        """A length that no upload has: clipped gradients, and more noise than ever comes."""
        noise = self._std * (math.sqrt(self.facts.layout.size) + 6)
        steps = longest_way(self.facts, round_number) / (1 - self.facts.local.momentum)
        return _ROOM * steps * (self._bound * self._most / self._batch + noise)

    @property
    def _most(self) -> int:
        """Records that may be in one batch, or persons."""
        if self.facts.local.batch_rate is None:
            return self._batch
        return max(self._batch, int(unit_sizes(self.facts.federation, self.facts.local).max()))

    @property
    def _batch(self) -> int:
        return _batch(self.facts)

    @cached_property
    def _std(self) -> float:
        return self.facts.noise_multiplier * self._bound / self._batch

    @cached_property
    def _bound(self) -> float:
        """Return the bound on one example's gradient: its clip; on a grid a little more.

        A sum of b clipped gradients in single precision is off by at most b * 2^-24 times the sum
        of their lengths, and each mean is rounded to a grid. Neighbouring batches err differently,
        so both errors widen what one record can do. Secret batches may hold all records of a
        client; they are summed in double precision and rounded four times to single at the end. So
        are batches of persons, whose products are at most 2^10 clips long and no more than 64 in a
        piece, and whose norms may be rounded otherwise at other places (`affine_gradients`).
        """
        clip, batch = _clip(self.facts).norm, self._batch
        if not self.facts.exact:
            return clip
        if self.facts.local.batch_rate is None and not self.facts.local.per_person:
            return clip * (1 + batch * (batch + 4) * 2.0**-24 + 2e-6)
        most, apart = self._most, 8 * 2.0**-24
        if self.facts.local.per_person:
            apart += (max(sum(slot.shape) for slot in self.facts.layout) + 64) * 2.0**-32
        return clip * (1 + most * (most + 4) * 2.0**-52 + apart * most + 2e-6)

    @property
    def _gradient_grid(self) -> float:
        """Rounding moves a gradient by half a step in each coordinate: 1e-6 of what a record
        does."""
        step = 2e-6 * _clip(self.facts).norm / (self._batch * math.sqrt(self.facts.layout.size))
        return power_of_two_below(step)


class OneStepNoise(GradientNoise):
    """The proof for one step under a secure sum: the noise of the whole sum covers the record."""

    def privacy_model(self) -> PrivacyModel:
        model = self._in_shares(Unit.RECORD, self.adjacency)
        return replace(model, unit=self._unit, contributions=self._contributions)

    def mechanism(self) -> Mechanism:
        if not self.facts.exact:
            return NoisyGradients(*self._gradients, self.facts.cohort_size)
        # A record moves an upload by at most 2 rate G / batch before it is rounded.
        rate, shares = rates(self.facts, 0)[-1], self.facts.cohort_size
        length, size = rate * self._bound / self._batch, self.facts.layout.size
        return DiscreteGaussianSum(
            length, self._accounted_grid, rate * self._std, shares, size, 0.0
        )

    @property
    def local(self) -> LocalTraining:
        """On integers the last step's noise is the share that comes with the upload."""
        last = not self.facts.exact
        return replace(self.facts.local, gradient_noise=self._std, last_step_noise=last)

    def pipeline(self, clip: Clip | None = None, round_number: int = 0) -> UpdatePipeline:
        if not self.facts.exact:
            return self.facts.pipeline
        # The clip never acts: one that did could bring two rounded uploads further apart.
        grid, room = self._upload_grid(round_number), self._reach(round_number)
        return replace(self.facts.pipeline, clip=Clip(room), granularity=grid)

    def noise_steps(self, at: RoundNoise) -> float | None:
        if not self.facts.exact:
            return None
        return self._share_std(at.round_number) / self._upload_grid(at.round_number)

    def _share_std(self, round_number: int) -> float:
        """The noise that comes with an upload: the last step's."""
        return rates(self.facts, round_number)[-1] * self._std

    def _upload_grid(self, round_number: int) -> float:
        return power_of_two_below(self._coarsest_grid(round_number))

    def _coarsest_grid(self, round_number: int) -> float:
        """Return the coarsest grid on which a round's uploads may lie.

        Rounding adds at most a step in each coordinate to what one record moves, and no upload is
        longer than `_LONGEST` steps. Beside the rate of the last step this is largest in the first
        round: rates within a round become more alike as they fall.
        """
        reach = rates(self.facts, round_number)[-1] * _clip(self.facts).norm / self._batch
        fine = _ROUNDING * reach / math.sqrt(self.facts.layout.size)
        return max(fine, 2 * self._reach(round_number) / _LONGEST)

    @property
    def _accounted_grid(self) -> float:
        """Noise and sensitivity fall together with the rates, and grids are powers of two: beside
        the rate no round's grid is coarser than this one."""
        return self._coarsest_grid(0) * (1 + 1e-12)


class SecretStepsNoise(GradientNoise):
    """The proof for secret batches and a client's own noise: each local step is a Poisson-sampled
    Gaussian of its own, with coins drawn anew, whatever else is seen.

    One step that is released in the open, or several of any model. Nothing is divided by the number
    of clients.
    """

    def mechanism(self) -> Mechanism:
        noise, steps = Gaussian(self.facts.noise_multiplier), local_steps(self.facts)
        return PoissonSampled(_rate(self.facts), (noise,), steps.most)


class SecretBatchNoise(OneStepNoise):
    """The proof for one step on secret batches under a secure sum: a Poisson-sampled sum of shares.

    The server sees which clients took part, which is public, and never which of their records.
    """

    def mechanism(self) -> Mechanism:
        rate = _rate(self.facts)
        if self.facts.exact:
            return PoissonSampled(rate, (super().mechanism(),))
        shares = self.facts.cohort_size
        noise = Gaussian(self.facts.noise_multiplier * math.sqrt(shares))
        return PoissonSampled(rate, (noise,))


class TrustedNoise(OneStepNoise):
    """The proof for one step and noise z D on the sum, where D bounds one record on the grid.

    With secret batches it is a Poisson-sampled Gaussian; without, a record is in one batch a round.
    """

    @property
    def drawn(self) -> Drawn:
        return Drawn.BY_SERVER

    @property
    def single_uploads(self) -> bool:
        return True

    def privacy_model(self) -> PrivacyModel:
        alone = GradientNoise.privacy_model(self)
        return replace(alone, trust=Trust.CENTRAL, colluders=self.colluders)

    def mechanism(self) -> Mechanism:
        noise, rate = Gaussian(self.facts.noise_multiplier), self.facts.local.batch_rate
        return noise if rate is None else PoissonSampled(_rate(self.facts), (noise,))

    @property
    def local(self) -> LocalTraining:
        return self.facts.local

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        return None

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        scale = self._scale(at.round_number)
        return noisy_sum(Noise.GAUSSIAN, total, scale, at.grid, at.stream())

    def noise_steps(self, at: RoundNoise) -> float | None:
        return None if at.grid is None else self._scale(at.round_number) / at.grid

    def _scale(self, round_number: int) -> float:
        """The noise on a round's sum of updates: z times what one record moves it by."""
        reach = rates(self.facts, round_number)[-1] * self._bound / self._batch
        if self.facts.exact:
            reach += self._upload_grid(round_number) * math.sqrt(self.facts.layout.size)
        return self.facts.noise_multiplier * reach


class ConvexNoise(OneStepNoise):
    """The proof for steps that bring no two runs further apart: the last noise of the whole sum
    covers the record, and drift is bounded by a certificate."""

    not_audited = ("drift between the steps of a round",)

    def mechanism(self) -> Mechanism:
        facts, certificate = self.facts, non_expansive(self.facts)
        if certificate is None:
            raise RuntimeError("the steps were certified when this proof was chosen")
        if not facts.exact:
            return NoisyGradients(*self._gradients, facts.cohort_size, certificate)
        on_grid = self._accounted_grid, facts.layout.size
        return GridGradients(*self._gradients, facts.cohort_size, certificate, *on_grid)


_PROOFS = (
    *(GradientNoise, OneStepNoise, ConvexNoise),
    *(SecretStepsNoise, SecretBatchNoise, TrustedNoise),
)


def _check(context: NoiseContext, secure_sum: bool, trusted: bool) -> None:
    for name, layer in context.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise PrivacyRefusal(
                f"per-example clipping with batch normalisation ({name or 'the model'}): it mixes "
                "the examples of a batch, so one record moves every example's gradient",
                "use group normalisation",
            )
    _clip(context)
    _batch(context)
    shaping = context.pipeline
    if shaping.clip is not None or shaping.sparsity or shaping.weight_cap:
        raise ConfigError("gradient noise: updates are already private; shape them on the server")
    if context.exact and (context.local.projection_radius is not None or context.local.momentum):
        raise ConfigError("gradient noise: on integers it goes with plain steps, without momentum")
    decays = (secure_sum or trusted) and context.local.weight_decay
    if context.exact and decays and local_steps(context).most == 1:
        raise PrivacyRefusal(
            "weight decay in the one step of a round: beside large weights a gradient is rounded, "
            "and one record can move an upload by more than its clip",
            "leave training.weight_decay out, or use privacy.trust local",
        )


def _clip(context: NoiseContext) -> GradientClip:
    clip = context.local.gradient_clip
    if clip is None or not clip.per_example or clip.order != 2:
        raise PrivacyRefusal(
            "gradient noise protects a record only if each example's gradient is clipped in L2",
            "use method gradient-noise or dp-sgd, which do",
        )
    return clip


def _rate(context: NoiseContext) -> float:
    if context.local.batch_rate is None:
        raise RuntimeError("secret batches were there when this proof was chosen")
    return context.local.batch_rate


def _batch(context: NoiseContext) -> int:
    if context.local.batch_size is None:
        raise ConfigError(
            "training.batch_size: set it; the sum of clipped gradients is divided by a fixed number"
        )
    return context.local.batch_size
