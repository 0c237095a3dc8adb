"""What a paper says, kept apart from what is proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Any

from fedveil.core import arguments
from fedveil.core.errors import ConfigError

# Arguments of the papers' formulas that are whole numbers, 1 or more.
_WHOLE = {
    "honest_shares",
    *("clients", "rounds", "local_steps", "steps", "step", "dimension", "realised_cohort"),
    *("records", "batch_size", "total_steps"),
}


class Infeasible(ConfigError):
    """A paper's formula has no solution at these inputs."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A number computed exactly as a paper prints it. Never a guarantee.

    `certified` is always False: a Claim may be shown beside a Guarantee, and compared with it, but
    no noise is calibrated from one unless the caller takes `.value` out by hand. `verdict` says
    what is wrong with the statement, or how far it is proved.
    """

    paper: str
    statement: str
    quantity: str
    value: float
    inputs: tuple[tuple[str, float | int | str], ...]
    verdict: str
    certified: bool = field(default=False, init=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return named | {"inputs": dict(self.inputs)}


def stated(
    paper: str,
    statement: str,
    quantity: str,
    verdict: str,
    compute: Callable[..., Any],
    *,
    or_zero: tuple[str, ...] = (),
) -> Callable[..., Claim]:
    """Return a function of a paper's formula that returns a Claim.

    Arguments are checked by name before they are used: counts are whole numbers of 1 or more, delta
    lies between 0 and 1, a rate may be 1, all other numbers are positive.

    Args:
        paper: Whose.
        statement: Which theorem.
        quantity: What the number is.
        verdict: What is wrong with it, unless `compute` returns a verdict beside the number.
        compute: The formula; returns a number, or a number and its verdict, or these and what else
            it found on the way.
        or_zero: Arguments that may be zero.
    """
    own = signature(compute)

    @wraps(compute)
    def made(*args: Any, **kwargs: Any) -> Claim:
        given = {**dict(zip(own.parameters, args, strict=False)), **kwargs}
        for name, value in given.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                check(name, value, zero=name in or_zero)
        found = compute(*args, **kwargs)
        value, told, *more = found if isinstance(found, tuple) else (found, verdict)
        inputs = {name: v for name, v in given.items() if isinstance(v, int | float | str)}
        inputs |= more[0] if more else {}
        return Claim(paper, statement, quantity, float(value), tuple(inputs.items()), told)

    return made


def check(name: str, value: float, *, zero: bool = False) -> None:
    """Refuse a number that an argument of this name cannot be."""
    if zero:
        arguments.not_negative(name, value)
    elif name in _WHOLE:
        arguments.count(name, value)
    elif name == "rate":
        arguments.fraction(name, value)
    elif name == "delta":
        if arguments.fraction(name, value) == 1:
            raise ConfigError(f"delta: need a number above 0 and below 1, got {value!r}")
    else:
        arguments.positive(name, value)
