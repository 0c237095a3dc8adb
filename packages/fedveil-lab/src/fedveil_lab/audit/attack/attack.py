"""All attacks on a recipe, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.planning.plan import Plan
from fedveil_lab.audit.attack.membership import Membership, membership
from fedveil_lab.audit.attack.reconstruct import Reconstruction, reconstruct
from fedveil_lab.audit.attack.uploads import crowd_of, uploads

KINDS = ("reconstruct", "membership")
_NOT_TRIED = (
    "servers that change the model or the protocol to see more (all attacks only look)",
    "uploads of later rounds, and what several rounds say together about one record",
    "records of a client with several of them, one by one (a first layer shows their mixture)",
    "labels and other properties of a client",
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Attack:
    """The attacks that were tried; None or empty where not, with the reason in `skipped`."""

    method: str
    epsilon: float | None
    reconstruction: Reconstruction | None
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
                "candidates": made.candidates,
                "views": [asdict(one) for one in made.likeness],
            },
            "membership": None if self.membership is None else asdict(self.membership),
            "not_tried": list(self.not_tried),
        }


def attack(
    plan: Plan,
    *,
    kinds: Sequence[str] = KINDS,
    victims: int = 20,
    records: int = 1,
    runs: int = 64,
    seed: int = 0,
    seconds: float = math.inf,
    progress: Progress = lambda what, done, of: None,
) -> Attack:
    """Attack uploads of the first round and the released model, as an honest but curious party."""
    if victims < 1 or records < 1:
        raise ConfigError("attack: victims and records must be at least 1")
    skipped: list[str] = []

    def tried(what: str, how: Callable[[], Any]) -> Any:
        if what not in kinds:
            skipped.append(f"{what} (not asked for)")
            return None
        try:
            return how()
        except ConfigError as error:
            skipped.append(f"{what} ({error})")
            return None

    chance = np.random.default_rng([seed, 1])

    def of_uploads() -> Reconstruction:
        crowd = crowd_of(plan.federation, victims, records, chance)
        return reconstruct(plan, uploads(plan, crowd, victims, seed), seed=seed)

    made = tried("reconstruct", of_uploads)
    members = tried(
        "membership",
        lambda: membership(
            plan,
            runs=runs,
            seed=seed,
            seconds=seconds,
            progress=lambda done, of: progress("runs", done, of),
        ),
    )
    if made is None and members is None:
        raise ConfigError(f"attack: nothing could be tried: {'; '.join(skipped)}")
    epsilon = None if plan.guarantee is None else plan.guarantee.epsilon
    return Attack(plan.method.name, epsilon, made, members, tuple(skipped))
