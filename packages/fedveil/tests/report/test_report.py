"""`fedveil report`: what is in it, what is not, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.paths import ROOT
from tests.settings import TUNED

from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil.privacy.distinguishing import RATES

Capture = pytest.CaptureFixture[str]
SMALL = ["--set", "training.rounds=3", "--set", "data.clients=30", "--quiet"]
SCHEMA = """
[columns.x]
type = "number"
min = 0
max = 10
[columns.job]
type = "category"
categories = ["clerk", "cook"]
[columns.y]
type = "category"
categories = ["no", "yes"]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert main(["run", *SMALL, "--output", str(path)]) == 0
    return path


def embedded(page: Path) -> dict[str, Any]:
    (found,) = re.findall(
        r'<script type="application/json" id="document">(.*?)</script>', page.read_text(), re.DOTALL
    )
    document: dict[str, Any] = json.loads(found)
    return document


def test_page_and_json_have_the_same_content(run: Path, capsys: Capture) -> None:
    assert main(["report", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert main(["report", str(run), "--format", "json"]) == 0
    stored = json.loads((run / "report.json").read_text())
    assert embedded(run / "report.html") == stored == {"runs": shown["runs"]}


def test_the_page_on_reports_names_every_field(run: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "report.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", page.split("## Fields")[1], re.MULTILINE)
    told = {name: text for names, text in rows for name in re.findall(r"`(\w+)`", names)}
    (facts,) = embedded(run / "report.html")["runs"]
    assert set(told) == set(facts)
    assert told["version"].endswith(str(facts["version"]))
    for name in ("epsilons", "attack", "charts", "result"):
        assert set(facts[name]) <= set(re.findall(r"`(\w+)`", told[name])), name
    named = set(re.findall(r"`(\w+)`", told["guarantee"]))
    assert named - {"null"} <= {*facts["guarantee"]}


def test_the_report_says_what_the_ledger_proves(run: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["account", str(run), "--json"]) == 0
    proved = json.loads(capsys.readouterr().out)
    (facts,) = embedded(run / "report.html")["runs"]
    assert facts["guarantee"] == {name: proved[name] for name in facts["guarantee"]}
    assert facts["epsilons"]["certified"] == proved["epsilon"] <= facts["epsilons"]["promised"]
    assert facts["epsilons"]["audited"] is None
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve, constant = facts["charts"]["learning"]["series"]
    known = facts["result"]["scores"]["accuracy"]["constant"]
    assert [y for _, y in constant["points"]] == [pytest.approx(known, rel=1e-3)] * 2
    assert curve["points"] == [
        [line["round"], pytest.approx(line["accuracy"], rel=1e-3)] for line in lines
    ]
    spent = facts["charts"]["epsilon"]["series"][0]["points"]
    for line, (number, epsilon) in zip(lines, spent, strict=True):
        assert number == line["round"]
        assert line["epsilon_so_far"] <= epsilon <= line["epsilon_so_far"] * 1.001  # rounded up
    best, alone, guess = facts["charts"]["attack"]["series"]
    for rate, a, b, c in zip(
        RATES, *([y for _, y in s["points"]] for s in (best, alone, guess)), strict=True
    ):
        assert rate == c <= a <= b <= 1
    assert facts["attack"]["right_guesses"] <= facts["attack"]["right_guesses_of_epsilon_alone"]
    assert facts["versions"]["torch"]
    assert facts["finished"]


@pytest.mark.parametrize("public", [True, False])
def test_no_value_of_the_data_is_in_the_report(public: bool, tmp_path: Path) -> None:
    """Canaries are owners' names, numbers, categories; with a schema and with none."""
    rows = []
    for client in range(30):
        for number in range(8):
            x = 3.1415926 + client / 7 + number / 1013
            job = f"canary-job-{client % 3}" if number == 3 else "cook"
            rows.append((f"canary-owner-{client}", repr(x), job, ("no", "yes")[x > 5]))
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["who,x,job,y", *(",".join(row) for row in rows)]) + "\n")
    (tmp_path / "s.toml").write_text(SCHEMA)
    words = ["--data", str(table), "--client-column", "who", "--label", "y", "--quiet"]
    words += ["--schema", str(tmp_path / "s.toml")] if public else []
    run = tmp_path / "run"
    assert main(["run", *words, *TUNED, "--output", str(run)]) == 0
    assert main(["report", str(run), "--format", "json"]) == 0
    assert embedded(run / "report.html")["runs"][0]["guarantee"]["certified"] is public
    for name in ("report.html", "report.json"):
        text = (run / name).read_text()
        assert "canary" not in text
        for _, x, _, _ in rows:
            assert x[:6] not in text


