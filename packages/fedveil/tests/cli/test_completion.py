"""Completion of the shell, by the shells that are here."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fedveil.cli import commands, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        (["fedveil", "pre"], {"predict"}, {"plan"}),
        (["fedveil", ""], {"run", "hub"}, {"--data"}),
        (["fedveil", "run", "--cl"], {"--client-column", "--classes", "--class-weights"}, {"run"}),
        (["fedveil", "run", "--unit", ""], {"record", "client"}, {"--unit"}),
        (["fedveil", "data", ""], {"list", "schema"}, {"record"}),
        (["fedveil", "evaluate", "lo"], set(), {"log", "--json"}),  # a file
    ],
)
def test_bash_completes(
    line: list[str], offered: set[str], not_offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    words = " ".join(f'"{word}"' for word in line)
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _fedveil; echo ${{COMPREPLY[@]}}"
    found = subprocess.run(
        [bash, "-uc", script("bash", capsys) + ask], capture_output=True, text=True, check=True
    )
    assert offered <= set(found.stdout.split())
    assert not not_offered & set(found.stdout.split())
    assert not found.stderr


def test_the_others_know_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "bashcompinit" in script("zsh", capsys)
    fish = script("fish", capsys)
    assert all(f" -a {name} -d " in fish for name in commands())
    assert "__fish_seen_subcommand_from run' -l unit -x -a 'record client'" in fish
    assert main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
