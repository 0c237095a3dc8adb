"""From nothing to a trained model, by the parts behind the commands; in memory, so quickly."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.deploy.hospitals import SITES, Hospitals, forget_rows, hospitals

from fedveil.core.errors import ConfigError
from fedveil_federation.cli.federation import _budget
from fedveil_federation.deploy import certificates, hub, reading
from fedveil_federation.deploy.certificates import Pair
from fedveil_federation.deploy.envelope import Message, claimed, seal
from fedveil_federation.deploy.hub_service import _site_status
from fedveil_federation.deploy.logs import _Line
from fedveil_federation.deploy.reading import read_apart
from fedveil_federation.deploy.state_dirs import Bundle, SiteHome, keep_pair


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Hospitals]:
    found = hospitals(tmp_path)
    yield found
    found.close()


def test_a_federation_trains_and_everybody_has_a_ledger(
    made: Hospitals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fedveil_federation")
    made.meet()
    made.queue()
    service = made.service()
    assert service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
    ((run, _),) = made.finished
    assert run.state.rounds == 3
    assert not torch.equal(run.weights, run.plan.start)
    assert run.guarantee is not None
    assert run.guarantee.certified
    assert run.guarantee.unit == "record"
    sentences = " ".join(run.guarantee.not_covered)
    assert "Whoever runs a site" in sentences
    assert "this process" not in sentences
    for home in made.homes.values():
        assert list(home.store().ledger.runs().values()) == [3]
    assert 'fedveil_hub_rounds_total{released="yes"} 3' in service.counters.text()
    said = service.hellos()
    assert all(isinstance(one, Message) and one.header["spent"] > 0 for one in said.values())
    _check_logs(made, [_Line().format(record) for record in caplog.records])


def _check_logs(made: Hospitals, lines: list[str]) -> None:
    """Every round is there, by name; keys are not."""
    told = [json.loads(line) for line in lines]
    rounds = [one["round"] for one in told if one["message"] == "round: released"]
    assert rounds == [1, 2, 3]
    taken = [(one["round"], one["of"]) for one in told if one["message"] == "takes part in a round"]
    assert sorted(taken) == [(number, 3) for number in (1, 2, 3) for _ in SITES]
    assert {"run": "first", "level": "info", "message": "run: done"}.items() <= told[-1].items()
    files = [made.hub.path / name for name in ("hub.key", "hub.pem", "authority.pem")]
    files += [home.path / name for home in made.homes.values() for name in ("store.key", "own.pem")]
    for secret in {word for file in files for word in file.read_text().split() if len(word) > 30}:
        assert not any(secret in line for line in lines)


def test_a_site_that_waits_does_without_large_libraries(made: Hospitals) -> None:
    """Torch, scipy and pyarrow take more memory than all the rest of it."""
    made.meet()
    made.end("north")
    words = (
        "import sys; from pathlib import Path;"
        "from fedveil_federation.deploy.courier_process import *;"
        "from fedveil_federation.deploy.state_dirs import SiteHome;"
        "from fedveil_federation.deploy.site_service import *;"
        "from fedveil_federation.deploy.sockets import SocketCourier;"
        "from fedveil_federation.cli import site;"
        "from fedveil_federation.deploy.reading import read_apart;"
        "found = SiteService(SiteHome(Path(sys.argv[1])), read=read_apart);"
        "large = {'torch', 'scipy', 'pyarrow', 'pandas'} & set(sys.modules);"
        "print(type(found._responder).__name__, *large)"
    )
    said = subprocess.run(
        [sys.executable, "-c", words, made.homes["north"].path], capture_output=True, text=True
    )
    assert said.stdout.split() == ["Guard"], said.stderr


def test_rows_read_by_a_process_of_their_own_are_the_same(made: Hospitals) -> None:
    home = made.homes["north"]
    found, expected = read_apart(home), home.rows()
    assert np.array_equal(found.train.inputs, expected.train.inputs)
    assert np.array_equal(found.train.targets, expected.train.targets)
    assert (found.features, found.encoder) == (expected.features, expected.encoder)


def test_rows_that_cannot_be_read_in_a_process_are_refused_with_the_reason(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = made.homes["north"]
    home.data.write_text("age,ward\n1,a\n")
    with pytest.raises(ConfigError, match="ill"):
        read_apart(home)
    monkeypatch.setattr(reading, "_PROGRAM", ["-c", "raise SystemExit(9)"])
    with pytest.raises(ConfigError, match="ended before it was done"):
        read_apart(home)


def full(*args: object, **settings: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_that_a_full_disk_ends_goes_on_when_it_is_resumed(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.meet()
    made.queue()
    service = made.service()
    with monkeypatch.context() as patched:
        patched.setattr(hub, "write_atomically", full)
        service.step()
    ended = service.queue.ended("first")
    assert ended is not None
    assert "No space left" in ended["reason"]
    service.queue.again("first")
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}


def test_nothing_runs_until_every_owner_has_confirmed_the_list(made: Hospitals) -> None:
    for site in SITES:
        made.start(site)
    service = made.service()
    service.step()
    members = made.hub.members
    assert members is not None
    assert members.names == SITES
    made.homes["north"].trust(members.fingerprint)
    made.homes["south"].trust(members.fingerprint.upper())
    made.queue()
    service.step()
    ended = service.queue.ended("first")
    assert ended is not None
    assert "'east' is not ready: its owner has not confirmed" in ended["reason"]
    with pytest.raises(ConfigError, match="somebody was shown another list"):
        made.homes["east"].trust("00000-00000-00000-00000-00000")


def test_what_is_kept_is_for_its_owner_alone(made: Hospitals) -> None:
    made.meet()
    made.queue()
    made.service().step()
    for root in (made.hub.path, *(home.path for home in made.homes.values())):
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        for kind in ("*.key", "*.pem", "*.db", "*.bundle", "*.toml"):
            for path in root.glob(kind):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_paused_site_refuses_and_says_so(made: Hospitals) -> None:
    made.meet()
    made.homes["south"].pause(True)
    made.queue()
    service = made.service()
    service.step()
    ended = service.queue.ended("first")
    assert ended is not None
    assert "'south': paused by its owner" in ended["reason"]
    made.homes["south"].pause(False)
    made.queue("second")
    service.step()
    assert service.queue.ended("second") == {"outcome": "done", "reason": ""}


def test_a_run_waits_for_a_site_that_is_away(made: Hospitals) -> None:
    made.meet()
    made.seconds = 0.3
    made.end("east")
    made.queue()
    service = made.service()
    service.step()
    assert service.queue.ended("first") is None
    assert "east" in service.queue.waiting("first")
    made.seconds = 600.0
    made.start("east")
    service = made.service()
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}


def test_who_has_left_keeps_the_ledger_and_nothing_else(made: Hospitals) -> None:
    made.meet()
    made.queue()
    made.service().step()
    home = made.homes["north"]
    home.leave()
    assert list(home.store().ledger.runs().values()) == [3]
    made.queue("second")
    service = made.service()
    service.step()
    ended = service.queue.ended("second")
    assert ended is not None
    assert "has left" in ended["reason"]


def test_certificates_are_renewed_before_they_expire(made: Hospitals) -> None:
    made.meet()
    made.service().step()
    pair, authority = made.homes["north"].certificate, made.hub.authority
    short = certificates.renewed(authority, pair.certificate, days=10)
    made.hub.keep_site_certificate("north", short)
    keep_pair(made.homes["north"].path, "own", Pair(short, pair.key))
    own = made.hub.certificate
    ending = certificates.renewed(authority, own.certificate, "localhost", days=10)
    keep_pair(made.hub.path, "hub", Pair(ending, own.key))
    site, service = made.start("north"), made.service()
    service.step()
    assert certificates.days_left(made.hub.certificate.certificate) > 300
    assert certificates.days_left(made.homes["north"].certificate.certificate) > 300
    assert made.homes["north"].certificate.key == pair.key
    # Another authority's, and another site's, are not taken.
    stranger = certificates.new_authority("hospitals")
    for bad in (
        certificates.renewed(stranger, pair.certificate, days=900),
        certificates.renewed(authority, made.hub.site_certificate("south"), days=900),
    ):
        told = Message({"kind": "certificate"}, (bad.encode(),))
        assert claimed(site.answer(seal(told, made.hub.key))).header["status"] == "refused"


def test_the_lifetime_budget_is_lowered_by_the_policy_and_never_raised(made: Hospitals) -> None:
    home = made.homes["north"]
    policy = home.path / "policy.toml"
    policy.write_text(policy.read_text().replace("epsilon = 50.0", "epsilon = 30.0"))
    assert home.store().ledger.budget_epsilon == 30.0
    policy.write_text(policy.read_text().replace("epsilon = 30.0", "epsilon = 40.0"))
    with pytest.raises(ConfigError, match="cannot be raised"):
        home.store()


def test_a_run_that_was_stopped_is_gone_on_with(made: Hospitals) -> None:
    made.meet()
    made.queue()
    service = made.service()
    service.queue.stop("first")
    service.step()
    assert service.queue.ended("first") == {"outcome": "stopped", "reason": ""}
    assert not made.finished
    service.queue.again("first")
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
    ((run, _),) = made.finished
    assert run.state.rounds == 3
    with pytest.raises(ConfigError, match="neither stopped"):
        service.queue.again("first")


def test_what_a_site_says_of_itself_is_shown_as_one_harmless_line(made: Hospitals) -> None:
    """A site that lies: letters that steer a terminal, half a budget, and no text at all."""
    said = {"stopped": "\x1b]0;gone\x07\nnorth: ready", "epsilon": 1.0, "version": 7}
    shown = _site_status(made.hub, "north", Message(said))
    assert shown["state"] == " ]0;gone  north: ready"
    assert (shown["version"], shown["spent"], shown["epsilon"]) == ("", None, 1.0)
    assert _budget(shown["spent"], shown["epsilon"]) == ""


def test_a_bundle_expires_soon_and_counts_until_its_site_has_come(made: Hospitals) -> None:
    """From then on the site has a key that has never left it, and the bundle's lets nobody in."""
    bundle = Bundle.read(made.hub.path / "bundles" / "north.bundle")
    assert 13 < certificates.days_left(bundle.pair.certificate) < 15
    stolen = certificates.key_of(bundle.pair.certificate)
    assert made.hub.site_keys()["north"] == [stolen]
    made.meet()
    own = made.homes["north"].certificate
    assert made.hub.site_keys()["north"] == [stolen, certificates.key_of(own.certificate)]
    made.service().step()  # north comes with its own
    assert made.hub.site_keys()["north"] == [certificates.key_of(own.certificate)]
    assert not (made.hub.path / "bundles" / "north.bundle").exists()
    for home in made.homes.values():
        own = home.certificate
        assert certificates.days_left(own.certificate) > 300
        certificates.check(own.certificate, home.authority, home.site, own.key)
        assert not (home.path / "site.pem").exists()
    with pytest.raises(ConfigError, match="members"):
        made.hub.invite("north")
    made.hub.revoke("north")
    assert "north" not in made.hub.site_keys()


