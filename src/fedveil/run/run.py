"""A Run executes a Plan round by round, and keeps what it did. `round.py` has the round itself."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor, nn

from fedveil.core.arguments import count, instance_of
from fedveil.core.display import Displayed
from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil.core.randomness import Randomness
from fedveil.engines.choose import ENGINES, Choice, build_engine, choose, device_of
from fedveil.engines.contract import Engine, Job, RoundSum
from fedveil.engines.cost import Workload
from fedveil.engines.registry import OUTSIDE
from fedveil.models.flat import load
from fedveil.models.frozen import mark_trained
from fedveil.planning.limits import unproved
from fedveil.planning.plan import Plan
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.run.callbacks import Callback, check_stop, facts_of
from fedveil.run.checkpoint import Checkpoint
from fedveil.run.directory import RunDirectory
from fedveil.run.evaluation import Evaluator, Metrics
from fedveil.run.round import play_round
from fedveil.run.round_report import RoundDropouts, RoundReport, unprotected_stats_of
from fedveil.secagg.aggregator import Aggregator, build_aggregator
from fedveil.server.averaging import released

if TYPE_CHECKING:
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.ledger import Ledger
    from fedveil.run.scores import Scores

# How long these take does not depend on data or secrets, as training and noise do.
_PROTOCOL = ("enrol", "share", "mask", "add", "confirm", "unmask")
_CHECKPOINT_SECONDS = 2.0  # between checkpoints of a simulation, which can redo rounds at no cost


@dataclass(frozen=True)
class Speed:
    """Settings that change how fast a plan runs, never what it guarantees; but with an engine from
    outside the package nothing is certified.

    engine: its name, or "auto". chunk: clients trained together, at most. processes, threads: how
    many, threads in each process. device: "cpu" or "cuda". Left out, each is chosen.
    """

    engine: str = "auto"
    chunk: int | None = None  # clients trained together
    processes: int | None = None  # None: several if rounds are long enough
    threads: int | None = None  # of each process
    device: str | None = None  # cpu, or cuda


class Run(Displayed):
    """Trains a plan. Iterate over it for one report a round, or call `finish`.

    Kept in a directory, every state between two rounds can be resumed after a crash; with a seed,
    the resumed run ends with the same weights, bit for bit. `every` is how many rounds lie between
    two evaluations. `engine` and `aggregator` are made for the plan unless they are given, as where
    clients train on other machines. `callbacks` are told of every round, and may end the run.

    >>> import fedveil as fv
    >>> digits = fv.load("digits", clients=100)
    >>> local = fv.LocalTraining(fv.LearningRate(1.0), steps=5)
    >>> method = fv.fedavg(rounds=3, cohort=fv.CohortRule(rate=0.5), local=local)
    >>> run = Run(fv.plan(method, digits, fv.build("logistic", digits), seed=1), every=1)
    >>> [report.round_number for report in run]
    [1, 2, 3]
    >>> run.evaluate().accuracy > 0.5
    True
    """

    def __init__(
        self,
        plan: Plan,
        *,
        speed: Speed | None = None,
        every: int | None = None,
        engine: Engine | None = None,
        aggregator: Aggregator | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        instance_of(Plan)("plan", plan)
        if speed is not None:
            instance_of(Speed)("speed", speed)
        if not all(isinstance(one, Callback) for one in callbacks):
            raise ConfigError("callbacks: need Callback objects; derive a class from fv.Callback")
        if plan.protected and plan.guarantee is None:  # also works it out: no proof, no run
            raise ConfigError("plan: a protected run needs a guarantee")
        if plan.protected:  # once more: a module may have been changed since it was planned with
            plan.check_still()
        self.directory: RunDirectory | None = None
        usual = max(1, plan.method.rounds // 20)
        self.every = usual if every is None else count("every", every)
        self.clients = plan.federation.clients
        self.randomness = plan.randomness
        self.memory = NoiseMemory()
        self.job = job_of(plan, self.randomness)
        if engine is None:
            self.choice, self.engine = _chosen(plan, self.job, speed or Speed())
        else:
            self.choice, self.engine = Choice(engine.name, "it was given"), engine
        self.aggregator = aggregator or build_aggregator(plan.secure_sums)
        # What trains clients and takes their sums belongs to the mechanism as the plan does.
        name = self.choice.name
        trainer = OUTSIDE[name].build if engine is None and name not in ENGINES else engine
        foreign = unproved({f"Engine {name!r}": trainer, "The aggregator": aggregator})
        self.plan = replace(plan, unprotected=(*plan.unprotected, *foreign)) if foreign else plan
        self.dropouts: dict[int, RoundDropouts] = {}  # by round, from 1
        self._evaluator = Evaluator(plan.federation, plan.module, plan.layout)
        self.state = Checkpoint(0, plan.start, plan.optimizer.start(plan.start))
        self._begun = 0  # number of the last round that was begun, from 1
        self.unfinished: int | None = None  # a round (from 0), begun and paid for, to go on with
        self._saved = time.monotonic()
        self.callbacks = tuple(callbacks)
        self.stopped = False  # by a callback, before the last round

    def _display(self) -> tuple[str, dict[str, object]]:
        plan = self.plan
        return f"{plan.method.name} on {plan.federation.name}", {
            "rounds": f"{self.state.rounds} of {plan.method.rounds}",
            "engine": self.choice.name,
            "protected": plan.protected,
            "directory": None if self.directory is None else str(self.directory.path),
        }

    def keep_in(self, directory: RunDirectory) -> Run:
        """Keep this run in a directory, going on from the state that is stored there."""
        directory.check(self.plan)
        self.directory = directory
        self.state = directory.load()
        self.dropouts = {
            line["round"]: RoundDropouts.from_dict(line["dropouts"])
            for line in directory.metrics()
            if "dropouts" in line
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
    def seconds(self) -> dict[str, float]:
        """Time by phase; a protected run shows those of a secure sum's protocol only."""
        spent, protected = self.aggregator.watch.seconds, self.plan.protected
        return {name: spent[name] for name in spent if not protected or name in _PROTOCOL}

    @property
    def next_round(self) -> int:
        """The number (from 0) of the round to run next.

        A protected round that was begun may have left, so it is never drawn again: its number is
        used up, and the schedule goes on with the next cohort. A simulation redoes it.
        """
        if not self.plan.protected:
            return self.state.rounds
        if self.unfinished is not None:
            return self.unfinished
        return max(self._begun, self.state.rounds, self._ledger.reserved if self._ledger else 0)

    @property
    def rounds_left(self) -> int:
        """Rounds that can still be run: the plan's, less what a crash has spent for nothing."""
        return self.plan.method.rounds - self.next_round

    def __iter__(self) -> Iterator[RoundReport]:
        facts = facts_of(self.plan) if self.callbacks else {}
        begun: list[Callback] = []
        try:
            for one in self.callbacks:
                one.on_begin(facts)
                begun.append(one)
            while self.rounds_left > 0 and not self.stopped:
                report = play_round(self, last=self.rounds_left == 1)
                said = [one.on_round(report) for one in self.callbacks]  # all are told
                if any(said):
                    check_stop(facts)
                    self.stopped = True
                    self.save()
                yield report
        finally:  # also of a run that is left early, or that one of them refuses to begin
            for one in begun:
                one.on_end()

    def finish(self) -> Metrics:
        """Train to the end and evaluate."""
        for _ in self:
            pass
        return self.evaluate()

    def reserve(self, number: int) -> None:
        """Pay for a round (from 0), before anything is computed in it."""
        if self._ledger is not None and number != self.unfinished:
            self._ledger.reserve(number)
        self.unfinished = None
        self._begun = number + 1

    def store(self, state: Checkpoint, last: bool) -> None:
        """Go on to this state. A protected run stores every round before anybody sees it: it cannot
        draw it again."""
        due = time.monotonic() - self._saved > _CHECKPOINT_SECONDS
        if self.directory is not None and (self.plan.protected or due or last):
            self.directory.save(state, durable=self.plan.protected or last)
            self._saved = time.monotonic()
        self.state = state

    def report(
        self,
        result: RoundSum | None,
        figures: Mapping[str, float],
        dropouts: RoundDropouts | None,
        last: bool,
        began: float,
    ) -> RoundReport:
        """What is shown of the round that was stored last; `result` is for simulations only."""
        protected, done = self.plan.protected, self.state.rounds
        stats = None if protected or result is None else unprotected_stats_of(result)
        seconds = None if protected else time.perf_counter() - began
        metrics = self.evaluate() if last or done % self.every == 0 else None
        spent = self.plan.spent(self.next_round) if metrics else None
        report = RoundReport(done, seconds, spent, metrics, stats, figures, dropouts)
        if dropouts is not None:
            self.dropouts[done] = dropouts
        if self.directory is not None:
            self.directory.append_metrics(report.to_dict())
        return report

    def save(self) -> None:
        """Store the state after the last finished round; called when a run is interrupted."""
        if self.directory is not None:
            self.directory.save(self.state, durable=True)

    def evaluate(self) -> Metrics:
        """Metrics of the current weights on the federation's test examples."""
        return self._evaluator(self.weights, self.plan.federation.test)

    @property
    def weights(self) -> Tensor:
        """Of the model as it is now `[parameters]`; where the server averages, the average."""
        return released(self.state.weights, self.state.optimizer)

    def model(self) -> nn.Module:
        """The trained model as a plain module, a copy: another plan with the plan's own module
        would start from it, and take it to be made without the protected data."""
        trained = copy.deepcopy(self.plan.module)
        load(trained, self.weights)
        return mark_trained(trained, self.plan.federation.name)

    def scores(self) -> Scores | None:
        """More figures on the test examples, beside the best constant answer: once, at the end."""
        from fedveil.run.bundle import bundle_of  # these bring the reading of tables
        from fedveil.run.trained import TrainedModel, score_examples

        own = TrainedModel(bundle_of(self.plan, None, None), self.model())
        return score_examples(own, self.plan.federation, self.plan.federation.test)

    def model_file(self) -> bytes:
        """The trained parameters by name, as a safetensors file."""
        return save(self._parameters())

    def bundle_file(self, architecture: Mapping[str, Any] | None = None) -> bytes:
        """The same with all that prediction needs; `architecture` is what `build` was told."""
        from fedveil.run.bundle import bundle_file, bundle_of

        bundle = bundle_of(self.plan, architecture, self.guarantee)
        return bundle_file(self._parameters(), bundle)

    def _parameters(self) -> dict[str, Tensor]:
        named = {name: one.detach() for name, one in self.plan.module.named_parameters()}
        named |= self.plan.layout.views(self.weights)  # the others are frozen
        return {name: value.contiguous() for name, value in named.items()}

    def save_model(self, path: Path | str) -> None:
        """Write the trained parameters; `safetensors.torch.load_model(module, path)` reads them."""
        write_atomically(Path(path), self.model_file())

    def close(self) -> None:
        self.memory.begin(0)  # forgotten
        self.engine.close()


def follow_plan(plan: Plan, speed: Speed) -> None:
    """Work for the process that leads this plan under `torchrun`, until it has finished."""
    from fedveil.engines.process_group import torchrun_group
    from fedveil.engines.processes import follow

    device = device_of(speed.device)
    job = job_of(plan, plan.randomness)
    choice = replace(choose(job, speed.engine, device=device), processes=1)
    engine = build_engine(job, choice, speed.chunk, device=device, threads=speed.threads or 1)
    follow(torchrun_group(device), engine)


def _chosen(plan: Plan, job: Job, speed: Speed) -> tuple[Choice, Engine]:
    device = device_of(speed.device)
    choice = choose(
        job,
        speed.engine,
        processes=speed.processes,
        workload=Workload(plan.sampling.expected_cohort, plan.method.rounds),
        device=device,
    )
    return choice, build_engine(job, choice, speed.chunk, device=device, threads=speed.threads)


def job_of(plan: Plan, randomness: Randomness) -> Job:
    """What an engine is to compute for a plan."""
    return Job(
        plan.federation,
        plan.module,
        plan.layout,
        plan.local,
        plan.pipeline,
        randomness,
        isolated=plan.protected,
    )
