"""Two published lists of what must be said about a private model, item by item.

* Ponomareva et al. 2023, "How to DP-fy ML", section 5.3 (reporting privacy guarantees);
* NIST SP 800-226 (2025), the factors of its differential privacy pyramid.

An item is ticked if the report states it; what a run cannot know is marked absent, with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedveil.core.units import Arithmetic
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.shown import at_most

Item = dict[str, Any]
_NOTHING = "nothing is guaranteed"


def checklists(facts: Mapping[str, Any], guarantee: Guarantee | None) -> dict[str, list[Item]]:
    return {
        "How to DP-fy ML, section 5.3": _dpfy(guarantee),
        "NIST SP 800-226, the pyramid": _pyramid(facts, guarantee),
    }


def _item(name: str, text: str, stated: bool = True) -> Item:
    return {"item": name, "stated": stated, "text": text}


def _dpfy(guarantee: Guarantee | None) -> list[Item]:
    names = (
        "Setting",
        "Data accesses covered",
        "What is released",
        "Unit of privacy and bound on its contribution",
        "Adjacency",
        "Type of accounting",
        "Assumptions of the accounting, and whether they hold",
        "Formal statement",
        "Code",
    )
    if guarantee is None:
        return [_item(name, _NOTHING, False) for name in names]
    tuned = guarantee.tuning is not None
    multiplier = guarantee.noise_multiplier
    noise = "" if multiplier is None else f"; noise {multiplier:.4g} times the bound"
    texts = (
        f"{guarantee.trust} differential privacy",
        "training and the counted tuning" if tuned else "this training run alone; tuning is not",
        f"every round's result: {guarantee.rounds} in all, and so every model on the way",
        f"one {guarantee.unit}; each update is clipped, at most {guarantee.participations} "
        f"participations{noise}",
        str(guarantee.adjacency),
        f"{guarantee.accountant}: {guarantee.theorem}",
        f"{len(guarantee.rests_on)}, listed above; {guarantee.sampling} sampling was drawn as it "
        + ("was accounted" if guarantee.certified else f"was accounted, but: {guarantee.reason}"),
        f"epsilon {at_most(guarantee.epsilon)} at delta {at_most(guarantee.delta)}, "
        + ("certified" if guarantee.certified else "not certified"),
        "fedveil is open source; the ledger proves the figure again (see the end)",
    )
    return [_item(name, text) for name, text in zip(names, texts, strict=True)]


def _pyramid(facts: Mapping[str, Any], guarantee: Guarantee | None) -> list[Item]:
    outside = "outside what a run knows: ask whoever operates it"
    result = facts["result"]
    utility = ", ".join(
        f"{name} {result[name]:.4g}" for name in ("accuracy", "rmse", "loss") if name in result
    )
    rest = [
        _item("Utility", utility or "not evaluated yet", bool(utility)),
        _item("Bias", "not measured: no figures of single groups were released", False),
        _item("Data security and access control", outside, False),
        _item("Data collection exposure", outside, False),
    ]
    names = ("Privacy parameters", "Unit of privacy", "Algorithms and correctness")
    deployment = ("Trust model", "Implementation and side channels")
    if guarantee is None:
        return [
            *(_item(name, _NOTHING, False) for name in names),
            *rest[:2],
            *(_item(name, _NOTHING, False) for name in deployment),
            *rest[2:],
        ]
    exact = guarantee.arithmetic is Arithmetic.EXACT
    return [
        _item(names[0], f"epsilon {at_most(guarantee.epsilon)}, delta {at_most(guarantee.delta)}"),
        _item(names[1], f"one {guarantee.unit}, {guarantee.adjacency}"),
        _item(names[2], guarantee.theorem),
        *rest[:2],
        _item(deployment[0], f"{guarantee.trust}; see the picture"),
        _item(
            deployment[1],
            ("noise is exact, on integers" if exact else "noise is in floating point, which leaks")
            + "; timings and logs are not covered",
        ),
        *rest[2:],
    ]
