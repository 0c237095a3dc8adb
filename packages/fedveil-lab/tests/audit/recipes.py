"""Certified beside audited for the recipe of every method: `python -m tests.audit.recipes`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fedveil.cli.load_guarantee import recipe_of
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import shipped
from fedveil.privacy.rounding import at_least
from fedveil_lab.audit.audit import audit


def row(name: str, games: int) -> str:
    """One line of a table; what `fedveil audit NAME` says, and the processor time it takes."""
    recipe = recipe_of(Path(name), [])
    plan = plan_of(recipe, federation_of(recipe.data))
    certified = plan.guarantee
    if certified is None:
        return f"| {name} | nothing | - | - | - | - | - | - |"
    began = time.process_time()
    found = audit(plan, games=games)
    seconds = time.process_time() - began
    who = f"{certified.unit}, {certified.adjacency}, {certified.trust}"
    shown = "-" if found.gaussian is None else "{:.2f} to {:.2f}".format(*found.gaussian)
    one, cosines = "-", "-"
    if found.one is not None:
        one = f"{at_least(found.one.epsilon)} ({found.one.right}/{found.one.guesses})"
        cosines = "{:.2f} to {:.2f}".format(*found.one.cosines[0].epsilon)
    verdict = "REFUTED" if found.refuted else ""
    cells = (
        name, who, f"{certified.epsilon:.2f}", at_least(found.many.epsilon), shown, one, cosines,
        f"{seconds:.0f} s {verdict}".strip(),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=20_000)
    parser.add_argument("recipe", nargs="*", help="by name; all that methods have, if none is")
    given = parser.parse_args()
    for name in given.recipe or [one for one in shipped() if "/" not in one]:
        print(row(name, given.games), flush=True)


if __name__ == "__main__":
    main()
