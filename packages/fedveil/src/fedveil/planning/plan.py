"""A Plan: a Method resolved against a federation, a model and a budget.

Every number is decided here and the guarantee is known before the first step. Whatever cannot be
proved cannot be planned.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from fedveil.core.arguments import (
    check_fields,
    fraction,
    instance_of,
    optional,
    plain_numbers,
    positive,
    settle,
    share,
    whole,
)
from fedveil.core.display import Displayed
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.core.units import Arithmetic, Entropy, Trust, Unit
from fedveil.data.columns import Array
from fedveil.data.federation import Federation
from fedveil.methods.parts.isolation import check_isolation, check_loss
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import NoiseContext, NoisePlacement
from fedveil.methods.parts.preflight import check_every_round
from fedveil.planning import limits
from fedveil.planning.own_budgets import (
    Rates,
    check_scalable,
    own_epsilons,
    own_rates,
    own_scales,
    rates_of,
    restrained_rule,
)
from fedveil.planning.resolve import (
    check_sums,
    chosen_sums,
    distillation,
    noise_of,
    pipeline_of,
    sampling_of,
    usual_noise,
)
from fedveil.privacy.accounting import (
    PrivacyModel,
    Release,
    account,
    default_delta,
)
from fedveil.privacy.calibration import least_noise
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import Laplace
from fedveil.privacy.rounding import at_most
from fedveil.privacy.sampling import Sampling
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.models.check import check_model
from fedveil.training.models.flat import Layout, flatten, layout_of
from fedveil.training.server.optimizers import Optimizer


@dataclass(frozen=True)
class Budget:
    """How much privacy may be spent.

    Attributes:
        epsilon: The budget; the noise follows from it. Set either this or the noise.
        delta: None stands for min(1e-5, units^-1.1); zero asks for pure differential privacy.
        noise_multiplier: The noise; epsilon follows from it.

    >>> delta = Budget(epsilon=4).resolved_delta(1_000_000)  # a million clients
    >>> round(delta * 1e7, 2)
    2.51
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigError("privacy: set exactly one of epsilon and noise_multiplier")
        amounts = {"epsilon": optional(positive), "noise_multiplier": optional(positive)}
        check_fields(self, "privacy.", delta=optional(share), **amounts)

    def resolved_delta(self, units: int, *, pure: bool = False, simulated: bool = False) -> float:
        """Return the delta to use for this many protected units.

        Args:
            units: How many clients or records are protected.
            pure: Whether the mechanism is private without any delta, so that zero is allowed.
            simulated: A simulation promises nothing and may have a larger delta, as papers do; its
                guarantee says so.

        Raises:
            ConfigError: A protected run's delta is at or above 1/units.
        """
        if self.delta is None:
            return default_delta(units)
        if self.delta == 0 and pure:
            return 0.0
        if not 0 < self.delta < (1 if simulated else 1 / units):
            raise ConfigError(
                f"privacy.delta: must be between 0 and 1/{units} (one over the number of "
                f"protected units), got {self.delta}"
            )
        return self.delta


