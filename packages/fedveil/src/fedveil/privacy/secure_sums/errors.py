"""What can go wrong in secure aggregation: always one of these, never a wrong sum."""

from __future__ import annotations

from fedveil.core.errors import FedveilError


class SecureAggregationError(FedveilError):
    """Anything this part raises because of a message, a peer or a round."""


class Malformed(SecureAggregationError):
    """Bytes that are no message of this protocol: shape, type, length or range is wrong."""


class Forged(SecureAggregationError):
    """A signature, a tag or a sealed share that its claimed author did not make."""


class ForeignKey(Forged):
    """A key that is not bound to an admitted identity, or an older key brought back."""


class OutOfTurn(SecureAggregationError):
    """A valid message at the wrong time: repeated, late, too early, or of another round."""


class RuleBroken(SecureAggregationError):
    """A device refuses to take part, because what it is asked could expose it."""


class NotReleased(SecureAggregationError):
    """The round yields no sum: too few survivors, or masks that cannot be removed exactly."""
