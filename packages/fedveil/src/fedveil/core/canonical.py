"""The one way to write a document: what is signed or hashed has no second form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def canonical(document: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys, no spaces, and nothing that is not a number."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
