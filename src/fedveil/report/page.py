"""`report.html`: one file that needs nothing else, from the documents of one or more runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import tomli_w

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.shown import at_least, at_most
from fedveil.privacy.statement import CHANGE
from fedveil.report.charts import line_chart, trust_diagram

Facts = Mapping[str, Any]


def page(documents: Sequence[Facts], *, live: bool = False) -> str:
    """The whole page. The documents are in it, as `report.json` has them."""
    title = f"Run {documents[0]['run']}" if len(documents) == 1 else f"{len(documents)} runs"
    body = "".join(_run(facts, number) for number, facts in enumerate(documents))
    if len(documents) > 1:
        body = _side_by_side(documents) + body
    return filled(title, body, together(documents), live=live)


def together(documents: Sequence[Facts]) -> dict[str, Any]:
    """One document of several runs; those that are measured alike share a learning curve."""
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


def filled(title: str, body: str, document: Facts, *, live: bool = False) -> str:
    """A page with its document inside; a live one asks its server for news."""
    # Without this character nothing in the data can end its script element.
    data = json.dumps(document, allow_nan=False).replace("<", "\\u003c")
    template = files("fedveil.report").joinpath("page.html").read_text(encoding="utf-8")
    policy, mark = ("; connect-src 'self'", ' data-live="1"') if live else ("", "")
    words = {"title": escape(title), "body": body, "data": data, "policy": policy, "mark": mark}
    return Template(template).substitute(words)


def _side_by_side(documents: Sequence[Facts]) -> str:
    rows: list[list[Cell]] = []
    for number, facts in enumerate(documents):
        guarantee = facts["guarantee"] or {"epsilon": None, "certified": False}
        whom = f"one {guarantee['unit']}" if facts["guarantee"] else "nobody"
        name = f'<a href="#run-{number}">{number + 1}. {escape(facts["run"])}</a>'
        score, epsilon = _score(facts["result"]), guarantee["epsilon"]
        rows.append(
            [
                Cell(name, number),
                Cell(escape(facts["title"]), facts["title"]),
                Cell(score, score),
                Cell(_number(epsilon), math.inf if epsilon is None else epsilon),
                Cell(whom, whom),
                Cell("yes" if guarantee["certified"] else "no", int(guarantee["certified"])),
            ]
        )
    head = ("run", "what", "result", "epsilon", "protects", "certified")
    inside = table(head, rows, "Runs side by side")
    for name, chart in together(documents).get("charts", {}).items():
        inside += line_chart(chart, f"charts/{name}")
    return f"<section><h2>Side by side</h2>{inside}</section>"


@dataclass(frozen=True)
class Cell:
    """What stands in a table, as HTML, and the value by which its column is sorted."""

    html: str
    value: float | str


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], name: str) -> str:
    """A table whose columns sort at a click or a key; the first cell names its row."""
    columns = "".join(
        f'<th scope="col"><button type="button">{escape(column)}</button></th>' for column in head
    )
    body = []
    for row in rows:
        cells = [
            f'<{tag} data-value="{_sortable(cell.value)}">{cell.html}</{tag.split()[0]}>'
            for tag, cell in zip(['th scope="row"', *["td"] * len(row)], row, strict=False)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    inside = f"<thead><tr>{columns}</tr></thead><tbody>{''.join(body)}</tbody>"
    return wide(f'<table class="sorts">{inside}</table>', name)


def _sortable(value: float | str) -> str:
    return "Infinity" if value == math.inf else escape(str(value))  # as JavaScript reads it


def _run(facts: Facts, number: int) -> str:
    charts = {
        name: line_chart(chart, f"runs/{number}/charts/{name}")
        for name, chart in facts["charts"].items()
    }
    guarantee = facts["guarantee"]
    parts = [
        f'<h2 class="run" id="run-{number}">{escape(facts["title"])}</h2>',
        _badges(facts),
        section("Result", _result(facts) + charts.get("learning", "")),
    ]
    if guarantee is None:
        text = "No privacy is guaranteed: this method adds no noise. Treat the model as the data."
        parts.append(section("Guarantee", f"<p>{text}</p>"))
    else:
        parts += [
            section("What is guaranteed", _plain_words(facts) + charts["attack"]),
            section("Who is protected from whom", _whom(facts)),
            section("Three epsilons", _three(facts) + charts.get("epsilon", "")),
            section("What it rests on", listed(guarantee["rests_on"])),
            section("What it does not cover", listed(guarantee["not_covered"])),
        ]
    parts += [
        section("Data card", _card(facts["data"])),
        section("Model card", _card(facts["model"])),
        *(section(name, _checklist(items)) for name, items in facts["checklists"].items()),
        section("Recipe", f"<pre tabindex='0'>{escape(tomli_w.dumps(facts['recipe']))}</pre>"),
        section("Versions, and how to compute it again", _again(facts)),
    ]
    return f'<article aria-labelledby="run-{number}">{"".join(parts)}</article>'


def section(title: str, inside: str) -> str:
    return f"<section><h3>{escape(title)}</h3>{inside}</section>"


def _badges(facts: Facts) -> str:
    guarantee = facts["guarantee"] or {"statement": "No guarantee", "certified": False}
    kind, verdict = "good" if guarantee["certified"] else "bad", guarantee["statement"]
    badges = f'<p class="badge {kind}">{escape(verdict.partition(chr(10))[0])}</p>'
    if not facts["finished"]:
        badges += (
            f'<p class="badge bad">Unfinished: {facts["rounds"]} rounds are stored. What is said '
            "of privacy is about the whole plan.</p>"
        )
    return badges


def _result(facts: Facts) -> str:
    result, tiles = facts["result"], []
    titles = {"accuracy": "accuracy", "rmse": "root mean squared error", "loss": "loss"}
    for name, title in titles.items():
        if name in result:
            tiles.append((title, _figure(name, result[name])))
        if result["constant_answer"].get(name) is not None:
            known = _figure(name, result["constant_answer"][name])
            tiles.append((f"{name} of the best constant answer", known))
    plain = result["without_privacy"]
    if plain is not None:
        tiles.append(("without privacy", _score(plain)))
    tiles.append(("rounds", str(facts["rounds"])))
    return _tiles(tiles) + "<p class='note'>Measured on test examples, without noise.</p>"


def _plain_words(facts: Facts) -> str:
    guarantee, attack = facts["guarantee"], facts["attack"]
    promise, counted = guarantee["statement"].split("\n")[1:3]
    rate, found = attack["false_positives"], attack["true_positives"]
    change = CHANGE[Unit(guarantee["unit"]), Adjacency(guarantee["adjacency"])]
    words = (
        f"Somebody who knows all else, sees whatever is released, and says whether {change} is "
        f"right in at most {_share(attack['right_guesses'])} of cases at even odds (50 % by mere "
        f"guessing). With false alarms in {_share(rate)} of cases, they notice it in at most "
        f"{_share(found)}."
    )
    mu = (
        f"It is exactly Gaussian differential privacy with mu {_number(attack['mu'])}."
        if attack["mu"] is not None
        else "No mu of Gaussian differential privacy is stated: it would be exact only for "
        "unsampled Gaussian noise."
    )
    paragraphs = [words, promise, counted, mu]
    if not guarantee["certified"]:  # as the statement itself has it
        paragraphs[0] = f"But for the reason at the end, this would hold. {words}"
        paragraphs.append(f"Not certified: {guarantee['reason']}.")
    return "".join(f"<p>{escape(text)}</p>" for text in paragraphs)


def _whom(facts: Facts) -> str:
    told = facts["protects"]
    return trust_diagram(Trust(facts["guarantee"]["trust"]), told) + f"<p>{escape(told)}</p>"


def _three(facts: Facts) -> str:
    epsilons = facts["epsilons"]
    certified, audited = epsilons["certified"], epsilons["audited"]
    tiles = [
        ("promised", _number(epsilons["promised"])),
        ("certified", "not certified" if certified is None else _number(certified)),
        ("audited", "absent: not audited yet" if audited is None else at_least(audited)),
    ]
    note = (
        "Promised: what was asked for. Certified: what is proved, from the ledger. Audited: what "
        "attacks have shown, a lower bound that must not exceed the certified one. "
        "Epsilon of the rounds so far would hold had it been fixed beforehand that the run ends "
        "there; a run that is stopped later costs its whole plan."
    )
    refuted, proved = "", facts["guarantee"]["epsilon"]
    if None not in (audited, proved) and audited > proved:
        refuted = "<p class='badge bad'>Refuted: an attack did better than what is proved.</p>"
    return refuted + _tiles(tiles) + f"<p class='note'>{note}</p>"


def _again(facts: Facts) -> str:
    rows = facts["versions"] or {"versions": "not recorded"}
    return (
        "<p>Epsilon is computed again from the ledger alone, and compared with every other file of "
        f"the run:</p><pre tabindex='0'>{escape(facts['recompute'])}</pre>{_card(rows)}"
    )


def _checklist(items: Sequence[Facts]) -> str:
    rows = "".join(
        f'<li class="{"good" if item["stated"] else "bad"}"><strong>'
        f"{'✓ stated' if item['stated'] else '✗ absent'}: {escape(item['item'])}.</strong> "
        f"{escape(item['text'])}</li>"
        for item in items
    )
    return f'<ul class="checks">{rows}</ul>'


def _card(card: Facts) -> str:
    rows = "".join(
        f"<dt>{escape(str(key))}</dt><dd>{_shown(value)}</dd>" for key, value in card.items()
    )
    return f"<dl>{rows}</dl>"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return listed([f"{key}: {item}" for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return listed(value)
    return escape(f"{value:,}" if isinstance(value, int) else str(value))


def listed(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in tiles)
    return f'<dl class="tiles">{shown}</dl>'


def wide(table: str, name: str) -> str:
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(name)}">{table}</div>'


def _score(result: Facts) -> str:
    known = [name for name in ("accuracy", "rmse", "loss") if result.get(name) is not None]
    return f"{known[0]} {_figure(known[0], result[known[0]])}" if known else "not evaluated"


def _figure(name: str, value: float) -> str:
    return _share(value) if name == "accuracy" else f"{value:.4g}"


def _share(value: float) -> str:
    return f"{100 * value:.4g} %"


def _number(value: float | None) -> str:
    return "none" if value is None else at_most(value)
