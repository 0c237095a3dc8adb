"""Labels from uploads: what the last layer's bias tells about a client's most common class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task
from fedveil.planning.plan import Plan
from fedveil_lab.audit.attack.uploads import Uploads


@dataclass(frozen=True)
class LabelGuess:
    """Victims of whom the most common label was named right; `by_chance`: the best blind guess."""

    view: str
    right: int
    victims: int
    by_chance: float


def guess_labels(plan: Plan, sent: Uploads) -> tuple[LabelGuess, ...]:
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
        found.append(LabelGuess(view, right, sent.victims, blind))
    return tuple(found)
