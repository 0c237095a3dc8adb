"""Fu et al.: linear regression on Lending Club, a network on FEMNIST, noise on every upload.

`fu.toml` has the pages; the functions `lending` and `femnist` make one case of their grids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from fedveil.core.arguments import count
from fedveil_lab.reproduction.case import (
    Case,
    Certified,
    Claimed,
    Data,
    Label,
    Noise,
    Without,
    at_hand,
    clients_at_hand,
    federation_of,
    labelled,
)
from fedveil_lab.reproduction.claims.fu import paper_fu_participations
from fedveil_lab.reproduction.experiment import Scale, table_of

PUBLISHED = table_of("fu")["published"]
DELTA, NO_NOISE, WRITERS = 1e-4, "∞", 3500
LOANS = 80  # of a client; the paper has them for 5,000 clients


def noise_of(
    noise: str, epsilon: Label, clients: int, cohort: int, rounds: int, *, delta: float, local: int
) -> Noise:
    """Return the noise of one upload, as a multiple of the farthest that its E steps move it.

    Args:
        noise: `paper` (Theorem 1, or Theorem 2 if delta is positive), `one step` (Theorem 2 as if
            an upload moved by one step only) or `certified`.
        epsilon: The budget, or `NO_NOISE`.
        clients: N.
        cohort: b.
        rounds: T / E.
        delta: Zero for Laplace noise.
        local: E.
    """
    if epsilon == NO_NOISE:
        return Without()
    budget = float(epsilon)
    if noise == "certified":
        return Certified(budget, delta)
    uses = paper_fu_participations(clients=clients, cohort=cohort, rounds=rounds).value
    ratio = math.sqrt(uses * math.log(1 / delta)) if delta else uses
    return Claimed(budget, delta, ratio / budget / (local if noise == "one step" else 1))


def _published(table: str, label: Label, epsilon: Label, noise: str) -> float | None:
    best, value, _ = PUBLISHED[table][str(epsilon)] if table else (None, None, None)
    return value if best == label and noise.startswith("paper") else None


def lending(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    labels: Sequence[str],
    epsilon: Label,
    T: int,
    E: Label = 1,
    power: float | None = None,
    noise: Literal["paper", "certified"] = "paper",
    clients: int = 5000,
    everyone: bool = False,
    reading: str = "",
    rate: float = 0.2,
    decay: float = 2.0,
    shuffled: bool = True,
    every: int | None = None,
    published: str = "",
) -> Case:
    """Return one run on Lending Club; a `power` stands for E = T^power.

    `clients = 0` are as many clients of 80 loans as the source's files allow, 5,000 at most.
    """
    count("T", T)
    most = loans_at_hand() // LOANS
    clients = clients or min(5000, most)
    each = (("per_client", LOANS),) if clients < most else ()
    local = int(E) if power is None else max(1, round(T**power))
    cohort, rounds = clients if everyone else clients // 10, max(1, round(T / local))
    values = {
        **recipe,
        "training.rounds": rounds,
        "training.cohort": cohort,
        "training.local_steps": local,
        "training.learning_rate": 2 * rate,
        **({"training.schedule": "inverse", "training.decay": decay} if decay else {}),
    }
    known: dict[str, Label] = {
        "clients": clients,
        "noise": noise,
        "epsilon": epsilon,
        "reading": reading,
    }
    known |= {"T": T, "E": E}
    return Case(
        labels=labelled(labels, known),
        data=Data("lending-club", (("clients", clients), *each), "sorted", shuffled),
        values=tuple(values.items()),
        noise=noise_of(noise, epsilon, clients, cohort, rounds, delta=0.0, local=local),
        published=_published(published, known[labels[-1]], epsilon, noise)
        if clients == 5000
        else None,
        every=every,
    )


@cache
def loans_at_hand() -> int:
    """Return how many loans train; the paper's number if the files are not here."""
    whole = Data("lending-club", (("clients", 1),), "sorted")
    return len(federation_of(whole).train) if at_hand(whole) else 5000 * LOANS


def femnist(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    labels: Sequence[str],
    noise: Literal["paper", "certified", "one step", "paper's average"],
    epsilon: Label,
    T: int,
    E: int,
    every: int | None = None,
    published: str = "",
    cap: int = 0,
) -> Case:
    """Return one run on FEMNIST: 3,500 clients of dealt images, or all writers of the source.

    A tenth of the clients take part in a round. With a `cap` on their images the writers are the
    clients at both scales, and noise `paper's average` is as long as if there were 3,500 of them.
    """
    count("T", T)
    dealt, rounds = scale is Scale.QUICK and not cap, max(1, round(T / E))
    of_writers = Data("femnist", (("cap", cap),) if cap else ())
    data = Data("femnist", (("clients", WRITERS), ("cap", 12)), "iid") if dealt else of_writers
    clients = WRITERS if dealt else clients_at_hand(of_writers, WRITERS)
    cohort = clients // 10
    values = {
        **recipe,
        "training.cohort": cohort,
        "training.rounds": rounds,
        "training.local_steps": E,
    }
    own = noise_of(noise, epsilon, clients, cohort, rounds, delta=DELTA, local=E)
    if noise == "paper's average" and isinstance(own, Claimed):
        share = math.sqrt(cohort / (WRITERS // 10))
        own = replace(own, noise_multiplier=own.noise_multiplier * share)
    return Case(
        labels=labelled(labels, {"noise": noise, "epsilon": epsilon, "T": T, "E": E}),
        data=data,
        values=tuple(values.items()),
        noise=own,
        published=_published(published, E, epsilon, noise),
        every=every,
    )
