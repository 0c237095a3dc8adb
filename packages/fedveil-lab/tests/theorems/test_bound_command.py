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
        (HU, "--epsilon nan", "epsilon"),
        (HU, "--delta 1", "delta"),
        (CHENG, "--dimension 0", "dimension"),
        (HU, "--honest-shares 11", "honest_shares"),
    ],
)
def test_mistakes_in_one_line(
    capsys: pytest.CaptureFixture[str], line: str, change: str, key: str
) -> None:
    assert key in complaint(capsys, f"{line} {change}")
