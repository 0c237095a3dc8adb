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
_LAYERS, _LAYER = 10, 40  # of leaves, and leaves of each
# What follows was found by benchmarks.frontier_features.
_BEND = 0.1  # deviation of a linear map's entries from those of the identity
_SHIFT = 0.05  # of a drawing, and of each of its points, as a share of its size
_CURVES = 3  # of a drawing, at most
_JOINED = 0.5  # share of curves that begin on the one before
_MARGIN = 0.2  # of a drawing's size, on each side, that is free of curves' points
_PEN = 0.05  # half its width, as a share of a drawing's size; some are 1.4 times as thick or thin
_RADIUS = 4.0  # of the smallest leaves, in pixels
_FLAT = 0.5  # the flattest leaves' share of a circle
_SHADE = 0.02  # by which a leaf's brightness changes from pixel to pixel, on the average
_COLOUR = 0.2  # by which leaves differ in brightness
_LIGHT = 0.1  # by which brightness differs from one time to the next


def strokes(what: np.random.Generator, how: np.random.Generator, height: int, width: int) -> Image:
    """Up to `_CURVES` cubic Bezier curves `[height, width]`; some begin on the one before.

    `what` is drawn depends on the first generator alone.
    """
    size = np.array([height, width])
    bend = _bend(how, size)
    pen = how.uniform(_PEN / 1.4, _PEN * 1.4) * min(height, width)
    down, right = np.mgrid[:height, :width]
    nearest, line = np.full((height, width), np.inf), None
    for _ in range(what.integers(1, _CURVES + 1)):
        points = what.uniform(_MARGIN, 1 - _MARGIN, (4, 2)) * size
        if line is not None and what.random() < _JOINED:
            points[0] = line[what.integers(_POINTS)]
        line = _curve(points)
        seen = _curve(bend(points) + how.normal(0, _SHIFT, (4, 2)) * size)
        away = np.hypot(down[..., None] - seen[:, 0], right[..., None] - seen[:, 1])
        nearest = np.minimum(nearest, away.min(axis=-1))
    return np.clip(pen + 0.5 - nearest, 0, 1).astype(np.float32)


def leaves(what: np.random.Generator, how: np.random.Generator, height: int, width: int) -> Image:
    """Shaded ellipses `[height, width, 3]`, the front ones first; what is bare at the end is dark.

    Which ones there are depends on the first generator alone.
    """
    size = np.array([height, width])
    bend = _bend(how, size)
    light = how.normal(1, _LIGHT)
    tint = how.normal(0, _LIGHT / 3, 3) + how.normal(0, 2 * _LIGHT / 3)
    image, bare = np.zeros((height, width, 3)), np.indices((height, width)).reshape(2, -1)
    colour = what.normal(0.5, 0.2, 3)
    for _ in range(_LAYERS):
        radius = _RADIUS / np.sqrt(what.uniform(0.01, 1, (_LAYER, 1)))
        centre = bend(what.uniform(-0.25, 1.25, (_LAYER, 2)) * size)
        angle, flat = what.uniform(0, np.pi, (_LAYER, 1)), what.uniform(_FLAT, 1, (_LAYER, 1))
        y, x = (place - at[:, None] for place, at in zip(bare, centre.T, strict=True))
        along = y * np.cos(angle) + x * np.sin(angle)
        across = x * np.cos(angle) - y * np.sin(angle)
        covers = along**2 / flat + across**2 * flat < radius**2
        own = what.normal(0, _COLOUR, (_LAYER, 1)) + what.normal(0, _COLOUR / 4, (_LAYER, 3))
        slope = what.normal(0, _SHADE, (2, _LAYER, 1))
        seen = covers.any(axis=0)
        front = covers.argmax(axis=0), np.arange(len(seen))
        shade = (slope[0] * y + slope[1] * x)[front]
        image[tuple(bare[:, seen])] = (colour + own[front[0]] + shade[:, None])[seen]
        bare = bare[:, ~seen]
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
