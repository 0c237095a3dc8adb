"""What is said of other systems: read from their files, and true of what they do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, norm
from tests.paths import ROOT

from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil.privacy.rounding import at_most
from fedveil_lab.audit.check.check import check
from fedveil_lab.audit.check.finding import Finding


def found(tmp_path: Path, text: str, name: str = "app.py", **said: Any) -> Finding:
    path = tmp_path / name
    path.write_text(text)
    (only,) = check(path, said)
    return only


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Delta of two unit Gaussians mu apart."""
    upper = norm.cdf(mu / 2 - epsilon / mu)
    return float(upper - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


FIXED = "strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 0.5, {sampled}{more})"


def test_local_noise_is_charged_for_twice_the_clip_and_every_round(tmp_path: Path) -> None:
    text = "mod = LocalDpMod(clipping_norm=2.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)"
    one = found(tmp_path, text, rounds=10)
    std = math.sqrt(2 * math.log(1.25e5))
    for row, uploads in zip(one.proved, (10, 1), strict=True):
        mu = 2 * 2.0 * math.sqrt(uploads) / std
        assert gaussian_delta(row.epsilon, mu) == pytest.approx(1e-5, rel=1e-3)
    assert one.claimed == 1.0
    assert not one.kept
    assert len(one.why) == 2
    # Said as it is, one upload keeps the promise: the formula is a theorem up to epsilon 1.
    right = found(tmp_path, text, rounds=1, sensitivity=4.0)
    assert right.kept
    assert right.why == ()


def test_a_cohort_of_fixed_size_breaks_add_or_remove_accounting(tmp_path: Path) -> None:
    """The attack: 21 clients, 20 drawn, all others as loud the other way."""
    text = FIXED.format(sampled=20, more=", accountant=spent")
    said = {"rounds": 1, "delta": 1e-5, "clients": 21, "accountant": "rdp"}
    one = found(tmp_path, text, **said)
    assert one.claimed is not None

    def broken_by(epsilon: float) -> float:
        """Sums have unit noise around -18 if the canary is drawn, around -20 if not or absent."""
        cuts = [x / 10 for x in range(-250, -100)]
        there = [20 / 21 * norm.sf(cut + 18) + norm.sf(cut + 20) / 21 for cut in cuts]
        absent = [norm.sf(cut + 20) for cut in cuts]
        return max(p - math.exp(epsilon) * q for p, q in zip(there, absent, strict=True))

    assert broken_by(one.claimed) > 10 * one.delta
    assert broken_by(one.proved[0].epsilon) <= one.delta
    assert not one.kept
    everyone = found(tmp_path, text, **{**said, "clients": 20})
    assert everyone.kept
    few_of_many = found(tmp_path, text, **{**said, "clients": 1000})
    assert few_of_many.kept  # sampling, which they do not count, outweighs it


def test_weights_and_a_wrong_cohort_are_counted(tmp_path: Path) -> None:
    text = FIXED.format(sampled=20, more="")
    said = {"rounds": 1, "delta": 1e-5, "clients": 50, "fraction_train": 0.1}
    one = found(tmp_path, text, **said)
    rows = {row.what: row.epsilon for row in one.proved}
    # Five are averaged and the noise is for twenty: a mean moves by C / 5, noise is C / 20.
    alike = rows["one client's update zeroed, equal weights"]
    assert gaussian_delta(alike, 20 / 5) == pytest.approx(1e-5, rel=1e-3)
    anything = rows["one client's update zeroed, any weights"]
    assert gaussian_delta(anything, 20) == pytest.approx(1e-5, rel=1e-2)
    assert any("averages 5 clients" in reason for reason in one.why)
    bounded = found(tmp_path, text, **said, largest_share=0.4)
    known = {row.what: row.epsilon for row in bounded.proved}
    assert known["one client's update zeroed, weights up to 0.4"] < anything


def test_adaptive_clipping_never_costs_less_than_it_says(tmp_path: Path) -> None:
    text = "DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), {z}, 100)"
    for z in (0.5, 1.0, 4.0):
        one = found(tmp_path, text.format(z=z), rounds=1, delta=1e-5)
        alike = one.proved[1]
        assert gaussian_delta(alike.epsilon, 1 / z) < 1e-5  # more than one Gaussian of z costs
    with pytest.raises(ConfigError, match="Flower refuses"):
        found(tmp_path, text.format(z=10.0), rounds=1, delta=1e-5)


OPACUS = "engine.make_private(noise_multiplier=1.0, max_grad_norm=1.0{more})"


def test_batches_that_are_not_drawn_get_no_amplification(tmp_path: Path) -> None:
    said = {"examples": 60_000, "batch_size": 64, "epochs": 10, "delta": 1e-5}
    drawn = found(tmp_path, OPACUS.format(more=""), **said)
    assert drawn.kept
    kept_order = found(tmp_path, OPACUS.format(more=", poisson_sampling=False"), **said)
    assert kept_order.claimed == drawn.claimed
    assert not kept_order.kept
    # A record whose batches are known is seen ten times through noise of its own size.
    mu = math.sqrt(10)
    assert gaussian_delta(kept_order.proved[0].epsilon, mu) == pytest.approx(1e-5, rel=1e-3)
    assert gaussian_delta(drawn.claimed or 0.0, mu) > 0.5
    adaptive = found(tmp_path, OPACUS.format(more=", clipping='adaptive'"), **said)
    assert math.isinf(adaptive.proved[0].epsilon)


def test_opacus_divides_by_a_number_that_one_record_may_change(tmp_path: Path) -> None:
    """The attack: gradients are zero, so that only the noise is seen, and how large it is.

    60,000 examples in batches of 100: without one of them the noisy sum is divided by 99.
    """
    said = {"examples": 60_000, "batch_size": 100, "epochs": 10, "delta": 1e-5}
    one = found(tmp_path, OPACUS.format(more=""), **said)
    rows = {row.what: row.epsilon for row in one.proved}
    assert math.isinf(rows["one record added to or removed from 60000, Poisson batches"])
    assert "with 59999 the noisy sum is divided by 99, not 100" in one.why[0]
    assert one.claimed is not None

    def broken_by(epsilon: float, weights: int) -> float:
        """One step: squared norms of noise of standard deviation 1 / 99 and 1 / 100."""
        cut = weights * (1 + 0.99**-2) / 2
        there, absent = chi2.sf(cut, weights), chi2.sf(cut * 0.99**2, weights)
        return float(absent - math.exp(epsilon) * there)

    assert broken_by(one.claimed, 100_000) > 0.9
    assert chi2.sf(100_000 * (1 + 0.99**-2) / 2, 100_000) < 0.02  # the figures of the page
    assert chi2.sf(100_000 * (1 + 0.99**2) / 2, 100_000) > 0.98
    assert broken_by(10.0, 1_000_000) > 0.9  # the more weights, the worse
    # 60,000 in batches of 64, or a sum: a record more or less is one summand more or less.
    for more, batch in (("", 64), (", loss_reduction='sum'", 64)):
        same = found(tmp_path, OPACUS.format(more=more), **{**said, "batch_size": batch})
        assert {row.epsilon for row in same.proved[:2]} == {same.proved[0].epsilon}
        assert same.why == ()
    # A sum is not divided, but its rate changes at the same places.
    summed = found(tmp_path, OPACUS.format(more=", loss_reduction='sum'"), **said)
    assert summed.why[0].endswith("here: with 60001 the rate is 1/601, not 1/600")


def test_a_record_that_is_replaced_costs_more_than_opacus_says(tmp_path: Path) -> None:
    """Two steps at rate 1/2, a record at one end of the clip or at the other: summed on a grid."""
    said = {"examples": 10, "batch_size": 5, "epochs": 1, "delta": 1e-3}
    one = found(tmp_path, OPACUS.format(more=""), **said)
    assert one.claimed is not None
    (row,) = [row for row in one.proved if row.what == "one record replaced, Poisson batches"]
    values = np.linspace(-9, 9, 1801)
    pair = [0.5 * norm.pdf(values) + 0.5 * norm.pdf(values - end) for end in (1.0, -1.0)]
    there, other = (np.multiply.outer(each, each) / each.sum() ** 2 for each in pair)

    def broken_by(epsilon: float) -> float:
        return float(np.maximum(there - math.exp(epsilon) * other, 0).sum())

    assert broken_by(one.claimed) > 10 * one.delta
    assert broken_by(row.epsilon) <= one.delta


@pytest.mark.parametrize(
    "text",
    [
        "from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP\n"
        "net = DPDDP(net)\n",
        "net = torch.nn.parallel.DistributedDataParallel(net)\n",
        "net = FSDP2Wrapper(net)\n",
    ],
)
def test_nothing_is_proved_of_opacus_on_several_workers(tmp_path: Path, text: str) -> None:
    said = {"examples": 60_000, "batch_size": 64, "epochs": 10, "delta": 1e-5}
    one = found(tmp_path, text + OPACUS.format(more=""), **said)
    assert math.isinf(one.proved[0].epsilon)
    assert not one.kept


def test_a_target_gives_the_noise_and_rounds_are_not_forgotten(tmp_path: Path) -> None:
    text = (
        "engine = PrivacyEngine(accountant='rdp')\n"
        "engine.make_private_with_epsilon(target_epsilon=3.0, target_delta=1e-5, epochs=2)"
    )
    said = {"examples": 1000, "batch_size": 100}
    one = found(tmp_path, text, **said)
    assert one.claimed == 3.0
    assert one.proved[0].epsilon == pytest.approx(3.0, rel=1e-3)
    assert one.kept
    five = found(tmp_path, text, rounds=5, **said)
    assert five.proved[0].epsilon > 1.5 * one.proved[0].epsilon
    assert not five.kept


def test_values_come_from_options_names_and_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config]\nnoise-multiplier = 0.7\n")
    text = (
        "parser.add_argument('--clip', '-c', default=2 * 0.25)\n"
        "SAMPLED = 10\n"
        "def main(context):\n"
        "    z = context.run_config['noise-multiplier']\n"
        "    DifferentialPrivacyServerSideFixedClipping(s, z, args.clip, SAMPLED)\n"
    )
    one = found(tmp_path, text, delta=1e-5, rounds=4)
    known = {name: value for name, value, _ in one.settings}
    assert known["noise_multiplier"] == 0.7
    assert known["clipping_norm"] == 0.5
    assert known["num_sampled_clients"] == 10


