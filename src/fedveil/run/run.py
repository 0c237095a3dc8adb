"""A Run executes a Plan round by round, and keeps what it did.

The order inside a round is what makes the guarantee true: the release is written to the ledger,
then the noisy result is computed, then it is stored, and only then shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import nn

from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.engines.choose import build_engine, choose, device_of
from fedveil.engines.contract import Job
from fedveil.engines.cost import Workload
from fedveil.methods.parts.noise_placement import RoundContext
from fedveil.models.flat import load
from fedveil.planning.plan import Plan
from fedveil.run.checkpoint import Checkpoint, write_atomically
from fedveil.run.directory import RunDirectory
from fedveil.run.evaluation import Evaluator, Metrics
from fedveil.run.unprotected_stats import UnprotectedStats, unprotected_stats_of

if TYPE_CHECKING:  # a tenth of a second that other runs need not wait
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.ledger import Ledger
    from fedveil.run.secure_rounds import RoundDropouts, SecureRound, SecureRounds

_CHECKPOINT_SECONDS = 2.0  # between checkpoints of a simulation, which can redo rounds at no cost


@dataclass(frozen=True)
class Speed:
    """Settings that change how fast a plan runs, never what it guarantees."""

    engine: str = "auto"
    chunk: int | None = None  # clients trained together
    processes: int | None = None  # None: several if rounds are long enough
    threads: int | None = None  # of each process
    device: str | None = None  # cpu, or cuda


@dataclass(frozen=True)
class RoundReport:
    """One finished round."""

    round_number: int  # from 1
    seconds: float | None  # simulations only: the time betrays the size of the cohort
    epsilon_so_far: float | None  # of all rounds begun, had their number been fixed before
    metrics: Metrics | None  # of the new weights on the test examples, at the chosen interval
    unprotected_stats: UnprotectedStats | None  # simulations only
    figures: Mapping[str, float]  # released beside the update, and accounted for
    dropouts: RoundDropouts | None = None  # of a secure sum, which shows it to its server anyway

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"round": self.round_number}
        if self.seconds is not None:
            document["seconds"] = round(self.seconds, 6)
        if self.metrics is not None:
            document |= asdict(self.metrics)
            document["epsilon_so_far"] = self.epsilon_so_far
        document |= self.figures
        if self.dropouts is not None:
            document["secure"] = self.dropouts.to_dict()
        if self.unprotected_stats is not None:
            document["insight"] = asdict(self.unprotected_stats)
        return document


class Run:
    """Trains a plan. Iterate over it for one report a round, or call `finish`.

    Kept in a directory, every state between two rounds can be resumed after a crash; with a seed,
    the resumed run ends with the same weights, bit for bit. `every` is how many rounds lie between
    two evaluations.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        speed: Speed | None = None,
        every: int | None = None,
    ) -> None:
        speed = speed or Speed()
        if plan.protected and plan.guarantee is None:  # also works it out: no proof, no run
            raise ConfigError("plan: a protected run needs a guarantee")
        if plan.protected:  # once more: a module may have been changed since it was planned with
            plan.check_still()
        self.plan = plan
        self.directory: RunDirectory | None = None
        self.every = every or max(1, plan.method.rounds // 20)
        self._randomness = plan.randomness
        self.job = _job(plan, self._randomness)
        device = device_of(speed.device)
        self.choice = choose(
            self.job,
            speed.engine,
            processes=speed.processes,
            workload=Workload(plan.sampling.expected_cohort, plan.method.rounds),
            device=device,
        )
        self.engine = build_engine(
            self.job, self.choice, speed.chunk, device=device, threads=speed.threads
        )
        self.secure: SecureRounds | None = None
        if plan.context is not None and plan.context.secure is not None:
            from fedveil.run.secure_rounds import SecureRounds

            self.secure = SecureRounds(plan, self.engine)
        self.dropouts: dict[int, RoundDropouts] = {}  # by round, from 1
        self._evaluator = Evaluator(plan.federation, plan.module, plan.layout)
        self.state = Checkpoint(0, plan.start, plan.optimizer.start(plan.start))
        self._begun = 0  # number of the last round that was begun, from 1
        self._saved = time.monotonic()

    def keep_in(self, directory: RunDirectory) -> Run:
        """Keep this run in a directory, going on from the state that is stored there."""
        directory.check(self.plan)
        self.directory = directory
        self.state = directory.load()
        if self.secure is None:
            return self
        from fedveil.run.secure_rounds import RoundDropouts

        self.dropouts = {
            line["round"]: RoundDropouts.from_dict(line["secure"])
            for line in directory.metrics()
            if "secure" in line
        }
        return self

    @property
    def guarantee(self) -> Guarantee | None:
        """What the run is worth, stopped early or not: its whole plan. None without noise."""
        return self.plan.guarantee if self._ledger is None else self._ledger.guarantee()

    @property
    def _ledger(self) -> Ledger | None:
        return None if self.directory is None else self.directory.ledger

    @property
    def next_round(self) -> int:
        """The number (from 0) of the round to run next.

        A protected round that was begun may have left, so it is never drawn again: its number is
        used up, and the schedule goes on with the next cohort. A simulation redoes it.
        """
        if not self.plan.protected:
            return self.state.rounds
        return max(self._begun, self.state.rounds, self._ledger.reserved if self._ledger else 0)

    @property
    def rounds_left(self) -> int:
        """Rounds that can still be run: the plan's, less what a crash has spent for nothing."""
        return self.plan.method.rounds - self.next_round

    def __iter__(self) -> Iterator[RoundReport]:
        while self.rounds_left > 0:
            yield self._round(last=self.rounds_left == 1)

    def finish(self) -> Metrics:
        """Train to the end and evaluate."""
        for _ in self:
            pass
        return self.evaluate()

    def _round(self, last: bool) -> RoundReport:
        began = time.perf_counter()
        plan, number = self.plan, self.next_round
        drawn = self._randomness.stream("cohort", number)
        cohort = plan.sampling.draw(number, drawn, plan.federation.clients)
        if self._ledger is not None:
            self._ledger.reserve(number)
        self._begun = number + 1
        pipeline = plan.pipeline_in(number, self.state.optimizer)
        this_round = RoundContext(number, cohort, self._randomness)
        secured = self._secured(pipeline, this_round)
        if secured is None:
            result = self.engine.round_sum(self.state.weights, cohort, number, pipeline)
            released = plan.release(
                result.total, result.norms, pipeline, self.state.optimizer, this_round
            )
        elif secured.result is None or secured.released is None:
            return self._lost(number, secured.dropouts, last, time.perf_counter() - began)
        else:
            result, released = secured.result, secured.released
        update = released.average
        if plan.method.smoothing is not None:
            update = plan.method.smoothing(update, plan.layout)
        weights, optimizer = plan.optimizer.step(
            self.state.weights, update, self.state.optimizer, number
        )
        state = Checkpoint(number + 1, weights, {**optimizer, **released.state})
        self._store(state, last)
        self.state = state
        unprotected_stats = None if plan.protected else unprotected_stats_of(result)
        dropouts = None if secured is None else secured.dropouts
        seconds = time.perf_counter() - began
        return self._report(unprotected_stats, released.figures, dropouts, last, seconds)

    def _secured(self, pipeline: UpdatePipeline, this_round: RoundContext) -> SecureRound | None:
        """The round by a secure sum, if the plan takes them."""
        if self.secure is None:
            return None
        state = self.state
        secured = self.secure.round(state.weights, pipeline, state.optimizer, this_round)
        self.dropouts[this_round.round_number + 1] = secured.dropouts
        return secured

    def _lost(
        self, number: int, dropouts: RoundDropouts, last: bool, seconds: float
    ) -> RoundReport:
        """A round that gave no sum: weights stay; its number and its reservation are used up."""
        state = replace(self.state, rounds=number + 1)
        self._store(state, last)
        self.state = state
        return self._report(None, {}, dropouts, last, seconds)

    def _store(self, state: Checkpoint, last: bool) -> None:
        """A protected run stores every round before anybody sees it: it cannot draw it again."""
        if self.directory is None:
            return
        due = time.monotonic() - self._saved > _CHECKPOINT_SECONDS
        if self.plan.protected or due or last:
            self.directory.save(state, durable=self.plan.protected or last)
            self._saved = time.monotonic()

    def _report(
        self,
        unprotected_stats: UnprotectedStats | None,
        figures: Mapping[str, float],
        dropouts: RoundDropouts | None,
        last: bool,
        seconds: float,
    ) -> RoundReport:
        done = self.state.rounds
        metrics = self.evaluate() if last or done % self.every == 0 else None
        report = RoundReport(
            round_number=done,
            seconds=None if self.plan.protected else seconds,
            epsilon_so_far=self.plan.spent(self.next_round) if metrics else None,
            metrics=metrics,
            unprotected_stats=unprotected_stats,
            figures=figures,
            dropouts=dropouts,
        )
        if self.directory is not None:
            self.directory.append_metrics(report.to_dict())
        return report

    def save(self) -> None:
        """Store the state after the last finished round; called when a run is interrupted."""
        if self.directory is not None:
            self.directory.save(self.state, durable=True)

    def evaluate(self) -> Metrics:
        """Metrics of the current weights on the federation's test examples."""
        return self._evaluator(self.state.weights, self.plan.federation.test)

    def model(self) -> nn.Module:
        """The trained model as a plain module."""
        load(self.plan.module, self.state.weights)
        return self.plan.module

    def model_file(self) -> bytes:
        """The trained parameters by name, as a safetensors file."""
        views = self.plan.layout.views(self.state.weights)
        return save({name: value.contiguous() for name, value in views.items()})

    def save_model(self, path: Path | str) -> None:
        """Write the trained parameters; `safetensors.torch.load_model(module, path)` reads them."""
        write_atomically(Path(path), self.model_file())

    def close(self) -> None:
        self.engine.close()


def follow_plan(plan: Plan, speed: Speed) -> None:
    """Work for the process that leads this plan under `torchrun`, until it has finished."""
    from fedveil.engines.process_group import torchrun_group
    from fedveil.engines.processes import follow

    device = device_of(speed.device)
    job = _job(plan, plan.randomness)
    choice = replace(choose(job, speed.engine, device=device), processes=1)
    engine = build_engine(job, choice, speed.chunk, device=device, threads=speed.threads or 1)
    follow(torchrun_group(device), engine)


def _job(plan: Plan, randomness: Randomness) -> Job:
    return Job(
        plan.federation,
        plan.module,
        plan.layout,
        plan.local,
        plan.pipeline,
        randomness,
        isolated=plan.protected,
    )
