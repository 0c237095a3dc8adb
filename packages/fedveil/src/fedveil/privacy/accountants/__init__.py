"""Accountants: each turns steps into an upper bound on epsilon, or says that it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module

from fedveil.core.loading import uncollected
from fedveil.privacy.accountants.exact import (
    concentrated_epsilon,
    exact_epsilon,
    pure_epsilon,
    unamplified_epsilon,
)
from fedveil.privacy.accountants.pld import pld_epsilon
from fedveil.privacy.accountants.rdp import rdp_epsilon, selected_epsilon
from fedveil.privacy.accountants.steps import Step, with_count
from fedveil.privacy.tuning import AllRuns, RandomRuns, Tuning


@dataclass(frozen=True)
class Accountant:
    """One way to bound epsilon, valid for whatever steps it answers.

    epsilon: from steps and delta; None where it has no bound.
    tight: close enough that a `slow` accountant is not worth asking for a quick answer.
    beaten: an exact answer leaves it nothing to add.
    at_zero: it answers at delta 0 too.
    by_step: its proof uses the theorems of the steps.
    """

    name: str
    epsilon: Callable[[Sequence[Step], float], float | None]
    theorem: str
    tight: bool = False
    slow: bool = False
    beaten: bool = False
    at_zero: bool = False
    by_step: bool = True


ACCOUNTANTS = (
    Accountant(
        "exact",
        exact_epsilon,
        "adaptive composition of Gaussian mechanisms into one (Dong, Roth, Su 2022) and its exact "
        "curve (Balle, Wang 2018)",
        tight=True,
        at_zero=True,
        by_step=False,
    ),
    Accountant(
        "pure",
        pure_epsilon,
        "basic composition of purely private mechanisms (Dwork et al. 2006)",
        at_zero=True,
        by_step=False,
    ),
    Accountant(
        "pld",
        pld_epsilon,
        "composition of dominating pairs, discretised upwards (Zhu, Dong, Wang 2022; Doroshenko et "
        "al. 2022)",
        tight=True,
        beaten=True,
    ),
    Accountant(
        "rdp",
        rdp_epsilon,
        "Rényi composition (Mironov 2017) and conversion (Canonne, Kamath, Steinke 2020)",
        slow=True,
    ),
    Accountant(
        "zcdp",
        concentrated_epsilon,
        "composition and conversion of concentrated privacy (Bun, Steinke 2016)",
    ),
    Accountant(
        "unamplified",
        unamplified_epsilon,
        "the exact curve of the same Gaussians without sampling, which is an upper bound (Balle, "
        "Wang 2018)",
        beaten=True,
        by_step=False,
    ),
)
_NONE = Accountant(
    "none", lambda *_: math.inf, "nothing: no valid accountant covers this delta", by_step=False
)
_BY_NAME = {one.name: one for one in (*ACCOUNTANTS, _NONE)}


@lru_cache(maxsize=8192)
def bounds(
    steps: tuple[Step, ...], delta: float, tuning: Tuning | None = None, quick: bool = False
) -> tuple[tuple[str, float], ...]:
    """(accountant, epsilon) by every accountant that is valid here; never empty.

    quick: Rényi curves are slow for fixed-size sampling and rarely win; they are asked only where
        no tight accountant answers.
    """
    if not steps:
        return (("exact", 0.0),)
    _load_library()
    if isinstance(tuning, AllRuns):
        steps = tuple(with_count(step, step.count * tuning.runs) for step in steps)
    if isinstance(tuning, RandomRuns):
        if any(step.failure for step in steps):
            return (("none", math.inf),)  # how selection and failures mix is not proved
        selected = selected_epsilon(steps, delta, tuning.mean, tuning.repeats.shape)
        return (("rdp", math.inf if selected is None else selected),)
    found: dict[str, float] = {}
    if failure := sum(step.failure * step.count for step in steps):
        delta -= failure
        if delta <= 0:
            return (("none", math.inf),)
    for one in ACCOUNTANTS:
        if (
            (delta == 0 and not one.at_zero)
            or (one.beaten and "exact" in found)
            or (quick and one.slow and any(_BY_NAME[name].tight for name in found))
        ):
            continue
        value = one.epsilon(steps, delta)
        if value is not None:
            found[one.name] = value if value >= 0 else math.inf  # NaN is no bound
    return tuple(found.items()) or (("none", math.inf),)


def theorem_of(accountant: str, steps: Sequence[Step]) -> str:
    """The theorems behind an accountant's answer for these steps."""
    used = _BY_NAME[accountant]
    lemmas = [step.theorem for step in steps if step.theorem] if used.by_step else []
    return "; ".join(dict.fromkeys([used.theorem, *lemmas]))


@cache
def _load_library() -> None:
    """All of it at once: nearly every accountant needs it, and it takes most of a second."""
    with uncollected():
        import_module("dp_accounting.pld.privacy_loss_distribution")