@pytest.mark.parametrize(
    "text",
    [
        "def f(z):\n    LocalDpMod(1.0, 1.0, z, 1e-5)\nz = 1.0\nf(9.0)\n",  # somebody else's z
        "z = 1.0\nz *= 5\nLocalDpMod(1.0, 1.0, z, 1e-5)\n",
        "z = 1.0\nif late:\n    z = load()\nLocalDpMod(1.0, 1.0, z, 1e-5)\n",
        "z = 1.0\nfor z in (1.0, 8.0):\n    LocalDpMod(1.0, 1.0, z, 1e-5)\n",
        "z = 1.0\nz, y = load()\nLocalDpMod(1.0, 1.0, z, 1e-5)\n",
        "Z = 1.0\nLocalDpMod(1.0, 1.0, z, 1e-5)\n",
    ],
)
def test_a_name_that_may_be_something_else_is_not_believed(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="say --set epsilon=VALUE"):
        found(tmp_path, text, rounds=1)


_TRAINING = {"examples": 60_000, "batch_size": 64, "epochs": 10, "delta": 1e-5}


def test_what_may_stand_in_a_dictionary_is_asked_for(
    tmp_path: Path,
) -> None:
    """A default must not be taken where `**settings` may say something else."""
    call = "PrivacyEngine().make_private(module=m, **settings)\n"
    for hidden in (
        "settings = read()\n",
        'settings = {"noise_multiplier": 1.0}\n',
    ):
        with pytest.raises(ConfigError, match="may be in \\*\\*settings"):
            found(tmp_path, hidden + call, **_TRAINING, noise_multiplier=1.0)


