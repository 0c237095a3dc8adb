"""The parts that most methods are made of, from a recipe: every method's page builds on these."""

from __future__ import annotations

from enum import StrEnum
from typing import Required, TypedDict, TypeVar

from fedveil.core.arguments import one_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.central_noise import CentralNoise
from fedveil.methods.parts.correlated_noise import CorrelatedNoise
from fedveil.methods.parts.distributed_noise import DistributedNoise
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.method import CohortRule, Scheme
from fedveil.methods.parts.noise_placement import Noise, NoisePlacement
from fedveil.methods.recipes.sections import Recipe
from fedveil.privacy.clipping import Clip
from fedveil.privacy.correlated import FactorKind
from fedveil.privacy.secure_sums.aggregation import Aggregation
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.training.client.local_training import LearningRate, LocalTraining, Schedule
from fedveil.training.client.rotation import Rotation
from fedveil.training.server.averaging import Average, Averaged
from fedveil.training.server.optimizers import OPTIMIZERS, Optimizer
from fedveil.training.server.schedules import RateSchedule, Scheduled
from fedveil.training.server.smoothing import Order, Smoothing

Choice = TypeVar("Choice", bound=StrEnum)


class Rounds(TypedDict, total=False):
    """Arguments of every method that trains in rounds, beside its local training."""

    rounds: Required[int]
    cohort: Required[CohortRule]
    optimizer: Optimizer | None
    smoothing: Smoothing | None


class Averaging(Rounds, total=False):
    """Common parts of methods that may weigh updates by their clients' numbers of examples."""

    by_examples: bool
    weight_cap: int | None


class Clipped(Averaging, total=False):
    """Common parts of methods that clip updates and add noise to their sum."""

    placement: NoisePlacement | None
    sparsity: float
    tracking: AdaptiveClipping | None


class CommonOfRecipe(Rounds):
    local: Required[LocalTraining]


class AveragingOfRecipe(Averaging):
    local: Required[LocalTraining]


class ClippedOfRecipe(Clipped):
    local: Required[LocalTraining]
    clip: Required[Clip]


def common(recipe: Recipe) -> CommonOfRecipe:
    """Return what every method that trains in rounds takes."""
    training = recipe.training
    return {
        "rounds": training.rounds,
        "cohort": CohortRule(
            training.sampling or Scheme.POISSON,
            training.cohort,
            training.rate,
            training.cohort_cap,
            recipe.privacy.public_clients,
        ),
        "local": local(recipe),
        "optimizer": optimizer(recipe),
        "smoothing": smoothing(recipe, recipe.server.smoothing),
    }


def averaging(recipe: Recipe) -> AveragingOfRecipe:
    """Return the arguments of methods that may weigh updates."""
    weighting = one_of(("uniform", "examples"))("training.weighting", recipe.training.weighting)
    by_examples, cap = weighting == "examples", recipe.training.weight_cap
    return {**common(recipe), "by_examples": by_examples, "weight_cap": cap}


def clipped(recipe: Recipe) -> ClippedOfRecipe:
    """Return the arguments of methods that clip updates and add noise to their sum."""
    return {
        **averaging(recipe),
        "clip": clip(recipe),
        "placement": placement(recipe),
        "sparsity": recipe.training.sparsity or 0.0,
        "tracking": tracking(recipe),
    }


