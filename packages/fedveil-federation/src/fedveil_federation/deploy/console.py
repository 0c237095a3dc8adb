"""An owner's page on this machine: budget, history, plans that wait, pause.

It works on the site's directory as the commands do, and needs no guard that runs. The same account
runs it; `fedveil.report.live` says who else is kept out, and how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError, FedveilError
from fedveil.core.units import Unit
from fedveil.privacy.rounding import at_most
from fedveil.report.live import served
from fedveil.report.page import render
from fedveil_federation.deploy.approvals import ONE_PERSON, Approvals, Persons
from fedveil_federation.deploy.delivery import delivered
from fedveil_federation.deploy.state_dirs import SiteHome, lifetime_spent

_TEMPLATE = Path(__file__).with_name("console.html")


@contextmanager
def console(home: SiteHome) -> Iterator[str]:
    """Serve the page of a site.

    Args:
        home: the site's directory.

    Yields:
        Its address, with the secret that lets in whoever knows it.
    """
    page = _Page(home)
    with served(page.made, page.acted) as address:
        yield address


def history(home: SiteHome) -> dict[str, Any]:
    """Return what a site's ledger says: the lifetime's budget, and the runs that took from it.

    Returns:
        A document of plain values. Its `runs` have the hub's name, when each began (UTC), what it
        was for, how many sums this site took part in, what all of it may cost by itself, and the
        folder of its model if the hub has delivered it.
    """
    store, models = home.store(), delivered(home)
    ledger = store.ledger
    persons = ledger.unit is Unit.PERSON
    return {
        "site": home.site,
        "unit": str(ledger.unit),
        "protects": f"{ONE_PERSON} at this site" if persons else f"one {ledger.unit}",
        "epsilon": lifetime_spent(store),
        "budget_epsilon": ledger.budget_epsilon,
        "delta": ledger.delta,
        "runs": [
            {
                "run": run,
                "rounds": rounds,
                **_about(home.plan(run)),
                "delivered": str(models[run]) if run in models else None,
            }
            for run, rounds in ledger.runs().items()
        ],
    }


def _about(plan: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a run was for; nothing where its file is lost or damaged."""
    said = dict.fromkeys(("name", "begun", "with", "what", "model", "planned_epsilon"))
    if plan is None:
        return said
    try:
        recipe = plan["recipe"]
        columns = plan["scoring"].get("columns")
        said["what"] = "statistics" if columns else "evaluation"
        if not plan["scoring"]:
            said["what"] = recipe["training"]["method"]
        said["model"] = None if columns else recipe["model"]["name"]
        said["planned_epsilon"] = plan["epsilon"]
        said |= {"name": plan.get("called"), "begun": plan.get("begun")}
        said["with"] = plan["facts"]["name"]
    except (KeyError, TypeError):
        pass
    return said


class _Page:
    """The contents of the page, and the actions of its buttons."""

    def __init__(self, home: SiteHome) -> None:
        self._home, self._said = home, ""
        self._ledger: tuple[int, dict[str, Any]] = (0, {})  # and when its file had changed

    def made(self) -> str:
        home = self._home
        ask, approvals = home.policy.ask, Approvals.of(home)
        ledger = self._history()
        waiting = {name: one.in_words() for name, one in approvals.waiting().items()}
        refused = {name: one.in_words() for name, one in approvals.refused().items()}
        document = {
            **ledger,
            "stopped": home.stopped,
            "left": (home.path / "left").exists(),
            "last_word": _changed(home.path / "metrics.prom"),
            "asks": ask.approve,
            "persons_needed": ask.persons,
            "persons": Persons(home.path / "persons.json").names() if ask.persons > 1 else [],
            "waiting": waiting,
            "refused": refused,
            "said": self._said,
        }
        words = {"site": document, "spent": at_most(ledger["epsilon"])}
        title = f"{home.site} in {home.agreement.name}"
        return render(_TEMPLATE, title, document, live=True, **words)

    def acted(self, form: dict[str, str]) -> None:
        """Do what a button says, and keep what came of it for the page."""
        try:
            self._said = self._done(form)
        except FedveilError as error:
            self._said = str(error)

    def _done(self, form: dict[str, str]) -> str:
        home, act = self._home, form.get("act", "")
        if act in ("pause", "resume"):
            home.pause(act == "pause")
            return f"{home.site} {home.stopped or 'takes part'}"
        if act not in ("approve", "refuse"):
            raise ConfigError(f"{act!r}: this page has no such button.")
        yes, person = act == "approve", "owner"
        if yes and home.policy.ask.persons > 1:
            person = form.get("person", "")
            Persons(home.path / "persons.json").check(person, form.get("passphrase", ""))
        if Approvals.of(home).answer(form.get("plan", ""), yes, person):
            return "The run may begin; the hub asks again within a minute."
        return (
            "One more person has to say yes." if yes else "The hub is told so when it asks again."
        )

    def _history(self) -> dict[str, Any]:
        changed = (self._home.store_path).stat().st_mtime_ns
        if changed != self._ledger[0]:  # whoever opens the ledger follows all its events
            self._ledger = changed, history(self._home)
        return self._ledger[1]


def _changed(path: Path) -> str | None:
    """Return when a file was written last; None if there is none."""
    if not path.exists():
        return None
    return f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d %H:%M}"
