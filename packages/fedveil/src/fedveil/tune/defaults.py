"""Settings for a table that nobody has tuned, found in seconds without looking at its rows.

They follow from public facts alone: the table's columns, how many clients there are, the budget and
the unit. Settings are tried out on made-up data of the same shape, of which little or nearly
everything can be predicted: what is chosen must do well on both, because nobody knows what the true
rows are like.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedveil.core.arguments import one_of, optional
from fedveil.core.display import amount
from fedveil.core.errors import FedveilError
from fedveil.core.units import Trust, Unit
from fedveil.data.declared import CLASS_NAMES
from fedveil.data.dp_schema import FEW, MISSED, Bought, affordable
from fedveil.data.encoder import unreadable
from fedveil.data.federation import Federation, Task
from fedveil.data.folder import refuse_trained
from fedveil.data.media import media_of
from fedveil.data.public_facts import PublicFacts, public_facts
from fedveil.data.rows import blank_row
from fedveil.data.table import STANDARDISED
from fedveil.planning.assemble import (
    federation_of,
    offer_of,
    plan_of,
    refuse_baseline,
    with_batch,
    with_table_model,
)
from fedveil.planning.recipe import DataSection, Recipe, with_defaults
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.privacy.accounting import default_delta
from fedveil.privacy.rounding import at_most
from fedveil.run.run import Run, Speed
from fedveil.training.client.batches import unit_sizes
from fedveil.training.server.averaging import Average
from fedveil.tune.proxy import Proxy
from fedveil.tune.space import Point, Space, short
from fedveil.tune.synthetic_proxy import synthetic_proxy
from fedveil.tune.trials import Candidate, ProxyTrials, recipe_with_settings
from fedveil.tune.tuner import SearchProgress, Tuner

_ALL = 2000  # clients: up to so many take part in every round
_COHORT = 1000  # of more
_SIGNALS = {  # weak, strong
    Task.REGRESSION: (0.7, 8.0),
    Task.CLASSIFICATION: (1.5, 6.0),
    Task.MULTI_LABEL: (1.5, 6.0),
}
_RECORDS = 50  # of a made-up client: how many the true ones have is private
_NETWORK_BATCH = 1024  # expected of a client's records in a step of a network, at most
_MOST_RECORDS = 400  # of a made-up client where sizes are public
_TRIED = 64  # clients of a trial
_MOST_STEPS = (100, 400)  # of a client in a round, among many clients and among few,
_STEPS = 20_000  # and of all of them together
_STABLE = 1.5  # times one over the largest curvature; from twice on, steps may grow without end
_CURVED = 0.4  # of the largest possible curvature: made-up data have less
_SEEDS = 2  # of every comparison
_FRESH = (5, 15)  # seeds: all of the first, or most of the last, say whether it can work
_BETTER = 0.005  # of the logarithm of a loss, by which a change must pay
# A result is hardly one if it is better than a constant answer by less than a share of that
# answer's loss, and by less than a share of what the same model gains where there is no noise.
_LEARNT, _OF_GAIN = 0.05, 0.25
_NO_NOISE = 1e-6  # times the noise
_VISIBLE = 2.0  # times the noise on all inputs together that the units' sum must be
# Of steps on bins, chosen on tables CHOSEN_ON of benchmarks/own_data_peers.py, with a look at
# trials on its others.
_PATH, _PATH_POWER = 3.0, 0.7  # rates of all steps times curvature, by units beside the noise
_FARTHEST_ERROR = 2.5  # deviations of the label at which an error is clipped
_SUREST = 0.7  # error of a probability at which it is clipped
EFFORT = 30_000.0  # of the search, in about milliseconds
_BOX = {"rounds": (1.0, 6.0), "reach": (-8.0, 8.0), "stride": (-6.0, 4.0)}  # exponents of two
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
    recipe: Recipe,
    given: Collection[str],
    pay: Pay | None = None,
    *,
    buy: bool = True,
    show: Callable[[SearchProgress], None] = lambda progress: None,
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
        buy: off, they are drawn as a run would draw them, but nothing is paid: what comes of it
            may be shown to the rows' owner, and must not be run.
        show: is told of the search's progress.

    Returns:
        The recipe with its settings, its federation, and what to tell the user.
    """
    if "training.local_epochs" in given:
        given = {*given, "training.local_steps"}
    facts = _public_facts(recipe.data)
    # Pictures and artificial clients are known by their data alone.
    federation = federation_of(recipe.data) if facts is None else None
    counted = facts or federation
    if counted is None:
        raise RuntimeError("data have facts, or are read")
    clients = recipe.privacy.public_clients or counted.clients
    recipe, notes = _with_unit(recipe, clients, given)
    settled = False  # whether there is nothing to tune
    if facts is not None:
        notes += _asked_for_persons(recipe, facts.columns)
        asked, recipe = recipe, with_table_model(recipe, given, clients, facts)
        settled = recipe is not asked
    recipe = with_defaults(_with_cohort(recipe, clients, given))
    recipe = _with_secret_batches(recipe, counted, given)
    if facts is not None and recipe.training.method in _OURS:
        recipe, federation, statistics = _with_statistics(recipe, facts, clients, pay, buy)
        notes += statistics
    federation = federation or federation_of(recipe.data)
    if settled or recipe.training.method == "moments":
        how = "one noisy sum of second moments"
        if facts is not None and recipe.training.method == "dp-sgd":
            unit = one_of(Unit)("privacy.unit", recipe.privacy.unit)
            recipe = _with_noisy_steps(recipe, federation, facts.units(unit))
            how = f"the rows, in {recipe.training.rounds} noisy steps on all of them"
        said = (
            f"Model: numbers are cut into about {recipe.data.bins} bins, and a linear model is "
            f"fitted to {how}. Nothing was tuned; --set training.method=dp-sgd (or dp-fedavg) "
            "looks for settings instead."
        )
        return Chosen(
            recipe, federation, clients, (*notes, said), _too_few(recipe, federation, facts)
        )
    tuned = recipe.privacy.epsilon is None or set(_CHOSEN) <= set(given)
    if tuned or recipe.training.method not in _OURS:
        return Chosen(recipe, federation, clients, notes)
    if "server.average" not in given:  # of what is released anyway: it costs nothing
        recipe = replace(recipe, server=replace(recipe.server, average=Average.POLYNOMIAL.value))
    search, space = _tuner(recipe, federation, clients, given)
    search.show = show
    candidate = search.run()
    if search.interrupted:  # whoever presses Ctrl-C wants no training either
        raise KeyboardInterrupt
    chosen, epochs = recipe_with_settings(recipe, candidate), recipe.training.local_epochs
    if "training.local_epochs" in given:
        training = replace(chosen.training, local_steps=None, local_epochs=epochs)
        chosen = replace(chosen, training=training)
    notes = (*notes, _sentence(chosen, len(search.outcomes), by_record=space.by_record))
    notes += _wide_ranges(federation)
    warning = _warning(search, candidate, clients, by_record=space.by_record)
    return Chosen(chosen, federation, clients, notes, warning)


