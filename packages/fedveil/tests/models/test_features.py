"""Fixed features: one example in, its features out, whoever else is there; the guarantee stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.declared import AGAIN
from fedveil.data.examples import Examples, Scaling
from fedveil.data.federation import Federation, Task
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.models import feature_cache
from fedveil.training.models.features import (
    FeatureMap,
    Featurizer,
    ScatteringFeatures,
    with_features,
)
from fedveil.training.models.patches import PatchFeatures

MAP = ScatteringFeatures(scales=1, angles=4)
WHITE = replace(MAP, whiten="leaves")
PATCHES = PatchFeatures(7, mirror=True)
NASTY = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-38, -0.0], np.float32)


def images(sizes: list[int], seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.random((size, 9, 8, 3)).astype(np.float32) for size in sizes]


def federation_with(clients: list[np.ndarray], scaling: Scaling | None = None) -> Federation:
    inputs = np.concatenate(clients)
    offsets = np.cumsum([0, *map(len, clients)])
    targets = np.concatenate([np.arange(len(each)) % 3 for each in clients])
    test = Examples(inputs[:2], targets[:2])
    examples = Examples(inputs, targets)
    return Federation(
        examples, offsets, test, Task.CLASSIFICATION, 3, scaling=scaling, verified=True
    )


def own(federation: Federation, client: int) -> bytes:
    a, b = federation.offsets[client : client + 2]
    return federation.train.inputs[a:b].tobytes()


@pytest.mark.parametrize("features", [MAP, WHITE, PATCHES])
def test_a_client_s_features_are_its_own_bit_for_bit(features: FeatureMap):
    clients = images([3, 1, 4, 2])
    watched = clients[2]
    before = own(with_features(federation_with(clients), features), 2)
    poisoned = [np.resize(NASTY, each.shape).astype(np.float32) for each in clients]
    neighbours = {
        "alone": ([watched], 0),
        "one fewer": ([clients[0], watched], 1),
        "many more": ([*images([300, 7], seed=5), watched], 2),
        "poisoned": ([poisoned[0], poisoned[1], watched, poisoned[3]], 2),
    }
    for name, (others, place) in neighbours.items():
        assert own(with_features(federation_with(others), features), place) == before, name


@pytest.mark.parametrize("features", [MAP, PATCHES])
def test_one_record_changes_its_own_features_alone(features: FeatureMap):
    clients = images([5])
    before = with_features(federation_with(clients), features).train.inputs
    for value in NASTY:
        changed = clients[0].copy()
        changed[2] = value
        after = with_features(federation_with([changed]), features).train.inputs
        others = [0, 1, 3, 4]
        assert before[others].tobytes() == after[others].tobytes()
        assert np.isfinite(after).all()


@pytest.mark.parametrize("features", [MAP, PATCHES])
def test_threads_do_not_show(features: FeatureMap):
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            made = with_features(federation_with(images([4])), features)
            found.append(made.train.inputs.tobytes())
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert len(set(found)) == 1


def test_the_order_of_an_array_in_memory_does_not_show():
    """Sums round by it, and copies of the same rows may differ in it."""

    class Steps:
        data_independent = True

        def __call__(self, example: Tensor) -> Tensor:
            return torch.tensor(example.stride(), dtype=torch.float32)

    stored = np.zeros((3, 4, 5, 2), np.float32)
    for same in (stored, np.asfortranarray(stored), stored.repeat(2, axis=2)[:, :, ::2]):
        made = Featurizer(Steps(), None, (4, 5, 2))(same)
        assert made.tolist() == [[10, 2, 1]] * 3


def test_features_have_length_one_and_mean_zero():
    made = with_features(federation_with(images([6])), MAP).train.inputs.astype(np.float64)
    lengths = np.linalg.norm(made.reshape(6, -1), axis=1)
    assert np.abs(lengths - 1).max() < 1e-3  # float16 keeps eleven bits of every value
    assert made.shape == (6, 5, 4, 3 * 5)
    assert np.abs(made.mean((1, 2, 3))).max() < 1e-4


def test_brightness_and_contrast_do_not_matter():
    (image,) = images([4])
    plain = with_features(federation_with([image]), MAP).train.inputs
    other = with_features(federation_with([0.5 * image]), MAP).train.inputs
    assert np.abs(plain.astype(float) - other.astype(float)).max() < 1e-3


def test_predictions_see_the_features_of_the_training():
    """Stored bytes, scaled, then mapped: by the federation's own featurizer, bit for bit."""
    stored = np.random.default_rng(1).integers(0, 256, (5, 8, 8)).astype(np.uint8)
    scaling = Scaling(np.zeros((), np.float32), np.asarray(1 / 255, np.float32))
    raw = replace(federation_with([stored]), scaling=scaling)
    made = with_features(raw, MAP)
    assert made.featurizer is not None
    assert made.scaling is None
    for size in (1, 2, 5):
        assert made.featurizer(stored[:size]).tobytes() == made.train.inputs[:size].tobytes()
    assert made.test.inputs.tobytes() == made.train.inputs[:2].tobytes()


