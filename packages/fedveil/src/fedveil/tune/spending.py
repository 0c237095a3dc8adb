"""What is left of a budget, and what more of it would take."""

from __future__ import annotations

from fedveil.core.arguments import delta_value, not_negative, positive
from fedveil.core.errors import ConfigError


def remaining(
    epsilon: float, delta: float, spent_epsilon: float = 0.0, spent_delta: float = 0.0
) -> tuple[float, float]:
    """The (epsilon, delta) that may still be spent on the same units; both add up.

    Basic composition holds whatever the earlier releases were, adaptive ones included.
    """
    positive("epsilon", epsilon)
    delta_value(delta)
    not_negative("spent_epsilon", spent_epsilon)
    delta_value(spent_delta)
    if spent_epsilon >= epsilon or (spent_delta > 0 and spent_delta >= delta):
        raise ConfigError(
            f"the budget ({epsilon:g}, {delta:g}) is already spent: ({spent_epsilon:g}, "
            f"{spent_delta:g}) went before; nothing can be trained on these units under it"
        )
    return epsilon - spent_epsilon, delta - spent_delta


def about(number: int) -> str:
    """A count to two significant digits, upwards: more would be pretence."""
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return f"about {-(-number // unit) * unit}"
