"""Every page is well formed, its noise is the paper's, and what is written belongs to it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.paths import ROOT

from fedveil.cli import main
from fedveil.data.sources import SOURCES
from fedveil.methods.registry import method_of
from fedveil.planning.unread import refuse_unread
from fedveil.training.models.zoo import MODELS
from fedveil.training.server.smoothing import smooth
from fedveil_lab.reproduction import runs
from fedveil_lab.reproduction.case import Case, Certified, Claimed, Without, at_hand
from fedveil_lab.reproduction.experiment import Experiment, Scale
from fedveil_lab.reproduction.pages import EXPERIMENTS, fu, liang
from fedveil_lab.reproduction.run_case import recipe_of, run_case
from fedveil_lab.reproduction.runs import Row
from fedveil_lab.reproduction.writing import as_json, page, stale_rows

BOTH = [(experiment, scale) for experiment in EXPERIMENTS.values() for scale in Scale]
IDS = [f"{experiment.name}-{scale}" for experiment, scale in BOTH]
RESULTS = ROOT / "results"
WRITTEN = {
    name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in EXPERIMENTS
}
LOCAL = (1, 2, 4, 8, 12, 24)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("experiment", "scale"), BOTH, ids=IDS)
def test_every_case_is_a_recipe_that_makes_a_method(experiment: Experiment, scale: Scale) -> None:
    cases = experiment.cases(scale)
    assert len({case.labels for case in cases}) == len(cases)
    for case in cases if experiment.run is None else ():
        recipe = recipe_of(case, 0)
        assert method_of(recipe).rounds == recipe.training.rounds
        refuse_unread(recipe)
        assert recipe.model.name in MODELS
        assert case.data.source in SOURCES
        if isinstance(case.noise, Claimed | Certified):
            assert case.noise.epsilon > 0
            assert 0 <= case.noise.delta < 0.02


@pytest.mark.parametrize(("experiment", "scale"), BOTH, ids=IDS)
def test_panels_ask_for_labels_that_cases_have(experiment: Experiment, scale: Scale) -> None:
    cases = experiment.cases(scale)
    shown = 0
    for panel in experiment.panels:
        chosen = [c for c in cases if all(c.get(k) == v for k, v in panel.where)]
        shown += bool(chosen)
        assert all(case.get(panel.by) is not None for case in chosen)
        if panel.x == "round":
            assert all(case.every for case in chosen)
        else:
            kinds = {isinstance(case[panel.x], str) for case in chosen}
            assert len(kinds) <= 1, "an axis of numbers or of words, not both"
    assert shown


def test_liang_noise_is_that_of_the_referee_table() -> None:
    """nu for claimed epsilon 6 to 9, fixed size and Poisson, to a part in a thousand."""
    wanted = {
        "fixed": (0.8083, 0.6637, 0.5822, 0.5258),
        "poisson": (0.7773, 0.6437, 0.5663, 0.5124),
    }
    for sampling, values in wanted.items():
        for epsilon, value in zip(liang.EPSILONS, values, strict=True):
            noise = liang.mnist_noise("paper", sampling, epsilon)
            assert isinstance(noise, Claimed)
            assert noise.noise_multiplier * 0.3 == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize(("z", "printed"), [(1.0, 5.07), (1.5, 2.56)])
def test_svhn_runs_at_the_papers_noise_and_epsilon_at_both_scales(
    scale: Scale, z: float, printed: float
) -> None:
    noise = liang.network_noise("svhn", scale, "poisson", z, "paper")
    assert noise == Claimed(printed, 2000**-1.1, z)


def test_a_smaller_cohort_gets_the_same_noise_on_its_average_and_owns_up_to_the_epsilon() -> None:
    small, large = (
        liang.network_noise("shakespeare", scale, "poisson", 1.0, "paper") for scale in Scale
    )
    assert isinstance(small, Claimed)
    assert isinstance(large, Claimed)
    assert large.epsilon == 14.04
    assert small.noise_multiplier / 39 == pytest.approx(large.noise_multiplier / 195)
    assert small.epsilon > 2 * large.epsilon


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_a_shorter_step_leaves_as_much_noise_as_smoothing_does(strength: int) -> None:
    """On 200,000 draws with a fixed seed; the deviation of the ratio is below 0.3 %."""
    noise = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    left = smooth(noise, float(strength)).std() / noise.std()
    assert left == pytest.approx(liang.LEFT[strength], rel=0.01)


def total_variance(kind: str, local: int) -> float:
    """Variance of all noise of a run of 120 steps on the mean of b, in units of a step's bound."""
    rounds = 120 // local
    noise = fu.noise_of(kind, 10, 3500, 350, rounds, delta=1e-4, local=local)
    assert isinstance(noise, Claimed)
    return rounds * (noise.noise_multiplier * local) ** 2 / 350