def _public_facts(data: DataSection) -> PublicFacts | None:
    """The facts of a table whose clients have names; None for other data, where nothing can be
    bought. Rows that are dealt by other rules than their owners' names decide who takes part."""
    if data.file is None or data.client_column is None or data.label is None:
        return None
    by_owner = data.partition in (None, "owner") and data.examples_per_client is None
    path = Path(data.file)
    if not by_owner or (path.is_dir() and media_of(path, deep=data.file_labels is not None)):
        return None
    facts = public_facts(path, data.client_column, data.person_column)
    drawn = facts.clients if data.clients is None else min(facts.clients, data.clients)
    return replace(facts, clients=drawn)


def _with_statistics(
    recipe: Recipe, facts: PublicFacts, clients: int, pay: Pay | None, buy: bool
) -> tuple[Recipe, Federation, tuple[str, ...]]:
    """Buy the columns' statistics if nobody has described them and there are enough to hide in."""
    data = recipe.data
    if data.schema or data.columns:
        return recipe, federation_of(data), ()
    optional(one_of(("bought", "data")))("data.statistics", data.statistics)
    offer = offer_of(recipe, clients, facts.units)
    open_rows = replace(data, statistics=None)
    if data.statistics == "data" or offer is None:
        return recipe, federation_of(open_rows), ()
    units = clients if offer.unit is Unit.CLIENT else facts.units(offer.unit)
    if data.statistics is None and not affordable(offer, units, len(facts.columns)):
        less = ", or protect single rows (--unit record)" if offer.unit is Unit.CLIENT else ""
        said = (
            f"{units:,} {offer.unit}s are too few to buy statistics of the columns with noise, so "
            "they are taken from the rows, and the guarantee is not certified; describe the "
            f"columns (fedveil data schema writes a draft){less}."
        )
        return recipe, federation_of(open_rows), (said,)
    _rehearse(recipe, facts, clients)
    notes: tuple[str, ...] = ()
    if not buy:
        notes = (
            "A run buys the columns' statistics with a part of the budget. Here they were drawn "
            "with the same noise and nothing was paid, so this plan is for your eyes only; a run "
            "draws them anew.",
        )
    elif pay is not None:
        offer = replace(offer, pay=partial(pay, delta=offer.missed / MISSED))
    federation = federation_of(data, offer)
    if federation.encoder is None or federation.bought is None:
        raise RuntimeError("statistics were bought for a table")
    document = federation.encoder.to_dict()
    columns = dict(document["columns"])
    if not {CLASS_NAMES, STANDARDISED} & set(federation.unprotected):
        columns |= dict.fromkeys(federation.encoder.labels, document["target"])
    data = replace(data, columns=columns, bought=federation.bought.to_dict())
    return replace(recipe, data=data), federation, notes


