"""Cheng et al., tables 1 to 3 and figures 1 to 4: BLUR and LUS against DP-FedAvg.

Full is the paper's size as far as 300 writers allow, hours to days on two cores. Quick asks the
same questions of a small network on FEMNIST by writer (and on CIFAR-10), with cohorts large enough
for its number of weights that something is learnt at epsilon 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedveil.experiments.case import Case, Certified, Claimed, Data, Label, Noise
from fedveil.experiments.experiment import Difference, Experiment, Panel, Scale
from fedveil.experiments.summary import Row
from fedveil.privacy.papers.cheng import paper_cheng_noise_multiplier

PENALTY, SPARSITY = 0.4, 0.7
OURS = "BLUR + LUS"
VARIANTS: dict[str, dict[str, Label]] = {
    "DP-FedAvg": {"training.method": "dp-fedavg"},
    "BLUR": {"training.method": "cheng", "training.penalty": PENALTY, "training.sparsity": 0.0},
    "LUS": {"training.method": "cheng", "training.penalty": 0.0, "training.sparsity": SPARSITY},
    OURS: {"training.method": "cheng", "training.penalty": PENALTY, "training.sparsity": SPARSITY},
}
CLIPS = (0.01, 0.03, 0.1, 0.3, 1.0)  # the paper's grid

# Table 1, CNN-2-Layers: epsilon -> accuracy;  table 2, CNN-2-Layers: alpha -> accuracy.
TABLE_1 = {
    "DP-FedAvg": {2.0: 69.65, 4.0: 72.32, 6.0: 74.12, 8.0: 75.36},
    "AE-DPFL": {2.0: 71.16, 4.0: 74.63, 6.0: 76.25, 8.0: 77.41},
    "DDGauss": {2.0: 69.35, 4.0: 72.16, 6.0: 74.34, 8.0: 75.20},
    OURS: {2.0: 74.48, 4.0: 75.85, 6.0: 77.48, 8.0: 78.09},
}
TABLE_2 = {
    "DP-FedAvg": {0.1: 53.84, 1.0: 58.67, 10.0: 62.25, 100.0: 63.73},
    OURS: {0.1: 58.95, 1.0: 63.74, 10.0: 65.34, 100.0: 66.05},
}

SETTING = (
    "EMNIST by writer, 3,400 clients, T = 1000, p = 0.04, batch 64, rate 0.03; CIFAR-10 by "
    "Dirichlet(alpha), T = 300, p = 0.06, batch 50, rate 0.1; Q = 30 local steps",
    "CNN of 1.0 M weights, ResNet-18; delta = 1/N; lambda = 0.4, c = 0.7; clip by grid search",
    "means and deviations of several runs",
)
DIFFERENCES = (
    Difference("writers", "3,400", "300, leaning to digits (the rest is not in the copy at hand)"),
    Difference("delta", "1/N", "N^-1.1: at 1/N publishing one user would do"),
    Difference(
        "the paper's noise",
        "Theorem 1, its constant c2 not given",
        "c2 = 1; 'certified' is what the Poisson cohort needs",
    ),
    Difference("clients of CIFAR-10", "not said", "500 of 100 images"),
    Difference(
        "size",
        "CNN of 1.0 M weights, Q = 30, p = 0.04 to 0.06",
        "quick: a network of one hidden layer of 32, Q = 10, batch 32, rate 0.1, p = 0.3, T = 40",
        only=Scale.QUICK,
    ),
)


def task_of(dataset: str, scale: Scale, alpha: float = 1.0) -> tuple[Data, int, dict[str, Label]]:
    """Data, number of clients, and what all methods share."""
    quick = scale is Scale.QUICK
    if dataset == "femnist":
        data, clients = Data("femnist"), 300
        values: dict[str, Label] = {
            "training.rounds": 1000,
            "training.rate": 0.04,
            "training.batch_size": 64,
            "training.learning_rate": 0.03,
        }
    else:
        data = Data("cifar10", (("alpha", alpha), ("clients", 500), ("examples_per_client", 100)),
                    "dirichlet")  # fmt: skip
        clients = 500
        values = {
            "training.rounds": 300,
            "training.rate": 0.06,
            "training.batch_size": 50,
            "training.learning_rate": 0.1,
        }
    values |= {"model.name": "cheng-cnn", "training.local_steps": 30}
    if quick:
        values |= {
            "training.rounds": 40,
            "training.rate": 0.3 if dataset == "femnist" else 0.2,
            "training.local_steps": 10,
            "training.batch_size": 32,
            "training.learning_rate": 0.1,
            "model.name": "mlp",
        }
    return data, clients, values


def case_of(
    *,
    dataset: str,
    scale: Scale,
    variant: str,
    epsilon: float,
    clip: float,
    kind: str = "certified",
    alpha: float = 1.0,
    change: dict[str, Any] | None = None,
    labels: tuple[tuple[str, Label], ...] = (),
    published: float | None = None,
    every: int | None = None,
) -> Case:
    data, clients, shared = task_of(dataset, scale, alpha)
    values: dict[str, Any] = {
        **shared,
        "training.sampling": "poisson",
        "privacy.clip_norm": clip,
        **VARIANTS[variant],
        **(change or {}),
    }
    if values["model.name"] == "mlp":
        values.setdefault("model.hidden", (32,))
    delta = clients**-1.1
    noise: Noise = Certified(epsilon, delta)
    if kind == "paper":
        claim = paper_cheng_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            clients=clients,
            cohort=values["training.rate"] * clients,
            rounds=values["training.rounds"],
            c2=1.0,
        )
        noise = Claimed(epsilon, delta, claim.value)
    return Case(
        labels=(
            ("data", dataset),
            ("noise", kind),
            ("epsilon", epsilon),
            ("method", variant),
            ("clip", clip),
            *labels,
        ),
        data=data,
        values=tuple(values.items()),
        noise=noise,
        published=published,
        every=every,
        measures=("update_norms",) if every else (),
    )


def _clips(scale: Scale) -> tuple[float, ...]:
    return (0.1, 0.3, 1.0) if scale is Scale.QUICK else CLIPS


def privacy_cases(scale: Scale) -> tuple[Case, ...]:
    quick = scale is Scale.QUICK
    grid = [
        case_of(
            dataset="femnist",
            scale=scale,
            variant=variant,
            epsilon=epsilon,
            clip=clip,
            published=TABLE_1.get(variant, {}).get(epsilon) if clip == 0.03 else None,
        )
        for epsilon in ((8.0,) if quick else (2.0, 4.0, 6.0, 8.0))
        for variant in VARIANTS
        for clip in _clips(scale)
    ]
    claims = [
        case_of(
            dataset="femnist", scale=scale, variant=variant, epsilon=8.0, clip=0.3, kind="paper"
        )
        for variant in ("DP-FedAvg", OURS)
    ]
    return tuple(grid + claims)


def heterogeneity_cases(scale: Scale) -> tuple[Case, ...]:
    quick = scale is Scale.QUICK
    return tuple(
        case_of(
            dataset="cifar10",
            scale=scale,
            variant=variant,
            epsilon=8.0,
            clip=clip,
            alpha=alpha,
            labels=(("alpha", alpha),),
            published=TABLE_2.get(variant, {}).get(alpha) if clip == 0.3 else None,
        )
        for alpha in ((0.1, 1.0) if quick else (0.1, 1.0, 10.0, 100.0))
        for variant in VARIANTS
        for clip in ((0.3,) if quick else CLIPS)
    )


def _swept(
    dataset: str,
    scale: Scale,
    name: str,
    key: str,
    points: Sequence[Label],
    variants: tuple[str, ...],
    every: int | None = None,
    clip: float = 0.3,
) -> tuple[Case, ...]:
    """One setting moves, everything else stays."""
    return tuple(
        case_of(
            dataset=dataset,
            scale=scale,
            variant=variant,
            epsilon=8.0,
            clip=clip,
            change={key: point},
            labels=((name, point),),
            every=every,
        )
        for variant in variants
        for point in points
    )


def penalty_cases(scale: Scale) -> tuple[Case, ...]:
    points = (0.1, 0.4, 1.6) if scale is Scale.QUICK else (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
    none = case_of(dataset="femnist", scale=scale, variant="DP-FedAvg", epsilon=8.0, clip=0.3,
                   labels=(("lambda", 0.0),), every=5)  # fmt: skip
    swept = _swept("femnist", scale, "lambda", "training.penalty", points, ("BLUR",), every=5)
    return (none, *swept)


def sparsity_cases(scale: Scale) -> tuple[Case, ...]:
    points = (0.3, 0.7, 0.9) if scale is Scale.QUICK else (0.1, 0.3, 0.5, 0.7, 0.9)
    none = case_of(dataset="femnist", scale=scale, variant="DP-FedAvg", epsilon=8.0, clip=0.3,
                   labels=(("sparsity", 0.0),))  # fmt: skip
    swept = _swept("femnist", scale, "sparsity", "training.sparsity", points, ("LUS", OURS))
    return (none, *swept)


def norm_cases(scale: Scale) -> tuple[Case, ...]:
    return tuple(
        case_of(dataset="femnist", scale=scale, variant=variant, epsilon=8.0, clip=0.1, every=2)
        for variant in VARIANTS
    )


def steps_cases(scale: Scale) -> tuple[Case, ...]:
    points = (5, 20, 40) if scale is Scale.QUICK else (10, 20, 30, 40)
    return _swept("cifar10", scale, "Q", "training.local_steps", points, ("DP-FedAvg", OURS))


def cohort_cases(scale: Scale) -> tuple[Case, ...]:
    points = (0.1, 0.2, 0.4) if scale is Scale.QUICK else (0.04, 0.06, 0.08, 0.1)
    return _swept("cifar10", scale, "p", "training.rate", points, ("DP-FedAvg", OURS))


WHERE: dict[str, dict[str, Any]] = {
    "as table 1": {},
    "4 times the local steps": {"training.local_steps": 40},
    "4 times the learning rate": {"training.learning_rate": 0.4},
    "three hidden layers": {"model.hidden": (32, 32, 32)},
}


def where_cases(scale: Scale) -> tuple[Case, ...]:
    """Not in the paper: what makes updates long, and whether that makes BLUR and LUS pay."""
    return tuple(
        case_of(
            dataset="femnist",
            scale=Scale.QUICK,
            variant=variant,
            epsilon=8.0,
            clip=clip,
            change=change,
            labels=(("setting", name),),
            every=10,
        )
        for name, change in WHERE.items()
        for variant in ("DP-FedAvg", OURS)
        for clip in (0.3, 1.0)
    )


def where_findings(rows: Sequence[Row]) -> Sequence[str]:
    found = []
    for name in WHERE:
        for clip in (0.3, 1.0):
            pair = [row for row in rows if row.matches(setting=name, clip=clip)]
            if len(pair) == 2:
                listed = ", ".join(
                    f"{row['method']} {row.spread('accuracy')} (median norm "
                    f"{row.mean('update_norm'):.2f})"
                    for row in pair
                )
                found.append(f"{name}, S = {clip}: {listed}")
    return found


def winners(rows: Sequence[Row]) -> Sequence[str]:
    """Each method at its own best clip, and all at one clip; how sure, in standard errors."""
    found = []
    groups = {(row["data"], row["noise"], row["epsilon"], row.case.get("alpha")) for row in rows}
    for data, kind, epsilon, alpha in sorted(groups, key=str):
        chosen = [
            row
            for row in rows
            if row.matches(data=data, noise=kind, epsilon=epsilon)
            and row.case.get("alpha") == alpha
        ]
        best: dict[Label, Row] = {}
        for row in chosen:
            rival = best.get(row["method"])
            if rival is None or row.mean("accuracy") > rival.mean("accuracy"):
                best[row["method"]] = row
        where = f"{data}, {kind} noise, epsilon {epsilon:g}"
        where += "" if alpha is None else f", alpha {alpha:g}"
        listed = ", ".join(f"{m} {r.spread('accuracy')} (S = {r['clip']})" for m, r in best.items())
        found.append(f"{where}, each at its best clip: {listed}")
    return found


def _bar(x: str, label: str, by: str = "method") -> tuple[Panel, ...]:
    return (
        Panel(
            title="ε = 8, certified noise",
            x=x,
            y="accuracy",
            by=by,
            where=(("noise", "certified"), ("epsilon", 8.0)),
            x_label=label,
            y_label="test accuracy (%)",
        ),
    )


_NORM_PANELS = tuple(
    Panel(title="clip 0.1, ε = 8", x="round", y=y, by="method", x_label="round", y_label=label)
    for y, label in (
        ("update_norm", "median update norm before clipping"),
        ("clipped", "share of updates clipped"),
        ("accuracy", "test accuracy (%)"),
    )
)


def _page(name: str, title: str, cases: Any, panels: tuple[Panel, ...], **more: Any) -> Experiment:
    settings: dict[str, Any] = {
        "quick_minutes": 5,
        "full_minutes": 2000,
        "findings": winners,
        **more,
    }
    return Experiment(
        name=name,
        paper="Cheng et al.",
        title=title,
        setting=SETTING,
        differences=DIFFERENCES,
        cases=cases,
        metric="accuracy",
        unit="% of the test images",
        panels=panels,
        **settings,
    )


EXPERIMENTS = (
    _page("cheng-table-1", "table 1: privacy budgets on EMNIST", privacy_cases,
          _bar("clip", "clip S")),
    _page("cheng-table-2", "table 2: heterogeneity on CIFAR-10", heterogeneity_cases,
          _bar("alpha", "Dirichlet parameter")),
    _page("cheng-table-3", "table 3: sparsity of LUS", sparsity_cases,
          _bar("sparsity", "sparsity c")),
    _page("cheng-figure-1", "figure 1: strength of BLUR", penalty_cases,
          (Panel("ε = 8, certified noise", "round", "accuracy", "lambda", (), "round",
                 "test accuracy (%)"),)),
    _page("cheng-figure-2", "figure 2: norms of local updates", norm_cases, _NORM_PANELS),
    _page("cheng-figure-3", "figure 3: local steps on CIFAR-10", steps_cases,
          _bar("Q", "local steps Q")),
    _page("cheng-figure-4", "figure 4: active agents on CIFAR-10", cohort_cases,
          _bar("p", "probability p to take part")),
    _page("cheng-where", "beyond the paper: where BLUR and LUS pay", where_cases,
          tuple(Panel(f"{name}, S = 1", "round", "accuracy", "method",
                      (("setting", name), ("clip", 1.0)), "round", "test accuracy (%)")
                for name in WHERE), findings=where_findings, full_minutes=10),
)  # fmt: skip
