"""What a method keeps between rounds survives a crash, and nothing un-noised is kept."""

from __future__ import annotations

import pytest
import torch

import fedveil as fv
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.run.directory import load_checkpoint

MIXED = [
    "data.clients=20",
    "training.rounds=6",
    "training.method=bounded-sparse",
    "privacy.clip_quantile=0.5",
    "privacy.clip_noise=0.5",
    "server.optimizer=adam",
    "server.momentum=0.9",
    "server.learning_rate=0.05",
    "server.smoothing=0.5",
]
SECURE = ["privacy.trust=distributed", "privacy.rotate=true", "training.rate=1.0"]


def recipe(*more: str, seed: int | None = 5) -> Recipe:
    values = {} if seed is None else {"seed": seed}
    return recipes.with_defaults(recipes.parse({}, [*MIXED, *more], values))


@pytest.mark.parametrize("more", [(), SECURE], ids=["central", "rotated shares"])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, more):
    chosen = recipe(*more)
    data = federation_of(chosen.data)
    whole = fv.Run(plan_of(chosen, data))
    figures = [report.figures for report in whole]

    plan = plan_of(chosen, data)
    directory = fv.RunDirectory.create(tmp_path / "run", plan, recipes.to_table(chosen))
    first = fv.Run(plan).keep_in(directory)
    seen = [next(iter(first)).figures for _ in range(3)]
    first.save()
    directory.close()

    again = plan_of(chosen, data)
    directory = fv.RunDirectory.open(tmp_path / "run", again)
    second = fv.Run(again).keep_in(directory)
    assert second.state.rounds == 3
    seen += [report.figures for report in second]
    directory.close()
    assert torch.equal(second.state.weights, whole.state.weights)
    assert seen == figures
    assert len({one["clip_norm"] for one in seen}) > 1  # the clip did move


def test_a_protected_run_shows_the_noisy_share_and_keeps_the_clip_alone(tmp_path):
    chosen = recipe(seed=None)
    plan = plan_of(chosen, federation_of(chosen.data))
    directory = fv.RunDirectory.create(tmp_path / "run", plan, recipes.to_table(chosen))
    run = fv.Run(plan).keep_in(directory)
    for report in run:
        assert report.unprotected_stats is None
        assert set(report.figures) == {"clip_norm", "below_clip"}
    state = load_checkpoint(tmp_path / "run/checkpoint/state.safetensors", directory._fingerprint)
    assert set(state.optimizer) == {"first", "second", "clip_norm"}
    directory.close()
