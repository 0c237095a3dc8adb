"""Tuning on private data is paid for, or refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.stats import chisquare, geom
from tests.plan.searches import small_recipe, tuner_of
from tests.plan.test_proxy import private_file, private_recipe

from fedveil import cli
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.federation import Federation
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.privacy.guarantee import Guarantee
from fedveil.run.run import Run
from fedveil.tune import private_tuning
from fedveil.tune.private_tuning import _Dice, settings_to_draw, tuned
from fedveil.tune.proxy import Proxy, proxy_of
from fedveil.tune.trials import Candidate

CANDIDATES = [Candidate(2, 8, 1.0, 1.0), Candidate(4, 8, 0.5, 0.3), Candidate(1, 8, 1e-6, 1.0)]
POISSON = {"training__sampling": "poisson", "training__rate": 0.5}


def tune(recipe: Recipe, candidates: list[Candidate] | None = None, mean: float = 3.0) -> Any:
    federation = federation_of(recipe.data)
    real = plan_of(recipe, federation)
    return tuned(recipe, real, candidates or CANDIDATES, strangers(federation), mean)


def strangers(federation: Federation) -> Proxy:
    """Other people's records of the same kind: made-up test examples belong to no client."""
    other = federation.test
    offsets = np.array([0, len(other)])
    return Proxy(replace(federation, train=other, offsets=offsets, owners=None), "public")


def test_epsilons_of_single_clients_are_not_promised_for_many_runs() -> None:
    """They are accounted for one run, and the best of several costs more."""
    with pytest.raises(PrivacyRefusal, match="budgets"):
        tune(small_recipe(privacy__budgets={"3": 0.5}))


@pytest.mark.parametrize(
    ("changes", "event"),
    [
        ({}, lambda z: dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(z), 8)),
        (
            POISSON,
            lambda z: dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(0.5, dp_event.GaussianDpEvent(z)), 8
            ),
        ),
    ],
    ids=["everyone", "poisson"],
)
def test_the_budget_covers_all_runs_together(changes: dict[str, Any], event: Any) -> None:
    """By the library's own accountant for the best of a geometric number of runs."""
    candidates = [c if not changes else Candidate(*_first(c), 30) for c in CANDIDATES]
    found = tune(small_recipe(**changes), candidates)
    whole = dp_event.RepeatAndSelectDpEvent(event(found.noise_multiplier), mean=3.0, shape=1)
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 129)) + [256, 512]
    spent = RdpAccountant(orders).compose(whole).get_epsilon(found.guarantee.delta)
    assert spent <= 8.0 * 1.001
    assert found.guarantee.epsilon == pytest.approx(8.0, rel=2e-3)
    assert found.guarantee.tuning.mean == 3.0
    assert "Runs were scored on public, declared to be public." in found.guarantee.rests_on
    assert found.noise_multiplier > 1.3 * found.untuned_noise
    assert "the best of a geometric number of runs, 3 on average" in found.guarantee.statement


def test_every_run_has_the_noise_that_was_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = Run.finish

    def finish(run: Run) -> Any:
        seen.append((run.plan.noise_multiplier, run.plan.seed))
        return original(run)

    monkeypatch.setattr(Run, "finish", finish)
    recipe = small_recipe()
    found = tune(recipe, mean=4.0)
    assert {noise for noise, _ in seen} == {found.noise_multiplier}
    assert len({seed for _, seed in seen}) == len(seen)  # no two runs share their noise
    assert len(seen) == _Dice(1).geometric(Fraction(4))


def test_a_seed_makes_it_a_simulation_and_none_a_certificate() -> None:
    assert not tune(small_recipe()).guarantee.certified
    protected = small_recipe()
    protected = Recipe(**{**vars(protected), "seed": None})
    found = tune(protected, mean=1.5)
    assert found.guarantee.certified
    assert Guarantee.from_dict(json.loads(json.dumps(found.guarantee.to_dict()))) == found.guarantee


def test_the_number_of_runs_is_geometric() -> None:
    """Chi-square over 1..6 and the rest, 20 000 draws; chance of a false alarm 1e-4 (seeded)."""
    dice, mean = _Dice(0), Fraction(5, 2)
    counts = Counter(min(7, dice.geometric(mean)) for _ in range(20_000))
    law = geom(2 / 5)
    expected = [20_000 * (law.pmf(k) if k < 7 else law.sf(6)) for k in range(1, 8)]
    assert chisquare([counts[k] for k in range(1, 8)], expected).pvalue > 1e-4
    assert all(_Dice(None).geometric(Fraction(1)) == 1 for _ in range(20))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "training__method": "client-noise",
            "training__sampling": "round-robin",
            "training__rate": 0.5,
        },
        {"privacy__trust": "distributed", "training__sampling": "balanced", "training__rate": 0.5},
    ],
    ids=["local", "distributed"],
)
def test_whoever_sees_all_runs_must_be_paid_for_all(changes: dict[str, Any]) -> None:
    with pytest.raises(PrivacyRefusal, match="sees something of every run"):
        tune(small_recipe(**changes), [Candidate(2, 8, 1.0, 1.0, 30)])


