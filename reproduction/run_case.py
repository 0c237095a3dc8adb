"""Runs one case with one seed, and writes down what was seen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch.func import functional_call

from fedveil.config.recipe import Recipe, parse, with_defaults
from fedveil.engines.batched import as_tensor
from fedveil.methods.registry import method_of
from fedveil.models.losses import example_losses
from fedveil.models.zoo import build
from fedveil.report.store import Outcome
from fedveil.run.evaluation import Evaluator, Metrics
from fedveil.run.run import RoundReport, Run, Speed
from reproduction.budgets import planned
from reproduction.case import Case
from reproduction.federations import federation_of
from reproduction.norms import NormRecorder
from reproduction.together import drawn_together

Tick = Callable[[float], None]  # called with the share of rounds that are done


def recipe_of(case: Case, seed: int) -> Recipe:
    """The recipe whose method and model a case trains."""
    return with_defaults(parse({}, values={**dict(case.values), "seed": seed}))


def run_case(case: Case, seed: int, tick: Tick = lambda share: None) -> Outcome:
    """Train a case to its end: final metrics, the curve on the way, noise and both epsilons.

    The seed draws cohorts, batches, noise and initial weights; who owns what stays.
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
    heard = NormRecorder(run.engine)
    if "update_norms" in case.measures:
        run.engine = heard
    watch = _Watch(run, case)
    norms: dict[str, list[float]] = {}  # of the updates before clipping, by round
    try:
        curve = [watch(None)] if case.every else []
        for report in run:
            tick(report.round_number / method.rounds)
            due = case.every and report.round_number % case.every == 0
            if heard.norms and (due or report.round_number == method.rounds):
                norms[str(report.round_number)] = heard.norms
            if due and report.round_number < method.rounds:
                curve.append(watch(report))
        final = watch(report)
    finally:
        run.close()
    return {
        "seed": seed,
        "final": final,
        "curve": [*curve, final],
        **({"norms": norms} if norms else {}),
        "cost": asdict(cost),
        "engine": run.choice.name,
        "seconds": round(time.perf_counter() - began, 2),
    }


class _Watch:
    """Looks at a run between two rounds."""

    def __init__(self, run: Run, case: Case) -> None:
        self._run, self._measures = run, case.measures
        plan = run.plan
        self._evaluator = Evaluator(plan.federation, plan.module, plan.layout)

    def __call__(self, report: RoundReport | None) -> dict[str, Any]:
        plan, weights = self._run.plan, self._run.state.weights
        federation = plan.federation
        seen: dict[str, Any] = {"round": self._run.state.rounds}
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
    """JSON knows no infinity: a run that blew up says null."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _gradient_norm(run: Run) -> float:
    """Norm of the gradient of the mean training loss, over all clients' examples."""
    plan = run.plan
    weights = run.state.weights.clone().requires_grad_()
    inputs = as_tensor(plan.federation.model_inputs(plan.federation.train.inputs))
    targets = as_tensor(plan.federation.train.targets)
    outputs = functional_call(plan.module, plan.layout.views(weights), (inputs,))
    loss = example_losses(plan.federation.task, outputs, targets).mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    return float(gradient.norm())
