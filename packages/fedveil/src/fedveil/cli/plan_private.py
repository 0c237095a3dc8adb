"""`fedveil plan RECIPE --tune-on-private-data`: the best of a secret number of runs, paid for."""

from __future__ import annotations

import argparse
from typing import Any

from fedveil.cli import console
from fedveil.cli.plan import recipe_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.privacy.rounding import at_most


def tune_privately(args: argparse.Namespace) -> int:
    """Train, choose and keep one model, with the guarantee of all runs together."""
    _check(args)
    recipe = recipe_of(args)

    from fedveil.planning.assemble import federation_of, plan_of
    from fedveil.run.directory import MODEL, PROMISE, new_folder, write_json
    from fedveil.tune.advice import local_steps_of
    from fedveil.tune.private_tuning import settings_to_draw, tuned
    from fedveil.tune.proxy import NotPublic, proxy_of
    from fedveil.tune.space import space_of
    from fedveil.tune.trials import ProxyTrials

    if recipe.data.file is None and args.proxy == recipe.data.source:
        raise NotPublic(f"--proxy {args.proxy} is the protected data itself")
    federation = federation_of(recipe.data)
    real = plan_of(recipe, federation)
    steps, looked_at = local_steps_of(recipe, real, args.records)
    if looked_at:
        raise ConfigError(
            "--records: how many records a client has is private; give a publicly known number"
        )
    scored = proxy_of(recipe, args.proxy, federation)
    candidates = settings_to_draw(space_of(ProxyTrials(recipe, real, scored), steps))
    console.stderr().print(
        f"Training; one run out of {len(candidates)} settings each, {args.tuning_mean:g} on "
        "average. How many there are, and how they go, must stay secret."
    )
    try:
        best = tuned(recipe, real, candidates, scored, args.tuning_mean)
    except KeyboardInterrupt:
        console.complain("interrupted; nothing was kept, and nothing has left")
        return 130
    settings = best.candidate.to_dict()
    with new_folder(args.output) as folder:
        write_json(folder / "settings.json", settings | {"noise_multiplier": best.noise_multiplier})
        write_json(folder / PROMISE, best.guarantee.to_dict())
        (folder / MODEL).write_bytes(best.model)
    document: dict[str, Any] = {
        "settings": settings,
        **{name: getattr(best, name) for name in ("loss", "accuracy", "noise_multiplier")},
        "untuned_noise_multiplier": best.untuned_noise,
        "guarantee": best.guarantee.to_dict(),
        "directory": str(args.output),
    }

    def show() -> None:
        rows = [[name.replace("_", " "), f"{value:g}"] for name, value in settings.items()]
        result = f"{best.loss:.4g}" if best.accuracy is None else f"{best.accuracy:.1%}"
        name = "loss" if best.accuracy is None else "accuracy"
        rows += [
            [name, f"{result} on public data"],
            ["noise multiplier", at_most(best.noise_multiplier)],
            ["  without tuning", at_most(best.untuned_noise)],
            ["files", str(args.output)],
        ]
        console.table("The chosen run", ["", ""], rows)
        console.say(best.guarantee.statement)
        console.say("The model is trained: running these settings again would cost anew.")

    return console.answer(args, document, show)


def _check(args: argparse.Namespace) -> None:
    if args.write is not None:
        raise PrivacyRefusal(
            "--write: training again with settings chosen on private data is one more run, which "
            "no budget here has paid for",
            "give --output DIR: it keeps the chosen model itself, with the guarantee of all runs",
        )
    if args.time is not None:
        raise PrivacyRefusal(
            "--time: a search that ends early tells how long its runs took, and the proof needs "
            "their number to be drawn beforehand",
            "leave it out, and lower --tuning-mean instead",
        )
    if args.spent_epsilon or args.spent_delta:
        raise ConfigError("--spent-epsilon: set privacy.epsilon to what is left instead")
    if args.max_steps is not None:
        raise ConfigError("--max-steps: leave it out; it would show runs that must stay secret")
    if args.proxy is None:
        raise PrivacyRefusal(
            "runs must be scored on public data: a score on private data is a release of its own, "
            "and none is accounted for here",
            "name a public source or file of the same shape with --proxy",
        )
    if args.output is None:
        raise ConfigError("--output: say where to keep the chosen model and its guarantee")
    if args.output.exists():
        raise ConfigError(f"--output {args.output}: exists already; choose another")
