"""Where no clip is set: one that only falls, at two percent more noise, where that is proved."""

from __future__ import annotations

import math

import pytest
import torch

import fedveil as fv
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe


def recipe(*more: str, seed: int | None = 1) -> Recipe:
    values = {} if seed is None else {"seed": seed}
    return recipes.as_run(recipes.parse({}, ["training.rounds=12", *more], values))


@pytest.mark.parametrize(
    ("settings", "tracked"),
    [
        ((), True),
        (("training.method=bounded-sparse",), True),
        (("training.sampling=everyone",), True),
        (("privacy.clip_norm=1",), False),
        (("privacy.noise_multiplier=2",), False),
        (("privacy.noise=laplace",), False),
        (("privacy.trust=local",), False),
        (("privacy.trust=distributed", "training.sampling=everyone"), False),
        (("training.sampling=round-robin",), False),
        (("privacy.correlated=optimised", "training.cohort=10"), False),
        (("training.method=gradient-noise",), False),
        (("training.method=fedavg",), False),
    ],
)
def test_a_recipe_without_a_clip_has_one_that_falls(settings, tracked):
    privacy = recipe(*settings).privacy
    assert privacy.clip_norm == 1.0
    assert (privacy.clip_quantile, privacy.clip_highest) == (
        (0.3, 1.0) if tracked else (None, None)
    )


def noise(*settings: str) -> float:
    chosen = recipe(*settings)
    return plan_of(chosen, federation_of(chosen.data)).noise_multiplier or 0.0


@pytest.mark.parametrize("sampling", ["everyone", "poisson"])
def test_it_costs_two_percent_of_noise_in_a_small_federation(sampling):
    """Noise z on updates and 5 z on counts is worth z / sqrt(1 + 1/25) on one Gaussian."""
    own = (f"training.sampling={sampling}", "data.clients=20", "privacy.epsilon=2")
    if sampling == "poisson":
        own = (*own, "training.rate=0.5")
    more = noise(*own) / noise(*own, "privacy.clip_norm=1")
    assert more == pytest.approx(math.sqrt(1 + 1 / 25), rel=2e-3)  # what calibration leaves


def test_it_costs_less_in_a_large_one():
    """Counts of 1,000 with noise 50 are worth a hundred times what they would be with 0.5."""
    own = ("data.source=synthetic-linear", "data.clients=1000", "training.sampling=everyone")
    own = (*own, "privacy.epsilon=8")
    plain = noise(*own, "privacy.clip_norm=1")
    joint = 1 / math.sqrt(1 / plain**2 - 1 / 100**2)
    assert 5 * plain < 100
    assert noise(*own) == pytest.approx(joint, rel=2e-3)


@pytest.mark.parametrize("sampling", ["everyone", "poisson"])
def test_the_noise_on_a_count_is_what_is_accounted(sampling):
    """One client moves it by a half: its std is half of five times the updates' multiplier."""
    chosen = recipe(f"training.sampling={sampling}", "data.clients=20", "privacy.epsilon=2")
    made = plan_of(chosen, federation_of(chosen.data))
    assert isinstance(made.method.clip_rule, fv.AdaptiveClipping)
    count = made.noise.at().count
    z = made.noise_multiplier or 0.0
    assert count.scale == pytest.approx(5 * z / 2, rel=1e-12)
    (release,) = made.releases(1)
    assert isinstance(release.mechanism, fv.Gaussian)
    assert release.mechanism.noise_multiplier == pytest.approx(
        (z**-2 + (count.scale / 0.5) ** -2) ** -0.5, rel=1e-9
    )


@pytest.mark.parametrize(("rate", "falls"), [(0.01, True), (50.0, False)])
def test_the_clip_follows_short_updates_and_no_long_ones(rate, falls):
    chosen = recipe(f"training.learning_rate={rate}", "privacy.epsilon=100", "training.rounds=30")
    run = fv.Run(plan_of(chosen, federation_of(chosen.data)))
    clips = [report.figures["clip_norm"] for report in run]
    run.close()
    assert clips[0] == 1.0
    assert max(clips) <= 1.0
    assert (clips[-1] < 0.2) is falls


def test_no_clip_above_the_highest_is_ever_in_use():
    rule = fv.AdaptiveClipping(fv.Clip(0.8), highest=1.0)
    assert max(clip.norm for clip in rule.clips()) <= 1.0
    assert rule.state_at(1.001) is None
    assert rule.state_at(1.0) is not None
    state, _ = rule.follow(-500.0, 1000.0, fv.Clip(0.8), {})
    for _ in range(20):
        state, _ = rule.follow(-500.0, 1000.0, fv.Clip(0.8), state)
    assert float(state["clip_norm"]) == 1.0
    used = rule.clip(None, 3, state)
    assert 0.9 < used.norm <= 1.0
    assert used in list(rule.clips())
    far = rule.clip(None, 3, {"clip_norm": torch.tensor([1e9])})
    assert far.norm <= 1.0


@pytest.mark.parametrize("clips", ["privacy.clip_quantile=0.5", "privacy.clip_norm=1", ""])
def test_a_highest_below_the_first_or_without_a_quantile_is_refused(clips):
    chosen = recipe(*filter(None, [clips]), "privacy.clip_highest=0.5")
    data = federation_of(chosen.data)
    with pytest.raises(fv.ConfigError, match="clip_highest"):
        plan_of(chosen, data)
