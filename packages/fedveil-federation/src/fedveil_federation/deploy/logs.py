"""Logs of hub and sites: one JSON object a line on stderr. No keys or weights are logged;
what is wrong with an owner's rows is said in the owner's own log alone. What a line is about
(`extra={"about": {...}}`), such as a run and its round, has names of its own in the object.

Counters are in the text form that Prometheus reads, in a file for node_exporter's textfile
collector: no port is opened. What is counted is public by the plan, or stays with its owner.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from fedveil.core.files import write_atomically


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


class Counters:
    def __init__(self, prefix: str) -> None:
        self._prefix, self._lock = prefix, threading.Lock()
        self._counts: dict[tuple[str, str], float] = {}
        self._gauges: dict[str, float] = {}

    def add(self, name: str, by: float = 1, **labels: str) -> None:
        said = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        key = f"{self._prefix}_{name}_total", f"{{{said}}}" if said else ""
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + by

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._gauges[f"{self._prefix}_{name}"] = value

    def text(self) -> str:
        with self._lock:
            names = sorted({name for name, _ in self._counts})
            lines = []
            for name in names:
                lines.append(f"# TYPE {name} counter")
                own = sorted(
                    (said, n) for (known, said), n in self._counts.items() if known == name
                )
                lines += [f"{name}{said} {n:g}" for said, n in own]
            for name, value in sorted(self._gauges.items()):
                lines += [f"# TYPE {name} gauge", f"{name} {value:.6g}"]
        return "\n".join(lines) + "\n"

    def write(self, *paths: Path) -> None:
        """Write the file as it is now; a full disk keeps nobody from working.

        Args:
            paths: the first is for the owner alone; node_exporter can read the others.
        """
        for path in paths:
            with suppress(OSError):
                write_atomically(path, self.text().encode(), durable=False)
                if path is not paths[0]:
                    path.chmod(0o644)
