"""Writes docs/recipes.md from the recipe's own dataclasses: `python docs/recipes_page.py`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from pathlib import Path

from fedveil.planning import recipe as recipes

HEAD = """# Recipes

A recipe is a TOML file, and `fedveil run NAME` runs one that comes with the package (`fedveil methods
NAME` says where its file is, to copy and change). Every key can also be set on the command line
(`--set training.rounds=50`). Unknown keys are refused with the nearest right one. Of
`training.cohort` and `training.rate`, of `training.local_steps` and `training.local_epochs`, and of
`privacy.epsilon` and `privacy.noise_multiplier`, set one; `--set` of the one takes the place of the
other. What is left out is decided and written to the run directory's `recipe.toml`. At the top level
stands `seed`: with one, the run is a repeatable simulation; without, it is protected.
"""

OWN_KEYS = """
## [method]

Keys that one method alone understands, with the types and defaults that it declares; `fedveil methods
NAME` lists them. Those that come with the package need none; [extending.md](extending.md) shows how a
method brings its own.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for section, kind in typing.get_type_hints(recipes.Recipe).items():
        if section == "method":
            parts.append(OWN_KEYS)
        if not dataclasses.is_dataclass(kind):
            continue
        parts.append(f"\n## [{section}]\n")
        if kind.__doc__ and not kind.__doc__.startswith(kind.__name__):
            parts.append(f"\n{kind.__doc__.strip()}\n")
        parts.append("\n| key | default | |\n|---|---|---|\n")
        said = comments(kind)
        for field in dataclasses.fields(kind):
            default = (
                "" if field.default in (None, (), dataclasses.MISSING) else f"`{field.default}`"
            )
            parts.append(f"| `{section}.{field.name}` | {default} | {said[field.name]} |\n")
    return "".join(parts)


def comments(kind: type) -> dict[str, str]:
    """The comment behind each field of a dataclass."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    fields = [node for node in body.body if isinstance(node, ast.AnnAssign)]
    found = {}
    for node in fields:
        _, _, comment = lines[node.end_lineno - 1][node.end_col_offset :].partition("#")
        found[node.target.id] = comment.strip()
    return found


if __name__ == "__main__":
    (Path(__file__).parent / "recipes.md").write_text(page(), encoding="utf-8")
