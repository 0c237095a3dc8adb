"""The fenced code blocks of a page, and what it means to run one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.cli import COMMANDS, main, parser_of

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_NOT_OURS = ("make", "pip", "python")  # programs that pages may name and tests do not run


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command of a shell block: its program and its words."""
        joined = self.text.replace("\\\n", " ").replace("&&", "\n")
        for line in filter(None, map(str.strip, joined.splitlines())):
            if not line.startswith("#"):
                program, *words = shlex.split(line, comments=True)
                yield Path(program).name, words

    def run(self, scope: dict[str, Any], page: str) -> None:
        if self.title:
            Path(self.title).write_text(self.text, encoding="utf-8")
        elif self.language == "python":
            exec(compile(self.text, page, "exec"), scope)
        elif self.language == "sh":
            for program, words in self.commands():
                assert program in ("fedveil", *_NOT_OURS), f"{page}: what is {program}?"
                assert program != "fedveil" or main(words) == 0, words
        else:
            assert self.language == "text", f"{page}: a block of {self.language or 'what'}?"

    def check(self) -> None:
        """What can be known of commands without running them."""
        if self.language == "sh" or self.text.startswith("fedveil "):
            for _, words in filter(lambda one: one[0] == "fedveil", self.commands()):
                assert words[0] in COMMANDS
                parser_of(words[0]).parse_args(words[1:])  # raises on what it does not accept


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text.count("\n```") % 2 == 0, f"{page}: a block without an end"
    return [Block(*found) for found in _FENCE.findall(text)]
