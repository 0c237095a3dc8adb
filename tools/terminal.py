"""A command in a terminal, as an animated SVG that loads nothing: what it really printed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

COLUMNS = 80
CELL, LINE, SIZE, EDGE = 8.4, 16.4, 14, 14  # pixels: a character, a line, the font, the margin
TYPING, HOLD = 1.2, 8.0  # seconds: until the command stands there, and at the end
_STYLES = {"1": "b", "33": "y", "90": "g", "91": "r"}
_CODE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])")

Line = list[tuple[str, str]]  # pieces of text, each with its class


def recorded(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
    """What a command prints on a terminal, split wherever it begins a line or writes over one."""
    master, slave = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "TERM": "xterm", "LINES": "50"}
    process = subprocess.Popen(
        command, cwd=folder, env={**environment, **size}, stdout=slave, stderr=slave
    )
    os.close(slave)
    read = b""
    try:
        while chunk := os.read(master, 1 << 16):
            read += chunk
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    os.close(master)
    if process.wait():
        raise SystemExit(read.decode())
    text = read.decode().replace("\r\n", "\n")
    return [line for line in re.split(r"[\r\n]|\x1b\[2K", text) if line.strip()]


def pieces(text: str) -> Line:
    """A printed line with its colours."""
    found, style, at = [], "", 0
    for code in _CODE.finditer(text):
        if text[at : code.start()]:
            found.append((text[at : code.start()], style))
        if code[2] == "m":
            style = next((_STYLES[one] for one in code[1].split(";") if one in _STYLES), "")
        at = code.end()
    return [*found, (text[at:], style)] if text[at:] else found


def plain(text: str) -> str:
    return _CODE.sub("", text)


def frames(command: str, printed: Sequence[str], shown: re.Pattern[str]) -> Iterator[list[str]]:
    """Lines of the screen, each as the texts that it shows one after the other.

    The rounds of a run write over each other. Lines that `shown` does not find become dots.
    """
    yield [f"\x1b[1m$ {command}\x1b[0m"]
    rounds: dict[str, str] = {}
    for line in printed:
        if re.match(r"round \d+/", plain(line)):
            rounds[plain(line).split()[1]] = line  # the last of each: with its figures
    said, skipped = [], False
    for line in printed:
        if plain(line).startswith("round "):
            if rounds:
                said, rounds, skipped = [*said, list(rounds.values())], {}, False
        elif shown.search(plain(line)):
            said, skipped = [*said, [line]], False
        elif not skipped:
            said, skipped = [*said, ["\x1b[90m...\x1b[0m"]], True
    yield from said


def drawn(title: str, screen: Sequence[Sequence[str]], seconds: float) -> str:
    """The screen as SVG. Without motion, for whom that is better, it shows its end."""
    steps = sum(map(len, screen)) - 1
    whole = TYPING + seconds + HOLD
    width, height = COLUMNS * CELL + 2 * EDGE, len(screen) * LINE + 2 * EDGE + 30
    styles, texts, step = [], [], 0
    for row, line in enumerate(screen):
        y = EDGE + 30 + LINE * row + SIZE
        for number, text in enumerate(line):
            begin = 100 * (TYPING + seconds * step / steps) / whole if step else 0.0
            end = 100 * (TYPING + seconds * (step + 1) / steps) / whole
            last = number == len(line) - 1
            hides = "" if last else f"{end:.2f}%{{opacity:0}}"
            styles.append(f"@keyframes k{step}{{0%{{opacity:0}}{begin:.2f}%{{opacity:1}}{hides}}}")
            still = "" if last else ' opacity="0"'
            texts.append(f'<g{still} style="animation-name:k{step}">{_text(pieces(text), y)}</g>')
            step += 1
    style = (
        "text{font:14px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d6d6d6;white-space:pre}"
        ".b{font-weight:bold;fill:#fff}.y{fill:#e0c068}.g{fill:#7a7a7a}.r{fill:#6cb6ff}"
        f"g g{{animation:{whole:g}s step-end infinite}}"
        "@media (prefers-reduced-motion:reduce){g g{animation:none}}"
    )
    lights = "".join(
        f'<circle cx="{20 + 20 * n}" cy="20" r="6" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>{escape(title)}</title><style>{style}{''.join(styles)}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#1e1e1e"/>{lights}'
        f"<g>{''.join(texts)}</g></svg>\n"
    )


def _text(line: Line, y: float) -> str:
    """Every piece has its place, so that columns stand below each other in any font."""
    made, column = [], 0
    for text, style in line:
        known = f' class="{style}"' if style else ""
        if text.strip():
            x, long = EDGE + CELL * column, CELL * len(text)
            made.append(
                f'<text{known} x="{x:g}" y="{y:g}" textLength="{long:g}" '
                f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
            )
        column += len(text)
    return "".join(made)
