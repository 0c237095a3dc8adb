"""Two published lists of what must be said about a private model, item by item.

* Ponomareva et al. 2023, "How to DP-fy ML", section 5.3 on reporting guarantees, as we read it;
* NIST SP 800-226, the differential privacy pyramid: the eleven parts that figure 1 and section 1 of
  its initial public draft (December 2023) name, from the top to the bottom. They have not been
  compared with the final text of March 2025, so that the list is called the draft's.

An item is ticked if the report states it; what a run cannot know is marked absent, with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedveil.core.display import amount
from fedveil.core.units import Arithmetic
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.rounding import at_most

_OUTSIDE = "outside what a run knows: ask whoever operates it"


def checklists(
    result: Mapping[str, Any], guarantee: Guarantee | None
) -> dict[str, list[dict[str, Any]]]:
    """Return every item of both lists: whether it is stated, and what, or why not."""
    values = _known(guarantee) if guarantee is not None else {}
    figures = (f"{key} {result[key]:.4g}" for key in ("accuracy", "rmse", "loss") if key in result)
    utility = ", ".join(figures)

    def item(name: str, text: str = "", why: str = "nothing is guaranteed") -> dict[str, Any]:
        text = text or values.get(name, "")
        return {"item": name, "stated": bool(text), "text": text or why}

    return {
        "How to DP-fy ML, section 5.3": [
            item("DP setting"),
            item("Data accesses covered"),
            item("Final output of the mechanism"),
            item("Unit of privacy and bound on its contribution"),
            item("Adjacency definition"),
            item("Type of accounting"),
            item("Accounting assumptions, and whether they hold"),
            item("Formal DP statement"),
            item("Transparency and verifiability"),
        ],
        "NIST SP 800-226, draft of December 2023, the pyramid": [
            item("Privacy parameters"),
            item("Unit of privacy"),
            item("Algorithms and correctness"),
            item("Utility and accuracy", utility, "not evaluated yet"),
            item("Bias", why="not measured: no figures of single groups were released"),
            item("Side channels"),
            item("Security", why=_OUTSIDE),
            item("Access control", why=_OUTSIDE),
            item("Query model"),
            item("Threat and trust model"),
            item("Data collection exposure", why=_OUTSIDE),
        ],
    }


def _known(guarantee: Guarantee) -> dict[str, str]:
    """Return what a guarantee says about the items."""
    size = f"epsilon {at_most(guarantee.epsilon)}, delta {at_most(guarantee.delta)}"
    verdict = "certified" if guarantee.certified else f"not certified: {guarantee.reason}"
    exact = guarantee.arithmetic is Arithmetic.EXACT
    noise = "exact, on integers" if exact else "in floating point, which leaks"
    tuned = "this training run and" if guarantee.tuning else "this training run, but not"
    return {
        "DP setting": f"{guarantee.trust} differential privacy",
        "Data accesses covered": f"{tuned} the choice of its settings",
        "Final output of the mechanism": f"{amount(guarantee.rounds, 'noisy result')}, every "
        "model on the way among them",
        "Unit of privacy and bound on its contribution": f"one {guarantee.unit}; "
        f"what it contributes is bounded, to {amount(guarantee.participations, 'release')}",
        "Adjacency definition": str(guarantee.adjacency),
        "Type of accounting": f"{guarantee.accountant}: {guarantee.theorem}",
        "Accounting assumptions, and whether they hold": f"{len(guarantee.rests_on)} "
        f"are listed above; sampling ({guarantee.sampling}) is drawn as it is accounted; {verdict}",
        "Formal DP statement": f"{size}, {verdict}",
        "Transparency and verifiability": "fedveil is open source; the ledger proves the figure "
        "again, see the end",
        "Privacy parameters": size,
        "Unit of privacy": f"one {guarantee.unit}, {guarantee.adjacency}",
        "Algorithms and correctness": guarantee.theorem,
        "Side channels": f"noise is {noise}; timings and logs are not covered",
        "Query model": "no questions are answered: what is released was planned beforehand",
        "Threat and trust model": f"{guarantee.trust} trust, see the picture",
    }
