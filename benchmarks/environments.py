"""Each peer in an environment of its own under `.benchmarks/`, made when it is first needed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("pfl", "flower", "opacus")


def requirements(peer: str) -> Path:
    return ROOT / "benchmarks" / f"requirements-{peer}.txt"


def python_of(system: str) -> str:
    """The interpreter that runs a system; a peer's environment is made or renewed if need be."""
    name = system.partition(":")[0]
    if name not in PEERS:
        return sys.executable
    home = ROOT / ".benchmarks" / "environments" / name
    stamp, python = home / "made-from", home / "bin" / "python"
    wanted = hashlib.sha256(requirements(name).read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _make(name, home, python)
        stamp.write_text(wanted)
    return str(python)


def _make(peer: str, home: Path, python: Path) -> None:
    print(f"making the environment of {peer} in {home} (about a minute)", file=sys.stderr)
    venv.create(home, clear=True, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    lines = requirements(peer).read_text().splitlines()
    torch = next(line for line in lines if line.startswith("torch=="))
    # torch first and by its exact name: any other spelling may pull gigabytes of CUDA libraries.
    for wanted in ([torch], ["--requirement", str(requirements(peer))]):
        subprocess.run([*pip, *wanted], check=True, stdout=sys.stderr)
