"""A client's lifetime ledger: exact totals, refusals, crashes, rivals and damaged files."""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import optimize, stats

from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.correlated import CorrelatedGaussian
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    Zcdp,
)
from fedveil.privacy.sampling import Everyone, FixedSize, Poisson, RoundRobin
from fedveil_federation import client_events
from fedveil_federation.client_ledger import ClientLedger, LifetimeBudgetExceeded, TermsRefused

DELTA = 1e-6
LOCAL = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)
CENTRAL = PrivacyModel(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)
ONCE = Release(Gaussian(4.0), Everyone(), 1)


def gaussian_epsilon(mu: float) -> float:
    """Exact epsilon at DELTA of a Gaussian mechanism with sensitivity / std = mu."""

    def excess(epsilon: float) -> float:
        near, far = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(stats.norm.cdf(near) - math.exp(epsilon) * stats.norm.cdf(far) - DELTA)

    return float(optimize.brentq(excess, 0.0, 200.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "client.ledger"


def test_gaussian_participations_of_all_runs_compose_exactly(path: Path) -> None:
    ledger = ClientLedger(path, 10.0, DELTA)
    assert ledger.spent() == 0.0
    ledger.reserve(ONCE, LOCAL, run="a")
    ledger.reserve(ONCE, LOCAL, run="a")
    ledger.reserve(Release(Gaussian(2.0), Everyone(), 3), LOCAL, run="b")
    mu = math.sqrt(2 / 4.0**2 + 3 / 2.0**2)
    assert ledger.spent() == pytest.approx(gaussian_epsilon(mu), rel=1e-6)
    # another run's population and collusion do not change what this client spends on local noise
    ledger.reserve(ONCE, replace(LOCAL, population=1000, colluders=3), run="c")
    assert ledger.spent() == pytest.approx(gaussian_epsilon(math.sqrt(mu**2 + 1 / 16)), rel=1e-6)


def test_participation_beyond_the_budget_is_refused_and_not_charged(path: Path) -> None:
    affordable = 7
    budget = gaussian_epsilon(math.sqrt(affordable) / 4.0) + 1e-6
    ledger = ClientLedger(path, budget, DELTA)
    for _ in range(affordable):
        ledger.commit(ledger.reserve(ONCE, LOCAL))
    spent = ledger.spent()
    with pytest.raises(LifetimeBudgetExceeded, match="budget"):
        ledger.reserve(ONCE, LOCAL)
    assert issubclass(LifetimeBudgetExceeded, PrivacyRefusal)
    assert ledger.spent() == spent <= budget
    tiny = Release(Gaussian(1e6), Everyone(), 1)
    ledger.reserve(tiny, LOCAL)  # something that costs next to nothing still fits


def test_an_open_reservation_counts_and_a_cancelled_one_does_not(path: Path) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    first = ledger.reserve(ONCE, LOCAL)
    once = ledger.spent()
    assert once > 0
    second = ledger.reserve(ONCE, LOCAL)
    assert ledger.spent() > once
    ledger.cancel(second)
    ledger.cancel(second)
    assert ledger.spent() == once
    ledger.commit(first)
    ledger.commit(first)
    assert ledger.spent() == once
    with pytest.raises(ConfigError, match="cannot cancel"):
        ledger.cancel(first)
    with pytest.raises(ConfigError, match="cannot commit"):
        ledger.commit(second)
    for unknown in (0, 1, 99):  # event 1 opened the ledger: not a reservation
        with pytest.raises(ConfigError, match="not in client ledger"):
            ledger.cancel(unknown)


def test_budgets_can_only_shrink(path: Path) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    ledger.reserve(ONCE, LOCAL)
    with pytest.raises(ConfigError, match="cannot be raised"):
        ClientLedger(path, 6.0, DELTA)
    lowered = ClientLedger(path, 0.5, DELTA)
    assert lowered.budget_epsilon == ledger.budget_epsilon == 0.5
    with pytest.raises(LifetimeBudgetExceeded):
        ledger.reserve(ONCE, LOCAL)  # the object opened before obeys as well
    with pytest.raises(ConfigError, match="cannot be raised"):
        ClientLedger(path, 5.0, DELTA)
    assert lowered.spent() > 0.5  # below what is spent already: nothing more, and no error


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"delta": 1e-5}, "delta"),
        ({"unit": Unit.RECORD}, "unit"),
        ({"adjacency": Adjacency.REPLACE}, "adjacency"),
        ({"trust": Trust.CENTRAL}, "trust"),
    ],
)
def test_the_meaning_of_the_guarantee_cannot_change(
    path: Path, changed: dict[str, object], name: str
) -> None:
    ClientLedger(path, 5.0, DELTA)
    with pytest.raises(ConfigError, match=name):
        ClientLedger(path, 5.0, **{"delta": DELTA, **changed})  # type: ignore[arg-type]


