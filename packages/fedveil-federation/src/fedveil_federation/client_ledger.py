"""A client's own lifetime ledger: what all runs and models together may learn about it.

The client keeps one SQLite file. Before it takes part in anything it *reserves* the release; the
reservation is on disk before a byte leaves, and is refused if the client's epsilon, over all runs
it ever took part in, would exceed its budget. A reservation counts as spent from the first moment,
unless it is *cancelled* because nothing left: whatever crashes, the ledger never counts too little.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedveil.core.arguments import delta_value, positive
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants import bounds
from fedveil.privacy.accountants.steps import merged, with_count
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.refusals import AdjacencyRefused
from fedveil.privacy.translation import for_one_record, step_of
from fedveil_federation.client_events import Body, Events, transaction

_TRUSTS = (Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL)  # from trusting nobody to trusting most


class LifetimeBudgetExceeded(PrivacyRefusal):
    """Taking part once more would cost the client more than it ever agreed to."""


class TermsRefused(PrivacyRefusal):
    """A release that does not fit what the client's guarantee is about, or whom it trusts."""


class ClientLedger:
    """The file at `path`, created if it is not there.

    budget_epsilon, delta: the client's lifetime guarantee. On reopening, a lower budget is adopted
        and remembered; a higher one, or another delta, is refused.
    unit, adjacency: what the guarantee is about. Every release is accounted under this adjacency,
        whatever its own run reports. A ledger about records or persons also takes client-level
        releases, and charges them as if the whole client were replaced: one record can do that. A
        ledger about persons is about the records that one person has at this client: what others
        do with those that they have of the same person is not in it.
    trust: the most that the client trusts. Amplification by sampling rests on a trusted
        aggregator, so amplified releases need `Trust.CENTRAL`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        budget_epsilon: float,
        delta: float,
        *,
        unit: Unit = Unit.CLIENT,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
        trust: Trust = Trust.DISTRIBUTED,
    ) -> None:
        self.path = Path(path)
        self.delta = delta_value(delta)
        self.unit, self.adjacency, self.trust = Unit(unit), Adjacency(adjacency), Trust(trust)
        budget = positive("budget_epsilon", budget_epsilon)
        terms = {name: getattr(self, name) for name in ("delta", "unit", "adjacency", "trust")}
        with transaction(self.path) as events:
            kept = events.terms()
            if not kept:
                identity = secrets.token_hex(16)
                events.append("open", {"id": identity, "budget_epsilon": budget, **terms})
                kept = events.terms()
            self._identity = events.identity()
            for name, value in terms.items():
                if kept[0][name] != value:
                    raise ConfigError(
                        f"{name}: client ledger {self.path} was made for {kept[0][name]}, "
                        f"got {value}"
                    )
            allowed = events.budget()
            if budget > allowed:
                raise ConfigError(
                    f"budget_epsilon: client ledger {self.path} allows {allowed:g} for a lifetime, "
                    f"which cannot be raised; got {budget:g}"
                )
            if budget < allowed:
                events.append("lower", {"budget_epsilon": budget})

    @classmethod
    def reopened(cls, path: str | os.PathLike[str]) -> ClientLedger:
        """The ledger at `path`, on the terms that it was made for."""
        with transaction(Path(path)) as events:
            kept = events.terms()
            if not kept:
                raise ConfigError(f"client ledger {path}: empty; make it first")
            terms = {name: kept[0][name] for name in ("delta", "unit", "adjacency", "trust")}
            return cls(path, events.budget(), **terms)

    @contextmanager
    def _events(self) -> Iterator[Events]:
        """A transaction on the ledger that was opened, and on no other that took its place."""
        with transaction(self.path) as events:
            if events.identity() != self._identity:
                raise ConfigError(
                    f"client ledger {self.path}: is another one than was opened; put it back, or "
                    "open the new one"
                )
            yield events

    @property
    def budget_epsilon(self) -> float:
        """The lowest budget the ledger was ever opened with."""
        with self._events() as events:
            return events.budget()

    def spent(self) -> float:
        """Lifetime epsilon at the ledger's delta, open reservations included."""
        with self._events() as events:
            return self._epsilon(events.charged())

    @property
    def charges(self) -> str:
        """A digest of all that counts: `spent` is the same while this is."""
        with self._events() as events:
            charged = sorted(json.dumps(one, sort_keys=True) for one in events.charged())
        return hashlib.sha256("\n".join(charged).encode()).hexdigest()

    def runs(self) -> dict[str, int]:
        """How often the client took part in each run, open reservations included."""
        found: dict[str, int] = {}
        with self._events() as events:
            for body, times in events.charged():
                found[body["run"]] = found.get(body["run"], 0) + times
        return found

    def reserve(self, release: Release, privacy_model: PrivacyModel, *, run: str = "") -> int:
        """Write down that the client is about to take part, or refuse; the reservation's number.

        `release` is what taking part now may show: normally one round, reserved before every
        participation. Some are reserved once, before the run, in full: an amplified release, whose
        proof counts every round, those without this client too; and one that shows in later rounds
        as well, whose proof needs to know how far apart participations are.
        """
        if release.counted_participations == 0:
            raise ConfigError(
                "release: it counts no participation, so there is nothing to take part in"
            )
        self._check(release, privacy_model)
        body = _body(release, privacy_model, run)
        with self._events() as events:
            charged = events.charged()
            if _whole(release) and any(
                other["run"] == run and _whole(Release.from_dict(other["release"]))
                for other, _ in charged
            ):
                raise TermsRefused(
                    f"run {run!r} has a reservation already whose proof is about all its rounds "
                    "together",
                    "reserve once with all rounds, and name another run differently",
                )
            self._fits(charged, body, events.budget())
            return events.append("reserve", body)

    def afford(self, releases: Sequence[Release], privacy_model: PrivacyModel) -> float:
        """Refuse what `reserve` would refuse of all these together, and write nothing down.

        Returns:
            The lifetime epsilon after all of them.
        """
        for release in releases:
            self._check(release, privacy_model)
        with self._events() as events:
            *others, last = (_body(release, privacy_model, "") for release in releases)
            charged = [*events.charged(), *((body, 1) for body in others)]
            return self._fits(charged, last, events.budget())

    def _fits(self, charged: list[tuple[Body, int]], body: Body, allowed: float) -> float:
        epsilon = self._epsilon([*charged, (body, 1)])
        if not epsilon <= allowed:
            raise LifetimeBudgetExceeded(
                f"run {body['run']!r}: lifetime epsilon would be {epsilon:.4g}, above this "
                f"client's budget of {allowed:g} at delta {self.delta:g}",
                "stay out of this run, or ask for more noise",
            )
        return epsilon

    def commit(self, reservation: int) -> None:
        """Confirm that what was reserved has left. It counts either way; now for good."""
        self._close(reservation, "commit")

    def cancel(self, reservation: int) -> None:
        """Take a reservation back: only if nothing derived from the client's data has left."""
        self._close(reservation, "cancel")

    def _close(self, reservation: int, kind: str) -> None:
        with self._events() as events:
            fate = events.fate(reservation)
            if fate is None:
                raise ConfigError(f"reservation: {reservation} is not in client ledger {self.path}")
            if fate not in ("open", kind):
                raise ConfigError(f"reservation: cannot {kind} {reservation}, it has a {fate}")
            if fate == "open":
                events.append(kind, {}, reservation)

    def _check(self, release: Release, privacy_model: PrivacyModel) -> None:
        """Refuse what the client's terms or the theory do not cover."""
        if _TRUSTS.index(privacy_model.trust) > _TRUSTS.index(self.trust):
            raise TermsRefused(
                f"the release relies on {privacy_model.trust} trust, this client agreed to "
                f"{self.trust}",
                f"use a run under {self.trust} trust",
            )
        if privacy_model.unit not in (self.unit, Unit.CLIENT):
            raise TermsRefused(
                f"the release protects {privacy_model.unit}s, this ledger is about one {self.unit}",
                f"use a run that protects {self.unit}s or clients",
            )
        guarantee = account(
            [release], privacy_model=self._terms(release, privacy_model), delta=self.delta
        )
        if not guarantee.certified and math.isfinite(guarantee.epsilon):  # else: over any budget
            raise TermsRefused(
                f"nothing protects this client: {guarantee.reason}", "use a protected run"
            )

    def _terms(self, release: Release, privacy_model: PrivacyModel) -> PrivacyModel:
        """The release's privacy model under the ledger's unit and adjacency."""
        if privacy_model.unit is not self.unit:
            return for_one_record(release, privacy_model)
        if privacy_model.adjacency is self.adjacency:
            return privacy_model
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise TermsRefused(
                f"the release hides what a client sends ({privacy_model.adjacency}), this ledger "
                "that it is there at all",
                "use a run whose number of clients is a declared constant (add-remove)",
            )
        replaced = (
            privacy_model.adjacency is Adjacency.REPLACE and self.adjacency is Adjacency.ZERO_OUT
        )
        if known := release.mechanism.one_adjacency:
            if replaced:
                return privacy_model
            raise TermsRefused(
                f"{known} is known for {privacy_model.adjacency}, this ledger is about "
                f"{self.adjacency}",
                f"describe the release for {self.adjacency}",
            )
        own = replace(privacy_model, adjacency=self.adjacency)
        try:
            step_of(release, own)
        except AdjacencyRefused:
            # Zeroing a contribution is one way of replacing it, so a proof for replace will do.
            if replaced:
                return privacy_model
            raise
        return own

    def _epsilon(self, charged: list[tuple[Body, int]]) -> float:
        """Lifetime epsilon: all steps of all runs composed, each as its own run has it."""
        steps = []
        for body, times in charged:
            release = Release.from_dict(body["release"])
            step = step_of(release, self._terms(release, _privacy_model(body)))
            steps.append(with_count(step, step.count * times))
        return min(epsilon for _, epsilon in bounds(merged(steps), self.delta))


def _whole(release: Release) -> bool:
    """Whether the proof is about all rounds of a run, which then do not add up one by one."""
    return release.amplified or release.mechanism.bands > 1


def _body(release: Release, privacy_model: PrivacyModel, run: str) -> Body:
    return {"run": run, "release": release.to_dict(), "privacy_model": privacy_model.to_dict()}


def _privacy_model(body: Body) -> PrivacyModel:
    """Return the privacy model of a reservation; older ledgers called it the setting."""
    return PrivacyModel.from_dict(body["privacy_model" if "privacy_model" in body else "setting"])
