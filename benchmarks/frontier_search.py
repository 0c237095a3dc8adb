"""Settings of the best recipes, looked for on data that stand in for theirs.

    python -m benchmarks.frontier_search            # what is missing of every search
    python -m benchmarks.frontier_search mnist      # of one federation's
    python -m benchmarks.frontier_search --write    # recipes with what was found

A search asks one question after another, each with everything else as it is: which of these
features, rates, numbers of rounds; and it climbs, along a ladder of clips or rates, as long as
the next rung is better. What kind of features it asks once, the rest twice. It begins at epsilon 2;
every other epsilon begins with what the one before it, towards 2, has ended with. The federations
themselves are not looked at. Trials stand in results/frontier-search.json, so that an interrupted
search goes on where it stopped; the recipes have what was best (`tests/docs/test_frontier.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.frontier import RESULTS, best_recipes, epsilon_of, measured, name_of
from benchmarks.frontier_proxies import HALF, PROXIES
from fedveil.data.federation import Federation
from fedveil.planning import recipe as recipes
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.training.models.features import VERSION as FEATURES_VERSION

FILE = RESULTS / "frontier-search.json"
BEGIN = 2.0
FOUND_ON = ("digits", HALF)  # the drawings that whiten (benchmarks.frontier_features)

Settings = dict[str, Any]  # by the names that recipes have for them


@dataclass(frozen=True)
class Question:
    """Alternatives, each with a few settings; at some epsilons only, if they are named, and only if
    settings are as in `when`. The first is taken that is less than the margin behind the best."""

    alternatives: tuple[Mapping[str, Any], ...]
    at: tuple[float, ...] = ()
    margin: float = 0.0
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def concerns(self, epsilon: float, settings: Settings) -> bool:
        fits = all(settings.get(key) in values for key, values in self.when.items())
        return fits and (not self.at or epsilon in self.at)

    def answer(self, settings: Settings, score: Callable[[Settings], float]) -> Settings:
        tried = [{**settings, **other} for other in self.alternatives]
        scores = [score(one) for one in tried]
        enough = (one >= max(scores) - self.margin for one in scores)
        return next(itertools.compress(tried, enough))


@dataclass(frozen=True)
class Climb:
    """Up or down by a factor of the square root of two, as far as it pays."""

    key: str


Step = Question | Climb


@dataclass(frozen=True)
class Search:
    begin: Settings
    steps: tuple[Step, ...]
    recipe: Callable[[Settings], Settings] = dict  # what a recipe has for these settings
    seeds: int = 1
    by_loss: bool = False  # or by accuracy, where there is one


def ask(
    key: str,
    *values: Any,
    at: tuple[float, ...] = (),
    margin: float = 0.0,
    when: Mapping[str, tuple[Any, ...]] | None = None,
) -> Question:
    return Question(tuple({key: value} for value in values), at, margin, when or {})


def rounded(value: float) -> float:
    """To two digits: settings that people can read."""
    return float(f"{value:.2g}")


def along_a_way(settings: Settings) -> Settings:
    """`way` is rounds x clip x the server's rate, to which noise in the weights is proportional.
    `short`: the clip is half the local rate, which nearly all updates reach, and the server's rate
    makes up for it."""
    own = dict(settings)
    way, short = own.pop("way"), own.pop("short")
    each = way / own["training.rounds"]
    clip = own["training.learning_rate"] / 2 if short else each
    return {
        **own,
        "privacy.clip_norm": rounded(clip),
        "server.learning_rate": rounded(each / clip) if short else 1.0,
    }


def in_proportion(settings: Settings) -> Settings:
    """The clip is a share of the local rate."""
    own = dict(settings)
    share = own.pop("share")
    return {**own, "privacy.clip_norm": rounded(share * own["training.learning_rate"])}


def images(*kinds: Mapping[str, Any]) -> Search:
    lengths = tuple(
        {"training.learning_rate": rate, "short": short}
        for rate in (8.0, 32.0)
        for short in (False, True)
    )
    begin = {
        **kinds[0],
        **lengths[0],
        "training.rounds": 30,
        "training.local_steps": 8,
        "server.average": "polynomial",
        "way": 128.0,
    }
    once = (
        Climb("way"),
        Question(kinds, (2.0,)),
        ask("model.directions", None, 400, 1600, at=(2.0,), when=WHITENED),
        ask("model.patches", None, 512, at=(2.0,), when={"model.features": ("patches",)}),
    )
    twice = (
        Question(lengths, (2.0, 8.0)),
        ask("training.rounds", 30, 60, 120, at=(2.0, 8.0), margin=0.002),
        ask("training.local_steps", 8, 4, 16, at=(2.0,), margin=0.002),
        ask("server.average", "polynomial", "none", at=(2.0,), margin=0.002),
        Climb("way"),
    )
    return Search(begin, (*once, *2 * twice), along_a_way)


def features(kind: str, whiten: str | None = None, mirror: bool | None = None) -> Settings:
    return {
        "model.features": kind,
        "model.whiten": whiten,
        "model.mirror": mirror,
        "model.directions": None,
        "model.patches": None,
    }


PLAIN, STROKES, LEAVES = (features("scattering", whiten) for whiten in (None, "strokes", "leaves"))
PATCHES, MIRRORED = (features("patches", "leaves", mirror) for mirror in (None, True))
WHITENED = {"model.whiten": ("strokes", "leaves")}
MOMENTUM = tuple(  # as far in the end, with or without
    {"server.momentum": momentum, "server.learning_rate": rate}
    for momentum, rate in ((0.9, 1.0), (0.0, 10.0))
)


SEARCHES = {
    "mnist": images(STROKES, LEAVES, PLAIN),
    "femnist": images(STROKES, LEAVES, PLAIN),
    "cifar-even": images(LEAVES, PLAIN, PATCHES, MIRRORED),
    "svhn": images(LEAVES, STROKES, PLAIN, PATCHES),
    "shakespeare": Search(
        {
            "model.hidden": [80, 2048],
            "training.rounds": 40,
            "training.cohort": 195,
            **MOMENTUM[0],
            "server.average": "polynomial",
            "training.learning_rate": 16.0,
            "share": 0.03,
        },
        (
            Climb("training.learning_rate"),
            ask("model.hidden", *([80] + more * [2048] for more in (1, 2, 3)), at=(2.0,)),
            *(
                ask(
                    "model.hidden",
                    *([80] + more * [rows] for rows in (2048, 1024, 4096)),
                    at=(2.0,),
                    when={"model.hidden": ([80] + more * [2048],)},
                )
                for more in (1, 2, 3)
            ),
            *2
            * (
                ask("training.rounds", 40, 20, at=(2.0,)),
                ask("training.cohort", 195, 97, at=(2.0,)),
                ask("share", 0.01, 0.03, 0.1, at=(2.0,)),
                Question(MOMENTUM, (2.0,)),
                ask("server.average", "polynomial", "none", at=(2.0,)),
                Climb("training.learning_rate"),
            ),
        ),
        in_proportion,
    ),
    "digits": Search(
        {"model.scales": 1, "training.learning_rate": 8.0, "privacy.clip_norm": 1.0},
        (
            Climb("privacy.clip_norm"),
            ask("model.scales", 1, 2, at=(2.0,)),
            *2
            * (
                ask("training.learning_rate", 2.0, 8.0, 32.0),
                Climb("privacy.clip_norm"),
            ),
        ),
        seeds=2,
    ),
    "adult": Search(
        {
            "training.rounds": 60,
            "training.learning_rate": 1.0,
            **MOMENTUM[0],
            "server.average": "polynomial",
            "privacy.clip_norm": 1.0,
        },
        (
            Climb("privacy.clip_norm"),
            *2
            * (
                ask("training.learning_rate", 0.5, 1.0, 2.0, 4.0),
                ask("training.rounds", 30, 60, 100),
                Question(MOMENTUM, (2.0,)),
                ask("server.average", "polynomial", "none", at=(2.0,)),
                Climb("privacy.clip_norm"),
            ),
        ),
        seeds=4,
    ),
    "lending-club": Search(
        {"training.rounds": 30, "training.learning_rate": 0.1, "privacy.clip_norm": 4.0},
        2
        * (
            Climb("privacy.clip_norm"),
            ask("training.learning_rate", 0.05, 0.1, 0.2, 0.4, at=(2.0,)),
            ask("training.rounds", 15, 30, 60, at=(2.0,)),
            Climb("privacy.clip_norm"),
        ),
        by_loss=True,
    ),
    "lending-club-local": Search(
        {
            "model.input_norm": None,
            "training.learning_rate": 0.1,
            "training.rounds": 10,
            "training.cohort": 500,
            "privacy.clip_norm": 4.0,
        },
        2
        * (
            Climb("privacy.clip_norm"),
            ask("model.input_norm", None, 1.0, 2.0),
            ask("training.learning_rate", 0.1, 0.2, 0.4, 0.8),
            Question(
                tuple({"training.rounds": n, "training.cohort": 5000 // n} for n in (5, 10, 20))
            ),
            Climb("privacy.clip_norm"),
        ),
        seeds=3,
        by_loss=True,
    ),
}


# Federations of the same pictures, otherwise dealt, have the settings of another's search.
FOLLOWS = {"mnist-writers": "mnist", "cifar-uneven": "cifar-even"}
# These owe their search a decision that knew their own results (docs/frontier.md): SVHN its
# stand-in, Adult its score and seeds, the last that it asks twice. Their recipes own up to it, and
# are not certified there.
LOOKED = {"svhn": "svhn", "adult": "adult", "lending-club-local": "lending-club"}


class Scores(Protocol):
    def score(self, epsilon: float, chosen: Settings) -> float: ...


def key_of(epsilon: float, chosen: Settings) -> str:
    return f"{epsilon:g}: {json.dumps(chosen, sort_keys=True)}"


def noise_for(epsilon: float, delta: float, rounds: int, share: float) -> float:
    """The noise multiplier with which the average of a share of the clients is as noisy as that of
    all of them, who take part in every round."""
    return gaussian_noise(epsilon, delta) * math.sqrt(rounds) * share


class Trials:
    """Every trial of a federation's stand-in; those of earlier calls are kept."""

    def __init__(self, name: str) -> None:
        self._name, self._proxy = name, PROXIES[name]
        self._federations = cache(lambda: tuple(make() for make in self._proxy.tasks))

    def score(self, epsilon: float, chosen: Settings) -> float:
        """The more, the better: test accuracy, or the test loss's negative."""
        found, by_loss = self.found(epsilon, chosen), SEARCHES[self._name].by_loss
        return -float(np.mean(found["loss"])) if by_loss else float(np.mean(found["accuracy"]))

    def found(self, epsilon: float, chosen: Settings) -> dict[str, list[float]]:
        """Accuracies and losses, of every task with one seed after the other."""
        key = key_of(epsilon, chosen)
        known: dict[str, list[float]] | None
        known = kept().get(self._name, {}).get("trials", {}).get(key)
        if known is None:
            runs = [
                measured(self._recipe(epsilon, chosen, federation), seed, federation)
                for federation in self._federations()
                for seed in range(1, SEARCHES[self._name].seeds + 1)
            ]
            measures = ("accuracy", "loss") if "accuracy" in runs[0] else ("loss",)
            known = {what: [run[what] for run in runs] for what in measures}
            keep(self._name, "trials", key, known)
            print(self._name, key, known, flush=True)
        return known

    def _recipe(self, epsilon: float, chosen: Settings, federation: Federation) -> recipes.Recipe:
        """The federation's recipe with these settings, on the data that stand in for its own."""
        changes = {**chosen, "privacy.epsilon": epsilon, "privacy.tuned_on": []}
        table = recipes.read(Path(f"best/{self._name}-epsilon-{epsilon:g}"))
        table = {**table, "data": {"source": self._proxy.source}}
        if self._proxy.clients is not None:
            share = federation.clients / self._proxy.clients
            delta, rounds = table["privacy"]["delta"], chosen["training.rounds"]
            del table["privacy"]["epsilon"], changes["privacy.epsilon"]
            changes["privacy.noise_multiplier"] = noise_for(epsilon, delta, rounds, share)
        if "batch_size" in table["training"]:
            changes["training.batch_size"] = int(federation.sizes.max())
        return recipes.with_defaults(changed(table, changes))


