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
from fedveil.report.scores import NAMES, shown

Facts = Mapping[str, Any]

_SCORES = ("score", "model", "best constant answer")
_TITLES = {"accuracy": "accuracy", "rmse": "root mean squared error", "loss": "loss"}


def page(documents: Sequence[Facts], *, live: bool = False) -> str:
    """The whole page. The documents are in it, as `report.json` has them."""
    title = f"Report of {documents[0]['run']}" if len(documents) == 1 else f"{len(documents)} runs"
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
        _summary(facts),
        section("Result", beside(_result(facts), charts.get("learning", ""))),
    ]
    if guarantee is None:
        text = "No privacy is guaranteed: this method adds no noise. Treat the model as the data."
        parts.append(section("Guarantee", f"<p>{text}</p>"))
    else:
        parts += [
            section("What is guaranteed", beside(_plain_words(facts), charts["attack"])),
            section("Who is protected from whom", _whom(facts)),
            section("Three epsilons", beside(_three(facts), charts.get("epsilon", ""))),
            section("What it rests on", listed(guarantee["rests_on"])),
            section("What it does not cover", listed(guarantee["not_covered"])),
        ]
    if facts["gallery"] is not None:
        parts.append(section("What attackers could learn", _gallery(facts["gallery"])))
    parts += [
        section("Data card", _card(facts["data"])),
        section("Model card", _card(facts["model"])),
        *(section(name, _checklist(items)) for name, items in facts["checklists"].items()),
        section("Recipe", _folded("Every setting", tomli_w.dumps(facts["recipe"]))),
        section("Versions, and how to compute it again", _again(facts)),
    ]
    return f'<article aria-labelledby="run-{number}">{"".join(parts)}</article>'


def section(title: str, inside: str, level: int = 3) -> str:
    return f"<section><h{level}>{escape(title)}</h{level}>{inside}</section>"


def _folded(title: str, text: str) -> str:
    """What few readers want at once: a click, or print, unfolds it."""
    return (
        f"<details><summary>{escape(title)}</summary>"
        f"<pre tabindex='0'>{escape(text)}</pre></details>"
    )


def beside(words: str, picture: str) -> str:
    """Words, and to their right, where there is room, what they are about."""
    return f'<div class="pair"><div>{words}</div>{picture}</div>' if picture else words


def _badges(facts: Facts) -> str:
    guarantee = facts["guarantee"] or {"statement": "No guarantee", "certified": False}
    kind, verdict = "good" if guarantee["certified"] else "bad", guarantee["statement"]
    badges = f'<p class="badge {kind}">{escape(verdict.partition(chr(10))[0])}</p>'
    if guarantee.get("reason") and not guarantee["certified"]:
        badges += f"<p>Why it is not certified: {escape(guarantee['reason'])}.</p>"
    if not facts["finished"]:
        of = facts["recipe"]["training"].get("rounds")
        told = f"{facts['rounds']:,}{f' of {of:,}' if of else ''} rounds are stored"
        badges += (
            f'<p class="badge bad">Unfinished: {told}. What is said of privacy is '
            "about the whole plan.</p>"
        )
    return badges


def _rounds(number: int) -> str:
    return f"{number:,} round{'' if number == 1 else 's'}"


def _summary(facts: Facts) -> str:
    """How good and how private it is: one figure each, for whoever reads nothing else."""
    result, guarantee, attack = facts["result"], facts["guarantee"], facts["attack"]
    tiles = [("result", "not evaluated", "")]
    if known := [name for name in _TITLES if name in result]:
        constant = result["constant_answer"].get(known[0])
        beside = "" if constant is None else f"best constant answer: {shown(known[0], constant)}"
        tiles = [(_TITLES[known[0]], shown(known[0], result[known[0]]), beside)]
    if guarantee is None:
        tiles.append(("privacy", "none", "this method adds no noise"))
    else:
        doubt = "" if guarantee["certified"] else " (not certified)"
        size = f"for one {guarantee['unit']}, at delta {at_most(guarantee['delta'])}"
        tiles.append((f"epsilon{doubt}", _number(guarantee["epsilon"]), size))
        most = _bound(attack["right_guesses"])
        tiles.append((f"an attacker is right in at most{doubt}", most, "tossing a coin: 50%"))
    return _tiles(tiles, "tiles main")


