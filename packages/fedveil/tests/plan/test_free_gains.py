"""What `fedveil plan` proposes at no cost in privacy."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.data.federation import Federation
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.tune.advice import free_gains

ROBIN = ["training.sampling=round-robin", "training.cohort=20", "training.rounds=20"]


def settings(*assignments: str) -> tuple[list[str], float]:
    """What is proposed, and the noise multiplier's equivalent of what is planned."""
    chosen = recipes.with_defaults(recipes.parse({"seed": 1}, ["privacy.epsilon=4", *assignments]))
    plan = plan_of(chosen, federation_of(chosen.data))
    noise = plan.noise_multiplier or 0.0
    assert plan.noise is not None
    return [gain.setting for gain in free_gains(chosen, plan)], noise * plan.noise.noise_ratio


def test_what_is_left_out_is_proposed_and_what_is_there_is_not() -> None:
    assert settings()[0] == ["model.features", "model.whiten", "server.average"]
    assert settings("server.average=tail", "model.features=scattering", "model.scales=1")[0] == []
    assert settings("model.name=mlp", "server.average=tail")[0] == []
    assert "privacy.correlated" in settings(*ROBIN)[0]
    for more in ("privacy.correlated=optimised", "training.cohort=60"):
        assert "privacy.correlated" not in settings(*ROBIN, more)[0]
    tracked = ("privacy.clip_quantile=0.5", "privacy.clip_noise=0.5")
    assert "privacy.correlated" not in settings(*ROBIN, *tracked)[0]
    assert "privacy.correlated" not in settings("privacy.trust=local")[0]


def test_the_gain_that_is_named_is_what_a_plan_has() -> None:
    chosen = recipes.with_defaults(recipes.parse({"seed": 1}, [*ROBIN, "privacy.epsilon=4"]))
    *_, gain = free_gains(chosen, plan_of(chosen, federation_of(chosen.data)))
    independent, correlated = (
        settings(*ROBIN)[1],
        settings(*ROBIN, "privacy.correlated=optimised")[1],
    )
    named = float(gain.why.partition("cancel: ")[2].split()[0])
    assert named == pytest.approx(independent / correlated, abs=0.06)
    assert named > 1.3


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 8), {"model.features": "scattering", "model.whiten": "strokes"}),
        ((8, 8, 3), {"model.features": "patches"}),
    ],
)
def test_features_are_proposed_by_what_images_look_like(shape, expected) -> None:
    """And a plan with them can be made."""
    images, codes = np.random.default_rng(1).random((20, *shape)), np.arange(20) % 2
    federation = Federation.from_arrays(images, codes, codes, test=(images, codes))
    chosen = recipes.with_defaults(recipes.parse({"seed": 1}, ["privacy.epsilon=4"]))
    gains = free_gains(chosen, plan_of(chosen, federation))
    proposed = {one.setting: one.value for one in gains if one.setting.startswith("model")}
    assert proposed == expected
    more = [f"{setting}={value}" for setting, value in proposed.items()]
    more += ["model.patches=16"] if "patches" in proposed.values() else []
    better = recipes.with_defaults(recipes.parse({"seed": 1}, ["privacy.epsilon=4", *more]))
    plan = plan_of(better, federation)
    assert not any(one.setting.startswith("model") for one in free_gains(better, plan))
