"""Federations from arrays: who keeps what, what is held out, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fedveil.core.errors import ConfigError
from fedveil.data.federation import (
    ARTIFICIAL_NOTE,
    HELD_OUT_NOTE,
    Federation,
    Scaling,
    Task,
)
from fedveil.data.partition import IID


def numbered(examples, owners, **settings):
    """A federation whose inputs are row numbers, so that every example can be traced."""
    inputs = np.arange(examples, dtype=np.float32)[:, None]
    return Federation.from_arrays(inputs, np.arange(examples) % 3, owners, classes=3, **settings)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=0, max_size=10),
    holdout=st.sampled_from(["within", "latest", "pooled"]),
    test=st.sampled_from([0.1, 0.3, 0.6]),
    validation=st.sampled_from([0.0, 0.09]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_holding_out_loses_nothing_and_empties_nobody(sizes, holdout, test, validation, seed):
    sizes = [*sizes, 12]  # somebody who can always give
    owners = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    settings = {"test_fraction": test, "validation_fraction": validation, "holdout": holdout}
    try:
        federation = numbered(len(owners), owners, seed=seed, **settings)
    except ConfigError:  # everybody draws alone, so it can happen that nobody gives
        reject()
    assert federation.clients == len(sizes)
    assert federation.sizes.min() >= 1
    train = federation.train.inputs[:, 0].astype(int)
    held = [federation.test.inputs[:, 0]]
    held += [federation.validation.inputs[:, 0]] if federation.validation else []
    everything = np.concatenate([train, *held]).astype(int)
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(owners)))
    np.testing.assert_array_equal(owners[train], np.repeat(np.arange(len(sizes)), federation.sizes))
    np.testing.assert_array_equal(federation.train.targets, train % 3)
    if holdout == "latest":  # whatever is held out comes after all that its owner keeps
        for part in held:
            for row in part.astype(int):
                assert row > train[owners[train] == owners[row]].max()


def test_clients_of_equal_size_stay_equal_and_small_clients_also_give():
    equal = numbered(
        16 * 3052, np.arange(16 * 3052) % 16, test_fraction=0.1, validation_fraction=0.1
    )
    assert set(equal.sizes) == {2442}
    pairs = numbered(4000, np.arange(4000) // 2, test_fraction=0.2)
    # 2,000 clients of two examples are owed 0.4 each: binomial, 5 sigma is 110.
    assert abs(len(pairs.test) - 800) < 110


def test_whole_clients_can_be_held_out():
    federation = numbered(5000, np.arange(5000) // 5, holdout="clients", test_fraction=0.25)
    strangers = set((federation.test.inputs[:, 0] // 5).astype(int))
    assert len(strangers) + federation.clients == 1000
    assert len(federation.test) == 5 * len(strangers)
    assert strangers.isdisjoint(federation.owners)
    # Each of 1,000 clients alone with probability 1/4: binomial, 5 sigma is 69.
    assert abs(len(strangers) - 250) < 69


def test_a_pooled_part_of_owned_examples_takes_each_with_the_same_probability():
    federation = numbered(10_000, np.arange(10_000) // 50, holdout="pooled", test_fraction=0.2)
    assert abs(len(federation.test) - 2000) < 200  # binomial, 5 sigma
    given = np.bincount((federation.test.inputs[:, 0] // 50).astype(int), minlength=200)
    # 200 binomials (50, 0.2) have variance 8; its estimate is off by 10 %, so 5 sigma is 50 %.
    assert given.var() == pytest.approx(8, rel=0.5)
    with pytest.raises(ConfigError, match=r"no client was drawn"):
        numbered(10, np.arange(10), holdout="clients", test_fraction=1e-6)
    with pytest.raises(ConfigError, match="everybody was drawn"):
        numbered(2, np.arange(2), holdout="clients", test_fraction=1 - 1e-6)


def test_a_pooled_test_part_is_taken_before_anything_is_dealt():
    federation = numbered(100, None, partition=IID(8), holdout="pooled", test_fraction=0.2)
    assert len(federation.test) == 20
    assert set(federation.sizes) == {10}
    assert federation.notes == (HELD_OUT_NOTE, ARTIFICIAL_NOTE)


def test_held_out_examples_of_clients_are_said_to_be_outside_the_guarantee():
    assert HELD_OUT_NOTE in numbered(10, np.arange(10) % 2).notes
    whole = numbered(500, np.arange(500) // 5, holdout="clients")
    assert HELD_OUT_NOTE in whole.notes  # they are people, too
    given_test = numbered(10, np.arange(10) % 2, test=(np.zeros((3, 1)), [0, 1, 2]))
    assert given_test.notes == ()
    assert len(given_test.train) == 10


@pytest.mark.parametrize(
    ("targets", "task", "classes", "names"),
    [
        ([0, 1, 2, 1], Task.CLASSIFICATION, 3, ()),
        ([True, False, True, True], Task.CLASSIFICATION, 2, ()),
        (["no", "yes", "yes", "no"], Task.CLASSIFICATION, 2, ("no", "yes")),
        ([0.5, 1.0, 2.0, 1.0], Task.REGRESSION, 0, ()),
    ],
)
def test_the_task_follows_from_the_kind_of_targets(targets, task, classes, names):
    federation = Federation.from_arrays(np.zeros((4, 2)), targets, [1, 1, 2, 2], test_fraction=0)
    assert federation.task is task
    assert federation.classes == classes
    assert federation.class_names == names
    kind = np.float32 if task is Task.REGRESSION else np.int64
    assert federation.train.targets.dtype == kind


def test_text_labels_of_the_test_part_use_the_train_parts_classes():
    federation = Federation.from_arrays(
        np.zeros((3, 1)), ["x", "z", "y"], [1, 1, 1], test=(np.zeros((2, 1)), ["z", "x"])
    )
    np.testing.assert_array_equal(federation.test.targets, [2, 0])
    ordered = Federation.from_arrays(
        np.zeros((2, 1)), ["lo", "hi"], [1, 1], test_fraction=0, class_names=("lo", "hi")
    )
    np.testing.assert_array_equal(ordered.train.targets, [0, 1])


def test_a_model_sees_scaled_floats_whatever_is_stored():
    pixels = np.array([[0, 51], [255, 102]], np.uint8)
    scaling = Scaling(np.zeros((), np.float32), np.asarray(1 / 255, np.float32))
    federation = Federation.from_arrays(pixels, [0, 1], [0, 1], test_fraction=0, scaling=scaling)
    assert federation.train.inputs.dtype == np.uint8
    seen = federation.model_inputs(federation.train.inputs)
    assert seen.dtype == np.float32
    np.testing.assert_allclose(seen, [[0, 0.2], [1, 0.4]], rtol=1e-6)
    plain = Federation.from_arrays(pixels.astype(np.float16), [0, 1], [0, 1], test_fraction=0)
    assert plain.model_inputs(plain.train.inputs).dtype == np.float32
    tokens = Federation.from_arrays(pixels, pixels, [0, 1], test_fraction=0, task="sequence")
    assert tokens.model_inputs(tokens.train.inputs).dtype == np.int64
    assert tokens.classes == 256


def spoiled(row, value):
    inputs = np.zeros((100, 3), np.float32)
    inputs[row, 1] = value
    return inputs


FINE = np.zeros((100, 3), np.float32)
LABELS = np.arange(100) % 4
OWNERS = np.arange(100) // 10


@pytest.mark.parametrize(
    ("inputs", "targets", "settings", "unusable"),
    [
        (spoiled(7, np.nan), LABELS, {}, [7]),
        (spoiled(7, -np.inf), LABELS, {}, [7]),
        (spoiled(7, 1e300), LABELS, {}, [7]),
        (FINE, LABELS / np.where(OWNERS == 3, np.nan, 1), {}, range(30, 40)),
        (FINE, LABELS, {"classes": 3}, range(3, 100, 4)),
        (FINE, LABELS - 1, {}, range(0, 100, 4)),
        (FINE, LABELS + (LABELS == 2) * 0.5, {"task": "classification"}, range(2, 100, 4)),
        (FINE, np.array(["a", None] * 50, object), {}, range(1, 100, 2)),
        (FINE, np.array(["a", "b"] * 50), {"class_names": ("a", "c")}, range(1, 100, 2)),
    ],
)
def test_examples_that_do_not_fit_keep_their_places_and_hold_zeros(
    inputs, targets, settings, unusable
):
    found = Federation.from_arrays(inputs, targets, OWNERS, test_fraction=0.0, **settings)
    assert found.sizes.tolist() == [10] * 10
    assert np.flatnonzero(~found.train.usable).tolist() == list(unusable)
    assert found.unusable == len(unusable)
    for column in (found.train.inputs, found.train.targets):
        assert (column[~found.train.usable] == 0).all()
        assert np.isfinite(column).all()


@pytest.mark.parametrize(
    ("inputs", "targets", "owners", "settings", "says"),
    [
        (FINE, LABELS[:99], OWNERS, {}, "100 inputs but 99 targets"),
        (FINE, LABELS, OWNERS[:98], {}, "98 entries for 100 examples"),
        (FINE[:0], LABELS[:0], OWNERS[:0], {}, "is empty"),
        (FINE, LABELS, None, {}, "no owners"),
        (FINE, LABELS, OWNERS, {"task": "clustering"}, "task: need one of"),
        (FINE, LABELS, OWNERS, {"holdout": "half"}, "holdout: need one of"),
        (FINE, LABELS, OWNERS, {"test_fraction": 1.0}, "test_fraction: need"),
        (FINE, LABELS, OWNERS, {"test": (FINE[:, :2], LABELS)}, "test part: inputs of shape (2,)"),
        (FINE.astype(str), LABELS, OWNERS, {}, "inputs: must hold numbers"),
        ([[1, 2], [3]], [0, 1], [0, 1], {}, "inputs: all examples must have the same shape"),
    ],
)
def test_bad_arrays_are_refused_with_what_and_where(inputs, targets, owners, settings, says):
    settings = {"test_fraction": 0.0, **settings} if says[:4] != "test" else settings
    with pytest.raises(ConfigError) as caught:
        Federation.from_arrays(inputs, targets, owners, **settings)
    assert says in str(caught.value)


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_a_saved_federation_opens_equal_and_stays_on_disk(tmp_path, validation):
    scaling = Scaling(np.zeros(3, np.float32), np.full(3, 0.5, np.float32))
    rng = np.random.default_rng(0)
    federation = Federation.from_arrays(
        rng.normal(size=(60, 3)),
        rng.choice(["u", "v"], 60),
        rng.choice(["ann", "bob", "Çelik"], 60).astype(object),
        validation_fraction=validation,
        scaling=scaling,
        features=("a", "b", "c"),
        name="saved",
        notes=("One.",),
    )
    opened = Federation.open(federation.save(tmp_path / "here"))
    assert isinstance(opened.train.inputs, np.memmap)
    for part in ("train", "test", "validation"):
        ours, theirs = getattr(federation, part), getattr(opened, part)
        if ours is None:
            assert theirs is None
            continue
        np.testing.assert_array_equal(ours.inputs, theirs.inputs)
        np.testing.assert_array_equal(ours.targets, theirs.targets)
    np.testing.assert_array_equal(federation.offsets, opened.offsets)
    np.testing.assert_array_equal(federation.owners, opened.owners)
    np.testing.assert_array_equal(opened.scaling.factor, scaling.factor)
    for field in ("task", "classes", "class_names", "features", "name", "notes"):
        assert getattr(federation, field) == getattr(opened, field)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: (d / "train.inputs.npy").unlink(), "missing"),
        (lambda d: (d / "train.inputs.npy").write_bytes(b"x" * 10), "missing, or not"),
        (lambda d: (d / "federation.json").write_text("{"), "incomplete federation"),
        (lambda d: (d / "federation.json").write_text('{"format": "other"}'), "'other'"),
        (lambda d: (d / "federation.json").unlink(), "not a saved federation"),
    ],
)
def test_a_damaged_directory_is_refused(tmp_path, spoil, says):
    directory = Federation.from_arrays(FINE, LABELS, OWNERS).save(tmp_path / "f")
    spoil(directory)
    with pytest.raises(ConfigError) as caught:
        Federation.open(directory)
    assert says in str(caught.value)


def test_saving_never_overwrites_nor_leaves_half_a_directory(tmp_path):
    federation = Federation.from_arrays(FINE, LABELS, OWNERS)
    federation.save(tmp_path / "f")
    with pytest.raises(ConfigError, match="exists already"):
        federation.save(tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
