"""Steps: what the accountants understand.

A step is `count` equal releases about one unit, with noise stated relative to the *sensitivity*
(how far one unit can move the released value under the adjacency in force), not to the clip norm:
the mechanism has made that conversion. A step answers each accountant's question about one
release, or returns None, which means that the accountant has no bound for it. A step without any
answer costs an infinite epsilon.

Each kind of step is a module of this package that holds its whole proof: `gaussian`,
`poisson_gaussian`, `fixed_size`, `capped_poisson`, `laplace`, `zcdp` and `discrete_sums`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError

Curve = npt.NDArray[np.float64]
Orders = tuple[float, ...]

# Rényi orders. Each set contains the one before it, so adding a step can never lower epsilon.
WHOLE: Orders = tuple(range(2, 129))
MIXED: Orders = tuple(
    sorted({1 + x / 10 for x in range(1, 100)} | set(WHOLE) | {160, 192, 256, 384, 512, 1024})
)
DENSE: Orders = tuple(sorted(set(MIXED) | set(range(11, 300)) | {2048.0, 4096.0, 1e4, 1e5, 1e6}))


class Step:
    """`count` equal releases. Subclasses are frozen dataclasses with a last field `count: int = 1`.

    Attributes:
        theorem: The theorem that proves the answers below.
        may_be_zero: Fields that may be 0; every other number must be positive.
        count: The number of equal releases, composed adaptively.
    """

    theorem: ClassVar[str] = ""
    may_be_zero: ClassVar[tuple[str, ...]] = ()
    count: int

    @property
    def failure(self) -> float:
        """The probability with which one release violates the answers below; added to delta."""
        return 0.0

    @property
    def composed(self) -> int:
        """The number of times that `losses` is composed with itself."""
        return self.count

    def grouped(self, units: int) -> Step | None:
        """Return the step for a change of up to `units` units at once.

        Args:
            units: The most contributions that one protected person makes to one release.

        Returns:
            A step that covers all of them together, or None if no proof is known.
        """
        return self if units == 1 else None

    def gaussian(self) -> float | None:
        """Return std / sensitivity if one release is exactly an unsampled Gaussian."""
        return None

    def worst_gaussian(self) -> float | None:
        """Return std / sensitivity of an unsampled Gaussian that reveals no less."""
        return self.gaussian()

    def pure(self) -> float | None:
        """Return the epsilon of one release at delta 0."""
        return None

    def zcdp(self) -> float | None:
        """Return the rho of one release if it is unsampled and rho-zCDP."""
        return None

    def orders(self) -> Orders | None:
        """Return the largest of WHOLE, MIXED and DENSE at which `renyi` is reliable, or None."""
        return None

    def renyi(self, orders: Orders) -> Curve:
        """Return the Rényi divergence of one release at each order."""
        raise NotImplementedError

    def spread(self) -> float | None:
        """Return the size of one privacy loss, roughly its standard deviation.

        It must grow with the rate and fall with the noise: the grid relies on it. None means that
        `losses` is not available.
        """
        return None

    def largest_loss(self) -> float:
        """Return a bound on the losses that matter in one release."""
        return math.inf

    def losses(self, interval: float) -> Any:
        """Return dp-accounting's PrivacyLossDistribution of one release, rounded upwards."""
        raise NotImplementedError


def with_count(step: Step, count: int) -> Step:
    """Return the same release `count` times."""
    dataclass_step: Any = step
    changed: Step = replace(dataclass_step, count=count)
    return changed


def checked(step: object) -> Step:
    """Return the step if all its numbers are finite and positive, and raise ConfigError if not."""
    if not isinstance(step, Step):
        raise ConfigError(f"step: need a Step, got {step!r}")
    dataclass_step: Any = step
    for name in (field.name for field in fields(dataclass_step)):
        value = getattr(step, name)
        if not isinstance(value, (int, float)) or (value == 0 and name in step.may_be_zero):
            continue
        if not 0 < value < math.inf:
            raise ConfigError(f"step: {name} of {step!r} must be finite and above 0")
    return step


def merged(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps in a fixed order, with equal ones added up and empty ones left out."""
    counts: dict[Step, int] = {}
    for step in steps:
        if step.count:
            once = with_count(step, 1)
            counts[once] = counts.get(once, 0) + step.count
    return tuple(with_count(once, counts[once]) for once in sorted(counts, key=repr))


def library_curve(event: Any, orders: Orders) -> Curve:
    """Return dp-accounting's Rényi curve. Orders that do not converge come out infinite."""
    from dp_accounting.rdp import RdpAccountant

    with quiet():
        curve: Curve = RdpAccountant(orders).compose(event).rdp
    return curve


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the library's warnings about orders that do not converge."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        logger.disabled = before
