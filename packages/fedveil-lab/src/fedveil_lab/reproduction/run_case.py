"""Runs one case with one seed, and writes down what was seen.

Two papers use a delta at or above one over the number of protected units. A simulation may have it,
to compare at equal delta: its epsilon is shown beside the paper's claim and promised to nobody.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil.core.units import Arithmetic
from fedveil.data.federation import Federation
from fedveil.methods.parts.method import Method
from fedveil.methods.registry import method_of
from fedveil.planning.plan import Budget, Plan, plan
from fedveil.planning.recipe import Recipe, parse, with_defaults
from fedveil.report.store import Outcome
from fedveil.run.directory import load_checkpoint, save_checkpoint
from fedveil.run.evaluation import Evaluator, Metrics
from fedveil.run.round_report import RoundReport
from fedveil.run.run import Run, Speed
from fedveil.training.models.losses import example_losses
from fedveil.training.models.tensors import as_tensor
from fedveil.training.models.zoo import build
from fedveil_lab.reproduction.case import (
    Case,
    Certified,
    Claimed,
    Data,
    Noise,
    Without,
    federation_of,
    first_clients,
)
from fedveil_lab.reproduction.together import drawn_together

Tick = Callable[[float], None]  # called with the share of rounds that are done
Seen = dict[str, Any]  # figures by name, between two rounds

_PROBE_CLIENTS, _PROBE_NOISE = 8, 0.01
_PROBE_AT_MOST = {
    "training.rounds": 2,
    "training.cohort": 4,
    "training.local_steps": 5,
    "training.local_epochs": 1,
    "voting.epochs": 1,
}
_PROBE_TOLERANCE = 1e-4  # far above what processors differ by, far below a change of the training


_NOTHING = 1e-12  # times the clip: noise that no figure shows


@dataclass(frozen=True)
class Cost:
    """The cost of a run: what the paper says, and what is proved for the same noise."""

    claimed: float | None
    certified: float | None
    delta: float | None
    proof: str  # one line
    noise_multiplier: float | None


def recipe_of(case: Case, seed: int) -> Recipe:
    """Return the recipe whose method and model a case trains."""
    return with_defaults(parse({}, values={**dict(case.values), "seed": seed}))


def run_case(
    case: Case,
    seed: int,
    tick: Tick = lambda share: None,
    kept: Path | None = None,
) -> Outcome:
    """Train a case to its end: final metrics, the curve on the way, noise and both epsilons.

    Args:
        case: What to train.
        seed: Draws cohorts, batches, noise and initial weights; who owns what stays.
        tick: Called after each round with the share that is done.
        kept: A file from which an interrupted run goes on; it is gone at the end.
    """
    began = time.perf_counter()
    federation, recipe = federation_of(case.data), recipe_of(case, seed)
    chosen = recipe.model
    model = build(
        chosen.name, federation, hidden=chosen.hidden, input_norm=chosen.input_norm, seed=seed
    )
    method = drawn_together(method_of(recipe))
    plan, cost = planned(method, federation, model, case.noise, seed)
    run = Run(
        plan,
        speed=Speed(recipe.engine.name, chunk=recipe.engine.chunk, processes=1),
        every=method.rounds,
    )
    watch = _Watch(run, case)
    halfway = _Halfway(kept, case.key(seed))
    try:
        curve = halfway.resume(run) or ([watch(None)] if case.every else [])
        for report in run:
            tick(report.round_number / method.rounds)
            due = case.every and report.round_number % case.every == 0
            if due and report.round_number < method.rounds:
                curve.append(watch(report))
                halfway.keep(run, curve)
        final = watch(report)
    finally:
        run.close()
    halfway.forget()
    return {
        "seed": seed,
        "final": final,
        "curve": [*curve, final],
        "cost": asdict(cost),
        "probe": probe_of(case),
        "engine": run.choice.name,
        "seconds": round(time.perf_counter() - began, 2),
    }


def probe_of(case: Case) -> float | None:
    """Return how far two short rounds of eight clients, with little noise, move the weights.

    The number follows all code that trains: models, local steps, clips, noise and its streams,
    server, defaults of the recipe. Cases that differ in their budget alone share it.

    Returns:
        The Euclidean distance; None where it is not finite.
    """
    noise = case.noise
    if isinstance(noise, Claimed | Certified):
        noise = Claimed(1.0, noise.delta, _PROBE_NOISE)
    values = {
        key: min(value, _PROBE_AT_MOST.get(key, value)) if key in _PROBE_AT_MOST else value
        for key, value in case.values
        if not key.startswith("engine.")  # the fastest on this machine
    }
    if "training.rate" in values:
        values["training.rate"] = 0.5
    return _probe(case.data, json.dumps(values, sort_keys=True), noise)


@cache
def _probe(data: Data, values: str, noise: Noise) -> float | None:
    federation = first_clients(federation_of(data), _PROBE_CLIENTS)
    recipe = with_defaults(parse({}, values=json.loads(values)))
    chosen = recipe.model
    model = build(
        chosen.name, federation, hidden=chosen.hidden, input_norm=chosen.input_norm, seed=0
    )
    plan, _ = planned(drawn_together(method_of(recipe)), federation, model, noise, 0)
    run = Run(plan, speed=Speed(processes=1), every=plan.method.rounds)
    start = run.state.weights.clone()
    try:
        for _ in run:
            pass
        return _number(float((run.state.weights - start).norm()))
    finally:
        run.close()


def same_probe(one: float | None, other: float | None) -> bool:
    """Tell whether two probes are of the same training, whatever the processors."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_PROBE_TOLERANCE)


