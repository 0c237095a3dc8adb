"""Notes what meets the noise, in place of the noise's own functions.

While `recording(...)` is open, the program's few entry points of noise note what they were given
and return a noisy value quickly (exact samplers are tested elsewhere): a fresh one where no world
of this case drew it before, else the one that was drawn then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_ndtr

from fedveil.core.randomness import Randomness
from fedveil.data import dp_schema
from fedveil.methods.parts import noise_placement
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.correlated_noise import CorrelatedNoise
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.planning import plan as plan_module
from fedveil.privacy import accounting, clipping
from fedveil.privacy.correlated import ONE
from fedveil.privacy.noise import correlated
from fedveil.privacy.noise.modular_grid import NoisyIntegers
from fedveil.run import run as run_module
from fedveil.run.evaluation import Metrics
from fedveil.training.engines import batched as rows
from fedveil.training.engines import (
    choose,
    contract,
    dual,
    example_gradients,
    gradients,
    local_sgd,
    moments,
)
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.models import check as model_check

from .coupling import Streams, Tagged

Ints = npt.NDArray[np.int64]
Key = tuple[str, int, str | None, int]  # purpose, round, client (None: the sum), how many-th

# In a memory of its own: other tests must not be told an epsilon that nobody computed.
_QUICK_ACCOUNT = lru_cache(maxsize=256)(accounting._account.__wrapped__)

# How many numbers engines hold at once; decides how clients are grouped, never what comes out.
_ROOM = (
    (dual, "_ISOLATED_CHUNK"),
    (moments, "_TOGETHER"),
    (moments, "_GATHERED"),
    (rows, "_VALUES"),
    (rows, "_TOGETHER"),
    (example_gradients, "_VALUES"),
    (dual, "_GATHERED"),
    (clipping, "_BLOCK"),
)

UPDATES, COUNT, GRADIENTS = "noise", "bits", "gradient-noise"


@dataclass(frozen=True)
class Draw:
    """Integers that met noise of `std` (a Laplace scale, a share's std) on a grid."""

    entered: Ints
    std: float
    granularity: float
    shares: int = 1
    laplace: bool = False


@dataclass
class Notes:
    """What one world did. Values of single clients are kept by (round, name)."""

    updates: dict[tuple[int, str], bytes] = field(default_factory=dict)  # floats, before shaping
    rows: dict[tuple[int, str], Ints] = field(default_factory=dict)  # what leaves a client
    halves: dict[tuple[int, str], Ints] = field(default_factory=dict)  # its part of a count
    draws: dict[Key, Draw] = field(default_factory=dict)
    noisy: dict[tuple[Key, tuple[int, ...]], Ints] = field(default_factory=dict)  # what came out
    taken: Counter[str] = field(default_factory=Counter)  # rounds that clients took part in
    no_vmap: str | None = None  # why `torch.func` cannot train the model: tried on zeros
    way: Any = None  # how gradients of single examples are computed: tried on zeros
    plan: Any = None  # of the run that trained last
    votes: list[Votes] = field(default_factory=list)  # for statistics that were bought
    names: Candidates | None = None  # for names of classes that were bought


@dataclass(frozen=True)
class Votes:
    """Votes `[columns, bins]` that met noise; a whole vote counts `whole`."""

    entered: Ints
    whole: int
    std: float
    noisy: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """Values that might have become class names, with their votes; those that were published."""

    votes: dict[str, float]
    threshold: float
    std: float
    failure: float
    published: tuple[str, ...]

    def chance(self, names: Iterable[str]) -> float:
        """The probability that any of these is published."""
        far = [(self.threshold - self.votes[name]) / self.std for name in names]
        return float(-np.expm1(np.sum(log_ndtr(far)))) if far else 0.0


@dataclass(frozen=True)
class _Real:
    """The program's own functions, which are still called."""

    shape: Callable[..., Any]
    halves: Callable[..., Any]
    build: Callable[..., Any]
    correlate: Callable[..., Any]
    why_not_vmap: Callable[..., Any]
    example_way: Callable[..., Any]
    job_of: Callable[..., Any]
    columns: Callable[..., Any]
    selected: Callable[..., Any]


class Recorder:
    """Notes one world; `first` are the notes of the world whose noisy values it must repeat."""

    def __init__(self, streams: Streams, first: Notes | None = None) -> None:
        self.streams, self.first, self.notes = streams, first, Notes()
        self._real = _Real(
            contract.shape_rows,
            AdaptiveClipping.halves,
            run_module.build_engine,
            CorrelatedNoise.protect,
            choose.why_not_vmap,
            gradients.example_way,
            run_module.job_of,
            dp_schema.summaries,
            dp_schema._selected,
        )
        self._cohort: list[str] = []
        self._sums: dict[int, Ints] = {}  # without noise, by round
        self._correlated: tuple[tuple[int, ...], float] = ((), 1.0)  # as accounted, and the grid

    def noisy(self, key: Key, draw: Draw, spread: float) -> Ints:
        """A noisy value of what entered."""
        self.notes.draws[key] = draw
        # Whichever world draws something first, the later ones of the case get its value.
        drawn = self.notes.noisy if self.first is None else self.first.noisy
        given = None if self.first is None else drawn.get((key, draw.entered.shape))
        if given is None:
            seed = int.from_bytes(self.streams.key("draw", 0, repr(key))[:8], "little")
            noise = np.random.default_rng(seed).standard_normal(draw.entered.shape) * spread
            given = draw.entered + np.rint(noise / draw.granularity).astype(np.int64)
            drawn[key, draw.entered.shape] = given
        return given

    def add_noise(self, total: Ints, std: float, granularity: float, stream: Tagged, laplace: bool):
        """In the place of `protect_sum` and `protect_sum_laplace`."""
        key = (stream.purpose, stream.round_number, stream.name, stream.uses)
        stream.uses += 1
        entered = total.copy()
        if stream.name is not None and stream.purpose != GRADIENTS:
            # Local noise is added to the sum of all uploads, and belongs to one of them.
            of = self.notes.rows if stream.purpose == UPDATES else self.notes.halves
            # Whoever's training raises an error sends nothing but noise.
            entered = entered + of.get((stream.round_number, stream.name), 0)
        draw = Draw(entered, std, granularity, laplace=laplace)
        return self.noisy(key, draw, std) - entered + total

    def correlate(self, noise: CorrelatedNoise, at: RoundNoise, total) -> Any:
        """Around `CorrelatedNoise.protect`: what it is given, and what it says it will release."""
        self._sums[at.round_number] = total.numpy().copy()
        (said,) = noise.releases(noise.facts.rounds)
        self._correlated = said.mechanism.factor, at.grid
        return self._real.correlate(noise, at, total)

    def fresh_noise(self, stream: Tagged, count: int, steps: float) -> Ints:
        """In the place of `fresh_noise`: what makes C x + g the same in every world."""
        number, (factor, grid) = stream.round_number, self._correlated
        entered = mixed(factor, self._sums, number)
        fine = grid / ONE
        key = (stream.purpose, number, stream.name, 0)
        return self.noisy(key, Draw(entered, steps * fine, fine), steps * fine) - entered

    def add_shares(self, integers: NoisyIntegers, total: Ints, streams: Iterable[Tagged]) -> Ints:
        """In the place of `NoisyIntegers.noisy_sum`."""
        drawn = list(streams)
        if not drawn:
            return integers.grid.centre(total)
        std, grid = integers.share_std, integers.grid
        key = (drawn[0].purpose, drawn[0].round_number, None, 0)
        draw = Draw(total.copy(), std, grid.granularity, len({one.name for one in drawn}))
        if std == 0:  # private already
            self.notes.draws[key] = draw
            return grid.centre(total)
        return grid.centre(self.noisy(key, draw, std * len(drawn) ** 0.5))

    def add_share(self, integers: NoisyIntegers, whole: Ints, stream: Tagged) -> Ints:
        """In the place of `NoisyIntegers.noisy`: one client's vector, before it is masked."""
        std, grid = integers.share_std, integers.grid
        sum_key = (stream.purpose, stream.round_number, None, 0)
        draw = Draw(whole.copy(), std, grid.granularity)
        nothing = replace(draw, entered=np.zeros_like(whole), shares=0)
        before = self.notes.draws.get(sum_key, nothing)
        self.notes.draws[sum_key] = replace(
            draw, entered=before.entered + whole, shares=before.shares + 1
        )
        if std == 0:
            return grid.centre(whole)
        return grid.centre(
            self.noisy((stream.purpose, stream.round_number, stream.name, 0), draw, std)
        )

    def shaped(self, updates, pipeline, layout, senders, gradient=None):
        """Around `shape_rows`: what each client computed, and what it sends."""
        names = [self.streams.name(senders.randomness, client) for client in senders.clients]
        computed = updates.detach().cpu().numpy()
        # A NaN's sign and payload depend on the SIMD lane it was computed in. Any NaN makes an
        # update zero, and the integers that leave are compared bit for bit.
        before = [row.tobytes() for row in np.where(np.isnan(computed), np.nan, computed)]
        shaped = self._real.shape(updates, pipeline, layout, senders, gradient)
        for name, update, row in zip(names, before, shaped.rows.numpy(), strict=True):
            self.notes.updates[senders.round_number, name] = update
            self.notes.rows[senders.round_number, name] = row.copy()
            self.notes.taken[name] += 1
        return shaped

    def why_not_vmap(self, job: Any) -> str | None:
        """Around `why_not_vmap`, in the first world only."""
        if self.first is None:
            self.notes.no_vmap = self._real.why_not_vmap(job)
            return self.notes.no_vmap
        return self.first.no_vmap

    def example_way(self, job: Any) -> Any:
        """Around `example_way`, in the first world only."""
        if self.first is None:
            self.notes.way = self._real.example_way(job)
            return self.notes.way
        return self.first.way

    def counted(self, rule: AdaptiveClipping, at: RoundNoise, clip, norms):
        """Around `AdaptiveClipping.halves`: each client's part of a tracked clip's count."""
        halves = self._real.halves(rule, at, clip, norms)
        for name, row in zip(self._cohort, halves.numpy(), strict=True):
            self.notes.halves[at.round_number, name] = row.copy()
        return halves

    def job_of(self, plan: Any, *args: Any) -> Any:
        """Around `job_of`: which plan is carried out, and whose data stand where."""
        before, self.notes.plan = self.notes.plan, plan
        # A command that looks for settings first carries out plans with made-up clients.
        if (before or not self.streams.names) and plan.federation.owners is not None:
            self.streams.name_clients([str(name) for name in plan.federation.owners])
        return self._real.job_of(plan, *args)

    def columns(self, table: Any, voters: Any, noisy: Any, std: float, *rest: Any) -> Any:
        """Around `summaries`: what is voted, and the same noisy votes in every world."""

        def coupled(votes: Ints) -> npt.NDArray[np.float64]:
            drawn, number = noisy(votes), len(self.notes.votes)
            before = [] if self.first is None else self.first.votes
            if number < len(before) and before[number].noisy.shape == drawn.shape:
                drawn = before[number].noisy
            self.notes.votes.append(Votes(votes.copy(), voters.whole, std, drawn))
            return drawn

        return self._real.columns(table, voters, coupled, std, *rest)

    def selected(self, values: Any, voters: Any, offer: Any, stream: Any, separator: Any) -> Any:
        """Around `_selected`: what could have been published, and what is."""
        found = self._real.selected(values, voters, offer, stream, separator)
        if self.first is not None and self.first.names is not None:
            found = self.first.names.published
        most = dp_schema.MOST_CLASSES
        names, votes = dp_schema.spread_votes(values, voters, most, separator)
        shares = dict(zip(names, votes / dp_schema.GRID, strict=True))
        bar = dp_schema.threshold(most, offer.noise, offer.missed)
        self.notes.names = Candidates(shares, bar, offer.noise, offer.missed, found)
        return found

    def build_engine(self, *args: Any, **kwargs: Any) -> Any:
        return _Watched(self._real.build(*args, **kwargs), self)

    def given_engine(self, *args: Any) -> Any:
        """An engine to give to a run, of the program's own class, so that the run trusts it."""
        engine = self._real.build(*args)
        train = engine.updates

        def updates(request: RoundRequest) -> Any:
            self.enter(request.cohort)
            return train(request)

        object.__setattr__(engine, "updates", updates)  # frozen ones as well
        return engine

    def enter(self, cohort: npt.NDArray[np.int64]) -> None:
        self._cohort = [self.streams.names[client] for client in cohort]


class _Watched:
    """An engine that tells which cohort it is asked for."""

    def __init__(self, engine: Any, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder

    def updates(self, request: RoundRequest) -> Any:
        self._recorder.enter(request.cohort)
        return self._engine.updates(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def mixed(factor: tuple[int, ...], sums: dict[int, Ints], number: int) -> Ints:
    """A row of C x, in steps of the finer grid; rounds that nobody was in have no sum."""
    back = (factor[k] * sums[number - k] for k in range(len(factor)) if number - k in sums)
    return sum(back, start=np.int64(0))


@contextmanager
def recording(
    recorder: Recorder, foreign: bool, room: int | None = None, whole: bool = False
) -> Iterator[Notes]:
    """Run the program inside to have it noted; `foreign` if the model is none of the program's,
    `room` if its engines hold so few numbers at once, `whole` if noise is fitted to a budget, by
    the program's own accountants."""

    def gauss(total, std, granularity, stream):
        return recorder.add_noise(total, std, granularity, stream, laplace=False)

    def laplace(total, scale, granularity, stream):
        return recorder.add_noise(total, scale, granularity, stream, laplace=True)

    def method(function: Any) -> Any:
        return lambda self, *args, **kwargs: function(self, *args, **kwargs)

    streams = recorder.streams
    replaced = (
        (noise_placement, "protect_sum", gauss),
        (noise_placement, "protect_sum_laplace", laplace),
        (local_sgd, "protect_sum", gauss),
        (NoisyIntegers, "noisy_sum", method(recorder.add_shares)),
        (NoisyIntegers, "noisy", method(recorder.add_share)),
        (AdaptiveClipping, "halves", method(recorder.counted)),
        (CorrelatedNoise, "protect", method(recorder.correlate)),
        (correlated, "fresh_noise", recorder.fresh_noise),
        (contract, "shape_rows", recorder.shaped),
        (run_module, "build_engine", recorder.build_engine),
        (run_module, "job_of", recorder.job_of),
        (dp_schema, "summaries", recorder.columns),
        (dp_schema, "_selected", recorder.selected),
        (choose, "why_not_vmap", recorder.why_not_vmap),
        (gradients, "example_way", recorder.example_way),
        (Randomness, "stream", method(streams.stream)),
        (Randomness, "shuffle_words", method(streams.shuffle_words)),
        # For speed alone: nothing is evaluated, and seeding looks for GPUs at length.
        (run_module, "Evaluator", lambda *args: lambda *args: Metrics(0.0, None)),
        (torch, "manual_seed", torch.default_generator.manual_seed),
    )
    if not whole:  # what epsilon comes out is not looked at, and accountants take seconds
        replaced += (
            (accounting, "_account", _QUICK_ACCOUNT),
            (accounting, "bounds", lambda *args, **kwargs: (("exact", 1.0),)),
        )
    if room is not None:
        replaced += tuple((place, name, room) for place, name in _ROOM)
    # What is asked of public things is asked once a case, and not about our own models.
    asked = recorder.first is None
    if not (asked and foreign):
        replaced += ((plan_module, "check_isolation", lambda *args, **how: None),)
    if not asked:
        replaced += (
            (plan_module, "check_every_round", lambda *args: None),
            (plan_module.Plan, "derived_anew", lambda plan: plan),
            (model_check, "_check_outputs", lambda *args: None),
            (model_check, "_tried", lambda *args: None),  # on zeros
        )
    before = [getattr(place, name) for place, name, _ in replaced]
    try:
        for place, name, value in replaced:
            setattr(place, name, value)
        yield recorder.notes
    finally:
        for (place, name, _), value in zip(replaced, before, strict=True):
            setattr(place, name, value)
