"""From a recipe to a pilot, and the pilot's answer: one recipe to run, one more private, one
cheaper, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust, Unit
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.tune.from_recipe import local_steps_of, refuse_without_noise, sizes_looked_at
from fedveil.tune.pilot import Expected, Search, TrialJournal, mean_error
from fedveil.tune.proxy import proxy_of
from fedveil.tune.space import space_of
from fedveil.tune.spending import about, remaining
from fedveil.tune.trials import Candidate, OutOfTime, ProxyTrials, Trial, recipe_with_settings

LOSS_TOLERANCE, ACCURACY_TOLERANCE = 0.05, 0.01  # within which a cheaper choice is as good
_SEEDS, _MORE_SEEDS = range(2), range(5)  # of a variant's trials; of those with more clients
_PRIVATE, _CHEAPER = (0.88, 0.91), 0.96  # parts of the limits after which each choice is made
_LEARNT = 0.02  # of the trivial answer's error must be gone before anything counts as learnt
_FEWER = 6  # of the search's best that are looked at for a cheaper choice
_QUIETER = (2, 4, 8, 16, 32, 64)  # times as many clients to try


def prepare(
    recipe: Recipe,
    *,
    proxy: str | None = None,
    records: int | None = None,
    max_steps: int | None = None,
    spent_epsilon: float = 0.0,
    spent_delta: float = 0.0,
    seconds: float = 60.0,
    journal: Path | None = None,
    seed: int = 0,
) -> Search:
    """A pilot for a recipe, ready for `findings`. Refuses a budget that cannot work.

    proxy: public source, public file or `synthetic`; None is the recipe's own source, if public.
    records: of a client, if publicly known. max_steps: largest total of local steps.
    spent_epsilon, spent_delta: used up on the same clients before. journal: keeps the trials.
    """
    refuse_without_noise(recipe)
    if recipe.privacy.epsilon is None:
        raise ConfigError("privacy.epsilon: set the budget to plan for")
    federation = federation_of(recipe.data)
    real = plan_of(recipe, federation)
    if real.guarantee is not None and (spent_epsilon or spent_delta):
        left = remaining(recipe.privacy.epsilon, real.guarantee.delta, spent_epsilon, spent_delta)
        recipe = replace(recipe, privacy=replace(recipe.privacy, epsilon=left[0], delta=left[1]))
        real = plan_of(recipe, federation)
    public = proxy_of(recipe, proxy, federation, records)
    sizes = sizes_looked_at(recipe, real, records)
    trials = ProxyTrials(recipe, real, replace(public, looked_at=(*public.looked_at, *sizes)))
    space = space_of(trials, local_steps_of(recipe, real, records), max_steps)
    check_hope(trials, space.base, space.most_steps)
    asked = {"recipe": recipes.to_table(recipe), "proxy": public.source}
    kept = TrialJournal(journal, {**asked, "most_steps": space.most_steps}, seed)
    return Search(trials, space, recipe.privacy.epsilon or 0.0, seconds, journal=kept)


def check_hope(trials: ProxyTrials, base: Candidate, most_steps: int) -> None:
    """Refuse a budget under which every single weight drowns, however the updates agree.

    Clients that all send the same update of full norm C move the model by at most rounds * C; the
    noise on each weight has std sqrt(rounds) * z * C / cohort (LOCAL: over sqrt(cohort)). If that
    is more, for a single round and for as many as there may be, nothing can be learnt.
    """
    privacy_model = trials.real.privacy_model
    if privacy_model is None or privacy_model.unit is not Unit.CLIENT or trials.real.method.voting:
        return
    cohort = trials.real.sampling.expected_cohort
    alone = privacy_model.trust is Trust.LOCAL
    best = 0.0
    for rounds in sorted({1, base.rounds, most_steps}):
        recipe = recipe_with_settings(trials.recipe, replace(base, rounds=rounds))
        seen = math.sqrt(cohort) if alone else cohort
        best = max(best, seen * math.sqrt(rounds) / trials.noise(recipe))
    if best < 1:
        needed = math.ceil(trials.everyone * best ** (-2 if alone else -1))
        raise ConfigError(
            f"privacy.epsilon {trials.recipe.privacy.epsilon:g}: this budget cannot work; the "
            f"noise on every weight is {1 / best:.3g} times what all clients together can move it, "
            f"however many rounds; it takes {about(needed)} clients (now {trials.everyone}) "
            "at the same rate, or a larger epsilon"
        )


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
        """Plain values, ready for JSON."""
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
class Findings:
    """What a pilot found. `options` begins with the recommended one."""

    options: tuple[Option, ...]
    trivial: float  # error of the best answer that looks at no input
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    proxy: str
    trials: int
    work: int
    seconds: float
    interrupted: bool

    @property
    def recommended(self) -> Option:
        return self.options[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**vars(self), "options": [option.to_dict() for option in self.options]}


def recipe_of_option(recipe: Recipe, option: Option) -> Recipe:
    """The recipe with an option's settings and budget, ready to run."""
    chosen = recipe_with_settings(recipe, option.candidate)
    return replace(chosen, privacy=replace(chosen.privacy, epsilon=option.epsilon))


