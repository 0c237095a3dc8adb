"""A guarantee in words that a privacy officer can read, check and sign."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.mechanisms import kind_of
from fedveil.privacy.sampling import (
    CappedPoisson,
    FixedSize,
    Poisson,
    sampling_kind,
)
from fedveil.privacy.shown import at_least, at_most
from fedveil.privacy.tuning import AllRuns, RandomRuns

if TYPE_CHECKING:
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.mechanisms import Mechanism
    from fedveil.privacy.releases import Release

_SHOWN_RELEASES = 3
_WEAK = 10.0

_OBSERVER = {
    Trust.LOCAL: "Whoever sees every noisy upload, as a server does,",
    Trust.DISTRIBUTED: "Whoever sees the secure sum of every round, as a server does,",
    Trust.CENTRAL: "Whoever sees every released model, but not what the trusted aggregator sees,",
}

_NOISE = {
    "gaussian": "Gaussian noise",
    "laplace": "Laplace noise",
    "discrete-gaussian": "discrete Gaussian noise",
    "discrete-gaussian-sum": "discrete Gaussian noise in shares",
    "noisy-votes": "Gaussian noise on votes",
    "zcdp": "zero-concentrated noise",
    "noisy-gradients": "Gaussian noise on gradients",
    "grid-gradients": "discrete Gaussian noise on gradients in shares",
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
    """The verdict in one line; then the promise, what was counted, what it rests on, what not."""
    lines = [_verdict(guarantee), _promise(guarantee), _counted(guarantee)]
    lines += [f"Proved by {guarantee.theorem}.", "It rests on this:"]
    lines += [f"- {sentence}" for sentence in guarantee.rests_on]
    lines += ["It does not cover:"]
    lines += [f"- {sentence}" for sentence in guarantee.not_covered]
    if not guarantee.certified:
        lines.append(f"Not certified: {guarantee.reason}.")
    return "\n".join(lines)


def _verdict(guarantee: Guarantee) -> str:
    whose = "one client" if guarantee.unit is Unit.CLIENT else "one record"
    if math.isinf(guarantee.epsilon):
        return f"Not certified: no epsilon at delta {at_most(guarantee.delta)} for {whose}."
    size = f"epsilon {at_most(guarantee.epsilon)}, delta {at_most(guarantee.delta)} for {whose}"
    if guarantee.certified:
        return f"Certified: {size}, if all that it rests on is true."
    return f"Not certified: {size}."


def _promise(guarantee: Guarantee) -> str:
    who = _OBSERVER[guarantee.trust]
    what = _CHANGE[guarantee.unit, guarantee.adjacency]
    if not guarantee.certified and math.isfinite(guarantee.epsilon):
        who = f"But for the reason at the end, this would hold: {who[0].lower()}{who[1:]}"
    if math.isinf(guarantee.epsilon):
        return f"{who} may learn whether {what}: no finite epsilon is proved."
    size = f"e^{at_most(guarantee.epsilon)}"
    if guarantee.epsilon < 10:
        size += f" = {at_most(math.exp(guarantee.epsilon))}"
    text = (
        f"{who} can tell whether {what} only within this bound: no observation is more than {size} "
        "times likelier in one case than in the other"
    )
    if guarantee.delta > 0:
        text += f", up to a probability of {at_most(guarantee.delta)}"
    text += f" (epsilon {at_most(guarantee.epsilon)}, delta {at_most(guarantee.delta)})."
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
            f"{at_most(guarantee.tuning.mean, 6)} on average"
        )
    return text + "."


def _release_text(release: Release) -> str:
    sampling, rounds = release.sampling, _many(release.rounds, "round")
    if not release.amplified:
        how = (
            f"{_many(release.counted_participations, 'participation')} of one client in {rounds} "
            f"({sampling_kind(sampling)}, no credit for sampling)"
        )
    elif isinstance(sampling, FixedSize):
        how = f"{rounds} of {sampling.cohort} out of {sampling.clients} clients"
    elif isinstance(sampling, CappedPoisson):
        how = (
            f"{rounds} of Poisson sampling at rate {at_most(sampling.rate, 6)}, at most "
            f"{sampling.cap} of {sampling.clients} clients"
        )
    elif isinstance(sampling, Poisson):
        how = f"{rounds} of Poisson sampling at rate {at_most(sampling.rate, 6)}"
    else:
        how = rounds
    uses = f", {release.uses} releases each" if release.uses > 1 else ""
    return f"{how}{uses}, {_noise_text(release.mechanism)}"


def _noise_text(mechanism: Mechanism) -> str:
    """The law of the noise, and its size beside the bound of one unit where that is one number."""
    kind = _NOISE[kind_of(mechanism)]
    size = getattr(mechanism, "noise_multiplier", getattr(mechanism, "scale_multiplier", None))
    return kind if size is None else f"{kind}, multiplier {at_least(size, 6)}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
