"""The statements that prove what the accountants report."""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.privacy.accountants.steps import (
    CappedPoissonGaussianStep,
    DiscreteSumStep,
    FixedSizeGaussianStep,
    LaplaceStep,
    PoissonGaussianStep,
    Step,
    ZcdpStep,
    ZeroedCappedPoissonGaussianStep,
)

_BY_ACCOUNTANT = {
    "exact": "adaptive composition of Gaussian mechanisms into one (Dong, Roth, Su 2022) and its "
    "exact curve (Balle, Wang 2018)",
    "pure": "basic composition of Laplace mechanisms (Dwork et al. 2006)",
    "pld": "composition of dominating pairs, discretised upwards (Zhu, Dong, Wang 2022; "
    "Doroshenko et al. 2022)",
    "rdp": "Rényi composition (Mironov 2017) and conversion (Canonne, Kamath, Steinke 2020)",
    "zcdp": "composition and conversion of concentrated privacy (Bun, Steinke 2016)",
    "unamplified": "the exact curve of the same Gaussians without sampling, which is an upper "
    "bound (Balle, Wang 2018)",
    "none": "nothing: no valid accountant covers this delta",
}

_BY_STEP: dict[type[Step], str] = {
    PoissonGaussianStep: "Poisson sampling of a Gaussian (Mironov, Talwar, Zhang 2019)",
    FixedSizeGaussianStep: "sampling without replacement (Wang, Balle, Kasiviswanathan 2019; Zhu, "
    "Dong, Wang 2022)",
    CappedPoissonGaussianStep: "truncated Poisson sampling (arXiv 2508.15089)",
    ZeroedCappedPoissonGaussianStep: "truncated Poisson sampling by advanced joint convexity "
    "(Balle, Barthe, Gaboardi 2018)",
    LaplaceStep: "the Laplace mechanism in L1 (Dwork et al. 2006)",
    ZcdpStep: "concentrated privacy of each release (Bun, Steinke 2016)",
    DiscreteSumStep: "sums of discrete Gaussians (Kairouz, Liu, Steinke 2021)",
}


def theorem_of(accountant: str, steps: Sequence[Step]) -> str:
    """The theorems behind `accountant` for these steps."""
    lemmas = dict.fromkeys(_BY_STEP[type(step)] for step in steps if type(step) in _BY_STEP)
    if accountant in ("exact", "pure", "unamplified", "none"):
        lemmas = {}
    return "; ".join([_BY_ACCOUNTANT[accountant], *lemmas])
