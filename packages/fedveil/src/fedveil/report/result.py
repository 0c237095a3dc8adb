"""The result of a finished run: the document that `--json` prints and the run directory keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedveil.methods.recipes.sections import Recipe
from fedveil.planning.assemble import plan_of
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import without_privacy
from fedveil.privacy.distinguishing import attack_on
from fedveil.report.facts import attack_document
from fedveil.report.scores import useless
from fedveil.run.bundle import bundle_of
from fedveil.run.columns import columns_of, effects_of
from fedveil.run.run import Run

_NO_TEST = (
    "There is no row to test on: each client has but one, and keeps it. --set data.holdout=clients "
    "holds out whole clients, and --test FILE brings other rows."
)
_NO_LABEL = (
    "Nothing was tested: the model gives no number on these rows, or no row to test on has a label "
    "that fits. Check --label and --classes."
)
TAKEN_BACK = (
    "Before the training there was a warning not to expect much. The test rows say otherwise, and "
    "it is taken back."
)


def result_of(
    run: Run,
    recipe: Recipe,
    seconds: float,
    *,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    certify: str | None = None,
) -> dict[str, Any]:
    """Return the result of a finished run, and store it with the model in the run directory.

    Args:
        run: a finished run.
        recipe: its resolved recipe.
        seconds: how long it took; shown of simulations only.
        notes: what was chosen for the user.
        warnings: what the user was told to expect before the training. It is taken back by a note,
            as the plan's own expectations are, where the scores show that the model has learnt.
        certify: the command that would certify the run, if it is not certified.
    """
    plan, directory, guarantee = run.plan, run.directory, run.guarantee
    result, untested = dict[str, Any](), ""
    if len(plan.federation.test):  # a hub may have none
        metrics, scaling = run.evaluate(), plan.federation.target_scaling
        result |= {"accuracy": metrics.accuracy} if metrics.accuracy is not None else {}
        result["loss"] = metrics.loss
        if metrics.accuracy is None:  # in the label's own unit
            result["rmse"] = metrics.rmse / (1.0 if scaling is None else float(scaling.factor))
        untested = _NO_LABEL if math.isnan(metrics.loss) else ""
    elif recipe.data.file is not None and recipe.data.test_fraction != 0:
        untested = _NO_TEST
    scores = run.scores()
    if scores is not None:
        result["scores"] = scores.to_dict()
        result["useless"] = useless(result["scores"])
    learnt = scores is not None and scores.learnt
    expected = [*warnings, *plan.drowned]
    if learnt and expected:
        notes, expected = [*notes, TAKEN_BACK], []
    other_warnings = [warning for warning in plan.warnings if warning not in plan.drowned]
    if recipe.evaluation.baseline:
        result["baseline"] = _baseline(recipe, plan)
    result |= {
        "rounds": run.state.rounds,
        "released_rounds": run.released_rounds,
        "planned_rounds": plan.method.rounds,
        "seconds": None if plan.protected else round(seconds, 3),
        "method": plan.method.name,
        "clients": plan.sampling.clients,
        "parameters": plan.layout.size,
        # How many processes there are follows from how much data clients have.
        "engine": run.choice.name if plan.protected else run.engine.name,
        "seed": plan.seed,
        "directory": None if directory is None else str(directory.path),
        "guarantee": None if guarantee is None else guarantee.to_dict(),
        "person": None,
        "attack": None if guarantee is None else attack_document(attack_on(guarantee)),
        "secure_sums": _secure_document(run),
        "notes": [*notes, *plan.federation.notes],
        "warnings": [
            *expected,
            *other_warnings,
            *filter(None, [untested, scores and scores.warning]),
        ],
        "certify": certify,
    }
    named = ("name", "hidden", "input_norm", "frozen", "adapter_rank")
    model = {name: getattr(recipe.model, name) for name in named}
    model |= {name: list(model[name]) for name in ("hidden", "frozen")}
    # Scales and categories that come from the rows without noise are nobody else's to see.
    open_ = plan.seed is not None or (guarantee is not None and guarantee.certified)
    result["columns"] = columns_of(recipe.data, plan.federation, scales=open_)
    result["effects"] = effects_of(bundle_of(plan, model, None), run.model()) if open_ else []
    if plan.person_epsilon is not None:
        records = plan.federation.records_per_person
        result["person"] = {"records": records, "epsilon": plan.person_epsilon}
    if directory is not None:
        directory.finish(run.bundle_file(model), result)
    return result


def _secure_document(run: Run) -> dict[str, Any] | None:
    """Return what became of the secure sums of all rounds; None if the run took none.

    Their server sees who takes part and who is lost, so a protected run may show it too.
    """
    sums, rounds = run.plan.secure_sums, run.dropouts
    if sums is None:
        return None
    topology = sums.params.topology(sums.cohort)
    lost = [one.cohort - one.survivors for one in rounds.values()]
    return {
        "mode": sums.mode.value,
        **{name: getattr(sums, name) for name in ("cohort", "honest_shares", "dropout")},
        "colluders": sums.params.colluders,
        "fewest_survivors": sums.fewest,
        **{name: getattr(topology, name) for name in ("degree", "masks", "threshold")},
        "uploads": sum(one.cohort for one in rounds.values()),
        "lost": sum(lost),
        "most_lost": max(lost, default=0),
        "not_released": [number for number, one in rounds.items() if one.not_released],
        "seconds": {name: round(spent, 4) for name, spent in run.seconds.items()},
    }


def _baseline(recipe: Recipe, private: Plan) -> dict[str, Any]:
    """Train without clipping and noise, in memory only, and return the metrics."""

    plain = plan_of(without_privacy(recipe), private.federation)
    metrics = Run(plain, every=plain.method.rounds).finish()
    return {"accuracy": metrics.accuracy, "loss": metrics.loss}
