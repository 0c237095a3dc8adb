"""Who can tell what under secret batches and secret coins: `python -m tests.audit.secret`."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.privacy.distinguishing import attack_on
from fedveil.privacy.rounding import at_least
from fedveil_lab.audit.games import game_of, play
from fedveil_lab.audit.many_runs import many_runs

from .faults import of_persons

# Both at epsilon 4: 40 steps on about 8 of each client's 72 records; 20 rounds of about 20 clients.
RECORDS: dict[str, Any] = {
    "data.clients": 20, "training.method": "dp-sgd", "training.rounds": 40,
    "training.sampling": "balanced", "training.rate": 1.0, "training.batch_size": 8,
    "privacy.epsilon": 4.0, "privacy.clip_norm": 1.0,
}  # fmt: skip
CLIENTS: dict[str, Any] = {
    "data.clients": 100, "training.method": "dp-fedavg", "training.rounds": 20,
    "training.sampling": "secret-poisson", "training.rate": 0.2, "training.local_steps": 1,
    "privacy.trust": "distributed", "privacy.epsilon": 4.0, "privacy.clip_norm": 1.0,
}  # fmt: skip


# The same with three records a person: about 8 of each client's 24 persons in a step.
PERSONS = RECORDS | {"privacy.unit": "person"}


def planned(values: dict[str, Any]) -> Plan:
    given = {name: value for name, value in values.items() if value is not None}
    recipe = recipes.with_defaults(recipes.parse({"data": {"source": "digits"}}, values=given))
    federation = federation_of(recipe.data)
    persons = recipe.privacy.unit == "person"
    return plan_of(recipe, of_persons(federation) if persons else federation)


def row(what: str, who: str, plan: Plan, games: int) -> str:
    """What is proved, what games show, and how often the likelihood ratio guesses a fair coin."""
    assert plan.guarantee is not None
    game, right, done = game_of(plan), 0, 0
    while done < games:
        there = np.arange(game.most // 2 * 2) % 2 == 0
        said = play(game, 2**20 + done, there)["likelihood"] > 0
        right, done = right + int((said == there).sum()), done + len(there)
    found = many_runs(plan, games=games)
    cells = (
        what, who, f"{plan.guarantee.epsilon:.2f}", at_least(found.epsilon),
        f"{right / done:.1%}", f"{attack_on(plan.guarantee).right_guesses:.1%}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=20_000)
    games = parser.parse_args().games
    record, person = "was this record there?", "was this person there?"
    there = "was this client's data there?"
    hub, site = "a hub that sees masked sums", "the hub together with another site"
    noise = planned(CLIENTS).noise_multiplier
    one_round = {"training.sampling": "everyone", "training.rounds": 1, "training.rate": None}
    one_round |= {"privacy.epsilon": None, "privacy.noise_multiplier": noise}
    for what, who, values in (
        (record, hub, RECORDS),
        (record, site, RECORDS | {"privacy.colluders": 1}),
        (record, "a reader of every model", RECORDS | {"privacy.trust": "central"}),
        (person, hub, PERSONS),
        (person, site, PERSONS | {"privacy.colluders": 1}),
        (person, "a reader of every model", PERSONS | {"privacy.trust": "central"}),
        (there, hub, CLIENTS),
        (there, site, CLIENTS | {"privacy.colluders": 1}),
        ("did this client train in this round?", hub, CLIENTS | one_round),
    ):
        print(row(what, who, planned(values), games), flush=True)


if __name__ == "__main__":
    main()
