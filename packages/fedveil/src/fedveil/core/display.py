"""How objects show themselves: a short line of text, and a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


class Displayed:
    """Gives a class a short `repr` and an HTML one, both made from a title and a few facts."""

    __slots__ = ()

    def _display(self) -> tuple[str, Mapping[str, object]]:
        """A title, and facts by name. Facts that are None or empty are left out."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, facts = self._display()
        text = ", ".join(f"{name} {_short(value)}" for name, value in _known(facts).items())
        return f"<{type(self).__name__}{f' {title}' if title else ''}: {text}>"

    def _repr_html_(self) -> str:
        title, facts = self._display()
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(_short(value))}</td></tr>"
            for name, value in _known(facts).items()
        )
        return f"<table><caption>{escape(f'{type(self).__name__} {title}')}</caption>{rows}</table>"


def _known(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def amount(number: int, what: str) -> str:
    """Return a number and what it counts, in the singular where it is one."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