@dataclass(frozen=True, repr=False)
class Plan(Displayed):
    """A run decided to the last number. Build one with `plan`.

    It is data, and holds choices only. Sampling, noise, pipeline, privacy model and guarantee are
    derived from them, so that `dataclasses.replace` yields a plan that does what its guarantee
    says.

    Attributes:
        noise_multiplier: Noise beside the clip; None if the method adds none.
        arithmetic: Whether noise is drawn on integers; None if the method adds none.
        secure_sums: How sums are hidden from whoever takes them; None if they are not. It follows
            from the method, but for the mode and the simulated dropout.
        delta: Of the guarantee; None: a simulation that promises nothing.
        declared: What else the guarantee takes to be public, a sentence each.
        unprotected: What else was taken from the protected data, a sentence each.
        trusted_parts: Classes of others, "package.module:Class", that the guarantee may rest on.
        scales: The share of the clip, or of its secret batches' coins, that each client keeps to
            by a budget of its own, `[clients]`; None: all give everything.
        rates: Epsilons that persons bring, rising, each with the bias of the coins that keeps to
            it.
    """

    method: Method
    federation: Federation = field(repr=False)
    module: nn.Module = field(repr=False)
    start: Tensor = field(repr=False)  # initial weights [parameters]
    seed: int | None
    noise_multiplier: float | None = None
    arithmetic: Arithmetic | None = None
    secure_sums: SecureSums | None = None
    delta: float | None = None
    declared: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    trusted_parts: tuple[str, ...] = ()
    tried: tuple[object, ...] = field(default=(), repr=False, compare=False)  # parts and choices
    scales: tuple[float, ...] | None = field(default=None, repr=False)
    rates: Rates = field(default=(), repr=False)

    def __post_init__(self) -> None:
        plain_numbers(self)
        if self.seed is not None:  # None: protected
            whole("seed", self.seed)
        if self.start.shape != (self.layout.size,):
            raise ConfigError(f"start: need the module's {self.layout.size} weights")
        private = self.method.placement is not None
        if private == (self.noise_multiplier is None) or private == (self.arithmetic is None):
            raise ConfigError(
                "noise_multiplier, arithmetic: a plan has them if its method adds noise; make a "
                "new plan"
            )
        if not private:
            return
        if self.seed is None and self.delta is None:
            raise ConfigError("delta: a protected plan promises something, and needs one")
        parts = (self.method, self.federation, self.module)
        checked = bool(self.tried) and all(map(operator.is_, self.tried, parts))
        if not checked:
            check_model(self.module, self.federation, protected=self.seed is None)
            local = self.method.local
            check_isolation(
                self.module, self.federation, local.per_example, per_person=local.per_person
            )
            check_loss(local.loss, self.module, self.federation, local.batch_size)
        if self.secure_sums is not None:
            sums = chosen_sums(self.method, self.federation, self.secure_sums, same_method=checked)
            settle(self, secure_sums=sums)
        noise = self.private_noise
        if self.scales is not None:
            check_scalable(noise)
            scales = [fraction("scales", one) for one in self.scales]
            if len(scales) != self.federation.clients:
                raise ConfigError("scales: need a number above 0 and at most 1 for every client")
        brought = self.federation.own_epsilons
        if brought is not None and self.scales is None and (brought < math.inf).any():
            self._own_rates()  # for all who ask for less, or it is not the plan for these data
        check_sums(noise, promised=self.seed is None)
        choices = (self.noise_multiplier, self.arithmetic, self.secure_sums)
        if not checked or self.tried[len(parts) :] != choices:
            check_every_round(self.method, noise)
        settle(self, tried=parts + choices)

    def _display(self) -> tuple[str, dict[str, object]]:
        guarantee = vars(self).get("guarantee")  # a repr starts no accounting
        return f"{self.method.name} on {self.federation.name}", {
            "rounds": self.method.rounds,
            "expected cohort": self.sampling.expected_cohort,
            "parameters": self.layout.size,
            "noise multiplier": self.noise_multiplier,
            "epsilon": None if guarantee is None else at_most(guarantee.epsilon),
            "delta": None if guarantee is None else at_most(guarantee.delta),
            "protected": self.protected,
            "seed": self.seed,
        }

    def derived_anew(self) -> Plan:
        """Return the plan that follows from this one's choices, with a module of its own.

        Nothing that was derived before is taken over, and no subclass: a run carries out what its
        guarantee is computed from. What is done to the module afterwards does not reach the run.

        Raises:
            ConfigError: A part, such as the module, was changed in place after the plan was made.
        """
        chosen = {each.name: getattr(self, each.name) for each in fields(Plan)}
        chosen |= {"module": copy.deepcopy(self.module), "tried": ()}
        anew = Plan(**chosen)  # fitted and tried anew
        if anew.guarantee != self.guarantee:
            raise ConfigError("plan: its parts were changed after it was made; make a new one")
        return anew

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.module)

    @cached_property
    def noise(self) -> NoisePlacement | None:
        """The method's noise, fitted to this plan: one object to ask; None if it adds none."""
        if self.noise_multiplier is None or self.arithmetic is None:
            return None
        parts = (self.method, self.federation, self.module)
        return noise_of(*parts, self.arithmetic, self.noise_multiplier, self.secure_sums)

    @property
    def private_noise(self) -> NoisePlacement:
        """Return the fitted noise of a method that must add some."""
        if self.noise is None:
            raise ConfigError(f"training.method: {self.method.name!r} adds no noise")
        return self.noise

    @property
    def context(self) -> NoiseContext | None:
        """The facts that the noise is fitted to."""
        return None if self.noise is None else self.noise.facts

    @cached_property
    def sampling(self) -> Sampling:
        """The sampler of cohorts, both for the draws and for the accountants."""
        return self.context.sampling if self.context else sampling_of(self.method, self.federation)

    @cached_property
    def optimizer(self) -> Optimizer:
        if self.noise is not None and self.noise.server is not None:
            return self.noise.server
        if self.method.voting is None:
            return self.method.optimizer
        return distillation(self.method.voting, self.federation, self.module)

    @cached_property
    def pipeline(self) -> UpdatePipeline:
        """The update pipeline used in the first round."""
        if self.noise is None:
            return pipeline_of(self.method, self.federation, self.module)
        return self.noise.pipeline(self.noise.facts.pipeline.clip)

    def _model_of(self, noise: NoisePlacement) -> PrivacyModel:
        sentences = self.declared, self.unprotected, self.trusted_parts
        return _privacy_model(self.method, noise, self.seed, *sentences)

    @cached_property
    def person_epsilon(self) -> float | None:
        """Epsilon of all records of a person together, where single records are protected.

        None if `Federation.records_per_person` is not set (the largest number in the data is
        private), if no proof covers a person, or if another unit is protected.
        """
        most = self.federation.records_per_person
        if most is None or self.noise is None or self.delta is None:
            return None
        if self.federation.bought is not None:
            return None  # all rows of the table had a vote, and not only those that count
        model = self._model_of(self.noise)
        if model.unit is not Unit.RECORD:
            return None
        persons = replace(model, unit=Unit.PERSON, contributions=most, population=None)
        releases = self.releases(self.method.rounds)
        with suppress(PrivacyRefusal):
            return account(releases, privacy_model=persons, delta=self.delta).epsilon
        return None

    @cached_property
    def privacy_model(self) -> PrivacyModel | None:
        if self.noise is None:
            return None
        model = self._model_of(self.noise)
        if model.unit is Unit.RECORD and self.federation.train.persons is not None:
            persons_note = _of_persons(self.federation, self.person_epsilon)
            model = replace(model, not_covered=(*model.not_covered, persons_note))
        if self.delta is None or not (self.scales or self.rates):
            return model
        own_budgets_note = own_epsilons(self.noise, self.scales, self.rates, model, self.delta)
        return replace(model, declared=(*model.declared, *own_budgets_note))

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """The guarantee of all rounds together; None if the method adds no noise."""
        if self.privacy_model is None or self.delta is None:
            return None
        releases = self.releases(self.method.rounds)
        return account(releases, privacy_model=self.privacy_model, delta=self.delta)

    @cached_property
    def protected(self) -> bool:
        """No seed and some noise: only released values may be shown or kept."""
        return self.seed is None and self.method.placement is not None

    @property
    def randomness(self) -> Randomness:
        return Randomness(self.seed)

    @cached_property
    def local(self) -> LocalTraining:
        """The local training of a client, with any noise that belongs into its steps."""
        local = self.method.local if self.noise is None else self.noise.local
        if self.rates:
            local = replace(local, own_rates=self._own_rates())
        if self.scales is None:
            return local
        return restrained_rule(self.private_noise, local, self.scales)

    def _own_rates(self) -> Array:
        return rates_of(self.federation, self.rates, self.method.local.batch_rate or 0.0)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons against running this plan.

        They are a delta that only simulations may have, and noise in which no update can be seen.
        """
        model = self.privacy_model
        if model is None or self.delta is None or self.delta * (model.population or 0) < 1:
            return self.drowned
        warning = (
            f"privacy.delta {self.delta:g} is not below 1/{model.population}: publishing one "
            f"random {model.unit} whole would satisfy it. A protected run refuses it"
        )
        return (warning, *self.drowned)

    @property
    def drowned(self) -> tuple[str, ...]:
        """A warning if noise hides every update.

        If all clients send the same update of full norm, their averages over the run add up to
        sqrt(rounds) times this signal-to-noise ratio. Below one, nothing can be learned.
        """
        fitted, privacy_model = self.noise, self.privacy_model
        if fitted is None or privacy_model is None or privacy_model.unit is not Unit.CLIENT:
            return ()
        noise = fitted.facts.noise_multiplier * fitted.noise_ratio
        cohort, clients = self.sampling.expected_cohort, fitted.facts.clients
        visible = math.sqrt(cohort) if privacy_model.trust is Trust.LOCAL else cohort
        ratio = visible * math.sqrt(self.method.rounds / self.layout.size) / noise
        if ratio >= 1:
            return ()
        needed = math.ceil(clients * ratio ** (-2 if privacy_model.trust is Trust.LOCAL else -1))
        return (
            f"cohorts of {cohort:g} drown in this noise (signal-to-noise {ratio:.2g} over the "
            f"run): do not expect the model to learn. It takes about {needed:,} clients at the "
            "same rate, or a larger epsilon, or fewer parameters",
        )

    def releases(self, rounds: int) -> tuple[Release, ...]:
        """Return the releases of the first `rounds` rounds."""
        return () if self.noise is None or rounds == 0 else _releases(self.noise, rounds)

    def spent(self, rounds: int) -> float | None:
        """Epsilon after `rounds` rounds; None if the method gives no guarantee."""
        if self.guarantee is None or self.privacy_model is None:
            return None
        if rounds == 0:
            return 0.0
        releases = self.releases(rounds)
        return account(
            releases, privacy_model=self.privacy_model, delta=self.guarantee.delta
        ).epsilon


def plan(
    method: Method,
    federation: Federation,
    model: nn.Module,
    *,
    budget: Budget | None = None,
    seed: int | None = None,
    arithmetic: Arithmetic | None = None,
    declared: Sequence[str] = (),
    unprotected: Sequence[str] = (),
    trusted_parts: Sequence[str] = (),
    budgets: Mapping[str, float] | None = None,
) -> Plan:
    """Resolve a method against data, a model and a budget.

    Args:
        method: What is trained, and where noise is added.
        federation: The clients' data.
        model: Any module; its weights are the first shared weights.
        budget: Of a method that adds noise; None for others.
        seed: With a seed the run is a repeatable simulation, and its guarantee says what the same
            plan would certify. None: a protected run.
        arithmetic: None: exact without a seed and under a secure sum, which adds integers;
            idealised (faster) with a seed.
        declared: Sentences on what else the guarantee takes to be public.
        unprotected: Sentences on what else was taken from the protected data. Nothing is certified
            then.
        trusted_parts: Classes of others, as "package.module:Class", whose proofs you vouch for. A
            method with other parts that are not fedveil's is not certified.
        budgets: Epsilons of single clients below the run's, by name (by number where the data name
            nobody). Each of them clips its updates to as much less as its own epsilon needs,
            or, where batches are secret, draws its records by rarer coins.
            Epsilons that clients or persons bring with their data
            (`Federation.from_arrays(epsilons=...)`) are kept in the same way; persons' secret coins
            are then rarer.

    Returns:
        The plan, with its noise calibrated and its guarantee computed.

    Raises:
        PrivacyRefusal: No proof covers this combination.
        ConfigError: An argument cannot be used.

    >>> import fedveil as fv
    >>> digits = fv.load("digits", clients=100)
    >>> local = fv.LocalTraining(fv.LearningRate(1.0), steps=5)
    >>> cohort = fv.CohortRule(rate=0.5)
    >>> method = fv.dp_fedavg(rounds=10, cohort=cohort, local=local, clip=fv.Clip(0.8))
    >>> plan = fv.plan(method, digits, fv.build("logistic", digits), budget=fv.Budget(epsilon=4))
    >>> 3.99 < plan.guarantee.epsilon <= 4, plan.guarantee.certified
    (True, True)
    """
    instance_of(Method)("method", method)
    instance_of(Federation)("federation", federation)
    instance_of(nn.Module, "torch.nn.Module")("model", model)
    lists = {"declared": declared, "unprotected": unprotected, "trusted_parts": trusted_parts}
    for name, items in lists.items():
        if isinstance(items, str):
            raise ConfigError(f"{name}: need a list, got {items!r}")
    placement, start = method.placement, flatten(model)
    check_model(model, federation, protected=seed is None and placement is not None)
    check_loss(method.local.loss, model, federation, method.local.batch_size)
    if placement is None:
        if budget is not None or budgets:
            raise PrivacyRefusal(
                f"method {method.name!r} adds no noise, so no epsilon can be promised",
                "choose a private method such as dp-fedavg, or leave privacy.epsilon out",
            )
        if method.aggregation.asked:
            raise ConfigError(
                f"aggregation: secure sums carry noise shares, and method {method.name!r} has none"
            )
        return Plan(method, federation, model, start, seed)
    if budget is None:
        raise ConfigError(f"privacy.epsilon: method {method.name!r} needs a budget")
    instance_of(Budget)("budget", budget)
    local = method.local
    check_isolation(model, federation, local.per_example, per_person=local.per_person)
    noise = usual_noise(method, federation, model, seed, arithmetic)
    sentences = tuple(declared), tuple(unprotected), tuple(trusted_parts)
    privacy_model = _privacy_model(method, noise, seed, *sentences)
    delta = _delta(noise, privacy_model, budget)
    multiplier = budget.noise_multiplier
    if multiplier is None:
        multiplier = _calibrated(noise, privacy_model, budget.epsilon or 0.0, delta)
    choices = multiplier, noise.facts.arithmetic, noise.facts.secure
    check_every_round(method, noise.scaled(multiplier))
    tried = (method, federation, model, *choices)
    noise = noise.scaled(multiplier)
    scales = own_scales(noise, budgets or {}, privacy_model, delta)
    rates = own_rates(noise, privacy_model, delta)
    chosen = *choices, delta, *sentences, tried, scales, rates
    resolved = Plan(method, federation, model, start, seed, *chosen)
    if resolved.guarantee is None:  # worked out here, for what cannot be proved cannot be planned
        raise RuntimeError("a plan with noise has a guarantee")
    return resolved


def quick_noise(method: Method, like: Plan, budget: Budget) -> float:
    """Return the noise multiplier of a method on the data and model of a plan, for simulations.

    It is what `plan` would choose, or a little more where only a slow accountant proves that less
    is enough. Nothing is promised, so nothing is accounted.

    Args:
        method: The method to simulate.
        like: A plan with the same data, model and arithmetic.
        budget: With an epsilon.
    """
    if budget.epsilon is None:
        raise ConfigError("privacy.epsilon: set it; the noise follows from it")
    noise = usual_noise(method, like.federation, like.module, like.seed, like.arithmetic)
    privacy_model = _privacy_model(method, noise, like.seed)
    delta = _delta(noise, privacy_model, budget)
    return _calibrated(noise, privacy_model, budget.epsilon, delta, quickly=True)


def _delta(noise: NoisePlacement, privacy_model: PrivacyModel, budget: Budget) -> float:
    facts = noise.facts
    releases = _releases(noise, facts.rounds)
    pure = all(isinstance(release.mechanism, Laplace) for release in releases)
    units = privacy_model.population or facts.federation.clients
    simulated = privacy_model.entropy is Entropy.SEEDED
    return budget.resolved_delta(units, pure=pure, simulated=simulated)


def _privacy_model(
    method: Method,
    noise: NoisePlacement,
    seed: int | None,
    declared: Sequence[str] = (),
    unprotected: Sequence[str] = (),
    trusted_parts: Sequence[str] = (),
) -> PrivacyModel:
    """Return who is protected from whom, with the assumptions that the plan knows of."""
    model, facts = noise.privacy_model(), noise.facts
    entropy = Entropy.SYSTEM if seed is None else Entropy.SEEDED
    if facts.federation.bought is not None:
        facts.federation.bought.check(model.unit, model.trust, entropy)
    trusted, untrusted = limits.foreign_parts(method, trusted_parts)
    return replace(
        model,
        population=_population(facts, model.unit),
        arithmetic=facts.arithmetic,
        entropy=entropy,
        unprotected=(*limits.unprotected(facts, model.unit), *untrusted, *unprotected),
        declared=(*limits.declared(facts, model.unit, model.trust), *trusted, *declared),
        not_covered=limits.not_covered(facts, model.trust),
    )


def _population(facts: NoiseContext, unit: Unit) -> int:
    """Return how many units are protected.

    A declared number of clients takes the place of the true one, which it hides. A person at
    several clients counts once.
    """
    if unit is Unit.CLIENT:
        return facts.clients
    train = facts.federation.train
    persons = train.persons if unit is Unit.PERSON else None
    return len(train) if persons is None else len(np.unique(persons))


def _of_persons(federation: Federation, epsilon: float | None) -> str:
    """Say what records that are protected one at a time leave to their persons."""
    most = federation.records_per_person
    if most is None:
        return (
            "All records of a person together: it is not said how many there may be. Set "
            "data.records_per_person to be told what they have, or protect persons (unit person)."
        )
    if epsilon is None:
        return f"All of up to {most} records of a person together: no proof bounds them."
    return (
        f"All of up to {most} records of a person together at this epsilon: theirs is "
        f"{at_most(epsilon)}, and unit person protects them for less."
    )


def _releases(noise: NoisePlacement, rounds: int) -> tuple[Release, ...]:
    return (*noise.releases(rounds), *noise.facts.bought)


def _calibrated(
    noise: NoisePlacement,
    privacy_model: PrivacyModel,
    epsilon: float,
    delta: float,
    quickly: bool = False,
) -> float:
    """Return the smallest noise multiplier with which all releases together keep to epsilon."""
    rounds = noise.facts.rounds
    multiplier = least_noise(
        lambda level: _releases(noise.scaled(level), rounds),
        epsilon=epsilon,
        delta=delta,
        privacy_model=privacy_model,
        # As if every participation were charged alone: too much, but the right order.
        guess=math.sqrt(max(1, rounds)) / epsilon,
        quickly=quickly,
    )
    if multiplier is None:
        raise PrivacyRefusal(
            f"no amount of noise on the updates keeps to epsilon {epsilon} at delta {delta:g}: "
            "other releases (statistics that were bought, a tracked clip) or missing noise shares "
            "cost more",
            "raise privacy.epsilon, privacy.delta or privacy.clip_noise, or name fewer colluders",
        )
    return multiplier
