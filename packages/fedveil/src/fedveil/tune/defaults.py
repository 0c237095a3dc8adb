"""Settings for a table that nobody has tuned, found in seconds without looking at its rows.

They follow from public facts alone: the table's columns, how many clients there are, the budget and
the unit. Settings are tried out on made-up data of the same shape, of which little or nearly
everything can be predicted: what is chosen must do well on both, because nobody knows what the true
rows are like.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust, Unit
from fedveil.data.collected import pictures_of
from fedveil.data.declared import CLASS_NAMES
from fedveil.data.dp_schema import MISSED, Bought, affordable
from fedveil.data.federation import Federation, Task
from fedveil.data.labels import STANDARDISED
from fedveil.data.public_facts import PublicFacts, public_facts
from fedveil.planning.assemble import federation_of, offer_of, plan_of, with_table_model
from fedveil.planning.recipe import DataSection, Recipe, with_defaults
from fedveil.training.server.averaging import Average
from fedveil.tune.proxy import Proxy
from fedveil.tune.synthetic_proxy import synthetic_proxy
from fedveil.tune.trials import Candidate, Outcome, ProxyTrials, Trial, recipe_with_settings

FEW = 30  # clients: fewer than these cannot hide one of them, so records are protected instead
_ALL = 2000  # clients: up to so many take part in every round
_COHORT = 1000  # of more
_SIGNALS = {  # weak, strong
    Task.REGRESSION: (0.7, 8.0),
    Task.CLASSIFICATION: (1.5, 6.0),
    Task.MULTI_LABEL: (1.5, 6.0),
}
_RECORDS = 50  # of a made-up client: how many the true ones have is private
_MOST_RECORDS = 400  # of a made-up client where sizes are public
_TRIED = 64  # clients of a trial
_MOST_STEPS = (100, 400)  # of a client in a round, among many clients and among few,
_STEPS = 20_000  # and of all of them together
_STABLE = 1.5  # times one over the largest curvature; from twice on, steps may grow without end
_CURVED = 0.4  # of the largest possible curvature: made-up data have less
_PASSES = 3
_FRESH = (5, 15)  # seeds: all of the first, or most of the last, say whether it can work
_BETTER = 0.01  # by which the score must fall for a change to be worth it
_LEARNT = 0.95  # of the constant answer's error: a result above it is hardly a result

Point = Mapping[str, int]  # exponents of two
_LEAST: Point = {"rounds": 1, "reach": -8, "stride": -6}
_MOST: Point = {"rounds": 6, "reach": 8, "stride": 4}
_FARTHEST = 8  # of rounds and stride together: what lies beyond takes minutes


class Pay(Protocol):
    def __call__(self, bought: Bought, *, delta: float) -> None: ...


@dataclass(frozen=True)
class Chosen:
    """A recipe with its settings, sentences on them, and a warning if they cannot help much.

    clients: how many there are for all to know: declared, or counted by their names. What their
        rows hold does not enter.
    """

    recipe: Recipe
    federation: Federation
    clients: int
    notes: tuple[str, ...] = ()
    warning: str = ""


def choose(
    recipe: Recipe, given: Collection[str], pay: Pay | None = None, *, buy: bool = True
) -> Chosen:
    """Choose what to run on a table.

    Whom to protect, who takes part and whether statistics are bought follows from public facts
    (`data.public_facts`) and from what the user has declared. The first look at any other cell is
    taken by the purchase, or by reading with a public schema; where rows are read in the open, the
    federation says so (`Federation.unprotected`), and nothing is certified.

    Args:
        recipe: what the user has set; all else is at its default.
        given: the recipe's keys that the user has set, and keeps.
        pay: is told of statistics, and of the delta they are part of, before they are bought.
        buy: off, they are taken from the rows, and a sentence says what a run would do.

    Returns:
        The recipe with its settings, its federation, and what to tell the user.
    """
    if "training.local_epochs" in given:
        given = {*given, "training.local_steps"}
    facts, federation = _public_facts(recipe.data), None
    if facts is not None:
        clients = facts.clients
    else:  # pictures and artificial clients are known by their data alone
        federation = federation_of(recipe.data)
        clients = federation.clients
    clients = recipe.privacy.public_clients or clients
    recipe, unit = _with_unit(recipe, clients, given)
    if facts is not None:
        recipe = with_table_model(recipe, given, clients, facts)
    recipe = with_defaults(_with_cohort(recipe, clients, given))
    statistics: tuple[str, ...] = ()
    if facts is not None and recipe.training.method in _OURS:
        recipe, federation, statistics = _with_statistics(recipe, facts, clients, pay, buy)
    federation = federation or federation_of(recipe.data)
    notes = (*unit, *statistics)
    if recipe.training.method == "moments":
        said = (
            f"Model: numbers are cut into about {recipe.data.bins} bins, and a linear model is "
            "fitted to one noisy sum of second moments. Nothing was tuned; --set training.method="
            "dp-sgd (or dp-fedavg) trains in rounds instead."
        )
        return Chosen(recipe, federation, clients, (*notes, said))
    tuned = recipe.privacy.epsilon is None or set(_CHOSEN) <= set(given)
    if tuned or recipe.training.method not in _OURS:
        return Chosen(recipe, federation, clients, notes)
    if "server.average" not in given:  # of what is released anyway: it costs nothing
        recipe = replace(recipe, server=replace(recipe.server, average=Average.POLYNOMIAL.value))
    search = _Search(recipe, federation, clients, given)
    point = search.best()
    chosen = search.recipe_with(point)
    notes = (*notes, search.sentence(chosen))
    return Chosen(chosen, federation, clients, notes, search.warning(point))


def _public_facts(data: DataSection) -> PublicFacts | None:
    """The facts of a table whose clients have names; None for other data, where nothing can be
    bought. Rows that are dealt by other rules than their owners' names decide who takes part."""
    if data.file is None or data.client_column is None or data.label is None:
        return None
    by_owner = data.partition in (None, "owner") and data.examples_per_client is None
    path = Path(data.file)
    if not by_owner or (path.is_dir() and pictures_of(path)):
        return None
    facts = public_facts(path, data.client_column)
    drawn = facts.clients if data.clients is None else min(facts.clients, data.clients)
    return replace(facts, clients=drawn)