def local(recipe: Recipe) -> LocalTraining:
    training = recipe.training
    schedule = one_of(Schedule)("training.schedule", training.schedule)
    return LocalTraining(
        learning_rate=LearningRate(training.learning_rate, schedule, training.decay),
        steps=training.local_steps,
        epochs=training.local_epochs,
        batch_size=training.batch_size,
        batch_rate=training.batch_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def optimizer(recipe: Recipe) -> Optimizer:
    """Return the server's step, at a rate that may fall, with the average that it keeps."""
    server, rounds = recipe.server, recipe.training.rounds
    averages = server.average not in (None, Average.NONE)
    falls = server.schedule != RateSchedule.CONSTANT
    for key, used in (("average", averages), ("schedule", falls)):
        if getattr(server, f"{key}_setting") is not None and not used:
            raise ConfigError(
                f"server.{key}_setting: goes with server.{key}, which is {getattr(server, key)}"
            )
    build = OPTIMIZERS.find(server.optimizer, "server.optimizer")
    step: Optimizer = build(server.learning_rate, server.momentum)
    if falls:
        step = Scheduled(step, server.schedule, server.schedule_setting, rounds)
    if not averages:
        return step
    kind = one_of(Average)("server.average", server.average)
    setting = server.average_setting
    return Averaged(step, kind, _AVERAGE_SETTINGS[kind] if setting is None else setting, rounds)


_AVERAGE_SETTINGS = {Average.EXPONENTIAL: 0.9, Average.TAIL: 0.5, Average.POLYNOMIAL: 8.0}


def smoothing(recipe: Recipe, strength: float | str) -> Smoothing | None:
    """The server's smoothing with this strength; None if that is zero."""
    if not strength:
        return None
    server = recipe.server
    order = one_of(Order)("server.smoothing_order", server.smoothing_order)
    return Smoothing(strength, server.smoothing_flat, order)


def clip_norm(recipe: Recipe) -> float:
    """The clip that a recipe sets; `with_defaults` says which if it sets none."""
    if recipe.privacy.clip_norm is None:
        raise ConfigError("privacy.clip_norm: is not set")
    return recipe.privacy.clip_norm


def clip(recipe: Recipe) -> Clip:
    return Clip(clip_norm(recipe), 1 if noise(recipe) is Noise.LAPLACE else 2)


def noise(recipe: Recipe) -> Noise:
    return one_of(Noise)("privacy.noise", recipe.privacy.noise)


def trust(recipe: Recipe, usual: Trust) -> Trust:
    given = recipe.privacy.trust
    return usual if given is None else one_of(Trust)("privacy.trust", given)


def adjacency(recipe: Recipe) -> Adjacency | None:
    given = recipe.privacy.adjacency
    return None if given is None else one_of(Adjacency)("privacy.adjacency", given)


def tracking(recipe: Recipe) -> AdaptiveClipping | None:
    privacy = recipe.privacy
    if privacy.clip_quantile is None:
        if privacy.clip_highest is not None:
            raise ConfigError(
                "privacy.clip_highest: goes with privacy.clip_quantile, which is not set"
            )
        return None
    return AdaptiveClipping(
        clip(recipe),
        privacy.clip_quantile,
        privacy.clip_rate,
        privacy.clip_noise,
        privacy.clip_highest,
    )


def placement(recipe: Recipe, usual: Trust = Trust.CENTRAL) -> NoisePlacement:
    """Noise on updates by whoever the recipe trusts; `usual` if it does not say."""
    privacy, change = recipe.privacy, adjacency(recipe)
    trusted, law = trust(recipe, usual), noise(recipe)
    if trusted is not Trust.DISTRIBUTED and (privacy.rotate or privacy.bits is not None):
        raise ConfigError("privacy.rotate, privacy.bits: only for trust distributed")
    if privacy.correlated is not None:
        return _correlated(recipe, trusted)
    if privacy.bands is not None:
        raise ConfigError("privacy.bands: goes with privacy.correlated, which is not set")
    if trusted is Trust.CENTRAL:
        return CentralNoise(law, change, privacy.colluders)
    if trusted is Trust.LOCAL:
        return LocalNoise(law, change or Adjacency.REPLACE)
    if law is Noise.LAPLACE:
        raise PrivacyRefusal(
            "Laplace noise is not a sum of equal independent shares",
            "use privacy.noise gaussian, or trust local or central",
        )
    return DistributedNoise(
        rotation=Rotation() if privacy.rotate else None,
        bits=privacy.bits,
        adjacency=change or Adjacency.ZERO_OUT,
        colluders=privacy.colluders,
        honest_shares=privacy.honest_shares,
    )


def _correlated(recipe: Recipe, trusted: Trust) -> CorrelatedNoise:
    """Noise that partly cancels between rounds, fitted to what the server does with it."""
    privacy, server = recipe.privacy, recipe.server
    if trusted is not Trust.CENTRAL:
        raise PrivacyRefusal(
            f"correlated noise under {trusted} trust: every client would have to take back its own "
            "old noise, also when it is not there, and nothing is proved of that",
            "use privacy.trust central, or independent noise",
        )
    return CorrelatedNoise(
        noise(recipe),
        adjacency(recipe),
        privacy.colluders,
        one_of(FactorKind)("privacy.correlated", privacy.correlated),
        privacy.bands,
        server.momentum if server.optimizer == "sgd" else 0.0,
    )


def aggregation(recipe: Recipe) -> Aggregation:
    said = dict(vars(recipe.aggregation))
    if said["secure"] is not None:
        said["secure"] = one_of(SecureMode)("aggregation.secure", said["secure"])
    return Aggregation(**said)
