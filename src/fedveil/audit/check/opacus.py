"""Opacus' PrivacyEngine, as of 1.6.0: which batches it really trains on, and what it counts."""

from __future__ import annotations

import math

from fedveil.audit.bounds import gaussian_dp_epsilon
from fedveil.audit.check.finding import (
    FLOATING_POINT,
    NOT_FINITE,
    Finding,
    Proved,
    Settings,
    proved,
)
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Arithmetic, Trust, Unit
from fedveil.privacy.calibration import calibrate_noise
from fedveil.privacy.releases import PrivacyModel
from fedveil.privacy.sampling import Poisson

SYSTEM = "Opacus 1.6.0"

_ACCOUNTANTS = ("prv", "rdp", "gdp")


def make_private(settings: Settings) -> Finding:
    """`make_private` and `make_private_with_epsilon`: one engine, one training."""
    target = None
    if settings.call == "make_private_with_epsilon":
        target = settings.argument("target_epsilon")
    examples = settings.count("examples", settings.around("examples", "num_examples"))
    batch = settings.count("batch_size", settings.around("batch_size"))
    epochs = settings.count("epochs", settings.around("epochs", "num_epochs", "n_epochs"))
    rounds = settings.count("rounds", settings.around("rounds", default=1))
    delta = settings.positive("delta", settings.around("delta", "target_delta"))
    poisson = bool(settings.argument("poisson_sampling", True))
    clipping = settings.argument("clipping", "flat")
    accountant = str(settings.argument("accountant", "prv"))
    if accountant not in _ACCOUNTANTS:
        raise ConfigError(f"accountant: need one of {', '.join(_ACCOUNTANTS)}, got {accountant!r}")
    batches = math.ceil(examples / batch)  # len(data_loader), of which the rate is made
    if target is None:
        z = settings.positive("noise_multiplier", settings.argument("noise_multiplier"))
    else:
        z = _noise_for(settings.positive("target_epsilon", target), delta, batches, epochs)
        settings.used["noise_multiplier"] = (round(z, 4), "of target_epsilon")
    claimed = _claim(accountant, z, batches, epochs, delta) if target is None else float(target)
    claim = f"one record added or removed, Poisson batches at rate 1/{batches} ({accountant})"
    why = []
    answer = [_unsampled("one record's gradient zeroed, its batches known", z, epochs, delta)]
    if rounds > 1:
        why.append(
            f"an engine that is made anew in each of {rounds} rounds forgets the earlier ones"
        )
        answer = [_unsampled(answer[0].what, z, epochs * rounds, delta)]
    if clipping == "adaptive":
        why.append(
            "adaptive clipping divides a noisy count by the size of the batch that was drawn, "
            "which has no noise, and its bits are not centred: no proof is known here"
        )
        answer = [Proved("adaptive clipping", math.inf)]
    elif poisson:
        sampled = _poisson(z, batches, epochs * rounds, delta)
        answer = [sampled, *answer]
    else:
        why.append(
            "poisson_sampling=False keeps the loader's batches, each record once in an epoch, and "
            "the accountant still counts Poisson batches: amplification that did not happen"
        )
        replaced = "one record replaced, its batches known"
        answer.append(_unsampled(replaced, z, epochs * rounds, delta, Adjacency.REPLACE))
    if accountant == "gdp" and target is None:
        why.append("the gdp accountant uses a limit for many steps and may report too little")
    return Finding(
        SYSTEM, "", "", settings.table(), claim, claimed, delta, tuple(answer), tuple(why),
        (FLOATING_POINT, NOT_FINITE),
    )  # fmt: skip


def _poisson(z: float, batches: int, epochs: int, delta: float) -> Proved:
    return proved(
        "one record's gradient zeroed, Poisson batches",
        z,
        epochs * batches,
        delta,
        unit=Unit.RECORD,
        adjacency=Adjacency.ZERO_OUT,
        sampling=Poisson(1 / batches),
    )


def _unsampled(
    what: str, z: float, times: int, delta: float, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> Proved:
    return proved(what, z, times, delta, unit=Unit.RECORD, adjacency=adjacency)


def _claim(accountant: str, z: float, batches: int, epochs: int, delta: float) -> float:
    """What `get_epsilon` prints, up to the error that their accountants allow themselves."""
    from dp_accounting import dp_event, rdp

    steps, rate = epochs * batches, 1 / batches
    if accountant == "gdp":
        return gaussian_dp_epsilon(math.sqrt(math.expm1(z**-2) * steps) * rate, delta)
    if accountant == "rdp":
        event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(z))
        return float(rdp.RdpAccountant().compose(event, steps).get_epsilon(delta))
    return _poisson(z, batches, epochs, delta).epsilon


def _noise_for(epsilon: float, delta: float, batches: int, epochs: int) -> float:
    model = PrivacyModel(
        Unit.RECORD, Adjacency.ZERO_OUT, Trust.CENTRAL, arithmetic=Arithmetic.IDEALISED
    )
    return calibrate_noise(
        epsilon=epsilon,
        delta=delta,
        sampling=Poisson(1 / batches),
        rounds=epochs * batches,
        privacy_model=model,
    ).noise_multiplier
