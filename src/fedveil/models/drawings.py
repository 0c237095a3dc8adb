"""Images drawn by a formula, for statistics that cost no privacy: nobody's data enter them.

`strokes` are a pen's lines, bright on black, as in handwriting; `leaves` are opaque ellipses in
front of each other, as in photographs (the dead leaves of Matheron 1968). Each can be drawn again
as a person would, or seen as a camera would: bent, shifted, with another pen or in another light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

_POINTS = 40  # of a line that are drawn
_MOST_LEAVES = 400
_BEND = 0.12  # deviation of a linear map's entries from those of the identity
_SHIFT = 0.03  # of a drawing, and of each of its points, as a share of its size


def strokes(what: np.random.Generator, how: np.random.Generator, height: int, width: int) -> Image:
    """One to three cubic Bezier curves `[height, width]`; most begin on the one before.

    `what` is drawn depends on the first generator alone.
    """
    size = np.array([height, width])
    bend = _bend(how, size)
    pen = how.uniform(0.03, 0.065) * min(height, width)
    down, right = np.mgrid[:height, :width]
    nearest, line = np.full((height, width), np.inf), None
    for _ in range(what.integers(1, 4)):
        points = what.uniform(0.18, 0.82, (4, 2)) * size
        if line is not None and what.random() < 0.6:
            points[0] = line[what.integers(_POINTS)]
        line = _curve(points)
        seen = _curve(bend(points) + how.normal(0, _SHIFT, (4, 2)) * size)
        away = np.hypot(down[..., None] - seen[:, 0], right[..., None] - seen[:, 1])
        nearest = np.minimum(nearest, away.min(axis=-1))
    return np.clip(pen + 0.5 - nearest, 0, 1).astype(np.float32)


def leaves(what: np.random.Generator, how: np.random.Generator, height: int, width: int) -> Image:
    """Shaded ellipses `[height, width, 3]`, the front ones first, until nothing shows through.

    Which ones there are depends on the first generator alone.
    """
    size = np.array([height, width])
    bend = _bend(how, size)
    light, tint = how.normal(1, 0.15), how.normal(0, 0.05, 3) + how.normal(0, 0.1)
    down, right = np.mgrid[:height, :width]
    image, bare = np.zeros((height, width, 3)), np.ones((height, width), bool)
    colour = what.normal(0.5, 0.2, 3)
    for _ in range(_MOST_LEAVES):
        radius = 1.5 / np.sqrt(what.uniform(0.01, 1))
        centre = bend(what.uniform(-0.25, 1.25, (1, 2)) * size)[0]
        y, x = down - centre[0], right - centre[1]
        angle, flat = what.uniform(0, np.pi), what.uniform(0.4, 1)
        along = y * np.cos(angle) + x * np.sin(angle)
        across = x * np.cos(angle) - y * np.sin(angle)
        seen = bare & (along**2 / flat + across**2 * flat < radius**2)
        shade = what.normal(0, 0.02) * y + what.normal(0, 0.02) * x
        own = colour + what.normal(0, 0.25) + what.normal(0, 0.07, 3)
        image[seen] = own + shade[seen][:, None]
        bare &= ~seen
        if not bare.any():
            break
    return np.clip(image * light + tint, 0, 1).astype(np.float32)


def _curve(points: Values) -> Values:
    time = np.linspace(0, 1, _POINTS)[:, None]
    a, b, c, d = points
    rest = 1 - time
    return np.asarray(rest**3 * a + 3 * rest**2 * time * b + 3 * rest * time**2 * c + time**3 * d)


def _bend(how: np.random.Generator, size: npt.NDArray[np.int64]) -> Callable[[Values], Values]:
    """A random linear map of points around the middle, and a shift."""
    turn = np.eye(2) + how.normal(0, _BEND, (2, 2))
    shift = how.normal(0, _SHIFT, 2) * size
    return lambda points: (points - size / 2) @ turn.T + size / 2 + shift


DRAWINGS: Mapping[str, Callable[[np.random.Generator, np.random.Generator, int, int], Image]] = (
    MappingProxyType({"strokes": strokes, "leaves": leaves})
)
