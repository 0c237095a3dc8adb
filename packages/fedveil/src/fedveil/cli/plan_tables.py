"""How `fedveil plan` shows its answers: one JSON document, or tables and sentences."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.registry import extension
from fedveil.planning import recipe as recipes
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from fedveil.planning.recipe import Recipe
    from fedveil.tune.feasible import Question, Row
    from fedveil.tune.iterations import Advice


LOSS = (
    "strong_convexity",
    "smoothness",
    "gradient_bound",
    "heterogeneity",
    "initial_distance",
)  # constants of a loss, by their flags' names
TRUSTS = ("local", "distributed", "central")


def ways(args: argparse.Namespace) -> dict[str, Any]:
    """What a feasible set is asked about beside the budget."""
    from fedveil.core.units import Trust

    trusts = tuple(Trust(name) for name in args.trust or TRUSTS)
    return {"trusts": trusts, "dropped": args.dropped, "colluders": args.colluders}


def answer_feasible(
    args: argparse.Namespace, question: Question, *, alone: bool = True
) -> dict[str, Any]:
    """The feasible set as one document, shown as tables unless JSON is asked for.

    alone: nothing else is asked, so that the document and the plot are about this.
    """
    from fedveil.tune.feasible import SIGNAL_TO_NOISE, feasible, warnings, without_proof

    rows = feasible(question, extension("fedveil.papers", "claim_of"))
    document = {
        **vars(question),
        "signal_to_noise": SIGNAL_TO_NOISE,
        "rows": [row.to_dict() for row in rows],
        "without_proof": without_proof(question, rows),
        "warnings": warnings(rows),
    }
    for name in ("cohorts", "rounds", "trusts"):  # every row says its own
        del document[name]
    if args.plot is not None and alone:
        from fedveil.report.plan_figures import draw_feasible

        draw_feasible(rows, args.plot)
    if not args.json:
        _show_feasible(question, rows, document)
    elif alone:
        console.emit(document)
    return document


def _show_feasible(question: Question, rows: list[Row], document: dict[str, Any]) -> None:
    """A table for every trust and sampling."""
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


def draw_advice(args: argparse.Namespace, advice: Advice) -> None:
    if args.plot is not None:
        from fedveil.report.plan_figures import draw_iterations

        draw_iterations(advice, args.plot)


def show_advice(advice: Advice) -> None:
    """The best local steps and rounds beside what the rules would have cost."""
    from fedveil.tune.iterations import every_divisor

    marks = {
        advice.rule_of_thumb: "literal rule T^(z/(z+1))",
        advice.asymptotic: "asymptotic rule",
        advice.best: "best",
    }
    choices = every_divisor(advice.score, advice.chosen.total_steps)
    ranked = choices if len(choices) <= 24 else sorted(choices, key=lambda c: c.bound)[:8]
    shown = {*ranked, *(c for c in marks if c), advice.one_step, advice.chosen}
    rows = [
        [
            str(choice.local_steps),
            str(choice.rounds),
            f"{choice.bound:.6g}",
            f"{choice.bound / advice.best.bound:.3g}x",
            marks.get(choice, "") if choice != advice.chosen else marks.get(choice, "as given"),
        ]
        for choice in sorted(shown, key=lambda c: c.local_steps)
    ]
    console.table(
        f"{advice.chosen.total_steps} steps in all, score {advice.score.name}",
        ["local steps", "rounds", "score", "of best", ""],
        rows,
    )
    console.stdout().print(advice.sentence)
    for warning in (advice.score.heuristic, *advice.warnings):
        if warning:
            console.stdout().print(f"Note: {warning}.")


def write_recipe(path: Path, recipe: Recipe, remarks: Sequence[str]) -> None:
    """Save a recipe for `fedveil run`, with remarks on where it comes from."""
    import tomli_w

    lines = [f"# {remark}\n" for remark in ("Recommended by fedveil plan.", *remarks)]
    path.write_text("".join(lines) + tomli_w.dumps(recipes.to_table(recipe)), encoding="utf-8")
