"""Trials: short simulated runs on proxy data, with the noise that the real run would have.

A trial need not have as many clients as the real run. What training sees of the noise is its part
in a round's average, so with fewer clients less noise is added: as much as leaves that part
unchanged. The noise itself is calibrated for the real population.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Arithmetic, Unit
from fedveil.data.federation import Federation, Task
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import Drawn
from fedveil.planning.assemble import method_of, model_of, with_batch
from fedveil.planning.plan import Budget, Plan, quick_noise
from fedveil.planning.recipe import Recipe
from fedveil.privacy.sampling import Everyone
from fedveil.privacy.secure_sums.aggregation import Aggregation
from fedveil.run.evaluation import Metrics
from fedveil.run.run import Run, Speed
from fedveil.training.client.local_training import BatchKind
from fedveil.training.models.flat import flatten
from fedveil.tune.proxy import Proxy, some_clients


@dataclass(frozen=True)
class Candidate:
    """Settings that a trial is made with, by the recipe's names. None: not this method's.

    Those that begin with `server_` are of the server's section.
    """

    local_steps: int
    rounds: int
    learning_rate: float
    clip_norm: float
    cohort: int | None = None
    server_learning_rate: float | None = None
    smoothing: float | None = None
    penalty: float | None = None
    sparsity: float | None = None
    server_momentum: float | None = None
    server_schedule: str | None = None
    clip_quantile: float | None = None
    batch_size: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def total_steps(self) -> int:
        return self.local_steps * self.rounds

    def uploads(self, everyone: int) -> int:
        """Count the updates that are sent; `everyone` is the cohort where all clients take part."""
        return self.rounds * (everyone if self.cohort is None else self.cohort)


def recipe_with_settings(recipe: Recipe, candidate: Candidate) -> Recipe:
    """Return the recipe with a candidate's settings."""
    settings, clip = candidate.to_dict(), candidate.clip_norm
    training = {key: settings[key] for key in _TRAINING if key in settings}
    if candidate.batch_size is not None:  # the rate of secret batches follows from it
        kept = {"batch_size": candidate.batch_size, "batch_rate": None}
        training |= {**kept, "batches": BatchKind.POISSON.value}
    if candidate.cohort is not None:
        training |= {"cohort": candidate.cohort, "rate": None}
    server = {
        key.removeprefix("server_"): value
        for key, value in settings.items()
        if key == "smoothing" or key.startswith("server_")
    }
    privacy: dict[str, Any] = {"clip_norm": clip}
    if candidate.clip_quantile is not None:
        privacy["clip_quantile"] = candidate.clip_quantile
    if candidate.clip_quantile is not None or recipe.privacy.clip_highest is not None:
        privacy["clip_highest"] = clip  # no higher: that would add noise
    return replace(
        recipe,
        training=replace(recipe.training, local_epochs=None, **training),
        server=replace(recipe.server, **server),
        privacy=replace(recipe.privacy, **privacy),
    )


_TRAINING = ("learning_rate", "rounds", "local_steps", "penalty", "sparsity")
_LEAST_COHORT = 8  # of a trial: fewer clients say nothing about an average
_ENOUGH = 1000  # clients of a trial's round: their average says as much as that of more
_ROUND, _STEP = 5e6, 2e3  # multiplications that take as long as an empty round, or step of a client
_BEGIN = 10  # rounds that take as long as it takes to begin and to score a trial
_FAR = 1e6  # a clip that never clips
_LITTLE = 0.05  # of a loss between 0 and 1 that counts beside the share of wrong answers
_SMALL, _TOGETHER = 1000, 500  # models of so few weights train so many clients at once
_MEASURED = 200  # clients whose gradients say how far updates reach


class OutOfTime(Exception):
    """Raised when a limit is reached in the middle of a search or of a trial."""


