"""What an owner of data allows: a file at the site that no hub can change.

[budget]            # of one run
epsilon = 2.0
delta = 1e-5
scale = false       # give less (clip, or coins of records) where a run costs more, not refuse

[lifetime]          # of all runs together; it can be lowered later, not raised
epsilon = 10.0
delta = 1e-5
adjacency = "replace"  # of records or persons; "zero-out" allows secret batches under noise shares

[allow]
methods = ["dp-fedavg", "gradient-noise"]
models = ["logistic", "mlp"]
units = ["client", "record"]  # or "person" in the place of "record"
trust = ["local", "distributed"]
parameters = 1_000_000
rounds = 200
separation = 1      # rounds from one participation to the next, at least
evaluation = false  # count how well models do on rows that this site holds out
statistics = false  # count how the values of each column are spread
honest_hub = false  # secure sums in which nobody checks whom the hub calls lost
starts = []         # files of public weights that models may start from: full paths
backbones = []      # public networks whose features models may use, as in model.backbone

[cohort]
minimum = 3         # sites in a round
honest_shares = 2   # noise shares that the guarantee may count on, at least
colluders = 1       # sites that may work with the hub, and whose noise does not count, at least

[ask]
hubs = ["..."]      # public keys; none: the hub of the members' list
approve = false     # every plan waits for the owner's yes (fedveil site approve)
persons = 1         # how many persons must say it, each with a passphrase (fedveil site person)

[show]
budget = false      # tell the hub what is left of the lifetime's budget
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.files import digest_of
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.recipes.values import build
from fedveil.planning.recipe import Recipe
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.releases import PrivacyModel
from fedveil.privacy.rounding import at_most
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil_federation.deploy.facts import MAX_PLAN


@dataclass(frozen=True)
class BudgetPolicy:
    epsilon: float
    delta: float = 1e-5
    scale: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0 and 0 <= self.delta < 1):
            raise ConfigError("policy: budget.epsilon must be above 0, budget.delta in [0, 1)")


@dataclass(frozen=True)
class AllowPolicy:
    methods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    units: tuple[str, ...] = (Unit.CLIENT,)
    trust: tuple[str, ...] = (Trust.LOCAL, Trust.DISTRIBUTED)
    parameters: int = 1_000_000
    rounds: int = 1_000
    separation: int = 1
    evaluation: bool = False
    statistics: bool = False
    honest_hub: bool = False
    starts: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, kind in (("units", Unit), ("trust", Trust)):
            for one in getattr(self, key):
                if one not in tuple(kind):
                    known = ", ".join(kind)
                    raise ConfigError(f"policy: allow.{key}: unknown {one!r}; there are {known}")
        if {Unit.RECORD, Unit.PERSON} <= set(self.units):
            raise ConfigError(
                "policy: allow.units: plans for records state how many of them there are, which "
                "plans for persons hide. Name record or person, not both."
            )
        for path in self.starts:
            if not Path(path).is_absolute():
                raise ConfigError(f"policy: allow.starts: {path!r} is not a full path")
        for name in self.backbones:
            file = name.rpartition(":")[0]
            if file.endswith(".py") and not Path(file).is_absolute():
                raise ConfigError(f"policy: allow.backbones: {name!r} is not a full path")


@dataclass(frozen=True)
class CohortPolicy:
    minimum: int = 3
    honest_shares: int = 2
    colluders: int = 0


@dataclass(frozen=True)
class AskPolicy:
    hubs: tuple[str, ...] = ()
    approve: bool = False  # every plan waits for the owner's yes
    persons: int = 1  # who must say it

    def __post_init__(self) -> None:
        if self.persons < 1 or (self.persons > 1 and not self.approve):
            raise ConfigError(
                f"policy: ask.persons = {self.persons}: need 1 or more, and ask.approve = true "
                "for more than one."
            )


@dataclass(frozen=True)
class LifetimePolicy:
    epsilon: float | None = None
    delta: float = 1e-5
    adjacency: str | None = None  # None: zero-out where only clients are protected, else replace

    def __post_init__(self) -> None:
        if self.adjacency not in (None, Adjacency.REPLACE, Adjacency.ZERO_OUT):
            raise ConfigError(
                f"policy: lifetime.adjacency = {self.adjacency!r}. Write replace or zero-out."
            )
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigError(f"policy: lifetime.epsilon = {self.epsilon}: need a number above 0")
        if not 0 < self.delta < 1:
            raise ConfigError(f"policy: lifetime.delta = {self.delta}: need a number in (0, 1)")


@dataclass(frozen=True)
class ShowPolicy:
    budget: bool = False


@dataclass(frozen=True)
class Policy:
    """An owner's rules. Every reason for a refusal is given, not the first alone."""

    budget: BudgetPolicy
    allow: AllowPolicy = AllowPolicy()
    cohort: CohortPolicy = CohortPolicy()
    ask: AskPolicy = AskPolicy()
    show: ShowPolicy = ShowPolicy()
    lifetime: LifetimePolicy = LifetimePolicy()

    @staticmethod
    def read(path: Path) -> Policy:
        try:
            return Policy.of(tomllib.loads(path.read_text(encoding="utf-8")), f"policy {path}")
        except OSError as error:
            raise ConfigError(f"policy {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"policy {path}: not valid TOML: {error}") from None

    @staticmethod
    def of(table: dict[str, Any], what: str = "policy") -> Policy:
        """The policy in a table; what it does not name is not allowed."""
        budget = table.get("budget", {})
        if not isinstance(budget, dict) or "epsilon" not in budget:
            raise ConfigError(f"{what}: say what a run may cost: [budget], epsilon = ...")
        try:
            return cast(Policy, build(Policy, table, "policy"))
        except ConfigError as error:
            raise ConfigError(str(error).replace("recipe: ", "", 1)) from None

    @property
    def longest_request(self) -> int:
        """The bytes that a request of the hub may have: weights that are allowed, or a plan."""
        return 4 * self.allow.parameters + MAX_PLAN + (1 << 20)

    @property
    def lifetime_unit(self) -> Unit:
        """Whom the lifetime's budget is about: the smallest unit that plans may protect."""
        units = self.allow.units
        return next((one for one in (Unit.RECORD, Unit.PERSON) if one in units), Unit.CLIENT)

    @property
    def lifetime_adjacency(self) -> Adjacency:
        """Which change the lifetime's budget hides: records or persons are replaced by others."""
        whole = self.lifetime_unit is Unit.CLIENT
        usual = Adjacency.ZERO_OUT if whole else Adjacency.REPLACE
        return Adjacency(self.lifetime.adjacency or usual)

    def check_hub(self, hub: str) -> None:
        """Refuse a hub, by its public key, that the owner has not named while naming others."""
        if self.ask.hubs and hub not in self.ask.hubs:
            raise ConfigError(f"policy: ask.hubs names others than this federation's hub, {hub}")

    def check_recipe(self, recipe: Recipe, model: str, parameters: int) -> None:
        """Check what can be seen before anything is computed; `model` is its name, resolved."""
        allow, training = self.allow, recipe.training
        reasons = self._about_model(model, parameters)
        if training.method not in allow.methods:
            reasons.append(f"method {training.method!r} is none of {_listed(allow.methods)}")
        if training.rounds > allow.rounds:
            reasons.append(f"{training.rounds:,} rounds, at most {allow.rounds:,}")
        _refuse(reasons)

    def start(self, digest: str) -> Path:
        """The file of these weights; the hub is told of no other one."""
        for path in map(Path, self.allow.starts):
            with suppress(ConfigError):
                if digest_of(path) == digest:
                    return path
        raise PrivacyRefusal(
            f"the model starts from weights of SHA-256 {digest}, which this site has not",
            "if they are of public data only, its owner can get the file and name it in the "
            "policy (allow.starts)",
        )

    def backbone(self, digest: str, head: str | None) -> str:
        """Return this site's own name for a public network.

        Args:
            digest: SHA-256 of its weights, without those of its head.
            head: The layer that is left out.

        Raises:
            PrivacyRefusal: The owner has named no such network.
        """
        from fedveil.training.models.backbone import BackboneFeatures  # loads torch

        for name in self.allow.backbones:
            with suppress(ConfigError):
                if BackboneFeatures(name, backbone_head=head).digest == digest:
                    return name
        raise PrivacyRefusal(
            f"the model uses features of a network of SHA-256 {digest}, which this site has not",
            "if its weights are of public data only, its owner can get it and name it in the "
            "policy (allow.backbones)",
        )

    def check_evaluation(self, model: str, parameters: int) -> None:
        """Whether a model may be evaluated on rows that this site holds out."""
        reasons = self._about_model(model, parameters)
        if not self.allow.evaluation:
            reasons.append("no evaluation on this site's rows (allow.evaluation)")
        _refuse(reasons)

    def check_statistics(self) -> None:
        """Whether the values of this site's columns may be counted."""
        if not self.allow.statistics:
            _refuse(["no statistics of this site's columns (allow.statistics)"])

    def check(self, guarantee: Guarantee, model: PrivacyModel, sums: SecureSums | None) -> None:
        """Return this site's own computation of a plan's guarantee, and check it."""
        reasons = []
        if not guarantee.certified:
            reasons.append(f"its guarantee is not certified: {guarantee.reason}")
        if not guarantee.epsilon <= self.budget.epsilon:
            reasons.append(
                f"epsilon {at_most(guarantee.epsilon)}, at most {self.budget.epsilon:g} a run"
            )
        if not guarantee.delta <= self.budget.delta:
            reasons.append(f"delta {at_most(guarantee.delta)}, at most {self.budget.delta:g}")
        if model.unit not in self.allow.units:
            reasons.append(f"it protects a {model.unit}, not {_listed(self.allow.units)}")
        if model.trust not in self.allow.trust:
            reasons.append(f"it asks for {model.trust} trust, not {_listed(self.allow.trust)}")
        if sums is not None:
            reasons += self._about_sums(sums)
        _refuse(reasons)

    def check_turns(self, turns: Sequence[int]) -> None:
        """In which rounds a schedule asks for this site."""
        gaps = [later - former for former, later in pairwise(turns)]
        if gaps and min(gaps) < self.allow.separation:
            _refuse([f"turns {min(gaps)} rounds apart, at least {self.allow.separation}"])

    def _about_model(self, model: str, parameters: int) -> list[str]:
        allow, reasons = self.allow, []
        if model not in allow.models:
            reasons.append(f"model {model!r} is none of {_listed(allow.models)}")
        if parameters > allow.parameters:
            reasons.append(f"a model of {parameters:,} weights, at most {allow.parameters:,}")
        return reasons

    def _about_sums(self, sums: SecureSums) -> list[str]:
        rules, reasons = self.cohort, []
        if sums.cohort < rules.minimum:
            reasons.append(f"a cohort of {sums.cohort}, need {rules.minimum}")
        if sums.honest_shares < rules.honest_shares:
            reasons.append(f"sums of {sums.honest_shares} honest sites, need {rules.honest_shares}")
        if sums.params.honest_server and not self.allow.honest_hub:
            reasons.append("it takes the hub to be honest (aggregation.honest_server)")
        if sums.params.colluders < rules.colluders:
            reasons.append(
                f"it allows for {sums.params.colluders} colluding sites, need {rules.colluders}"
            )
        return reasons


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise PrivacyRefusal(
            "this site's policy refuses: " + "; ".join(reasons), "change the plan or the policy"
        )
