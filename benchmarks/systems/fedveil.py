"""fedveil, by its public interface; a variant names an engine, or asks for protected rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

import fedveil as fv
from benchmarks.clock import Clock
from benchmarks.systems import Unsupported
from benchmarks.workloads import Workload, draw
from fedveil.privacy.clipping import Clip
from fedveil.training.engines.memory import keep_freed_memory


def federation(workload: Workload) -> fv.Federation:
    data = draw(workload)
    kind = fv.Task.CLASSIFICATION
    if workload.regression:
        kind = fv.Task.REGRESSION
    elif workload.sequence:
        kind = fv.Task.SEQUENCE
    return fv.Federation(
        train=fv.Examples(data.inputs, data.targets),
        offsets=np.arange(workload.clients + 1) * workload.records,
        test=fv.Examples(data.inputs[:1], data.targets[:1]),
        task=kind,
        classes=0 if workload.regression else workload.outputs,
    )


def module(workload: Workload, data: fv.Federation) -> nn.Module:
    """fedveil's own model of this shape."""
    name = {"cnn": "cnn-wide"}.get(workload.model, workload.model)
    return fv.build(name, data, hidden=workload.hidden)


def speed(variant: str) -> fv.Speed:
    """As fedveil chooses, or one engine by name in this process alone, or several processes."""
    if variant in ("", "protected", "processes"):
        return fv.Speed(engine="processes" if variant == "processes" else "auto")
    return fv.Speed(engine=variant, processes=1)


def method(workload: Workload, rounds: int) -> fv.Method:
    everyone = workload.cohort == workload.clients
    cohort = (
        fv.CohortRule(fv.Scheme.EVERYONE)
        if everyone
        else fv.CohortRule(fv.Scheme.FIXED, size=workload.cohort)
    )
    # fedveil minimises half the squared error, torch's mse_loss the whole.
    rate = fv.LearningRate(workload.learning_rate * (2 if workload.regression else 1))
    if workload.per_example:
        local = fv.LocalTraining(
            rate,
            epochs=workload.epochs,
            batch_size=workload.batch_size,
            gradient_clip=fv.GradientClip(workload.clip_norm, per_example=True),
            gradient_noise=workload.noise_multiplier * workload.clip_norm / workload.batch_size,
        )
        return fv.fedavg(rounds=rounds, cohort=cohort, local=local)
    full = workload.batch_size == workload.records
    local = fv.LocalTraining(
        rate, epochs=workload.epochs, batch_size=None if full else workload.batch_size
    )
    clip = Clip(workload.clip_norm)
    return fv.dp_fedavg(rounds=rounds, cohort=cohort, local=local, clip=clip)


def plan(workload: Workload, data: fv.Federation, rounds: int, protected: bool) -> fv.Plan:
    """A simulation, or a protected run: no seed, exact noise from the system, isolated clients."""
    chosen, seed = method(workload, rounds), None if protected else 0
    budget = fv.Budget(noise_multiplier=workload.noise_multiplier)
    if workload.per_example and protected:
        # The same noise in every step, by a method that promises something for it.
        local = replace(chosen.local, gradient_noise=0.0)
        chosen = fv.gradient_noise(
            rounds=rounds,
            cohort=chosen.cohort,
            local=local,
            clip_norm=workload.clip_norm,
            secure_sum=False,
        )
    elif workload.per_example:
        return fv.plan(chosen, data, module(workload, data), seed=seed)
    return fv.plan(chosen, data, module(workload, data), budget=budget, seed=seed)


def run(workload: Workload, variant: str, clock: Clock) -> None:
    keep_freed_memory()  # as the command line does in its own process
    data, rounds = federation(workload), clock.span.rounds
    planned = plan(workload, data, rounds, variant == "protected")
    try:
        chosen = speed(variant)
        if clock.span.processor:
            chosen = replace(chosen, processes=1, threads=1)
        training = fv.Run(planned, speed=chosen, every=rounds + 1)
    except fv.FedveilError as reason:
        raise Unsupported(str(reason)) from None
    count = training.choice.processes
    in_each = f" in {count} processes" if count > 1 else ""
    clock.configuration = f"engine {training.choice.name}{in_each}"
    for _ in training:
        clock.lap()
        if clock.enough:
            break
    training.close()
