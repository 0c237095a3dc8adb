"""A plan waits for its owner's yes, where the policy says so: by command or on a page."""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.deploy.hospitals import POLICY, SITES, Hospitals, hospitals
from tests.report.browser import AXE, Page, needs_browser

from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil_federation.deploy import approvals, hub_service
from fedveil_federation.deploy.approvals import Approvals, OwnerAsked
from fedveil_federation.deploy.console import console

ASKS = POLICY + "\n[ask]\napprove = true\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hospitals]:
    monkeypatch.setattr(hub_service, "_OWNERS", 0.0)
    found = hospitals(tmp_path, ASKS)
    found.meet()
    yield found
    found.close()


def asked(made: Hospitals, capsys: Any, site: str, *words: str) -> Any:
    home = str(made.homes[site].path)
    assert main(["site", "approve", "--home", home, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_begins_when_all_owners_have_said_yes_and_each_run_asks_anew(
    made: Hospitals, capsys: Any
) -> None:
    made.queue("first")
    service = made.service()
    for site in made.homes:
        service.step()
        assert service.queue.ended("first") is None
        assert "owner" in service.queue.waiting("first")
        ((name, words),) = asked(made, capsys, site)["waiting"].items()
        assert "dp-sgd" in words["what for"]
        assert words["its name for it"] == "first"
        assert "epsilon 15" in words["cost"] or "epsilon 14.9" in words["cost"]
        asked(made, capsys, site, "--plan", name[:12])
    after = float(words["lifetime epsilon after it"])
    made.start("east")  # a yes outlasts a restart
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
    assert made.homes["east"].store().ledger.spent() == pytest.approx(after, rel=1e-3)
    assert asked(made, capsys, "north")["waiting"] == {}
    made.queue("second")
    service.step()
    assert service.queue.ended("second") is None
    assert [sum(home.store().ledger.runs().values()) for home in made.homes.values()] == [3] * 3
    home = str(made.homes["north"].path)
    assert main(["site", "ledger", "--home", home, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["name"], run["rounds"], len(run["begun"])) == ("first", 3, 19)


def test_a_hub_that_asks_without_end_fills_no_disk(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(approvals, "_MOST", 2)
    service = made.service()
    for rounds in (1, 2, 3):
        made.queue(f"run-{rounds}", training__rounds=rounds)
        service.step()
        job = service.queue.next()
        if job is not None:
            service.queue.end(job, "stopped")
    names = list(asked(made, capsys, "north")["waiting"])
    assert len(names) == 2
    ended = service.queue.ended("run-3")
    assert ended is not None
    assert ended["outcome"] == "refused"
    for name in names:
        asked(made, capsys, "north", "--plan", name, "--refuse")
    made.queue("run-4", training__rounds=4)
    service.step()
    (fourth,) = asked(made, capsys, "north")["waiting"]
    asked(made, capsys, "north", "--plan", fourth, "--refuse")
    assert len(list((made.homes["north"].path / "approvals").glob("*.json"))) == 2


PLAN = {"recipe": {}, "facts": {"name": "x", "sizes": [1]}, "scoring": {}, "delta": 1e-6}


def plan(epsilon: float = 1.0, run: str = "a") -> bytes:
    return json.dumps({**PLAN, "epsilon": epsilon, "run": run}).encode()


def check(found: Approvals, run: str, epsilon: float = 1.0) -> None:
    found.check(plan(epsilon, run), run, "first", 2.0)


def test_one_yes_is_one_run_whatever_the_hub_asks_in_between(tmp_path: Path) -> None:
    """Two runs of one plan that were both looked at before either began; and a restart."""
    found = Approvals(tmp_path / "approvals")
    with pytest.raises(OwnerAsked):
        check(found, "a")
    (name,) = found.waiting()
    assert found.answer(name, True)
    check(found, "a")
    check(found, "b")
    found.use(plan(run="a"), "a")
    with pytest.raises(OwnerAsked):
        found.use(plan(run="b"), "b")
    with pytest.raises(OwnerAsked):
        check(found, "b")
    found.use(plan(run="a"), "a")  # the guard was restarted in the middle of its run
    check(found, "a")
    with pytest.raises(OwnerAsked):
        check(found, "a", epsilon=2.0)  # another plan


def test_plans_are_told_apart_by_their_whole_digest(tmp_path: Path) -> None:
    """Who chooses plans finds two whose digests begin alike: 12 digits take 2**24 attempts."""
    found = Approvals(tmp_path / "approvals")
    with pytest.raises(OwnerAsked):
        check(found, "a")
    (name,) = found.waiting()
    assert len(name) == 64
    for wrong in ("", "nothing", name[:12] + "x"):
        with pytest.raises(ConfigError):
            found.answer(wrong, True)


def test_two_persons_have_to_say_yes_each_with_a_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made = hospitals(tmp_path, ASKS + "persons = 2\n")
    home = made.homes["north"]

    def typed(passphrase: str, *words: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(passphrase + "\n"))
        return main(["site", *words, "--home", str(home.path)])

    own = {"ada": "ada's very own", "bo": "bo's very own"}
    for name, passphrase in own.items():
        assert typed(passphrase, "person", name) == 0
    assert typed("another one", "person", "ada") == 2  # nobody takes her place
    assert typed("short", "person", "cy") == 2
    assert "very own" not in (home.path / "persons.json").read_text()
    found = Approvals.of(home)
    with pytest.raises(OwnerAsked):
        check(found, "a")
    (name,) = found.waiting()
    assert typed("", "approve", "--plan", name) == 2
    assert typed(own["bo"], "approve", "--plan", name, "--person", "ada") == 2
    for _ in range(2):  # the same person twice is one
        assert typed(own["ada"], "approve", "--plan", name, "--person", "ada") == 0
        with pytest.raises(OwnerAsked):
            check(found, "a")
    with console(home) as address:
        words = {"act": "approve", "plan": name, "person": "bo"}
        post(address, {**words, "passphrase": own["ada"]})
        with pytest.raises(OwnerAsked):
            check(found, "a")
        post(address, {**words, "passphrase": own["bo"]})
    check(found, "a")


# --- the owner's page ---------------------------------------------------------------------------


def post(address: str, form: dict[str, str], path: str | None = None, **headers: str) -> int:
    found = urlsplit(address)
    connection = http.client.HTTPConnection(str(found.hostname), found.port, timeout=600)
    sent = {"Origin": f"http://{found.netloc}", **headers}
    connection.request("POST", found.path if path is None else path, urlencode(form), sent)
    status = connection.getresponse().status
    connection.close()
    return status


def test_only_a_form_of_the_page_itself_is_taken(tmp_path: Path) -> None:
    """Other pages of the browser, other names for this machine, and whoever lacks the secret."""
    home = hospitals(tmp_path).homes["north"]
    form = {"act": "pause"}
    with console(home) as address:
        port = urlsplit(address).port
        for wrong in (
            {"path": "/"},
            {"path": urlsplit(address).path[:-2] + "/"},
            {"Origin": "http://attacker.example"},
            {"Origin": "null"},
            {"Origin": f"http://localhost:{port}"},  # not where the page was
            {"Host": "attacker.example", "Origin": "http://attacker.example"},
            {"Host": f"attacker.example:{port}", "Origin": f"http://attacker.example:{port}"},
            {"Content-Length": "20000"},
            {"Content-Length": "-1"},
        ):
            assert post(address, form, **wrong) == 404
            assert not home.stopped
        assert post(address, form) == 303
        assert home.stopped
        assert post(address, {"act": "nonsense"}) == 303
        assert home.stopped


@needs_browser
def test_an_owner_decides_in_a_browser(made: Hospitals, browser: Page) -> None:
    service, home = made.service(), made.homes["north"]
    made.queue("first")
    service.step()
    for site in SITES[1:]:
        others = Approvals.of(made.homes[site])
        others.answer(next(iter(others.waiting())), True)
    browser.problems.clear()
    with console(home) as address:
        browser.open(address)
        page = "document.querySelector('main').innerText"
        words = browser.run(page)
        for said in ("hub of hospitals", "3 sites", "train a logistic model by dp-sgd", "0 of 50 "):
            assert said in words
        if AXE.exists():
            assert browser.violations() == []
        browser.send("button[value=approve]")
        browser.until(f"{page}.includes('may begin')")
        service.step()
        assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
        # The page grows by itself: the run is in its history, with the hub's name.
        browser.until("document.querySelector('tbody th')?.innerText === 'first'")
        made.queue("second", training__rounds=1)
        service.step()
        browser.until("Boolean(document.querySelector('button[value=refuse]'))")
        browser.send("button[value=refuse]")
        browser.until(f"{page}.includes('Refused plans (1)')")
        service.step()
        ended = service.queue.ended("second")
        assert ended is not None
        assert ended["outcome"] == "refused"
        browser.send("button[value=pause]")
        browser.until(f"{page}.includes('paused by its owner')")
        assert home.stopped
        browser.send("button[value=resume]")
        browser.until(f"{page}.includes('takes part')")
        assert not home.stopped
        assert all(problem.startswith("asked for " + address) for problem in browser.problems)
    browser.until("document.querySelector('footer').textContent.includes('was stopped')")
    browser.open("about:blank")
