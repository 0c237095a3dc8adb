"""A guarantee in words that a privacy officer can read, check and sign.

`rests_on` and `not_covered` are the one list that everything shows: statement, files, terminal and
Python. What the mechanism itself needs follows from the releases; what one run adds to it (data
that were declared public, figures on test examples) stands in the privacy model, and so in the
ledger.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
from fedveil.privacy.rounding import at_most, percent_at_most
from fedveil.privacy.sampling import (
    CappedPoisson,
    FixedSize,
    Poisson,
    sampling_kind,
)
from fedveil.privacy.tuning import AllRuns, RandomRuns

if TYPE_CHECKING:
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.releases import Release

OTHERS = "Other runs, models and figures from the same data: what they cost comes on top."
ELSE = "Anything that leaves beside the counted releases: timings, logs, what clients publish."

_SHOWN_RELEASES = 3
_WEAK = 10.0

_OBSERVER = {
    Trust.LOCAL: "Whoever sees every noisy upload, as a server does,",
    Trust.DISTRIBUTED: "Whoever sees the secure sum of every round, as a server does,",
    Trust.CENTRAL: "Whoever sees every released model, but not what the trusted aggregator sees,",
}

CHANGE = {
    (Unit.CLIENT, Adjacency.ADD_REMOVE): "one client with all its data was there at all",
    (Unit.CLIENT, Adjacency.REPLACE): "all data of one client were replaced by any other data",
    (Unit.CLIENT, Adjacency.ZERO_OUT): "the contributions of one client were replaced by zero",
    (Unit.PERSON, Adjacency.ADD_REMOVE): "one person with all its records was there at all",
    (Unit.PERSON, Adjacency.REPLACE): "all records of one person were replaced by any others",
    (Unit.PERSON, Adjacency.ZERO_OUT): "what one person contributes was replaced by zero",
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


def summary_of(guarantee: Guarantee) -> str:
    """The guarantee in four plain lines; `statement_of` says all of it."""
    lines, model = [_verdict(guarantee)], guarantee.privacy_model
    if not guarantee.certified:
        first, *others = guarantee.reason.split("; ")
        more = f", and {_many(len(others), 'more reason')}" if others else ""
        lines[0] += f" {first[0].upper()}{first[1:]}{more}."
    first = next(said for said in guarantee.not_covered if said not in model.unprotected)
    what = CHANGE[guarantee.unit, guarantee.adjacency]
    if math.isfinite(guarantee.epsilon):
        from fedveil.privacy.distinguishing import attack_on  # it imports guarantees

        surest = percent_at_most(attack_on(guarantee).right_guesses)
        would = "can" if guarantee.certified else "could"
        lines.append(
            f"Nobody who sees {_SEEN[guarantee.trust]} {would} tell whether {what} with more than "
            f"{surest} % certainty, where a blind guess has 50 %."
        )
    lines.append(f"It rests on this, among others: {_trusted(guarantee)[0]}")
    lines.append(f"It does not cover, among others: {first}")
    return "\n".join(lines)


_SEEN = {
    Trust.LOCAL: "every upload",
    Trust.DISTRIBUTED: "the secure sums and the models",
    Trust.CENTRAL: "the released models",
}


def _verdict(guarantee: Guarantee) -> str:
    whose = f"one {guarantee.unit}"
    if math.isinf(guarantee.epsilon):
        return f"Not certified: no epsilon at delta {at_most(guarantee.delta)} for {whose}."
    size = f"epsilon {at_most(guarantee.epsilon)}, delta {at_most(guarantee.delta)} for {whose}"
    if guarantee.certified:
        return f"Certified: {size}, if all that it rests on is true."
    return f"Not certified: {size}."


def _promise(guarantee: Guarantee) -> str:
    who = _OBSERVER[guarantee.trust]
    what = CHANGE[guarantee.unit, guarantee.adjacency]
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
        credit = "" if release.mechanism.secret_coins else ", no credit for sampling"
        how = (
            f"{_many(release.counted_participations, 'participation')} of one client in {rounds} "
            f"({sampling_kind(sampling)}{credit})"
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
    return f"{how}{uses}, {release.mechanism.describe()}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def rests_on(guarantee: Guarantee) -> tuple[str, ...]:
    """Sentences that must all be true for the epsilon to hold."""
    return (
        *_trusted(guarantee),
        *_secret(guarantee),
        *_bounded(guarantee),
        *_public(guarantee),
        *guarantee.privacy_model.declared,
    )


def not_covered(guarantee: Guarantee) -> tuple[str, ...]:
    """Sentences about what the epsilon does not cover; private data without noise come first."""
    model = guarantee.privacy_model
    found = [*model.unprotected, *model.not_covered]
    if model.unit is Unit.RECORD:
        found.append("A client's data as a whole: it is about one record at a time.")
        found.append("A person with several records: they are protected one at a time.")
    if model.unit is Unit.PERSON:
        found.append("A client's data as a whole: it is about one person at a time.")
    if model.adjacency is not Adjacency.ADD_REMOVE:
        found.append(
            f"That a {model.unit} is there: what it brings is hidden, its presence is not."
        )
    return (*found, OTHERS, ELSE)


def _trusted(guarantee: Guarantee) -> list[str]:
    model, shares = guarantee.privacy_model, guarantee.honest_shares
    if model.trust is Trust.LOCAL:
        return ["Those it protects from see nothing of a client before its noise."]
    if model.trust is Trust.CENTRAL:
        found = [
            "Those it protects from see releases alone; the aggregator sees more, and is trusted."
        ]
        if shares is not None:
            found.append(f"At least {shares} noise shares are in every sum, whoever came.")
        return found
    found = ["Those it protects from see secure sums alone, never what a single client sends."]
    if shares is None:
        return [*found, "All noise shares are honest and arrive."]
    colluders = f"{model.colluders} colluders" if model.colluders else "no colluders"
    return [*found, f"At least {shares} honest noise shares are in every sum ({colluders})."]


def _secret(guarantee: Guarantee) -> list[str]:
    model, found = guarantee.privacy_model, []
    drawn = [release.sampling for release in guarantee.releases if release.amplified]
    if any(isinstance(sampling, (Poisson, CappedPoisson)) for sampling in drawn):
        found.append(
            "Cohorts and their sizes stay secret, and noise is released even for an empty cohort."
        )
    elif drawn:
        found.append("Cohorts stay secret.")
    if any(isinstance(sampling, (FixedSize, CappedPoisson)) for sampling in drawn):
        found.append(
            f"At most {model.colluders} clients tell anybody whether they were drawn."
            if model.colluders
            else "No client tells anybody whether it was drawn."
        )
    if isinstance(guarantee.tuning, RandomRuns):
        found.append("Only the chosen run is ever seen; how many there were stays secret.")
        found.append("Runs were scored on public data alone.")
    if model.entropy is Entropy.SYSTEM:
        found.append("The operating system's random numbers cannot be guessed.")
    return found


def _bounded(guarantee: Guarantee) -> list[str]:
    model = guarantee.privacy_model
    what = "client moves a sum"
    if model.unit is Unit.RECORD:
        what = "record moves what its client sends"
    if model.unit is Unit.PERSON:
        what = f"person makes at most {_many(model.contributions or 1, 'contribution')} to a sum"
        found = [f"One {what}, each within its bound (the clip), and moves nothing else."]
        found.append("Nobody appears under two names: who is a person was declared.")
    else:
        found = [f"One {what} by no more than its bound (the clip), and moves nothing else."]
    for release in guarantee.releases:
        counted, rounds = release.counted_participations, release.rounds
        if counted < rounds:
            found.append(f"No client takes part in more than {counted} of {rounds} rounds.")
    if model.arithmetic is Arithmetic.EXACT:
        found.append("Noise is drawn exactly from its law, and added to integers.")
    for mechanism in (release.mechanism for release in guarantee.releases):
        found += mechanism.rests_on()
        if mechanism.foreign:
            found.append(
                f"What {mechanism.kind} noise costs is proved by its author, in "
                f"{type(mechanism).__module__}, and not by fedveil."
            )
    return list(dict.fromkeys(found))


def _public(guarantee: Guarantee) -> list[str]:
    model = guarantee.privacy_model
    found = ["Every setting (clip, noise, rates, rounds) was chosen without the protected data."]
    if guarantee.tuning is not None:
        found = ["Every setting was chosen without the protected data, but for the counted runs."]
    if model.unit is not Unit.CLIENT and model.adjacency is Adjacency.ADD_REMOVE:
        found.append("Rate, divisor, steps and grid do not follow the number of records.")
    elif model.unit is not Unit.CLIENT:
        found.append(f"How many clients there are, and how many {model.unit}s each has, is public.")
    elif model.adjacency is Adjacency.ADD_REMOVE:
        found.append("Rate, divisor and grid are public: they do not follow the number of clients.")
    else:
        found.append("How many clients there are is public.")
    return found
