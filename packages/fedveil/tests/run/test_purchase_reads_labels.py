"""A purchase is certified only if nothing else of the rows decided what was said.

Under distributed trust no classes are bought: a label of text is read in the open, and the run may
stop because of it. What stays is the ledger of the purchase.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np


def outcome(folder: Path, last: str) -> tuple[int, list[bool]]:
    folder.mkdir()
    draw = np.random.default_rng(0)
    rows = [f"h{i % 3},{draw.normal():.3f},{draw.normal():.3f},no" for i in range(3000)]
    rows[-1] = rows[-1][:-2] + last
    (folder / "t.csv").write_text("\n".join(["h,a,b,y", *rows]) + "\n")
    words = "run --data t.csv --client-column h --label y --unit record --output r --quiet"
    found = subprocess.run(
        [sys.executable, "-m", "fedveil", *words.split(), "--no-report"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    promises = folder.glob("r*/guarantee.json")
    return found.returncode, [json.loads(one.read_text())["certified"] for one in promises]


def test_a_stop_that_labels_decided_is_not_certified(tmp_path: Path) -> None:
    one, two = outcome(tmp_path / "one", "no"), outcome(tmp_path / "two", "yes")
    certified = [*one[1], *two[1]]
    assert one[0] == two[0] or not any(certified)