def test_every_release_is_accounted_under_the_ledgers_adjacency(path: Path) -> None:
    """A replaced client moves a sum twice as far: the run's own zero-out report does not count."""
    ledger = ClientLedger(path, 50.0, DELTA, adjacency=Adjacency.REPLACE)
    ledger.reserve(ONCE, LOCAL)
    assert ledger.spent() == pytest.approx(gaussian_epsilon(2 / 4.0), rel=1e-6)


def test_a_rho_known_for_one_adjacency_is_not_used_for_another(tmp_path: Path) -> None:
    rho = Release(Zcdp(0.01), Everyone(), 1)
    strict = ClientLedger(tmp_path / "replace", 5.0, DELTA, adjacency=Adjacency.REPLACE)
    with pytest.raises(TermsRefused, match="known for zero-out"):
        strict.reserve(rho, LOCAL)
    covered = ClientLedger(tmp_path / "zero", 5.0, DELTA)
    covered.reserve(rho, replace(LOCAL, adjacency=Adjacency.REPLACE))
    assert covered.spent() > 0


@pytest.mark.parametrize(
    ("ledgers", "released", "contributions", "factor"),
    [
        (Unit.CLIENT, Unit.RECORD, None, None),
        (Unit.CLIENT, Unit.PERSON, 1, None),
        (Unit.PERSON, Unit.RECORD, None, None),
        (Unit.RECORD, Unit.PERSON, 1, None),  # one record can turn the mean of its person round
        (Unit.RECORD, Unit.RECORD, None, 1),
        (Unit.PERSON, Unit.PERSON, 1, 1),
        (Unit.PERSON, Unit.PERSON, 3, 3),  # at three sites: three contributions to a sum
        (Unit.PERSON, Unit.CLIENT, None, 2),  # one person can turn the update of its site round
    ],
)
def test_what_protects_a_part_does_not_protect_the_whole(
    path: Path, ledgers: Unit, released: Unit, contributions: int | None, factor: int | None
) -> None:
    """Closed form: the sum moves by so many clips; None: nothing bounds it, so it is refused."""
    ledger = ClientLedger(path, 15.0, DELTA, unit=ledgers)
    model = replace(LOCAL, unit=released, contributions=contributions)
    if factor is None:
        with pytest.raises(TermsRefused):
            ledger.reserve(ONCE, model)
        with pytest.raises(TermsRefused):
            ledger.afford([ONCE], model)
    else:
        ledger.reserve(ONCE, model)
        assert ledger.spent() == pytest.approx(gaussian_epsilon(factor / 4), rel=1e-6)


@pytest.mark.parametrize("ledgers", list(Adjacency))
@pytest.mark.parametrize("released", [Adjacency.ZERO_OUT, Adjacency.REPLACE, Adjacency.ADD_REMOVE])
def test_one_record_can_turn_a_whole_update_round(
    path: Path, ledgers: Adjacency, released: Adjacency
) -> None:
    """A client-level release costs a record at 2 C: 4.377 at z = 2 and delta 1e-5, not 1.993."""
    added = released is Adjacency.ADD_REMOVE
    privacy_model = PrivacyModel(Unit.CLIENT, released, Trust.CENTRAL if added else Trust.LOCAL)
    ledger = ClientLedger(
        path, 50.0, 1e-5, unit=Unit.RECORD, adjacency=ledgers, trust=Trust.CENTRAL
    )
    ledger.reserve(Release(Gaussian(2.0), Everyone(), 1), privacy_model)
    assert ledger.spent() == pytest.approx(4.3772, rel=1e-4)


