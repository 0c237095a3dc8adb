"""The notebooks, executed; what is committed is what they print, up to digits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import ROOT

nbformat = pytest.importorskip("nbformat", reason="notebooks need their tools: make docs")
nbclient = pytest.importorskip("nbclient", reason="notebooks need their tools: make docs")
pytest.importorskip("ipykernel", reason="notebooks need their tools: make docs")

pytestmark = pytest.mark.slow  # ten seconds each

NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


def printed(notebook: Any) -> list[str]:
    """What each cell prints, without digits and spaces: they depend on the machine."""
    found = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", ())
        texts = (o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)
        found.append(re.sub(r"[\d.\s-]+", "", "".join(texts)))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_prints_what_is_committed(path: Path, tmp_path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    patience = {
        "timeout": 600,
        "startup_timeout": 600,
    }  # seconds; only a kernel that hangs needs them
    nbclient.NotebookClient(fresh, resources=resources, **patience).execute()
    assert any(printed(committed))
    assert printed(fresh) == printed(committed)
