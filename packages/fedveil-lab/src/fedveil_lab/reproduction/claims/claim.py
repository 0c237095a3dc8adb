"""What a paper says, kept apart from what is proved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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


def claim(
    paper: str,
    statement: str,
    quantity: str,
    value: float,
    verdict: str,
    **inputs: float | int | str,
) -> Claim:
    """A Claim with its inputs by name."""
    return Claim(paper, statement, quantity, value, tuple(inputs.items()), verdict)


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