def test_a_record_is_refused_what_is_proved_for_a_present_or_zeroed_client(path: Path) -> None:
    ledger = ClientLedger(path, 50.0, DELTA, unit=Unit.RECORD, trust=Trust.CENTRAL)
    with pytest.raises(PrivacyRefusal, match="one record can replace"):
        ledger.reserve(Release(Zcdp(0.01), Everyone(), 1), LOCAL)
    with pytest.raises(PrivacyRefusal, match="no proved amplification for one record"):
        ledger.reserve(Release(Gaussian(1.0), Poisson(0.01), 100), CENTRAL)
    replaced = replace(LOCAL, adjacency=Adjacency.REPLACE)
    ledger.reserve(Release(Zcdp(0.01), Everyone(), 1), replaced)
    fixed = Release(Gaussian(4.0), FixedSize(1000, 50), 20)
    ledger.reserve(fixed, replace(replaced, trust=Trust.CENTRAL))
    assert ledger.spent() > 0


def test_hiding_what_a_client_sends_does_not_hide_that_it_is_there(path: Path) -> None:
    """Divisors and grids of such a run may come from the true number of clients."""
    ledger = ClientLedger(path, 50.0, DELTA, adjacency=Adjacency.ADD_REMOVE, trust=Trust.CENTRAL)
    zeroed = replace(CENTRAL, adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(TermsRefused, match="there at all"):
        ledger.reserve(Release(Gaussian(1.0), Poisson(0.01), 10), zeroed)
    ledger.reserve(Release(Gaussian(1.0), Poisson(0.01), 10), CENTRAL)


def test_amplified_releases_need_central_trust_and_are_charged_once_in_full(tmp_path: Path) -> None:
    poisson = Release(Gaussian(1.0), Poisson(0.01), 100)
    with pytest.raises(TermsRefused, match="trust"):
        ClientLedger(tmp_path / "distributed", 9.0, DELTA).reserve(poisson, CENTRAL, run="a")
    ledger = ClientLedger(tmp_path / "central", 9.0, DELTA, trust=Trust.CENTRAL)
    ledger.reserve(poisson, CENTRAL, run="a")
    alone = account([poisson], privacy_model=CENTRAL, delta=DELTA).epsilon
    assert ledger.spent() == pytest.approx(alone, rel=1e-6)
    # Charging it round by round, when drawn, would claim credit for the draw twice.
    with pytest.raises(TermsRefused, match="once"):
        ledger.reserve(replace(poisson, rounds=1), CENTRAL, run="a")
    ledger.reserve(poisson, CENTRAL, run="b")
    both = account([replace(poisson, rounds=200)], privacy_model=CENTRAL, delta=DELTA).epsilon
    assert ledger.spent() == pytest.approx(both, rel=1e-6)
    with pytest.raises(PrivacyRefusal):  # the theory's own refusals come through
        ledger.reserve(poisson, replace(CENTRAL, trust=Trust.LOCAL), run="c")


def test_fixed_size_releases_are_proved_for_replace_which_covers_zero_out(path: Path) -> None:
    ledger = ClientLedger(path, 20.0, DELTA, trust=Trust.CENTRAL)
    release = Release(Gaussian(4.0), FixedSize(1000, 50), 20)
    privacy_model = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)
    ledger.reserve(release, privacy_model, run="a")
    expected = account([release], privacy_model=privacy_model, delta=DELTA).epsilon
    assert ledger.spent() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "privacy_model",
    [
        replace(LOCAL, entropy=Entropy.SEEDED),
        replace(LOCAL, arithmetic=Arithmetic.IDEALISED),
        replace(LOCAL, trust=Trust.DISTRIBUTED),  # continuous shares
    ],
)
def test_releases_that_nothing_certifies_are_refused(
    path: Path, privacy_model: PrivacyModel
) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    with pytest.raises(TermsRefused, match="nothing protects"):
        ledger.reserve(ONCE, privacy_model)
    assert ledger.spent() == 0.0


