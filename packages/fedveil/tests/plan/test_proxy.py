"""What a pilot may look at: public data, made-up data, never the private ones."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from tests.plan.searches import small_recipe

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation, Task
from fedveil.data.partition import SortedSlices
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, is_protected, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.tune.advice import advise, local_steps_of, prepare
from fedveil.tune.proxy import NotPublic, proxy_of, some_clients, with_look
from fedveil.tune.synthetic_proxy import Scales, synthetic_proxy

SCHEMA = """
[columns.x]
type = "number"
min = -3
max = 3
[columns.kind]
type = "category"
categories = ["a", "b", "c"]
[columns.ill]
type = "category"
categories = ["no", "yes"]
"""


def private_file(folder: Path, name: str, seed: int, records: int, clients: int = 30) -> Path:
    """A table whose values and sizes depend on the seed, with all clients and classes there."""
    draw = np.random.default_rng(seed)
    rows = []
    for client in range(clients):
        for _ in range(records + int(draw.integers(0, 5))):
            x, kind = draw.normal(), draw.choice(["a", "b", "c"])
            rows.append(f"{client},{x:.3f},{kind},{'yes' if x + draw.normal() > 0 else 'no'}")
    path = folder / name
    path.write_text("\n".join(["who,x,kind,ill", *rows]))
    return path


def private_recipe(folder: Path, seed: int = 0, records: int = 6, **changes: object) -> Recipe:
    (folder / "schema.toml").write_text(SCHEMA)
    file = private_file(folder, f"visits-{seed}.csv", seed, records)
    table = {
        "seed": 1,
        "data": {
            "file": str(file),
            "client_column": "who",
            "label": "ill",
            "schema": str(folder / "schema.toml"),
        },
        "training": {"sampling": "everyone", "rounds": 8, "local_steps": 2, **changes},
        "privacy": {"epsilon": 4.0},
    }
    return recipes.with_defaults(recipes.parse(table))


def test_a_plan_knows_nothing_of_private_values_and_sizes(tmp_path: Path) -> None:
    """Two files of the same columns and clients, everything else different: the same answer."""
    answers, sizes = [], []
    for seed, records in ((0, 6), (1, 20)):
        recipe = private_recipe(tmp_path, seed, records)
        sizes.append(len(federation_of(recipe.data).train))
        found = advise(prepare(recipe, effort=1_500))
        answers.append((found.options, found.warnings))
        assert found.looked_at == ()
        assert found.proxy.startswith("synthetic")
    assert answers[0] == answers[1]
    sizes = [
        len(federation_of(private_recipe(tmp_path, s, r).data).train) for s, r in ((0, 6), (1, 20))
    ]
    assert sizes[0] != sizes[1]  # they did differ


def test_what_is_no_proxy(tmp_path: Path) -> None:
    recipe = private_recipe(tmp_path)
    federation = federation_of(recipe.data)
    for name in ("nowhere.csv", "nowhere"):
        with pytest.raises(ConfigError, match="nowhere"):
            proxy_of(recipe, name, federation)


def test_the_private_file_is_no_proxy_under_another_name(tmp_path: Path) -> None:
    recipe = private_recipe(tmp_path, records=10)
    private, federation = Path(recipe.data.file), federation_of(recipe.data)
    (tmp_path / "soft.csv").symlink_to(private)
    (tmp_path / "hard.csv").hardlink_to(private)
    for name in (private.name, "soft.csv", "hard.csv"):
        with pytest.raises(NotPublic):
            proxy_of(recipe, str(tmp_path / name), federation)
    # One file of several is as private as one alone.
    for files in (tmp_path, tmp_path / f"{private.stem}*"):
        several = replace(recipe, data=replace(recipe.data, file=str(files)))
        assert is_protected(several.data, str(private))
        assert is_protected(several.data, str(files))
        with pytest.raises(NotPublic):
            proxy_of(several, str(private), federation)


def test_rows_that_a_proxy_shares_with_the_private_file_decide_nothing(tmp_path: Path) -> None:
    """A refusal would tell whoever brings a row that it is there; that it is public is declared."""
    public = private_file(tmp_path, "public.csv", seed=7, records=10)
    head, *rows = public.read_text().splitlines()
    found = []
    for seed, shared in ((0, 0), (0, 1), (0, len(rows))):
        recipe = private_recipe(tmp_path, seed=seed, records=10)
        private = Path(recipe.data.file)
        own = private.read_text().splitlines()
        private.write_text("\n".join([head, *rows[:shared], *own[1 + shared :]]) + "\n")
        proxy = proxy_of(recipe, str(public), federation_of(recipe.data))
        found.append((proxy.source, proxy.notes, proxy.looked_at, len(proxy.federation.train)))
    assert found[0] == found[1] == found[2]


def test_settings_chosen_on_the_protected_data_certify_nothing() -> None:
    """A pilot on the recipe's own source may be useful; a later run must own up to it."""
    recipe = replace(small_recipe(), seed=None)
    federation = federation_of(recipe.data)
    for name, records, looked_at in (
        (None, None, ("synthetic-logistic",)),
        ("synthetic-logistic", None, ("synthetic-logistic",)),
        ("synthetic", None, ("synthetic-logistic",)),
        ("synthetic", 8, ()),
        ("digits", None, ("digits",)),
    ):
        proxy = proxy_of(recipe, name, federation, records)
        assert proxy.looked_at == looked_at
        chosen = with_look(recipe, proxy.looked_at)
        again = recipes.parse(tomllib.loads(tomli_w.dumps(recipes.to_table(chosen))))
        guarantee = plan_of(again, federation).guarantee
        own = "synthetic-logistic" in looked_at
        assert guarantee.certified is not own
        assert ("the protected data" in guarantee.reason) is own
        for other in set(looked_at) - {"synthetic-logistic"}:
            said = f"Settings were chosen by looking at {other}, declared to be public."
            assert said in guarantee.rests_on


