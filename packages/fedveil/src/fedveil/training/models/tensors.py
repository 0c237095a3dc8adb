"""Arrays as tensors."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def as_tensor(array: npt.NDArray[np.generic]) -> Tensor:
    """A tensor over the array's own memory, for reading only: it may be a read-only map."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.from_numpy(array)
