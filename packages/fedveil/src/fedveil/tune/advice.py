"""From a recipe to a search, and to its answer: what to run, what to expect of it, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.methods.parts.correlated_noise import CorrelatedNoise
from fedveil.methods.parts.noise_placement import Bounded, Drawn
from fedveil.methods.registry import METHODS
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import Recipe
from fedveil.privacy.mechanisms import Gaussian
from fedveil.training.engines.affine import affine_stack
from fedveil.training.models.zoo import own_name
from fedveil.tune.feasible import about, remaining
from fedveil.tune.proxy import proxy_of
from fedveil.tune.space import space_of
from fedveil.tune.trials import Candidate, ProxyTrials, Trial, recipe_with_settings
from fedveil.tune.tuner import Expected, Tuner

EFFORT = 25_000.0  # of a plan: about a quarter of a minute
PILOT = 100_000.0  # of a pilot: about a minute
_LEAST_TRIALS = 60  # of the recipe's own settings that the effort must allow for
_LOSS_TOLERANCE, _ACCURACY_TOLERANCE = 0.05, 0.01  # within which a cheaper choice is as good
_LEARNT = 0.02  # of the trivial answer's error must be gone before anything counts as learnt
_LEAST_GAIN = 1.05  # a gain in noise below this factor is not worth a line
_QUIETER = (2, 4, 8, 16, 32, 64)  # times as many clients to try


def prepare(
    recipe: Recipe,
    *,
    proxy: str | None = None,
    records: int | None = None,
    max_steps: int | None = None,
    spent_epsilon: float = 0.0,
    spent_delta: float = 0.0,
    effort: float = EFFORT,
    seconds: float = math.inf,
    seed: int = 0,
) -> Tuner:
    """Prepare a search for the settings of a recipe.

    Args:
        recipe: With a budget.
        proxy: Public source, public file or `synthetic`. By default the recipe's own source if it
            has one, and made-up data for a file, which counts as private.
        records: Records of a client, if publicly known.
        max_steps: Largest total of local steps; by default the recipe's own.
        spent_epsilon: What earlier runs on the same clients have used up.
        spent_delta: The same for delta.
        effort: Limit of the work, in about milliseconds.
        seconds: Time after which the search ends with what it has.
        seed: Public seed of the search.

    Raises:
        ConfigError: There is no budget, or it cannot work with any settings.
    """
    budget, recipe, real = budgeted(recipe, spent_epsilon, spent_delta)
    public = proxy_of(recipe, proxy, real.federation, records)
    steps, sizes = local_steps_of(recipe, real, records)
    trials = ProxyTrials(recipe, real, replace(public, looked_at=(*public.looked_at, *sizes)))
    space = space_of(trials, steps, max_steps)
    # Large models are tried with fewer clients, and with more effort only where that is not enough.
    whole = trials.cost(Trial(space.base, budget, 1.0, 0))
    share = min(1.0, effort / _LEAST_TRIALS / whole)
    least = trials.cost(Trial(space.base, budget, share, 0))
    effort = max(effort, _LEAST_TRIALS / 2 * least)
    return Tuner([trials], space, budget, effort, seconds, share=share, seed=seed)


def budgeted(
    recipe: Recipe, spent_epsilon: float = 0.0, spent_delta: float = 0.0
) -> tuple[float, Recipe, Plan]:
    """Return what is left of a recipe's epsilon, the recipe with that budget, and its plan.

    Raises:
        ConfigError: The recipe has no budget, or it is spent.
    """
    if not METHODS.find(recipe.training.method, "training.method").private:
        raise ConfigError(
            f"training.method: {recipe.training.method!r} adds no noise, so there is no budget to "
            "plan for. Choose a private one: fedveil methods"
        )
    epsilon = recipe.privacy.epsilon
    if epsilon is None:
        raise ConfigError("privacy.epsilon: set the budget to plan for")
    real = plan_of(recipe, federation_of(recipe.data))
    if real.guarantee is not None and (spent_epsilon or spent_delta):
        epsilon, delta = remaining(epsilon, real.guarantee.delta, spent_epsilon, spent_delta)
        recipe = replace(recipe, privacy=replace(recipe.privacy, epsilon=epsilon, delta=delta))
        real = plan_of(recipe, real.federation)
    return epsilon, recipe, real


def local_steps_of(
    recipe: Recipe, plan: Plan, records: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """Return the local steps of a round, and the data that were looked at to find them.

    Args:
        recipe: The recipe.
        plan: The recipe's plan.
        records: Records of a client, which epochs over batches depend on. Of a public source the
            average is known; of a file it is private and must be given.

    Raises:
        ConfigError: The number is private and was not given.
    """
    local, looked_at = plan.method.local, tuple[str, ...]()
    if local.steps is not None:
        return local.steps, looked_at
    epochs = local.epochs or 1
    if local.batch_size is None:
        return epochs, looked_at
    if records is None:
        if recipe.data.file is not None:
            raise ConfigError(
                "--records: how many records a client has is private, and the number of steps of "
                "an epoch depends on it; give a number known from elsewhere, or set "
                "training.local_steps"
            )
        records = round(len(plan.federation.train) / plan.federation.clients)
        looked_at = (recipe.data.source,)
    return epochs * max(1, math.ceil(records / local.batch_size)), looked_at


@dataclass(frozen=True)
class Option:
    """Settings worth running, what to expect of them, and why."""

    name: str
    candidate: Candidate
    epsilon: float
    uploads: int
    expected: Expected
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "name": self.name,
            "epsilon": self.epsilon,
            **self.candidate.to_dict(),
            "total_steps": self.candidate.total_steps,
            "uploads": self.uploads,
            "expected": vars(self.expected),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Advice:
    """The answer of a search.

    Attributes:
        options: Recommended settings first, then the recipe's own, more private and cheaper ones.
        trivial: Error of the best answer that looks at no input.
        warnings: What the user must know before running it.
        notes: What the answer rests on.
        proxy: Name of the public data.
        looked_at: Data that the settings depend on, for `privacy.tuned_on`.
        trials: How many simulated runs there were.
        work: Local steps of all clients in all of them.
        seconds: How long it took.
        interrupted: Whether it was ended by Ctrl-C.
    """

    options: tuple[Option, ...]
    trivial: float
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    proxy: str
    looked_at: tuple[str, ...]
    trials: int
    work: int
    seconds: float
    interrupted: bool

    @property
    def recommended(self) -> Option:
        """Return the first option."""
        return self.options[0]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**vars(self), "options": [option.to_dict() for option in self.options]}


def recipe_of_option(recipe: Recipe, option: Option) -> Recipe:
    """Return the recipe with an option's settings and budget, ready to run."""
    chosen = recipe_with_settings(recipe, option.candidate)
    return replace(chosen, privacy=replace(chosen.privacy, epsilon=option.epsilon))