def test_a_public_file_is_read_like_the_private_one(tmp_path: Path) -> None:
    recipe = private_recipe(tmp_path)
    federation = federation_of(recipe.data)
    public = private_file(tmp_path, "public.csv", seed=5, records=3, clients=7)
    proxy = proxy_of(recipe, str(public), federation)
    assert proxy.federation.clients == 7
    assert proxy.federation.features == federation.features
    assert proxy.notes == ()


def test_another_shape_is_noted() -> None:
    recipe = small_recipe()
    proxy = proxy_of(recipe, "digits", federation_of(recipe.data))
    assert "rough guide" in proxy.notes[0]


def test_a_recipes_own_test_part_stays_unseen() -> None:
    """Trials are scored on training examples that are taken out of training."""
    recipe = small_recipe()
    federation = federation_of(recipe.data)
    held = proxy_of(recipe, None, federation).federation
    assert held.clients == federation.clients
    assert len(held.train) + len(held.test) == len(federation.train)
    rows = {row.tobytes() for row in federation.train.inputs}
    assert {row.tobytes() for row in held.test.inputs} <= rows
    both = {r.tobytes() for r in held.test.inputs} & {r.tobytes() for r in held.train.inputs}
    assert not both
    assert held.sizes.min() >= 1


def test_no_client_is_emptied_by_holding_out() -> None:
    recipe = small_recipe(data__examples_per_client=1, data__clients=300)
    with pytest.raises(ConfigError, match="too small"):
        proxy_of(recipe, None, federation_of(recipe.data))


def test_steps_of_an_epoch_need_a_public_number_of_records(tmp_path: Path) -> None:
    recipe = private_recipe(tmp_path, local_epochs=3, batch_size=2)
    recipe = recipes.parse(recipes.to_table(recipe), ["training.local_epochs=3"])
    plan = plan_of(recipe, federation_of(recipe.data))
    with pytest.raises(ConfigError, match="--records"):
        local_steps_of(recipe, plan)
    assert local_steps_of(recipe, plan, records=7) == 12
    whole = recipes.parse({**recipes.to_table(recipe)}, ["training.batch_size=1000"])
    assert local_steps_of(whole, plan_of(whole, plan.federation), records=7) == 3


def shaped(
    clients: int, inputs: tuple[int, ...], task: Task, classes: int, features: tuple[str, ...] = ()
) -> Federation:
    """A federation of zeros: its shape is all that made-up data may follow."""
    kind = np.float32 if task is Task.REGRESSION else np.int64
    tokens = np.int64 if task is Task.SEQUENCE else np.float32
    zeros = Examples(np.zeros((clients, *inputs), tokens), np.zeros(clients, kind))
    offsets = np.arange(clients + 1)
    return Federation(zeros, offsets, zeros, task, classes, features=features)


