"""Flower's strategies and mods for differential privacy, as of 1.42.0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scipy.special import ndtri

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.sampling import FixedSize, Poisson
from fedveil_lab.audit.check.finding import (
    FLOATING_POINT,
    NOT_FINITE,
    Finding,
    Proved,
    Settings,
    proved,
)

SYSTEM = "Flower 1.42.0"
_FEW = 1e-3  # of delta, for the chance that a noisy count is far off

_METRICS = "training and evaluation metrics are averaged and shown without noise"
_SHORT = (
    "replies that are missing make the average one of fewer clients, with the same noise: a "
    "warning is logged and nothing else"
)


def fixed_clipping(settings: Settings) -> Finding:
    """Noise z C / num_sampled_clients on FedAvg's weighted mean of clipped updates."""
    z = settings.positive("noise_multiplier")
    settings.positive("clipping_norm")
    sampled = settings.count("num_sampled_clients")
    accounted = settings.value("accountant", None) is not None
    around = _Around(settings, sampled)
    claim, claimed = f"no epsilon, a noise multiplier of {z:g}", None
    if accounted:
        around.cohort, around.share = sampled, 1 / sampled  # anything else raises there
        claimed = _their_rdp(z, around.rounds, around.delta)
        claim = "a client added or removed, no credit for sampling (RDP)"
    why = around.why(equal_weights_checked=accounted)
    if accounted and (around.clients is None or around.cohort < around.clients):
        why += (
            "a cohort of fixed size has no empty place: without one client another is drawn, and "
            "the mean moves by twice the clip, which add-or-remove accounting does not count (that "
            "cohorts are secret may outweigh it)",
        )
    answer = around.answer(lambda mean, adjacency: z / mean, accounted, amplified=True)
    return around.finding(claim, claimed, answer, why)


def adaptive_clipping(settings: Settings) -> Finding:
    """As above, with a clip that follows a noisy count of clipped updates."""
    z = settings.positive("noise_multiplier")
    sampled = settings.count("num_sampled_clients")
    settings.value("initial_clipping_norm", 0.1)
    quantile = settings.number("target_clipped_quantile", 0.5)
    pace = settings.positive("clip_norm_lr", 0.2)
    if settings.value("clipped_count_stddev", None) is None:
        count_std = sampled / 20
    else:
        count_std = settings.positive("clipped_count_stddev")
    if z >= 2 * count_std:
        raise ConfigError(
            f"noise_multiplier: Flower refuses {z:g}, which is not below twice "
            f"clipped_count_stddev={count_std:g}"
        )
    around = _Around(settings, sampled)
    # Their noise is for the next clip, which shrinks as the noisy fraction of clipped updates
    # grows. That is above `most` in no round, but for a small part of delta.
    tail = float(ndtri(1 - _FEW * around.delta / around.rounds))
    most = 1 + tail * count_std / around.cohort
    shrunk = min(1.0, math.exp(-pace * (most - quantile)))
    on_updates = shrunk * (z**-2 - (2 * count_std) ** -2) ** -0.5

    def joined(mean: float, adjacency: Adjacency) -> float:
        """Updates and count together; a zeroed or replaced client changes the count by one."""
        of_count = count_std * adjacency.sensitivity_factor
        return float(((on_updates / mean) ** -2 + of_count**-2) ** -0.5)

    why = (
        *around.why(equal_weights_checked=False),
        "the count of clipped updates moves by one, where the noise is split as if by a half "
        "(bits are not centred)",
        "noise is made for the clip of the next round while updates had this round's: up to "
        f"{1 / shrunk:.3f} times too little if nearly all are clipped",
    )
    around.delta_left = (1 - _FEW) * around.delta
    claim = f"no epsilon, an effective noise multiplier of {z:g}"
    return around.finding(claim, None, around.answer(joined), why)


def local_dp(settings: Settings) -> Finding:
    """Each upload is clipped; noise has std sensitivity * sqrt(2 ln(1.25/delta)) / epsilon."""
    clip = settings.positive("clipping_norm")
    sensitivity, epsilon = settings.positive("sensitivity"), settings.positive("epsilon")
    delta, rounds = settings.positive("delta", most=1.0), settings.count("rounds")
    multiplier = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon / clip

    def cost(what: str, times: int) -> Proved:
        return proved(
            what, multiplier, times, delta,
            unit=Unit.CLIENT, adjacency=Adjacency.REPLACE, trust=Trust.LOCAL,
        )  # fmt: skip

    why = []
    if rounds > 1:
        why.append(f"every upload is a release of its own: {rounds} of them were counted as one")
    if sensitivity < 2 * clip:
        why.append(
            f"one client's update replaced by another moves by up to 2 * clipping_norm = "
            f"{2 * clip:g}; sensitivity={sensitivity:g} was said, and nothing checks it"
        )
    if epsilon > 1:
        why.append("the formula of the noise is a theorem for epsilon up to 1 only")
    answer = (cost("one client replaced, all rounds", rounds), cost("the same, one upload", 1))
    return Finding(
        SYSTEM, "LocalDpMod", "", settings.table(), "local privacy with this epsilon",
        epsilon, delta, answer, tuple(why), (FLOATING_POINT, NOT_FINITE, _METRICS),
    )  # fmt: skip


