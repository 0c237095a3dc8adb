"""`fedveil account` and `fedveil calibrate`: numbers, keys, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil.cli import main
from fedveil.privacy.guarantee import Guarantee

KEYS = {
    "epsilon", "delta", "noise_multiplier", "unit", "adjacency", "trust", "sampling", "accountant",
    "alternatives", "certified", "statement",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    code = main([*line.split(), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert err == ""
    document: dict[str, Any] = json.loads(out)
    return document


def fail(capsys: pytest.CaptureFixture[str], line: str) -> str:
    code = main(line.split())
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("fedveil: ")
    assert err.count("\n") == 1
    return err


def cases(table: str) -> list[tuple[list[str], str]]:
    """What is expected, and the command that is indented below it."""
    found: list[tuple[list[str], str]] = []
    for line in table.strip().splitlines():
        if line.startswith(" "):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}".strip())
        else:
            found.append((line.split(), ""))
    return found


DESCRIBED = """
3.7005 sampling=poisson adjacency=zero-out accountant=pld
    --noise-multiplier 1.0 --sampling poisson --rate 0.05 --rounds 200 --delta 2.34e-4
4.3138 sampling=fixed adjacency=replace noise_multiplier=2.0
    --noise-multiplier 2.0 --sampling fixed --clients 2000 --cohort 100 --rounds 200 --delta
    2.34e-4
9.457 sampling=everyone accountant=exact participations=7
    --noise-multiplier 3.0 --trust local --adjacency replace --rounds 7 --delta 1e-6
12.256 adjacency=zero-out certified=false honest_shares=5
    --noise-multiplier 1.8981 --trust distributed --clients 10 --rounds 10 --delta 1e-5
    --honest-shares 5
12.256 honest_shares=5
    --noise-multiplier 1.8981 --trust distributed --clients 10 --rounds 10 --delta 1e-5
    --colluders 5
1.0 accountant=pure participations=10 certified=true
    --mechanism laplace --scale-multiplier 10 --sampling round-robin --clients 100 --cohort 10
    --rounds 100 --trust local --adjacency zero-out --delta 0
0.7146 accountant=pld adjacency=replace
    --scale-multiplier 100 --trust local --rounds 100 --delta 1e-5
4.7285 accountant=rdp
    --rho 0.5 --trust local --rounds 1 --delta 1e-5
22.289 certified=true honest_shares=100
    --mechanism discrete-gaussian-sum --clip-norm 1 --granularity 0.015625 --share-std 0.1
    --shares 100 --dimension 4096 --trust distributed --rounds 10 --delta 1e-5
4.7285 certified=true
    --mechanism discrete-gaussian --noise-multiplier 1 --trust local --adjacency zero-out
    --rounds 1 --delta 1e-5
- participations=13 adjacency=zero-out
    --noise-multiplier 3 --sampling balanced --clients 16 --cohort 10 --rounds 20 --delta 1e-4
4.006 sampling=capped-poisson
    --noise-multiplier 1.348 --rate 0.04 --cap 196 --clients 3400 --rounds 1000 --delta 2.9e-4
7.22 accountant=rdp
    --noise-multiplier 1 --rate 0.05 --rounds 200 --delta 2.34e-4 --tuning-mean 10
    --tuning-repeats logarithmic
25.59
    --noise-multiplier 1 --rate 0.05 --rounds 200 --delta 2.34e-4 --tuning-runs 25
- delta=1e-05
    --noise-multiplier 1 --rate 0.05 --clients 2000 --rounds 200
- certified=false entropy=seeded
    --noise-multiplier 1 --rate 0.05 --rounds 2 --delta 1e-5 --entropy seeded
"""


@pytest.mark.parametrize(("said", "line"), cases(DESCRIBED))
def test_described_mechanisms(capsys, said, line):
    document = run(capsys, f"account {line}")
    assert set(document) >= KEYS
    epsilon, *expected = said
    if epsilon != "-":
        assert document["epsilon"] == pytest.approx(float(epsilon), rel=0.005)
    for name, _, value in (one.partition("=") for one in expected):
        shown = document[name]
        assert (shown if isinstance(shown, str) else json.dumps(shown)) == value
    assert document["epsilon"] == min(document["alternatives"].values())
    assert Guarantee.from_dict(document).epsilon == document["epsilon"]


CALIBRATED = """
0.7347 noise_multiplier
    --epsilon 4 --delta 1e-5 --sampling poisson --rate 0.01 --rounds 1000
1.8981 noise_multiplier
    --epsilon 8 --delta 1e-5 --trust distributed --rounds 10
20.0 scale_multiplier
    --epsilon 1 --delta 0 --mechanism laplace --trust local --rounds 10
- noise_multiplier
    --epsilon 4 --delta 1e-4 --sampling fixed --clients 2000 --cohort 100 --rounds 50
- share_std
    --epsilon 8 --delta 1e-5 --mechanism discrete-gaussian-sum --clip-norm 1 --granularity 0.001
    --shares 100 --dimension 1024 --trust distributed --rounds 10
