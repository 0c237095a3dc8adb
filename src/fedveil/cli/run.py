"""`fedveil run`: train a recipe to the end, or go on with a run that was stopped."""

from __future__ import annotations

import argparse
import os
import signal
import time
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.config import recipe as recipes
from fedveil.core.errors import ConfigError, PrivacyRefusal

if TYPE_CHECKING:
    from fedveil.config.recipe import Recipe
    from fedveil.planning.plan import Plan
    from fedveil.run.run import Run


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", type=Path, help="a TOML recipe; none: the default job")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one recipe entry"
    )
    parser.add_argument("--data", metavar="FILE", help="a CSV or Parquet file to train on")
    parser.add_argument("--client-column", metavar="NAME", help="its column that names the client")
    parser.add_argument("--label", metavar="NAME", help="its column to predict")
    parser.add_argument("--schema", metavar="FILE", help="public statistics of its columns")
    parser.add_argument("--seed", type=int, help="repeatable simulation instead of protected noise")
    parser.add_argument("--output", type=Path, metavar="DIR", help="a new run directory")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with this run")
    parser.add_argument(
        "--moved", action="store_true", help="with --resume: this copy alone will go on, I declare"
    )
    parser.add_argument("--explain", action="store_true", help="say which engine runs, and why")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def execute(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    # Waiting threads that spin make two-threaded training collapse beside any busy neighbour.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    recipe = recipes.with_defaults(_recipe(args))

    from fedveil.config.assemble import (  # torch and all: only once input is sane
        federation_of,
        plan_of,
    )
    from fedveil.engines.distributed_env import is_follower
    from fedveil.engines.process_group import WorkerFailed
    from fedveil.run.directory import RunDirectory
    from fedveil.run.run import Run, Speed, follow_plan

    plan = plan_of(recipe, federation_of(recipe.data))
    if recipe.evaluation.baseline and plan.protected:
        raise PrivacyRefusal(
            "evaluation.baseline trains without noise, and its accuracy would leave unprotected",
            "give a --seed to simulate, or leave the baseline out",
        )
    engine = recipe.engine
    speed = Speed(engine.name, engine.chunk, engine.processes, engine.threads, engine.device)
    if is_follower():  # torchrun started several of us, and another one leads
        follow_plan(plan, speed)
        return 0
    run = Run(plan, speed=speed, every=recipe.evaluation.every)
    if args.resume is not None:
        directory = RunDirectory.open(args.resume, plan, moved=args.moved)
    else:
        output = args.output or _fresh_directory(plan)
        directory = RunDirectory.create(output, plan, recipes.to_table(recipe))
    run.keep_in(directory)
    began = time.perf_counter()
    try:
        rejected = _train(run, args)
    except KeyboardInterrupt:
        run.save()
        console.complain(
            f"interrupted after round {run.state.rounds} of {plan.method.rounds}; "
            f"go on with: fedveil run --resume {directory.path}"
        )
        return 130
    except WorkerFailed:  # the rounds before are whole: nothing of them is lost
        run.save()
        raise
    finally:
        run.close()
    result = _result(run, recipe, time.perf_counter() - began)
    if not plan.protected:  # a protected run must not tell: the count has no noise
        result["rejected_updates"] = rejected
    if args.json:
        console.emit(result)
    else:
        _show(result, run)
    return 0


def _recipe(args: argparse.Namespace) -> Recipe:
    """The recipe of this call: a file or a stopped run's, then --set, then the short options."""
    if args.resume is not None:
        given = [args.recipe, args.output, args.seed, args.data, args.client_column, args.label]
        if args.set or any(value is not None for value in [*given, args.schema]):
            raise ConfigError(
                "--resume: goes on with the run as it is; give no other recipe options"
            )
        return recipes.parse(recipes.read(args.resume / "recipe.toml"))
    if args.moved:
        raise ConfigError("--moved: goes with --resume")
    if args.recipe is not None:
        table = recipes.read(args.recipe)
    else:
        table = recipes.DEFAULT_JOB if args.data is None else {}
    short = {
        "data.file": args.data,
        "data.client_column": args.client_column,
        "data.label": args.label,
        "data.schema": args.schema,
        "seed": args.seed,
    }
    return recipes.parse(table, args.set, {k: v for k, v in short.items() if v is not None})


def _fresh_directory(plan: Plan) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{stamp}-{plan.federation.name}-{plan.method.name}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _train(run: Run, args: argparse.Namespace) -> int:
    """Train to the end; how many updates were not finite and counted as zero."""
    from fedveil.cli.progress import progress

    rejected = 0
    _warn(run, quiet=args.quiet)
    if args.explain:
        reason = run.choice.reason
        if run.plan.protected:  # how long rounds take depends on how much data clients have
            reason = reason.partition(";")[0]
        console.stderr().print(f"engine: {run.choice.name} ({reason})")
    with progress(run, quiet=args.quiet, json=args.json) as show:
        for report in run:
            show(report)
            rejected += report.unprotected_stats.rejected if report.unprotected_stats else 0
    return rejected


def _warn(run: Run, *, quiet: bool) -> None:
    """What must be known before training. Quiet leaves out what is only good to know."""
    from fedveil.cli.secure_sums import planned

    plan, guarantee, errors = run.plan, run.guarantee, console.stderr()
    if not quiet:
        for note in plan.federation.notes:
            console.say(note, heading="note:", colour="yellow", to=errors)
        if lost := run.directory.lost if run.directory else 0:
            text = f"rounds that were cut off: {lost}; they count, and are not drawn again"
            console.say(text, heading="note:", colour="yellow", to=errors)
    for warning in plan.warnings:
        console.say(warning, heading="warning:", colour="red", to=errors)
    if guarantee is None:
        text = "this method adds no noise."
        console.say(text, heading="No guarantee:", to=errors)
    elif quiet:
        for sentence in guarantee.not_covered:
            console.say(sentence, heading="not covered:", colour="yellow", to=errors)
        if not guarantee.certified:
            console.say(f"{guarantee.reason}.", heading="Not certified:", to=errors)
    else:
        console.say(guarantee.statement, heading="Guarantee:", to=errors)
    if run.secure is not None and not quiet:
        console.say(planned(run.secure.sums), heading="Secure sums:", to=errors)


def _result(run: Run, recipe: Recipe, seconds: float) -> dict[str, Any]:
    """The document that `--json` prints; also what the final table is made from."""
    from fedveil.cli.secure_sums import secure_document

    directory = run.directory
    metrics = run.evaluate()
    result: dict[str, Any] = {}
    if metrics.accuracy is not None:
        result["accuracy"] = metrics.accuracy
    result["loss"] = metrics.loss
    if metrics.accuracy is None:
        result["rmse"] = metrics.rmse * _label_unit(run.plan)
    if recipe.evaluation.baseline:
        result["baseline"] = _baseline(recipe, run.plan)
    result |= {
        "rounds": run.state.rounds,
        "planned_rounds": run.plan.method.rounds,
        "seconds": None if run.plan.protected else round(seconds, 3),
        "method": run.plan.method.name,
        "clients": run.plan.sampling.clients,
        "parameters": run.plan.layout.size,
        # How many processes there are follows from how much data clients have.
        "engine": run.choice.name if run.plan.protected else run.engine.name,
        "seed": run.plan.seed,
        "directory": None if directory is None else str(directory.path),
        "guarantee": None if run.guarantee is None else run.guarantee.to_dict(),
        "secure_sums": secure_document(run),
        "notes": list(run.plan.federation.notes),
        "warnings": list(run.plan.warnings),
    }
    if directory is not None:
        directory.write_model(run.model_file())
        directory.close()
    return result


def _label_unit(plan: Plan) -> float:
    """What one unit of a standardised regression target is in the label's own unit."""
    scaling = plan.federation.target_scaling
    return 1.0 if scaling is None else 1.0 / float(scaling.factor)


def _baseline(recipe: Recipe, private: Plan) -> dict[str, Any]:
    """The same training without clipping and noise, kept in memory only."""
    from fedveil.config.assemble import plan_of
    from fedveil.run.run import Run

    plain = plan_of(recipes.without_privacy(recipe), private.federation)
    metrics = Run(plain, every=plain.method.rounds).finish()
    return {"accuracy": metrics.accuracy, "loss": metrics.loss}


def _show(result: dict[str, Any], run: Run) -> None:
    from fedveil.cli.secure_sums import secure_rows
    from fedveil.privacy.shown import at_most

    plan, guarantee, rows = run.plan, run.guarantee, []
    if "accuracy" in result:
        rows.append(["accuracy", f"{result['accuracy']:.1%}"])
    else:
        rows.append(["root mean squared error (label's unit)", f"{result['rmse']:.4g}"])
    if "baseline" in result:
        plain = result["baseline"]
        shown = (
            f"{plain['accuracy']:.1%}" if plain["accuracy"] is not None else f"{plain['loss']:.4g}"
        )
        rows.append(["  without privacy", shown])
    rows.append(["loss", f"{result['loss']:.4g}"])
    rows.append(["rounds", f"{result['rounds']} of {result['planned_rounds']}"])
    if result["seconds"] is not None:
        rows.append(["time", f"{result['seconds']:.1f} s"])
    if result.get("rejected_updates"):
        rows.append(["updates not finite: counted as zero", str(result["rejected_updates"])])
    if guarantee is not None:
        rows.append(["epsilon", f"{at_most(guarantee.epsilon)} (delta {at_most(guarantee.delta)})"])
        rows.append(["certified", "yes" if guarantee.certified else f"no: {guarantee.reason}"])
    if result["secure_sums"] is not None:
        rows += secure_rows(result["secure_sums"])
    rows.append(["files", result["directory"]])
    console.table(f"{plan.method.name} on {plan.federation.name}", ["result", ""], rows)
    if guarantee is not None:
        console.say(guarantee.statement)
    else:
        console.say("No privacy is guaranteed: this method adds no noise.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
