"""`fedveil plan RECIPE --tune-on-private-data`: the best of a secret number of runs, paid for."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli.plan import recipe_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from fedveil.tune.private_tuning import Tuned


def tune_privately(args: argparse.Namespace) -> int:
    """Train, choose and keep one model, with the guarantee of all runs together."""
    _check(args)
    recipe = recipe_of(args)

    from fedveil.planning.assemble import federation_of, plan_of
    from fedveil.tune.advice import local_steps_of, sizes_looked_at
    from fedveil.tune.private_tuning import settings_to_draw, tuned
    from fedveil.tune.proxy import NotPublic, proxy_of
    from fedveil.tune.space import space_of
    from fedveil.tune.trials import ProxyTrials

    if recipe.data.file is None and args.proxy == recipe.data.source:
        raise NotPublic(f"--proxy {args.proxy} is the protected data itself")
    federation = federation_of(recipe.data)
    real = plan_of(recipe, federation)
    if sizes_looked_at(recipe, real, args.records):
        raise ConfigError(
            "--records: how many records a client has is private; give a publicly known number"
        )
    scored = proxy_of(recipe, args.proxy, federation)
    steps = local_steps_of(recipe, real, args.records)
    space = space_of(ProxyTrials(recipe, real, scored), steps)
    candidates = settings_to_draw(space)
    console.stderr().print(
        f"Training; one run out of {len(candidates)} settings each, {args.tuning_mean:g} on "
        "average. How many there are, and how they go, must stay secret."
    )
    try:
        found = tuned(recipe, real, candidates, scored, args.tuning_mean)
    except KeyboardInterrupt:
        console.complain("interrupted; nothing was kept, and nothing has left")
        return 130
    _write(args.output, found)
    return console.answer(args, _document(found, args.output), lambda: _show(found, args.output))


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
    for name in ("plot", "max_steps"):
        if getattr(args, name) is not None:
            raise ConfigError(
                f"{console.flag(name)}: leave it out; it would show runs that must stay secret"
            )
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


def _document(found: Tuned, output: Path) -> dict[str, Any]:
    return {
        "settings": found.candidate.to_dict(),
        "loss": found.loss,
        "accuracy": found.accuracy,
        "noise_multiplier": found.noise_multiplier,
        "untuned_noise_multiplier": found.untuned_noise,
        "guarantee": found.guarantee.to_dict(),
        "directory": str(output),
    }


def _write(output: Path, found: Tuned) -> None:
    """All or nothing."""
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    document = {**found.candidate.to_dict(), "noise_multiplier": found.noise_multiplier}
    (partial / "settings.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    text = json.dumps(found.guarantee.to_dict(), indent=2) + "\n"
    (partial / "guarantee.json").write_text(text, encoding="utf-8")
    (partial / "model.safetensors").write_bytes(found.model)
    partial.rename(output)


def _show(found: Tuned, output: Path) -> None:
    rows = [
        [name.replace("_", " "), f"{value:g}"] for name, value in found.candidate.to_dict().items()
    ]
    result = f"{found.loss:.4g}" if found.accuracy is None else f"{found.accuracy:.1%}"
    rows.append(["loss" if found.accuracy is None else "accuracy", f"{result} on public data"])
    rows.append(["noise multiplier", at_most(found.noise_multiplier)])
    rows.append(["  without tuning", at_most(found.untuned_noise)])
    rows.append(["files", str(output)])
    console.table("The chosen run", ["", ""], rows)
    console.say(found.guarantee.statement)
    console.stdout().print("The model is trained: running these settings again would cost anew.")
