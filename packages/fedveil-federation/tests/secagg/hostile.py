"""Frames that no receiver may fall for: `python -m tests.secagg.hostile` writes them to `corpus/`.

`corpus/version*.json` hold such frames of older wire formats, which must be refused as well.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.secagg.reference import claims, le, packed_ids, text

CORPUS = Path(__file__).parent / "corpus"
PLAN = 3


def frame(kind: int, body: bytes, device: int = 10, context: bytes = bytes(32)) -> bytes:
    """A frame with a signature of zeros."""
    return b"FVSA" + claims(kind, device, context, body) + bytes(64) + body


def plan_body(**changes: bytes) -> bytes:
    parts = {
        "federation": text("test"),
        "round_number": le(1),
        "purpose": text("update"),
        "members": packed_ids([10, 20, 30, 40]),
        "roster": bytes(32),
        "params": bytes(32),
        "exchange": bytes(32),
        "dimension": le(5),
        "bits": le(32),
        "degree": le(3),
        "masks": le(3),
        "threshold": le(2),
        "min_survivors": le(2),
        "privacy": text(b""),
        "graph": text(b""),
    }
    return b"".join((parts | changes).values())


def frames() -> dict[str, bytes]:
    plan = frame(PLAN, plan_body())
    found = {
        "empty": b"",
        "one byte": b"\0",
        "magic alone": b"FVSA",
        "header alone": plan[:114],
        "half a header": plan[:60],
        "wrong magic": b"XVSA" + plan[4:],
        "all ones": b"\xff" * 300,
        "all zeros": bytes(300),
        "plain text": b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" * 8,
        "length of 2^32 - 1 claimed": plan[:46] + b"\xff" * 4 + plan[50:],
        "length too short": plan[:46] + le(3, 4) + plan[50:],
        "device 2^63": frame(4, bytes(64), 2**63),
        "device 2^64 - 1": frame(4, bytes(64), 2**64 - 1),
    }
    for version in (0, 1, 2, 3, 4, 255):
        found[f"version {version}"] = plan[:4] + bytes([version]) + plan[5:]
    for kind in (0, *range(1, 19), 255):
        found[f"unsigned kind {kind}"] = frame(kind, plan_body())
        found[f"empty kind {kind}"] = frame(kind, b"")
        found[f"bytes of 2^32 - 1 claimed in kind {kind}"] = frame(kind, b"\xff" * 80)
    for name, change in {
        "round 2^64 - 1": {"round_number": b"\xff" * 8},
        "purpose empty": {"purpose": text("")},
        "purpose long": {"purpose": text("x" * 65)},
        "purpose not text": {"purpose": text(b"\xff\xfe")},
        "members empty": {"members": le(0, 4)},
        "members repeat": {"members": le(3, 4) + b"\1" + le(10) + b"\0\0"},
        "2^32 - 1 members claimed": {"members": b"\xff" * 4 + b"\1" + le(1)},
        "members beyond the last id": {"members": le(2, 4) + b"\1" + le(2**63 - 1) + b"\5"},
        "members of width 0": {"members": le(2, 4) + b"\0" + le(1)},
        "dimension zero": {"dimension": le(0)},
        "dimension 2^40": {"dimension": le(2**40)},
        "one field short": {"graph": b""},
        "one byte more": {"graph": text(b"") + b"\0"},
    }.items():
        found[f"plan, {name}"] = frame(PLAN, plan_body(**change))
    return found


if __name__ == "__main__":
    shown = {name: content.hex() for name, content in frames().items()}
    (CORPUS / "frames.json").write_text(json.dumps(shown, indent=1) + "\n")