- rounds
    --find rounds --epsilon 2 --delta 1e-5 --noise-multiplier 1.1 --rate 0.01
- rounds
    --find rounds --epsilon 2 --delta 1e-4 --noise-multiplier 9 --trust distributed --sampling
    balanced --clients 50 --cohort 5
- rate
    --find rate --epsilon 2 --delta 1e-5 --noise-multiplier 1.1 --rounds 100
- cohort
    --find rate --epsilon 2 --delta 1e-4 --noise-multiplier 2 --rounds 100 --sampling fixed
    --clients 1000
"""


@pytest.mark.parametrize(("said", "line"), cases(CALIBRATED))
def test_calibrations(capsys, said, line):
    document, (value, name) = run(capsys, f"calibrate {line}"), said
    assert set(document) >= KEYS | {"target_epsilon", "found"}
    assert document["epsilon"] <= document["target_epsilon"]
    assert document["epsilon"] >= 0.95 * document["target_epsilon"]
    if value != "-":
        assert document["found"][name] == pytest.approx(float(value), rel=0.002)
    assert list(document["found"]) == [name]


USUAL = "--rounds 3 --noise-multiplier 1 --delta .1"
MISTAKES = """
--rounds: account
--noise-multiplier: account --rounds 10
--delta: account --rounds 10 --noise-multiplier 1
rounds: account --rounds -3 --noise-multiplier 1 --delta 1e-5
noise_multiplier: account --rounds 3 --noise-multiplier nan --delta 1e-5
delta: account --rounds 3 --noise-multiplier 1 --delta 0.5 --population 10
rate: account USUAL --rate 1.5
--cohort: account USUAL --rate 0.1 --cohort 3
--noise: account --rounds 3 --noise-multiplier 1 --rho 1 --delta 1e-5 --mechanism zcdp
sampling: account --rounds 3 --noise-multiplier 1 --delta 1e-3 --trust local --rate 0.1
--tuning-runs: account USUAL --tuning-mean 2 --tuning-runs 2
participations: account USUAL --participations 4
--clients: account --paper hu --rounds 3 --delta 1e-5
--gradient-std: account --paper hu --rounds 3 --delta 1e-5
--epsilon: calibrate --delta 1e-5 --rounds 3
--rounds: calibrate --epsilon 1 --delta 1e-5
--noise-multiplier: calibrate --epsilon 1 --delta 1e-5 --rounds 3 --noise-multiplier 2
zcdp: calibrate --epsilon 1 --delta 1e-5 --rounds 3 --mechanism zcdp
--rate: calibrate --find rate --epsilon 1 --delta 1e-5 --rounds 3 --rate 0.1
single round: calibrate --find rounds --epsilon 0.01 --delta 1e-9 --noise-multiplier 0.1 --rate 0.9
--rounds: account dp-fedavg --rounds 3
--noise-multiplier: calibrate dp-fedavg --epsilon 2 --noise-multiplier 3
no amount of noise: calibrate --epsilon 1 --delta 0 --rounds 3
"""


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_mistakes_give_one_line_that_names_them(capsys, case):
    word, line = case.split(": ")
    assert word in fail(capsys, line.replace("USUAL", USUAL))


PAPERS = """
8.66 22.31 4.314
    --paper liang --noise-multiplier 1 --clients 2000 --cohort 100 --rounds 200 --delta 2.34e-4
5.07 3.701
    --paper liang --sampling poisson --noise-multiplier 1 --clients 2000 --cohort 100 --rounds
    200 --delta 2.34e-4
1.0 2.0 1.0
    --paper fu --scale-multiplier 10 --clients 100 --cohort 10 --rounds 100 --delta 0
5.365 - -
    --paper fu --noise-multiplier 2 --clients 100 --cohort 10 --rounds 100 --delta 1e-5
10.0 40.99 refused
    --paper hu --gradient-std 0.0048068 --clip-norm 1 --batch-size 244 --records 2440
    --local-steps 10 --clients 16 --cohort 10 --rounds 20 --delta 1e-4
2.678 4.005 26.4 refused
    --paper cheng --noise-multiplier 1.348 --clients 3400 --rate 0.04 --rounds 1000 --delta
    2.9e-4