def test_made_up_data_have_the_shape_that_was_asked_for() -> None:
    features = ("age", "kind=a", "kind=b", "kind=c", "kind (missing)")
    like = shaped(50, (5,), Task.CLASSIFICATION, 3, features)
    made = synthetic_proxy(like, 30)
    assert (made.clients, set(made.sizes), made.input_shape, made.classes) == (50, {30}, (5,), 3)
    inputs = made.train.inputs
    assert np.all(inputs[:, 1:4].sum(axis=1) == 1)
    assert set(np.unique(inputs[:, 4])) == {0.0, 1.0}
    assert len(np.unique(made.train.targets)) == 3
    assert synthetic_proxy(like, 30).train.inputs.tobytes() == inputs.tobytes()


@pytest.mark.parametrize("task", [Task.CLASSIFICATION, Task.REGRESSION])
def test_made_up_targets_can_partly_be_predicted(task: Task) -> None:
    """By least squares on the training part, scored on the test part."""
    made = synthetic_proxy(shaped(100, (6,), task, 2 if task is Task.CLASSIFICATION else 0), 20)
    inputs = [
        np.column_stack([part.inputs, np.ones(len(part))]) for part in (made.train, made.test)
    ]
    weights, *_ = np.linalg.lstsq(inputs[0], made.train.targets.astype(float), rcond=None)
    left = np.var(made.test.targets - inputs[1] @ weights) / np.var(made.test.targets)
    assert 0.05 < left < 0.7
    if task is Task.REGRESSION:
        assert np.std(made.train.targets) == pytest.approx(1.0, rel=0.5)


def test_made_up_targets_have_the_scale_and_the_dealing_of_the_recipe() -> None:
    """Sorted by a target of mean 12: clients agree within themselves, and not with each other."""
    like = shaped(50, (6,), Task.REGRESSION, 0)
    scales = Scales(np.array([np.arange(6.0), 1 + np.arange(6.0)]), (12.0, 3.0))
    plain = synthetic_proxy(like, 20, scales=scales)
    dealt = synthetic_proxy(like, 20, scales=scales, partition=SortedSlices(50))
    for made in (plain, dealt):
        assert np.mean(made.train.targets) == pytest.approx(12, abs=1.5)
        assert np.std(made.train.targets) == pytest.approx(3, rel=0.2)
        assert made.train.inputs.mean(axis=0) == pytest.approx(np.arange(6.0), abs=1)
        assert made.train.inputs.std(axis=0) == pytest.approx(1 + np.arange(6.0), rel=0.25)
        assert made.clients == 50
    within = [made.train.targets.reshape(50, 20).std(axis=1).mean() for made in (plain, dealt)]
    assert within[1] < 0.2 < 2 < within[0]
    again = Scales.of(dealt)
    assert again.target == pytest.approx((12, 3), rel=0.2)


def test_a_source_s_own_dealing_is_the_proxy_s() -> None:
    recipe = small_recipe(data__source="digits", data__clients=20, data__partition="dirichlet")
    recipe = recipes.parse(recipes.to_table(recipe), ["data.alpha=0.05"])
    skewed = proxy_of(recipe, "synthetic", federation_of(recipe.data)).federation
    even = recipes.parse(recipes.to_table(recipe), ["data.partition=iid"])
    even = replace(even, data=replace(even.data, alpha=None))
    mixed = proxy_of(even, "synthetic", federation_of(even.data)).federation

    def classes(made: Federation) -> float:
        parts = _parts(made.offsets)
        return float(np.mean([len(set(made.train.targets[a:b].tolist())) for a, b in parts]))

    assert classes(skewed) < 0.6 * classes(mixed)


def test_no_made_up_sequences() -> None:
    with pytest.raises(ConfigError, match="sequences"):
        synthetic_proxy(shaped(10, (80,), Task.SEQUENCE, 50), 5)


def test_some_clients_keep_all_their_examples() -> None:
    federation = federation_of(small_recipe().data)
    some = some_clients(federation, 20, seed=0)
    assert (some.clients, len(some.train)) == (20, 160)
    whole = {federation.train.inputs[a:b].tobytes() for a, b in _parts(federation.offsets)}
    assert {some.train.inputs[a:b].tobytes() for a, b in _parts(some.offsets)} <= whole
    assert some_clients(federation, 60, seed=0) is federation


def _parts(offsets: np.ndarray) -> list[tuple[int, int]]:
    return list(pairwise(offsets))
