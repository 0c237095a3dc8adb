"""What a guarantee rests on, and what it does not cover: the one list that everything shows.

Statement, files, terminal and Python take it from here. What the mechanism itself needs follows
from the releases; what one run adds to it (data that were declared public, figures on test
examples) stands in the setting, and so in the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.mechanisms import Zcdp
from fedveil.privacy.sampling import CappedPoisson, FixedSize, Poisson
from fedveil.privacy.shown import at_least
from fedveil.privacy.tuning import RandomRuns

if TYPE_CHECKING:
    from fedveil.privacy.guarantee import Guarantee

OTHERS = "Other runs, models and figures from the same data: what they cost comes on top."
ELSE = "Anything that leaves beside the counted releases: timings, logs, what clients publish."


def rests_on(guarantee: Guarantee) -> tuple[str, ...]:
    """Sentences that must all be true for the epsilon to hold."""
    return (
        *_trusted(guarantee),
        *_secret(guarantee),
        *_bounded(guarantee),
        *_public(guarantee),
        *guarantee.setting.declared,
    )


def not_covered(guarantee: Guarantee) -> tuple[str, ...]:
    """Sentences about what the epsilon does not cover; private data without noise come first."""
    setting = guarantee.setting
    found = [*setting.unprotected, *setting.not_covered]
    if setting.unit is Unit.RECORD:
        found.append("A client's data as a whole: it is about one record at a time.")
    if setting.adjacency is not Adjacency.ADD_REMOVE:
        whose = "client" if setting.unit is Unit.CLIENT else "record"
        found.append(f"That a {whose} is there: what it brings is hidden, its presence is not.")
    return (*found, OTHERS, ELSE)


def _trusted(guarantee: Guarantee) -> list[str]:
    setting, shares = guarantee.setting, guarantee.honest_shares
    if setting.trust is Trust.LOCAL:
        return ["Those it protects from see nothing of a client before its noise."]
    if setting.trust is Trust.CENTRAL:
        found = [
            "Those it protects from see releases alone; the aggregator sees more, and is trusted."
        ]
        if shares is not None:
            found.append(f"At least {shares} noise shares are in every sum, whoever came.")
        return found
    found = ["Those it protects from see secure sums alone, never what a single client sends."]
    if shares is None:
        return [*found, "All noise shares are honest and arrive."]
    colluders = f"{setting.colluders} colluders" if setting.colluders else "no colluders"
    return [*found, f"At least {shares} honest noise shares are in every sum ({colluders})."]


def _secret(guarantee: Guarantee) -> list[str]:
    setting, found = guarantee.setting, []
    drawn = [release.sampling for release in guarantee.releases if release.amplified]
    if any(isinstance(sampling, (Poisson, CappedPoisson)) for sampling in drawn):
        found.append(
            "Cohorts and their sizes stay secret, and noise is released even for an empty cohort."
        )
    elif drawn:
        found.append("Cohorts stay secret.")
    if any(isinstance(sampling, (FixedSize, CappedPoisson)) for sampling in drawn):
        found.append(
            f"At most {setting.colluders} clients tell anybody whether they were drawn."
            if setting.colluders
            else "No client tells anybody whether it was drawn."
        )
    if isinstance(guarantee.tuning, RandomRuns):
        found.append("Only the chosen run is ever seen; how many there were stays secret.")
        found.append("Runs were scored on public data alone.")
    if setting.entropy is Entropy.SYSTEM:
        found.append("The operating system's random numbers cannot be guessed.")
    return found


def _bounded(guarantee: Guarantee) -> list[str]:
    setting = guarantee.setting
    what = "client moves a sum"
    if setting.unit is Unit.RECORD:
        what = "record moves what its client sends"
    found = [f"One {what} by no more than its bound (the clip), and moves nothing else."]
    for release in guarantee.releases:
        counted, rounds = release.counted_participations, release.rounds
        if counted < rounds:
            found.append(f"No client takes part in more than {counted} of {rounds} rounds.")
    if setting.arithmetic is Arithmetic.EXACT:
        found.append("Noise is drawn exactly from its law, and added to integers.")
    for mechanism in (release.mechanism for release in guarantee.releases):
        if isinstance(mechanism, (NoisyGradients, GridGradients)) and mechanism.certificate:
            proof = mechanism.certificate
            found.append(
                f"Local steps bring no two models further apart: {proof.loss} loss of a linear "
                f"model, inputs of length {at_least(proof.input_norm, 6)} at most, bias included."
            )
        if isinstance(mechanism, Zcdp):
            found.append(f"One participation is {at_least(mechanism.rho, 6)}-zCDP, as was said.")
    return list(dict.fromkeys(found))


def _public(guarantee: Guarantee) -> list[str]:
    setting = guarantee.setting
    found = ["Every setting (clip, noise, rates, rounds) was chosen without the protected data."]
    if guarantee.tuning is not None:
        found = ["Every setting was chosen without the protected data, but for the counted runs."]
    if setting.unit is Unit.RECORD:
        found.append("How many clients there are, and how many records each has, is public.")
    elif setting.adjacency is Adjacency.ADD_REMOVE:
        found.append("Rate, divisor and grid are public: they do not follow the number of clients.")
    else:
        found.append("How many clients there are is public.")
    return found
