"""A protected or simulated run for a process of its own, which may kill itself inside a round."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import fedveil as fv
from fedveil.planning.plan import Plan
from fedveil.run.directory import RunDirectory
from fedveil.training.engines.contract import RoundRequest

CLIENTS, ROUNDS, COHORT = 20, 6, 3
FEDERATION = fv.load("digits", clients=CLIENTS)


def plan_of(scheme: str, seed: int | None) -> Plan:
    method = fv.dp_fedavg(
        rounds=ROUNDS,
        cohort=fv.CohortRule(fv.Scheme(scheme), size=COHORT),
        local=fv.LocalTraining(fv.LearningRate(0.5, fv.Schedule.COSINE, 1.0), epochs=1),
        clip=fv.Clip(0.5),
        tracking=fv.AdaptiveClipping(fv.Clip(0.5), bit_noise=0.5),
        optimizer=fv.Adam(0.05),
    )
    module = fv.build("logistic", FEDERATION, seed=0)
    budget = fv.Budget(noise_multiplier=2.0)
    return fv.plan(method, FEDERATION, module, budget=budget, seed=seed)


def cohorts(path: Path) -> list[tuple[int, list[int]]]:
    """(round, cohort) of every training that was begun."""
    lines = path.with_suffix(".cohorts").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Recorder:
    """The run's engine, which writes down whom it trains."""

    def __init__(self, engine: Any, path: Path, dies_in: int) -> None:
        self._engine, self._path, self._dies_in = engine, path, dies_in

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def updates(self, request: RoundRequest) -> Any:
        with self._path.with_suffix(".cohorts").open("a") as file:
            file.write(json.dumps([request.round_number, request.cohort.tolist()]) + "\n")
        if request.round_number == self._dies_in:
            die()
        return self._engine.updates(request)


def main(path: Path, scheme: str, seed: int | None, point: str = "", dies_in: int = -1) -> None:
    """Begin the run, or go on with it, to its end or to the point where the process dies.

    Every cohort that is trained goes into PATH.cohorts before training starts: what somebody may
    have seen, whatever becomes of the round. `point` is where in round `dies_in` (from 0) the
    process is killed: before training ("train"), after the noise was drawn ("noise"), while the
    checkpoint is being replaced ("store"), or after that ("shown").
    """
    plan = plan_of(scheme, seed)
    if path.exists():
        directory = RunDirectory.open(path, plan)
    else:
        directory = RunDirectory.create(path, plan, {"scheme": scheme})
    run = fv.Run(plan, every=1).keep_in(directory)
    vars(run)["engine"] = Recorder(run.engine, path, dies_in if point == "train" else -1)
    if point == "noise":
        step = type(plan.optimizer).step

        def dying_step(self: Any, weights: Any, update: Any, state: Any, round_number: int) -> Any:
            if round_number == dies_in:
                die()
            return step(self, weights, update, state, round_number)

        type(plan.optimizer).step = dying_step  # type: ignore[method-assign]
    if point == "store":
        replace = Path.replace

        def dying_replace(self: Path, target: Path) -> Path:
            if target.name == "state.safetensors" and run.next_round == dies_in + 1:
                die()
            return replace(self, target)

        Path.replace = dying_replace  # type: ignore[method-assign, assignment]
    for report in run:
        if point == "shown" and report.round_number == dies_in + 1:
            die()
    directory.finish(run.model_file(), {})
    directory.close()
