"""Plans that wait for their owner's yes: files in a site's directory.

A plan is known here by what it would do: recipe, facts and cost. Its keys and numbers, which are
new whenever a hub asks again, do not count. A yes is good for one run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedveil.core.canonical import canonical
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil_federation.deploy.state_dirs import keep_secret, read_json, read_text

_WAITING, _APPROVED = ".json", ".approved"
_CONTENT = ("recipe", "facts", "epsilon", "delta", "scoring")
_MOST = 20  # plans that wait: a hub that asks without end fills no disk


class OwnerAsked(PrivacyRefusal):
    """The plan is one that the policy allows, and waits for the owner's yes."""


class Approvals:
    """What an owner was asked, and has said yes to.

    Args:
        folder: in the site's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, plan: bytes, run: str) -> None:
        """Go on if the owner has said yes to a plan, for this run or for none yet.

        Raises:
            OwnerAsked: it has not; the plan is kept for the owner to look at.
        """
        name = _name(plan)
        if self._used_by(name) in ("", run):
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if name not in (waiting := self.waiting()):
            if len(waiting) >= _MOST:
                raise PrivacyRefusal(f"{_MOST} plans wait for this site's owner", "ask later")
            keep_secret(self._folder / f"{name}{_WAITING}", plan.decode())
        raise OwnerAsked("this site's owner has not said yes to the plan yet", "wait")

    def use(self, plan: bytes, run: str) -> None:
        """Bind a yes to the run that begins with it: another run of the same plan asks again."""
        name = _name(plan)
        keep_secret(self._folder / f"{name}{_APPROVED}", run)
        (self._folder / f"{name}{_WAITING}").unlink(missing_ok=True)

    def waiting(self) -> dict[str, dict[str, Any]]:
        """Return the plans that wait, by a short name."""
        found = sorted(self._folder.glob(f"*{_WAITING}"))
        return {path.name.removesuffix(_WAITING): read_json(path) for path in found}

    def approve(self, name: str) -> None:
        """Say yes to a plan, for its next run.

        Raises:
            ConfigError: no plan of this name waits.
        """
        if name not in self.waiting():
            raise ConfigError(f"plan {name!r}: none of this name waits; see fedveil site approve")
        keep_secret(self._folder / f"{name}{_APPROVED}", "")

    def _used_by(self, name: str) -> str | None:
        """The run that a yes was used for; empty before that, None without one."""
        path = self._folder / f"{name}{_APPROVED}"
        return read_text(path) if path.exists() else None


def _name(plan: bytes) -> str:
    document = json.loads(plan)
    return hashlib.sha256(canonical({key: document[key] for key in _CONTENT})).hexdigest()[:12]


def in_words(plan: dict[str, Any]) -> dict[str, str]:
    """Return what a plan would do, for its owner to read."""
    recipe, sizes = plan["recipe"], plan["facts"]["sizes"]
    model, training = recipe.get("model", {}), recipe.get("training", {})
    what = f"train {model.get('name')} by {training.get('method')}"
    if plan["scoring"]:
        what = f"evaluate a {model.get('name')} model on rows that are held out"
    return {
        "who asks": f"the hub of {plan['facts']['name']}, for {len(sizes)} sites together",
        "what for": what,
        "rounds": str(training.get("rounds", 1)),
        "cost": f"epsilon {plan['epsilon']:.4g} at delta {plan['delta']:.3g}",
    }