@dataclass(frozen=True)
class _Halfway:
    """Stores an unfinished run: its weights in one file, its curve in another."""

    path: Path | None
    key: str

    def keep(self, run: Run, curve: list[Seen]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # First what was seen: later rounds than the weights' are left out again.
        write_atomically(self._seen, json.dumps(curve).encode())
        save_checkpoint(self.path, run.state, self.key, None, durable=False)

    def resume(self, run: Run) -> list[Seen]:
        """Restore the run where it was interrupted, and return its curve up to there."""
        if self.path is None or not self.path.exists():
            return []
        run.state = load_checkpoint(self.path, self.key)
        seen = json.loads(self._seen.read_text(encoding="utf-8"))
        return [point for point in seen if point["round"] <= run.state.rounds]

    def forget(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            self._seen.unlink(missing_ok=True)

    @property
    def _seen(self) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".seen")


class _Watch:
    """Looks at a run between two rounds."""

    def __init__(self, run: Run, case: Case) -> None:
        self._run, self._measures = run, case.measures
        plan = run.plan
        self._evaluator = Evaluator(plan.federation, plan.module, plan.layout)

    def __call__(self, report: RoundReport | None) -> Seen:
        plan, weights = self._run.plan, self._run.state.weights
        federation = plan.federation
        seen: Seen = {"round": self._run.state.rounds}
        seen |= _figures(self._evaluator(weights, federation.test), "")
        if federation.validation is not None and len(federation.validation):
            seen |= _figures(self._evaluator(weights, federation.validation), "validation_")
        if "train_loss" in self._measures:
            seen["train_loss"] = _number(self._evaluator(weights, federation.train).loss)
        if "gradient_norm" in self._measures:
            seen["gradient_norm"] = _number(_gradient_norm(self._run))
        if (
            "update_norms" in self._measures
            and report is not None
            and report.unprotected_stats is not None
        ):
            seen["update_norm"] = _number(report.unprotected_stats.norm)
            seen["clipped"] = _number(report.unprotected_stats.clipped)
        return seen


def _figures(metrics: Metrics, prefix: str) -> dict[str, float | None]:
    figures = {f"{prefix}loss": _number(metrics.loss)}
    if metrics.accuracy is None:
        figures[f"{prefix}mse"] = _number(2 * metrics.loss)  # the loss is half the squared error
    else:
        figures[f"{prefix}accuracy"] = _number(100 * metrics.accuracy)  # percent
    return figures


def _number(value: float) -> float | None:
    """Return six digits, or None for a run that diverged: JSON has no infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _gradient_norm(run: Run) -> float:
    """Return the norm of the gradient of the mean training loss over all clients' examples."""
    plan = run.plan
    weights = run.state.weights.clone().requires_grad_()
    inputs = as_tensor(plan.federation.model_inputs(plan.federation.train.inputs))
    targets = as_tensor(plan.federation.train.targets)
    outputs = functional_call(plan.module, plan.layout.views(weights), (inputs,))
    loss = example_losses(plan.federation.task, outputs, targets).mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    return float(gradient.norm())


def _plan(
    method: Method, federation: Federation, model: nn.Module, budget: Budget, seed: int
) -> Plan:
    """Plan a simulation in real numbers: grids and masks of protected runs change no figure."""
    made = plan(
        method, federation, model, budget=budget, seed=seed, arithmetic=Arithmetic.IDEALISED
    )
    return replace(made, secure_sums=None)


def planned(
    method: Method, federation: Federation, model: nn.Module, noise: Noise, seed: int
) -> tuple[Plan, Cost]:
    """Return the plan of a simulated run with this noise, and its cost at the noise's delta."""
    if noise is None:
        made = plan(method, federation, model, seed=seed)
        return made, Cost(None, None, None, "no noise, no guarantee", None)
    if isinstance(noise, Without):
        made = _plan(method, federation, model, Budget(noise_multiplier=1.0), seed)
        silent = replace(made, noise_multiplier=_NOTHING, delta=None)
        return silent, Cost(None, None, None, "no noise, no guarantee", None)
    claimed = noise.epsilon if isinstance(noise, Claimed) else None
    budget = (
        Budget(delta=noise.delta, noise_multiplier=noise.noise_multiplier)
        if isinstance(noise, Claimed)
        else Budget(noise.epsilon, noise.delta)
    )
    made = _plan(method, federation, model, budget, seed)
    proved = made.guarantee
    if proved is None:
        raise ConfigError(f"method {method.name!r}: a plan with noise has a guarantee")
    shown = f"{proved.theorem}; {proved.accountant}"
    return made, Cost(claimed, proved.epsilon, noise.delta, shown, made.noise_multiplier)