def findings(search: Search) -> Findings:
    """Search, choose, confirm and find alternatives, as far as the search's limits allow."""
    chosen = search.run()
    expected = search.expected(chosen)
    if expected is None:
        raise ConfigError("the pilot was stopped before its first result; give it more --time")
    proxy, settings = search.trials.proxy, len(search.journal.study.trials)
    reason = f"the best of {settings} settings tried on {proxy.source}"
    recommended = Option(
        "recommended", chosen, search.epsilon, _uploads(search, chosen), expected, reason
    )
    trivial = search.trials.trivial()
    warnings = tuple(_warnings(search, recommended, trivial))  # before anything less urgent
    found = (recommended, _more_private(search, recommended), _cheaper(search, recommended))
    return Findings(
        tuple(option for option in found if option is not None),
        trivial,
        warnings,
        proxy.notes,
        proxy.source,
        len(search.journal),
        search.journal.work,
        search.elapsed,
        search.interrupted,
    )


def _more_private(search: Search, recommended: Option) -> Option | None:
    """Half of the budget: the same settings, or calmer ones that stand more noise."""
    epsilon, best = recommended.epsilon / 2, recommended.candidate
    calmer_clip = _for_steps(search, best, best.local_steps / 2)
    calmer = [
        best,
        replace(best, learning_rate=best.learning_rate / 2, clip_norm=calmer_clip),
        replace(best, rounds=max(1, best.rounds // 2)),
        *search.ranked()[1:3],
    ]
    errors = _errors(search, calmer, epsilon, _PRIVATE[0])
    candidate = min(errors, key=lambda c: errors[c]) if errors else best
    expected = search.expected(candidate, epsilon, _PRIVATE[1])
    if expected is None:
        return None
    reason = f"half of the budget, at the price of {_difference(expected, recommended.expected)}"
    uploads = _uploads(search, candidate)
    return Option("more private", candidate, epsilon, uploads, expected, reason)


def _cheaper(search: Search, recommended: Option) -> Option | None:
    """The fewest uploads at about the same result; else half of the uploads, and what it costs.

    Where not even one upload a client can be saved, local steps are.
    """
    best, most = recommended.candidate, recommended.uploads
    variants = []
    for part in (2, 4):
        rounds = max(1, best.rounds // part)
        if best.local_steps * part <= search.space.most_steps:
            variants.append(replace(best, rounds=rounds, local_steps=best.local_steps * part))
        if best.cohort is not None and best.cohort // part >= 1:
            variants.append(replace(best, cohort=best.cohort // part))
        variants.append(replace(best, rounds=rounds))
    fewer = [c for c in (*variants, *search.ranked()[:_FEWER]) if _uploads(search, c) < most]
    if not fewer:
        steps = {max(1, best.local_steps // part) for part in (2, 4)} - {best.local_steps}
        fewer = [replace(best, local_steps=e, clip_norm=_for_steps(search, best, e)) for e in steps]
    errors = _errors(search, fewer, search.epsilon, _CHEAPER)
    if not errors:
        return None
    alike = [c for c in errors if _as_good(search, errors[c], recommended.expected.error)]
    if alike:
        candidate = min(alike, key=lambda c: (_uploads(search, c), errors[c]))
    else:
        half = [c for c in errors if 2 * _uploads(search, c) <= most] or list(errors)
        candidate = min(half, key=lambda c: errors[c])
    expected = search.expected(candidate, part=1.0)
    if expected is None:
        return None
    uploads = _uploads(search, candidate)
    saved = f"{most / uploads:.3g} times fewer uploads"
    if uploads == most:
        saved = f"{best.local_steps / candidate.local_steps:.3g} times fewer local steps"
    reason = f"{saved}, at the price of {_difference(expected, recommended.expected)}"
    return Option("cheaper", candidate, search.epsilon, uploads, expected, reason)


def _warnings(search: Search, recommended: Option, trivial: float) -> Iterable[str]:
    expected = recommended.expected
    if expected.share < 1 or not expected.fresh or expected.runs == 1:
        yield "there was no time to confirm the choice; what is expected of it is a rough guess"
    doubt = 2 * expected.error_spread / math.sqrt(expected.runs) if expected.runs > 1 else 0.0
    if expected.error + doubt < (1 - _LEARNT) * trivial:
        return
    told = "cannot be told from" if expected.error < trivial else "is no better than"
    what = "loss" if expected.accuracy is None else "share of wrong answers"
    yield (
        f"the model does not learn under this noise: its {what} {expected.error:.3g} {told} the "
        f"{trivial:.3g} of an answer that looks at no input; "
        f"{_clients_needed(search, recommended, trivial)}"
    )


def _clients_needed(search: Search, recommended: Option, trivial: float) -> str:
    """More clients at the same rate divide the noise on the average: try it."""
    trust = getattr(search.trials.real.privacy_model, "trust", None)
    with suppress(OutOfTime, KeyboardInterrupt):
        for times in _QUIETER:
            quiet = 1 / math.sqrt(times) if trust is Trust.LOCAL else 1 / times
            settings = recommended.candidate, recommended.epsilon, 1.0
            trials = [Trial(*settings, seed, quiet) for seed in _MORE_SEEDS]
            error = mean_error([search.outcome(trial).error for trial in trials])
            if error < (1 - 10 * _LEARNT) * trivial:
                needed = about(times * search.trials.everyone)
                return f"with {needed} clients at the same rate it would reach {error:.3g}"
        return f"not even {_QUIETER[-1]} times as many clients help: change the model or its rates"
    return "more clients, a larger epsilon or a smaller model are needed"


def _errors(
    search: Search, candidates: Iterable[Candidate], epsilon: float, part: float
) -> dict[Candidate, float]:
    """Mean errors of a few runs of each candidate, as far as this part of the limits allows."""
    found: dict[Candidate, float] = {}
    with suppress(OutOfTime, KeyboardInterrupt):
        for candidate in dict.fromkeys(candidates):
            runs = [Trial(candidate, epsilon, 1.0, seed) for seed in _SEEDS]
            found[candidate] = mean_error([search.outcome(trial, part).error for trial in runs])
    return found


def _as_good(search: Search, error: float, best: float) -> bool:
    if search.trials.classifies:
        return error <= best + ACCURACY_TOLERANCE
    return error <= best * (1 + LOSS_TOLERANCE)


def _for_steps(search: Search, candidate: Candidate, steps: float) -> float:
    """The clip goes with steps and rates where it bounds whole updates."""
    part = 1.0 if search.space.clips_gradients else steps / candidate.local_steps
    return candidate.clip_norm * part


def _uploads(search: Search, candidate: Candidate) -> int:
    return candidate.uploads(search.trials.everyone)


def _difference(new: Expected, old: Expected) -> str:
    if new.error <= old.error:
        return "nothing that could be measured"
    if new.accuracy is not None and old.accuracy is not None:
        return f"{100 * (old.accuracy - new.accuracy):.1f} points of accuracy"
    return f"{100 * (new.loss / old.loss - 1):.0f} % more loss"
