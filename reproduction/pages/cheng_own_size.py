"""Cheng et al. at their own size: the CNN of 1.0 M weights, Q = 30, batch 64, rate 0.03.

150 rounds of 40 writers instead of 1000 of 136; the clip comes from a search of 15 rounds with the
noise of the whole run. `quick` is that search, `full` the runs at the clips it found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from reproduction.bfloat16 import NAME as BFLOAT16
from reproduction.case import Case, Claimed
from reproduction.experiment import Difference, Panel, Scale, pages_of
from reproduction.pages.cheng_cases import BASE, OURS, SETTING, VARIANTS, case_of
from reproduction.pages.cheng_findings import winners

WRITERS, COHORT, ROUNDS, SEARCH_ROUNDS, EPSILON = 300, 40, 150, 15, 8.0
SEARCHED = (0.1, 0.3, 1.0)
BEST = dict.fromkeys(VARIANTS, 0.3)  # by `quick`: level with 1, and a third of its noise
_CHANGE = {
    "training.rate": COHORT / WRITERS,
    "training.rounds": ROUNDS,
    "engine.name": BFLOAT16,
}


@cache
def _certified_noise() -> float:
    """The noise multiplier that the whole run needs; the shorter search takes the same."""
    from fedveil.core.units import Adjacency, Trust, Unit
    from fedveil.privacy.accounting import PrivacyModel
    from fedveil.privacy.calibration import calibrate_noise
    from fedveil.privacy.sampling import Poisson

    return calibrate_noise(
        epsilon=EPSILON,
        delta=WRITERS**-1.1,
        sampling=Poisson(COHORT / WRITERS, WRITERS),
        rounds=ROUNDS,
        privacy_model=PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL),
    ).noise_multiplier


def _case(variant: str, clip: float, kind: str, seeds: int | None = None) -> Case:
    case = case_of(
        dataset="femnist",
        scale=Scale.FULL,
        variant=variant,
        clip=clip,
        epsilon=EPSILON,
        kind=kind,
        change=dict(_CHANGE),
        seeds=seeds,
    )
    return replace(case, every=15)


def _search(variant: str, clip: float) -> Case:
    """The first rounds of the whole run, as far as noise goes."""
    case = _case(variant, clip, "certified", seeds=1)
    values = {**dict(case.values), "training.rounds": SEARCH_ROUNDS}
    noise = Claimed(EPSILON, WRITERS**-1.1, _certified_noise())
    return replace(case, values=tuple(values.items()), noise=noise)


def cases(scale: Scale) -> tuple[Case, ...]:
    if scale is Scale.QUICK:
        return tuple(_search(variant, clip) for clip in SEARCHED for variant in (BASE, OURS))
    return (
        *(_case(variant, BEST[variant], "certified") for variant in VARIANTS),
        *(_case(variant, BEST[variant], "paper", seeds=1) for variant in VARIANTS),
    )


DIFFERENCES = (
    Difference("writers", "3,400", "300, leaning to digits (the rest is not in the copy at hand)"),
    Difference("rounds and cohorts", "1000 of 136", "150 of 40"),
    Difference("delta", "1/N", "N^-1.1: at 1/N publishing one user would do"),
    Difference("arithmetic", "not said", "products in bfloat16; all else, noise too, in float32"),
    Difference("clip", "grid of 0.01 to 1 for each method", "0.1, 0.3, 1 by 15 rounds, one seed"),
)

EXPERIMENTS = (
    pages_of(
        paper="Cheng et al.",
        setting=SETTING,
        differences=DIFFERENCES,
        metric="accuracy",
        unit="% of the test images",
        quick_seeds=1,
        full_seeds=2,
        quick_minutes=40,
        full_minutes=700,
        findings=winners,
    )(
        "cheng-own-size",
        "table 1 with its own network",
        cases,
        tuple(
            Panel(f"FEMNIST, ε = 8, {words}", "round", "accuracy", "method",
                  (("noise", kind),), "round", "test accuracy (%)")
            for kind, words in (("certified", "certified noise"), ("paper", "the paper's noise"))
        ),
    ),
)  # fmt: skip
