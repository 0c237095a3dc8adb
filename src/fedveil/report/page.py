"""`report.html`: one file that needs nothing else, from the documents of one or more runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import tomli_w

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.shown import at_most
from fedveil.privacy.statement import CHANGE
from fedveil.report.charts import line_chart, trust_diagram

Facts = Mapping[str, Any]


def page(documents: Sequence[Facts]) -> str:
    """The whole page. The documents are in it, as `report.json` has them."""
    title = f"Run {documents[0]['run']}" if len(documents) == 1 else f"{len(documents)} runs"
    body = "".join(_run(facts, number) for number, facts in enumerate(documents))
    if len(documents) > 1:
        body = _side_by_side(documents) + body
    # Without this character nothing in the data can end its script element.
    data = json.dumps({"runs": list(documents)}, allow_nan=False).replace("<", "\\u003c")
    template = files("fedveil.report").joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=escape(title), body=body, data=data)


def _side_by_side(documents: Sequence[Facts]) -> str:
    rows = []
    for number, facts in enumerate(documents):
        guarantee = facts["guarantee"]
        epsilon = "none" if guarantee is None else _number(guarantee["epsilon"])
        certified = guarantee is not None and guarantee["certified"]
        whom = "nobody" if guarantee is None else f"one {guarantee['unit']}"
        link = f'<a href="#run-{number}">{escape(facts["run"])}</a>'
        cells = (facts["title"], _score(facts["result"]), epsilon, whom, _yes(certified))
        cells_html = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{link}</th>{cells_html}</tr>')
    head = ("run", "what", "result", "epsilon", "protects", "certified")
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<section><h2>Side by side</h2>{_wide(table, 'Runs side by side')}</section>"


def _run(facts: Facts, number: int) -> str:
    charts = {
        name: line_chart(chart, f"{number}/{name}") for name, chart in facts["charts"].items()
    }
    guarantee = facts["guarantee"]
    parts = [
        f'<h2 class="run" id="run-{number}">{escape(facts["title"])}</h2>',
        f'<p class="badge {_state(guarantee)}">{escape(_verdict(guarantee))}</p>',
        _unfinished(facts),
        _section("Result", _result(facts) + charts.get("learning", "")),
    ]
    if guarantee is None:
        text = "No privacy is guaranteed: this method adds no noise. Treat the model as the data."
        parts.append(_section("Guarantee", f"<p>{text}</p>"))
    else:
        parts += [
            _section("What is guaranteed", _plain_words(facts) + charts["attack"]),
            _section("Who is protected from whom", _whom(facts)),
            _section("Three epsilons", _three(facts) + charts.get("epsilon", "")),
            _section("What it rests on", _list(guarantee["rests_on"])),
            _section("What it does not cover", _list(guarantee["not_covered"])),
        ]
    parts += [
        _section("Data card", _card(facts["data"])),
        _section("Model card", _card(facts["model"])),
        *(_section(name, _checklist(items)) for name, items in facts["checklists"].items()),
        _section("Recipe", f"<pre tabindex='0'>{escape(tomli_w.dumps(facts['recipe']))}</pre>"),
        _section("Versions, and how to compute it again", _again(facts)),
    ]
    return f'<article aria-labelledby="run-{number}">{"".join(parts)}</article>'


def _section(title: str, inside: str) -> str:
    return f"<section><h3>{escape(title)}</h3>{inside}</section>"


def _state(guarantee: Facts | None) -> str:
    return "good" if guarantee is not None and guarantee["certified"] else "bad"


def _verdict(guarantee: Facts | None) -> str:
    return "No guarantee" if guarantee is None else str(guarantee["statement"]).split("\n")[0]


def _unfinished(facts: Facts) -> str:
    if facts["finished"]:
        return ""
    return (
        f'<p class="badge bad">Unfinished: {facts["rounds"]} rounds are stored. The guarantee is '
        "about the whole plan.</p>"
    )


def _result(facts: Facts) -> str:
    result, tiles = facts["result"], []
    for name, title in {"accuracy": "accuracy", "rmse": "root mean squared error"}.items():
        if result.get(name) is not None:
            tiles.append(
                (title, _share(result[name]) if name == "accuracy" else f"{result[name]:.4g}")
            )
        if result["constant_answer"].get(name) is not None:
            known = result["constant_answer"][name]
            tiles.append(("best constant answer", _score({name: known})))
    if result.get("loss") is not None:
        tiles.append(("loss", f"{result['loss']:.4g}"))
    plain = result["without_privacy"]
    if plain is not None:
        known = plain.get("accuracy")
        shown = _share(known) if known is not None else f"loss {plain['loss']:.4g}"
        tiles.append(("the same without privacy", shown))
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
    absent = {
        "promised": "none",
        "certified": "not certified",
        "audited": "absent: not audited yet",
    }
    tiles = [
        (name, absent[name] if epsilons[name] is None else _number(epsilons[name]))
        for name in absent
    ]
    note = (
        "Promised: what was asked for. Certified: what is proved, from the ledger. Audited: what "
        "attacks have shown, a lower bound that must not exceed the certified one."
    )
    refuted = ""
    certified, audited = epsilons["certified"], epsilons["audited"]
    if certified is not None and audited is not None and audited > certified:
        refuted = "<p class='badge bad'>Refuted: an attack did better than what is certified.</p>"
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
        return _list([f"{key}: {item}" for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return _list(value)
    return escape(f"{value:,}" if isinstance(value, int) else str(value))


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in tiles)
    return f'<dl class="tiles">{shown}</dl>'


def _wide(table: str, name: str) -> str:
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}">{table}</div>'


def _score(result: Facts) -> str:
    if result.get("accuracy") is not None:
        return f"accuracy {_share(result['accuracy'])}"
    known = [name for name in ("rmse", "loss") if result.get(name) is not None]
    return f"{known[0]} {result[known[0]]:.4g}" if known else "not evaluated"


def _share(value: float) -> str:
    return f"{100 * value:.4g} %"


def _number(value: float | None) -> str:
    return "none" if value is None else at_most(value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
