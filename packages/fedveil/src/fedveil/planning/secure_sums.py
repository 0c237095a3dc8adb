"""Whether a plan's sums are taken securely, and whether its promise may rest on them."""

from __future__ import annotations

from dataclasses import replace

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Trust
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import (
    NoiseContext,
    NoisePlacement,
    RoundNoise,
    SecureNoisePlacement,
    fixed_cohort_size,
)
from fedveil.privacy.sampling import Sampling
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil.privacy.secure_sums.mode import SecureMode


def secure_sums(
    method: Method, placement: NoisePlacement, sampling: Sampling, federation: str
) -> SecureSums | None:
    """How sums are hidden from whoever takes them; None if they are not."""
    asked = method.aggregation
    if not isinstance(placement, SecureNoisePlacement) or not placement.secure_sum:
        if asked.asked:
            raise ConfigError(
                f"aggregation: method {method.name!r} with this trust takes no secure sums; use "
                "privacy.trust distributed, or leave the section out"
            )
        return None
    if asked.secure is SecureMode.NONE:
        return None
    cohort = fixed_cohort_size(sampling)
    if cohort < 2 and not asked.asked:
        return None  # a sum of one hides nothing, and there are promises that do not need it
    return asked.resolve(federation, cohort, placement.colluders, placement.honest_shares)


def check_chosen(method: Method, placement: NoisePlacement, context: NoiseContext) -> None:
    """Masked or ideal, and how many are simulated to drop out, is a choice; who counts is not."""
    chosen = context.secure
    if chosen is None:
        return
    meant = secure_sums(method, placement, context.sampling, context.federation.name)
    if meant is None or replace(chosen, mode=meant.mode, dropout=meant.dropout) != meant:
        raise ConfigError(
            "context.secure: follows from the method, but for mode and dropout; change it there"
        )


def on_integers(placement: NoisePlacement, context: NoiseContext) -> bool:
    """Whether the promise rests on a secure sum, which adds integers."""
    return (
        context.secure is not None and placement.privacy_model(context).trust is Trust.DISTRIBUTED
    )


def check_central(placement: NoisePlacement, context: NoiseContext) -> None:
    """A declared number of clients hides who is there from those who do not see it."""
    if context.public_clients and placement.privacy_model(context).trust is not Trust.CENTRAL:
        raise ConfigError("privacy.public_clients: only for trust central; others see who is there")


def check_sums(placement: NoisePlacement, context: NoiseContext) -> None:
    """A promise that rests on a secure sum needs one."""
    if context.secure is None and placement.privacy_model(context).trust is Trust.DISTRIBUTED:
        raise PrivacyRefusal(
            "distributed trust rests on secure sums over two clients or more, and this plan has "
            "none",
            "use aggregation.secure masked or ideal, or privacy.trust local or central",
        )


def check_masks(placement: NoisePlacement, context: NoiseContext) -> None:
    """Masks need integers."""
    masked = context.secure is not None and context.secure.mode is SecureMode.MASKED
    if masked and isinstance(placement, SecureNoisePlacement):
        pipeline = placement.pipeline(context, context.pipeline.clip, 0)
        if placement.integers(RoundNoise(context, pipeline)) is None:
            raise ConfigError(
                "privacy.arithmetic: masks hide integers, and 'idealised' updates are none; use "
                "exact, or aggregation.secure ideal"
            )