def test_settings_that_release_different_things_are_refused() -> None:
    with pytest.raises(PrivacyRefusal, match="release different things"):
        tune(small_recipe(), [*CANDIDATES, Candidate(2, 9, 1.0, 1.0)])
    poisson = small_recipe(**POISSON)
    with pytest.raises(PrivacyRefusal, match="release different things"):
        tune(poisson, [Candidate(2, 8, 1.0, 1.0, 30), Candidate(2, 8, 1.0, 1.0, 20)])


def test_noise_without_a_curve_is_refused() -> None:
    """Sampled Laplace noise, capped cohorts: no Rényi curve, so no bound on the best of many."""
    capped = small_recipe(
        training__sampling="capped-poisson", training__rate=0.5, training__cohort_cap=50
    )
    with pytest.raises(PrivacyRefusal, match="no noise is known"):
        tune(capped, [Candidate(2, 8, 1.0, 1.0, 30)])


@pytest.fixture
def line(tmp_path: Path) -> list[str]:
    """A private file of 30 clients, a public one to score on."""
    recipe = private_recipe(tmp_path, records=8)
    public = private_file(tmp_path, "public.csv", seed=9, records=10, clients=5)
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'[data]\nfile = "{recipe.data.file}"\nclient_column = "who"\nlabel = "ill"\n'
        f'schema = "{recipe.data.schema}"\n'
        '[training]\nsampling = "everyone"\nrounds = 4\nlocal_steps = 2\nlearning_rate = 1.0\n'
        "[privacy]\nepsilon = 8.0\n"
    )
    proxy = ["--proxy", str(public)]
    return ["plan", str(path), "--tune-on-private-data", *proxy, "--tuning-mean", "2"]


def test_the_command_keeps_one_model_and_its_guarantee(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "chosen"
    assert cli.main([*line, "--output", str(output), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {p.name for p in output.iterdir()} == {
        *("settings.json", "guarantee.json", "model.safetensors"),
    }
    guarantee = json.loads((output / "guarantee.json").read_text())
    assert guarantee == said["guarantee"]
    assert guarantee["certified"]
    assert guarantee["epsilon"] <= 8.0
    assert guarantee["tuning"]["mean"] == 2.0
    assert "runs" not in said  # how many there were is a secret


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--write", "again.toml"], "one more run"),
        (["--time", "10"], "drawn beforehand"),
        (["--tuning-mean", "0.5"], "mean"),
        (["--spent-epsilon", "1"], "privacy.epsilon"),
        (["--pilot"], "choose one of --pilot"),
        (["--set", "privacy.trust=local"], "sees something of every run"),
        (["--proxy", "synthetic"], "made-up"),
    ],
)
def test_what_has_no_proof_is_refused_in_one_line(
    line: list[str],
    change: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "chosen"
    assert cli.main([*line, "--output", str(output), *change]) == 2
    said = capsys.readouterr()
    assert says in said.err.splitlines()[-1]
    assert said.out == ""
    assert not output.exists()


REFUSED = {
    'source = "digits"\n[training]\nlocal_steps = 1': "digits is the protected data itself",
    'source = "synthetic-logistic"\n[training]\nlocal_epochs = 1\nbatch_size = 2': "--records",
}


def _first(candidate: Candidate) -> tuple[int, int, float, float]:
    c = candidate
    return c.local_steps, c.rounds, c.learning_rate, c.clip_norm


def test_the_best_run_by_the_public_score_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate hardly learns: with many runs it is not the one."""
    monkeypatch.setattr(_Dice, "geometric", lambda self, mean: 12)
    found = tune(small_recipe(privacy__epsilon=30.0))
    assert found.candidate != CANDIDATES[2]
    assert found.accuracy > 0.6


def test_scores_need_public_data_of_the_same_shape() -> None:
    recipe = small_recipe()
    federation = federation_of(recipe.data)
    real = plan_of(recipe, federation)
    for name in ("digits", "synthetic"):
        proxy = proxy_of(recipe, name, federation)
        with pytest.raises(ConfigError, match="--proxy"):
            tuned(recipe, real, CANDIDATES, proxy, 3.0)


def test_settings_are_drawn_with_the_recipes_own_rounds_and_cohort() -> None:
    space = tuner_of(small_recipe(**POISSON)).space
    drawn = settings_to_draw(space)
    assert len(drawn) == private_tuning.SETTINGS
    assert {(c.rounds, c.cohort) for c in drawn} == {(8, 30)}
    assert len({c.learning_rate for c in drawn}) > 20


@pytest.mark.parametrize("data", REFUSED)
def test_nothing_of_the_protected_source_is_looked_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: str
) -> None:
    """Neither scores nor how many records clients have."""
    path, output = tmp_path / "recipe.toml", tmp_path / "chosen"
    path.write_text(f"[data]\n{data}\nrounds = 2\n")
    line = ["plan", str(path), "--tune-on-private-data", "--proxy", "digits"]
    assert cli.main([*line, "--output", str(output)]) == 2
    assert REFUSED[data] in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("missing", ["--proxy", "--output"])
def test_a_public_score_and_a_place_must_be_named(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    words = [*line, "--output", str(tmp_path / "chosen")]
    place = words.index(missing)
    assert cli.main(words[:place] + words[place + 2 :]) == 2
    assert missing in capsys.readouterr().err
