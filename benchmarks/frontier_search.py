"""Settings of the best recipes, looked for on data that stand in for theirs.

    python -m benchmarks.frontier_search            # what is missing of every search
    python -m benchmarks.frontier_search mnist      # of one federation's
    python -m benchmarks.frontier_search --write    # recipes with what was found

A search asks one question after another, each with everything else as it is: which of these
features, rates, numbers of rounds; and it climbs, along a ladder of clips or rates, as long as
the next rung is better. It begins at epsilon 2; every other epsilon begins with what the one
before it, towards 2, has ended with. The federations themselves are not looked at. Trials stand in
results/frontier-search.json, so that an interrupted search goes on where it stopped; the recipes
have what was best (`tests/docs/test_frontier.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from benchmarks.frontier import RESULTS, best_recipes, epsilon_of, measured, name_of
from benchmarks.frontier_proxies import PROXIES
from fedveil.config import recipe as recipes
from fedveil.data.federation import Federation
from fedveil.privacy.accountants.exact import gaussian_noise

FILE = RESULTS / "frontier-search.json"
BEGIN = 2.0

Settings = dict[str, Any]  # by the names that recipes have for them


@dataclass(frozen=True)
class Question:
    """Alternatives, each with a few settings; at some epsilons only, if they are named. The first
    is taken that is less than the margin behind the best."""

    alternatives: tuple[Mapping[str, Any], ...]
    at: tuple[float, ...] = ()
    margin: float = 0.0

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
    by_loss: bool = False  # or by accuracy: which of a table's rows are near a border is luck


def ask(key: str, *values: Any, at: tuple[float, ...] = (), margin: float = 0.0) -> Question:
    return Question(tuple({key: value} for value in values), at, margin)


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


def images(*features: Mapping[str, Any], way: float) -> Search:
    lengths = tuple(
        {"training.learning_rate": rate, "short": short}
        for rate in (8.0, 32.0)
        for short in (False, True)
    )
    begin = {
        **features[0],
        **lengths[0],
        "training.rounds": 30,
        "training.local_steps": 8,
        "server.average": "polynomial",
        "way": way,
    }
    rounds = ask("training.rounds", 30, 60, 120, at=(2.0, 8.0), margin=0.002)
    steps = (
        Climb("way"),
        Question(features, (2.0,)),
        Question(lengths, (2.0, 8.0)),
        rounds,
        ask("training.local_steps", 8, 4, 16, at=(2.0,), margin=0.002),
        ask("server.average", "polynomial", "none", at=(2.0,), margin=0.002),
        Climb("way"),
    )
    return Search(begin, steps, along_a_way)


def features(kind: str, whiten: str | None = None, mirror: bool | None = None) -> Settings:
    return {"model.features": kind, "model.whiten": whiten, "model.mirror": mirror}


PLAIN, STROKES, LEAVES = (features("scattering", whiten) for whiten in (None, "strokes", "leaves"))
WRITING = (STROKES, LEAVES, PLAIN)
PHOTOS = (
    LEAVES,
    PLAIN,
    features("patches", "leaves"),
    features("patches", "leaves", mirror=True),
)


SEARCHES = {
    "mnist": images(*WRITING, way=180.0),
    "femnist": images(*WRITING, way=180.0),
    "cifar-even": images(*PHOTOS, way=180.0),
    "shakespeare": Search(
        {"training.learning_rate": 20.0, "share": 0.03},
        (
            Climb("training.learning_rate"),
            ask("share", 0.01, 0.03, 0.1, at=(2.0,)),
            Climb("training.learning_rate"),
        ),
        in_proportion,
    ),
    "digits": Search(
        {"model.scales": 1, "training.learning_rate": 8.0, "privacy.clip_norm": 1.0},
        (
            Climb("privacy.clip_norm"),
            ask("model.scales", 1, 2, at=(2.0,)),
            ask("training.learning_rate", 2.0, 8.0, 32.0),
            Climb("privacy.clip_norm"),
        ),
        seeds=2,
    ),
    "adult": Search(
        {"training.rounds": 60, "training.learning_rate": 1.0, "privacy.clip_norm": 1.0},
        (
            Climb("privacy.clip_norm"),
            ask("training.learning_rate", 0.5, 1.0, 2.0, 4.0),
            ask("training.rounds", 30, 60, 100),
            Climb("privacy.clip_norm"),
        ),
        seeds=2,
        by_loss=True,
    ),
    "lending-club": Search(
        {"training.rounds": 30, "training.learning_rate": 0.1, "privacy.clip_norm": 4.0},
        (
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


@dataclass(frozen=True)
class Follows:
    """A federation with the settings of another's search, but for a few."""

    other: str
    but: Settings = field(default_factory=dict)