# ---- crashes and rivals -------------------------------------------------------------------

CHILD = """
import os, signal, sys, time
sys.path.insert(0, {here!r})
from test_client_ledger import DELTA, LOCAL, ONCE
from fedveil_federation.client_ledger import ClientLedger, LifetimeBudgetExceeded
path, budget = {path!r}, {budget!r}
"""


def child(path: Path, budget: float, code: str) -> subprocess.Popen[str]:
    """A process of its own that shares the ledger."""
    head = CHILD.format(here=str(Path(__file__).parent), path=str(path), budget=budget)
    return subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True)


def test_whenever_killed_the_ledger_never_counts_less_than_what_left(path: Path) -> None:
    """The child reserves, "uploads" (prints) and commits in a loop until it is killed."""
    process = child(
        path,
        100.0,
        "ledger = ClientLedger(path, budget, DELTA)\n"
        "while True:\n"
        "    number = ledger.reserve(ONCE, LOCAL)\n"
        "    print('left', flush=True)\n"
        "    ledger.commit(number)\n",
    )
    assert process.stdout is not None
    for _ in range(7):
        assert process.stdout.readline() == "left\n"
    process.kill()
    left = 7 + process.communicate()[0].count("left")
    ledger = ClientLedger(path, 100.0, DELTA)
    assert ledger.spent() >= gaussian_epsilon(math.sqrt(left) / 4) - 1e-6
    assert ledger.spent() <= gaussian_epsilon(math.sqrt(left + 1) / 4) + 1e-6
    ledger.reserve(ONCE, LOCAL)  # no stale lock is left behind


def test_two_processes_cannot_spend_the_same_budget_twice(path: Path) -> None:
    affordable = 20
    budget = gaussian_epsilon(math.sqrt(affordable) / 4.0) + 1e-6
    go = path.with_suffix(".go")
    rivals = [
        child(
            path,
            budget,
            "ledger, got = ClientLedger(path, budget, DELTA), 0\n"
            "print('ready', flush=True)\n"
            f"while not os.path.exists({str(go)!r}): pass\n"
            "try:\n"
            "    while True:\n"
            "        ledger.reserve(ONCE, LOCAL)\n"
            "        got += 1\n"
            "        time.sleep(0.002)\n"
            "except LifetimeBudgetExceeded:\n"
            "    print(got)\n",
        )
        for _ in range(2)
    ]
    for process in rivals:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    go.touch()
    got = [int(process.communicate()[0]) for process in rivals]
    assert sum(got) == affordable
    assert ClientLedger(path, budget, DELTA).spent() <= budget


# ---- files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE events SET body = replace(body, '5.0', '500.0') WHERE kind = 'open'",
        "UPDATE events SET body = replace(body, '4.0', '40.0') WHERE kind = 'reserve'",
        "DELETE FROM events WHERE seq = 2",
    ],
)
def test_edited_events_are_noticed(path: Path, edit: str) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    ledger.reserve(ONCE, LOCAL)
    ledger.reserve(ONCE, LOCAL)
    with sqlite3.connect(path) as database:
        with pytest.raises(sqlite3.IntegrityError, match="append only"):
            database.execute(edit)
        database.execute("DROP TRIGGER no_update")
        database.execute("DROP TRIGGER no_delete")
        assert database.execute(edit).rowcount >= 1
    with pytest.raises(ConfigError, match="altered"):
        ClientLedger(path, 5.0, DELTA)
    for use in (  # of a ledger that was open all the while
        ledger.spent,
        ledger.runs,
        lambda: ledger.budget_epsilon,
        lambda: ledger.charges,
        lambda: ledger.reserve(ONCE, LOCAL),
        lambda: ledger.afford([ONCE], LOCAL),
        lambda: ledger.commit(2),
    ):
        with pytest.raises(ConfigError, match="altered"):
            use()


def cut(path: Path, events: int) -> None:
    """Take the last events away, as somebody would who knows the file."""
    with sqlite3.connect(path) as database:
        database.execute("DROP TRIGGER no_delete")
        last = "SELECT seq FROM events ORDER BY seq DESC LIMIT ?"
        database.execute(f"DELETE FROM events WHERE seq IN ({last})", (events,))


