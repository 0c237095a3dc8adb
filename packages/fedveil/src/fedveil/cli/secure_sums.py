"""What a run shows of its secure sums: what was planned, who was lost, where the time went.

A server of secure sums sees who takes part and who is lost, so a protected run may show it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil.privacy.secure_sums.aggregation import SecureSums
    from fedveil.run.run import Run


def planned(sums: SecureSums) -> str:
    """Return a sentence about the secure sums of a plan, to say before training."""
    topology = sums.params.topology(sums.cohort)
    neighbours = "everybody" if topology.complete else f"{topology.masks} neighbours"
    text = (
        f"{sums.mode.value}; cohorts of {sums.cohort}, each device masked with {neighbours}; "
        f"a round with fewer than {sums.fewest} survivors is not released; "
        f"noise for {sums.honest_shares} honest shares"
    )
    return text + (f"; {sums.dropout:.1%} of the devices are lost" if sums.dropout else "")


def secure_document(run: Run) -> dict[str, Any] | None:
    """Return what became of the secure sums of all rounds; None if the run took none."""
    sums, rounds = run.plan.secure_sums, run.dropouts
    if sums is None:
        return None
    topology = sums.params.topology(sums.cohort)
    lost = [one.cohort - one.survivors for one in rounds.values()]
    return {
        "mode": sums.mode.value,
        "cohort": sums.cohort,
        "colluders": sums.params.colluders,
        "honest_shares": sums.honest_shares,
        "fewest_survivors": sums.fewest,
        "degree": topology.degree,
        "masks": topology.masks,
        "threshold": topology.threshold,
        "dropout": sums.dropout,
        "uploads": sum(one.cohort for one in rounds.values()),
        "lost": sum(lost),
        "most_lost": max(lost, default=0),
        "not_released": [number for number, one in rounds.items() if one.not_released],
        "seconds": {name: round(spent, 4) for name, spent in run.seconds.items()},
    }


def secure_rows(document: dict[str, Any]) -> list[list[str]]:
    """Return the rows about secure sums of the final table."""
    lost, uploads = document["lost"], document["uploads"]
    share = f" ({lost / uploads:.1%}; at most {document['most_lost']} in a round)" if lost else ""
    spent = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in document["seconds"].items())
    return [
        ["secure sums", f"{document['mode']}, over {document['cohort']} clients"],
        ["  uploads lost", f"{lost} of {uploads}{share}"],
        ["  rounds not released", _rounds(document)],
        *([["  time by phase", spent]] if spent else []),
    ]


def _rounds(document: dict[str, Any]) -> str:
    missing = document["not_released"]
    if not missing:
        return "none"
    some = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    fewest = document["fewest_survivors"]
    return f"{len(missing)} (round {some}), fewer than {fewest} survivors: weights kept"