def changed(table: dict[str, Any], settings: Settings) -> recipes.Recipe:
    """A recipe's table with other settings; those that are None are left out."""
    left_out = [name.split(".") for name, value in settings.items() if value is None]
    for section, key in left_out:
        table = {**table, section: {k: v for k, v in table.get(section, {}).items() if k != key}}
    values = {name: value for name, value in settings.items() if value is not None}
    return recipes.parse(table, values=values)


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def keep(name: str, part: str, key: str, value: Any) -> None:
    every = kept()
    every.setdefault(name, {}).setdefault(part, {})[key] = value
    written = FILE.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")
    os.replace(written, FILE)


def searched(search: Search, epsilon: float, begin: Settings, trials: Scores) -> Settings:
    """Where a search ends that begins with these settings."""

    def score(settings: Settings) -> float:
        return trials.score(epsilon, search.recipe(settings))

    settings = dict(begin)
    for step in search.steps:
        if isinstance(step, Climb):
            settings = _climbed(step.key, settings, score)
        elif step.concerns(epsilon, settings):
            settings = step.answer(settings, score)
    return settings


def _climbed(key: str, settings: Settings, score: Callable[[Settings], float]) -> Settings:
    rung = round(2 * math.log2(settings[key]))

    def at(rung: int) -> Settings:
        return {**settings, key: rounded(2 ** (rung / 2))}

    best = score(at(rung))
    for step in (1, -1):
        began = rung
        while (other := score(at(rung + step))) > best:
            rung, best = rung + step, other
        if rung != began:
            break
    return at(rung)


