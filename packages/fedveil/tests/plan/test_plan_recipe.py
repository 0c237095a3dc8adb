"""`fedveil plan RECIPE`: budgets out of recipes, constants out of public data only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism

from fedveil import cli
from fedveil.planning import recipe as recipes
from fedveil.tune.constants import LossConstants
from fedveil.tune.from_recipe import score_of_recipe, situation_of

near = pytest.approx
RECIPE = """
seed = 1
[training]
rounds = 12
sampling = "everyone"
local_steps = 2
[privacy]
epsilon = 4.0
clip_norm = 0.8
"""
CONSTANTS = {
    "--strong-convexity": "1",
    "--smoothness": "4",
    "--gradient-bound": "1",
    "--heterogeneity": "0.1",
    "--initial-distance": "1",
}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "plan", "what a budget buys")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def private(tmp_path: Path) -> str:
    """A recipe on a file of three owners, which is private for all we know."""
    rng = np.random.default_rng(0)
    rows = [
        f"{owner},{x:.4f},{y:.4f},{x - y:.4f}"
        for owner in "abc"
        for x, y in rng.normal(size=(12, 2))
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["owner,x,y,score", *rows]))
    path = tmp_path / "private.toml"
    path.write_text(
        RECIPE
        + f'[data]\nfile = "{tmp_path / "visits.csv"}"\nclient_column = "owner"\nlabel = "score"\n'
        'task = "regression"\n'
    )
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *line: str) -> dict:
    assert cli.main(["plan", *line, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert cli.main(["plan", *line]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    return out.err


def test_noise_of_the_score_is_the_accountants() -> None:
    """Everybody every round, a trusted server: exact Gaussian, no sampling."""
    table = {"training": {"rounds": 12, "sampling": "everyone", "local_steps": 2}}
    chosen = recipes.parse({"seed": 1, **table, "privacy": {"epsilon": 4.0}})
    situation = situation_of(recipes.with_defaults(chosen))
    loss = LossConstants(1, 4, 1.5, 0.1, 1, 1, 1, "here")
    score = score_of_recipe(situation, loss)
    sigma = gaussian_mechanism.get_sigma_gaussian(4, situation.delta)
    unit = 4 * situation.dimension * (1.5 * sigma / situation.clients) ** 2
    assert situation.total_steps == 24
    for rounds, value in score.noise_curve:
        assert value == near(unit * rounds, rel=3e-3)
    assert score.growth == near(1.0, abs=0.01)
    one, far = np.array([1.0]), np.array([2400.0])  # a hundred times beyond the last pair
    alone = score(one, far) - score.with_noise(1e-9)(one, far)
    assert alone == near(4 * 2400 * unit * 2400 / (2400 + 31) ** 2, rel=0.02)
    middle = score(np.array([4.0]), np.array([6.0])) - score.with_noise(1e-9)(
        np.array([4.0]), np.array([6.0])
    )
    power = score(np.array([1.0]), np.array([24.0])) - score.with_noise(1e-9)(
        np.array([1.0]), np.array([24.0])
    )
    assert middle == near(power, rel=0.02)  # z = 1: the noise does not depend on the split


def test_iterations_from_a_recipe(
    capsys: pytest.CaptureFixture[str], recipe: str, tmp_path: Path
) -> None:
    saved, picture = tmp_path / "best.toml", tmp_path / "bound.png"
    said = answer(capsys, recipe, "--iterations", "--write", str(saved), "--plot", str(picture))
    assert said["local_steps"] * said["rounds"] == 24
    assert said["rule_of_thumb"]["total_steps"] == 24
    assert said["constants_from"] == "digits"
    assert [p["name"] for p in said["proposals"]] == ["recommended", "more private", "cheaper"]
    assert said["proposals"][1]["epsilon"] == 2.0
    assert said["proposals"][2]["rounds"] <= said["rounds"]
    written = recipes.parse(recipes.read(saved))
    assert written.training.local_steps == said["local_steps"]
    assert written.training.rounds == said["rounds"]
    assert written.privacy.clip_norm == near(0.8 * said["local_steps"] / 2)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_feasible_set_around_a_recipe(capsys: pytest.CaptureFixture[str], recipe: str) -> None:
    said = answer(capsys, recipe, "--feasible", "--trust", "local")
    assert [row["rounds"] for row in said["rows"]] == [3, 12, 48]
    assert said["clients"] == 100
    assert "local_steps" not in said


def test_steps_can_be_said_beside_a_recipe(capsys: pytest.CaptureFixture[str], recipe: str) -> None:
    total = answer(capsys, recipe, "--iterations", "--total-steps", "30")
    assert total["total_steps"] == 30
    steps = answer(capsys, recipe, "--iterations", "--local-steps", "2", "--max-steps", "400")
    best, _, cheaper = steps["proposals"]
    assert steps["local_steps"] == best["local_steps"] == cheaper["local_steps"] == 2
    assert cheaper["rounds"] <= best["rounds"] <= 200
    assert cheaper["bound"] <= 1.25 * best["bound"]
    joint = answer(capsys, recipe, "--iterations", "--max-steps", "400")
    assert joint["bound"] <= min(total["bound"], steps["bound"])
    said = complaint(capsys, recipe, "--iterations", "--total-steps", "30", "--local-steps", "4")
    assert "28 or 32 would be" in said


def test_laplace_recipes_are_planned_with_laplace_noise(
    capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    changes = ("training.method=client-noise", "training.sampling=round-robin", "training.rate=1.0",
               "privacy.noise=laplace", "privacy.delta=0.0")  # fmt: skip
    said = answer(capsys, recipe, *(part for change in changes for part in ("--set", change)))
    (row,) = (r for r in said["rows"] if r["trust"] == "local" and r["rounds"] == 12)
    assert row["noise_multiplier"] == near(2 * 12 / 4)
    assert said["noise"] == "laplace"
    assert said["delta"] == 0
    assert said["rule_of_thumb"]["local_steps"] in (8, 6, 12)  # 24^(2/3) is 8.3


def test_heuristic_scores_of_a_recipe_say_so(
    capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    cheng = answer(capsys, recipe, "--iterations", "--score", "cheng")
    assert "heuristic" in cheng["heuristic"]
    assert cheng["rule_of_thumb"] is None
    # Corollary 1 at one step: 1/(eta T) + eta^2 + eta/b + eta T d ln(1/delta)/(N epsilon)^2
    rate, total, clients, dimension = 0.02, 24, 100, 650
    set_rate = ("--set", f"training.learning_rate={rate}")
    one = answer(capsys, recipe, "--iterations", "--score", "cheng", *set_rate)["one_step"]
    noise = dimension * np.log(1e5) / (clients * 4.0) ** 2
    expected = 1 / (rate * total) + rate**2 + rate / clients + rate * total * noise
    assert one["bound"] == near(expected, rel=1e-6)
    hu = answer(capsys, recipe, "--score", "hu", *set_rate)
    assert hu["score"] == "hu"
    assert "rows" not in hu
    said = complaint(capsys, recipe, "--score", "hu", "--feasible")
    assert "--iterations" in said


def test_constants_are_never_measured_on_a_file(
    capsys: pytest.CaptureFixture[str], private: str
) -> None:
    assert "--proxy" in complaint(capsys, private, "--iterations")
    given = answer(
        capsys, private, "--iterations", *(part for pair in CONSTANTS.items() for part in pair)
    )
    assert given["constants_from"] == "the user"
    proxy = answer(capsys, private, "--iterations", "--proxy", "digits")
    assert proxy["constants_from"] == "digits"
    both = answer(capsys, private, "--trust", "local")  # without a proxy, what needs none
    assert "--proxy" in both["warnings"][-1]
    assert both["rows"]
    assert "local_steps" not in both


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--set", "training.method=fedavg"], "adds no noise"),
        (["--set", "privacy.epsilon=0"], "epsilon"),
        (["--spent-epsilon", "4"], "already spent"),
        (["--epsilon", "3"], "change it with --set"),
        (["--noise-constant", "1"], "change it with --set"),
        (["--iterations", "--strong-convexity", "1"], "all of them or none; missing --smoothness"),
        (["--iterations", "--proxy", "nowhere"], "nowhere"),
        (["--iterations", "--plot", "bound.txt"], "use .png, .pdf or .svg"),
    ],
)
def test_mistakes_in_one_line(
    capsys: pytest.CaptureFixture[str], recipe: str, change: list[str], says: str
) -> None:
    said = complaint(capsys, recipe, *change)
    assert says in said
    assert said.count("\n") == 1


def test_a_proxy_without_a_recipe_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert "used with a recipe" in complaint(capsys, "--iterations", "--proxy", "digits")
    assert "no such file" in complaint(capsys, "nothing.toml")
