"""What the documentation site has beyond docs/: the reference, the results and the benchmarks.

mkdocs calls the functions whose names begin with `on_`. Pages link to `../results/x.md`, as they
must where the repository is read; in the site those files lie beside the pages.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import json
import posixpath
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {
    "results": ("*.md", "*.png", "*.svg", "planner/*.md", "planner/*.png"),
    "benchmarks": ("*.md",),
}
_EXAMPLE = re.compile(r"^>>> (?:.*\n?)+?(?=\n|\Z)", re.MULTILINE)  # up to the next blank line
_LINK = re.compile(r"(!?\[)([^\]]*)(\]\()([^)#\s:]+)([^)]*\))")


def on_config(config: Any) -> Any:
    """A page that nobody has given a place stands at the end instead of being lost."""
    named = set(re.findall(r"[\w/-]+\.md", json.dumps(config.nav)))
    pages = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    if rest := [page.as_posix() for page in pages if page.as_posix() not in named]:
        config.nav.append({"More": rest})
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, text in (("commands", commands()), ("python", python())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text = notebook(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    for folder, patterns in BESIDE.items():
        for pattern in patterns:
            for path in sorted((ROOT / folder).glob(pattern)):
                name = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return in_site(markdown, page.file.src_uri, set(files.src_uris))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """What the theme leaves out for screen readers: names, and headers that are empty."""
    for old, new in (
        ('role="dialog">', 'role="dialog" aria-label="Search">'),
        ('id="__search" ', 'id="__search" aria-label="Search" '),
        ("<th></th>", "<td></td>"),
    ):
        output = output.replace(old, new)
    return output


def in_site(markdown: str, source: str, known: set[str]) -> str:
    """Links out of a folder lead to where the site has the file, or become plain text."""
    inside = (ROOT / "docs" / source).exists() or source.split("/")[0] not in BESIDE
    folder = posixpath.dirname(f"docs/{source}" if inside else source)

    def moved(match: re.Match[str]) -> str:
        start, text, middle, target, end = match.groups()
        if not target.startswith(".."):
            return match[0]
        file = posixpath.normpath(posixpath.join(folder, target))
        place = file.removeprefix("docs/")
        if place not in known:  # a file that does not exist either is left for mkdocs to warn of
            return text if (ROOT / file).exists() else match[0]
        here = posixpath.relpath(place, posixpath.dirname(source) or ".")
        return f"{start}{text}{middle}{here}{end}"

    return _LINK.sub(moved, markdown)


def notebook(document: Mapping[str, Any]) -> str:
    """A notebook as a page: its text, its code, and what was printed."""
    parts = []
    for cell in document["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            printed = "".join(output.get("text") or data.get("text/plain", "")).rstrip()
            if picture := data.get("image/png"):
                address = f"data:image/png;base64,{picture.strip()}"
                parts.append(f"![What the lines above draw]({address})")
            elif printed:
                parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Every command with its arguments, from the parsers themselves."""
    from fedveil.cli import commands as registered
    from fedveil.cli import parser_of

    parts = [
        "# Commands\n\n",
        "Made from the parsers: what is here is what they accept. Exit codes: 0 done, 2 bad input, "
        "130 interrupted, 1 anything else.\n",
    ]
    for name in registered():
        parts += _command(parser_of(name), level=2)
    return "".join(parts)


def _command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"\n{'#' * level} {parser.prog}\n\n{_sentence(parser.description or '')}\n"
    below: dict[str, argparse.ArgumentParser] = {}
    rows = []
    for action in parser._actions:  # argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):
            below |= action.choices
        elif not isinstance(action, argparse._HelpAction):
            rows.append(_argument(action))
    if rows:
        yield "\n| argument | |\n|---|---|\n" + "".join(rows)
    for one in below.values():
        yield from _command(one, level + 1)


