"""Combinations for which no proof exists. Each kind has its own error, so that callers can tell."""

from __future__ import annotations

from fedveil.core.errors import Refused


class AmplificationRefused(Refused):
    """Sampling credit towards somebody who learns the cohort."""


class AdjacencyRefused(Refused):
    """A neighbouring relation that the sampler's or the trust's proof does not cover."""


class HonestSharesRefused(Refused):
    """Not one honest noise share is sure to be in the sum."""


class DeltaRefused(Refused):
    """A delta that publishing one random unit would meet."""


class MechanismRefused(Refused):
    """A mechanism that cannot be run, or proved, under this trust or sampling."""


class GradientRefused(Refused):
    """A certificate for noisy gradients that its conditions do not support."""


class UnitRefused(Refused):
    """A promise for one unit that was proved for another."""


class SensitivityRefused(Refused):
    """A sensitivity smaller than what one unit can do."""
