"""Cheng et al.: BLUR and LUS against DP-FedAvg and the paper's other rivals.

`cheng.toml` has the pages; the function `images` makes one case of their grids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accounting import PrivacyModel
from fedveil.privacy.calibration import calibrate_noise
from fedveil.privacy.sampling import Poisson
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

TABLE = table_of("cheng")
PUBLISHED, VARIANTS, TASKS = TABLE["published"], TABLE["variants"], TABLE["tasks"]
BASE, WRITERS = "DP-FedAvg", 3400
_VOTED = ("model.name", "training.batch_size", "training.learning_rate")  # what voters train with


def images(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    dataset: Literal["femnist", "cifar10"],
    method: str,
    clip: float = 0.3,
    epsilon: float = 8.0,
    noise: Literal["certified", "paper", "none"] = "certified",
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
        dataset: Which federation.
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