def test_fu_noise_is_theorem_1_and_theorem_2_by_hand() -> None:
    """T_g rounds of E^2 T_l ln(1/delta) / (b epsilon^2), T_l = b T_g / N: T^2 ln(1/delta) / N."""
    laplace = fu.noise_of("paper", 1, 5000, 500, 100, delta=0.0, local=1)
    assert laplace == Claimed(1.0, 0.0, 10.0)
    wanted = 120**2 * 9.210340 / (3500 * 10**2)
    for local in LOCAL:
        assert total_variance("paper", local) == pytest.approx(wanted, rel=1e-6)
        ratio = total_variance("one step", 1) / total_variance("one step", local)
        assert ratio == pytest.approx(local**2, rel=1e-9)
    silent = fu.noise_of("paper", fu.NO_NOISE, 3500, 350, 120, delta=1e-4, local=1)
    proved = fu.noise_of("certified", 20, 3500, 350, 120, delta=1e-4, local=1)
    assert (silent, proved) == (Without(), Certified(20.0, 1e-4))


def cases_of(name: str) -> tuple[Case, ...]:
    """The cases of a written page; a test of one whose data are not on this machine is skipped."""
    cases = EXPERIMENTS[name].cases(Scale(WRITTEN[name]["scale"]))
    if lacking := {case.data.source for case in cases if not at_hand(case.data)}:
        pytest.skip(f"{', '.join(lacking)} is not on this machine")
    return cases


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_of_the_page_as_it_stands(name: str) -> None:
    """Same settings, complete, and drawn again from the JSON without running anything."""
    written, cases = WRITTEN[name], cases_of(name)
    wanted = {json.dumps(dict(case.labels)): case for case in cases}
    assert written["runs_missing"] == 0
    assert len(written["rows"]) == len(cases)
    for row in written["rows"]:
        values = dict(wanted[json.dumps(row["labels"])].values)
        assert {**written["recipe"], **row["recipe"]} == json.loads(json.dumps(values))
    assert written["charts"]
    assert page(written) == (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert as_json(written) == (RESULTS / f"{name}.json").read_text(encoding="utf-8")


# Pages whose sources are in the repository's data folder, and a case that takes a second or two.
CHEAP = {
    "fu-table-2": {"clients": 425, "noise": "paper", "epsilon": 1, "T": 10},
    "fu-figure-7": {"noise": "paper", "E": "1", "T": 1},
    "hu-figure-7": {"method": "DP-SGD", "noise": "paper", "epsilon": 1.0},
    "liang-figure-1": {"smoothing": 1.0},
}
SLOWER = {
    "hu-figure-5": {"method": "DP-SGD", "noise": "paper"},
    "fu-table-4": {"noise": "paper", "epsilon": 10, "E": 24},
    "hu-figure-4": {"sigma": 0.0001, "tau": 1},
    "hu-figure-8": {"method": "secure sum", "noise": "certified", "epsilon": 1.0},
    "liang-table-1": {"sampling": "fixed", "noise": "paper", "epsilon": 6, "smoothing": 0},
    "liang-control-cnn": {"z": 0.0, "method": "none"},
    "liang-table-2": {"noise": "paper", "z": 1.0, "smoothing": 0.0},
    "cheng-figure-1": {"lambda": 0.0},
}
SAMPLE = [
    *(pytest.param(name, labels, id=name) for name, labels in CHEAP.items()),
    *(pytest.param(n, labels, id=n, marks=pytest.mark.slow) for n, labels in SLOWER.items()),
]


def case_of(name: str, labels: dict[str, object]) -> tuple[Case, dict[str, object]]:
    """The first case with these labels, and its written row."""
    case = next(
        c for c in cases_of(name) if all(c.get(key) == value for key, value in labels.items())
    )
    rows = WRITTEN[name]["rows"]
    return case, next(row for row in rows if row["labels"] == dict(case.labels))


@pytest.mark.parametrize(("name", "labels"), SAMPLE)
def test_a_sample_of_the_written_results_comes_out_again(
    name: str, labels: dict[str, object]
) -> None:
    """Mean and deviation over the same seeds, to the digits that a table shows.

    In a network's whole run the rounding of another processor may turn two or three test images.
    """
    experiment = EXPERIMENTS[name]
    case, row = case_of(name, labels)
    ours = row["ours"]
    run = experiment.run or run_case
    outcomes = tuple(run(case, seed, lambda share: None) for seed in range(ours["seeds"]))
    again = Row(case, outcomes).spread(experiment.metric)
    images = 0.06 if experiment.metric == "accuracy" else 0.0  # percentage points
    assert again.mean == pytest.approx(ours["mean"], rel=1e-4, abs=images)
    assert again.deviation == pytest.approx(ours["deviation"], rel=1e-2, abs=images or 1e-3)


# Pages with hours of runs of older code; their Markdown says so.
OLDER = {name for name in WRITTEN if any(row["digest"] is None for row in WRITTEN[name]["rows"])}
LONG = ("cheng-own-size", "cheng-table-2", "cheng-where")  # seconds of probes


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n in LONG else ())
        for n in sorted({*WRITTEN} - OLDER)
    ],
)
def test_written_results_are_of_todays_settings_rows_and_training(name: str) -> None:
    """A page whose data are dealt, or whose models are trained, otherwise since is run again."""
    cases_of(name)
    assert stale_rows(EXPERIMENTS[name], WRITTEN[name]) == []


