"""Cheng et al.: BLUR and LUS against DP-FedAvg and the paper's other rivals.

`cheng.toml` has the pages; the function `images` makes one case of their grids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accounting import PrivacyModel
from fedveil.privacy.calibration import calibrate_noise
from fedveil.privacy.sampling import Poisson
from fedveil.report.spread import Spread
from fedveil_lab.reproduction import bfloat16  # noqa: F401  (registers the engine)
from fedveil_lab.reproduction.case import (
    Case,
    Certified,
    Claimed,
    Data,
    Label,
    Noise,
    Without,
    clients_at_hand,
    labelled,
)
from fedveil_lab.reproduction.claims.cheng import paper_cheng_noise_multiplier
from fedveil_lab.reproduction.experiment import Scale, table_of
from fedveil_lab.reproduction.ridges import hills_of
from fedveil_lab.reproduction.summary import Row, paired

TABLE = table_of("cheng")
PUBLISHED, VARIANTS, TASKS = TABLE["published"], TABLE["variants"], TABLE["tasks"]
BASE, WRITERS = "DP-FedAvg", 3400
_METHODS_OWN = ("method", "lambda", "sparsity")  # labels in which a method may differ from BASE
_VOTED = ("model.name", "training.batch_size", "training.learning_rate")  # what voters train with


def images(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    dataset: str,
    method: str,
    clip: float = 0.3,
    epsilon: float = 8.0,
    noise: str = "certified",
    alpha: float = 1.0,
    labels: Sequence[str] = (),
    setting: str = "",
    size: str = "",
    published: str = "",
    best: float | None = None,
    every: int | None = None,
    seeds: int | None = None,
    noise_of_rounds: int | None = None,
) -> Case:
    """Return one run. Pages that ask for the same run share it: all evaluate equally often.

    Args:
        scale: Which of the data set's two sizes is run, unless `size` says.
        recipe: Recipe keys that differ from the data set's and the method's own.
        dataset: `femnist` or `cifar10`.
        method: One of `VARIANTS`.
        clip: S; where all methods meet, and the paper's best on CIFAR-10, unless given.
        epsilon: The budget of certified and claimed noise.
        noise: `certified`, `paper` or `none`.
        alpha: Of the Dirichlet partition of CIFAR-10.
        labels: Names shown after those that all cases have.
        setting: A label.
        size: `quick` or `full`.
        published: The paper's table that has a number for it.
        best: The clip beside which the paper's number is shown.
        every: Rounds between two evaluations.
        seeds: At most so many.
        noise_of_rounds: Take the noise that so many rounds need.
    """
    task = TASKS[dataset][size or str(scale)]
    clients, voting = task.get("clients"), method == "AE-DPFL"
    data = Data("femnist", (("validation_fraction", 0.1),) if voting else ())
    if clients is None:
        clients = clients_at_hand(Data("femnist"), WRITERS)
    if dataset == "cifar10":
        each = task["examples_per_client"]
        dealt = (("alpha", alpha), ("clients", clients), ("examples_per_client", each))
        data = Data("cifar10", dealt, "dirichlet")
    own = {k: v for k, v in recipe.items() if method != BASE or k != "training.penalty"}
    shared = {"training.sampling": "poisson", "privacy.clip_norm": clip, **VARIANTS[method]}
    values = {**task["recipe"], **shared, **own}
    if voting:
        values = {**{key: values[key] for key in _VOTED}, **VARIANTS[method]}
    known: dict[str, Label] = {
        "alpha": alpha,
        "setting": setting,
        "p": values.get("training.rate", 0),
    }
    known |= {"Q": values.get("training.local_steps", 0)}
    known |= {"lambda": own.get("training.penalty", 0.0)}
    known |= {"sparsity": own.get("training.sparsity", 0.0)}
    row = PUBLISHED.get(published, {}).get(method, {})
    shown = best is None or best == clip
    rounds = int(values["training.rounds"])
    looks = 5 if dataset == "femnist" else 2
    return Case(
        labels=(
            ("data", dataset),
            ("noise", "certified, on votes" if voting else noise),
            ("epsilon", "none" if noise == "none" else epsilon),
            ("method", method),
            ("clip", "none" if voting else clip),
            *labelled(labels, known),
        ),
        data=data,
        values=tuple(values.items()),
        noise=noise_of(noise, epsilon, clients, values, noise_of_rounds),
        published=row.get(str(alpha if published == "table_2" else epsilon)) if shown else None,
        every=None if voting else every or max(1, rounds // looks),
        measures=() if voting else ("update_norms",),
        seeds=seeds,
    )


def noise_of(
    noise: str, epsilon: float, clients: int, values: Mapping[str, Any], rounds: int | None = None
) -> Noise:
    """Return certified, the paper's or no noise at delta = N^-1.1."""
    delta = clients**-1.1
    if noise == "none":
        return Without()
    if rounds is not None:
        multiplier = _certified(epsilon, delta, clients, values["training.rate"], rounds)
        return Claimed(epsilon, delta, multiplier)
    if noise == "certified":
        return Certified(epsilon, delta)
    claim = paper_cheng_noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        clients=clients,
        cohort=values["training.rate"] * clients,
        rounds=values["training.rounds"],
        c2=1.0,
    )
    return Claimed(epsilon, delta, claim.value)


