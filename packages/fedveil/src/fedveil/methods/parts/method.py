"""A Method: the parts of one federated training algorithm, before it meets data and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from fedveil.core.arguments import (
    check_fields,
    count,
    flag,
    fraction,
    instance_of,
    one_of,
    optional,
    plain_numbers,
    whole,
)
from fedveil.core.display import Displayed
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.methods.parts.clip_rule import ClipRule
from fedveil.methods.parts.noise_placement import Bounded, Drawn, NoisePlacement
from fedveil.methods.recipes.sections import Voting
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
    Sampling,
    SecretPoisson,
    public_schedule,
)
from fedveil.privacy.secure_sums.aggregation import Aggregation
from fedveil.training.client.local_training import LocalStep, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.server.optimizers import Optimizer, Sgd
from fedveil.training.server.smoothing import Smoothing


class Scheme(StrEnum):
    """How the clients of a round are chosen.

    `POISSON`: each independently, with the same probability. `FIXED`: a random set of fixed size.
    `EVERYONE`: all clients. `ROUND_ROBIN`: in turn. `BALANCED`: a random public schedule in which
    all take part equally often. `CAPPED`: Poisson, cut to a random subset of `cap`.
    `SECRET_POISSON`: all upload under a secure sum, and each adds an update by a secret coin of its
    own. Only secret random cohorts (Poisson, fixed, capped) and secret coins lower epsilon.
    """

    POISSON = "poisson"
    FIXED = "fixed"
    ROUND_ROBIN = "round-robin"
    EVERYONE = "everyone"
    BALANCED = "balanced"
    CAPPED = "capped-poisson"
    SECRET_POISSON = "secret-poisson"


def _scheme(key: str, value: str) -> Scheme | str:
    """Check a scheme: members are told apart with `is`, so a word of theirs may not stay one."""
    if not isinstance(value, str) or value in list(Scheme):
        return one_of(Scheme)(key, value)
    public_schedule(value)
    return value


@dataclass(frozen=True)
class CohortRule:
    """Who takes part in a round: exactly one of `size` and `rate` is given, none for everyone.

    Attributes:
        scheme: How cohorts are drawn.
        size: Clients in a round (Poisson: expected).
        rate: Their share of all.
        cap: The most clients in a round.
        clients: A number of clients that was declared in public. The sampler, and with it rates,
            divisors and grids, follow from it however many there are. There must not be more.

    >>> half, fifty = fv.CohortRule(rate=0.5), fv.CohortRule(fv.Scheme.FIXED, size=50)
    """

    scheme: Scheme | str = Scheme.POISSON  # or the name of somebody else's public schedule
    size: int | None = None
    rate: float | None = None
    cap: int | None = None
    clients: int | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, scheme=_scheme)
        check_fields(self, "privacy.public_", clients=optional(count))
        if self.clients is not None and self.scheme not in (Scheme.POISSON, Scheme.EVERYONE):
            raise ConfigError(
                "privacy.public_clients: for training.sampling poisson or everyone; elsewhere a "
                "missing client changes the turns or the chances of the others"
            )
        if self.scheme is Scheme.EVERYONE:
            return
        if (self.size is None) == (self.rate is None):
            raise ConfigError("training: set exactly one of cohort and rate")
        check_fields(self, "training.cohort ", size=optional(count))
        check_fields(self, "training.", rate=optional(fraction))
        if (self.cap is None) == (self.scheme is Scheme.CAPPED):
            raise ConfigError(
                "training.cohort_cap: goes with sampling 'capped-poisson', and only it"
            )

    def resolve(self, clients: int, rounds: int) -> Sampling:
        """The sampler for a population of this size, or for the one that was declared."""
        if self.clients is not None and clients > self.clients:
            raise ConfigError(f"privacy.public_clients: there are more clients than {self.clients}")
        clients = clients if self.clients is None else self.clients
        if self.scheme is Scheme.EVERYONE:
            return Everyone(clients)
        size = self.size if self.size is not None else max(1, round((self.rate or 0) * clients))
        if size > clients:
            raise ConfigError(
                f"training.cohort: {size} is more than the {clients} clients there are"
            )
        rate = self.rate if self.rate is not None else size / clients
        if not isinstance(self.scheme, Scheme):
            return public_schedule(self.scheme)(clients, size)
        samplers: dict[Scheme, Callable[[], Sampling]] = {
            Scheme.POISSON: lambda: Poisson(rate, clients),
            Scheme.SECRET_POISSON: lambda: SecretPoisson(rate, clients),
            Scheme.CAPPED: lambda: CappedPoisson(clients, rate, self.cap or clients),
            Scheme.FIXED: lambda: FixedSize(clients, size),
            Scheme.ROUND_ROBIN: lambda: RoundRobin(clients, size),
            Scheme.BALANCED: lambda: Balanced(clients, size, rounds),
        }
        return samplers[self.scheme]()


@dataclass(frozen=True, repr=False)
class Method(Displayed):
    """What happens in a round, in order: cohort, local training, update pipeline, noise placement,
    aggregation, server step. `dp_fedavg` and its kin make one; `fv.plan` fits it to data.

    `smoothing` acts on what was released, after the noise: before it, it would be part of a
    sensitivity that nobody has bounded. `by_examples` weighs updates by their clients' numbers of
    examples; a private method also needs a cap on them, `pipeline.weight_cap`.
    """

    name: str
    rounds: int
    cohort: CohortRule
    local: LocalTraining
    pipeline: UpdatePipeline = field(default_factory=UpdatePipeline)
    placement: NoisePlacement | None = None  # None: nothing is private
    aggregation: Aggregation = field(default_factory=Aggregation)
    clip_rule: ClipRule | None = None  # None: the pipeline's clip in every round
    smoothing: Smoothing | None = None
    optimizer: Optimizer = field(default_factory=Sgd)
    voting: Voting | None = None
    by_examples: bool = False

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(
            self,
            cohort=instance_of(CohortRule),
            local=instance_of(LocalTraining),
            by_examples=flag,
        )
        _check_part("placement", self.placement, "CentralNoise()", "fit")
        _check_part("optimizer", self.optimizer, "Sgd()", "step")
        if whole("training.rounds", self.rounds) < 1:
            raise ConfigError(f"training.rounds: must be at least 1, got {self.rounds}")
        if self.voting is not None and self.smoothing is not None:
            raise ConfigError("server.smoothing: votes have no neighbours to be smoothed with")
        placement, automatic = self.placement, self.smoothing and self.smoothing.automatic
        coins = placement is not None and placement.secret_coins
        if self.cohort.scheme is Scheme.SECRET_POISSON and not coins:
            raise PrivacyRefusal(
                f"secret coins with method {self.name!r} and this trust: they stay secret only "
                "where clients add noise shares to clipped updates under a secure sum",
                "set privacy.trust to distributed, or training.sampling to poisson",
            )
        if automatic and (placement is None or not placement.white):
            raise ConfigError(
                "server.smoothing: 'auto' needs independent noise of known size on every sum, by "
                "a trusted aggregator or by each client. Give a number"
            )
        if placement is None:
            return
        if placement.bounded is Bounded.STATISTIC:
            once = self.rounds == 1 and self.cohort.scheme is Scheme.EVERYONE
            if not once or self.smoothing is not None or self.voting is not None:
                raise ConfigError(
                    f"method {self.name!r}: a statistic of everybody's records is released once. "
                    "Use training.rounds 1 and training.sampling everyone, without "
                    "server.smoothing or votes."
                )
        self._check_protected(placement)

    def _display(self) -> tuple[str, dict[str, object]]:
        cohort, clip = self.cohort, self.pipeline.clip
        return self.name, {
            "rounds": self.rounds,
            "sampling": str(cohort.scheme),
            "cohort": cohort.size,
            "rate": cohort.rate,
            "local steps": self.local.steps,
            "local epochs": self.local.epochs,
            "clip norm": None if clip is None else clip.norm,
            "noise": "none" if self.placement is None else type(self.placement).__name__,
        }

    def _check_protected(self, placement: NoisePlacement) -> None:
        """Refuse a pipeline that sends something else than the noise is fitted to."""
        pipeline = self.pipeline
        if self.voting is not None and placement.bounded is not Bounded.BALLOT:
            raise PrivacyRefusal(
                f"votes with {type(placement).__name__}: a ballot is longer than any clip, so the "
                "noise would not cover it",
                "protect votes with VoteNoise",
            )
        if pipeline.granularity is not None or pipeline.ballot or pipeline.statistic:
            raise ConfigError("pipeline: the plan chooses what is sent; leave grids and votes out")
        local = self.local
        if local.gradient_noise or local.gradient_grid is not None or not local.last_step_noise:
            raise ConfigError(
                "local: the plan chooses gradient noise, its grid and its last step; leave them out"
            )
        self._check_step(placement)
        if placement.fixed_clip and self.clip_rule is not None:
            raise PrivacyRefusal(
                "correlated noise with a clip that may change: what later rounds take back would "
                "be measured in another clip",
                "use one clip (dp-fedavg without privacy.clip_quantile), or independent noise",
            )
        if self.by_examples and pipeline.weight_cap is None:
            raise PrivacyRefusal(
                "updates weighted by a client's number of examples, without a cap: one client "
                "with many examples may move the sum without bound",
                "set training.weight_cap to a public number of examples",
            )

    def _check_step(self, placement: NoisePlacement) -> None:
        """Refuse local steps where the argument of `LocalStep` about privacy does not hold."""
        step = self.local.step
        if step is None:
            return
        if placement.bounded is Bounded.GRADIENT:
            raise PrivacyRefusal(
                f"the local step {type(step).__name__} beside noise on gradients: each example's "
                "gradient is clipped, and what the step adds to it is not",
                "clip whole updates (method dp-fedavg), or leave the step out",
            )
        amplified = placement.drawn is Drawn.BY_SERVER and (
            self.cohort.scheme in (Scheme.FIXED, Scheme.CAPPED)
            or (self.cohort.scheme is Scheme.POISSON and placement.fixed_clip)
        )
        if amplified and type(step).after is not LocalStep.after:
            raise PrivacyRefusal(
                f"the local step {type(step).__name__} remembers in which rounds its client was "
                f"drawn, and with {self.cohort.scheme} sampling nobody has proved what secret "
                "cohorts are then worth",
                "use training.sampling poisson with independent noise, everyone, or turns",
            )


def _check_part(name: str, part: object, usual: str, verb: str) -> None:
    """Protocols, of which others may bring their own: an object that knows the verb."""
    if part is not None and (isinstance(part, type) or not hasattr(part, verb)):
        raise ConfigError(f"{name}: need an object such as {usual}, got {part!r}")
