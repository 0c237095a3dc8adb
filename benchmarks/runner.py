"""Runs one workload in one system, inside that system's environment, and writes what it took.

The driver starts it: `python -m benchmarks.runner SYSTEM WORKLOAD SPAN OUTPUT`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.clock import Clock, Span, peak_memory_mb
from benchmarks.systems import Unsupported, version
from benchmarks.workloads import Workload


def main(system: str, workload: str, span: str, output: str) -> None:
    name, _, variant = system.partition(":")
    clock = Clock(Span(**json.loads(span)))
    document: dict[str, object]
    try:
        import_module(f"benchmarks.systems.{name}").run(
            Workload.from_json(workload), variant, clock
        )
    except Unsupported as reason:
        document = {"skipped": str(reason)}
    else:
        document = {
            "laps": clock.laps,
            "start_seconds": clock.start_seconds,
            "peak_memory_mb": peak_memory_mb(),
            "version": version(system),
            "configuration": clock.configuration,
        }
    if int(os.environ.get("RANK", "0")) == 0:
        Path(output).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