FOLLOWS = {
    "mnist-writers": Follows("mnist"),
    "cifar-uneven": Follows("cifar-even"),
    "svhn": Follows("cifar-even", LEAVES),  # digits, which are not to be mirrored
}


# What no search asked was decided by trials on these data themselves (docs/frontier.md), so their
# recipes own up to them, and are certified on other data only.
OWN = {
    *("mnist", "mnist-writers", "cifar-even", "cifar-uneven", "svhn"),
    *("shakespeare", "adult", "lending-club-local"),
}


class Scores(Protocol):
    def score(self, epsilon: float, chosen: Settings) -> float: ...


def key_of(epsilon: float, chosen: Settings) -> str:
    return f"{epsilon:g}: {json.dumps(chosen, sort_keys=True)}"


class Trials:
    """Every trial of a federation's stand-in; those of earlier calls are kept."""

    def __init__(self, name: str) -> None:
        self._name, self._proxy = name, PROXIES[name]
        self._federation = cache(self._proxy.make)

    def score(self, epsilon: float, chosen: Settings) -> float:
        """The more, the better: test accuracy, or the test loss's negative."""
        key = key_of(epsilon, chosen)
        scores = kept().get(self._name, {}).get("trials", {}).get(key)
        if scores is None:
            federation = self._federation()
            recipe, search = self._recipe(epsilon, chosen, federation), SEARCHES[self._name]
            found = [measured(recipe, seed, federation) for seed in range(1, search.seeds + 1)]
            scores = [-one["loss"] if search.by_loss else one["accuracy"] for one in found]
            keep(self._name, "trials", key, scores)
            print(self._name, key, scores, flush=True)
        return float(sum(scores) / len(scores))

    def _recipe(self, epsilon: float, chosen: Settings, federation: Federation) -> recipes.Recipe:
        """The federation's recipe with these settings, on the data that stand in for its own."""
        changes = {**chosen, "privacy.epsilon": epsilon, "privacy.tuned_on": []}
        table = recipes.read(Path(f"best/{self._name}-epsilon-{epsilon:g}"))
        table = {**table, "data": {"source": self._proxy.source}}
        if self._proxy.clients is not None:
            share = federation.clients / self._proxy.clients
            noise = gaussian_noise(epsilon, table["privacy"]["delta"])
            scaled = noise * math.sqrt(chosen["training.rounds"]) * share
            del table["privacy"]["epsilon"], changes["privacy.epsilon"]
            changes["privacy.noise_multiplier"] = scaled
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
        elif not step.at or epsilon in step.at:
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


def search(name: str) -> None:
    epsilons = [epsilon_of(one) for one in best_recipes() if name_of(one) == name]
    trials, ends = Trials(name), {BEGIN: SEARCHES[name].begin}
    for before, epsilon in order(epsilons):
        ends[epsilon] = searched(SEARCHES[name], epsilon, ends[before], trials)
        chosen = SEARCHES[name].recipe(ends[epsilon])
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
    follows = FOLLOWS.get(name, Follows(name))
    table = recipes.read(Path(f"best/{name}-epsilon-{BEGIN:g}"))
    own = [table["data"]["source"]] if name in OWN else []
    looked_at = {"privacy.tuned_on": [PROXIES[follows.other].name, *own]}
    chosen: dict[str, Settings] = kept()[follows.other]["chosen"]
    return {epsilon: {**one, **follows.but, **looked_at} for epsilon, one in chosen.items()}


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
