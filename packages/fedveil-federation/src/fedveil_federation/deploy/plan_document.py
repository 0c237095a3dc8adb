"""A plan as data: all that a site needs to work out, by itself, what it is asked to do.

It holds a resolved recipe, public facts about the federation and everybody's key cards; no code and
no weights. Hub and guards make the same `Plan` of it, each with its own accountant.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedveil.core.canonical import canonical
from fedveil.core.errors import ConfigError
from fedveil.core.files import digest_of
from fedveil.core.units import Unit
from fedveil.data.federation import Federation
from fedveil.methods.recipes.sections import EngineSection, EvaluationSection, ModelSection
from fedveil.methods.recipes.values import build
from fedveil.methods.registry import METHODS
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import features_of, model_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import DataSection, Recipe
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.secure_sums.aggregation import COUNT, UPDATE
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.run.aggregator import Summands
from fedveil.training.client.local_training import BatchKind
from fedveil.training.models.backbone import BackboneFeatures
from fedveil.training.models.features import Featurizer, ScatteringFeatures, with_features
from fedveil.training.models.patches import PatchFeatures
from fedveil.training.models.random_features import RandomFeatures
from fedveil.training.models.scattering import Scattering
from fedveil.training.models.zoo import own_name
from fedveil_federation.deploy.facts import MAX_PLAN, Facts, plan_digest
from fedveil_federation.secagg.privacy_terms import PrivacyTerms

MOST_ANGLES, MOST_FEATURES = 32, 16  # what a hub may ask a site to work out
MOST_WHITENED = 1 << 14  # features, and the most directions, each of 2.5 drawings held at once:
MOST_DIRECTIONS = 2048
MOST_COMPARED = 1 << 22  # patches times pixels of one image
MOST_DRAWN = 1 << 23  # random features times inputs of one example
MOST_PERSONS = 1 << 22  # of all sites together, whom a plan counts one by one
MOST_PIXELS = 1024  # height and width of what a public network sees
_OWN = (DataSection(), EngineSection(), EvaluationSection())
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class PlanDocument:
    """What the hub proposes. Rounds of its secure sums are numbered from `first_round`: in one
    federation no number is used twice. `epsilon`, `delta`: what the hub says it comes to.
    `scoring`: nothing is trained, but a model is evaluated on rows that sites hold out."""

    version: str
    run: str
    recipe: Mapping[str, Any]
    facts: Facts
    cards: tuple[str, ...]  # of all sites, in hexadecimal
    first_round: int
    epsilon: float
    delta: float
    scoring: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return canonical(asdict(self))

    @property
    def key_cards(self) -> list[bytes]:
        return [bytes.fromhex(card) for card in self.cards]

    @property
    def digest(self) -> str:
        """The name of the run, in every ledger and under every round."""
        return plan_digest(self.to_bytes())

    @staticmethod
    def from_bytes(data: bytes) -> PlanDocument:
        if len(data) > MAX_PLAN:
            raise ConfigError(f"plan: {len(data)} bytes, at most {MAX_PLAN} are taken")
        try:
            found: PlanDocument = build(PlanDocument, json.loads(data), "plan")
            if not (math.isfinite(found.epsilon) and math.isfinite(found.delta)):
                raise ValueError("epsilon, delta")
            if not 0 <= found.first_round < 2**32:
                raise ValueError("first_round")
            if found.to_bytes() != data:
                raise ValueError("there is another way to write it")
        except (ValueError, TypeError, RecursionError, ConfigError) as error:
            raise ConfigError(f"plan: cannot be read: {str(error)[:200]}") from None
        return found

    def parsed(self) -> Recipe:
        """The recipe, with defaults where it is silent. Files and speed are each party's own: what
        a site said of a path of the hub's choice would tell what lies on its disk."""
        recipe = recipes.parse(self.recipe)
        if (recipe.data, recipe.engine, recipe.evaluation) != _OWN:
            raise ConfigError("plan: data, engine and evaluation are each party's own")
        model = recipe.model
        if model.start is not None and not _DIGEST.fullmatch(model.start):
            raise ConfigError("plan: model.start names a file, and not its SHA-256")
        if model.backbone_weights is not None or not _DIGEST.fullmatch(model.backbone or "0" * 64):
            # Loading a network runs code and reads files, which the hub must not choose.
            raise ConfigError("plan: model.backbone names a network, and not its SHA-256")
        recipe = recipes.with_defaults(replace(recipe, model=replace(model, start=None)))
        return replace(recipe, model=replace(recipe.model, start=model.start))

    def terms(self, plan: Plan) -> dict[str, PrivacyTerms]:
        """Return the cost of one participation, by the purpose of each of its sums."""
        return round_terms(plan, self.digest)


