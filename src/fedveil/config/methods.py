"""Methods by name: from the words of a recipe to the parts of a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TypedDict, TypeVar

from fedveil.client.local_training import LearningRate, LocalTraining, Schedule
from fedveil.client.rotation import Rotation
from fedveil.config.recipe import NOT_PRIVATE, Recipe
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods import ae_dpfl, ddgauss, dp_fedavg, fedavg
from fedveil.methods import bounded_sparse as cheng
from fedveil.methods import client_noise as fu
from fedveil.methods import gradient_noise as hu
from fedveil.methods import laplacian_smoothing as liang
from fedveil.methods.parts.about import About
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.aggregation import Aggregation, Secure
from fedveil.methods.parts.central_noise import CentralNoise
from fedveil.methods.parts.distributed_noise import DistributedNoise
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.method import CohortRule, Method, Scheme, Voting
from fedveil.methods.parts.noise_placement import Noise, NoisePlacement
from fedveil.methods.parts.noisy_votes import VoteNoise
from fedveil.privacy.clipping import Clip
from fedveil.server.optimizers import Adam, Optimizer, Sgd
from fedveil.server.smoothing import Order, Smoothing

Choice = TypeVar("Choice", bound=StrEnum)

# Recipe keys that only some methods understand; setting one elsewhere is refused, not ignored.
_BLUR, _LUS = "training.penalty", "training.sparsity"
_CLIP = ("privacy.clip_quantile", "privacy.clip_rate", "privacy.clip_noise")
_SHARES = ("privacy.colluders", "privacy.honest_shares", "privacy.bits")
_CENTRAL = ("privacy.noise", "privacy.public_clients")
_UPDATES = (*_CENTRAL, "privacy.trust", "privacy.adjacency", "privacy.rotate", *_SHARES)


@dataclass(frozen=True)
class Entry:
    """A method, how a recipe makes it, and which optional keys it understands."""

    about: About
    build: Callable[[Recipe], Method]
    keys: tuple[str, ...] = ()


def method_of(recipe: Recipe) -> Method:
    """The method that a recipe (with its defaults) describes; refuses what makes no sense."""
    name = recipe.training.method
    if name not in METHODS:
        raise ConfigError(
            f"training.method: unknown method {name!r}; there are {', '.join(METHODS)}"
        )
    _check_keys(recipe, METHODS[name])
    _check_order(recipe)
    return replace(METHODS[name].build(recipe), aggregation=_aggregation(recipe))


def _fedavg(recipe: Recipe) -> Method:
    return fedavg.fedavg(**_common(recipe), **_weights(recipe))


def _fedsgd(recipe: Recipe) -> Method:
    return fedavg.fedsgd(**_common(recipe), **_weights(recipe))


def _fedprox(recipe: Recipe) -> Method:
    penalty = recipe.training.penalty
    return fedavg.fedprox(
        **_common(recipe), **_weights(recipe), penalty=0.1 if penalty is None else penalty
    )


def _dp_fedavg(recipe: Recipe) -> Method:
    method = dp_fedavg.dp_fedavg(
        **_common(recipe),
        **_weights(recipe),
        clip=_clip(recipe),
        placement=_protection(recipe, Trust.CENTRAL),
        sparsity=recipe.training.sparsity or 0.0,
        tracking=_tracking(recipe),
    )
    if not recipe.training.penalty:
        return method
    return replace(_cheng(recipe), name=method.name, pipeline=method.pipeline)


def _cheng(recipe: Recipe) -> Method:
    training = recipe.training
    return cheng.cheng(
        **_common(recipe),
        **_weights(recipe),
        clip=_clip(recipe),
        penalty=0.4 if training.penalty is None else training.penalty,
        sparsity=0.7 if training.sparsity is None else training.sparsity,
        placement=_protection(recipe, Trust.CENTRAL),
        tracking=_tracking(recipe),
    )


def _liang(recipe: Recipe, smooth: bool) -> Method:
    common = _common(recipe)
    if smooth and common["smoothing"] is None:
        common["smoothing"] = _smoothing(recipe, strength=1.0)
    elif not smooth and common["smoothing"] is not None:
        raise ConfigError("server.smoothing: dp-fed goes without; use method dp-fed-ls")
    return liang.dp_fed(
        **common,
        **_weights(recipe),
        clip=_clip(recipe),
        placement=_protection(recipe, Trust.CENTRAL),
        sparsity=recipe.training.sparsity or 0.0,
    )


def _ddgauss(recipe: Recipe) -> Method:
    privacy = recipe.privacy
    return ddgauss.ddgauss(
        **_common(recipe),
        **_weights(recipe),
        clip=_clip(recipe),
        bits=privacy.bits,
        adjacency=_adjacency(recipe) or Adjacency.ZERO_OUT,
        colluders=privacy.colluders,
        honest_shares=privacy.honest_shares,
        sparsity=recipe.training.sparsity or 0.0,
        tracking=_tracking(recipe),
    )


def _fu(recipe: Recipe) -> Method:
    trust = _trust(recipe, Trust.LOCAL)
    return fu.fu(
        **_common(recipe),
        clip_norm=recipe.privacy.clip_norm,
        noise=_noise(recipe),
        adjacency=_adjacency(recipe) or Adjacency.REPLACE,
        placement=None if trust is Trust.LOCAL else _protection(recipe, trust),
    )


def _hu(recipe: Recipe) -> Method:
    privacy = recipe.privacy
    trust = _trust(recipe, Trust.DISTRIBUTED)
    unit = Unit.RECORD if privacy.unit is None else named(Unit, "privacy.unit", privacy.unit)
    if trust is Trust.CENTRAL or (unit is Unit.CLIENT and trust is Trust.LOCAL):
        raise ConfigError(
            f"privacy.trust: {trust} is not what hu is about; use distributed (secure sum)"
            + ("" if unit is Unit.CLIENT else " or local (without)")
        )
    return hu.hu(
        **_common(recipe),
        clip_norm=privacy.clip_norm,
        unit=unit,
        secure_sum=trust is Trust.DISTRIBUTED,
        adjacency=_adjacency(recipe),
        colluders=privacy.colluders,
        honest_shares=privacy.honest_shares,
    )


def _dp_sgd(recipe: Recipe) -> Method:
    privacy = recipe.privacy
    trust = _trust(recipe, Trust.DISTRIBUTED)
    if trust is Trust.CENTRAL:
        raise ConfigError("privacy.trust: dp-sgd has no trusted party; use distributed or local")
    return hu.dp_sgd(
        **_common(recipe),
        clip_norm=privacy.clip_norm,
        secure_sum=trust is Trust.DISTRIBUTED,
        adjacency=_adjacency(recipe),
        colluders=privacy.colluders,
        honest_shares=privacy.honest_shares,
    )


def _ae_dpfl(recipe: Recipe) -> Method:
    privacy, voting = recipe.privacy, recipe.voting
    noise = VoteNoise(
        _trust(recipe, Trust.DISTRIBUTED),
        _adjacency(recipe),
        privacy.colluders,
        privacy.honest_shares,
    )
    return ae_dpfl.ae_dpfl(
        local=_local(recipe),
        voting=Voting(voting.questions, voting.epochs, voting.batch_size, voting.learning_rate),
        placement=noise,
    )


METHODS: dict[str, Entry] = {
    entry.about.name: entry
    for entry in (
        Entry(fedavg.FEDAVG, _fedavg),
        Entry(fedavg.FEDSGD, _fedsgd),
        Entry(fedavg.FEDPROX, _fedprox, (_BLUR,)),
        Entry(dp_fedavg.ABOUT, _dp_fedavg, (_BLUR, _LUS, *_CLIP, *_UPDATES)),
        Entry(fu.ABOUT, _fu, _UPDATES),
        Entry(hu.HU, _hu, ("privacy.unit", "privacy.trust", "privacy.adjacency", *_SHARES[:2])),
        Entry(hu.DP_SGD, _dp_sgd, ("privacy.trust", "privacy.adjacency", *_SHARES[:2])),
        Entry(liang.DP_FED, lambda recipe: _liang(recipe, smooth=False), (_LUS, *_UPDATES)),
        Entry(liang.DP_FED_LS, lambda recipe: _liang(recipe, smooth=True), (_LUS, *_UPDATES)),
        Entry(cheng.ABOUT, _cheng, (_BLUR, _LUS, *_CLIP, *_UPDATES)),
        Entry(ddgauss.ABOUT, _ddgauss, (_LUS, *_CLIP, "privacy.adjacency", *_SHARES)),
        Entry(ae_dpfl.ABOUT, _ae_dpfl, ("privacy.trust", "privacy.adjacency", *_SHARES[:2])),
    )
}


def named(kind: type[Choice], key: str, value: str | None) -> Choice:
    """The member of an enumeration that a recipe names."""
    try:
        return kind(value or "")
    except ValueError:
        raise ConfigError(f"{key}: unknown {value!r}; there are {', '.join(kind)}") from None


class _Common(TypedDict):
    rounds: int
    cohort: CohortRule
    local: LocalTraining
    optimizer: Optimizer
    smoothing: Smoothing | None


class _Weights(TypedDict):
    by_examples: bool
    weight_cap: int | None


def _common(recipe: Recipe) -> _Common:
    training = recipe.training
    scheme = named(Scheme, "training.sampling", training.sampling)
    return {
        "rounds": training.rounds,
        "cohort": CohortRule(
            scheme,
            training.cohort,
            training.rate,
            training.cohort_cap,
            recipe.privacy.public_clients,
        ),
        "local": _local(recipe),
        "optimizer": _optimizer(recipe),
        "smoothing": _smoothing(recipe),
    }


def _weights(recipe: Recipe) -> _Weights:
    training = recipe.training
    if training.weighting not in ("uniform", "examples"):
        raise ConfigError(
            f"training.weighting: unknown {training.weighting!r}; there are uniform, examples"
        )
    return {
        "by_examples": training.weighting == "examples",
        "weight_cap": training.weight_cap,
    }


def _local(recipe: Recipe) -> LocalTraining:
    training = recipe.training
    schedule = named(Schedule, "training.schedule", training.schedule)
    return LocalTraining(
        learning_rate=LearningRate(training.learning_rate, schedule, training.decay),
        steps=training.local_steps,
        epochs=training.local_epochs,
        batch_size=training.batch_size,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def _optimizer(recipe: Recipe) -> Optimizer:
    server = recipe.server
    if server.optimizer == "sgd":
        return Sgd(server.learning_rate, server.momentum)
    if server.optimizer in ("adam", "yogi"):
        return Adam(server.learning_rate, server.momentum, yogi=server.optimizer == "yogi")
    raise ConfigError(
        f"server.optimizer: unknown optimizer {server.optimizer!r}; there are sgd, adam, yogi"
    )


def _smoothing(recipe: Recipe, strength: float | None = None) -> Smoothing | None:
    server = recipe.server
    strength = server.smoothing if strength is None else strength
    order = named(Order, "server.smoothing_order", server.smoothing_order)
    return Smoothing(strength, server.smoothing_flat, order) if strength else None


def _clip(recipe: Recipe) -> Clip:
    return Clip(recipe.privacy.clip_norm, 1 if _noise(recipe) is Noise.LAPLACE else 2)


def _noise(recipe: Recipe) -> Noise:
    return named(Noise, "privacy.noise", recipe.privacy.noise)


def _trust(recipe: Recipe, usual: Trust) -> Trust:
    trust = recipe.privacy.trust
    return usual if trust is None else named(Trust, "privacy.trust", trust)


def _adjacency(recipe: Recipe) -> Adjacency | None:
    adjacency = recipe.privacy.adjacency
    return None if adjacency is None else named(Adjacency, "privacy.adjacency", adjacency)


def _tracking(recipe: Recipe) -> AdaptiveClipping | None:
    privacy = recipe.privacy
    if privacy.clip_quantile is None:
        return None
    return AdaptiveClipping(
        _clip(recipe), privacy.clip_quantile, privacy.clip_rate, privacy.clip_noise
    )


def _protection(recipe: Recipe, usual: Trust) -> NoisePlacement:
    """Noise on updates by whoever the recipe trusts."""
    privacy, adjacency = recipe.privacy, _adjacency(recipe)
    trust, noise = _trust(recipe, usual), _noise(recipe)
    if trust is not Trust.DISTRIBUTED and (privacy.rotate or privacy.bits is not None):
        raise ConfigError("privacy.rotate, privacy.bits: only for trust distributed")
    if trust is Trust.CENTRAL:
        return CentralNoise(noise, adjacency, privacy.colluders)
    if trust is Trust.LOCAL:
        return LocalNoise(noise, adjacency or Adjacency.REPLACE)
    if noise is Noise.LAPLACE:
        raise PrivacyRefusal(
            "Laplace noise is not a sum of equal independent shares",
            "use privacy.noise gaussian, or trust local or central",
        )
    return DistributedNoise(
        rotation=Rotation() if privacy.rotate else None,
        bits=privacy.bits,
        adjacency=adjacency or Adjacency.ZERO_OUT,
        colluders=privacy.colluders,
        honest_shares=privacy.honest_shares,
    )


def _aggregation(recipe: Recipe) -> Aggregation:
    chosen = recipe.aggregation
    secure = None if chosen.secure is None else named(Secure, "aggregation.secure", chosen.secure)
    return Aggregation(
        secure,
        chosen.dropout,
        chosen.max_dropout,
        chosen.min_honest,
        chosen.sparse,
        chosen.honest_server,
    )


def _check_keys(recipe: Recipe, entry: Entry) -> None:
    optional = {key for other in METHODS.values() for key in other.keys}
    private = recipe.training.method not in NOT_PRIVATE
    for key in sorted(optional - set(entry.keys)):
        section, name = key.split(".")
        given = getattr(recipe, section)
        default = next(field.default for field in fields(given) if field.name == name)
        if getattr(given, name) != default and (private or section != "privacy"):
            users = ", ".join(n for n, other in METHODS.items() if key in other.keys)
            raise ConfigError(f"{key}: method {entry.about.name} does not use it; {users} do")


def _check_order(recipe: Recipe) -> None:
    """Orders of things that would leave values without a proof."""
    private = recipe.training.method not in NOT_PRIVATE
    upload, place = recipe.training.upload, recipe.server.smoothing_place
    if upload not in ("dense", "sparse"):
        raise ConfigError(f"training.upload: unknown {upload!r}; there are dense, sparse")
    if upload == "sparse" and private:
        raise PrivacyRefusal(
            "a sparse upload shows which coordinates were kept, and noise on those alone does not "
            "cover the choice, which depends on the data",
            "leave training.upload dense: noise on every coordinate, no mask is sent",
        )
    if place not in ("after-noise", "before-noise"):
        raise ConfigError(
            f"server.smoothing_place: unknown {place!r}; there are after-noise, before-noise"
        )
    if place == "before-noise" and private:
        raise PrivacyRefusal(
            "smoothing before the noise would be part of the private computation, and the noise "
            "would no longer cover the whole vector independently",
            "leave server.smoothing_place after-noise: it costs nothing there",
        )