def test_features_of_shared_examples_are_shared_examples(tmp_path: Path):
    """Test examples that are trained on certify nothing, whatever they were turned into."""
    federation = federation_with(images([3, 2]))
    assert np.may_share_memory(federation.train.inputs, federation.test.inputs)
    assert with_features(federation, MAP).unprotected == (AGAIN,)
    apart = replace(federation, test=Examples(images([2], seed=1)[0], np.zeros(2, np.int64)))
    assert with_features(apart, MAP).unprotected == ()


def test_features_are_not_saved_without_the_map_that_made_them(tmp_path: Path):
    """A guarantee names the map, which a stored federation would not know any more."""
    with pytest.raises(ConfigError, match="save the federation they were made of"):
        with_features(federation_with(images([3, 2])), MAP).save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_features_are_made_once():
    federation = federation_with(images([3]))
    made = with_features(federation, MAP)
    assert with_features(federation, ScatteringFeatures(1, 4)) is made
    assert with_features(made, MAP) is made
    with pytest.raises(ConfigError, match="other features"):
        with_features(made, ScatteringFeatures(2, 4))


def test_cached_features_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clients = images([3, 2])
    fresh = with_features(federation_with(clients), MAP, keep=True)
    (home,) = (tmp_path / "fedveil" / "features").iterdir()
    assert home.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(ScatteringFeatures, "__call__", lambda self, example: 1 / 0)
    again = with_features(federation_with(clients), MAP, keep=True)
    assert again.train.inputs.tobytes() == fresh.train.inputs.tobytes()
    assert isinstance(again.train.inputs, np.memmap)
    with pytest.raises(ZeroDivisionError):  # other data, other features
        with_features(federation_with(images([3, 2], seed=1)), MAP, keep=True)
    with pytest.raises(ZeroDivisionError):  # other map, other features
        with_features(federation_with(clients), replace(MAP, order=1), keep=True)
    (shelf,) = home.iterdir()
    (shelf / "features.npy").write_bytes(b"")
    with pytest.raises(ConfigError, match="delete"):
        with_features(federation_with(clients), MAP, keep=True)


