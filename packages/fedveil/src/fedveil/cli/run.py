"""`fedveil run`: train a recipe to the end, or go on with a run that was stopped."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console, own_data
from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes

if TYPE_CHECKING:
    from fedveil.planning.recipe import Recipe
    from fedveil.privacy.secure_sums.aggregation import SecureSums
    from fedveil.run.run import Run
    from fedveil.tune.defaults import Chosen


def _seed(text: str) -> int | str:
    return text if text == "none" else int(text)


_seed.__name__ = "whole number or the word none"  # argparse shows it


_OPTIONS: console.Options = {
    "--set KEY=VALUE": (list, "change one recipe entry"),
    "--seed N": (_seed, "repeatable simulation instead of protected noise; none: without one"),
    "--output DIR": (Path, "a new run directory"),
    "--resume DIR": (Path, "go on with this run"),
    "--moved": (bool, "with --resume: I declare that only this copy of the run will go on"),
    "--explain": (bool, "the whole guarantee in words; which engine runs, and why"),
    "--quiet": (bool, "no progress, only the result"),
    "--watch": (bool, "serve the growing report on this machine, and say where"),
    "--no-report": (bool, "write no report.html into the run directory"),
}
_MORE = "In full: --explain, and guarantee.json in the run directory."
_FALLING = (
    "No clip is set, so it begins at 1 and falls to where most updates end; privacy.clip_norm sets "
    "one."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe",
        nargs="?",
        type=Path,
        help="a TOML recipe, or the name of one that comes with fedveil; none: the default job",
    )
    console.add_options(parser, _OPTIONS)
    console.add_options(parser, own_data.OPTIONS, "what to train on, and what to protect")


def execute(args: argparse.Namespace) -> int:
    console.prepare_training()
    recipe = _recipe(args)
    usual = recipes.as_run(recipe)  # refuses what makes no sense
    own_clip = recipe.privacy.clip_quantile == usual.privacy.clip_quantile

    # Torch and all: only once input is sane.
    from fedveil.cli.report import watched_apart, write_report
    from fedveil.data.folder import title
    from fedveil.planning.assemble import federation_of, plan_of, refuse_baseline
    from fedveil.report.result import TAKEN_BACK, result_of
    from fedveil.run.callbacks import Progress
    from fedveil.run.directory import RunDirectory, free_path
    from fedveil.run.run import Run, Speed, follow_plan
    from fedveil.training.engines.distributed_env import is_follower
    from fedveil.training.engines.processes import WorkerFailed

    if args.output is not None:
        RunDirectory.check_new(args.output)  # before anything is bought for it
    with own_data.purchase(args.output or _fresh(title(Path(recipe.data.file or "")))) as purchase:
        chosen = own_data.chosen(args, recipe, purchase)
        recipe = usual if chosen is None else chosen.recipe
        plan = plan_of(recipe, federation_of(recipe.data) if chosen is None else chosen.federation)
        refuse_baseline(recipe, plan)
        engine = recipe.engine
        speed = Speed(engine.name, engine.chunk, engine.processes, engine.threads, engine.device)
        if is_follower():  # torchrun started several of us, and another one leads
            follow_plan(plan, speed)
            return 0
        progress = () if args.quiet else (Progress(),)
        run = Run(plan, speed=speed, every=recipe.evaluation.every, callbacks=progress)
        plan = run.plan  # which knows what runs it
        if args.resume is not None:
            directory = RunDirectory.open(args.resume, plan, moved=args.moved)
        else:
            name = f"{plan.federation.name}-{plan.method.name}"
            output = args.output or free_path(_fresh(name))
            directory = RunDirectory.create(output, plan, recipes.to_table(recipe))
        purchase.settle()
    run.keep_in(directory)
    certify, guarantee = None, run.guarantee
    if guarantee is not None and not guarantee.certified and args.resume is None:
        names = plan.federation.class_names
        certify = own_data.certifying_command(args, guarantee.reason, names, recipe.data.file)
    notes = () if chosen or own_clip else (_FALLING,)
    began, rejected = time.perf_counter(), 0
    try:
        _tell(run, args, chosen, certify, notes)
        with watched_apart(directory.path) if args.watch else nullcontext():
            for report in run:
                stats = report.unprotected_stats
                rejected += 0 if stats is None else stats.rejected
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
    result = result_of(
        run,
        recipe,
        time.perf_counter() - began,
        notes=(*(chosen.notes if chosen else ()), *notes),
        warnings=[chosen.warning] if chosen and chosen.warning else (),
        certify=certify,
    )
    if not plan.protected:  # a protected run must not tell: the count has no noise
        result["rejected_updates"] = rejected
    result["report"] = None if args.no_report else write_report(directory.path)
    told = {*plan.warnings, *([chosen.warning] if chosen else ())}  # before the training
    news = [warning for warning in result["warnings"] if warning not in told]

    def show() -> None:
        _show(result, f"on {plan.federation.name}", news)
        console.note([one for one in result["notes"] if one == TAKEN_BACK], ())

    return console.answer(args, result, show)


def _recipe(args: argparse.Namespace) -> Recipe:
    """Return the recipe of this call: a file's or a stopped run's, then --set, then options."""
    values = own_data.given(args)
    if isinstance(args.seed, int):
        values["seed"] = args.seed
    if args.resume is not None:
        if values or args.set or args.seed or args.recipe or args.output:
            raise ConfigError(
                "--resume: goes on with the run as it is; give no other recipe options"
            )
        from fedveil.run.directory import stored_recipe

        return recipes.parse(stored_recipe(args.resume))
    if args.moved:
        raise ConfigError("--moved: give it together with --resume")
    if args.recipe is not None:
        table = recipes.read(args.recipe)
    else:
        table = recipes.DEFAULT_JOB if args.data is None else {}
    if args.seed == "none":
        table = {key: value for key, value in table.items() if key != "seed"}
    return recipes.parse(table, args.set, values)


def _fresh(name: str) -> Path:
    return Path("runs") / f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{name}"


def _tell(
    run: Run,
    args: argparse.Namespace,
    chosen: Chosen | None,
    certify: str | None,
    notes: Sequence[str],
) -> None:
    """Say on stderr what must be known before training; quiet leaves out what is good to know."""
    from fedveil.run.columns import columns_of

    plan, guarantee, errors = run.plan, run.guarantee, console.stderr()
    if guarantee is None:
        console.say("this method adds no noise.", heading="No guarantee:", to=errors)
    elif not args.quiet:
        text = guarantee.statement if args.explain else f"{guarantee.summary}\n{_MORE}"
        console.say(text, heading="Guarantee:", to=errors)
    elif not guarantee.certified:
        console.say(f"{guarantee.reason}.", heading="Not certified:", to=errors)
    if certify is not None:
        console.say(certify, heading="To certify this, run:", to=errors, command=True)
    own_data.say(chosen, quiet=args.quiet)  # not before the ledger has what was bought
    if chosen is not None and not args.quiet:
        own_data.show_columns(columns_of(chosen.recipe.data, plan.federation), errors)
    notes = [*notes, *plan.federation.notes]
    if lost := run.directory.lost if run.directory else 0:
        notes.append(f"rounds that were cut off: {lost}; they count, and are not drawn again")
    console.note(() if args.quiet else notes, plan.warnings)
    if args.explain:
        if plan.secure_sums is not None:
            console.say(_secure_plan(plan.secure_sums), heading="Secure sums:", to=errors)
        reason = run.choice.reason
        if plan.protected:  # how long rounds take depends on how much data clients have
            reason = reason.partition(";")[0]
        console.say(f"{run.choice.name} ({reason})", heading="engine:", to=errors)


def _secure_plan(sums: SecureSums) -> str:
    topology = sums.params.topology(sums.cohort)
    neighbours = "everybody" if topology.complete else f"{topology.masks} neighbours"
    text = (
        f"{sums.mode.value}; cohorts of {sums.cohort}, each device masked with {neighbours}; "
        f"a round with fewer than {sums.fewest} survivors is not released; "
        f"noise for {sums.honest_shares} honest shares"
    )
    return text + (f"; {sums.dropout:.1%} of the devices are lost" if sums.dropout else "")


def _show(result: dict[str, Any], where: str, warnings: Sequence[str]) -> None:
    """Print the result's table, how good, how private, and where it is, and new warnings."""
    from fedveil.privacy.rounding import at_most
    from fedveil.report.scores import leading_score, score_rows, shown

    guarantee = result["guarantee"]
    certified = guarantee is not None and guarantee["certified"]
    rows = score_rows(result["scores"]) if "scores" in result else []
    first = None if rows else leading_score(result)
    rows += [] if first is None else [[first[0], shown(*first[:2])]]
    if "baseline" in result:
        name, value, _ = leading_score(result["baseline"]) or ("loss", None, None)
        rows.append(["  without privacy", shown(name, value)])
    lost = result["rounds"] - result["released_rounds"]
    spent = f"; {lost} released nothing" if lost else ""
    rows.append(["rounds", f"{result['released_rounds']} of {result['planned_rounds']}{spent}"])
    if result["seconds"] is not None:
        rows.append(["time", f"{result['seconds']:.1f} s"])
    if result.get("rejected_updates"):
        rows.append(["updates not finite: counted as zero", str(result["rejected_updates"])])
    if guarantee is None:
        rows.append(["privacy", "none: this method adds no noise"])
    else:
        size = f"{at_most(guarantee['epsilon'])} (delta {at_most(guarantee['delta'])})"
        rows.append([f"epsilon{'' if certified else ', if this were certified'}", size])
        if person := result["person"]:
            name = f"  of a person's {person['records']} records"
            rows.append([name, at_most(person["epsilon"])])
        rows.append(
            ["certified", "yes" if certified else f"no: {own_data.in_short(guarantee['reason'])}"]
        )
    if sums := result["secure_sums"]:
        share = f"; at most {sums['most_lost']} in a round" if sums["lost"] else ""
        missing = [str(number) for number in sums["not_released"]]
        listed = f" ({', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''})"
        rows += [
            ["secure sums", f"{sums['mode']}, over {sums['cohort']} clients"],
            ["  uploads lost", f"{sums['lost']} of {sums['uploads']}{share}"],
            ["  rounds not released", f"{len(missing)}{listed}" if missing else "none"],
        ]
    rows.append(["files", result["directory"]])
    rows += [] if result["report"] is None else [["report", result["report"]]]
    title = f"{result['method']} {where}"
    if useless := result.get("useless"):
        title += f": {'private, and ' if certified else ''}useless, {useless}"
    console.table(title, ["result", ""], rows)
    console.note((), warnings)
    if result["certify"]:
        heading = "To certify this, run:"
        console.say(result["certify"], heading=heading, to=console.stderr(), command=True)
