"""Combinations for which no proof exists. Each kind has its own error, so that callers can tell."""

from __future__ import annotations

from fedveil.core.errors import PrivacyRefusal


class AmplificationRefused(PrivacyRefusal):
    """Sampling credit towards somebody who learns the cohort."""


class AdjacencyRefused(PrivacyRefusal):
    """A neighbouring relation that the sampler's or the trust's proof does not cover."""


class HonestSharesRefused(PrivacyRefusal):
    """Not one honest noise share is sure to be in the sum."""


class DeltaRefused(PrivacyRefusal):
    """A delta that publishing one random unit would meet."""


class MechanismRefused(PrivacyRefusal):
    """A mechanism that cannot be run, or proved, under this trust or sampling."""


class GradientRefused(PrivacyRefusal):
    """A certificate for noisy gradients that its conditions do not support."""


class UnitRefused(PrivacyRefusal):
    """A promise for one unit that was proved for another."""


class SensitivityRefused(PrivacyRefusal):
    """A sensitivity smaller than what one unit can do."""


class SeparationRefused(PrivacyRefusal):
    """Noise correlated over more rounds than lie between two turns of a client."""