def advise(tuner: Tuner) -> Advice:
    """Search, and find alternatives as far as the limits allow.

    Raises:
        ConfigError: The search was ended before its first result.
    """
    chosen, proxy = tuner.run(), tuner.trials.proxy
    expected = tuner.expected(chosen)
    if expected is None:
        raise ConfigError("the search was stopped before its first result; give it more --time")
    settings = len({trial.candidate for _, trial in tuner.outcomes})
    reason = f"the best of {settings} settings tried on {proxy.source}"
    reason += _of_batches(tuner, chosen)
    recommended = _option(tuner, "recommended", chosen, expected, reason)
    trivial = tuner.trials.trivial()
    warnings = tuple(_warnings(tuner, recommended, trivial))  # before anything less urgent
    return Advice(
        (recommended, *_alternatives(tuner, recommended)),
        trivial,
        warnings,
        proxy.notes,
        proxy.source,
        proxy.looked_at,
        len(tuner.outcomes),
        sum(outcome.work for outcome in tuner.outcomes.values()),
        tuner.elapsed,
        tuner.interrupted,
    )


def _of_batches(tuner: Tuner, chosen: Candidate) -> str:
    """Say what batches were chosen, and why those are better."""
    real, size, records = tuner.trials.real, chosen.batch_size, getattr(tuner.space, "records", 0)
    if size is None:
        return ""
    linear = not isinstance(affine_stack(real.module, real.layout, real.federation), str)
    model = "linear model" if linear and len(real.layout.slots) <= 2 else "network"
    if size >= records:
        return (
            f"; all records in every step, for this {model} gains more from the least noise in a "
            "step than from more steps"
        )
    return (
        f"; {size} of {records} records in a step, for this {model} gains more from many steps, "
        "each of which a record seldom enters, than from less noise in each"
    )