"""


@pytest.mark.parametrize(("said", "line"), cases(PAPERS))
def test_papers_beside_proofs(capsys, said, line):
    document, (claimed, *proved) = run(capsys, f"account {line}"), said
    assert document["claimed"]["value"] == pytest.approx(float(claimed), rel=0.005)
    assert document["claimed"]["certified"] is False
    assert len(document["proved"]) == len(proved)
    for found, expected in zip(document["proved"], proved, strict=True):
        if expected == "refused":
            assert found["epsilon"] is None
            assert found["reason"]
        elif expected != "-":
            assert found["epsilon"] == pytest.approx(float(expected), rel=0.005)
    assert main(["account", *line.split()]) == 0
    assert "claimed" in capsys.readouterr().out


NUMBERS = st.sampled_from(
    [
        *("-1", "0", "1", "2", "7", "0.5", "0.01", "1e-5", "1e-12", "1e-300", "5e-324", "1e300"),
        *("1e400", "nan", "inf", "-inf", "-0.0", "3.7", "100", "10000", "1000000", "999999999999"),
        *("1e3", "x", "0x10", "\uff11"),
    ]
)
CHOICES = {
    "--mechanism": ["gaussian", "laplace", "discrete-gaussian", "discrete-gaussian-sum", "zcdp"],
    "--sampling": ["poisson", "fixed", "capped-poisson", "round-robin", "everyone", "balanced"],
    "--trust": ["central", "distributed", "local"],
    "--adjacency": ["add-remove", "replace", "zero-out"],
    "--unit": ["client", "record"],
    "--arithmetic": ["exact", "idealised"],
    "--entropy": ["system", "seeded"],
    "--tuning-repeats": ["geometric", "logarithmic", "poisson"],
    "--paper": ["fu", "hu", "liang", "cheng"],
}
NUMERIC = [
    *("--noise-multiplier", "--scale-multiplier", "--rho", "--clip-norm", "--granularity"),
    *("--share-std", "--shares", "--dimension", "--rounding-beta", "--rate", "--clients"),
    *("--cohort", "--cap", "--uses", "--participations", "--delta", "--population"),
    *("--colluders", "--honest-shares", "--tuning-runs", "--tuning-mean", "--c2"),
    *("--gradient-std", "--batch-size", "--local-steps", "--records"),
]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A sensible command with a few arguments replaced or added at random."""
    parts = {"--noise-multiplier": "1.5", "--rate": "0.1", "--rounds": "20", "--delta": "1e-6"}
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            parts[draw(st.sampled_from([*NUMERIC, "--rounds"]))] = draw(NUMBERS)
        else:
            name = draw(st.sampled_from(sorted(CHOICES)))
            parts[name] = draw(st.sampled_from(CHOICES[name]))
    for name in draw(st.lists(st.sampled_from(sorted(parts)), max_size=2, unique=True)):
        del parts[name]
    words = [word for pair in parts.items() for word in pair]
    if draw(st.integers(0, 3)) == 0 and "--paper" not in parts:
        words = [w for w in words if w not in ("--c2",)]
        return ["calibrate", "--epsilon", draw(NUMBERS), *words]
    return ["account", *words]


@settings(
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(command_lines())
def test_random_arguments_give_an_answer_or_one_line(capsys, words):
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    if code == 0:
        document = json.loads(out)
        assert err == ""
        assert document["epsilon"] is None or document["epsilon"] >= 0
    else:
        assert code == 2, (words, err)
        assert out == ""
        assert err.startswith("fedveil: ")
        assert err.count("\n") == 1


def test_account_never_imports_torch():
    code = (
        "import sys; from fedveil.cli import main; "
        "main('account --noise-multiplier 1 --rate 0.1 --rounds 5 --delta 1e-5 --json'.split()); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


HOSPITALS = "--batch-rate 0.0256 --rounds 782 --delta 1e-5"


def test_secret_batches_show_a_record_and_a_person_beside_it(capsys):
    answer = run(capsys, f"account {HOSPITALS} --noise-multiplier 1 --records-per-person 4")
    assert answer["unit"] == "record"
    assert answer["epsilon"] == pytest.approx(4.517, abs=0.002)
    assert answer["person"] == {"records": 4, "epsilon": pytest.approx(24.27, abs=0.01)}
    shared = run(capsys, f"account {HOSPITALS} --noise-multiplier 1 --uses 2")
    assert shared["epsilon"] == pytest.approx(10.10, abs=0.01)  # one coin for both releases


def test_calibrated_secret_batches_keep_to_the_budget(capsys):
    ask = f"calibrate --epsilon 3 {HOSPITALS.replace('782', '200')}"
    records = run(capsys, f"{ask} --records-per-person 2")
    assert records["epsilon"] <= 3 < records["person"]["epsilon"]
    persons = run(capsys, f"{ask} --sites-per-person 2")
    assert persons["unit"] == "person"
    noise = records["found"]["noise_multiplier"]
    assert persons["found"]["noise_multiplier"] > noise
    less = run(
        capsys, f"account {HOSPITALS.replace('782', '200')} --noise-multiplier {0.99 * noise}"
    )
    assert less["epsilon"] > 3


@pytest.mark.parametrize(
    "wrong",
    [
        "--sites-per-person 2 --unit record",
        "--records-per-person 2 --unit client",
        "--unit client --adjacency add-remove",
        "--batch-rate 0.1 --rate 0.1",
    ],
)
def test_units_that_do_not_fit_are_refused(capsys, wrong):
    fail(capsys, f"account {HOSPITALS} --noise-multiplier 1 {wrong}")