def test_what_a_report_does_not_name_cannot_get_into_it(run: Path, tmp_path: Path) -> None:
    """Whatever else is in the files of a run: a newer version's figures, or a simulation's."""
    from fedveil.report.facts import document_of

    canary = 0.87654321
    kept = {name: (run / name).read_text() for name in ("metrics.jsonl", "result.json")}
    lines = [json.loads(line) for line in kept["metrics.jsonl"].splitlines()]
    for line in lines:
        line |= {"unprotected_stats": {"loss": canary}, "norm": canary}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = json.loads(kept["result.json"]) | {"clipped": canary}
    (run / "result.json").write_text(json.dumps(result))
    try:
        text = json.dumps(document_of(run))
    finally:
        for name, content in kept.items():
            (run / name).write_text(content)
    assert "0.8765" not in text


def test_bad_runs_are_one_line(tmp_path: Path, capsys: Capture, run: Path) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    (run / "audit.json").write_text("{}")
    try:
        assert main(["report", str(run)]) == 2
        assert "audit.json" in capsys.readouterr().err
    finally:
        (run / "audit.json").unlink()


def test_an_audit_and_the_constant_answer_are_shown_where_there_are_any(run: Path) -> None:
    from fedveil.report.facts import document_of
    from fedveil.report.page import page

    (facts,) = embedded(run / "report.html")["runs"]
    kept = (run / "result.json").read_text()
    of = {
        name: facts["guarantee"][name]
        for name in ["epsilon", "delta", "unit", "adjacency", "trust"]
    }
    scores = {"accuracy": 0.5, "constant": {"answer": "canary", "accuracy": 0.125}}
    scores |= {"clearly_better_than_constant": False, "rows": 3}
    try:
        (run / "result.json").write_text(json.dumps(json.loads(kept) | {"scores": scores}))
        for shown, refuted in ((0.75, False), (of["epsilon"] + 1, True)):
            audit = {"certified": of, "epsilon_at_least": shown}
            (run / "audit.json").write_text(json.dumps(audit))
            document = document_of(run)
            assert document["epsilons"]["audited"] == shown
            assert ("Refuted" in page([document])) is refuted
        assert "<small>best constant answer: 12.5%</small>" in page([document])
        assert "Not clearly better than the best constant answer" in page([document])
        assert "canary" not in page([document])
        (run / "audit.json").write_text(json.dumps(audit | {"certified": of | {"delta": 1e-6}}))
        with pytest.raises(ConfigError, match="another guarantee"):
            document_of(run)
    finally:
        (run / "result.json").write_text(kept)
        (run / "audit.json").unlink()


def test_several_runs_are_side_by_side_and_nothing_in_them_is_markup(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without noise beside a private one; a name that would end the script if it could."""
    monkeypatch.chdir(tmp_path)
    plain = ["run", "fedavg", "--set", "training.rounds=2", "--quiet", "--seed", "1"]
    name = "<img src=x onerror=alert(1)>&amp;<!--<script>"
    assert main([*plain, "--output", name]) == 0
    assert main(["report", str(run), name]) == 0
    text = (tmp_path / "report.html").read_text()
    private, open_ = embedded(tmp_path / "report.html")["runs"]
    assert open_["run"] == name
    assert open_["guarantee"] is open_["attack"] is None
    assert not any(item["stated"] for item in open_["checklists"]["How to DP-fy ML, section 5.3"])
    assert "No privacy is guaranteed" in text
    assert "<img" not in text.partition('id="document"')[0]
    assert text.count("<script") == text.count("</script>") == 2
    assert "<!--" not in text
    assert private["epsilons"]["certified"] is not None
