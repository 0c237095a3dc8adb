"""Everything, interleaved: each pass runs every system on every workload once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import growth, machine, report
from benchmarks.environments import ROOT
from benchmarks.measure import Document, Effort, measure, summarise
from benchmarks.workloads import WORKLOADS

RESULTS = ROOT / "benchmarks" / "results.json"
PASSES = 3
# Each part's own benchmark; the last takes minutes.
PARTS = (  # the last takes long
    ("convolution", ()),
    ("noise", ()),
    ("smoothing", ()),
    ("secagg", ("--without-flower",)),
)

_LINEAR = (
    "fedveil",
    "fedveil:protected",
    "fedveil:mlp",
    "fedveil:generic",
    "pfl",
    "flower",
    "floor",
)
_KERNELS = ("fedveil", "fedveil:sequential", "fedveil:processes", "pfl", "pfl:threads", "flower")
_RECORDS = ("fedveil", "fedveil:protected", "opacus", "opacus:threads", "opacus:hooks")
SUITE = {
    "W1": _LINEAR,
    "W2": _LINEAR,
    "W2x12": _LINEAR,
    "W3": ("fedveil", "fedveil:protected", "fedveil:generic", "opacus", "floor"),
    "W4": (*_KERNELS, "floor"),
    "W5": (*_KERNELS, "floor"),
    "W6": (*_KERNELS, "floor"),
    "W7": ("fedveil", "fedveil:sequential", "pfl", "pfl:threads", "floor"),
    "W8": _RECORDS,
    "W8x256": _RECORDS,
    "W8-lstm": _RECORDS,
    "W8-resnet": _RECORDS,
}
# With --quick: no second configuration of anything, Flower (slow to start) where it matters most.
_NOT_QUICK = ("fedveil:generic", "fedveil:sequential", "fedveil:processes", "pfl:threads")


def systems(workload: str, quick: bool) -> list[str]:
    if not quick:
        return list(SUITE[workload])
    slow = _NOT_QUICK if workload == "W1" else (*_NOT_QUICK, "flower")
    return [system for system in SUITE[workload] if system not in slow]


@dataclass
class Results:
    """What has been measured so far; written after every measurement, so that none is lost."""

    path: Path
    document: Document
    kept: list[Document]  # of workloads that are not measured now
    runs: dict[tuple[str, str], list[Document]] = field(default_factory=dict)

    def add(self, run: Document) -> None:
        self.runs.setdefault((run["workload"], run["system"]), []).append(run)
        measured = [summarise(runs) for runs in self.runs.values()]
        self.document["rounds"] = [*self.kept, *measured]
        self.write()

    def write(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.document, indent=1), encoding="utf-8")
        os.replace(partial, self.path)


def everything(
    names: Sequence[str],
    effort: Effort,
    quick: bool,
    passes: int | None,
    update: bool = False,
    parts: bool = False,
) -> int:
    """Measure it all, write `results.json` and `results.md`; 1 if anything failed.

    Some workloads alone are written under `.benchmarks/` instead, or with `update` take the place
    of what the results hold of them: all systems of a workload are measured together or not at all.
    `parts` measures those, too; everything has them anyway.
    """
    began = time.monotonic()
    whole = list(names) == list(WORKLOADS)
    path = RESULTS if whole or update else ROOT / ".benchmarks" / RESULTS.name
    path.parent.mkdir(exist_ok=True)
    passes = passes or (1 if quick else PASSES)
    date = time.strftime("%Y-%m-%d")
    document: Document = {
        "machine": machine.describe(),
        "date": date,
        "passes": passes,
        "quick": quick,
        "rounds": [],
        "growth": [],
        "parts": {},
    }
    if update:
        document = json.loads(path.read_text(encoding="utf-8"))
        again = document.setdefault("again", {})
        again |= {name: {"date": date, "passes": passes} for name in names}
    kept = [run for run in document["rounds"] if run["workload"] not in names]
    results = Results(path, document, kept)
    for number in range(passes):
        for name in names:
            order = systems(name, quick)
            for system in order[number % len(order) :] + order[: number % len(order)]:
                say(f"pass {number + 1} of {passes}: {name} {system}")
                results.add(measure(WORKLOADS[name], system, effort))
    if whole and not update:
        for step in growth.steps(quick):
            say(f"growth: {step[0]} {step[1]:,}")
            results.document["growth"].append(growth.grow(step))
            results.write()
    if results.document["growth"]:
        results.document["growth"] = growth.with_processes(
            results.document["growth"], results.document["rounds"]
        )
    if parts or (whole and not update):
        for part, options in PARTS[:-1] if quick else PARTS:
            say(f"part: {part}")
            results.document["parts"][part] = measure_part(part, options)
    if not update:
        results.document["minutes"] = round((time.monotonic() - began) / 60, 1)
    results.write()
    text = report.render(results.document)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    say(f"written: {path} and {path.with_suffix('.md')}")
    return int(any("failed" in run for run in results.document["rounds"]))


def measure_part(part: str, options: Sequence[str]) -> list[Document] | str:
    """The figures of one part's own benchmark, or why there are none."""
    command = [sys.executable, "-m", f"benchmarks.{part}", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output"
    figures: list[Document] = json.loads(done.stdout)[part]
    return figures


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
