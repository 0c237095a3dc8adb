"""Plans that wait for their owner's yes: files in a site's directory.

A plan is known here by what it would do: recipe, facts and cost. Its keys and numbers, which are
new whenever a hub asks again, do not count. A yes is good for one run.

Where the policy asks for several persons, each has a passphrase (`Persons`), and the plan waits
until enough of them have said yes. That keeps one person from deciding in haste. It does not keep
out whoever can write the site's directory, and who could write a yes there.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.core.canonical import canonical
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Unit
from fedveil.privacy.rounding import at_most
from fedveil_federation.deploy.state_dirs import SiteHome, now, read_as, read_json, write_json

ONE_PERSON = "one person with all their records"
_CONTENT = ("recipe", "facts", "epsilon", "delta", "scoring")
_MOST = 20  # plans that wait, and as many refused ones: a hub that asks without end fills no disk
_MOST_RUNS = 1000  # that a guard lets go on after a restart
_SHORTEST = 8  # letters of a passphrase
_OWNER = "owner"  # who says yes where the policy asks for one person


class OwnerAsked(PrivacyRefusal):
    """The plan is one that the policy allows, and waits for the owner's yes."""


@dataclass(frozen=True)
class AskedPlan:
    """A plan that an owner was asked about.

    Attributes:
        plan: the plan's document.
        called: the hub's name for the run.
        since: when it was asked for first (UTC).
        lifetime: what all runs of this site together will have cost after it, by this site's own
            accountant when the hub asked last.
        waits: whether it was asked for and no run has begun since.
        approved_by: the persons who have said yes; "owner" where the policy asks for one.
        refused: whether one of them has said no.
        runs: those that have begun, each with a yes of its own.
    """

    plan: Mapping[str, Any]
    called: str
    since: str
    lifetime: float
    waits: bool = True
    approved_by: tuple[str, ...] = ()
    refused: bool = False
    runs: tuple[str, ...] = ()

    def in_words(self) -> dict[str, str]:
        """Return what the plan would do, for its owner to read."""
        recipe, facts = self.plan["recipe"], self.plan["facts"]
        model, training = recipe.get("model", {}), recipe.get("training", {})
        what = f"train a {model.get('name')} model by {training.get('method')}"
        if self.plan["scoring"].get("columns"):
            what = "count how the values of each column are spread"
        elif self.plan["scoring"]:
            what = f"evaluate a {model.get('name')} model on rows that are held out"
        persons = recipe.get("privacy", {}).get("unit") == Unit.PERSON
        whom = f", for {ONE_PERSON}" if persons else ""
        return {
            "who asks": f"the hub of {facts['name']}, for {len(facts['sizes'])} sites together",
            "its name for it": self.called,
            "what for": what,
            "rounds": str(training.get("rounds", 1)),
            "cost": f"epsilon {at_most(self.plan['epsilon'])} at delta {self.plan['delta']:.3g}"
            f"{whom}",
            "lifetime epsilon after it": at_most(self.lifetime),
            "asked since": self.since,
            "yes of": ", ".join(self.approved_by),
        }