def _rehearse(recipe: Recipe, facts: PublicFacts, clients: int) -> None:
    """Refuse settings that cannot work, before anything is paid for.

    They are tried on a table with the same header and as many clients, whose rows are made up. If
    nobody has said what is predicted, settings must fit classes or numbers.
    """
    data = recipe.data
    if data.test_file is not None:  # made-up rows are in no file
        refuse_trained(Path(data.test_file), Path(str(data.file)))
    owners = np.repeat(np.arange(clients), 2)
    label = str(data.label)
    labels = [label] if label in facts.columns else [part.strip() for part in label.split(",")]
    names = list(data.classes or recipe.training.class_weights or ("false", "true"))
    number: dict[str, Any] = {"type": "number", "min": 0, "max": 1}
    classes: dict[str, Any] = {"type": "category", "categories": names}
    if data.label_separator is not None:
        classes["separator"] = data.label_separator
    targets = [classes, number]
    if len(labels) > 1:
        targets = [{"type": "boolean"}]
    elif data.task is not None:
        targets = [number if data.task == Task.REGRESSION else classes]
    taken = (*labels, data.client_column, data.person_column)
    blank = blank_row(Path(str(data.file)))
    readable = [name for name in facts.columns if not unreadable(blank.column(name))]
    columns = {name: number for name in readable if name not in taken}
    refused: FedveilError | None = None
    for target in targets:
        value = names[0] if target is classes else "0"
        rows: dict[str, Any] = {name: np.zeros(len(owners)) for name in columns}
        rows |= {name: np.full(len(owners), value) for name in labels}
        rows |= {str(data.client_column): owners, str(data.person_column): np.arange(len(owners))}
        described = {**columns, **dict.fromkeys(labels, target)}
        made_up = replace(data, columns=described, schema=None, statistics=None, classes=())
        try:
            plan = plan_of(recipe, federation_of(made_up, rows=rows))
            refuse_baseline(recipe, plan)
            Run(
                plan, speed=Speed(*vars(recipe.engine).values()), every=recipe.evaluation.every
            ).close()
            return
        except FedveilError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def _with_unit(
    recipe: Recipe, clients: int, given: Collection[str]
) -> tuple[Recipe, tuple[str, ...]]:
    """Whom to protect, if nobody says: single records where there are few clients."""
    privacy = recipe.privacy
    if "training.method" in given or privacy.unit is not None:
        return recipe, ()
    if clients >= FEW:
        said = (
            "Whole clients are protected; --unit record protects single rows, with less noise "
            "where clients have several."
        )
        return replace(recipe, privacy=replace(privacy, unit=Unit.CLIENT.value)), (said,)
    named = recipe.data.person_column is not None
    whom = "persons with all their rows are" if named else "single rows are"
    said = (
        f"{amount(clients, 'client')} {'is' if clients == 1 else 'are'} too few to hide what one "
        f"of them brings, so {whom} protected, not "
        "whole clients; --unit client insists."
    )
    training = replace(recipe.training, method="dp-sgd")
    privacy = replace(privacy, unit=(Unit.PERSON if named else Unit.RECORD).value)
    return replace(recipe, training=training, privacy=privacy), (said,)


