"""How `fedveil plan` shows its answers: tables, sentences, pictures and recipes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from fedveil.planning.recipe import Recipe
    from fedveil.tune.advice import Advice
    from fedveil.tune.feasible import Question, Row
    from fedveil.tune.tuner import Expected

_OWN_DATA = "the recipe's own data: a protected run with these settings will not be certified"


def show_feasible(question: Question, rows: list[Row], document: dict[str, Any]) -> None:
    """Show a table for every trust and sampling."""
    say = console.stdout().print
    say(
        f"{question.noise.capitalize()} noise for ({question.epsilon:g}, {question.delta:.3g}), "
        "protecting one of "
        f"{question.clients} clients whole; {question.dimension} weights."
    )
    risks = [f"ε: {question.dropped:.0%} drop", f"{question.colluders} collude"]
    for trust, sampling in dict.fromkeys((row.trust, row.sampling) for row in rows):
        shown = [row for row in rows if (row.trust, row.sampling) == (trust, sampling)]
        claim = shown[0].claim
        said = "paper" if claim is None else claim.paper.removesuffix(" et al.") + " says"
        console.table(
            f"{trust} trust, {sampling} sampling, adjacency {shown[0].adjacency}",
            ["cohort", "rounds", "noise", "S/N round", "S/N run", *risks, said],
            [_feasible_row(row) for row in shown],
        )
    size = "scale" if question.noise == "laplace" else "std"
    say(f"Noise: {size} on the sum / clip norm. S/N: {document['signal_to_noise']}.")
    say("What a paper says of the same noise is not proved.")
    for way in document["without_proof"]:
        say(f"Left out: {way}, where no proof is known for {question.noise} noise.")
    for warning in document["warnings"]:
        say(f"Warning: {warning}.")


def _feasible_row(row: Row) -> list[str]:
    return [
        str(row.cohort),
        str(row.rounds),
        at_most(row.noise_multiplier),
        f"{row.signal_to_noise:.2g}",
        f"{row.run_signal_to_noise:.2g}",
        at_most(row.epsilon_if_dropped),
        at_most(row.epsilon_if_colluding),
        "none" if row.claim is None else f"{row.claim.value:.2f}",
    ]


def show_advice(found: Advice, theorem: Any, *, own_data: bool) -> None:
    """Show the options side by side, what to expect of each, and what a theorem says."""
    say, options = console.say, found.options
    names = dict.fromkeys(name for option in options for name in option.candidate.to_dict())
    rows = [["epsilon", *(f"{option.epsilon:g}" for option in options)]]
    for name in names:
        values = [option.candidate.to_dict().get(name, "") for option in options]
        rows.append([name.replace("_", " "), *map(_short, values)])
    rows.append(["uploads", *(f"{option.uploads:,}" for option in options)])
    rows.append(["expected", *(_result(option.expected) for option in options)])
    if theorem is not None:
        worse = (f"{times:.3g}x" for times in theorem.times_worse)
        rows.append(["theorem's score", *worse])
    console.table("What to run", ["", *(option.name for option in options)], rows)
    trivial = f"loss {found.trivial:.4g}"
    if found.recommended.expected.accuracy is not None:
        trivial = f"accuracy {1 - found.trivial:.1%}"
    say(f"An answer that looks at no input has {trivial}.")
    for option in options:
        say(f"{option.name.capitalize()}: {option.reason}.")
    if theorem is not None:
        best, limits = theorem.best, f" ({theorem.heuristic})" if theorem.heuristic else ""
        say(
            f"{theorem.theorem} likes {best.local_steps} local steps x {best.rounds} rounds best; "
            f"its score of each option is shown as a multiple of that. It did not decide{limits}."
        )
    whose = _OWN_DATA if own_data else "no private data"
    say(
        f"{found.trials} simulated runs in {found.seconds:.0f} s on {found.proxy}, {whose}; "
        "expected: mean and spread over seeds that chose nothing."
    )
    if found.interrupted:
        say("Interrupted: this is the best so far.")


def _result(expected: Expected) -> str:
    """Write what to expect: accuracy where there are classes, else the loss."""
    shown, spread, digits = f"loss {expected.loss:.4g}", expected.loss_spread, ".2g"
    if expected.accuracy is not None:
        shown, digits = f"accuracy {expected.accuracy:.1%}", ".1f"
        spread = 100 * (expected.accuracy_spread or math.nan)
    return shown + (f" ± {spread:{digits}}" if math.isfinite(spread) else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_recipe(path: Path, recipe: Recipe, remarks: Sequence[str]) -> None:
    """Save a recipe for `fedveil run`, with remarks on where it comes from."""
    import tomli_w

    from fedveil.planning import recipe as recipes

    lines = [f"# {remark}\n" for remark in ("Recommended by fedveil plan.", *remarks)]
    path.write_text("".join(lines) + tomli_w.dumps(recipes.to_table(recipe)), encoding="utf-8")