@cache
def _certified(epsilon: float, delta: float, clients: int, rate: float, rounds: int) -> float:
    return calibrate_noise(
        epsilon=epsilon,
        delta=delta,
        sampling=Poisson(rate, clients),
        rounds=rounds,
        privacy_model=PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL),
    ).noise_multiplier


def winners(rows: Sequence[Row]) -> Sequence[str]:
    """Report each method at its own best clip, then all at one clip."""
    return (*at_best_clips(rows), *at_one_clip(rows))


def at_best_clips(rows: Sequence[Row]) -> Iterator[str]:
    """Compare methods, the clip picked by mean test accuracy for every method alike."""
    for where, chosen in _groups(rows, without=("method", "clip")):
        clips = {row["clip"] for row in chosen}
        best: dict[Label, Row] = {}
        for method in dict.fromkeys(row["method"] for row in chosen):
            own = [row for row in chosen if row["method"] == method]
            if {row["clip"] for row in own} == clips:  # else its best may not have been tried
                best[method] = max(own, key=lambda row: row.mean("accuracy"))
        if len(clips) < 2 or len(best) < 2:
            continue
        listed = ", ".join(
            f"{method} {row.spread('accuracy')} (S = {row['clip']:g})"
            for method, row in best.items()
        )
        gains = (
            f"{method} {gain_text(paired(row, best[BASE], 'accuracy'))}"
            for method, row in best.items()
            if method != BASE and BASE in best
        )
        yield f"{where}, each at its best clip: {listed}. Minus {BASE}: {', '.join(gains)}"


def at_one_clip(rows: Sequence[Row]) -> Sequence[str]:
    """Report every case minus DP-FedAvg with the same seeds, data, noise and clip."""
    found = []
    for where, chosen in _groups(rows, without=_METHODS_OWN):
        base = next((row for row in chosen if row["method"] == BASE), None)
        if base is None or len(chosen) < 2:
            continue
        gains = (
            f"{_own_name(row)} {gain_text(paired(row, base, 'accuracy'))}"
            for row in chosen
            if row is not base
        )
        norm = base.spread("update_norm").mean
        found.append(
            f"{where}: {BASE} {base.spread('accuracy')} (last median norm {norm:.2f}); "
            f"minus it: {', '.join(gains)}"
        )
    return found


def norm_findings(rows: Sequence[Row]) -> Sequence[str]:
    """Report how long updates are before clipping, over all rounds that were looked at."""
    found = []
    for row in rows:
        norms = np.concatenate(list(hills_of([row]).values()))
        low, middle, high = np.quantile(norms, (0.1, 0.5, 0.9))
        above = float((norms > float(row["clip"])).mean())
        found.append(
            f"{row['method']}, S = {row['clip']:g}: norms {low:.2f} to {high:.2f} (10th and 90th "
            f"percentile), median {middle:.2f}, {above:.0%} above the clip; accuracy "
            f"{row.spread('accuracy')}"
        )
    return (*found, *at_one_clip(rows))


def gain_text(gain: Spread) -> str:
    """Return the mean of paired differences and its standard error, in points."""
    if not gain.runs:
        return "diverged"
    error = "" if math.isnan(gain.error) else f" ± {gain.error:.2f}"
    return f"{gain.mean:+.2f}{error}"


def _own_name(row: Row) -> str:
    own = (f"{name} {row.case.get(name):g}" for name in _METHODS_OWN[1:] if row.case.get(name))
    return " ".join((str(row["method"]), *own))


def _groups(rows: Sequence[Row], without: tuple[str, ...]) -> Iterator[tuple[str, list[Row]]]:
    """Yield rows alike in all labels but these, with a line that says in what they are alike."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        alike = (
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.case.labels
            if name not in without and name != "data"
        )
        found.setdefault(", ".join((str(row["data"]), *alike)), []).append(row)
    yield from found.items()