def test_a_bundle_that_a_thief_has_used_is_noticed_and_made_anew(made: Hospitals) -> None:
    """The thief comes first; the hospital is not let in, and asks for another bundle."""
    thief = made.homes["north"]
    for _ in range(2):
        made.start("north")
        made.service().step()
    assert made.hub.site_keys()["north"] == [certificates.key_of(thief.certificate.certificate)]
    made.end("north")
    bundle = Bundle.read(made.hub.invite("north"))
    assert made.hub.site_keys()["north"] == [certificates.key_of(bundle.pair.certificate)]
    policy = made.folder / "policy.toml"
    forget_rows()  # the hospital has another machine than the thief
    made.homes["north"] = SiteHome.create(made.folder / "again", bundle, thief.data, policy)
    made.meet()
    members = made.hub.members
    assert members is not None
    store = made.homes["north"].store()
    identity = made.homes["north"].keys(store).identity.public_key().public_bytes_raw()
    assert members.sites["north"] == identity


def test_no_run_begins_with_a_revoked_site(made: Hospitals) -> None:
    made.meet()
    made.hub.revoke("east")
    made.queue()
    service = made.service()
    service.step()
    ended = service.queue.ended("first")
    assert ended is not None
    assert ended["outcome"] == "refused"
    assert "east" in ended["reason"]


def test_a_federation_of_older_rsa_keys_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(certificates, "_new_key", lambda: rsa.generate_private_key(65537, 2048))
        made = hospitals(tmp_path, address="localhost:8009")
    try:
        made.meet()
        assert all(site.home.certificate.certificate for site in made.sites.values())
        fresh = certificates.renewed(made.hub.authority, made.hub.certificate.certificate)
        certificates.check(
            fresh, made.hub.authority.certificate, "localhost", made.hub.certificate.key
        )
    finally:
        made.close()
