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
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, is_protected, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.tune.advice import advise, local_steps_of, prepare
from fedveil.tune.proxy import NotPublic, proxy_of, with_look
from fedveil.tune.synthetic_proxy import synthetic_proxy

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


def test_steps_of_an_epoch_need_a_public_number_of_records(tmp_path: Path) -> None:
    recipe = private_recipe(tmp_path, local_epochs=3, batch_size=2)
    recipe = recipes.parse(recipes.to_table(recipe), ["training.local_epochs=3"])
    plan = plan_of(recipe, federation_of(recipe.data))
    with pytest.raises(ConfigError, match="--records"):
        local_steps_of(recipe, plan)
    assert local_steps_of(recipe, plan, records=7) == (12, ())
    whole = recipes.parse({**recipes.to_table(recipe)}, ["training.batch_size=1000"])
    assert local_steps_of(whole, plan_of(whole, plan.federation), records=7) == (3, ())


def shaped(
    clients: int, inputs: tuple[int, ...], task: Task, classes: int, features: tuple[str, ...] = ()
) -> Federation:
    """A federation of zeros: its shape is all that made-up data may follow."""
    kind = np.float32 if task is Task.REGRESSION else np.int64
    tokens = np.int64 if task is Task.SEQUENCE else np.float32
    zeros = Examples(np.zeros((clients, *inputs), tokens), np.zeros(clients, kind))
    offsets = np.arange(clients + 1)
    return Federation(zeros, offsets, zeros, task, classes, features=features)


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


def _parts(offsets: np.ndarray) -> list[tuple[int, int]]:
    return list(pairwise(offsets))
