"""What a plan comes to at one site: by its own accountant, within its owner's policy and budget."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.core.units import Unit
from fedveil.data.federation import Federation
from fedveil.methods.recipes.sections import ModelSection
from fedveil.planning.limits import taken_from_records
from fedveil.planning.own_budgets import own_guarantee, own_scale
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Guarantee
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.plan_document import PlanDocument, parameters, planned
from fedveil_federation.deploy.policy import Policy
from fedveil_federation.deploy.scoring import Counting, Scoring
from fedveil_federation.deploy.statistics import Statistics, Tallying
from fedveil_federation.deploy.work import Training, Work, scheduled
from fedveil_federation.secagg.device_store import DeviceStore
from fedveil_federation.secagg.roster import Roster


class Examiner:
    """Looks at plans for one site; refuses those that do not fit, with the reason."""

    def __init__(
        self,
        number: int,
        members: Members,
        store: DeviceStore,
        policy: Policy,
        data: Federation,
        randomness: Randomness,
    ) -> None:
        self._number, self._members, self._store, self._policy = number, members, store, policy
        self._data, self._randomness = data, randomness
        self._taken = taken_from_records(data)

    def examined(self, data: bytes) -> tuple[Work, Roster, float]:
        """Hold a plan to the owner's policy and lifetime budget.

        Returns:
            What this site is to do for it, whose keys it works with, and what all runs together
            will have cost after it.
        """
        document = PlanDocument.from_bytes(data)
        roster = self._check_facts(document)
        work: Work
        if document.scoring.get("columns"):
            asked = Statistics.about(*_counts(document), self._data.encoder)
            self._policy.check_statistics()
            self._check_counts(document, asked)
            work = Tallying(document, asked, self._data, self._randomness)
        elif document.scoring:
            model = self._at_home(document.parsed().model)
            scoring = self._scored(document, model)
            work = Counting(document, scoring, model, self._data, self._randomness)
        else:
            plan, scale = self._planned(document)
            work = Training(document, plan, self._number, self._data, self._randomness, scale)
        return work, roster, self._check_lifetime(work)

    def _check_facts(self, document: PlanDocument) -> Roster:
        """Whether the plan is about this federation, its members and this site's kind of data."""
        if _series(document.version) != _series(version("fedveil")):
            raise ConfigError(
                f"plan: made by fedveil {document.version}, this site runs {version('fedveil')}. "
                "Install the same minor series at both."
            )
        facts, data, members = document.facts, self._data, self._members
        if facts.name != members.federation:
            raise ConfigError(f"plan: for federation {facts.name!r}, not this one")
        if len(facts.sizes) != len(members.sites):
            raise ConfigError(
                f"plan: {len(facts.sizes)} sites, the members' list has {len(members.sites)}"
            )
        known = (str(data.task), data.classes, data.input_shape)
        if (facts.task, facts.classes, facts.input_shape) != known:
            raise ConfigError("plan: its schema does not fit this site's rows")
        if facts.agreement != members.agreement:
            raise ConfigError("plan: its schema is not the one that this site has agreed to")
        roster = Roster(members.secagg_name, members.pinned, self._store)
        try:
            roster.admit(*document.key_cards)
        except ValueError:
            raise ConfigError("plan: key cards are not hexadecimal") from None
        if len(roster) != len(members.sites):
            raise ConfigError(f"plan: key cards of {len(roster)} sites, need all")
        own = self._store.enrol(members.secagg_name, self._number)
        if roster.get(self._number).version != own.version:
            raise PrivacyRefusal(
                "the plan has a key for masks that this site has renewed since",
                "stop this run and start another",
            )
        return roster

    def _planned(self, document: PlanDocument) -> tuple[Plan, float]:
        """The plan, and the share of its clip, or of its coins' bias, that this site keeps to."""
        recipe, federation = document.parsed(), document.facts.federation()
        name = recipe.model.name
        if name == "auto":
            raise ConfigError("model.name: say which; 'auto' is no name")
        recipe = replace(recipe, model=self._at_home(recipe.model))
        self._policy.check_recipe(recipe, name, parameters(recipe.model, federation))
        plan = planned(recipe, federation)
        guarantee, model = plan.guarantee, plan.privacy_model
        if guarantee is None or model is None:
            raise PrivacyRefusal("the plan guarantees nothing", "ask with a private method")
        self._check_stated(document, guarantee)
        scale, budget = 1.0, self._policy.budget
        if budget.scale and guarantee.epsilon > budget.epsilon:
            # From public numbers alone, and before the first round.
            scale = own_scale(plan.private_noise, budget.epsilon, model, guarantee.delta)
            guarantee = own_guarantee(plan.private_noise, scale, model, guarantee.delta)
        self._policy.check(guarantee, model, plan.secure_sums)
        self._check_size(document, model.unit)
        turns = [n for n in range(plan.method.rounds) if self._number in (scheduled(plan, n) or ())]
        self._policy.check_turns(turns)
        return plan, scale

    def _at_home(self, model: ModelSection) -> ModelSection:
        """Return the model with this site's own names of the public weights in it."""
        if model.start is not None:
            model = replace(model, start=str(self._policy.start(model.start)))
        if model.backbone is not None:
            own = self._policy.backbone(model.backbone, model.backbone_head)
            model = replace(model, backbone=own)
        return model

    def _scored(self, document: PlanDocument, model: ModelSection) -> Scoring:
        size = parameters(model, document.facts.federation())
        self._policy.check_evaluation(model.name, size)
        scoring = Scoring(*_counts(document))
        self._check_counts(document, scoring)
        if not len(self._data.test):
            raise ConfigError("evaluation: this site holds no rows out")
        return scoring

    def _check_counts(self, document: PlanDocument, asked: Scoring) -> None:
        guarantee = asked.guarantee()
        self._policy.check(guarantee, guarantee.privacy_model, asked.sums)
        self._check_stated(document, guarantee)
        self._check_size(document, Unit.RECORD)

    def _check_stated(self, document: PlanDocument, found: Guarantee) -> None:
        if found.epsilon > document.epsilon or found.delta > document.delta:
            raise PrivacyRefusal(
                f"the hub states epsilon {document.epsilon:.6g} at delta {document.delta:.3g}, "
                f"this site computes {found.epsilon:.6g} at {found.delta:.3g}",
                "state what the plan costs",
            )

    def _check_size(self, document: PlanDocument, unit: Unit) -> None:
        if unit is not Unit.CLIENT and self._taken:
            raise PrivacyRefusal(
                f"one {unit} of this site is more than one gradient: {self._taken[0]}",
                "read the site's rows by a public schema, with declared classes",
            )
        if unit is Unit.PERSON and self._data.train.persons is None:
            raise PrivacyRefusal(
                "the plan protects persons, and this site does not know which person a row is of",
                "its owner can join with --person-column",
            )
        own, what = 1, "records"
        if unit is Unit.RECORD:
            own = len(self._data.train)
        if unit is Unit.PERSON:
            own, what = int(self._data.persons.sizes[0]), "persons"
        if document.facts.sizes[self._number] != own:
            raise ConfigError(f"plan: it states another number of {what} than this site has agreed")

    def _check_lifetime(self, work: Work) -> float:
        """Return the lifetime epsilon after what is left of a run, if the budget allows it."""
        taken = self._store.ledger.runs().get(work.document.digest, 0) // len(work.terms)
        left = work.participations - taken
        if left > 0:
            model = next(iter(work.terms.values())).privacy_model
            releases = (work.charged(one).release for one in work.terms.values())
            rest = [replace(one, rounds=left, participations=left) for one in releases]
            return self._store.ledger.afford(rest, model)
        return self._store.ledger.spent()


def _counts(document: PlanDocument) -> tuple[Facts, float, float, int]:
    """Return the counts that a plan asks for."""
    noise, colluders = document.scoring.get("noise"), document.scoring.get("colluders")
    if type(noise) is not float or type(colluders) is not int:
        raise ConfigError("plan: scoring needs noise and colluders")
    return document.facts, noise, document.delta, colluders


def _series(number: str) -> list[str]:
    """Return the part of a version that must be the same at hub and site.

    Whatever differs within a series shows in the plan: a site works noise and epsilon out itself.
    """
    return number.split(".")[:2]
