"""Names of methods, data sets and models: whose they are, and what happens when things go wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import fedveil as fv
from fedveil.core.errors import ConfigError
from fedveil.core.registry import Registry
from fedveil.methods.dp_fedavg import from_recipe as dp_fedavg_recipe
from fedveil.methods.registry import METHODS, MethodEntry, method, method_of
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.privacy.sampling import SAMPLERS


@pytest.fixture
def fruit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[object]:
    """A registry with one good and one broken package installed."""
    (tmp_path / "good_fruit.py").write_text("PEAR = 'a pear'\n")
    (tmp_path / "bad_fruit.py").write_text("raise RuntimeError('rotten')\n")
    info = tmp_path / "fruit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fruit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[test.fruit]\npear = good_fruit:PEAR\nplum = bad_fruit:PLUM\nfig = good_fruit\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("fruit", "test.fruit", None, str)


def test_what_is_asked_for_is_found_although_another_package_is_broken(
    fruit: Registry[object],
) -> None:
    assert fruit.find("pear", "basket") == "a pear"
    with pytest.raises(ConfigError, match=r"bad_fruit:PLUM cannot be imported .*rotten"):
        fruit.find("plum", "basket")
    with pytest.raises(ConfigError, match="good_fruit registers nothing of that name"):
        fruit.find("fig", "basket")


def test_a_name_stays_with_whoever_had_it_first() -> None:
    fruit: Registry[str] = Registry("fruit", "test.no-such-group", None)
    fruit.add("apple", "red", "here", ("pomme",))
    fruit.add("apple", "green", "here", ("pomme",))  # the same cell of a notebook, run again
    assert fruit["pomme"] == "green"
    for name, aliases in (("apple", ()), ("pomme", ()), ("cherry", ("apple",))):
        with pytest.raises(ConfigError, match="here"):
            fruit.add(name, "blue", "there", aliases)
    assert list(fruit) == ["apple"]
    with pytest.raises(ConfigError, match=r"basket: unknown fruit 'appel'; did you mean 'apple'"):
        fruit.find("appel", "basket")


@pytest.mark.parametrize(
    ("earlier", "name"),
    [
        ("fu", "client-noise"),
        ("hu", "gradient-noise"),
        ("cheng", "bounded-sparse"),
        ("dp-fed-ls", "laplacian-smoothing"),
    ],
)
def test_earlier_names_still_work_and_the_new_one_is_shown(earlier: str, name: str) -> None:
    words = [f"training.method={earlier}", "training.batch_size=3"]
    recipe = recipes.with_defaults(recipes.parse({}, words))
    assert recipe.training.method == name
    assert method_of(recipe).name == name
    assert recipes.read(Path(earlier)) == recipes.read(Path(f"recipes/{earlier}.toml"))
    assert recipes.read(Path(earlier))["training"]["method"] == name


def _entry(**changes: object) -> MethodEntry:
    return replace(METHODS["dp-fedavg"], **changes)  # type: ignore[arg-type]


def test_a_declaration_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._things, "mine", _entry(name="mine", towards="nobody"))
    recipe = recipes.with_defaults(recipes.parse({"training": {"method": "mine"}}))
    with pytest.raises(ConfigError, match="adds noise"):
        method_of(recipe)
    with pytest.raises(ConfigError, match=r"training\.colour: no optional recipe key"):
        method("mine", what="", keys=("training.colour",))(dp_fedavg_recipe)


@dataclass(frozen=True)
class Turns(fv.RoundRobin):
    """Turns by another name."""


@dataclass(frozen=True)
class Secret(fv.RoundRobin):
    """Claims credit for a secrecy that nobody has proved."""

    amplifies = True


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in ("_things", "_origins"):  # what a test registers is forgotten afterwards
        monkeypatch.setattr(SAMPLERS, kept, dict(getattr(SAMPLERS, kept)))


def test_a_sampler_is_certified_if_and_only_if_it_is_named(named: None) -> None:
    """It costs what turns cost, and its guarantee can be read again."""
    fv.register("training.sampling", "turns")(Turns)
    words = ["data.clients=50", "training.rounds=4", "training.cohort=10"]
    words += ["privacy.noise_multiplier=2", "privacy.clip_norm=1"]
    trusted = [f'privacy.trusted_parts=["{__name__}:Turns"]']
    found = []
    for more in (["round-robin"], ["turns"], ["turns", *trusted]):
        chosen = recipes.parse({}, [*words, f"training.sampling={more[0]}", *more[1:]])
        chosen = recipes.with_defaults(chosen)
        guarantee = plan_of(chosen, federation_of(chosen.data)).guarantee
        assert guarantee is not None
        assert fv.Guarantee.from_dict(guarantee.to_dict()) == guarantee
        found.append(guarantee)
    assert [each.certified for each in found] == [True, False, True]
    assert len({each.epsilon for each in found}) == 1
    assert any("Turns" in sentence for sentence in found[2].rests_on)


def test_what_cannot_be_registered_or_used_is_refused(named: None) -> None:
    with pytest.raises(ConfigError, match="register"):
        fv.register("privacy.epsilon", "mine")
    with pytest.raises(ConfigError, match="poisson"):
        fv.register("training.sampling", "poisson")(Turns)
    fv.register("training.sampling", "secret")(Secret)
    fv.register("training.sampling", "coins")(fv.Poisson)
    for name in ("secret", "coins", "nobody"):
        with pytest.raises(ConfigError, match=r"training\.sampling"):
            fv.CohortRule(name, size=10)
    with pytest.raises(ConfigError, match="scheme"):
        fv.CohortRule(None, size=10)  # type: ignore[arg-type]


def test_names_and_recipes_are_read_without_torch() -> None:
    script = (
        "import sys, pathlib, fedveil.cli.account, fedveil.cli.run, fedveil.methods.registry;"
        "from fedveil.planning import recipe;"
        "recipe.parse(recipe.read(pathlib.Path('dp-fedavg')));"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
