"""A guarantee in words that a privacy officer can read, check and sign."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedveil.privacy.mechanisms import kind_of
from fedveil.privacy.sampling import (
    CappedPoisson,
    FixedSize,
    Poisson,
    sampling_kind,
)
from fedveil.privacy.tuning import AllRuns, RandomRuns
from fedveil.privacy.units import Adjacency, Trust, Unit

if TYPE_CHECKING:
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.releases import Release

_SHOWN_RELEASES = 3
_WEAK = 10.0

_OBSERVER = {
    Trust.LOCAL: "Whoever sees every upload, the server included,",
    Trust.DISTRIBUTED: "Whoever sees the secure sum of every round, the server included,",
    Trust.CENTRAL: "Whoever sees every released model, but not what the trusted aggregator sees,",
}

_CHANGE = {
    (Unit.CLIENT, Adjacency.ADD_REMOVE): "one client with all its data was there at all",
    (Unit.CLIENT, Adjacency.REPLACE): "all data of one client were replaced by any other data",
    (Unit.CLIENT, Adjacency.ZERO_OUT): "the contributions of one client were replaced by zero",
    (Unit.RECORD, Adjacency.ADD_REMOVE): "one record of one client was there at all",
    (Unit.RECORD, Adjacency.REPLACE): "one record of one client was replaced by any other record",
    (Unit.RECORD, Adjacency.ZERO_OUT): "what one record contributes was replaced by zero",
}


def statement_of(guarantee: Guarantee) -> str:
    """One paragraph: the promise, what was counted, what it rests on, whether it is certified."""
    sentences = [_promise(guarantee), _counted(guarantee)]
    sentences += _assumptions(guarantee)
    sentences.append(f"Proved by {guarantee.theorem}.")
    if guarantee.certified:
        sentences.append(
            "Certified if run exactly as described: exact arithmetic, randomness of the operating "
            "system."
        )
    else:
        sentences.append(f"Not certified: {guarantee.reason}.")
    return " ".join(sentences)


def _promise(guarantee: Guarantee) -> str:
    who = _OBSERVER[guarantee.trust]
    what = _CHANGE[guarantee.unit, guarantee.adjacency]
    if math.isinf(guarantee.epsilon):
        return f"{who} may learn whether {what}: no finite epsilon is proved."
    size = f"e^{guarantee.epsilon:.4g}"
    if guarantee.epsilon < 10:
        size += f" = {math.exp(guarantee.epsilon):.4g}"
    text = (
        f"{who} can tell whether {what} only within this bound: no observation is more than {size} "
        "times likelier in one case than in the other"
    )
    if guarantee.delta > 0:
        text += f", up to a probability of {guarantee.delta:.4g}"
    text += f" (epsilon {guarantee.epsilon:.4g}, delta {guarantee.delta:.4g})."
    if guarantee.epsilon > _WEAK:
        text += " By itself an epsilon of this size promises little."
    return text


def _counted(guarantee: Guarantee) -> str:
    parts = [_release_text(release) for release in guarantee.releases[:_SHOWN_RELEASES]]
    rest = len(guarantee.releases) - len(parts)
    if rest > 0:
        parts.append(f"{rest} more kinds of release")
    text = "Counted: " + "; ".join(parts)
    if isinstance(guarantee.tuning, AllRuns):
        text += f"; all of it {guarantee.tuning.runs} times for tuning"
    if isinstance(guarantee.tuning, RandomRuns):
        text += (
            f"; the best of a {guarantee.tuning.repeats} number of runs, "
            f"{guarantee.tuning.mean:g} on average"
        )
    return text + "."


def _release_text(release: Release) -> str:
    noise = getattr(release.mechanism, "noise_multiplier", None)
    kind = kind_of(release.mechanism) + (f" noise, multiplier {noise:.6g}" if noise else "")
    sampling = release.sampling
    if not release.amplified:
        how = (
            f"{release.counted_participations} participations of one client in {release.rounds} "
            f"rounds ({sampling_kind(sampling)}, no credit for sampling)"
        )
    elif isinstance(sampling, FixedSize):
        how = f"{release.rounds} rounds of {sampling.cohort} out of {sampling.clients} clients"
    elif isinstance(sampling, CappedPoisson):
        how = (
            f"{release.rounds} rounds of Poisson sampling at rate {sampling.rate:g}, at most "
            f"{sampling.cap} of {sampling.clients} clients"
        )
    elif isinstance(sampling, Poisson):
        how = f"{release.rounds} rounds of Poisson sampling at rate {sampling.rate:g}"
    else:
        how = f"{release.rounds} rounds"
    uses = f", {release.uses} releases each" if release.uses > 1 else ""
    return f"{how}{uses}, {kind}"


def _assumptions(guarantee: Guarantee) -> list[str]:
    found = []
    secret = [release.sampling for release in guarantee.releases if release.amplified]
    if any(isinstance(sampling, FixedSize) for sampling in secret):
        found.append("It rests on cohorts that stay secret.")
    elif secret:
        found.append(
            "It rests on cohorts that stay secret, their sizes too, and on noise that is released "
            "even for an empty cohort."
        )
    if guarantee.honest_shares is not None:
        found.append(
            f"It rests on {guarantee.honest_shares} honest noise shares in every sum "
            f"({guarantee.setting.colluders} colluders)."
        )
    elif guarantee.trust is Trust.DISTRIBUTED:
        found.append("It rests on all noise shares being honest and arriving.")
    if guarantee.setting.colluders and guarantee.trust is Trust.CENTRAL:
        found.append(f"{guarantee.setting.colluders} colluding clients may know their own draws.")
    return found
