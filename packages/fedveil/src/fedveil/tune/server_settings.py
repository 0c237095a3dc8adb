"""What the server could do otherwise with the same releases, and a clip that finds itself.

Whether momentum, a falling rate or a tracked clip pays depends on the noise: the more there is, the
less is gained by speed, and the more by adding less of it at the end. So they are tried out with
the noise that the run will have, and with what a tracked clip costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedveil.methods.registry import METHODS
from fedveil.planning.recipe import Recipe
from fedveil.training.server.schedules import RateSchedule
from fedveil.tune.trials import Candidate

_MOMENTA = (0.5, 0.9)
_QUANTILES = (0.2, 0.5)


def server_changes(recipe: Recipe, candidate: Candidate) -> Iterator[Candidate]:
    """A candidate with one thing changed that the recipe leaves open.

    The server's rate changes with momentum, which multiplies a lasting update, and with a linear
    schedule, which leaves half of the way, so that all rounds together lead as far as before.
    """
    server, privacy = recipe.server, recipe.privacy
    rate = candidate.server_learning_rate or server.learning_rate
    own = server.optimizer == "sgd"
    # Noise that cancels is fitted to the recipe's own momentum.
    steady = candidate.server_momentum or server.momentum or privacy.correlated is not None
    if own and not steady:
        for momentum in _MOMENTA:
            slower = float(f"{(1 - momentum) * rate:.3g}")
            yield replace(candidate, server_momentum=momentum, server_learning_rate=slower)
    falls = candidate.server_schedule or server.schedule != RateSchedule.CONSTANT
    if own and not falls:
        linear = RateSchedule.LINEAR.value
        yield replace(candidate, server_schedule=linear, server_learning_rate=2 * rate)
    method = METHODS[recipe.training.method]
    tracks = "privacy.clip_quantile" in method.keys and privacy.correlated is None
    tracked = candidate.clip_quantile or privacy.clip_quantile
    if tracks and not tracked:
        for quantile in _QUANTILES:
            yield replace(candidate, clip_quantile=quantile)