_PERSON = re.compile(
    r"(patient|person|subject|participant|individual|member|customer|user|student|pupil|employee"
    r"|borrower|insured|resident)s?[ _.-]?(id|no|nr|num|number|key|code|name|identifier)?|mrn|pid",
    re.IGNORECASE,
)


def _asked_for_persons(recipe: Recipe, columns: Sequence[str]) -> tuple[str, ...]:
    """Ask which column names persons if single rows are protected and one looks like it.

    The names in a header are public, and nothing else is looked at.
    """
    data = recipe.data
    if recipe.privacy.unit != Unit.RECORD or data.person_column is not None:
        return ()
    others = [name for name in columns if name not in (data.label, data.client_column)]
    found = next((name for name in others if _PERSON.fullmatch(name.strip())), None)
    if found is None:
        return ()
    return (
        f"Is {found!r} a person with several rows? They are protected one at a time; "
        f"--person-column {shlex.quote(found)} protects all rows of a person together.",
    )


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


def _is_linear(recipe: Recipe) -> bool:
    return recipe.model.name in ("auto", "linear", "logistic") and not recipe.model.hidden


def _with_secret_batches(
    recipe: Recipe, counted: PublicFacts | Federation, given: Collection[str]
) -> Recipe:
    """Choose the share of records, or persons, that is in a step.

    All of them for a linear model, whose loss is convex: few steps are enough, and for a number of
    steps the noise beside a mean gradient is then least. A network needs many steps, which cost too
    much with all records of a large client: its steps take secret batches of a bounded expected
    size. Batches of rate one are secret ones, which are summed in double precision.
    """
    training, keys = recipe.training, ("training.batch_size", "training.batches")
    chosen = any(key in given for key in (*keys, "training.batch_rate", "privacy.adjacency"))
    if training.method != "dp-sgd" or chosen:
        return recipe
    rate = 1.0
    if not _is_linear(recipe):
        unit = one_of(Unit)("privacy.unit", recipe.privacy.unit or Unit.RECORD)
        if not isinstance(counted, Federation):
            units = counted.units(unit)
        else:
            units = int((counted.persons.sizes if unit is Unit.PERSON else counted.sizes).sum())
        rate = min(1.0, _NETWORK_BATCH * counted.clients / max(1, units))
    return replace(recipe, training=replace(training, batch_rate=rate))


def _with_noisy_steps(recipe: Recipe, federation: Federation, units: int) -> Recipe:
    """Return the recipe with rate and clip of few noisy gradients of all rows, on bins.

    Each column has one input that is 1, so every row has the same length, and how long its gradient
    is follows from its error alone. How far the model may go follows from the units' signal beside
    the noise.

    Args:
        recipe: With a unit of record or person, and the number of rounds.
        federation: A table.
        units: How many rows or persons there are; public.
    """
    privacy, server = recipe.privacy, recipe.server
    epsilon, delta = privacy.epsilon or 4.0, privacy.delta or default_delta(units)
    path = _PATH * (units / gaussian_noise(epsilon, delta)) ** _PATH_POWER
    rate = path / recipe.training.rounds * (1 - server.momentum) / _curvature(federation)
    error = {
        Task.REGRESSION: _FARTHEST_ERROR,
        Task.MULTI_LABEL: _SUREST / math.sqrt(max(1, federation.classes)),
    }.get(federation.task, _SUREST * math.sqrt(2))  # a row of classes moves two of them
    clip = error * math.sqrt(_columns(federation))
    return replace(
        recipe,
        training=replace(recipe.training, learning_rate=short(rate)),
        privacy=replace(privacy, clip_norm=short(clip)),
    )