_NOT_MEANS = {
    "Bulyan", "FedAdagrad", "FedAdam", "FedAvgM", "FedMedian", "FedOpt", "FedTrimmedAvg",
    "FedXgbBagging", "FedXgbCyclic", "FedYogi", "Krum", "MultiKrum", "QFedAvg",
}  # fmt: skip


class _Around:
    """Rounds, clients, cohort and weights: what a strategy does not say but depends on."""

    def __init__(self, settings: Settings, sampled: int) -> None:
        self._settings, self._sampled = settings, sampled
        self.rounds, self.delta = settings.count("rounds"), settings.positive("delta")
        self.delta_left = self.delta
        self.clients = None
        if settings.value("clients", None) is not None:
            self.clients = settings.count("clients")
        self.cohort = sampled
        if settings.value("fraction_train", None) is not None and self.clients is not None:
            chosen = int(self.clients * settings.positive("fraction_train", most=1.0))
            self.cohort = max(chosen, settings.count("min_train_nodes", 2))  # as FedAvg has it
        self.other = settings.made(_NOT_MEANS)
        self.share = 1.0
        if settings.value("largest_share", None) is not None:
            self.share = settings.positive("largest_share", most=1.0)

    def why(self, *, equal_weights_checked: bool) -> tuple[str, ...]:
        found = []
        if self.other:
            found.append(
                f"the noise is added to what {self.other} makes of the clipped updates, which is "
                "not their mean: nothing bounds how far one client moves it"
            )
        if self.cohort != self._sampled:
            found.append(
                f"FedAvg averages {self.cohort} clients, while the noise is made for "
                f"num_sampled_clients={self._sampled}"
            )
        if not equal_weights_checked:
            if self.share == 1.0:
                found.append(
                    "FedAvg weights by the number of examples that a client reports: one client "
                    "may have nearly all the weight (say largest_share if it is bounded)"
                )
            found.append(_SHORT)
        return tuple(found)

    def answer(
        self,
        noise: Callable[[float, Adjacency], float],
        added_or_removed: bool = False,
        amplified: bool = False,
    ) -> tuple[Proved, ...]:
        """Rows for what is known of the weights, and for equal ones.

        noise: the multiplier if one client moves the mean by so many times the C / sampled that
        the noise was made for.
        """
        if self.other:
            return (Proved(f"one client's update zeroed, behind {self.other}", math.inf),)
        rows: list[Proved] = []

        def row(what: str, mean: float, adjacency: Adjacency, sampling: Any = None) -> None:
            rows.append(
                proved(
                    what, noise(mean, adjacency), self.rounds, self.delta_left,
                    unit=Unit.CLIENT, adjacency=adjacency, sampling=sampling,
                )
            )  # fmt: skip

        alike, loudest = self._sampled / self.cohort, self._sampled * self.share
        secret = None
        if self.clients is not None and self.cohort < self.clients:
            secret = FixedSize(self.clients, self.cohort)
        if added_or_removed and self.cohort != self.clients:
            # Whoever sees the cohort sees who is absent, so it is taken to be secret.
            row("one client added or removed", alike, Adjacency.REPLACE)
            if secret is not None:
                row("one client added or removed", alike, Adjacency.REPLACE, secret)
                rows = [min(rows, key=lambda one: one.epsilon)]
        if loudest > alike:
            known = "any weights" if self.share == 1.0 else f"weights up to {self.share:g}"
            row(f"one client's update zeroed, {known}", loudest, Adjacency.ZERO_OUT)
        row("one client's update zeroed, equal weights", alike, Adjacency.ZERO_OUT)
        if amplified and secret is not None:
            what = "one client replaced, equal weights, cohorts secret"
            row(what, alike, Adjacency.REPLACE, secret)
            poisson = Poisson(secret.cohort / secret.clients)
            what = "not what it does: Poisson cohorts, equal weights"
            row(what, alike, Adjacency.ADD_REMOVE, poisson)
        return tuple(rows)

    def finding(
        self, claim: str, claimed: float | None, answer: tuple[Proved, ...], why: tuple[str, ...]
    ) -> Finding:
        return Finding(
            SYSTEM, "", "", self._settings.table(), claim, claimed, self.delta, answer, why,
            (FLOATING_POINT, NOT_FINITE, _METRICS),
        )  # fmt: skip


def _their_rdp(z: float, rounds: int, delta: float) -> float:
    """Return the number that their accountant prints: the library's default orders, unsampled."""
    from dp_accounting import dp_event, rdp

    spent = rdp.RdpAccountant().compose(dp_event.GaussianDpEvent(z), rounds)
    return float(spent.get_epsilon(delta))