def head_of(path: Path) -> Path:
    return path.with_name(path.name + ".head")


@pytest.fixture(params=["noted", "not noted"])
def state(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Called before a test looks: the notes outside are there, or as on another machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if request.param == "noted":
        return lambda: None
    return lambda: shutil.rmtree(tmp_path / "state")


@pytest.mark.parametrize("events", [1, 2, 3, 4])
def test_events_cut_from_the_end_are_noticed(
    path: Path, events: int, state: Callable[[], None]
) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    for _ in range(3):
        ledger.reserve(ONCE, LOCAL)
    cut(path, events)
    state()
    for use in (lambda: ClientLedger(path, 5.0, DELTA), ledger.spent):
        with pytest.raises(ConfigError, match="lacks its event 4"):
            use()
    with pytest.raises(ConfigError, match="lacks its event 4"):
        ledger.reserve(ONCE, LOCAL)


@pytest.mark.parametrize("gone", ["deleted", "rolled back"])
def test_a_ledger_or_a_head_that_is_gone_or_older_is_noticed(
    path: Path, gone: str, state: Callable[[], None]
) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    old = {file: file.read_bytes() for file in (path, head_of(path))}
    for _ in range(2):
        ledger.reserve(ONCE, LOCAL)
    new = {file: file.read_bytes() for file in (path, head_of(path))}
    state()
    for file in (path, head_of(path)):
        if gone == "deleted":
            file.unlink()
        else:
            file.write_bytes(old[file])
        with pytest.raises(ConfigError, match="client ledger"):
            ledger.reserve(ONCE, LOCAL)
        with pytest.raises(ConfigError, match="client ledger"):
            ClientLedger(path, 5.0, DELTA)
        file.write_bytes(new[file])
    assert ClientLedger(path, 5.0, DELTA).spent() == pytest.approx(
        gaussian_epsilon(math.sqrt(2) / 4)
    )


def test_both_put_back_are_noticed_by_the_note(path: Path) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    old = {file: file.read_bytes() for file in (path, head_of(path))}
    ledger.reserve(ONCE, LOCAL)
    for file, data in old.items():
        file.write_bytes(data)
    with pytest.raises(ConfigError, match="lacks its event 2"):
        ClientLedger(path, 5.0, DELTA)


@pytest.mark.parametrize("event", [1, 2])
def test_a_crash_between_ledger_and_head_is_mended(
    path: Path, monkeypatch: pytest.MonkeyPatch, event: int
) -> None:
    """The event counts, though nobody was told of it; the next use notes it."""

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    if event == 2:
        ClientLedger(path, 5.0, DELTA)
    with monkeypatch.context() as broken:
        broken.setattr("fedveil_federation.client_events.write_head", crash)
        with pytest.raises(KeyboardInterrupt):
            ClientLedger(path, 5.0 if event == 1 else 4.0, DELTA)
    ledger = ClientLedger(path, 4.0, DELTA)
    ledger.reserve(ONCE, LOCAL)
    cut(path, 1)
    with pytest.raises(ConfigError, match="lacks its event"):
        ledger.spent()


def test_noise_that_spans_rounds_is_not_charged_round_by_round(path: Path) -> None:
    """Two turns in a row move what is released by |c + c shifted| = 2.14 clips, not by sqrt(2) |c|
    = 1.73: one by one they would add up to less than they cost."""
    factor = (4096, 2048, 1536, 1280)
    column = [one / 4096 for one in factor]
    near = math.hypot(*(a + b for a, b in zip([*column, 0.0], [0.0, *column], strict=True)))
    assert near > 1.2 * math.sqrt(2) * math.hypot(*column)
    ledger = ClientLedger(path, 50.0, DELTA, trust=Trust.CENTRAL)
    model = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL)
    turn = Release(CorrelatedGaussian(4.0, factor), RoundRobin(40, 10), 1)
    ledger.reserve(turn, model, run="one by one")
    with pytest.raises(TermsRefused, match="all its rounds together"):
        ledger.reserve(turn, model, run="one by one")
    ledger.reserve(replace(turn, rounds=8), model, run="in full")
    mu = math.hypot(*column) / 4.0
    assert ledger.spent() == pytest.approx(gaussian_epsilon(mu * math.sqrt(3)), rel=1e-6)


