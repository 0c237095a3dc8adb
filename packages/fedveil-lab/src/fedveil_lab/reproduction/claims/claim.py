"""What a paper says, kept apart from what is proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, get_args, get_type_hints

from fedveil.core import arguments
from fedveil.core.errors import ConfigError


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

    def __float__(self) -> float:
        return self.value

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "paper": self.paper,
            "statement": self.statement,
            "quantity": self.quantity,
            "value": self.value,
            "inputs": dict(self.inputs),
            "certified": self.certified,
            "verdict": self.verdict,
        }


Value = float | tuple[float, str] | tuple[float, str, dict[str, float]]
P = ParamSpec("P")


def stated(
    paper: str, statement: str, quantity: str, verdict: str = "", *, or_zero: tuple[str, ...] = ()
) -> Callable[[Callable[P, Value]], Callable[P, Claim]]:
    """Turn a function that computes a paper's number into one that returns a Claim.

    The arguments are checked before they are used, by their annotation and name: whole numbers are
    1 or more, delta lies between 0 and 1, a rate may be 1, other numbers are positive.

    Args:
        paper: Whose.
        statement: Which theorem.
        quantity: What the number is.
        verdict: What is wrong with it, unless the function returns one beside the number.
        or_zero: Arguments that may be zero.
    """

    def decorate(compute: Callable[P, Value]) -> Callable[P, Claim]:
        own, kinds = signature(compute), get_type_hints(compute)
        for name, parameter in own.parameters.items():
            if parameter.kind is Parameter.VAR_KEYWORD:  # of a TypedDict, as `Unpack` has it
                kinds |= get_type_hints(get_args(kinds[name])[0])

        @wraps(compute)
        def made(*args: P.args, **kwargs: P.kwargs) -> Claim:
            given = {**dict(zip(own.parameters, args, strict=False)), **kwargs}
            for name, value in given.items():
                _check(name, kinds.get(name), value, name in or_zero)
            found = compute(*args, **kwargs)
            value, told, *more = found if isinstance(found, tuple) else (found, verdict)
            inputs = {name: v for name, v in given.items() if isinstance(v, int | float | str)}
            if more:
                inputs |= more[0]
            return Claim(paper, statement, quantity, float(value), tuple(inputs.items()), told)

        return made

    return decorate


def _check(name: str, kind: Any, value: Any, zero: bool) -> None:
    if kind is int:
        counts(**{name: value})
    elif name == "delta":
        fractions(**{name: value})
    elif name == "rate":
        rates(**{name: value})
    elif kind is float:
        (not_negative if zero else positive)(**{name: value})


def positive(**arguments_by_name: float) -> None:
    """Every argument is a finite number above zero."""
    for name, value in arguments_by_name.items():
        arguments.positive(name, value)


def not_negative(**arguments_by_name: float) -> None:
    """Every argument is a finite number, zero allowed."""
    for name, value in arguments_by_name.items():
        arguments.not_negative(name, value)


def counts(**arguments_by_name: int) -> None:
    """Every argument is a whole number, 1 or more."""
    for name, value in arguments_by_name.items():
        arguments.count(name, value)


def rates(**arguments_by_name: float) -> None:
    """Every argument is a sampling rate: above 0, at most 1."""
    for name, value in arguments_by_name.items():
        arguments.fraction(name, value)


def fractions(**arguments_by_name: float) -> None:
    """Every argument lies strictly between 0 and 1, as the papers' delta does."""
    for name, value in arguments_by_name.items():
        if arguments.fraction(name, value) == 1:
            raise ConfigError(f"{name}: need a number above 0 and below 1, got {value!r}")
