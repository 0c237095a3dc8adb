"""Logs of hub and sites: one JSON object a line on stderr. No keys or weights are logged;
what is wrong with an owner's rows is said in the owner's own log alone. What a line is about
(`extra={"about": {...}}`), such as a run and its round, has names of its own in the object."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        said |= getattr(record, "about", {})
        if record.exc_info and record.exc_info[0] is not None:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said)


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    for package in ("fedveil", "fedveil_federation"):
        own = logging.getLogger(package)
        own.handlers, own.propagate = [handler], False
        own.setLevel(logging.INFO)