def _with_statistics(
    recipe: Recipe, facts: PublicFacts, clients: int, pay: Pay | None, buy: bool
) -> tuple[Recipe, Federation, tuple[str, ...]]:
    """Buy the columns' statistics if nobody has described them and there are enough to hide in."""
    data = recipe.data
    if data.schema or data.columns:
        return recipe, federation_of(data), ()
    if data.statistics not in (None, "bought", "data"):
        raise ConfigError(f"data.statistics: unknown {data.statistics!r}; there are bought, data")
    offer = offer_of(recipe, clients, facts.rows)
    open_rows = replace(data, statistics=None)
    if data.statistics == "data" or offer is None:
        return recipe, federation_of(open_rows), ()
    units = facts.rows(offer.unit) if offer.unit is Unit.RECORD else clients
    if data.statistics is None and not affordable(offer, units, len(facts.columns)):
        less = "" if offer.unit is Unit.RECORD else ", or protect single rows (--unit record)"
        said = (
            f"{units:,} {offer.unit}s are too few to buy statistics of the columns with noise, so "
            "they are taken from the rows, and the guarantee is not certified; describe the "
            f"columns (fedveil data schema writes a draft){less}."
        )
        return recipe, federation_of(open_rows), (said,)
    if not buy:
        said = (
            "A run buys the columns' statistics with about a twentieth of the budget. Here they "
            "were taken from the rows, so this plan itself is not certified."
        )
        data = replace(data, statistics="data")
        return replace(recipe, data=data), federation_of(data), (said,)
    if pay is not None:
        offer = replace(offer, pay=partial(pay, delta=offer.missed / MISSED))
    federation = federation_of(data, offer)
    if federation.encoder is None or federation.bought is None:
        raise RuntimeError("statistics were bought for a table")
    document = federation.encoder.to_dict()
    columns = dict(document["columns"])
    if not {CLASS_NAMES, STANDARDISED} & set(federation.unprotected):
        columns |= dict.fromkeys(federation.encoder.labels, document["target"])
    data = replace(data, columns=columns, bought=json.dumps(federation.bought.to_dict()))
    return replace(recipe, data=data), federation, ()


def _with_unit(
    recipe: Recipe, clients: int, given: Collection[str]
) -> tuple[Recipe, tuple[str, ...]]:
    """Whom to protect, if nobody says: single records where there are few clients."""
    privacy = recipe.privacy
    if "training.method" in given or privacy.unit is not None:
        return recipe, ()
    if clients >= FEW:
        said = "Whole clients are protected; --unit record protects single rows, with less noise."
        return replace(recipe, privacy=replace(privacy, unit=Unit.CLIENT.value)), (said,)
    said = (
        f"{clients} clients are too few to hide what one of them brings, so single rows are "
        "protected, not whole clients; --unit client insists."
    )
    training = replace(recipe.training, method="dp-sgd")
    privacy = replace(privacy, unit=Unit.RECORD.value)
    return replace(recipe, training=training, privacy=privacy), (said,)


