"""Every page is well formed: its recipes make methods, its pictures ask for labels that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedveil.cli import main
from fedveil.datasets import SOURCES
from fedveil.methods.registry import method_of
from fedveil.models.zoo import MODELS
from reproduction.case import Certified, Claimed
from reproduction.experiment import Experiment, Scale
from reproduction.pages import EXPERIMENTS, fu_lending, hu_adult, liang_mnist
from reproduction.run_case import recipe_of

BOTH = [(experiment, scale) for experiment in EXPERIMENTS.values() for scale in Scale]
IDS = [f"{experiment.name}-{scale}" for experiment, scale in BOTH]


@pytest.mark.parametrize(("experiment", "scale"), BOTH, ids=IDS)
def test_every_case_is_a_recipe_that_makes_a_method(experiment: Experiment, scale: Scale) -> None:
    cases = experiment.cases(scale)
    assert len({case.labels for case in cases}) == len(cases)
    for case in cases if experiment.run is None else ():
        recipe = recipe_of(case, 0)
        assert method_of(recipe).rounds == recipe.training.rounds
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


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_pages_say_what_the_paper_did_and_run_both_noises(experiment: Experiment) -> None:
    assert experiment.setting
    assert experiment.differences
    kinds = {case.get("noise") for case in experiment.cases(Scale.FULL)} - {None}
    both = {"paper", "certified"}
    # Pages about the noise itself, other readings, or settings inside one method show one kind.
    single = ("readings", "hu-figure-3", "hu-figure-4", "cheng-", "liang-figure-3",
              "liang-figure-4", "liang-figure-5", "liang-control")  # fmt: skip
    if experiment.run is None and not any(name in experiment.name for name in single):
        assert both <= kinds


def test_quick_is_no_larger_than_full() -> None:
    for experiment in EXPERIMENTS.values():
        size = {
            scale: sum(int(dict(c.values)["training.rounds"]) for c in experiment.cases(scale))
            for scale in Scale
        }
        assert size[Scale.QUICK] <= size[Scale.FULL], experiment.name


def test_liang_noise_is_that_of_the_referee_table() -> None:
    """nu for claimed epsilon 6 to 9, fixed size and Poisson, to a part in a thousand."""
    wanted = {
        "fixed": (0.8083, 0.6637, 0.5822, 0.5258),
        "poisson": (0.7773, 0.6437, 0.5663, 0.5124),
    }
    for sampling, values in wanted.items():
        for epsilon, value in zip(liang_mnist.EPSILONS, values, strict=True):
            noise = liang_mnist.noise_of("paper", sampling, epsilon)
            assert isinstance(noise, Claimed)
            assert noise.noise_multiplier * liang_mnist.CLIP == pytest.approx(value, rel=1e-3)


def test_fu_noise_is_theorem_1_by_hand() -> None:
    noise = fu_lending.noise_of("paper", 1, 5000, 500, 100)
    assert isinstance(noise, Claimed)
    assert noise.noise_multiplier == 10.0


def test_hu_noise_is_the_golden_sigma() -> None:
    """sigma = 0.0048068 at epsilon 10, delta 1e-4, C = 12.5, tau = 10, m = 2440, gamma = 244."""
    claim = hu_adult.paper_hu_noise_std(
        epsilon=10,
        delta=1e-4,
        participations=hu_adult.participations(20),
        local_steps=10,
        gradient_bound=1.0,
        cohort=10,
        records=2440,
        batch_size=244,
    )
    assert claim.value == pytest.approx(0.0048068, rel=1e-4)


def test_list_names_every_table_and_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "list", "--json"]) == 0
    names = {item["name"] for item in json.loads(capsys.readouterr().out)["experiments"]}
    wanted = {f"hu-figure-{n}" for n in range(3, 9)}
    wanted |= {f"liang-table-{n}" for n in (1, 2, 3)} | {f"liang-figure-{n}" for n in range(1, 6)}
    wanted |= {f"cheng-table-{n}" for n in (1, 2, 3)} | {f"cheng-figure-{n}" for n in (1, 2, 3, 4)}
    wanted |= {f"fu-table-{n}" for n in (2, 3, 4)} | {f"fu-figure-{n}" for n in (1, 2, 4, 7)}
    assert wanted <= names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["liang-tabel-1"], "did you mean liang-table-1"),
        (["liang-table-1", "--seeds", "0"], "--seeds 0"),
        (["liang-table-1", "--report", "--results", "nowhere"], "no run of scale quick"),
    ],
)
def test_bad_requests_are_answered_in_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
