"""What uploads tell about a client besides its records: its most common label, and a property.

The class whose last bias was raised most is the client's most common label. For a property that is
not its label the attacker knows other clients, their uploads and whether they have it (Melis et al.
2019), fits a linear rule to them (ridge regression) and applies it to the victims.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task
from fedveil.planning.plan import Plan
from fedveil_lab.audit.attack.uploads import SUMS, Uploads, crowd_of, uploads

CLIENTS = 400  # of whom half are known, and half are victims
_LEAST = 200  # fewer leave nobody to learn from

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Guess:
    """Victims of whom `what` was told right from a view; `by_chance`: the best blind guess."""

    view: str
    what: str
    right: int
    victims: int
    by_chance: float


def guess_labels(plan: Plan, sent: Uploads) -> tuple[Guess, ...]:
    """Name each victim's most common label: the class whose bias was raised most."""
    last = list(plan.layout)[-1]
    classes = plan.federation.classes
    if plan.federation.task is not Task.CLASSIFICATION or last.shape != (classes,):
        raise ConfigError("attack: labels are read off a last bias with one entry for each class")
    records = int(sent.crowd.sizes[0])
    labels = np.asarray(sent.crowd.train.targets[: sent.victims * records]).reshape(-1, records)
    counts = np.stack([np.bincount(row, minlength=classes) for row in labels])
    common = counts == counts.max(axis=1, keepdims=True)
    everybody = np.bincount(np.asarray(plan.federation.train.targets), minlength=classes)
    blind = float(common[:, everybody.argmax()].mean())
    found = []
    for view, rows in sent.views.items():
        guessed = rows[:, last.start : last.stop].argmax(dim=1).numpy()
        right = int(common[np.arange(len(common)), guessed].sum())
        found.append(Guess(view, "the most common label of a client", right, sent.victims, blind))
    return tuple(found)


def guess_property(
    plan: Plan, column: str | None, records: int, chance: np.random.Generator, seed: int
) -> tuple[Guess, ...]:
    """Say of each victim whether its mean of a column, or of all inputs, is above the median."""
    federation = plan.federation
    clients = min(CLIENTS, len(federation.train) // records)
    if clients < _LEAST:
        raise ConfigError(f"attack: a property needs {_LEAST} clients, and records for {clients}")
    crowd = crowd_of(federation, clients, records, chance)
    what, values = _column(plan, column, np.asarray(crowd.train.inputs))
    means = values.reshape(clients, records).mean(axis=1)
    has = means > np.median(means)
    if has.all() or not has.any():
        raise ConfigError(f"attack: {what} is alike for all clients; name another --property")
    known = slice(0, clients // 2 - max(SUMS))  # whose sums hold no victim
    victims = slice(clients // 2, clients)
    blind = float(max(has[victims].mean(), 1 - has[victims].mean()))
    found = []
    for view, rows in uploads(plan, crowd, clients, seed).views.items():
        said = _said(rows[known], has[known], rows[victims])
        right = int((said == has[victims]).sum())
        found.append(Guess(view, f"{what} above the median", right, len(said), blind))
    return tuple(found)


def _column(
    plan: Plan, column: str | None, inputs: npt.NDArray[np.generic]
) -> tuple[str, npt.NDArray[np.float64]]:
    """Return the property in words, and its value for each record."""
    names = plan.federation.features
    rows = np.asarray(plan.federation.model_inputs(inputs), dtype=np.float64)
    flat = rows.reshape(len(rows), -1)
    if column is None:
        return "the mean of all inputs", flat.mean(axis=1)
    if column not in names or len(names) != flat.shape[1]:
        told = ", ".join(names) or "none, for its inputs have no names"
        raise ConfigError(f"--property {column}: columns of this data are {told}")
    return column, flat[:, names.index(column)]


def _said(known: Tensor, has: Bools, victims: Tensor) -> Bools:
    """Ridge regression of +-1, by inner products: there are more weights than clients.

    Of uploads without their signs as well: labels turn the signs, and properties do not.
    """
    signed = np.concatenate([known.numpy(), victims.numpy()])
    rows = np.concatenate([signed, np.abs(signed)], axis=1)
    rows = rows - rows[: len(known)].mean(axis=0)
    products = rows @ rows[: len(known)].T
    inside = products[: len(known)]
    strength = max(float(np.trace(inside)) / len(known), 1e-300)
    sides = np.where(has, 1.0, -1.0)
    solved = np.linalg.solve(inside + strength * np.eye(len(known)), sides - sides.mean())
    return np.asarray(products[len(known) :] @ solved + sides.mean() > 0)