def test_other_names_are_followed(tmp_path: Path) -> None:
    alias = "from flwr.clientapp.mod import LocalDpMod as Mod\nmod = Mod(1.0, 2.0, 1.0, 1e-5)"
    assert found(tmp_path, alias, rounds=1).kept


def test_what_is_not_known_is_asked_for_and_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, mark = tmp_path / "app.py", tmp_path / "mark"
    path.write_text(f"open({str(mark)!r}, 'w')\nLocalDpMod(1.0, 1.0, choose(), 1e-5)\n")
    assert main(["check", str(path)]) == 2
    assert "say --set epsilon=VALUE" in capsys.readouterr().err
    assert main(["check", str(path), "--set", "epsilon=1"]) == 2
    assert "say --set rounds=VALUE" in capsys.readouterr().err
    assert main(["check", str(path), "--set", "epsilon=1", "--set", "rounds=3", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["kept"] is False
    for wrong in ("epsilon=nan", "epsilon=word", "epsilon=true", "delta=2", "rounds=1.5"):
        call = ["check", str(path), "--set", "epsilon=1", "--set", "rounds=3", "--set", wrong]
        assert main(call) == 2
        assert "need a" in capsys.readouterr().err
    assert not mark.exists()
    path.write_text("print('hello')\n")
    assert main(["check", str(path)]) == 2
    assert "is made here" in capsys.readouterr().err
    path.write_text("def (")
    assert main(["check", str(path)]) == 2


PAGE = (ROOT / "docs" / "check.md").read_text()
_FLOWER = {"rounds": 100, "delta": 1e-5, "clients": 1000}
_OPACUS = {"examples": 60_000, "batch_size": 64, "epochs": 10, "delta": 1e-5}
_ACCOUNTED = FIXED.format(sampled=20, more=", accountant=spent")


@pytest.mark.parametrize(
    ("text", "said", "row"),
    [
        (_ACCOUNTED, {**_FLOWER, "accountant": "rdp"}, "with an `accountant`"),
        (_ACCOUNTED, {**_FLOWER, "accountant": "rdp", "clients": 21}, "20 of 21 clients"),
        ("LocalDpMod(1.0, 1.0, 1.0, 1e-5)", {"rounds": 1}, "one round"),
        ("LocalDpMod(1.0, 1.0, 1.0, 1e-5)", {"rounds": 10}, "the same, ten rounds"),
        (OPACUS.format(more=""), _OPACUS, "Opacus, `make_private("),
        (OPACUS.format(more=", poisson_sampling=False"), _OPACUS, "`poisson_sampling=False` |"),
        (OPACUS.format(more=""), {**_OPACUS, "accountant": "gdp"}, 'accountant="gdp"'),
    ],
)
def test_the_page_says_what_the_command_says(
    tmp_path: Path, text: str, said: dict[str, Any], row: str
) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("|") and row in line]
    one = found(tmp_path, text, **said)
    _, claims, proved, *_ = (cell.strip() for cell in line.strip("|").split(" | "))
    assert float(claims) == pytest.approx(one.claimed, rel=2e-3)
    assert float(proved) == pytest.approx(one.proved[0].epsilon, rel=1e-3)
    assert float(proved) >= one.proved[0].epsilon


@pytest.mark.parametrize(("column", "batch"), [(1, 64), (2, 100)])
def test_the_page_says_for_which_neighbours_opacus_epsilon_holds(
    tmp_path: Path, column: int, batch: int
) -> None:
    section = PAGE.split("## For which neighbours")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    claimed, *printed = (row[column].strip() for row in rows[2:])
    one = found(tmp_path, OPACUS.format(more=""), **{**_OPACUS, "batch_size": batch})
    assert float(claimed) == pytest.approx(one.claimed, rel=2e-4)
    for text, row in zip(printed, one.proved, strict=True):
        assert text == ("none" if math.isinf(row.epsilon) else at_most(row.epsilon))
