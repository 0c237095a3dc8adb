"""`report.html`: one file that needs nothing else, from the documents of one or more runs.

The templates in `templates/` say how a page looks; this module chooses what they show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from fedveil.core.files import write_atomically
from fedveil.core.units import Adjacency, Unit
from fedveil.privacy.rounding import at_least, at_most, percent_at_most
from fedveil.privacy.statement import CHANGE
from fedveil.report.charts import drawing
from fedveil.report.scores import NAMES, leading_score, shown

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the value by which its column is sorted, and a link."""

    text: str
    value: float | str
    href: str = ""


def page(documents: Sequence[Facts], *, live: bool = False) -> str:
    """Render the report of one or more runs.

    Args:
        documents: what `document_of` returns for each run. The page contains them, as `report.json`
            does.
        live: whether the page asks its server for news every second.

    Returns:
        A complete HTML page that loads nothing.
    """
    title = f"Report of {documents[0]['run']}" if len(documents) == 1 else f"{len(documents)} runs"
    document = together(documents)
    charts = document.get("charts", {})
    return render(
        "report.html",
        title,
        document,
        live=live,
        runs=documents,
        side_by_side=[_row(facts, number) for number, facts in enumerate(documents)],
        shared_charts=[drawing(chart, f"charts/{name}") for name, chart in charts.items()],
    )


def together(documents: Sequence[Facts]) -> dict[str, Any]:
    """Return one document of several runs; runs with the same score share a learning curve."""
    document: dict[str, Any] = {"runs": list(documents)}
    curves = [facts["charts"]["learning"] for facts in documents if "learning" in facts["charts"]]
    if len(curves) == len(documents) > 1 and len({curve["y"] for curve in curves}) == 1:
        series = [
            {"name": f"{number}. {facts['run']}", "points": curve["series"][0]["points"]}
            for number, (facts, curve) in enumerate(zip(documents, curves, strict=True), 1)
        ]
        document["charts"] = {
            "learning": curves[0] | {"title": "Learning curves", "series": series}
        }
    return document


def write(documents: Sequence[Facts], file: Path, kind: str = "html") -> None:
    """Write the report of one or more runs.

    Args:
        documents: What `document_of` returns for each run.
        file: Where to.
        kind: "html" for a page, "json" for its document.
    """
    text = page(documents)
    if kind == "json":
        text = json.dumps(together(documents), indent=2, allow_nan=False) + "\n"
    write_atomically(file, text.encode(), durable=False)


def render(
    template: str | Path, title: str, document: Facts, *, live: bool = False, **words: Any
) -> str:
    """Fill a template. The page contains the document as JSON.

    Args:
        template: a file in `templates/` that extends `base.html`, or a path elsewhere.
        title: the heading of the page.
        document: plain values without infinities.
        live: see `page`.
        words: what the template itself uses.
    """
    # Without this character nothing in the data can end its script element.
    data = Markup(json.dumps(document, allow_nan=False).replace("<", "\\u003c"))
    environment = _environment()
    if isinstance(template, Path):
        page_template = environment.from_string(template.read_text(encoding="utf-8"))
    else:
        page_template = environment.get_template(template)
    return page_template.render(title=title, data=data, live=live, score_names=NAMES, **words)


@cache
def _environment() -> Environment:
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "attack_tables": attack_tables,
        "bound": _number,
        "change": lambda of: CHANGE[Unit(of["unit"]), Adjacency(of["adjacency"])],
        "drawing": drawing,
        "first_score": _first_score,
        "lower_bound": at_least,
        "plain": lambda value: f"{value:,}" if isinstance(value, int) else str(value),
        "score": lambda value, name: shown(name, value),
        "share": _percent,
        "sortable": lambda value: "Infinity" if value == math.inf else value,  # as in JavaScript
        "summary": _summary,
        "toml": tomli_w.dumps,
    }
    return environment


def _row(facts: Facts, number: int) -> list[Cell]:
    """Return the row of a run in the table of several runs."""
    guarantee = facts["guarantee"] or {"epsilon": None, "certified": False}
    whom = f"one {guarantee['unit']}" if facts["guarantee"] else "nobody"
    score, epsilon = _first_score(facts["result"]), guarantee["epsilon"]
    doubt = "" if guarantee["certified"] or epsilon is None else " (not certified)"
    return [
        Cell(f"{number + 1}. {facts['run']}", number, f"#run-{number}"),
        Cell(facts["title"], facts["title"]),
        Cell(score, score),
        Cell(_number(epsilon) + doubt, math.inf if epsilon is None else epsilon),
        Cell(whom, whom),
        Cell("yes" if guarantee["certified"] else "no", int(guarantee["certified"])),
    ]


def _summary(facts: Facts) -> list[tuple[str, str, str]]:
    """Return the headline figures: how good and how private the model is."""
    guarantee, attack = facts["guarantee"], facts["attack"]
    score = leading_score(facts["result"])
    figures = [("result", "not evaluated", "")]
    if score is not None:
        name, value, constant = score
        beside = "" if constant is None else f"best constant answer: {shown(name, constant)}"
        figures = [(NAMES.get(name, name), shown(name, value), beside)]
    if guarantee is None:
        return [*figures, ("privacy", "none", "this method adds no noise")]
    doubt = "" if guarantee["certified"] else ", if this were certified"
    size = f"for one {guarantee['unit']}, at delta {at_most(guarantee['delta'])}"
    return [
        *figures,
        (f"epsilon{doubt}", _number(guarantee["epsilon"]), size),
        (
            f"an attacker is right in at most{doubt}",
            _percent(attack["right_guesses"]),
            "tossing a coin: 50%",
        ),
    ]


_ATTACKS = {
    "found": "record recovered",
    "correlation": "correlation with it",
}


def attack_tables(gallery: Facts) -> dict[str, Any]:
    """Add the tables of a gallery of attacks: on uploads, view by view, and on the model."""
    heads = [name for name in _ATTACKS if any(name in view for view in gallery["views"])]
    uploads = [
        [Cell(view["view"], number), *(_outcome(view.get(name)) for name in heads)]
        for number, view in enumerate(gallery["views"])
    ]
    members = gallery["membership"]
    if members is not None:
        rates = ("auc", "false_rate", "true_rate", "allowed")
        rows = [[_rate(one[name]) for name in ("attack", *rates)] for one in members["points"]]
        members = {**members, "rows": rows}
    columns = ["what is seen", *(_ATTACKS[name] for name in heads)]
    shown_uploads = {"columns": columns, "rows": uploads if heads else []}
    return {**gallery, "uploads": shown_uploads, "membership": members}


def _outcome(value: Any) -> Cell:
    """Return the cell of a number, or of [right, of so many, share of a blind guess]."""
    if not isinstance(value, list):
        return Cell("", -1.0) if value is None else Cell(f"{value:.3f}", value)
    blind = f" (by chance: {value[2]:.0%})" if len(value) > 2 else ""
    return Cell(f"{value[0]} of {value[1]}{blind}", value[0] / value[1])


def _rate(value: float | str | None) -> Cell:
    if isinstance(value, str):
        return Cell(value, value)
    return Cell("no bound", 2.0) if value is None else Cell(f"{100 * value:.3g}%", value)


def _first_score(result: Facts) -> str:
    score = leading_score(result)
    return "not evaluated" if score is None else f"{score[0]} {shown(score[0], score[1])}"


def _percent(share: float) -> str:
    return f"{percent_at_most(share)}%"


def _number(value: float | None) -> str:
    return "none" if value is None else at_most(value)