def _option(
    tuner: Tuner,
    name: str,
    candidate: Candidate,
    expected: Expected,
    reason: str,
    epsilon: float | None = None,
) -> Option:
    budget = tuner.epsilon if epsilon is None else epsilon
    return Option(name, candidate, budget, _uploads(tuner, candidate), expected, reason)


def _alternatives(tuner: Tuner, recommended: Option) -> Iterable[Option]:
    """Yield the recipe's own settings, half of the budget, and fewer uploads."""
    best, wanted, epsilon = recommended.candidate, recommended.expected, recommended.epsilon / 2
    base = tuner.space.candidate(tuner.space.start)
    if base != best and (expected := tuner.expected(base)) is not None:
        yield _option(tuner, "as it stands", base, expected, "the recipe's own settings")
    shorter = replace(best, rounds=max(1, best.rounds // 2))
    calmer = replace(best, learning_rate=best.learning_rate / 2)
    if reached := _reached(tuner, (best, shorter, calmer), epsilon):
        private = min(reached, key=lambda c: reached[c].error)
        reason = f"half of the budget, at the price of {_difference(reached[private], wanted)}"
        yield _option(tuner, "more private", private, reached[private], reason, epsilon)
    fewer, most = [], recommended.uploads
    for part in (2, 4):
        rounds = max(1, best.rounds // part)
        fewer += [replace(best, rounds=rounds, local_steps=best.local_steps * part)]
        fewer += [replace(best, rounds=rounds)]
        if best.cohort is not None and best.cohort >= part:
            fewer.append(replace(best, cohort=best.cohort // part))
    cheaper = [c for c in fewer if _uploads(tuner, c) < most]
    if reached := _reached(tuner, cheaper, recommended.epsilon):
        limit = wanted.error * (1 + _LOSS_TOLERANCE)
        if wanted.accuracy is not None:
            limit = wanted.error + _ACCURACY_TOLERANCE
        alike = [c for c in reached if reached[c].error <= limit]
        cheap = min(
            alike or reached, key=lambda c: _uploads(tuner, c) if alike else reached[c].error
        )
        saved = f"{most / _uploads(tuner, cheap):.3g} times fewer uploads"
        reason = f"{saved}, at the price of {_difference(reached[cheap], wanted)}"
        yield _option(tuner, "cheaper", cheap, reached[cheap], reason)


def _reached(
    tuner: Tuner, candidates: Iterable[Candidate], epsilon: float
) -> dict[Candidate, Expected]:
    found = {c: tuner.expected(c, epsilon=epsilon) for c in dict.fromkeys(candidates)}
    return {c: expected for c, expected in found.items() if expected is not None}


def _warnings(tuner: Tuner, recommended: Option, trivial: float) -> Iterable[str]:
    expected = recommended.expected
    if not expected.fresh or expected.runs == 1:
        yield "there was no time to confirm the choice; what is expected of it is a rough guess"
    doubt = 2 * expected.error_spread / math.sqrt(expected.runs) if expected.runs > 1 else 0.0
    if expected.error + doubt < (1 - _LEARNT) * trivial:
        return
    told = "cannot be told from" if expected.error < trivial else "is no better than"
    what = "loss" if expected.accuracy is None else "share of wrong answers"
    yield (
        f"the model does not learn under this noise: its {what} {expected.error:.3g} {told} the "
        f"{trivial:.3g} of an answer that looks at no input; "
        f"{_clients_needed(tuner, recommended.candidate, trivial)}"
    )


def _clients_needed(tuner: Tuner, candidate: Candidate, trivial: float) -> str:
    """Try more clients at the same rate, which divide the noise on the average."""
    trust = getattr(tuner.trials.real.privacy_model, "trust", None)
    for times in _QUIETER:
        quiet = 1 / math.sqrt(times) if trust is Trust.LOCAL else 1 / times
        reached = tuner.expected(candidate, noise=quiet)
        if reached is None:
            return "more clients, a larger epsilon or a smaller model are needed"
        if reached.error < (1 - 10 * _LEARNT) * trivial:
            needed = about(times * tuner.trials.everyone)
            return f"with {needed} clients at the same rate it would reach {reached.error:.3g}"
    return f"not even {_QUIETER[-1]} times as many clients help: change the model or its rates"


def _uploads(tuner: Tuner, candidate: Candidate) -> int:
    return candidate.uploads(tuner.trials.everyone)


def _difference(new: Expected, old: Expected) -> str:
    if new.error <= old.error:
        return "nothing that could be measured"
    if new.accuracy is not None and old.accuracy is not None:
        return f"{100 * (old.accuracy - new.accuracy):.1f} points of accuracy"
    return f"{100 * (new.loss / old.loss - 1):.0f} % more loss"


@dataclass(frozen=True)
class FreeGain:
    """A setting, and what it does."""

    setting: str
    value: str
    why: str

    def __str__(self) -> str:
        return f'{self.setting} = "{self.value}": {self.why}'


def free_gains(recipe: Recipe, plan: Plan) -> tuple[FreeGain, ...]:
    """Return settings that a recipe leaves out and that cost no epsilon.

    Whether they raise accuracy, a pilot on public data can tell.
    """
    shape, name = plan.federation.input_shape, own_name(recipe.model.name, plan.federation.task)
    images = len(shape) in (2, 3) and min(shape[:2]) >= 8 and plan.federation.featurizer is None
    found: list[FreeGain] = []
    if images and name == "logistic":
        found += _PHOTOGRAPHS if len(shape) == 3 and shape[2] == 3 else _DRAWINGS
    if recipe.server.average is None and plan.method.voting is None:
        found.append(_AVERAGE)
    gain = _cancelling(plan) if "privacy.correlated" in METHODS[plan.method.name].keys else 1.0
    if gain > _LEAST_GAIN:
        turns = plan.sampling.separation
        why = (
            f"turns are {turns} rounds apart, so noise can partly cancel: {gain:.1f} times less of "
            "it in the weights"
        )
        found.append(FreeGain("privacy.correlated", "optimised", why))
    return tuple(found)


_FEATURES = "fixed features of each image, made by formulas, for a linear model"
_MIRROR = "; with model.mirror = true if a mirror image means the same"
_SCALED = (
    "scales them by drawings, so that the model gets as far under less noise; strokes are for "
    "handwriting, leaves for photographs"
)
_PHOTOGRAPHS = (FreeGain("model.features", "patches", _FEATURES + _MIRROR),)
_DRAWINGS = (
    FreeGain("model.features", "scattering", _FEATURES),
    FreeGain("model.whiten", "strokes", _SCALED),
)
_LESS = "an average of the rounds' weights has less noise than the last of them"
_AVERAGE = FreeGain("server.average", "polynomial", _LESS)


def _cancelling(plan: Plan) -> float:
    """Return how many times less noise there would be in the weights at the same epsilon."""
    own = plan.noise
    if own is None or own.drawn is not Drawn.BY_SERVER or plan.method.clip_rule is not None:
        return 1.0
    independent = own.bounded is Bounded.UPDATE and isinstance(own.mechanism(), Gaussian)
    if plan.sampling.separation == 1 or not independent:
        return 1.0
    other = CorrelatedNoise(adjacency=own.adjacency, colluders=own.colluders)
    cancelling = other.fit(replace(own.facts, noise_multiplier=1.0))
    length = getattr(cancelling.mechanism(), "norm", 1.0)
    return float(1 / (length * cancelling.noise_ratio))
