"""Cheng et al., tables 1 to 3 and figures 1 to 4: BLUR and LUS against DP-FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduction.case import Case, Label
from reproduction.experiment import Panel, Scale, pages_of
from reproduction.pages.cheng_cases import (
    BASE,
    CLIPS,
    DIFFERENCES,
    ONE_CLIP,
    OURS,
    PENALTY,
    QUICK_CLIPS,
    SETTING,
    TABLE_1,
    TABLE_2,
    VARIANTS,
    case_of,
    voting_case,
)
from reproduction.pages.cheng_findings import at_one_clip, norm_findings, winners

BOTH = (BASE, OURS)
FASTER = 0.3  # rate at which updates on CIFAR-10 are long, as with the paper's Q = 30


def privacy_cases(scale: Scale) -> tuple[Case, ...]:
    quick = scale is Scale.QUICK
    best = ONE_CLIP if quick else 0.03
    grid = [
        case_of(
            dataset="femnist",
            scale=scale,
            variant=variant,
            epsilon=epsilon,
            clip=clip,
            published=TABLE_1.get(variant, {}).get(epsilon) if clip == best else None,
        )
        for epsilon in ((8.0,) if quick else (2.0, 4.0, 6.0, 8.0))
        for clip in (QUICK_CLIPS["femnist"] if quick else CLIPS)
        for variant in VARIANTS
    ]
    others = [
        case_of(
            dataset="femnist",
            scale=scale,
            variant=variant,
            clip=ONE_CLIP,
            kind=kind,
            seeds=1 if quick else None,
        )
        for kind in ("paper", "none")
        for variant in BOTH
    ]
    rivals = [
        case_of(
            dataset="femnist",
            scale=scale,
            variant="DDGauss",
            clip=clip,
            published=TABLE_1["DDGauss"][8.0] if clip == best else None,
            seeds=1 if quick else None,
        )
        for clip in ((0.1, 0.3) if quick else CLIPS)
    ]
    return (*grid, *others, *rivals, voting_case(scale))


def heterogeneity_cases(scale: Scale) -> tuple[Case, ...]:
    quick = scale is Scale.QUICK
    alphas = (0.1, 1.0) if quick else (0.1, 1.0, 10.0, 100.0)

    def case(alpha: float, variant: str, clip: float, kind: str = "certified") -> Case:
        shown = clip == ONE_CLIP and kind == "certified"
        return case_of(
            dataset="cifar10",
            scale=scale,
            variant=variant,
            clip=clip,
            kind=kind,
            alpha=alpha,
            labels=(("alpha", alpha),),
            published=TABLE_2.get(variant, {}).get(alpha) if shown else None,
            seeds=1 if quick and kind != "certified" else None,
        )

    clips = QUICK_CLIPS["cifar10"] if quick else CLIPS
    grid = [case(a, variant, clip) for a in alphas for clip in clips for variant in VARIANTS]
    claims = [case(0.1, variant, ONE_CLIP, "paper") for variant in BOTH]
    return tuple(grid + claims)


def _swept(
    dataset: str,
    scale: Scale,
    name: str,
    key: str,
    points: Sequence[Label],
    variants: tuple[str, ...],
    fixed: dict[str, Label] | None = None,
) -> tuple[Case, ...]:
    """One setting moves, everything else stays. On CIFAR-10 with alpha 0.1, where labels differ
    most and the paper gains most."""
    return tuple(
        case_of(
            dataset=dataset,
            scale=scale,
            variant=variant,
            clip=ONE_CLIP,
            alpha=0.1,
            change={**(fixed or {}), key: point},
            labels=((name, point),),
        )
        for variant in variants
        for point in points
    )


def _none(scale: Scale, name: str) -> Case:
    return case_of(
        dataset="femnist", scale=scale, variant=BASE, clip=ONE_CLIP, labels=((name, 0.0),)
    )


def penalty_cases(scale: Scale) -> tuple[Case, ...]:
    points = (PENALTY, 1.6) if scale is Scale.QUICK else (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
    swept = _swept("femnist", scale, "lambda", "training.penalty", points, ("BLUR",))
    return (_none(scale, "lambda"), *swept)


def sparsity_cases(scale: Scale) -> tuple[Case, ...]:
    points = (0.3, 0.7, 0.9) if scale is Scale.QUICK else (0.1, 0.3, 0.5, 0.7, 0.9)
    swept = _swept("femnist", scale, "sparsity", "training.sparsity", points, ("LUS", OURS))
    return (_none(scale, "sparsity"), *swept)


def norm_cases(scale: Scale) -> tuple[Case, ...]:
    return tuple(
        case_of(dataset="femnist", scale=scale, variant=variant, clip=0.1) for variant in VARIANTS
    )


def steps_cases(scale: Scale) -> tuple[Case, ...]:
    quick = scale is Scale.QUICK
    points = (2, 8, 24) if quick else (10, 20, 30, 40)
    faster: dict[str, Label] = {"training.learning_rate": FASTER} if quick else {}
    return _swept("cifar10", scale, "Q", "training.local_steps", points, BOTH, faster)


def cohort_cases(scale: Scale) -> tuple[Case, ...]:
    points = (0.0125, 0.025, 0.05) if scale is Scale.QUICK else (0.04, 0.06, 0.08, 0.1)
    return _swept("cifar10", scale, "p", "training.rate", points, BOTH)


# Not in the paper: what could make BLUR and LUS pay. A clip, and what else changes for all
# methods (a tenth of the clip comes with ten times the server's rate, or nothing moves); BLUR's own
# strength changes for those that have it.
_FASTER = {"training.learning_rate": FASTER}
WHERE: dict[str, tuple[float, dict[str, Any]]] = {
    "as table 2": (ONE_CLIP, {}),
    "rate 0.3": (ONE_CLIP, _FASTER),
    "rate 0.3, S = 0.03": (ONE_CLIP / 10, {**_FASTER, "server.learning_rate": 30.0}),
    "rate 0.3, λ = 3": (ONE_CLIP, {**_FASTER, "training.penalty": 3.0}),
    "rate 0.3, 4 layers": (ONE_CLIP, {**_FASTER, "model.hidden": (16, 16, 16, 16)}),
    "rate 0.9": (ONE_CLIP, {"training.learning_rate": 0.9}),
}


def where_cases(scale: Scale) -> tuple[Case, ...]:
    return tuple(
        case_of(
            dataset="cifar10",
            scale=Scale.QUICK,
            variant=variant,
            clip=clip,
            kind=kind,
            alpha=0.1,
            change={k: v for k, v in change.items() if variant != BASE or k != "training.penalty"},
            labels=(("setting", name),),
        )
        for kind in ("certified", "none")
        for name, (clip, change) in WHERE.items()
        for variant in BOTH
    )


_DIFFERENCE = f"gain over {BASE} (points)"


def _compared(
    title: str, x: str, label: str, log_x: bool = False, **where: Label
) -> tuple[Panel, ...]:
    """Accuracies side by side, and beside them the paired differences, which noise hides."""
    shown = {"noise": "certified", **where}
    common: dict[str, Any] = {"x": x, "y": "accuracy", "by": "method", "x_label": label,
                              "where": tuple(shown.items()), "log_x": log_x}  # fmt: skip
    return (
        Panel(title=title, y_label="test accuracy (%)", **common),
        Panel(title=title, y_label=_DIFFERENCE, minus=BASE, **common),
    )


_NORM_PANELS = (
    *(
        Panel(method, "round", "update_norm", "method", (("method", method),),
              "update norm before clipping", "round", ridges=True)
        for method in BOTH
    ),
    Panel("ε = 8", "round", "update_norm", "method", (), "round", "median update norm"),
    Panel("ε = 8", "round", "accuracy", "method", (), "round", "test accuracy (%)"),
)  # fmt: skip


_page = pages_of(
    paper="Cheng et al.",
    setting=SETTING,
    differences=DIFFERENCES,
    metric="accuracy",
    unit="% of the test images",
    quick_seeds=1,
    full_minutes=5000,
    findings=at_one_clip,
)


EXPERIMENTS = (
    _page("cheng-table-1", "table 1: EMNIST, accuracy by clip", privacy_cases,
          _compared("FEMNIST, ε = 8", "clip", "clip S", log_x=True, epsilon=8.0),
          findings=winners, quick_seeds=3, quick_minutes=9, full_minutes=66000),
    _page("cheng-table-2", "table 2: heterogeneity on CIFAR-10", heterogeneity_cases,
          tuple(panel for alpha in (0.1, 1.0)
                for panel in _compared(f"CIFAR-10, α = {alpha:g}, ε = 8", "clip", "clip S",
                                       log_x=True, alpha=alpha)),
          findings=winners, quick_seeds=3, quick_minutes=11, full_minutes=51000),
    _page("cheng-table-3", "table 3: sparsity of LUS", sparsity_cases,
          _compared("FEMNIST, ε = 8", "sparsity", "sparsity c")[:1]),
    _page("cheng-figure-1", "figure 1: strength of BLUR", penalty_cases,
          (Panel("FEMNIST, ε = 8", "round", "accuracy", "lambda", (), "round",
                 "test accuracy (%)"),)),
    _page("cheng-figure-2", "figure 2: norms of local updates", norm_cases, _NORM_PANELS,
          findings=norm_findings),
    _page("cheng-figure-3", "figure 3: local steps on CIFAR-10", steps_cases,
          _compared("CIFAR-10, α = 0.1, ε = 8", "Q", "local steps Q (rate 0.3)")),
    _page("cheng-figure-4", "figure 4: active agents on CIFAR-10", cohort_cases,
          _compared("CIFAR-10, α = 0.1, ε = 8", "p", "probability p to take part")),
    _page("cheng-where", "beyond the paper: where BLUR and LUS pay", where_cases,
          tuple(Panel(f"CIFAR-10, α = 0.1, {words}", "setting", "accuracy", "method",
                      (("noise", kind),), " ", _DIFFERENCE, minus=BASE)
                for kind, words in (("certified", "ε = 8"), ("none", "no noise"))),
          quick_minutes=8, full_minutes=8),
)  # fmt: skip
