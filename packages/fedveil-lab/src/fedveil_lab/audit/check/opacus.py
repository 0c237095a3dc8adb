"""Opacus' PrivacyEngine, as of 1.6.0: which batches it really trains on, and what it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedveil.core.arguments import one_of
from fedveil.core.units import Adjacency, Arithmetic, Trust, Unit
from fedveil.privacy.calibration import calibrate_mechanism
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.releases import PrivacyModel
from fedveil.privacy.sampling import Everyone
from fedveil_lab.audit.bounds import gaussian_dp_epsilon
from fedveil_lab.audit.check.finding import (
    FLOATING_POINT,
    NOT_FINITE,
    Finding,
    Proved,
    Settings,
    proved,
)

SYSTEM = "Opacus 1.6.0"

_ACCOUNTANTS = ("prv", "rdp", "gdp")
_PERSONS = (
    "persons with several examples: the engine protects one example, and a person's epsilon is "
    "larger (say --set records_per_person=N)",
)
_DISTRIBUTED = (
    "DifferentiallyPrivateDistributedDataParallel", "DPDDP", "DistributedDataParallel", "DDP",
    "FSDP2Wrapper", "fully_shard",
)  # fmt: skip


@dataclass(frozen=True)
class _Counts:
    """The numbers that `make_private` computes from the number of examples and the batch size.

    batches: the length of the loader that was passed in; each record is drawn at rate 1 / batches.
    steps: batches of an epoch that are really drawn.
    divisor: `expected_batch_size`, by which the noisy sum is divided.
    """

    batches: int
    steps: int
    divisor: int

    @classmethod
    def of(cls, examples: int, batch: int, *, poisson: bool) -> _Counts:
        batches = math.ceil(examples / batch)
        # The sampler computes int(1 / (1 / batches)), which is one too few for 93, 99, 105, ...
        steps = int(1 / (1 / batches)) if poisson else batches
        return cls(batches, steps, int(examples * (1 / steps)))


def make_private(settings: Settings) -> Finding:
    """`make_private` and `make_private_with_epsilon`: one engine, one training."""
    target = None
    if settings.call == "make_private_with_epsilon":
        target = settings.positive("target_epsilon")
    examples, batch = settings.count("examples"), settings.count("batch_size")
    epochs, rounds = settings.count("epochs"), settings.count("rounds", 1)
    delta = settings.positive("delta")
    poisson = bool(settings.value("poisson_sampling", True))
    clipping = settings.value("clipping", "flat")
    accountant = str(settings.value("accountant", "prv"))
    one_of(_ACCOUNTANTS)("accountant", accountant)
    counts = _Counts.of(examples, batch, poisson=poisson)
    if target is None:
        z = settings.positive("noise_multiplier")
    else:
        z = _noise_for(target, delta, counts.batches, epochs)
        settings.used["noise_multiplier"] = (round(z, 4), "of target_epsilon")
    if mean := settings.value("loss_reduction", "mean") == "mean":
        settings.used["expected_batch_size"] = (counts.divisor, "of examples and batch_size")
    claimed = _claim(accountant, z, counts.steps, epochs, delta) if target is None else target
    claim = f"data sets that differ in one example, Poisson batches at rate 1/{counts.steps}"
    why, steps = [], counts.steps * epochs * rounds
    zeroed, replaced = "one record's gradient zeroed", "one record replaced"
    most = settings.count("records_per_person", 1)
    person = f"all of one person's records zeroed, at most {most}"
    if rounds > 1:
        why.append(
            f"an engine that is made anew in each of {rounds} rounds forgets the earlier ones"
        )
    if clipping == "adaptive":
        why.append(
            "adaptive clipping divides a noisy count by the size of the batch that was drawn, "
            "which has no noise, and its bits are not centred: no proof is known here"
        )
        answer = [Proved("adaptive clipping", math.inf)]
    elif workers := settings.made(_DISTRIBUTED):
        why.append(
            f"{workers} trains on several workers. Each draws its own batches and leaves out those "
            "that are empty: no proof here covers that the workers stay in step, or that their "
            "draws are independent"
        )
        answer = [Proved("distributed training", math.inf)]
    elif poisson:
        drawn = _poisson(f"{zeroed}, Poisson batches", z, counts.batches, steps, delta)
        moved = _moved(counts, examples, batch, mean=mean)
        added = f"one record added to or removed from {examples}, Poisson batches"
        answer = [
            drawn,
            Proved(added, math.inf if moved else drawn.epsilon),
            _replaced(f"{replaced}, Poisson batches", z, counts.batches, steps, delta),
        ]
        if most > 1:
            answer.append(_poisson(person, z, counts.batches, steps, delta, most))
        if moved:
            why.append(
                "one record added or removed is not covered, because the number of examples sets "
                f"what is public here: {moved}"
            )
    else:
        why.append(
            "poisson_sampling=False keeps the loader's batches, each record once in an epoch, and "
            "the accountant still counts Poisson batches: amplification that did not happen"
        )
        answer = [
            _unsampled(f"{what}, its batches known", z, epochs * rounds, delta, adjacency)
            for what, adjacency in ((zeroed, Adjacency.ZERO_OUT), (replaced, Adjacency.REPLACE))
        ]
        if most > 1:
            times = epochs * rounds
            answer.append(_unsampled(person, z / most, times, delta, Adjacency.ZERO_OUT))
    if accountant == "gdp" and target is None:
        why.append("the gdp accountant uses a limit for many steps and may report too little")
    return Finding(
        SYSTEM, "", "", settings.table(), f"{claim} ({accountant})", claimed, delta, tuple(answer),
        tuple(why), (FLOATING_POINT, NOT_FINITE, *(_PERSONS if most == 1 else ())),
    )  # fmt: skip


def _moved(counts: _Counts, examples: int, batch: int, *, mean: bool) -> str:
    """Describe what one example more or fewer changes besides a summand; empty if nothing."""
    changes = []
    for other in (examples - 1, examples + 1):
        if other < 1:
            continue
        neighbour = _Counts.of(other, batch, poisson=True)
        if neighbour.batches != counts.batches:
            changes.append(
                f"with {other} the rate is 1/{neighbour.batches}, not 1/{counts.batches}"
            )
        elif mean and neighbour.divisor != counts.divisor:
            divided = f"{neighbour.divisor}, not {counts.divisor}"
            changes.append(f"with {other} the noisy sum is divided by {divided}")
    return "; ".join(changes)


def _poisson(
    what: str, z: float, batches: int, steps: int, delta: float, most: int | None = None
) -> Proved:
    """One record, or a person with up to `most` of them, each drawn by a coin of its own."""
    return proved(
        what,
        z,
        steps,
        delta,
        unit=Unit.RECORD if most is None else Unit.PERSON,
        adjacency=Adjacency.ZERO_OUT,
        batch_rate=1 / batches,
        contributions=most,
    )


def _replaced(what: str, z: float, batches: int, steps: int, delta: float) -> Proved:
    """Bound the change of one record into another: zeroed first, then the other one put in.

    If each change is (e, d), both are (2 e, (1 + exp(e)) d) (Vadhan 2017, lemma 2.2). Where no d is
    small enough, the record counts as drawn in every step.
    """
    each = delta / 2
    for _ in range(20):
        half = _poisson(what, z, batches, steps, each).epsilon
        if half > 700:  # exp would overflow
            break
        if (1 + math.exp(half)) * each <= delta:
            return Proved(what, 2 * half)
        each = 0.9 * delta / (1 + math.exp(half))
    return _unsampled(what, z, steps, delta, Adjacency.REPLACE)


def _unsampled(what: str, z: float, times: int, delta: float, adjacency: Adjacency) -> Proved:
    return proved(what, z, times, delta, unit=Unit.RECORD, adjacency=adjacency)


def _claim(accountant: str, z: float, batches: int, epochs: int, delta: float) -> float:
    """Return what `get_epsilon` prints, up to the error that their accountants allow themselves."""
    from dp_accounting import dp_event, rdp

    steps, rate = epochs * batches, 1 / batches
    if accountant == "gdp":
        return gaussian_dp_epsilon(math.sqrt(math.expm1(z**-2) * steps) * rate, delta)
    if accountant == "rdp":
        event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(z))
        return float(rdp.RdpAccountant().compose(event, steps).get_epsilon(delta))
    return _poisson("", z, batches, steps, delta).epsilon


def _noise_for(epsilon: float, delta: float, batches: int, epochs: int) -> float:
    model = PrivacyModel(
        Unit.RECORD, Adjacency.ZERO_OUT, Trust.CENTRAL, arithmetic=Arithmetic.IDEALISED
    )

    def sampled(noise_multiplier: float) -> PoissonSampled:
        return PoissonSampled(1 / batches, (Gaussian(noise_multiplier),))

    return calibrate_mechanism(
        sampled,
        epsilon=epsilon,
        delta=delta,
        sampling=Everyone(),
        rounds=epochs * batches,
        privacy_model=model,
    ).noise_multiplier
