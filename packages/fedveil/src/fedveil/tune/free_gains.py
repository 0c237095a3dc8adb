"""What a recipe could have at no cost in privacy: fixed features, averages, noise that cancels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedveil.methods.parts.correlated_noise import CorrelatedNoise
from fedveil.methods.parts.noise_placement import Bounded, Drawn
from fedveil.methods.registry import METHODS
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import Recipe
from fedveil.privacy.mechanisms import Gaussian
from fedveil.training.models.zoo import own_name

_LEAST = 1.05  # a gain in noise below this factor is not worth a line


@dataclass(frozen=True)
class FreeGain:
    """A setting, and what it does."""

    setting: str
    value: str
    why: str

    def __str__(self) -> str:
        return f'{self.setting} = "{self.value}": {self.why}'


def free_gains(recipe: Recipe, plan: Plan) -> tuple[FreeGain, ...]:
    """Return settings that a recipe leaves out and that cost no epsilon.

    Whether they raise accuracy, a pilot on public data can tell.
    """
    found: list[FreeGain] = []
    shape, name = plan.federation.input_shape, own_name(recipe.model.name, plan.federation.task)
    images = len(shape) in (2, 3) and min(shape[:2]) >= 8 and plan.federation.featurizer is None
    if images and name == "logistic":
        found += _features(photographs=len(shape) == 3 and shape[2] == 3)
    if recipe.server.average is None and plan.method.voting is None:
        found.append(
            FreeGain(
                "server.average",
                "polynomial",
                "an average of the rounds' weights has less noise than the last of them",
            )
        )
    gain = _cancelling(plan) if "privacy.correlated" in METHODS[plan.method.name].keys else 1.0
    if gain > _LEAST:
        found.append(
            FreeGain(
                "privacy.correlated",
                "optimised",
                f"turns are {plan.sampling.separation} rounds apart, so noise can partly cancel: "
                f"{gain:.1f} times less of it in the weights",
            )
        )
    return tuple(found)


def _features(*, photographs: bool) -> tuple[FreeGain, ...]:
    """Return features that turn images into inputs of a linear model, by what they look like."""
    if photographs:
        why = (
            "fixed features of each image, made by formulas, for a linear model; with model.mirror "
            "= true if a mirror image means the same"
        )
        return (FreeGain("model.features", "patches", why),)
    why = "fixed features of each image, made by formulas, for a linear model"
    scaled = (
        "scales them by drawings, so that the model gets as far under less noise; strokes are for "
        "handwriting, leaves for photographs"
    )
    return (
        FreeGain("model.features", "scattering", why),
        FreeGain("model.whiten", "strokes", scaled),
    )


def _cancelling(plan: Plan) -> float:
    """Return how many times less noise there would be in the weights at the same epsilon."""
    own = plan.noise
    if own is None or own.drawn is not Drawn.BY_SERVER or plan.method.clip_rule is not None:
        return 1.0
    independent = own.bounded is Bounded.UPDATE and isinstance(own.mechanism(), Gaussian)
    if plan.sampling.separation == 1 or not independent:
        return 1.0
    other = CorrelatedNoise(adjacency=own.adjacency, colluders=own.colluders)
    cancelling = other.fit(replace(own.facts, noise_multiplier=1.0))
    length = getattr(cancelling.mechanism(), "norm", 1.0)
    return float(1 / (length * cancelling.noise_ratio))