def order(epsilons: Sequence[float]) -> list[tuple[float, float]]:
    """Pairs of epsilons from 2 outwards: the second begins where the first has ended."""
    above = sorted(one for one in epsilons if one >= BEGIN)
    below = sorted((one for one in epsilons if one <= BEGIN), reverse=True)
    return [(BEGIN, BEGIN), *itertools.pairwise(above), *itertools.pairwise(below)]


def ends_of(name: str, trials: Scores) -> Iterator[tuple[float, Settings]]:
    """By epsilon, where the search of a federation's settings ends."""
    epsilons = [epsilon_of(one) for one in best_recipes() if name_of(one) == name]
    ends = {BEGIN: SEARCHES[name].begin}
    for before, epsilon in order(epsilons):
        ends[epsilon] = searched(SEARCHES[name], epsilon, ends[before], trials)
        yield epsilon, SEARCHES[name].recipe(ends[epsilon])


def rest_of(name: str) -> str:
    """Changes with what a federation's trials depended on and the search did not ask for."""
    asked = {*SEARCHES[name].recipe(SEARCHES[name].begin), "privacy.tuned_on", "privacy.epsilon"}
    table = recipes.read(Path(f"best/{name}-epsilon-{BEGIN:g}"))
    left = {
        f"{section}.{key}": value
        for section, own in table.items()
        for key, value in own.items()
        if f"{section}.{key}" not in asked and section != "data"
    }
    about = json.dumps([left, FEATURES_VERSION], sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:12]


