"""All attacks on a recipe, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.planning.plan import Plan
from fedveil_lab.audit.attack.guesses import Guess, guess_labels, guess_property
from fedveil_lab.audit.attack.membership import Membership, membership
from fedveil_lab.audit.attack.reconstruct import Reconstruction, first_affine, reconstruct
from fedveil_lab.audit.attack.uploads import crowd_of, uploads

KINDS = ("reconstruct", "labels", "property", "membership")
_NOT_TRIED = (
    "servers that change the model or the protocol to see more (all attacks only look)",
    "uploads of later rounds, and what several rounds say together about one record",
    "records of a client with several of them, one by one (a first layer shows their mixture)",
    "attacks by larger models on labelled uploads (properties: one linear rule)",
)

_SEARCHED = 4  # victims at most, where a record has to be searched for

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Attack:
    """What was tried; None or empty where it was not, with the reason in `skipped`."""

    method: str
    epsilon: float | None
    reconstruction: Reconstruction | None
    labels: tuple[Guess, ...]
    properties: tuple[Guess, ...]
    membership: Membership | None
    skipped: tuple[str, ...]

    @property
    def not_tried(self) -> tuple[str, ...]:
        return (*self.skipped, *_NOT_TRIED)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the images."""
        made = self.reconstruction
        return {
            "method": self.method,
            "epsilon": self.epsilon,
            "reconstruction": None
            if made is None
            else {
                "attack": made.attack,
                "candidates": made.candidates,
                "views": [asdict(one) for one in made.likeness],
            },
            "labels": [asdict(one) for one in self.labels],
            "property": [asdict(one) for one in self.properties],
            "membership": None if self.membership is None else asdict(self.membership),
            "not_tried": list(self.not_tried),
        }


def attack(
    plan: Plan,
    *,
    kinds: Sequence[str] = KINDS,
    victims: int = 20,
    records: int = 1,
    column: str | None = None,
    steps: int = 400,
    runs: int = 64,
    seed: int = 0,
    seconds: float = math.inf,
    progress: Progress = lambda what, done, of: None,
) -> Attack:
    """Attack uploads of the first round and the released model, as an honest but curious party.

    `column` names the property that is asked for; without it, it is the mean of all inputs.
    """
    if victims < 1 or records < 1 or steps < 1:
        raise ConfigError("attack: victims, records and steps must be at least 1")
    skipped: list[str] = []

    def tried(what: str, how: Callable[[], Any], otherwise: Any) -> Any:
        if what not in kinds:
            skipped.append(f"{what} (not asked for)")
            return otherwise
        try:
            return how()
        except ConfigError as error:
            skipped.append(f"{what} ({error})")
            return otherwise

    chance = np.random.default_rng([seed, 1])

    def of_uploads(what: str) -> Any:
        searched = what == "reconstruct" and first_affine(plan) is None
        some = min(victims, _SEARCHED) if searched else victims
        sent = uploads(plan, crowd_of(plan.federation, some, records, chance), some, seed)
        if what == "labels":
            return guess_labels(plan, sent)
        show = lambda done, of: progress("views", done, of)  # noqa: E731
        return reconstruct(plan, sent, steps=steps, seed=seed, progress=show)

    made = tried("reconstruct", lambda: of_uploads("reconstruct"), None)
    labels = tried("labels", lambda: of_uploads("labels"), ())
    of_column = tried("property", lambda: guess_property(plan, column, records, chance, seed), ())
    members = tried(
        "membership",
        lambda: membership(
            plan,
            runs=runs,
            seed=seed,
            seconds=seconds,
            progress=lambda done, of: progress("runs", done, of),
        ),
        None,
    )
    if made is None and not labels and not of_column and members is None:
        raise ConfigError(f"attack: nothing could be tried: {'; '.join(skipped)}")
    epsilon = None if plan.guarantee is None else plan.guarantee.epsilon
    return Attack(plan.method.name, epsilon, made, labels, of_column, members, tuple(skipped))
