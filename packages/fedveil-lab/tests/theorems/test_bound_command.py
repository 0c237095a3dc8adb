"""`fedveil bound`: what scripts rely on, and one line for every mistake."""

from __future__ import annotations

import json
import shlex

import pytest

from fedveil import cli

GOLDEN = (
    "bound --total-steps 720 --strong-convexity 1 --smoothness 4 --gradient-bound 1 "
    "--heterogeneity 0.1 --initial-distance 1 --clients 5000 --cohort 5000 "
    "--noise-constant 0.01 --growth 2"
)
BUDGET = (
    "bound --total-steps 120 --strong-convexity 1 --smoothness 4 --gradient-bound 1 "
    "--heterogeneity 0.1 --initial-distance 1 --clients 5000 --cohort 500 "
    "--noise laplace --epsilon 1 --dimension 11 --clip-norm 150"
)
HU = (
    "bound --score hu --total-steps 200 --initial-gap 1 --learning-rate 0.01 "
    "--smoothness 1 --gradient-variance 1 --gradient-bound 1 --batch-size 244 --records 2440 "
    "--dimension 100 --clients 16 --cohort 10 --epsilon 10 --delta 1e-4"
)
CHENG = (
    "bound --score cheng --total-steps 1000 --learning-rate 0.03 --dimension 1e6 "
    "--clients 3400 --cohort 136 --epsilon 4"
)


def answer(capsys: pytest.CaptureFixture[str], line: str) -> dict:
    assert cli.main([*shlex.split(line), "--json"]) == 0
    out = capsys.readouterr()
    assert out.err == ""
    return json.loads(out.out)


def complaint(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert cli.main(shlex.split(line)) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("fedveil: ")
    assert out.err.count("\n") == 1
    return out.err


def test_the_scripted_interface(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, GOLDEN)
    assert (said["local_steps"], said["rounds"]) == (8, 90)
    assert said["bound"] == pytest.approx(5.44936, rel=1e-5)
    assert said["rule_of_thumb"]["local_steps"] == 80
    assert said["rule_of_thumb"]["bound"] == pytest.approx(250.0, rel=1e-3)


def test_the_answer_in_words_comes_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(GOLDEN)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "8 local steps in each of 90 rounds (720 steps): score 5.449" in out
    assert "is 45.9 times worse" in out
    assert "literal rule" in out
    assert "nothing is proved to be learnt" in out


def test_noise_from_a_budget_is_the_corrected_constant(capsys: pytest.CaptureFixture[str]) -> None:
    """Golden number 20's 158.4 with whole participations: 12 of 120 rounds divide evenly."""
    said = answer(capsys, BUDGET + " --local-steps 1")
    plain = BUDGET.split(" --noise laplace")[0] + " --noise-constant 158.4 --growth 2"
    assert said["bound"] == pytest.approx(answer(capsys, plain + " --local-steps 1")["bound"])
    zero = answer(capsys, BUDGET + " --local-steps 1 --adjacency zero-out")
    assert zero["bound"] < said["bound"] / 3.9


def test_searches_by_what_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    free = GOLDEN.replace("--total-steps 720", "").replace("0.01", "0.0001")
    assert answer(capsys, free + " --local-steps 1")["rounds"] == 295
    joint = answer(capsys, free + " --max-steps 1000")
    assert (joint["local_steps"], joint["rounds"]) == (1, 295)
    both = answer(capsys, GOLDEN + " --local-steps 6")
    assert (both["local_steps"], both["best"]["local_steps"]) == (6, 8)


@pytest.mark.parametrize("line", [HU, CHENG])
def test_heuristic_scores_are_labelled(capsys: pytest.CaptureFixture[str], line: str) -> None:
    said = answer(capsys, line)
    assert said["heuristic"].startswith("heuristic")
    assert said["rule_of_thumb"] is None
    cli.main(shlex.split(line))
    assert "Note: heuristic" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "change", "key"),
    [
        (GOLDEN, "--local-steps 7", "local_steps"),
        (GOLDEN, "--strong-convexity 5", "strong_convexity"),
        (GOLDEN, "--smoothness nan", "smoothness"),
        (GOLDEN, "--cohort 5001", "cohort"),
        (GOLDEN, "--total-steps 1.5", "--total-steps"),
        (GOLDEN, "--total-steps inf", "--total-steps"),
        (GOLDEN, "--max-steps 100", "max_steps"),
        (GOLDEN, "--score best", "--score"),
        (GOLDEN, "--noise laplace", "--noise-constant"),
        (BUDGET, "--epsilon nan", "epsilon"),
        (BUDGET, "--delta 1", "delta"),
        (BUDGET, "--clip-norm 0", "clip_norm"),
        (BUDGET, "--dimension 0", "dimension"),
        (BUDGET, "--imbalance 0.5", "imbalance"),
    ],
)
def test_mistakes_in_one_line(
    capsys: pytest.CaptureFixture[str], line: str, change: str, key: str
) -> None:
    assert key in complaint(capsys, f"{line} {change}")


def test_what_is_missing_is_listed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "bound --total-steps 10 --strong-convexity 1")
    for flag in ("--smoothness", "--gradient-bound", "--heterogeneity", "--initial-distance",
                 "--clients", "--cohort"):  # fmt: skip
        assert flag in said
    assert "--strong-convexity," not in said
    no_budget = "bound --total-steps 10 --score cheng --clients 10 --cohort 5"
    assert "--epsilon" in complaint(capsys, no_budget)
