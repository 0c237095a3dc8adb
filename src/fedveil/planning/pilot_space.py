"""Which settings of a recipe a pilot searches: those that its method has."""

from __future__ import annotations

from fedveil.planning.rehearsal import Rehearsals, clips_gradients
from fedveil.planning.space import Candidate, Space
from fedveil.privacy.sampling import Balanced, Everyone, RoundRobin

_CHENG_PENALTY, _CHENG_SPARSITY, _LIANG_SMOOTHING = 0.4, 0.7, 1.0  # the methods' own defaults


def space_of(rehearsals: Rehearsals, local_steps: int, most_steps: int | None = None) -> Space:
    """The settings around a recipe's own; `most_steps` bounds their total (its own by default).

    Smoothing is searched where the method smooths; BLUR's penalty and LUS's sparsity where it has
    them; the server's learning rate where its optimiser is adaptive, for else the clients' does
    the same.
    """
    recipe, real = rehearsals.recipe, rehearsals.real
    training, server, method = recipe.training, recipe.server, recipe.training.method
    everyone = isinstance(real.sampling, Everyone)
    base = Candidate(
        local_steps,
        real.method.rounds,
        training.learning_rate,
        recipe.privacy.clip_norm,
        None if everyone else max(1, round(real.sampling.expected_cohort)),
        server.learning_rate if server.optimizer != "sgd" else None,
        (server.smoothing or _LIANG_SMOOTHING)
        if server.smoothing or method == "dp-fed-ls"
        else None,
        _own(training.penalty, _CHENG_PENALTY if method == "cheng" else None),
        _own(training.sparsity, _CHENG_SPARSITY if method == "cheng" else None),
    )
    fixed = set()
    if method == "dp-sgd":
        fixed.add("local_steps")
    if real.method.voting is not None:
        fixed |= {"total", "clip_norm"}
    if recipe.privacy.clip_quantile is not None:
        fixed.add("clip_norm")  # it finds its own
    return Space(
        base,
        base.total_steps if most_steps is None else most_steps,
        real.federation.clients,
        rehearsals.reach(),
        clips_gradients(real.method),
        frozenset(fixed),
        isinstance(real.sampling, RoundRobin | Balanced),
    )


def _own(value: float | None, usual: float | None) -> float | None:
    return usual if value is None else value
