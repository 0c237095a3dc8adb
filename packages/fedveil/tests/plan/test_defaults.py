"""What is chosen for a table that nobody has tuned: from public facts, and good on strange data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedveil.cli.own_data import say
from fedveil.core.errors import ConfigError
from fedveil.core.units import Unit
from fedveil.data.dp_schema import Bought
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.run.run import Run
from fedveil.run.scores import Scores
from fedveil.tune.defaults import FEW, Chosen, choose

SCHEMA = """
[columns.x]
type = "number"
mean = 0
std = 1
[columns.z]
type = "number"
mean = 0
std = 1
[columns.kind]
type = "category"
categories = ["a", "b", "c"]
[columns.y]
type = "number"
mean = 0
std = 2
"""


def table(folder: Path, name: str, *, clients: int, each: int, seed: int, signal: float) -> Path:
    """Rows of clients whose sizes differ; `signal` is how much x and kind say about y."""
    draw, lines = np.random.default_rng(seed), ["who,x,z,kind,y"]
    for client in range(clients):
        for _ in range(each + int(draw.integers(0, each))):
            x, z, kind = draw.normal(), draw.normal(), draw.choice(["a", "b", "c"])
            y = signal * (x + (kind == "b")) + draw.normal()
            lines.append(f"c{client:04d},{x:.4f},{z:.4f},{kind},{y:.4f}")
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    return path


def chosen_for(path: Path, *assignments: str, **values: object) -> Chosen:
    given = {"data.file": str(path), "data.client_column": "who", "data.label": "y"}
    given |= {"data.schema": str(path.parent / "schema.toml"), "seed": 1}
    given |= {name.replace("__", "."): value for name, value in values.items()}
    recipe = recipes.parse({}, assignments, given)
    keys = {assignment.partition("=")[0] for assignment in assignments}
    return choose(recipe, keys | set(given))


def scored(choice: Chosen) -> Scores:
    run = Run(plan_of(choice.recipe, choice.federation))
    run.finish()
    found = run.scores()
    run.close()
    assert found is not None
    return found


def test_the_choice_knows_nothing_of_private_values_and_sizes(tmp_path: Path) -> None:
    """Two files of the same columns and clients, everything else different: the same answer."""
    one = table(tmp_path, "one.csv", clients=40, each=5, seed=0, signal=2.0)
    two = table(tmp_path, "two.csv", clients=40, each=30, seed=1, signal=0.0)
    found = [chosen_for(path) for path in (one, two)]
    assert found[0].notes == found[1].notes
    assert found[0].warning == found[1].warning
    settings = [replace(one.recipe, data=found[0].recipe.data) for one in found]
    assert settings[0] == settings[1]


def test_the_default_learns_what_there_is_to_learn(tmp_path: Path) -> None:
    """y has variance 1 + 4 (1 + 2/9) = 5.9, of which 1 is noise: within 15 % of the best RMSE."""
    path = table(tmp_path, "t.csv", clients=200, each=10, seed=2, signal=2.0)
    choice = chosen_for(path)
    found = scored(choice)
    assert found.clearly_better
    assert found.figures["rmse"] < 1.15
    assert not choice.warning
    assert plan_of(choice.recipe, choice.federation).guarantee.unit is Unit.CLIENT


def test_few_clients_have_their_rows_protected(tmp_path: Path) -> None:
    """Three hospitals cannot hide one of them, and are told so; their rows can be hidden well."""
    path = table(tmp_path, "t.csv", clients=3, each=300, seed=3, signal=2.0)
    choice = chosen_for(path)
    assert "3 clients are too few" in choice.notes[0]
    plan = plan_of(choice.recipe, choice.federation)
    assert plan.guarantee is not None
    assert plan.guarantee.unit is Unit.RECORD
    assert plan.guarantee.epsilon <= 4
    rows = scored(choice)
    assert rows.figures["rmse"] < 1.2
    insisted = chosen_for(path, privacy__unit="client")
    assert scored(insisted).figures["rmse"] > 1.3 * rows.figures["rmse"]


def test_what_cannot_work_is_said_before_the_training(tmp_path: Path) -> None:
    path = table(tmp_path, "t.csv", clients=30, each=5, seed=3, signal=2.0)
    keys = ("privacy.epsilon=0.1", "training.rounds=4")
    hopeless = chosen_for(path, *keys, privacy__unit="client").warning
    assert "do not expect the model to beat a constant answer with 30 clients" in hopeless
    assert "--unit record" in hopeless
    assert not chosen_for(path, "privacy.epsilon=100", "training.rounds=4").warning


@pytest.mark.parametrize("clients", [FEW - 1, FEW])
def test_how_many_clients_are_few(tmp_path: Path, clients: int) -> None:
    path = table(tmp_path, "t.csv", clients=clients, each=5, seed=4, signal=1.0)
    unit = chosen_for(path, "training.rounds=2").recipe.privacy.unit
    assert unit == ("record" if clients < FEW else "client")


@pytest.mark.parametrize(
    ("unit", "given"),
    [
        ("client", ("training.rounds=2", "training.sampling=fixed", "training.cohort=10")),
        ("client", ("training.rounds=2", "training.local_steps=2", "server.average=none")),
        ("client", ("training.rounds=2", "training.learning_rate=0.01", "data.statistics=data")),
        ("client", ("training.rounds=2", "privacy.clip_norm=0.5", "server.average=tail")),
        ("record", ("training.rounds=2", "training.batch_size=4", "privacy.clip_norm=0.5")),
        ("record", ("training.rounds=2", "training.learning_rate=0.01", "server.average=none")),
    ],
)
def test_every_choice_can_be_made_by_the_user(
    tmp_path: Path, unit: str, given: tuple[str, ...]
) -> None:
    path = table(tmp_path, "t.csv", clients=32, each=5, seed=5, signal=1.0)
    choice = chosen_for(path, *given, privacy__unit=unit)
    assert choice.recipe.privacy.unit == unit
    for key, _, wanted in (one.partition("=") for one in given):
        section, _, name = key.partition(".")
        assert str(getattr(getattr(choice.recipe, section), name)) == wanted, key
    assert plan_of(choice.recipe, choice.federation).guarantee is not None
    assert ("averaged" in choice.notes[-1]) == ("server.average=none" not in given)


@pytest.mark.parametrize(
    ("model", "rows", "least"), [("linear", 40, 1), ("mlp", 40, 1), ("mlp", 1100, 0.4)]
)
def test_a_network_takes_secret_batches_where_there_are_many_rows(
    tmp_path: Path, model: str, rows: int, least: float
) -> None:
    """All rows are in every step where they are few, and of a linear model always."""
    path = table(tmp_path, "t.csv", clients=2, each=rows, seed=3, signal=1.0)
    settings = ("rounds=3", "local_steps=1", "learning_rate=0.1")
    given = [f"training.{one}" for one in settings] + ["privacy.clip_norm=1", f"model.name={model}"]
    choice = chosen_for(path, *given, privacy__unit="record", training__method="dp-sgd")
    rate = choice.recipe.training.batch_rate
    assert rate is not None
    assert least <= rate <= 1
    assert (rate == 1) == (rows == 40)
    guarantee = plan_of(choice.recipe, choice.federation).guarantee
    assert guarantee is not None
    assert guarantee.adjacency == "zero-out"


def test_the_unit_chooses_a_method() -> None:
    """In any recipe, unless it names one; and then that one must protect the unit."""

    def method(*assignments: str) -> str:
        return recipes.with_defaults(recipes.parse({}, assignments)).training.method

    assert method() == method("privacy.unit=client") == "dp-fedavg"
    assert method("privacy.unit=record") == method("privacy.unit=person") == "dp-sgd"
    assert method("privacy.unit=record", "training.method=gradient-noise") == "gradient-noise"
    for wrong in (("record", "dp-fedavg"), ("client", "dp-sgd")):
        recipe = recipes.parse({}, [f"privacy.unit={wrong[0]}", f"training.method={wrong[1]}"])
        recipe = recipes.with_defaults(recipe)
        with pytest.raises(ConfigError, match=r"\bunit: "):
            plan_of(recipe, federation_of(recipe.data))


def test_nothing_chosen_follows_the_true_number_of_clients_if_another_is_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Across the number below which records are protected, and above which statistics are bought;
    the promise is that nobody can tell whether one client is there at all."""
    seen = []
    for clients in (FEW - 1, FEW):
        path = table(tmp_path, f"{clients}.csv", clients=clients, each=2, seed=1, signal=1.0)
        found = chosen_for(path, "privacy.public_clients=400", "training.rounds=2")
        data = replace(found.recipe.data, file=None)
        say(found)
        seen.append((replace(found.recipe, data=data), found.notes, capsys.readouterr().err))
    assert seen[0] == seen[1]
    assert "400 clients" in seen[0][2]