def _with_cohort(recipe: Recipe, clients: int, given: Collection[str]) -> Recipe:
    """Everybody in every round, unless there are very many."""
    if any(f"training.{key}" in given for key in ("sampling", "cohort", "rate")):
        return recipe
    training = recipe.training
    by_record = training.method in ("dp-sgd", "moments")
    if clients == 1 and by_record and recipe.privacy.trust is None:
        # Nobody to hide a sum among: the only owner adds all noise itself.
        recipe = replace(recipe, privacy=replace(recipe.privacy, trust=Trust.LOCAL.value))
    if clients <= _ALL or training.method == "moments":
        return replace(recipe, training=replace(training, sampling="everyone"))
    return replace(recipe, training=replace(training, cohort=_COHORT))


class _Search:
    """Tries settings out on made-up data, one of rounds, reach and stride at a time.

    Where whole updates are clipped, the reach is how far all rounds together may move the model,
    which also sets the noise on it, and the stride is learning rate times local steps. The rate
    itself is one at which no data of this shape diverge. Where each record's gradient is clipped,
    the reach is that clip, and the stride is beside the same rate.
    """

    def __init__(
        self, recipe: Recipe, federation: Federation, clients: int, given: Collection[str]
    ) -> None:
        self._recipe, self._clients, self._given = recipe, clients, given
        self._by_record = recipe.training.method == "dp-sgd"
        self._rate = 1 / _curvature(federation)
        real = plan_of(replace(recipe, seed=recipe.seed or 0), federation)
        self._epsilon = recipe.privacy.epsilon or 0.0
        self._share = min(1.0, _TRIED / clients)
        least, most = _MOST_STEPS
        self._most_steps = max(least, min(most, _STEPS // round(real.sampling.expected_cohort)))
        self._noise, records = 1.0, _RECORDS
        trial = recipe
        if self._by_record:  # how many records clients have is public
            batch = real.method.local.batch_size or 1
            records = max(1, min(_MOST_RECORDS, round(len(federation.train) / federation.clients)))
            self._noise = min(1.0, records / batch)
            training = replace(recipe.training, batch_size=min(batch, records))
            trial = replace(recipe, training=training)
        signals = _SIGNALS[federation.task]
        self._trials = [
            ProxyTrials(trial, real, Proxy(made, "synthetic"))
            for made in (
                synthetic_proxy(federation, records, signal=signal, clients=min(clients, _TRIED))
                for signal in signals
            )
        ]
        self._outcomes: dict[Candidate, list[Outcome]] = {}

    def best(self) -> Point:
        # As many rounds as there may be: where everybody takes part, the noise on how far all
        # of them lead together does not depend on their number.
        point: Point = {"rounds": 6, "reach": 2, "stride": 1}
        if self._by_record:
            point = {"rounds": 6, "reach": 1, "stride": 2}
        for _ in range(_PASSES):
            before = point
            for name in point:
                point = self._along(name, point)
            if point == before:
                break
        return point

    def _along(self, name: str, point: Point) -> Point:
        """The best point on a line through this one, as far as each step is worth it."""
        for direction in (1, -1):
            start = point
            while True:
                there = {**point, name: point[name] + direction}
                if not _LEAST[name] <= there[name] <= _MOST[name] or self._too_long(there):
                    break
                if not self._score(there) < self._score(point) - _BETTER:
                    break
                point = there
            if point != start:
                break
        return point

    def _too_long(self, point: Point) -> bool:
        """Whether clients would go further in all rounds together than is worth the time."""
        return not self._by_record and point["rounds"] + point["stride"] > _FARTHEST

    def _score(self, point: Point) -> float:
        """Sum of the logarithms of the losses: as good as possible on every made-up table."""
        losses = [outcome.loss for outcome in self.outcomes(point)]
        return sum(math.log(max(loss, 1e-12)) for loss in losses)

    def outcomes(self, point: Point) -> list[Outcome]:
        candidate = self.candidate(point)
        if candidate not in self._outcomes:
            trial = self._trial(candidate)
            self._outcomes[candidate] = [trials(trial) for trials in self._trials]
        return self._outcomes[candidate]

    def _trial(self, candidate: Candidate) -> Trial:
        """About the same path in fewer, longer steps: made-up data are known to stand them."""
        stride = candidate.learning_rate * candidate.local_steps
        steps = min(candidate.local_steps, math.ceil(stride * (1 + _CURVED / self._rate)))
        shorter = replace(candidate, local_steps=steps, learning_rate=stride / steps)
        return Trial(shorter, self._epsilon, self._share, 0, self._noise)

    def candidate(self, point: Point) -> Candidate:
        """The settings that a point stands for, with what the user has set."""
        rounds, stride = 2 ** point["rounds"], 2.0 ** point["stride"]
        if self._by_record:
            found = Candidate(1, rounds, _short(stride * self._rate), 2.0 ** point["reach"])
        else:
            steps = max(1, min(self._most_steps, round(stride / self._rate)))
            clip = _short(2.0 ** point["reach"] / rounds)
            found = Candidate(
                steps, rounds, _short(min(stride / steps, _STABLE * self._rate)), clip
            )
        recipe = self._recipe
        kept = {
            key.partition(".")[2]: getattr(getattr(recipe, section), name)
            for key in _CHOSEN
            for section, _, name in [key.partition(".")]
            if key in self._given
        }
        if "training.local_epochs" in self._given:  # with whole batches the same
            kept["local_steps"] = recipe.training.local_epochs
        return replace(found, **kept)

    def recipe_with(self, point: Point) -> Recipe:
        """The recipe with the settings of a point where the user has set nothing."""
        made = recipe_with_settings(self._recipe, self.candidate(point))
        training = made.training
        if "training.local_epochs" in self._given:
            epochs = self._recipe.training.local_epochs
            training = replace(training, local_steps=None, local_epochs=epochs)
        return replace(made, training=training)

    def sentence(self, chosen: Recipe) -> str:
        training, clip = chosen.training, chosen.privacy.clip_norm
        local = f"{training.local_epochs} local epochs"
        if training.local_steps is not None:
            local = (
                "1 local step"
                if training.local_steps == 1
                else f"{training.local_steps} local steps"
            )
        whose = "each row's gradient" if self._by_record else "each client's update"
        averages = chosen.server.average not in (None, Average.NONE)
        averaged = ", the last rounds' models averaged" if averages else ""
        return (
            f"Settings: {training.rounds} rounds of {local} at rate {training.learning_rate:g}, "
            f"{whose} clipped to {clip:g}{averaged}; chosen by {self.runs} short runs on made-up "
            "data with these columns, clients and budget, not by looking at any row. --set changes "
            "them."
        )

    @property
    def runs(self) -> int:
        return len(self._trials) * len(self._outcomes)

    def warning(self, point: Point) -> str:
        """A sentence if even predictable data come out hardly better than the constant answer."""
        hopeless = [self._hopeless(trials, point) for trials in self._trials]
        if not hopeless[0]:
            return ""
        what = "even if the columns tell nearly everything about the label"
        if not hopeless[-1]:
            what = "unless the columns tell nearly everything about the label"
        less = "" if self._by_record else "protect single rows (--unit record), "
        return (
            f"do not expect the model to beat a constant answer with {self._clients} clients at "
            f"epsilon {self._epsilon:g}, {what}; {less}use fewer columns, or raise privacy.epsilon"
        )

    def _hopeless(self, trials: ProxyTrials, point: Point) -> bool:
        """Whether most runs under seeds that have chosen nothing are no result."""
        trial, worst = self._trial(self.candidate(point)), _LEARNT * trials.trivial()
        few, most = _FRESH
        missed = 0
        for seed in range(1, most + 1):
            missed += trials(replace(trial, seed=seed)).error > worst
            if seed == few and missed in (0, few):
                return missed > 0
        return 2 * missed > most


_OURS = ("dp-fedavg", "dp-sgd", "moments")
_CHOSEN = (
    "training.rounds",
    "training.local_steps",
    "training.learning_rate",
    "privacy.clip_norm",
)


def _curvature(federation: Federation) -> float:
    """The largest curvature of a linear model's mean loss on standardised inputs of this shape."""
    encoder = federation.encoder
    length = 1.0 + (math.prod(federation.input_shape) if encoder is None else len(encoder.columns))
    if federation.task is Task.MULTI_LABEL:  # a mean over labels, each with weights of its own
        return length / (4 * federation.classes)
    return length if federation.task is Task.REGRESSION else length / 2


def _short(value: float) -> float:
    return float(f"{value:.3g}")