def resolved(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """Return the recipe as sites get it.

    Noise is decided, public weights are named by their SHA-256, and nothing is said about the hub's
    data or speed.
    """
    privacy = replace(
        recipe.privacy, epsilon=None, noise_multiplier=plan.noise_multiplier, delta=plan.delta
    )
    model, featurizer = recipe.model, plan.federation.featurizer
    model = replace(model, name=own_name(model.name, plan.federation.task))
    if model.start is not None:
        model = replace(model, start=digest_of(model.start))
    if isinstance(featurizer, Featurizer) and isinstance(featurizer.features, BackboneFeatures):
        model = replace(model, backbone=featurizer.features.digest, backbone_weights=None)
    plain = replace(
        recipe,
        model=model,
        privacy=privacy,
        data=DataSection(),
        engine=EngineSection(),
        evaluation=EvaluationSection(),
    )
    return recipes.to_table(plain)


def seen(model: ModelSection, federation: Federation) -> Federation:
    """The federation as the model of a recipe sees it, whose features may not cost too much."""
    chosen, shape = features_of(model), federation.input_shape
    if chosen is None:
        return federation
    if not isinstance(chosen, RandomFeatures) and len(shape) not in (2, 3):
        raise ConfigError(f"model.features: {model.features or 'backbone'} needs images")
    for key, number, most in _costs(chosen, shape):
        if number > most:
            raise ConfigError(f"model.{key}: {number:,} for one example; sites take {most:,}")
    return with_features(federation, chosen)


def _costs(chosen: Any, shape: tuple[int, ...]) -> Iterator[tuple[str, int, int]]:
    """Yield what a model's features take of a site, and the most that it gives: by recipe key."""
    inputs = math.prod(shape)
    if isinstance(chosen, RandomFeatures):
        yield "width", chosen.width * inputs, MOST_DRAWN
    if isinstance(chosen, BackboneFeatures):
        yield "pixels", chosen.pixels or 0, MOST_PIXELS
    if isinstance(chosen, PatchFeatures):
        yield "patches", chosen.patches * math.prod(shape[:2]), MOST_COMPARED
    if isinstance(chosen, PatchFeatures | ScatteringFeatures):
        yield "directions", chosen.directions or 0, MOST_DIRECTIONS
    if isinstance(chosen, ScatteringFeatures):
        made = Scattering(shape[0], shape[1], chosen.scales, chosen.angles, chosen.order)
        numbers = math.prod(made.shape) * math.prod(shape[2:])
        yield "angles", chosen.angles, MOST_ANGLES
        yield "features", numbers, MOST_FEATURES * inputs
        yield "whiten", 0 if chosen.whiten is None else numbers, MOST_WHITENED


def parameters(model: ModelSection, federation: Federation) -> int:
    """Return how many parameters a model would have, without making it."""
    federation = seen(model, federation)
    try:
        with torch.device("meta"):
            module = model_of(model, federation)
    except (RuntimeError, OverflowError):
        raise ConfigError("model: its size is beyond all bounds") from None
    return sum(parameter.numel() for parameter in module.parameters())


def planned(recipe: Recipe, federation: Federation) -> Plan:
    """Return the plan of a recipe, if it is one that sites can carry out today.

    Sites keep ledgers about replaced records or persons, for which secret batches have no proof
    under noise shares. So batches are secret only where the recipe asks for that, and not by
    default. Where persons are protected, each row of the stand-in is one of them: how many there
    are is public, and who is at several sites is not known to anybody.
    """
    if recipe.privacy.unit == Unit.PERSON:
        if (persons := len(federation.train)) > MOST_PERSONS:
            raise ConfigError(f"facts: {persons:,} persons; sites plan for {MOST_PERSONS:,}")
        everybody = replace(federation.train, persons=np.arange(persons))
        federation = replace(federation, train=everybody)
    training = recipe.training
    secret = METHODS.find(training.method, "training.method").secret_batches
    if secret and training.batches is None and training.batch_rate is None:
        recipe = replace(recipe, training=replace(training, batches=BatchKind.SHUFFLED.value))
    plan = plan_of(recipe, federation)
    noise, sums = plan.noise, plan.secure_sums
    if plan.seed is not None:
        raise ConfigError("seed: a simulation protects nobody; leave it out across machines")
    if noise is None:
        raise ConfigError(f"training.method: {plan.method.name!r} adds no noise: nobody is safe")
    if plan.trusted_parts:
        raise ConfigError("privacy.trusted_parts: sites trust fedveil's own parts only; remove it")
    if noise.count is not None and sums is None:
        raise ConfigError("privacy.clip_quantile: sites follow a tracked clip under masked sums")
    if noise.count is not None and plan.sampling.coin_rate < 1:
        raise ConfigError(
            "privacy.clip_quantile: sites pay for each sum, and under secret coins a count and an "
            "update are one event. Leave it out."
        )
    if plan.scales is not None or plan.rates:
        raise ConfigError(
            "privacy.budgets, privacy.epsilon_column: each site keeps its own. Set [budget] scale "
            "= true in its policy."
        )
    if plan.method.voting is not None or plan.pipeline.statistic is not None:
        raise ConfigError(f"training.method: sites send updates alone, not {plan.method.name}")
    if sums is None and not noise.single_uploads:
        raise ConfigError(
            "aggregation: sites add noise shares under a masked sum, or (client-noise) all noise "
            'of their own, or trust the hub with it (privacy.trust = "central")'
        )
    if any(release.mechanism.bands > 1 for release in plan.releases(1)):
        raise ConfigError("privacy.correlated: sites pay round by round; leave it out")
    if any(release.amplified for release in plan.releases(1)):
        raise ConfigError(
            "training.sampling: sites know when they are asked, so a secret cohort counts for "
            "nothing; use everyone, balanced or round-robin"
        )
    if sums is not None and sums.mode is not SecureMode.MASKED:
        raise ConfigError("aggregation.secure: across machines sums are masked; set it to 'masked'")
    return plan


def round_terms(plan: Plan, run: str) -> dict[str, PrivacyTerms]:
    """One participation in a plan, without what only people read."""
    noise, model = plan.noise, plan.privacy_model
    if noise is None or model is None:
        raise ConfigError("plan: it promises nothing")
    model = replace(model, declared=(), not_covered=())
    found = {UPDATE: PrivacyTerms(noise.release(1), model, run)}
    if noise.count is not None:
        found[COUNT] = PrivacyTerms(noise.count.release(1), model, run)
    return found


def terms_at(terms: Mapping[str, PrivacyTerms], summands: Summands) -> PrivacyTerms:
    """Return the terms of a round's secure sum: under a tracked clip, its clip and grid.

    Noise and update of a site are in proportion to the clip, and integers on its grid. A site that
    was told a finer grid than the others would not be covered by their noise; what the sum states
    is the same for all.
    """
    if summands.purpose == COUNT or COUNT not in terms:
        return terms[summands.purpose]
    stated, clip_norm, integers = terms[UPDATE], summands.clip_norm, summands.integers
    law = stated.release.mechanism
    if clip_norm is None or integers is None or not isinstance(law, DiscreteGaussianSum):
        raise ConfigError("plan: a tracked clip goes with noise shares on a grid")
    now = replace(
        law,
        clip_norm=clip_norm,
        granularity=integers.grid.granularity,
        share_std=integers.share_std,
    )
    return replace(stated, release=replace(stated.release, mechanism=now))