class TableSpace(Space):
    """Rounds, reach and stride of a run on a table, as exponents of two.

    Where whole updates are clipped, the reach is how far all rounds together may move the model,
    which also sets the noise on it, and the stride is learning rate times local steps. The rate
    itself is one at which no data of this shape diverge. Where each record's gradient is clipped,
    the reach is that clip, and the stride is beside the same rate.
    """

    def __init__(
        self, recipe: Recipe, federation: Federation, cohort: float, given: Collection[str]
    ) -> None:
        self.by_record = recipe.training.method == "dp-sgd"
        self._rate = 1 / _curvature(federation)
        least, most = _MOST_STEPS
        self._most_steps = max(least, min(most, _STEPS // round(cohort)))
        self._kept = {
            name: getattr(getattr(recipe, section), name)
            for section, _, name in (key.partition(".") for key in _CHOSEN if key in given)
        }
        if "training.local_epochs" in given:  # with whole batches the same
            self._kept["local_steps"] = recipe.training.local_epochs

    @property
    def box(self) -> Mapping[str, tuple[float, float]]:
        return _BOX

    @property
    def start(self) -> Point:
        # As many rounds as there may be: where everybody takes part, the noise on how far all
        # of them lead together does not depend on their number.
        reach, stride = (1.0, 2.0) if self.by_record else (2.0, 1.0)
        return {"rounds": 6.0, "reach": reach, "stride": stride}

    def candidate(self, at: Point) -> Candidate:
        rounds, stride = round(2 ** at["rounds"]), 2.0 ** at["stride"]
        if self.by_record:
            found = Candidate(1, rounds, short(stride * self._rate), 2.0 ** at["reach"])
        else:
            steps = max(1, min(self._most_steps, round(stride / self._rate)))
            rate = short(min(stride / steps, _STABLE * self._rate))
            found = Candidate(steps, rounds, rate, short(2.0 ** at["reach"] / rounds))
        return replace(found, **self._kept)

    def simulated(self, candidate: Candidate) -> Candidate:
        """Take about the same path in fewer, longer steps: made-up data are known to stand them."""
        stride = candidate.learning_rate * candidate.local_steps
        steps = min(candidate.local_steps, math.ceil(stride * (1 + _CURVED / self._rate)))
        return replace(candidate, local_steps=steps, learning_rate=stride / steps)

    def moved(self, at: Point, name: str, steps: float) -> Point | None:
        there = super().moved(at, name, steps)
        if there is None or self.by_record or there["rounds"] + there["stride"] <= _FARTHEST:
            return there
        return None


def _tuner(
    recipe: Recipe, federation: Federation, clients: int, given: Collection[str]
) -> tuple[Tuner, TableSpace]:
    """Prepare a search on made-up tables of little and of much signal."""
    recipe = with_batch(recipe, federation)
    real = plan_of(replace(recipe, seed=recipe.seed or 0), federation)
    space = TableSpace(recipe, federation, real.sampling.expected_cohort, given)
    noise, records, trial = 1.0, _RECORDS, recipe
    if space.by_record:  # how many records or persons clients have is public
        batch = real.method.local.batch_size or 1
        units = int(unit_sizes(federation, real.method.local).sum())
        records = max(1, min(_MOST_RECORDS, round(units / federation.clients)))
        fewer = min(batch, records)
        if recipe.training.batch_rate is not None:  # expected among so many
            fewer = max(1, round(recipe.training.batch_rate * records))
        noise = min(1.0, fewer / batch)
        trial = replace(recipe, training=replace(recipe.training, batch_size=fewer))
    proxies = [
        ProxyTrials(trial, real, Proxy(made, "synthetic"))
        for made in (
            synthetic_proxy(federation, records, signal=signal, clients=min(clients, _TRIED))
            for signal in _SIGNALS[federation.task]
        )
    ]
    search = Tuner(
        proxies,
        space,
        recipe.privacy.epsilon or 0.0,
        EFFORT,
        spread=1,
        seeds=(_SEEDS,),
        steps=(1.0,),
        better=_BETTER,
        measure=attrgetter("loss"),  # also where most answers are right by chance
        share=min(1.0, _TRIED / clients),
        noise=noise,
    )
    return search, space


def _sentence(chosen: Recipe, runs: int, *, by_record: bool) -> str:
    training, clip = chosen.training, chosen.privacy.clip_norm
    local = f"{training.local_epochs} local epochs"
    if training.local_steps is not None:
        steps = training.local_steps
        local = amount(steps, "local step")
    whose = "each client's update"
    if by_record:
        person = chosen.privacy.unit == Unit.PERSON
        whose = "each person's mean gradient" if person else "each row's gradient"
        if training.batch_rate == 1:
            why = "best for a convex model" if _is_linear(chosen) else "the least noise for few"
            local += f" on all rows ({why})"
        elif training.batch_rate is not None:
            local += (
                f" on secret batches, each with one row in {1 / training.batch_rate:.3g} (a "
                "network needs more steps than all rows in each would allow)"
            )
    averages = chosen.server.average not in (None, Average.NONE)
    averaged = ", the last rounds' models averaged" if averages else ""
    return (
        f"Settings: {training.rounds} rounds of {local} at rate {training.learning_rate:g}, "
        f"{whose} clipped to {clip:g}{averaged}; chosen by {runs} short runs on made-up data with "
        "these columns, clients and budget, not by looking at any row. --set changes them."
    )


def _wide_ranges(federation: Federation) -> tuple[str, ...]:
    """Return advice on numbers that a declared range scales, where training is tuned for others.

    Made-up numbers are standardised. True ones in a wide range hardly differ, so that the weights
    they need lie farther than clipped updates lead.
    """
    columns = federation.encoder.columns if federation.encoder else {}
    wide = [name for name, one in columns.items() if one.min is not None and not one.cuts]
    if not wide:
        return ()
    listed = ", ".join(repr(name) for name in wide[:8]) + (" and others" if wide[8:] else "")
    return (
        f"Scaled by min and max: {listed}. If most values lie in a small part of a range, mean "
        "and std in the schema (a public estimate will do) let the model learn more.",
    )


def _too_few(recipe: Recipe, federation: Federation, facts: PublicFacts | None) -> str:
    """Return a warning if noise hides the rows or persons, all of which say the same at best."""
    privacy = recipe.privacy
    unit = one_of(Unit)("privacy.unit", privacy.unit or Unit.RECORD)
    if facts is None or unit is Unit.CLIENT or privacy.epsilon is None:
        return ""
    units = facts.units(unit)
    noise = gaussian_noise(privacy.epsilon, privacy.delta or default_delta(units))
    if units >= _VISIBLE * noise * math.sqrt(math.prod(federation.input_shape)):
        return ""
    return (
        f"do not expect the model to beat a constant answer with {amount(units, str(unit))} at "
        f"epsilon {at_most(privacy.epsilon)}; bring more of them, use fewer columns, or raise "
        "privacy.epsilon"
    )


def _warning(search: Tuner, candidate: Candidate, clients: int, *, by_record: bool) -> str:
    """Return a sentence if even predictable data come out hardly better than a constant answer."""
    hopeless = [_hopeless(search, candidate, number) for number in range(len(search.proxies))]
    if not hopeless[0]:
        return ""
    what = "even if the columns tell nearly everything about the label"
    if not hopeless[-1]:
        what = "unless the columns tell nearly everything about the label"
    less = "" if by_record else "protect single rows (--unit record), "
    return (
        f"do not expect the model to beat a constant answer with {clients} clients at epsilon "
        f"{at_most(search.epsilon)}, {what}; {less}use fewer columns, or raise privacy.epsilon"
    )


def _hopeless(search: Tuner, candidate: Candidate, number: int) -> bool:
    """Return whether most runs under seeds that have chosen nothing are no result.

    Made-up rows of some shapes can hardly be predicted at all; that says nothing about the noise.
    """
    constant = search.proxies[number].constant_loss()
    usual = search.space.candidate(search.space.start)
    bare = min(o.loss for o in search.fresh(usual, 1, number, noise=_NO_NOISE))
    gain = max(0.0, constant - bare)
    worst, runs, missed = constant - min(_LEARNT * constant, _OF_GAIN * gain), 1, 0
    for runs in _FRESH:
        missed = sum(o.loss > worst for o in search.fresh(candidate, runs, number))
        if missed in (0, runs):
            break
    return 2 * missed > runs


_OURS = ("dp-fedavg", "dp-sgd", "moments")
_CHOSEN = (
    *("training.rounds", "training.local_steps", "training.learning_rate"),
    "privacy.clip_norm",
)


def _columns(federation: Federation) -> float:
    """Return how many numbers of about one a row holds, with the constant."""
    encoder = federation.encoder
    return 1.0 + (math.prod(federation.input_shape) if encoder is None else len(encoder.columns))


def _curvature(federation: Federation) -> float:
    """The largest curvature of a linear model's mean loss on standardised inputs of this shape."""
    length = _columns(federation)
    if federation.task is Task.MULTI_LABEL:  # a mean over labels, each with weights of its own
        return length / (4 * federation.classes)
    return length if federation.task is Task.REGRESSION else length / 2