@pytest.mark.parametrize(("clients", "says"), [(3, "A run buys"), (40, "too few to buy")])
def test_a_plan_buys_nothing_and_says_what_a_run_would_do(
    tmp_path: Path, clients: int, says: str
) -> None:
    path = table(tmp_path, "t.csv", clients=clients, each=2000 // clients, seed=7, signal=1.0)
    given = {"data.file": str(path), "data.client_column": "who", "data.label": "y"}
    given |= {"training.rounds": 2, "training.local_steps": 1, "training.learning_rate": 0.1}
    given["privacy.clip_norm"] = 1.0
    paid: list[Bought] = []
    pay = lambda bought, *, delta: paid.append(bought)  # noqa: E731
    choice = choose(recipes.parse({}, (), given), set(given), pay, buy=False)
    assert not paid
    assert any(says in note for note in choice.notes)
    guarantee = plan_of(choice.recipe, choice.federation).guarantee
    assert guarantee is not None
    assert guarantee.certified == (clients == 3)


@pytest.mark.parametrize("statistics", ["bought", "data"])
def test_nobody_is_warned_of_what_is_learnt(tmp_path: Path, statistics: str) -> None:
    """The loans of the README: a warning must come from the noise, and not from made-up rows of
    which little can be predicted even without any."""
    loans = Path(__file__).parents[4] / "examples" / "loans.csv"
    given = {"data.file": str(loans), "data.client_column": "customer", "data.label": "grade"}
    given |= {"data.statistics": statistics, "seed": 1}
    choice = choose(recipes.parse({}, (), given), set(given))
    assert not choice.warning
    found = scored(choice)
    assert found.figures["accuracy"] > 0.82 > 0.55 > found.constant["accuracy"]


def test_three_rows_teach_nothing_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,a\n2,b\n3,a\n")
    (tmp_path / "schema.toml").write_text(
        '[columns.x]\ntype = "number"\nmin = 0\nmax = 4\n'
        '[columns.y]\ntype = "category"\ncategories = ["a", "b"]\n'
    )
    assert "3 records" in chosen_for(path, data__client_column="file").warning


@pytest.mark.parametrize(("described", "told"), [("min = -9\nmax = 9", True), ("", False)])
def test_whoever_declares_a_range_is_told_what_does_better(
    tmp_path: Path, described: str, told: bool
) -> None:
    path = table(tmp_path, "t.csv", clients=40, each=5, seed=0, signal=2.0)
    ranged = SCHEMA.replace("mean = 0\nstd = 1", described, 1) if told else SCHEMA
    (tmp_path / "schema.toml").write_text(ranged)
    notes = chosen_for(path, "training.rounds=2").notes
    assert any("min and max: 'x'." in note for note in notes) == told