@dataclass(frozen=True)
class Trial:
    """One simulated run to make.

    Attributes:
        candidate: The settings.
        epsilon: The budget that the noise is calibrated to.
        share: Share of the real cohort that takes part.
        seed: Seed of cohorts, batches and noise. Trials of one seed share their noise, so that
            differences between candidates are not differences in luck.
        noise: Factor on the noise; 1/k stands for k times as many clients at the same rate.
    """

    candidate: Candidate
    epsilon: float
    share: float
    seed: int
    noise: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        loss: Mean loss on the test examples; infinite if the run diverged.
        accuracy: Share of right answers, or None if there are no classes.
        work: Local steps of all clients together.
    """

    loss: float
    accuracy: float | None
    work: int

    @property
    def error(self) -> float:
        """Return the share of wrong answers, or the loss if there are no classes."""
        return self.loss if self.accuracy is None else 1 - self.accuracy

    @property
    def score(self) -> float:
        """The value that a search minimises: the error, and a little of the loss.

        Accuracy is what users ask for; the loss tells apart models that are right equally often,
        which few test examples cannot.
        """
        if self.accuracy is None or not math.isfinite(self.loss):
            return self.loss
        return self.error + _LITTLE * self.loss / (1 + self.loss)


class ProxyTrials:
    """Runs trials of one recipe on one proxy.

    `real` is the recipe's plan for the true population: nothing but counts is taken from its data.
    """

    def __init__(self, recipe: Recipe, real: Plan, proxy: Proxy) -> None:
        if real.method.placement is None or real.privacy_model is None:
            raise ConfigError(
                f"training.method: {real.method.name!r} adds no noise, so there is nothing to plan"
            )
        here, there = proxy.federation.task, real.federation.task
        if here is not there:
            raise ConfigError(
                f"--proxy: {proxy.source} is for {here}, but the recipe is for {there}; name "
                "other data"
            )
        self.recipe, self.real, self.proxy = recipe, real, proxy
        self._noise = cache(self._calibrated)
        self._some = cache(lambda clients, seed: some_clients(proxy.federation, clients, seed))

    @property
    def classifies(self) -> bool:
        return self.proxy.federation.task is not Task.REGRESSION

    @property
    def everyone(self) -> int:
        """Return the cohort of a recipe in which all clients take part."""
        return self.real.sampling.clients or self.real.federation.clients

    def __call__(self, trial: Trial, deadline: float = math.inf) -> Outcome:
        """Run one trial.

        Args:
            trial: What to run.
            deadline: Time of `time.monotonic()` at which to give up.

        Returns:
            How it ended. Settings without a proof count as diverged.

        Raises:
            OutOfTime: The deadline passed.
        """
        metrics, work = None, 0.0
        with suppress(PrivacyRefusal):
            planned = self.plan(trial)
            metrics, rounds = _train(planned, deadline)
            work = rounds * planned.sampling.expected_cohort * trial.candidate.local_steps
        if metrics is None or not math.isfinite(metrics.loss):
            return Outcome(math.inf, 0.0 if self.classifies else None, round(work))
        return Outcome(metrics.loss, metrics.accuracy, round(work))

    def plan(self, trial: Trial) -> Plan:
        """Return a trial as a plan. It promises nothing: its data are public."""
        recipe = recipe_with_settings(self.recipe, trial.candidate)
        recipe = replace(recipe, privacy=replace(recipe.privacy, epsilon=trial.epsilon))
        recipe = with_batch(recipe, self.real.federation)
        noise = trial.noise * self.noise(recipe, 2 if trial.share == 1 else 4)
        wanted = self._cohort(recipe)
        part = (cohort := self._trial_cohort(wanted, trial.share)) / wanted
        undivided = self.real.private_noise.drawn is Drawn.BY_EACH
        noise *= math.sqrt(part) if undivided else part
        federation, training = self.proxy.federation, recipe.training
        if isinstance(self.real.sampling, Everyone):
            federation = self._some(cohort, trial.seed)
        else:
            training = replace(training, cohort=cohort, rate=None)
        if training.cohort_cap is not None:
            training = replace(training, cohort_cap=math.ceil(part * training.cohort_cap))
        return trial_plan(replace(recipe, training=training), federation, noise, trial.seed)

    def share(self, candidate: Candidate, share: float) -> float:
        """Return the share of the cohort to try a candidate with: all where that costs no more."""
        wanted = self._cohort(recipe_with_settings(self.recipe, candidate))
        whole = self._trial_cohort(wanted, 1.0)
        return 1.0 if self._trial_cohort(wanted, share) == whole else share

    def _trial_cohort(self, wanted: int, share: float) -> int:
        """Return how many clients take part in a round of a trial.

        A round costs something whoever comes, so small models and clients are not left out.
        """
        public = self.proxy.federation
        least = max(_LEAST_COHORT, _ROUND / self._step_cost)
        return min(wanted, public.clients, _ENOUGH, round(max(least, wanted * share)))

    @property
    def _step_cost(self) -> float:
        """Count multiplications of one local step of one client, by its usual number of records."""
        public, batch = self.proxy.federation, self.real.method.local.batch_size
        records = len(public.train) / public.clients
        seen = records if batch is None else min(records, batch)
        singly = 4 if self.real.method.local.per_example else 1  # gradients of single records
        return _STEP + 6 * singly * self.real.layout.size * seen

    def cost(self, trial: Trial) -> float:
        """Estimate a trial's cost in units of a small round, which takes about a millisecond.

        It depends on nothing but public numbers, so a search limited by it is repeatable.
        """
        candidate, usual = trial.candidate, self.real.method.local.batch_size or 1
        batch = (candidate.batch_size or usual) / usual
        wanted = self._cohort(recipe_with_settings(self.recipe, candidate))
        steps = self._trial_cohort(wanted, trial.share) * candidate.local_steps
        return _BEGIN + candidate.rounds * (1 + steps * batch * self._step_cost / _ROUND)

    def noise(self, recipe: Recipe, step: int = 2) -> float:
        """The noise multiplier of the real run.

        Where sampling amplifies, an accountant takes its time: there it is read off a line between
        powers of `step` of the rounds. Powers of 2 are within 1 %, powers of 4 within 3 %.
        """
        privacy_model, rounds = self.real.privacy_model, recipe.training.rounds
        if privacy_model is None or privacy_model.unit is not Unit.CLIENT:
            return self._noise(recipe)  # every setting may count for a record
        # What the noise does not depend on is set alike, so that it is calibrated once.
        alike: dict[str, Any] = {"local_steps": 1, "local_epochs": None, "learning_rate": 1.0}
        alike |= {"penalty": None, "sparsity": None}

        def noise(rounds: int) -> float:
            training = replace(recipe.training, rounds=rounds, **alike)
            privacy = replace(recipe.privacy, clip_norm=1.0, clip_highest=None)
            server = self.recipe.server
            return self._noise(replace(recipe, training=training, server=server, privacy=privacy))

        if not self.real.sampling.amplifies:
            return noise(rounds)
        power = 1
        while power * step <= rounds:
            power *= step
        low = noise(power)
        if power == rounds:
            return low
        return float(low * (noise(power * step) / low) ** math.log(rounds / power, step))

    def reach(self) -> float:
        """Return the median norm of clients' first gradients on the proxy, in the clip's norm."""
        recipe = self.recipe
        everybody: dict[str, Any] = {"cohort": None, "rate": None, "cohort_cap": None}
        plain = replace(recipe.training, sampling="everyone", schedule="constant", **everybody)
        plain = replace(plain, momentum=0.0)
        recipe = recipe_with_settings(replace(recipe, training=plain), Candidate(1, 1, 1.0, _FAR))
        first = trial_plan(recipe, self._some(_MEASURED, 0), noise=1.0, seed=0)
        run = Run(first, speed=Speed(processes=1), every=1)
        try:
            seen = next(iter(run)).unprotected_stats
        finally:
            run.close()
        if seen is None or not 0 < seen.norm < math.inf:
            raise ConfigError(
                f"--proxy: {self.proxy.source} gives no gradients to start from; name other data"
            )
        return seen.norm

    def trivial(self) -> float:
        """Return the error of the best answer that looks at no input."""
        examples = self.proxy.federation.test
        targets = np.asarray(examples.targets)
        if self.proxy.federation.task is Task.MULTI_LABEL:
            shares = targets.mean(axis=0)
            return float(np.minimum(shares, 1 - shares).mean())
        if self.classifies:
            return 1 - float(np.bincount(targets.ravel()).max() / targets.size)
        return float(targets.astype(np.float64).var() / 2)

    def constant_loss(self) -> float:
        """Return the loss of the best answer that looks at no input."""
        targets = np.asarray(self.proxy.federation.test.targets)
        if not self.classifies:
            return self.trivial()
        if self.proxy.federation.task is Task.MULTI_LABEL:
            shares = np.stack([1 - targets.mean(axis=0), targets.mean(axis=0)])
        else:
            shares = np.bincount(targets.ravel())[:, None] / targets.size
        return float(-(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=0).mean())

    def _cohort(self, recipe: Recipe) -> int:
        rule, clients = method_of(recipe).cohort, self.real.federation.clients
        return max(1, round(rule.resolve(clients, recipe.training.rounds).expected_cohort))

    def _calibrated(self, recipe: Recipe) -> float:
        recipe, privacy = with_batch(recipe, self.real.federation), recipe.privacy
        return quick_noise(method_of(recipe), self.real, Budget(privacy.epsilon, privacy.delta))


def _train(planned: Plan, deadline: float) -> tuple[Metrics | None, int]:
    """Return the final metrics and the rounds they took; None for a run that diverges."""
    chunk = _TOGETHER if planned.layout.size <= _SMALL else None
    run = Run(planned, speed=Speed(chunk=chunk, processes=1), every=planned.method.rounds)
    try:
        for report in run:
            # A large loss is no reason to stop: under much noise all settings have one, and which
            # of them is the least is the question.
            diverged = report.unprotected_stats is not None and report.unprotected_stats.rejected
            if diverged or report.metrics is not None:
                return None if diverged else report.metrics, report.round_number
            if time.monotonic() > deadline:
                raise OutOfTime
    finally:
        run.close()
    return None, run.state.rounds


def trial_plan(recipe: Recipe, federation: Federation, noise: float, seed: int) -> Plan:
    """Return the recipe's plan on public data with this noise, which promises nothing."""
    method, chosen = method_of(recipe), recipe.model
    if method.placement is not None:
        method = replace(method, placement=replace(method.placement, one_draw=True))
    # These clients are counted, and nobody's sum needs to be hidden.
    counted = replace(method.cohort, clients=None)
    method = replace(method, cohort=counted, aggregation=Aggregation())
    if chosen.start is not None:
        raise ConfigError("model.start: trials are about models that start anew; leave it out")
    model = model_of(chosen, federation)
    return Plan(method, federation, model, flatten(model), seed, noise, Arithmetic.IDEALISED)


def clips_gradients(method: Method) -> bool:
    """Return whether the recipe's clip bounds single gradients instead of whole updates."""
    rule = method.clip_rule
    return (rule is not None and rule.bounds_gradients) or method.local.gradient_clip is not None
