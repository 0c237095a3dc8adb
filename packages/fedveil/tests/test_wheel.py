"""What people install: the package alone, with its recipes, ready to run anywhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.paths import PACKAGES, SOURCES


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(PACKAGES[0] / name, folder)
    shutil.copytree(
        SOURCES[0], folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    build = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", "out"]
    subprocess.run([sys.executable, "-m", "pip", *build, "."], cwd=folder, check=True)
    (made,) = (folder / "out").glob("fedveil-*.whl")
    return made


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = SOURCES[0]
    wanted = {
        str(path.relative_to(source))
        for path in (source / "fedveil").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert found == wanted
    assert "fedveil/methods/recipes/dp-fedavg.toml" in found