def _argument(action: argparse.Action) -> str:
    shown = action.metavar or (action.dest.upper() if action.type or action.nargs == 1 else "")
    if action.choices:
        shown = ", ".join(map(str, action.choices))
    names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    value = f" {shown}" if shown and action.option_strings and action.nargs != 0 else ""
    text = (action.help or "").replace("%%", "%").replace("|", "\\|")
    return f"| `{names}{value}` | {text} |\n"


def python() -> str:
    """Every public name with its signature and its docstring, by the folder it lives in."""
    import fedveil as fv

    parts = ["# Python\n\nEverything that `import fedveil as fv` offers.\n"]
    folders: dict[str, list[str]] = {}
    for name in sorted(fv.__all__, key=str.lower):
        module = getattr(getattr(fv, name), "__module__", "fedveil")
        folders.setdefault(module.split(".")[1] if "." in module else module, []).append(name)
    for folder in sorted(folders):
        parts.append(f"\n## fedveil.{folder}\n")
        for name in folders[folder]:
            parts += _object(name, getattr(fv, name))
    return "".join(parts)


def _object(name: str, thing: Any) -> Iterator[str]:
    yield f"\n### fv.{name}\n"
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        values = ", ".join(f"`{one.name}`" for one in thing)
        yield f"\n{_docstring(thing)}\n\nOne of {values}.\n"
        return
    if callable(thing):
        yield f"\n```python\n{name}{_signature(thing)}\n```\n"
    yield f"\n{_docstring(thing)}\n"
    if isinstance(thing, type):
        yield from _members(thing)


def _members(thing: type) -> Iterator[str]:
    for key, value in vars(thing).items():
        called = isinstance(value, classmethod | staticmethod) or inspect.isfunction(value)
        if key.startswith("_") or not (called or isinstance(value, property)):
            continue
        inner = value.fget if isinstance(value, property) else getattr(thing, key)
        text = _docstring(inner).partition("\n\n")[0].replace("\n", " ")
        if text:
            shown = key if isinstance(value, property) else f"{key}{_signature(inner, short=True)}"
            yield f"\n* `{shown}`: {text}"
    yield "\n"


def _signature(thing: Any, short: bool = False) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    if short:
        named = [p.name for p in signature.parameters.values() if p.name not in ("self", "cls")]
        return f"({', '.join(named)})"
    lines, keywords = [], False
    for one in signature.parameters.values():
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not keywords:
            lines, keywords = [*lines, "    *,"], True
        lines.append(f"    {_parameter(one)},")
    return "(\n" + "\n".join(lines) + "\n)" if lines else "()"


def _parameter(one: inspect.Parameter) -> str:
    kind, default = one.annotation, one.default
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = stars.get(one.kind, "") + one.name
    if kind is not inspect.Parameter.empty:
        text += f": {kind if isinstance(kind, str) else getattr(kind, '__name__', kind)}"
    if default is inspect.Parameter.empty:
        return text
    of_list = isinstance(default, enum.Enum)
    return (
        f"{text} = {type(default).__name__}.{default.name}" if of_list else f"{text} = {default!r}"
    )


def _docstring(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    if dataclasses.is_dataclass(thing) and text.startswith(f"{thing.__name__}("):
        return ""
    text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
    return "\n\n".join(map(_listed, text.split("\n\n")))


def _listed(paragraph: str) -> str:
    """Return a paragraph with lines such as `rounds: how many` as a list, below its heading."""
    heading, _, body = paragraph.partition("\n")
    if re.fullmatch(r"\w+:", heading) and body.startswith("    "):  # Args, Returns, Raises, ...
        return f"*{heading[:-1]}*\n\n{_listed(textwrap.dedent(body))}"
    if not re.search(r"^\w+(, \w+)*: \S", paragraph, re.MULTILINE) or ">>>" in paragraph:
        return paragraph
    marked = re.sub(r"^(\w+(?:, \w+)*): (?=\S)", r"* `\1`: ", paragraph, flags=re.MULTILINE)
    head, star, rest = marked.partition("* `")
    lines = re.sub(r"\n +", "\n", star + rest).replace("\n", "\n  ").replace("\n  * `", "\n* `")
    return f"{head}\n{lines}" if head else lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