def test_an_interrupted_computation_goes_on_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(feature_cache, "SHELF", 2)
    clients, usual, calls = images([4, 3]), ScatteringFeatures.__call__, 0

    def stopped_at(last: int) -> Callable[[ScatteringFeatures, Tensor], Tensor]:
        def call(self: ScatteringFeatures, example: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls > last:
                raise KeyboardInterrupt
            return usual(self, example)

        return call

    monkeypatch.setattr(ScatteringFeatures, "__call__", stopped_at(20))
    with pytest.raises(KeyboardInterrupt):
        with_features(federation_with(clients), MAP, keep=True)
    (home,) = (tmp_path / "fedveil" / "features").iterdir()
    kept = list(home.iterdir())
    assert kept
    monkeypatch.setattr(ScatteringFeatures, "__call__", usual)
    resumed = with_features(federation_with(clients), MAP, keep=True)
    assert set(kept) < set(home.iterdir())
    fresh = with_features(federation_with(clients), MAP)
    assert np.array_equal(resumed.train.inputs, fresh.train.inputs)
    assert np.array_equal(resumed.test.inputs, fresh.test.inputs)


def test_examples_dealt_otherwise_are_made_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By content: other clients, another order, some again, and only what is new is made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pool, (new,) = np.concatenate(images([3, 2])), images([1], seed=1)
    with_features(federation_with([pool]), MAP, keep=True)
    calls, plain = [], ScatteringFeatures.__call__

    def counted(self: ScatteringFeatures, example: Tensor) -> Tensor:
        calls.append(example)
        return plain(self, example)

    monkeypatch.setattr(ScatteringFeatures, "__call__", counted)
    dealt = [pool[[4, 0]], pool[[2, 4, 1]]]
    made = with_features(federation_with(dealt), MAP, keep=True)
    assert not calls
    grown = with_features(federation_with([*dealt, new, new, pool[3:]]), MAP, keep=True)
    seen = [one for one in calls if np.array_equal(one.numpy(), new[0])]
    assert len(calls) - len(seen) == 5  # what looks at the map itself, before it is used
    wanted = with_features(federation_with([*dealt, new, new, pool[3:]]), MAP)
    assert grown.train.inputs.tobytes() == wanted.train.inputs.tobytes()
    assert made.train.inputs.tobytes() == wanted.train.inputs[:5].tobytes()
    assert made.test.inputs.tobytes() == wanted.test.inputs.tobytes()


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fedveil").write_text("a file where a directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clients = images([3, 2])
    kept = with_features(federation_with(clients), MAP, keep=True)
    fresh = with_features(federation_with(clients), MAP)
    assert kept.train.inputs.tobytes() == fresh.train.inputs.tobytes()


class Mean:
    """A map of one example, declared or not."""

    data_independent = False

    def __call__(self, example: Tensor) -> Tensor:
        return example.mean().reshape(1)


class Remembers(Mean):
    data_independent = True

    def __init__(self) -> None:
        self.seen = torch.zeros(1)

    def __call__(self, example: Tensor) -> Tensor:
        self.seen = 0.9 * self.seen + 0.1 * example.flatten()[:1]
        return example.flatten()[:1] - self.seen


def test_a_map_must_be_declared_independent_of_data_and_must_not_remember():
    federation = federation_with(images([3]))
    with pytest.raises(PrivacyRefusal, match="does not declare"):
        with_features(federation, Mean())
    with pytest.raises(PrivacyRefusal, match="after it has seen others"):
        with_features(federation, Remembers())


RECIPE = {
    "data": {"source": "digits", "clients": 30},
    "training": {"method": "dp-fedavg", "rounds": 3, "rate": 0.5, "local_steps": 2},
    "privacy": {"epsilon": 2.0, "clip_norm": 1.0},
}
SCATTERED = ["model.features=scattering", "model.scales=1", "model.angles=4"]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_run_with_features_has_the_guarantee_of_one_without(seed: int | None):
    values = {} if seed is None else {"seed": seed}
    documents, plans = [], []
    for settings in ([], SCATTERED):
        recipe = recipes.with_defaults(recipes.parse(RECIPE, settings, values))
        planned = plan_of(recipe, federation_of(recipe.data))
        documents.append(planned.guarantee.to_dict())
        plans.append(planned)
    # It names the map and the shape that the model sees: all else is the same.
    said = [set(document.pop("rests_on")) for document in documents]
    (made,) = (one for one in said[1] - said[0] if "map" in one)
    assert "ScatteringFeatures(scales=1, angles=4, order=2), a public map" in made
    for document in documents:
        del document["privacy_model"]["declared"], document["statement"]
    assert documents[0] == documents[1]
    assert plans[1].federation.input_shape == (4, 4, 5)
    metrics = Run(plans[1]).finish()
    assert metrics.accuracy is not None


def test_neighbours_of_a_protected_run_leave_a_client_s_integers_as_they_are():
    """From stored pixels to what enters the sum, through the features."""
    clients = images([3, 2, 4])
    poisoned = np.resize(NASTY, (6, *clients[0].shape[1:])).astype(np.float32)
    seen = []
    for others in (clients, [clients[0], poisoned, clients[2]]):
        recipe = recipes.with_defaults(recipes.parse(RECIPE, ["training.rate=1.0"]))
        planned = plan_of(recipe, with_features(federation_with(others), MAP))
        run = Run(planned)
        assert planned.protected
        rows: dict[int, Tensor] = {}
        asked = RoundRequest(planned.start, np.arange(3), 0, planned.pipeline, rows=True)
        for block in run.engine.updates(asked):
            rows.update(zip(block.places.tolist(), block.rows.clone(), strict=True))
        seen.append(rows)
    first, second = seen
    assert all(torch.equal(first[one], second[one]) for one in (0, 2))
    assert not torch.equal(first[1], second[1])
    assert first[0].dtype == torch.int64
    assert first[0].any()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("features=wavelets", "features"),
        ("scales=2", "scales"),
        ("whiten=strokes", "whiten"),
        ("features=scattering scales=9", "scales"),
        ("features=scattering whiten=clouds", "whiten"),
        ("features=scattering whiten=leaves directions=0", "directions"),
        ("features=scattering directions=9", "directions"),
        ("features=scattering mirror=true", "mirror"),
        ("features=scattering width=8", "width"),
        ("features=patches patches=0", "patches"),
        ("features=patches patches=2.5", "patches"),
        ("features=patches mirror=no", "mirror"),
        ("features=patches directions=0", "directions"),
        ("features=patches whiten=clouds", "whiten"),
        ("features=patches angles=4", "angles"),
        ("features=random width=7", "width"),
        ("features=random bandwidth=0", "bandwidth"),
        ("features=random scales=2", "scales"),
    ],
)
def test_what_a_recipe_cannot_mean_is_refused(settings: str, key: str) -> None:
    def plan() -> Plan:
        words = [f"model.{word}" for word in settings.split()]
        recipe = recipes.with_defaults(recipes.parse(RECIPE, words))
        return plan_of(recipe, federation_of(recipe.data))

    with pytest.raises(ConfigError, match=rf"model\.{key}\b"):
        plan()


@pytest.mark.parametrize("features", [ScatteringFeatures(), PatchFeatures(5)])
def test_features_of_images_are_refused_for_other_inputs(features: FeatureMap) -> None:
    with pytest.raises(ConfigError, match=r"model\.features: "):
        features(torch.zeros(40))
    if isinstance(features, PatchFeatures):
        with pytest.raises(ConfigError, match=r"model\.features: "):
            features(torch.zeros(6, 9))