def _result(facts: Facts) -> str:
    result, rows = facts["result"], []
    for name, of in result["scores"].items():
        cells = (NAMES[name], shown(name, of["model"]), shown(name, of["constant"]))
        rows.append(
            f'<tr><th scope="row">{cells[0]}</th><td>{cells[1]}</td><td>{cells[2]}</td></tr>'
        )
    curve = facts["charts"].get("learning")  # the last evaluation may be older than the last round
    after = curve["series"][0]["points"][-1][0] if curve else facts["rounds"]
    inside = f"<p>After {_rounds(after)}, on test examples and without noise."
    if (plain := result["without_privacy"]) is not None:
        inside += f" The same training without privacy: {_score(plain)}."
    inside += "</p>"
    if result["clearly_better_than_constant"] is False:
        inside += "<p class='badge bad'>Not clearly better than the best constant answer.</p>"
    if rows:
        head = "".join(f'<th scope="col">{name}</th>' for name in _SCORES)
        made = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        inside += wide(made, "Scores")
    return inside


def _plain_words(facts: Facts) -> str:
    guarantee, attack = facts["guarantee"], facts["attack"]
    promise, counted = guarantee["statement"].split("\n")[1:3]
    rate, found = attack["false_positives"], attack["true_positives"]
    change = CHANGE[Unit(guarantee["unit"]), Adjacency(guarantee["adjacency"])]
    words = (
        "Imagine an attacker who knows everything else and sees whatever is released. Asked "
        f"whether {change}, they are right in at most {_bound(attack['right_guesses'])} of cases; "
        "tossing a coin is right in 50%. (Epsilon and delta alone would allow "
        f"{_bound(attack['right_guesses_of_epsilon_alone'])}; the noise is known more exactly.) If "
        f"they accept a false alarm in {_bound(rate)} of cases, they notice it in at most "
        f"{_bound(found)}."
    )
    mu = (
        f"It is exactly Gaussian differential privacy with mu {_number(attack['mu'])}."
        if attack["mu"] is not None
        else "No mu of Gaussian differential privacy is stated: it would be exact only for "
        "unsampled Gaussian noise."
    )
    paragraphs = [words, promise, counted, mu]
    if not guarantee["certified"]:  # as the statement itself has it
        paragraphs[0] = f"If this run were certified, this would hold. {words}"
        paragraphs.append(f"Not certified: {guarantee['reason']}.")
    return "".join(f"<p>{escape(text)}</p>" for text in paragraphs)


def _whom(facts: Facts) -> str:
    told = facts["protects"]
    return beside(f"<p>{escape(told)}</p>", trust_diagram(Trust(facts["guarantee"]["trust"]), told))


def _three(facts: Facts) -> str:
    epsilons = facts["epsilons"]
    certified, audited = epsilons["certified"], epsilons["audited"]
    tiles = [
        ("promised", _number(epsilons["promised"]), "what was asked for"),
        ("certified", "no" if certified is None else _number(certified), "at most, by a proof"),
        ("audited", "not yet" if audited is None else at_least(audited), "at least, by attacks"),
    ]
    note = (
        "Certified is proved from the run's ledger. Audited is a lower bound, and must not exceed "
        "it. The curve says what a run of so many rounds would cost, had that been decided "
        "beforehand; a run that is stopped early because of what it showed costs its whole plan."
    )
    if audited is None:
        note += f" To audit this run: fedveil audit {escape(facts['run'])}"
    refuted, proved = "", facts["guarantee"]["epsilon"]
    if None not in (audited, proved) and audited > proved:
        refuted = "<p class='badge bad'>Refuted: an attack did better than what is proved.</p>"
    return refuted + _tiles(tiles) + f"<p class='note'>{note}</p>"


