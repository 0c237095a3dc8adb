"""NVFlare's privacy filters, as of 2.9.0."""

from __future__ import annotations

import math

from fedveil.core.errors import ConfigError
from fedveil_lab.audit.check.finding import FLOATING_POINT, Finding, Proved, Settings

SYSTEM = "NVFlare 2.9.0"

_SCALARS = "arrays without dimensions pass through the filter as they are, without noise"
_STEPS = "the number of local steps is sent beside the values, and scales them"


def svt(settings: Settings) -> Finding:
    """The sparse vector technique on coordinates clipped to gamma, then Laplace noise on some.

    Each coordinate above a noisy threshold costs epsilon_query / n_upload (Lyu, Su and Li 2017,
    theorem 4, whose algorithm stops at n_upload of them). The filter asks all coordinates before
    it counts, so that up to all of them may be above.
    """
    size, rounds = settings.count("parameters"), settings.count("rounds")
    fraction, epsilon, noise_var = (
        settings.positive(name, 0.1) for name in ("fraction", "epsilon", "noise_var")
    )
    for name, default in (("gamma", 1e-5), ("tau", 1e-6), ("replace", True)):
        settings.value(name, default)
    upload = min(math.ceil(size * fraction), size)
    threshold, query = _split(settings, epsilon, upload)
    given = settings.value("epsilon_release", None)
    release = upload * noise_var if given is None else settings.positive("epsilon_release")
    claimed = rounds * (threshold + query + release)
    asked = rounds * (threshold + query * size / upload + release)
    why = [
        f"the threshold is tested for all {size:,} coordinates before the first count: far more "
        f"than the n_upload={upload:,} that the selection was paid for may pass"
    ]
    if given is None:
        why.append(
            f"epsilon={epsilon:g} pays for choosing coordinates; their values cost noise_var * "
            f"n_upload = {release:,.6g} more in every round, which the log says and the name of "
            "the argument does not"
        )
    return Finding(
        SYSTEM, "", "", settings.table(), "its accountant: all phases of all rounds added",
        claimed, 0.0, (Proved("one site's model replaced, all rounds", asked),), tuple(why),
        (FLOATING_POINT, _SCALARS, _STEPS),
    )  # fmt: skip


def percentile(settings: Settings) -> Finding:
    """Large coordinates are kept, cut to gamma, and sent without noise."""
    settings.value("percentile", 10)
    settings.value("gamma", 0.01)
    return _no_noise(settings, "small coordinates become zero and large ones are cut")


def exclude(settings: Settings) -> Finding:
    return _no_noise(settings, "some variables are left out and all others are sent as they are")


def statistics(settings: Settings) -> Finding:
    return _no_noise(
        settings, "small counts are left out and ranges are widened at random, without a bound"
    )


def _no_noise(settings: Settings, what: str) -> Finding:
    return Finding(
        SYSTEM, "", "", settings.table(), "no epsilon, a filter for privacy", None, 0.0,
        (Proved("one site's model replaced", math.inf),), (f"no noise is added: {what}",),
    )  # fmt: skip


def _split(settings: Settings, epsilon: float, upload: int) -> tuple[float, float]:
    """What threshold and queries get of epsilon."""
    names = ("epsilon_threshold", "epsilon_query")
    threshold, query = (
        None if settings.value(name, None) is None else settings.positive(name) for name in names
    )
    if threshold is None and query is None:
        threshold = epsilon / (1 + (2 * upload) ** (2 / 3))
    threshold = epsilon - (query or 0.0) if threshold is None else threshold
    query = epsilon - threshold if query is None else query
    if threshold <= 0 or query <= 0 or not math.isclose(threshold + query, epsilon):
        raise ConfigError("epsilon_threshold, epsilon_query: NVFlare refuses what is not epsilon")
    return threshold, query