def test_older_results_are_called_older() -> None:
    assert len(OLDER) < len(WRITTEN) / 4
    for name in OLDER:
        assert "Of older code" in (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def test_other_training_makes_a_result_stale_and_only_that_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["reproduce", "fu-table-3", "--seeds", "1", "--results", str(tmp_path), "--json"]
    words += ["--set", "clients=400", "--set", "T=12"]
    cases_of("fu-table-3")
    assert main(words) == 0
    before = json.loads(capsys.readouterr().out)
    found = [row["ours"]["mean"] for row in before["rows"]]
    stored = sorted((tmp_path / ".runs").glob("*.json"))
    changed = json.loads(stored[0].read_text())
    stored[0].write_text(json.dumps(changed | {"probe": changed["probe"] * 1.01, "final": {}}))
    (tmp_path / "fu-table-3-changed.json").write_text(as_json(before | {"rows": [
        {**row, "probe": 1e9} if number == 0 else row for number, row in enumerate(before["rows"])
    ]}))  # fmt: skip
    ran: list[Case] = []
    whole = runs.run_case
    monkeypatch.setattr(runs, "run_case", lambda *a: ran.append(a[0]) or whole(*a))
    assert main(words) == 0
    said = capsys.readouterr()
    assert [row["ours"]["mean"] for row in json.loads(said.out)["rows"]] == found
    assert len(ran) == 1
    assert "stale" in said.err
    assert before["rows"][0]["labels"]["noise"] in said.err


def test_a_page_and_a_picture_are_drawn_again_from_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "liang-figure-1"
    shutil.copy(RESULTS / f"{name}.json", tmp_path)
    words = ["reproduce", name, "--report", "--results", str(tmp_path)]
    assert main([*words, "--scale", "full"]) == 0
    assert (tmp_path / f"{name}.svg").read_bytes() == (RESULTS / f"{name}.svg").read_bytes()
    assert main(words) == 2  # what is there is of another scale
    assert name in capsys.readouterr().err


def test_list_names_every_table_and_figure_within_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["reproduce", "list", "--json"]) == 0
    names = {item["name"] for item in json.loads(capsys.readouterr().out)["experiments"]}
    wanted = {f"hu-figure-{n}" for n in range(3, 9)}
    wanted |= {f"liang-table-{n}" for n in (1, 2, 3)} | {f"liang-figure-{n}" for n in range(1, 6)}
    wanted |= {f"cheng-table-{n}" for n in (1, 2, 3)} | {f"cheng-figure-{n}" for n in (1, 2, 3, 4)}
    wanted |= {f"fu-table-{n}" for n in (2, 3, 4)} | {f"fu-figure-{n}" for n in (1, 2, 4, 7)}
    assert wanted <= names
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["reproduce", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in names:  # a name is on one line, with what it costs
        assert sum(bool(re.search(rf"\b{name} .*min", line)) for line in lines) == 1, name


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["liang-tabel-1"], "liang-table-1"),
        (["liang-table-1", "--seeds", "0"], "--seeds"),
        (["liang-table-1", "--report", "--results", "nowhere"], "--report"),
        (["fu-table-3", "--set", "nothing=1"], "nothing"),
        (["fu-table-3", "--set", "epsilon=0"], "epsilon"),
        (["fu-table-3", "--set", "T=0"], "T"),
        (["fu-table-2", "--set", "noise=foo"], "certified"),
        (["liang-control", "--set", "method=foo"], "shorter step"),
        (["fu-table-3", "--set", "data.source=mnist"], "data.source"),
        (["fu-table-3", "--set", "privacy.epsilon=2"], "privacy.epsilon"),
        (["liang-table-1", "--set", "model.features=scattering"], "model.features"),
        (["hu-figure-7", "--set", "model=none"], "model"),
        (["fu-table-3", "--set", "training.weighting=examples"], "training.weighting"),
    ],
)
def test_bad_requests_are_answered_in_one_line(
    arguments: list[str],
    key: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    said = capsys.readouterr().err
    assert key in said
    assert said.count("\n") == 1