def test_what_can_be_afforded_is_what_can_be_reserved_and_asking_costs_nothing(path: Path) -> None:
    ledger = ClientLedger(path, 1.001 * gaussian_epsilon(math.sqrt(2) / 4), DELTA)
    nothing = ledger.charges
    ledger.afford([ONCE, ONCE], LOCAL)
    with pytest.raises(LifetimeBudgetExceeded):
        ledger.afford([ONCE, ONCE, ONCE], LOCAL)
    assert (ledger.spent(), ledger.runs(), ledger.charges) == (0.0, {}, nothing)
    ledger.reserve(ONCE, LOCAL, run="a")
    assert ledger.charges != nothing
    with pytest.raises(LifetimeBudgetExceeded):
        ledger.afford([ONCE, ONCE], LOCAL)
    ledger.reserve(ONCE, LOCAL, run="b")
    assert ledger.runs() == {"a": 1, "b": 1}
    with pytest.raises(LifetimeBudgetExceeded):
        ledger.reserve(ONCE, LOCAL, run="c")


def test_the_copy_of_events_is_whole_though_several_write_at_once(path: Path) -> None:
    """Two federations on one ledger are two processes; a site alone has threads."""
    ClientLedger(path, 5.0, DELTA)
    backup = path.read_bytes()

    def written(number: int) -> None:
        with client_events.transaction(path) as events:
            events.append("state", {"number": number})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(written, range(60)))
    path.write_bytes(backup)
    assert client_events.restore(path) == 60


def test_totals_survive_reopening(path: Path) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    ledger.reserve(ONCE, LOCAL)
    spent = ledger.spent()
    assert ClientLedger(path, 5.0, DELTA).spent() == spent


def test_unlike_mechanisms_of_unlike_settings_compose(path: Path) -> None:
    """Local Laplace, local discrete Gaussian and a distributed sum in one lifetime."""
    ledger = ClientLedger(path, 30.0, DELTA)
    shares = DiscreteGaussianSum(1.0, 2.0**-10, 0.3, shares=100, dimension=64, rounding_beta=None)
    distributed = replace(LOCAL, trust=Trust.DISTRIBUTED, colluders=20)
    parts = [
        (Release(Laplace(2.0), Everyone(), 1), LOCAL),
        (Release(DiscreteGaussian(3.0), Everyone(), 2), LOCAL),
        (Release(shares, Everyone(100), 1), distributed),
    ]
    for release, privacy_model in parts:
        ledger.reserve(release, privacy_model)
    alone = [account([r], privacy_model=s, delta=DELTA).epsilon for r, s in parts]
    thirds = [account([r], privacy_model=s, delta=DELTA / 3).epsilon for r, s in parts]
    assert max(alone) < ledger.spent() <= sum(thirds)


def test_pure_budgets_take_pure_releases_only(path: Path) -> None:
    ledger = ClientLedger(path, 1.0, 0.0)
    ledger.reserve(Release(Laplace(2.0), Everyone(), 1), LOCAL)
    assert ledger.spent() == pytest.approx(0.5)
    with pytest.raises(LifetimeBudgetExceeded):
        ledger.reserve(ONCE, LOCAL)


