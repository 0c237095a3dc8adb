"""The local rule: what a client does between receiving the shared weights and shaping its update.

`engines/local_sgd.py` is the loop that carries it out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedveil.core.arguments import (
    above_zero,
    check_fields,
    count,
    flag,
    fraction,
    instance_of,
    not_negative,
    one_of,
    optional,
    plain_numbers,
    share,
)
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.training.models.losses import Loss


class BatchKind(StrEnum):
    """How the records of a local step are chosen.

    `SHUFFLED`: disjoint batches of a shuffle, anew in every epoch. `POISSON`: each record by a
    secret coin of its own.
    """

    SHUFFLED = "shuffled"
    POISSON = "poisson"


class Schedule(StrEnum):
    """How the local learning rate falls, with k local steps and t rounds behind it.

    `CONSTANT`: rate. `INVERSE`: rate / (1 + k / decay). `INVERSE_SQRT`: rate / sqrt(1 + t / decay).
    `EXPONENTIAL`: rate exp(-t / decay). `COSINE`: half a cosine to zero over `decay` rounds.
    """

    CONSTANT = "constant"
    INVERSE = "inverse"  # rate / (1 + k / decay): Fu's 2 / (mu (k + gamma)) with decay = gamma
    INVERSE_SQRT = "inverse-sqrt"  # rate / sqrt(1 + t / decay), t counts rounds
    EXPONENTIAL = "exponential"  # rate * exp(-t / decay)
    COSINE = "cosine"  # half a cosine from rate to zero over `decay` rounds


@dataclass(frozen=True)
class LearningRate:
    """A learning rate and its schedule; depends on public counters only, never on data.

    >>> LearningRate(0.5, Schedule.INVERSE, decay=2).of_round(0, steps=3)
    [0.5, 0.3333333333333333, 0.25]
    """

    rate: float
    schedule: Schedule = Schedule.CONSTANT
    decay: float = 1.0  # in the schedule's own unit, steps or rounds

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, "learning_", rate=above_zero)
        check_fields(self, "learning-rate ", schedule=one_of(Schedule), decay=above_zero)

    @property
    def counts_steps(self) -> bool:
        """Whether the rate of a step depends on how many steps its client takes in a round."""
        return self.schedule is Schedule.INVERSE

    def of_round(self, round_number: int, steps: int) -> list[float]:
        """The rates of local steps `0..steps-1` in round `round` (from 0), for a client that takes
        `steps` of them in every round: its own number, never another client's."""
        if self.schedule is Schedule.INVERSE:
            first = round_number * steps
            return [self.rate / (1 + k / self.decay) for k in range(first, first + steps)]
        factor = {
            Schedule.CONSTANT: 1.0,
            Schedule.INVERSE_SQRT: 1 / math.sqrt(1 + round_number / self.decay),
            Schedule.EXPONENTIAL: math.exp(-round_number / self.decay),
            Schedule.COSINE: (1 + math.cos(math.pi * min(1.0, round_number / self.decay))) / 2,
        }[self.schedule]
        return [self.rate * factor] * steps


@dataclass(frozen=True)
class GradientClip:
    """Bounds a step's gradient: the whole one, or each example's before the mean.

    Per example, the sum of clipped gradients is divided by the fixed batch size, also for a last
    partial batch, so that one record moves the result by at most `2 * norm / batch_size`.

    With `sites_per_person`, the examples are persons: the mean of the gradients of a person's
    records is clipped once, batches are drawn from persons, and the batch size counts them. A
    person's records beyond its first `sites_per_person` clients contribute nothing.
    """

    norm: float
    order: int = 2  # 1 or 2
    per_example: bool = False
    sites_per_person: int | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, per_example=flag, sites_per_person=optional(count))
        check_fields(self, "gradient clip: ", norm=above_zero, order=one_of((1, 2)))
        if self.sites_per_person is not None and (not self.per_example or self.order != 2):
            raise ConfigError(
                "sites_per_person: persons' gradients are clipped one by one, in L2. Set "
                "per_example and leave order out."
            )


