"""Recipes: what is accepted, what is refused, and how the refusal helps."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w

from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes


def test_assignments_win_over_the_file_and_later_ones_over_earlier() -> None:
    table = {"training": {"rounds": 5}}
    recipe = recipes.parse(table, ["training.rounds=6", "training.rounds=7"])
    assert recipe.training.rounds == 7
    assert table == {"training": {"rounds": 5}}


def test_values_are_read_as_toml_and_bare_words_as_strings() -> None:
    recipe = recipes.parse(
        {}, ["privacy.epsilon=4", "training.sampling=fixed", "model.hidden=[8, 4]", "seed=3"]
    )
    assert recipe.privacy.epsilon == 4.0
    assert recipe.training.sampling == "fixed"
    assert recipe.model.hidden == (8, 4)
    assert recipe.seed == 3


def test_the_resolved_recipe_reads_back_as_itself() -> None:
    recipe = recipes.with_defaults(recipes.parse({}, ["model.hidden=[8]", "privacy.delta=1e-6"]))
    text = tomli_w.dumps(recipes.to_table(recipe))
    assert recipes.parse(tomllib.loads(text)) == recipe


@pytest.mark.parametrize(
    ("assignment", "hint"),
    [
        ("privacy.epsilom=1", "privacy.epsilon"),
        ("training.round=1", "training.rounds"),
        ("trainin.rounds=1", "training"),
        ("epsilon=1", "privacy.epsilon"),
        ("training.clip_norm=1", "privacy.clip_norm"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(assignment: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        recipes.parse({}, [assignment])
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "assignment",
    [
        "training.rounds=many",
        "training.rounds=1.5",
        "training.rounds=true",
        "privacy.epsilon=[1]",
        "model.hidden=8",
        "model.hidden=[1.5]",
        "evaluation.baseline=1",
        "data=3",
        "training.rounds",
        "=3",
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(assignment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipes.parse({}, [assignment])
    assert assignment.partition("=")[0].split("[")[0] in str(caught.value)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        recipes.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[training\nrounds=")
    with pytest.raises(ConfigError, match=r"fedveil run --data loans\.csv"):
        recipes.read(Path("loans.csv"))
    with pytest.raises(ConfigError, match="not valid TOML"):
        recipes.read(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        recipes.read(tmp_path / "bytes.toml")


def test_every_best_recipe_is_found_by_its_name_and_says_what_it_was_tuned_on() -> None:
    """Its name says its epsilon; it says what its settings were found on."""
    best = [name for name in recipes.shipped() if name.startswith("best/")]
    assert len(best) >= 8
    for name in best:
        recipe = recipes.with_defaults(recipes.parse(recipes.read(Path(name))))
        assert recipe.privacy.epsilon == float(name.rpartition("-epsilon-")[2])
        assert recipe.privacy.tuned_on
        assert recipe.server.average is not None
