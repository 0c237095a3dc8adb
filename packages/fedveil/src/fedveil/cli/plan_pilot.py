"""`fedveil plan RECIPE --pilot`: try settings out on public data, and write down the best ones."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli.plan_recipe import OWN_DATA, looks_at_itself, recipe_of
from fedveil.cli.plan_tables import write_recipe
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.planning.recipe import Recipe
    from fedveil.tune.pilot import PilotProgress as State
    from fedveil.tune.recommend import Findings, Option

Show = Callable[["State"], None]


def plan_pilot(args: argparse.Namespace) -> int:
    """Search as long as --time allows; Ctrl-C shows the best so far."""
    seconds = 60.0 if args.time is None else args.time
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"--time: must be a positive number of seconds, got {seconds:g}")
    recipe = recipe_of(args)

    from fedveil.planning.assemble import plan_of
    from fedveil.tune.proxy import with_look
    from fedveil.tune.recommend import findings, prepare, recipe_of_option

    began = time.monotonic()
    names = ("proxy", "records", "max_steps", "spent_epsilon", "spent_delta", "journal")
    search = prepare(recipe, **{name: getattr(args, name) for name in names})
    if search.journal.found:
        console.stderr().print(f"{search.journal.found} trials are known from {args.journal}.")
    search.seconds = max(1.0, seconds - (time.monotonic() - began))
    with _progress(search.seconds) as search.show:
        found = findings(search)
    trials = search.trials
    found_recipe = recipe_of_option(trials.recipe, found.recommended)
    chosen = with_look(found_recipe, trials.proxy.looked_at)
    guarantee = plan_of(chosen, trials.real.federation).guarantee
    if args.write is not None:
        write_recipe(args.write, chosen, [*_remarks(found), *found.warnings])
    if args.plot is not None:
        from fedveil.report.plan_figures import draw_pilot

        draw_pilot(found, search.journal, args.plot)
    if args.json:
        document = {
            **found.to_dict(),
            "recommended": found.recommended.to_dict(),
            "guarantee": None if guarantee is None else guarantee.to_dict(),
        }
        console.emit(document)
    else:
        _show(found, chosen)
        if guarantee is not None:
            console.say(guarantee.statement, heading="Recommended:")
        if args.write is not None:
            console.stdout().print(f"Run it with: fedveil run {args.write}")
    return 130 if found.interrupted else 0


def _remarks(found: Findings) -> list[str]:
    best = found.recommended
    return [
        f"Found by {found.trials} trials on {found.proxy}; there, {_result(best)} is expected "
        f"({best.expected.runs} runs).",
        f"Reason: {best.reason}.",
        *(f"Note: {note}." for note in found.notes),
    ]


def _result(option: Option) -> str:
    expected = option.expected
    shown, spread, digits = f"loss {expected.loss:.4g}", expected.loss_spread, ".2g"
    if expected.accuracy is not None:
        shown, digits = f"accuracy {expected.accuracy:.1%}", ".1f"
        spread = 100 * (expected.accuracy_spread or math.nan)
    return shown + (f" ± {spread:{digits}}" if math.isfinite(spread) else "")


def _show(found: Findings, recipe: Recipe) -> None:
    names = list(dict.fromkeys(name for o in found.options for name in o.candidate.to_dict()))
    rows = [["epsilon", *(f"{option.epsilon:g}" for option in found.options)]]
    for name in names:
        values = [option.candidate.to_dict().get(name, "") for option in found.options]
        rows.append([name.replace("_", " "), *(_short(value) for value in values)])
    rows.append(["uploads", *(f"{option.uploads:,}" for option in found.options)])
    rows.append(["expected", *(_result(option) for option in found.options)])
    console.table("What to run", ["", *(option.name for option in found.options)], rows)
    say = console.say
    whose = OWN_DATA if looks_at_itself(recipe) else "no private data"
    for option in found.options:
        say(f"{option.name.capitalize()}: {option.reason}.")
    say(
        f"{found.trials} trials in {found.seconds:.0f} s on {found.proxy}, {whose}; "
        "expected: mean and spread over seeds that chose nothing."
    )
    for note in found.notes:
        say(f"Note: {note}.")
    for warning in found.warnings:
        say(f"Warning: {warning}.")
    if found.interrupted:
        say("Interrupted: this is the best so far.")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@contextmanager
def _progress(seconds: float) -> Iterator[Show]:
    """One line that changes on a terminal, else a line now and then; all on stderr."""
    said = -math.inf

    def text(state: State) -> str:
        return (
            f"{state.stage}: {state.trials} trials, {state.seconds:.0f} of {seconds:.0f} s, "
            f"best error {state.error:.4g}"
        )

    def now_and_then(state: State) -> None:
        nonlocal said
        if state.seconds - said >= 5:
            said = state.seconds
            print(text(state), file=sys.stderr, flush=True)

    if sys.stderr.isatty():
        with console.stderr().status("pilot") as line:
            yield lambda state: line.update(text(state))
    else:
        yield now_and_then
