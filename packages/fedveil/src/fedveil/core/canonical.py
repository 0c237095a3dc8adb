"""Documents as JSON: in the one form that is signed or hashed, and as values that JSON can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def canonical(document: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys, no spaces, and nothing that is not a number."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: infinities and NaN become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