def test_a_client_killed_after_reserving_has_spent(path: Path) -> None:
    process = child(
        path,
        5.0,
        "ClientLedger(path, budget, DELTA).reserve(ONCE, LOCAL)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert ClientLedger(path, 5.0, DELTA).spent() == pytest.approx(gaussian_epsilon(1 / 4))


def test_foreign_and_damaged_files_are_one_clear_error(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("dear diary, " * 100)
    with pytest.raises(ConfigError, match="not a ledger"):
        ClientLedger(text, 5.0, DELTA)
    assert text.read_text().startswith("dear diary")

    foreign = tmp_path / "browser.sqlite"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE history (url TEXT)")
    with pytest.raises(ConfigError, match="another program"):
        ClientLedger(foreign, 5.0, DELTA)

    damaged = tmp_path / "damaged"
    ledger = ClientLedger(damaged, 50.0, DELTA)
    for _ in range(40):
        ledger.reserve(ONCE, LOCAL)
    content = bytearray(damaged.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    damaged.write_bytes(bytes(content))
    with pytest.raises(ConfigError, match="client ledger"):
        ClientLedger(damaged, 50.0, DELTA)

    with pytest.raises(FedveilError, match="unable to open"):
        ClientLedger(tmp_path / "no" / "such" / "folder", 5.0, DELTA)


def test_a_newer_version_is_not_misread(path: Path) -> None:
    ClientLedger(path, 5.0, DELTA)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 3")
    with pytest.raises(ConfigError, match="version 3"):
        ClientLedger(path, 5.0, DELTA)


def test_another_ledger_in_the_place_of_an_open_one_is_noticed(path: Path) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    ledger.reserve(ONCE, LOCAL)
    for name in (path, path.with_name(path.name + ".head")):
        name.unlink()
    with pytest.raises(ConfigError, match="another one than was opened"):
        ledger.spent()
    ClientLedger(path, 500.0, DELTA)
    with pytest.raises(ConfigError, match="another one than was opened"):
        ledger.reserve(ONCE, LOCAL)


def test_a_full_disk_under_the_head_grants_nothing_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        for _ in range(3):  # one is committed and not noted; then nothing before that is mended
            with pytest.raises(FedveilError, match="No space"):
                ledger.reserve(ONCE, LOCAL)
    assert ledger.spent() == pytest.approx(gaussian_epsilon(1 / 4))
    ledger.reserve(ONCE, LOCAL)


def test_a_ledger_that_cannot_be_written_grants_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ClientLedger(path, 5.0, DELTA)
    monkeypatch.setattr("fedveil_federation.client_events._LOCK_SECONDS", 0.05)
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("BEGIN EXCLUSIVE")
    with pytest.raises(FedveilError, match="nothing was written"):
        ledger.reserve(ONCE, LOCAL)
    rival.close()
    assert ledger.spent() == 0.0


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf, "5"])
def test_impossible_budgets_are_refused(path: Path, budget: float) -> None:
    with pytest.raises(ConfigError, match="budget_epsilon"):
        ClientLedger(path, budget, DELTA)
    assert not path.exists()


def test_hundreds_of_participations_are_charged_as_one_step(path: Path) -> None:
    """The closed form of 300 equal Gaussian releases."""
    ledger = ClientLedger(path, 50.0, DELTA)
    for _ in range(300):
        ledger.reserve(ONCE, LOCAL, run="long")
    assert ledger.spent() == pytest.approx(gaussian_epsilon(math.sqrt(300) / 4), rel=1e-6)


@pytest.mark.parametrize("release", [
    Release(Gaussian(1.0), Everyone(), 0), Release(Gaussian(1.0), Everyone(), 5, participations=0)
])  # fmt: skip
def test_taking_part_is_never_free(path: Path, release: Release) -> None:
    ledger = ClientLedger(path, 8.0, 1e-5, trust=Trust.LOCAL)
    with pytest.raises(ConfigError, match="no participation"):
        ledger.reserve(release, PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL))


def test_a_reopened_ledger_has_the_terms_and_the_charges_that_it_had(path: Path) -> None:
    with pytest.raises(ConfigError, match="make it first"):
        ClientLedger.reopened(path)
    first = ClientLedger(path, 3.0, DELTA, adjacency=Adjacency.REPLACE, trust=Trust.LOCAL)
    first.reserve(ONCE, replace(LOCAL, adjacency=Adjacency.REPLACE), run="a")
    ClientLedger(path, 2.0, DELTA, adjacency=Adjacency.REPLACE, trust=Trust.LOCAL)  # lowered
    again = ClientLedger.reopened(path)
    for name in ("delta", "unit", "adjacency", "trust", "charges"):
        assert getattr(again, name) == getattr(first, name)
    assert again.budget_epsilon == 2.0
    assert again.spent() == first.spent() > 0
