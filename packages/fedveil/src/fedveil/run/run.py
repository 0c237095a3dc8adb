"""A Run executes a Plan round by round, and keeps what it did. `round.py` has the round itself."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.torch import save
from torch import Tensor, nn

from fedveil.core.arguments import count, instance_of
from fedveil.core.containment import contained, silence
from fedveil.core.display import Displayed
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.files import write_atomically
from fedveil.core.origin import is_own_object
from fedveil.core.randomness import Randomness
from fedveil.data.federation import HELD_OUT_NOTE, Task
from fedveil.planning.limits import unproved
from fedveil.planning.plan import Plan
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.run.aggregator import Aggregator, build_aggregator
from fedveil.run.callbacks import Audience, Callback
from fedveil.run.directory import Checkpoint, RunDirectory
from fedveil.run.evaluation import Evaluator, Metrics
from fedveil.run.round import play_round
from fedveil.run.round_report import RoundDropouts, RoundReport, unprotected_stats_of
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.choose import ENGINES, Choice, build_engine, choose, device_of
from fedveil.training.engines.contract import ClientStates, Engine, Job
from fedveil.training.engines.cost import Workload
from fedveil.training.engines.distributed_env import under_torchrun
from fedveil.training.models.flat import load
from fedveil.training.models.frozen import mark_trained
from fedveil.training.server.averaging import released

if TYPE_CHECKING:
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.ledger import Ledger
    from fedveil.run.scores import Scores

# How long these take does not depend on data or secrets, as training and noise do.
_PROTOCOL = ("enrol", "share", "mask", "add", "confirm", "unmask")
_GIVEN = "{} was made outside the run: nothing shows that it computes what the plan says."
_FIXED = ("plan", "job", "randomness", "memory", "clients")
_CHECKPOINT_SECONDS = 2.0  # between checkpoints of a simulation, which can redo rounds at no cost


@dataclass(frozen=True)
class Speed:
    """Settings that change how fast a plan runs, never what it guarantees.

    With an engine from outside the package nothing is certified. What is left out is chosen.

    Attributes:
        engine: Its name, or "auto".
        chunk: How many clients are trained together, at most.
        processes: How many; None: several if rounds are long enough.
        threads: In each process.
        device: "cpu" or "cuda".
    """

    engine: str = "auto"
    chunk: int | None = None
    processes: int | None = None
    threads: int | None = None
    device: str | None = None


class Remote(Protocol):
    """Makes what trains a plan's clients on other machines, and what takes their sums."""

    def parts(self, plan: Plan) -> tuple[Engine, Aggregator]: ...