def _gallery(found: Facts) -> str:
    """Attacks on uploads, view by view, and on the model."""
    words = (
        "Attacks on a simulation of this recipe, by somebody who looks and changes nothing. From "
        "what is seen of one client's upload they guess its records and labels. Open: the update "
        "as it is. Clipped, noise: after the method's clip, and with its noise. Masked: one upload "
        "under secure aggregation. Sum of n: the updates of n clients, added up."
    )
    parts = [f"<p>{words}</p>"]
    if found["picture"] is not None:
        told = "Records, and what is left of them in uploads that are seen in different ways"
        image = f'<img alt="{told}" src="data:image/png;base64,{found["picture"]}">'
        parts.append(f"<figure>{wide(image, 'Reconstructed records')}</figure>")
    heads = {
        "found": "record recovered",
        "correlation": "correlation with it",
        "label": "label guessed",
        "property": "property guessed",
    }
    shown_heads = [name for name in heads if any(name in one for one in found["views"])]
    if shown_heads:
        rows = [
            [Cell(escape(one["view"]), number), *(_told(one.get(name)) for name in shown_heads)]
            for number, one in enumerate(found["views"])
        ]
        columns = ["what is seen", *(heads[name] for name in shown_heads)]
        parts.append(table(columns, rows, "Attacks on uploads"))
    if (members := found["membership"]) is not None:
        parts.append(
            f"<p>Was this {escape(members['unit'])} there, or is it that "
            f"{escape(members['without'])}? {members['runs']:,} models were trained, "
            f"{members['trials']:,} answers given.</p>"
        )
        points = [
            [
                Cell(escape(one["attack"]), one["attack"]),
                *(_share(one[name]) for name in ("auc", "false_rate", "true_rate", "allowed")),
            ]
            for one in members["points"]
        ]
        columns = ["attack", "area under its curve", "false positives", "true positives"]
        parts.append(table([*columns, "allowed by epsilon"], points, "Membership"))
    return "".join(parts) + f"<p>Not tried:</p>{listed(found['not_tried'])}"


def _told(value: Any) -> Cell:
    """A number, or [right, of so many, share of a blind guess]."""
    if not isinstance(value, list):
        return Cell("", -1.0) if value is None else Cell(f"{value:.3f}", value)
    blind = f" (by chance: {value[2]:.0%})" if len(value) > 2 else ""
    return Cell(f"{value[0]} of {value[1]}{blind}", value[0] / value[1])


def _share(value: float | None) -> Cell:
    return Cell("no bound", 2.0) if value is None else Cell(f"{100 * value:.3g}%", value)


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
    return f'<dl class="card">{rows}</dl>'


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return listed([f"{key}: {item}" for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return listed(value)
    return escape(f"{value:,}" if isinstance(value, int) else str(value))


def listed(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _tiles(tiles: Sequence[tuple[str, str, str]], kind: str = "tiles") -> str:
    """Figures: what each is, the figure, and what to hold it against."""
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(figure)}"
        f"{f'<small>{escape(more)}</small>' if more else ''}</dd></div>"
        for name, figure, more in tiles
    )
    return f'<dl class="{kind}">{shown}</dl>'


def wide(table: str, name: str) -> str:
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(name)}">{table}</div>'


def _score(result: Facts) -> str:
    known = [name for name in _TITLES if result.get(name) is not None]
    return f"{known[0]} {shown(known[0], result[known[0]])}" if known else "not evaluated"


def _bound(share: float) -> str:
    """An upper bound on a share, in percent; certainty is not what it is rounded to."""
    return f"{at_most(round(100 * share, 6), 3 if share < 0.99 else 4)}%"


def _number(value: float | None) -> str:
    return "none" if value is None else at_most(value)
