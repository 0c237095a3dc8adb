"""Follows docs/start.md in a fresh clone with an empty home: `python tools/newcomer.py`.

Only what stands on the page is typed. It says how long each command took, on the clock and on the
processor, and fails if the table of the page does not end in a report.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(ROOT),
    *map(str, ROOT.glob("packages/*/src")),
    str(ROOT / "packages" / "fedveil"),
]

from tests.docs.blocks import blocks_of  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "fedveil", Path(folder) / "home"
        home.mkdir()
        hidden = ("VIRTUAL_ENV", "PYTHONPATH", "FEDVEIL_DATA", "XDG_CACHE_HOME", "XDG_STATE_HOME")
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        began = time.monotonic()
        _timed(f"git clone --quiet {ROOT} {clone}", Path(folder), inherited)
        for block in blocks_of("start.md"):
            for line in block.text.strip().splitlines():
                _timed(line, clone, inherited | {"HOME": str(home)})
        if not (clone / "demo" / "report.html").exists():
            raise SystemExit("no report of the page's table")
        print(f"all: {time.monotonic() - began:.0f} s")


def _timed(line: str, folder: Path, environment: dict[str, str]) -> None:
    start, before = time.monotonic(), os.times()
    result = subprocess.run(
        line, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    after = os.times()
    busy = sum(after[2:4]) - sum(before[2:4])  # of children
    print(f"{time.monotonic() - start:6.1f} s, processor {busy:5.1f} s  {line}", flush=True)
    if result.returncode:
        raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])


if __name__ == "__main__":
    main()