class Run(Displayed):
    """Trains a plan. Iterate over it for one report a round, or call `finish`.

    Kept in a directory, every state between two rounds can be resumed after a crash. With a seed,
    the resumed run ends with the same weights, bit for bit.

    Args:
        plan: What to run.
        speed: How fast; by default everything is chosen.
        every: How many rounds lie between two evaluations; by default a twentieth of them.
        engine: An engine that was made elsewhere. Nothing is certified then, because nobody knows
            what it clips.
        aggregator: An aggregator that was made elsewhere. Nothing is certified then, because nobody
            knows which noise it adds.
        remote: Makes both where clients train on other machines.
        callbacks: They are told of every round, and may end the run.

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
        remote: Remote | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        instance_of(Plan)("plan", plan)
        if speed is not None:
            instance_of(Speed)("speed", speed)
        if not all(isinstance(one, Callback) for one in callbacks):
            raise ConfigError("callbacks: need Callback objects; derive a class from fv.Callback")
        if plan.protected and plan.guarantee is None:  # also works it out: no proof, no run
            raise ConfigError("plan: a protected run needs a guarantee")
        if remote is not None and (engine is not None or aggregator is not None):
            raise ConfigError("remote: makes engine and aggregator itself; leave these out")
        if plan.protected:  # a module may have been changed since it was planned with
            plan = plan.derived_anew()
            _check_machines(plan)
        self.directory: RunDirectory | None = None
        usual = max(1, plan.method.rounds // 20)
        self.every = usual if every is None else count("every", every)
        self.plan, self.randomness = plan, plan.randomness
        self.memory = NoiseMemory()  # earlier noise, where later rounds take a part of it back
        self.clients = plan.federation.clients
        self.client_states = ClientStates()  # what a local step remembers, in memory alone
        self.job = job_of(plan, self.randomness)  # what the engine computes
        self._remote = remote is not None
        if remote is not None:
            self.engine, self.aggregator = remote.parts(plan)
            self.choice = Choice(self.engine.name, "clients train on other machines")
            if not is_own_object(remote):
                self._certify_nothing(unproved("What trains clients on other machines"))
        else:
            self.aggregator = build_aggregator(plan.secure_sums)
            if aggregator is not None:
                self.aggregator = aggregator
            if engine is not None:
                self.choice, self.engine = Choice(engine.name, "it was given"), engine
                self._certify_nothing(_GIVEN.format(f"Engine {engine.name!r}"))
            else:
                self.choice, self.engine = _chosen(plan, self.job, speed or Speed())
                # Statistics are computed by one engine, whichever was asked for.
                if self.choice.name not in ENGINES and plan.pipeline.statistic is None:
                    self._certify_nothing(unproved(f"Engine {self.choice.name!r}"))
        self.dropouts: dict[int, RoundDropouts] = {}  # by round, from 1
        self._evaluator = Evaluator(plan.federation, plan.module, plan.layout)
        self.state = Checkpoint(0, plan.start, plan.optimizer.start(plan.start))
        self._begun = 0  # number of the last round that was begun, from 1
        # A round (from 0) that was begun and paid for, to go on with on other machines.
        self.unfinished: int | None = None
        self._saved = time.monotonic()
        self.callbacks = tuple(callbacks)
        self.stopped = False  # by a callback, before the last round

    def __setattr__(self, name: str, value: Any) -> None:
        """Hold what is carried out fixed; an engine or aggregator from elsewhere is noted."""
        if name in _FIXED and name in vars(self):
            raise AttributeError(f"{name}: follows from the plan and cannot be changed")
        if name in ("engine", "aggregator") and name in vars(self):
            part = f"Engine {value.name!r}" if name == "engine" else "The aggregator"
            self._certify_nothing(_GIVEN.format(part))
        if name == "unfinished" and value is not None and not self._remote:
            # Sites answer the same request alike, so that nothing is drawn again; nobody else does.
            raise ConfigError("unfinished: a round that was begun here is not drawn again")
        super().__setattr__(name, value)

    def _certify_nothing(self, why: str) -> None:
        """Put a reason on the plan, before anything is promised for it in a directory."""
        if self.plan.protected and self.directory is not None:
            raise ConfigError(
                f"{self.directory.path}: promises what the plan's own parts keep; exchange an "
                "engine or an aggregator before keep_in"
            )
        vars(self)["plan"] = replace(self.plan, unprotected=(*self.plan.unprotected, why))

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
        state = directory.load()
        if state.rounds and self.plan.method.local.step is not None:
            raise ConfigError(
                f"{directory.path}: cannot be resumed, because what its local step remembers of "
                "clients was never written. Start the run again in another directory."
            )
        self.directory, self.state = directory, state
        self.dropouts = {
            line["round"]: RoundDropouts(**line["dropouts"])
            for line in directory.metrics()
            if "dropouts" in line
        }
        return self

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee of the whole plan, also of a run that stopped early; None without noise."""
        return self.plan.guarantee if self._ledger is None else self._ledger.guarantee()

    @property
    def _ledger(self) -> Ledger | None:
        return None if self.directory is None else self.directory.ledger

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase; of a protected run only those of a secure sum's protocol."""
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

    @property
    def released_rounds(self) -> int:
        """Rounds whose sum was released; the others left the weights as they were."""
        return self.state.rounds - sum(bool(one.not_released) for one in self.dropouts.values())

    def __iter__(self) -> Iterator[RoundReport]:
        audience = Audience(self.callbacks, self.plan)
        try:
            audience.begin()
            while self.rounds_left > 0 and not self.stopped:
                report = play_round(self, last=self.rounds_left == 1)
                if audience.round(report):
                    self.stopped = True
                    self.save()
                yield report
        finally:  # also of a run that is left early, or that one of them refuses to begin
            audience.end()

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
        """Store a state and continue from it.

        A protected run stores every round before anybody sees it, because it cannot draw it again.

        Args:
            state: The state after a round.
            last: Whether no other round follows.
        """
        due = time.monotonic() - self._saved > _CHECKPOINT_SECONDS
        if self.directory is not None and (self.plan.protected or due or last):
            self.directory.save(state, durable=self.plan.protected or last)
            self._saved = time.monotonic()
        self.state = state

    def report(
        self,
        result: Block | None,
        figures: Mapping[str, float],
        dropouts: RoundDropouts | None,
        last: bool,
        began: float,
    ) -> RoundReport:
        """Return what may be shown of the round that was stored last, and append it to the metrics.

        Args:
            result: Norms and losses of clients, for simulations.
            figures: Figures that were released beside the update.
            dropouts: Participants of a secure sum; None without one.
            last: Whether no other round follows.
            began: When the round began, on the performance counter.
        """
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
        """Return figures of the current weights on the federation's test examples.

        They are NaN if the model raises at an example that is a client's: in a protected run,
        nothing that such an example does may end the run.
        """
        data = self.plan.federation
        with self._on_test_examples():
            return self._evaluator(self.weights, data.test)
        return Metrics(math.nan, None if data.task is Task.REGRESSION else math.nan)

    @contextmanager
    def _on_test_examples(self) -> Iterator[None]:
        """Contain errors of a block that computes from private test examples."""
        if self.plan.protected and HELD_OUT_NOTE in self.plan.federation.notes:
            with contained(), silence():
                yield
        else:
            yield

    @property
    def weights(self) -> Tensor:
        """Weights of the current model `[parameters]`; the average where the server averages."""
        return released(self.state.weights, self.state.optimizer)

    def model(self) -> nn.Module:
        """Return the trained model as a plain module, a copy.

        Another plan with the plan's module would start from its weights, and take them to be made
        without the protected data.
        """
        trained = copy.deepcopy(self.plan.module)
        load(trained, self.weights)
        data = self.plan.federation
        return mark_trained(trained, data.name, public=data.public)

    def scores(self) -> Scores | None:
        """Return more figures on the test examples, beside those of the best constant answer."""
        from fedveil.run.bundle import bundle_of  # these bring the reading of tables
        from fedveil.run.trained import TrainedModel, score_examples

        trained = TrainedModel(bundle_of(self.plan, None, None), self.model())
        data = self.plan.federation
        with self._on_test_examples():
            return score_examples(trained, data, data.test)
        return None

    def model_file(self) -> bytes:
        """Return the trained parameters by name, as a safetensors file."""
        return save(self._parameters())

    def bundle_file(self, architecture: Mapping[str, Any] | None = None) -> bytes:
        """Return the model file with all that prediction needs.

        Args:
            architecture: The arguments of `build`; None: a module of the user's.
        """
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
    """Work for the process that leads this plan under `torchrun`, until it has finished.

    Args:
        plan: The plan of the leading process.
        speed: Engine, chunk, threads and device.
    """
    from fedveil.training.engines.processes import Torchrun, follow

    device = device_of(speed.device)
    job = job_of(plan, plan.randomness)
    choice = replace(choose(job, speed.engine, device=device), processes=1)
    engine = build_engine(job, choice, speed.chunk, device=device, threads=speed.threads or 1)
    follow(Torchrun(), engine, job)


def _check_machines(plan: Plan) -> None:
    """Refuse several machines where one client's absence would move others between them."""
    counted = plan.context is None or plan.context.public_clients is None
    if not counted and plan.federation.owners is None and under_torchrun():
        raise PrivacyRefusal(
            "privacy.public_clients with torchrun and clients without names: if one were missing, "
            "others would train on another machine, which may round differently",
            "name the clients in a column, or run in one process",
        )


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
    """Return the job of an engine for a plan.

    Args:
        plan: What is run.
        randomness: The run's randomness.
    """
    return Job(
        plan.federation,
        plan.module,
        plan.layout,
        plan.local,
        plan.pipeline,
        randomness,
        isolated=plan.protected,
    )
