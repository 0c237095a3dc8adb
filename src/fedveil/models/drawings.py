"""Images drawn by a formula, for statistics that cost no privacy: nobody's data enter them.

`strokes` are a pen's lines, bright on black, as in handwriting; `leaves` are opaque ellipses in
front of each other, as in photographs (the dead leaves of Matheron 1968).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.float32]

_POINTS = 40  # of a line that are drawn
_MOST_LEAVES = 400


def strokes(draw: np.random.Generator, height: int, width: int) -> Image:
    """One to three cubic Bezier curves `[height, width]`; most begin on the one before."""
    size = np.array([height, width])
    down, right = np.mgrid[:height, :width]
    pen = draw.uniform(0.03, 0.065) * min(height, width)
    time = np.linspace(0, 1, _POINTS)[:, None]
    nearest, line = np.full((height, width), np.inf), None
    for _ in range(draw.integers(1, 4)):
        a, b, c, d = draw.uniform(0.18, 0.82, (4, 2)) * size
        if line is not None and draw.random() < 0.6:
            a = line[draw.integers(_POINTS)]
        early, late = (1 - time) ** 3 * a + time**3 * d, 3 * time * (1 - time)
        line = early + late * ((1 - time) * b + time * c)
        away = np.hypot(down[..., None] - line[:, 0], right[..., None] - line[:, 1])
        nearest = np.minimum(nearest, away.min(axis=-1))
    return np.clip(pen + 0.5 - nearest, 0, 1).astype(np.float32)


def leaves(draw: np.random.Generator, height: int, width: int) -> Image:
    """Shaded ellipses `[height, width, 3]`, the front ones first, until nothing shows through."""
    down, right = np.mgrid[:height, :width]
    image, bare = np.zeros((height, width, 3)), np.ones((height, width), bool)
    colour = draw.normal(0.5, 0.2, 3)
    for _ in range(_MOST_LEAVES):
        radius = 1.5 / np.sqrt(draw.uniform(0.01, 1))
        y = down - draw.uniform(-0.25, 1.25) * height
        x = right - draw.uniform(-0.25, 1.25) * width
        angle, flat = draw.uniform(0, np.pi), draw.uniform(0.4, 1)
        along = y * np.cos(angle) + x * np.sin(angle)
        across = x * np.cos(angle) - y * np.sin(angle)
        seen = bare & (along**2 / flat + across**2 * flat < radius**2)
        shade = draw.normal(0, 0.02) * y + draw.normal(0, 0.02) * x
        own = colour + draw.normal(0, 0.25) + draw.normal(0, 0.07, 3)
        image[seen] = own + shade[seen][:, None]
        bare &= ~seen
        if not bare.any():
            break
    return np.clip(image, 0, 1).astype(np.float32)


DRAWINGS: Mapping[str, Callable[[np.random.Generator, int, int], Image]] = MappingProxyType(
    {"strokes": strokes, "leaves": leaves}
)
