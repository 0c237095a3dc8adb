"""The array types that modules name in their signatures. Importing them does not load torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