def search(name: str) -> None:
    keep(name, "of", "rest", rest_of(name))
    for epsilon, chosen in ends_of(name, Trials(name)):
        keep(name, "chosen", f"{epsilon:g}", chosen)
        print(name, "epsilon", epsilon, "chosen", chosen, flush=True)


def rewritten(text: str, settings: Settings) -> str:
    """A recipe's text with these settings; those at their defaults are left out."""
    for name, value in settings.items():
        section, key = name.split(".")
        head, start, rest = text.partition(f"[{section}]\n")
        body, blank, after = rest.partition("\n[")
        line = f"{key} = {json.dumps(value)}"
        own = re.compile(rf"^{key} = [^#\n]*?(?=\s+#|$)", re.MULTILINE)
        if value in (None, getattr(getattr(recipes.Recipe(), section), key)):
            body = re.sub(rf"^{key} = .*\n?", "", body, flags=re.MULTILINE)
        elif own.search(body):
            body = own.sub(line, body)
        else:
            body = body.rstrip("\n") + f"\n{line}\n"
        text = head + start + body + blank + after
    return text


def chosen_for(name: str) -> dict[str, Settings]:
    """By epsilon, what a federation's recipes have, and on what it was found."""
    other = FOLLOWS.get(name, name)
    proxy, chosen = PROXIES[other], kept()[other]["chosen"]
    found: dict[str, Settings] = {}
    for epsilon, one in chosen.items():
        drawn = FOUND_ON if one.get("model.whiten") else ()
        own = (LOOKED[name],) if name in LOOKED else ()
        looked_at = list(dict.fromkeys((*proxy.names, *drawn, *own)))
        found[epsilon] = {**one, "privacy.tuned_on": looked_at}
    return found


def write(name: str) -> None:
    for epsilon, settings in chosen_for(name).items():
        path = recipes.shipped()[f"best/{name}-epsilon-{epsilon}"]
        path.write_text(rewritten(path.read_text(), settings))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(SEARCHES))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for name in (*given.names, *(FOLLOWS if given.write else ())):
        (write if given.write else search)(name)


if __name__ == "__main__":
    main()