class LocalStep:
    """A correction to the gradients of local SGD, with state of each client's own.

    Derive a class, override what differs, and set it as `LocalTraining.step`. SCAFFOLD's control
    variates and FedDyn's linear term are such corrections. The run keeps the state of every client
    from round to round. In a protected run a step sees one client at a time.

    **Privacy.** A step reads no records, but the state of a client follows from its updates, so it
    is as private as they are and is never written. Whole updates are clipped after the step. In
    every round, given all that was released before, the rows of other clients do not depend on this
    one, and its own row is no longer than the clip, whatever it remembers: its sensitivity is that
    of a client without state. A secret Poisson cohort is worth what it always is: the coin of
    a round is independent of all earlier ones, hence of the state, so that a round is a mixture
    of sampled Gaussians over what the client may remember, and hockey-stick divergences are jointly
    convex. That argument needs coins of each client's own and whole updates; a `Method` with noise
    refuses steps elsewhere (fixed-size cohorts, correlated noise on random cohorts, clipped
    gradients). It also needs the class to do what is said here: `broadcast` reads its arguments
    alone, and no method passes anything from one client to another. fedveil cannot check that of
    others' classes: a guarantee is certified only if `privacy.trusted_parts` names the class.
    """

    def initial(self, weights: Tensor) -> Tensor:
        """Return a client's state before its first round, given the weights `[parameters]`."""
        return weights.new_zeros(len(weights))

    def broadcast(self, weights: Tensor, before: Tensor | None) -> Tensor | None:
        """Return what the server sends beside the shared weights, once a round.

        Args:
            weights: The shared weights of this round, `[parameters]`, which were released.
            before: What was broadcast in the round before; None in the first round.
        """
        return None

    def correction(self, moved: Tensor, state: Tensor, broadcast: Tensor | None) -> Tensor:
        """Return what is added to the gradients of one step, `[clients, parameters]`.

        Args:
            moved: How far each client has moved from the shared weights, `[clients, parameters]`.
            state: The clients' states, `[clients, ...]`.
            broadcast: What the server sent in this round.
        """
        raise NotImplementedError

    def after(self, moved: Tensor, state: Tensor, broadcast: Tensor | None, path: Tensor) -> Tensor:
        """Return the clients' states after their last step, `[clients, ...]`.

        Args:
            moved: Their updates before shaping, `[clients, parameters]`.
            state: Their states before the round.
            broadcast: What the server sent in this round.
            path: The sum of the learning rates of each client's steps, `[clients, 1]`.
        """
        return state


_CHECKS = {
    "learning_rate": instance_of(LearningRate),
    **dict.fromkeys(("steps", "epochs", "batch_size"), optional(count)),
    "momentum": share,
    **dict.fromkeys(("weight_decay", "penalty", "penalty_radius", "gradient_noise"), not_negative),
    "step": optional(instance_of(LocalStep)),
    "projection_radius": optional(above_zero),
}


@dataclass(frozen=True)
class LocalTraining:
    """Local SGD. Exactly one of `steps` and `epochs` is set.

    One step on a batch, with shared weights `w0`:

        g = gradient of the mean loss             (each example's clipped, if `per_example`)
        g += weight_decay * w
        g += penalty * (w - w0)  if |w - w0| > penalty_radius   (BLUR; FedProx at radius 0)
        g += step.correction(w - w0, ...)          (SCAFFOLD, FedDyn; code of anybody's own)
        g = clip(g)                                (whole-gradient clipping)
        g += gradient_noise * N(0, I)
        v = momentum * v + g;  w -= rate * v
        w = w0 + project(w - w0, projection_radius)

    Batches are cut from a shuffle of the client's records, anew in every epoch. With a
    `batch_rate`, every record is in a step's batch by a coin of its own, drawn where the data are
    and shown to nobody (Poisson batches): they vary in size and may be empty, sums are divided by
    `batch_size` all the same, and an epoch is 1 / batch_rate steps.

    Per-example clipping acts on the data gradient alone and its noise comes right after it, before
    decay, penalty and correction, which read no records. On a grid, the gradient is rounded to it
    and the noise is a Gaussian rounded to it, drawn exactly.
    """

    learning_rate: LearningRate
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None  # None: all records of the client in every step
    batch_rate: float | None = None  # each record is in a batch by a secret coin of this bias
    momentum: float = 0.0
    weight_decay: float = 0.0
    penalty: float = 0.0
    penalty_radius: float = 0.0
    projection_radius: float | None = None
    gradient_clip: GradientClip | None = None
    gradient_noise: float = 0.0  # std added to every coordinate of a step's gradient
    gradient_grid: float | None = None  # add it on integers of this step, a power of two
    last_step_noise: bool = True  # False: the last step's noise comes with the upload
    drop_last: bool = False  # leave out an epoch's last partial batch
    loss: Loss | None = None  # of each example, from outputs and targets; None: the task's own
    step: LocalStep | None = None  # a correction with state of each client's own
    own_rates: Any = field(default=None, compare=False, repr=False)  # see `batches.coin_rates`

    def __post_init__(self) -> None:
        plain_numbers(self)
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError("local rule: set exactly one of local_steps and local_epochs")
        check_fields(self, **_CHECKS)
        check_fields(self, "training.", batch_rate=optional(fraction))
        if self.batch_rate is not None and self.batch_size is None:
            raise ConfigError(
                "training.batch_size: is not set beside training.batch_rate. Give the expected "
                "number of records in a batch, by which sums are divided."
            )

    @property
    def per_example(self) -> bool:
        """Whether the gradients of single examples are clipped."""
        return self.gradient_clip is not None and self.gradient_clip.per_example

    @property
    def per_person(self) -> bool:
        """Whether the mean gradients of persons are clipped, in the place of single examples'."""
        return self.gradient_clip is not None and self.gradient_clip.sites_per_person is not None

    @property
    def plain(self) -> bool:
        """Whether the rule is SGD with weight decay and nothing else, which has fast kernels."""
        return (
            self.momentum == self.gradient_noise == self.penalty == 0
            and self.projection_radius is None
            and self.gradient_clip is None
            and self.step is None
        )