class Approvals:
    """The questions that an owner was asked, and the answers.

    Args:
        folder: in the site's directory; a file for each plan, named by the digest of what it does.
        persons: how many persons must say yes.
    """

    def __init__(self, folder: Path, persons: int = 1) -> None:
        self._folder, self._needed = folder, persons

    @staticmethod
    def of(home: SiteHome) -> Approvals:
        """Return those of a site, by its policy as it is now."""
        return Approvals(home.path / "approvals", home.policy.ask.persons)

    def check(self, plan: bytes, run: str, called: str, lifetime: float) -> None:
        """Go on if enough persons have said yes to a plan, for this run or for none yet.

        Args:
            plan: the document, which this site's policy allows.
            run: its digest.
            called, lifetime: see `AskedPlan`.

        Raises:
            OwnerAsked: they have not; the plan is kept for the owner to look at.
            PrivacyRefusal: the owner has said no, or too many plans wait.
        """
        name = _name(plan)
        with self._locked() as asked:
            found = asked.get(name)
            if found is not None and run in found.runs:
                return
            if found is None or not (found.waits or found.refused):  # each run asks anew
                if sum(one.waits for one in asked.values()) >= _MOST:
                    raise PrivacyRefusal(f"{_MOST} plans wait for this site's owner", "ask later")
                runs = () if found is None else found.runs
                found = AskedPlan(json.loads(plan), called, now(), lifetime, runs=runs)
                self._keep(name, found)
            elif found.lifetime != lifetime:  # others may have begun since it was asked for
                found = replace(found, lifetime=lifetime)
                self._keep(name, found)
            self._check_yes(found)

    def use(self, plan: bytes, run: str) -> None:
        """Spend a yes on the run that begins with it: another run of the same plan asks again.

        Raises:
            OwnerAsked: there is none, or another run has begun with it.
            PrivacyRefusal: the owner has said no.
        """
        name = _name(plan)
        with self._locked() as asked:
            found = asked[name]
            if run not in found.runs:
                self._check_yes(found)
                runs = (*found.runs, run)[-_MOST_RUNS:]
                self._keep(name, replace(found, waits=False, approved_by=(), runs=runs))

    def _check_yes(self, found: AskedPlan) -> None:
        if found.refused:
            raise PrivacyRefusal("this site's owner refuses the plan", "ask for another one")
        if not found.waits or not self._enough(found.approved_by):
            raise OwnerAsked("this site's owner has not said yes to the plan yet", "wait")

    def waiting(self) -> dict[str, AskedPlan]:
        """Return the plans that wait for a yes, or for their run to begin with it, by name."""
        with self._locked() as asked:
            return {name: one for name, one in asked.items() if one.waits}

    def refused(self) -> dict[str, AskedPlan]:
        """Return the plans that the owner has refused, by name."""
        with self._locked() as asked:
            return {name: one for name, one in asked.items() if one.refused}

    def answer(self, name: str, yes: bool, person: str = _OWNER) -> bool:
        """Say yes to a plan, for its next run, or no.

        Args:
            name: the plan's, or enough of its first letters.
            yes: whether it may begin; a no can be taken back.
            person: who says so. `Persons.check` has looked at the passphrase where one is needed.

        Returns:
            Whether enough persons have said yes.

        Raises:
            ConfigError: no plan of this name waits.
        """
        with self._locked() as asked:
            matching = [known for known in asked if known.startswith(name)]
            found = asked[matching[0]] if name and len(matching) == 1 else None
            if found is None or not (found.waits or found.refused):
                raise ConfigError(
                    f"plan {name!r}: none of this name waits. See fedveil site approve."
                )
            agreed = tuple(dict.fromkeys((*found.approved_by, person))) if yes else ()
            said = replace(found, waits=yes, approved_by=agreed, refused=not yes)
            self._keep(matching[0], said)
            if not yes:
                refused = [known for known, one in asked.items() if one.refused]
                self._forget(refused[: max(0, len(refused) + 1 - _MOST)])
            return self._enough(agreed)

    def _enough(self, persons: tuple[str, ...]) -> bool:
        """A yes from before the policy asked for several persons is nobody's among them."""
        named = [one for one in persons if self._needed == 1 or one != _OWNER]
        return len(named) >= self._needed

    @contextmanager
    def _locked(self) -> Iterator[dict[str, AskedPlan]]:
        """Hold all plans, oldest first: guard, commands and console are different processes."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with (self._folder / ".lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = {path.stem: read_as(AskedPlan, path) for path in self._folder.glob("*.json")}
            yield dict(sorted(found.items(), key=lambda item: item[1].since))

    def _keep(self, name: str, asked: AskedPlan) -> None:
        write_json(self._folder / f"{name}.json", asdict(asked))

    def _forget(self, names: list[str]) -> None:
        for name in names:
            (self._folder / f"{name}.json").unlink(missing_ok=True)


def _name(plan: bytes) -> str:
    """Return the whole digest: a hub chooses plans, and could find two that begin alike."""
    document = json.loads(plan)
    return hashlib.sha256(canonical({key: document[key] for key in _CONTENT})).hexdigest()


class Persons:
    """Who may say yes where the policy asks for several persons, by name and passphrase.

    Args:
        path: a file in the site's directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(self._known())

    def add(self, name: str, passphrase: str) -> None:
        """Take a person in; each chooses a passphrase that the others do not know."""
        known = self._known()
        if not name.isidentifier() or name in (*known, _OWNER):
            raise ConfigError(f"person {name!r}: is known already, or is more than letters.")
        if len(passphrase) < _SHORTEST:
            raise ConfigError(f"passphrase: too short. Use {_SHORTEST} letters or more.")
        salt = secrets.token_hex(16)
        write_json(self._path, {**known, name: [salt, _slow_digest(passphrase, salt)]})

    def check(self, name: str, passphrase: str) -> None:
        """Refuse whoever is not this person.

        Raises:
            ConfigError: there is no such person, or the passphrase is another one.
        """
        salt, digest = self._known().get(name, ("", ""))
        if not hmac.compare_digest(_slow_digest(passphrase, salt), digest):
            raise ConfigError(
                f"person {name!r}: not known with this passphrase. Each of them runs once: "
                "fedveil site person NAME."
            )

    def _known(self) -> dict[str, Any]:
        return read_json(self._path) if self._path.exists() else {}


def _slow_digest(passphrase: str, salt: str) -> str:
    return hashlib.scrypt(passphrase.encode(), salt=salt.encode(), n=2**14, r=8, p=1).hex()
