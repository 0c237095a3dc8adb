"""Known answers: the files, the second implementation and the package agree on every primitive."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from tests.secagg import reference

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.graph import Graph
from fedveil.privacy.secure_sums.masks import apply_masks, word_type
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import dealing, device, pairs, ratchet, session
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import DeviceKeys
from fedveil_federation.secagg.pairs import PairKeys
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Enrolled, Roster
from fedveil_federation.secagg.server import Server
from fedveil_federation.secagg.shares import combine, split

CASES: dict[str, list[dict[str, Any]]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(reference.VECTORS.glob("*.json"))
}


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def test_the_files_hold_what_the_second_implementation_says():
    assert json.loads(json.dumps(reference.known_answers())) == CASES


def test_the_second_implementation_knows_the_published_answers():
    # RFC 7748 section 5.2, RFC 5869 case 1, RFC 8032 section 7.1 test 2, FIPS 197 with SP 800-38A.
    scalar = raw("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = raw("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert reference.x25519(scalar, point) == raw(
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    )
    key = reference.hkdf_extract(raw("000102030405060708090a0b0c"), b"\x0b" * 22)
    assert reference.hkdf_expand(key, raw("f0f1f2f3f4f5f6f7f8f9"), 42) == raw(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    seed = raw("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    assert reference.ed25519_sign(seed, b"\x72") == raw(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    keyed = reference.BLAKE2b.new(key=bytes(range(64)), digest_bytes=64).digest()  # its authors'
    assert keyed[:16] == raw("10ebb67700b1868efb4417987acf4690")
    zero = reference.mask_words(bytes(16), 4, 32)  # GCM's second test case: zeros under zeros
    assert b"".join(w.to_bytes(4, "little") for w in zero) == raw(
        "0388dace60b6a392f328c2b971b2fe78"
    )


def pair_seed(case) -> bytes:
    private = X25519PrivateKey.from_private_bytes(raw(case["private"]))
    other = X25519PublicKey.from_public_bytes(raw(case["public"]))
    identity = Ed25519PrivateKey.generate().public_key()
    own = Enrolled(1, 1, b"", identity, private.public_key(), raw(case["low_card"]))
    theirs = Enrolled(2, 1, b"", identity, other, raw(case["high_card"]))
    return pairs.pair_seed(own, private, theirs)


def seal(case) -> bytes:
    pad = pairs.pads([raw(case["key"])], [raw(case["nonce"])], [case["dealer"]])
    return pairs.xor(raw(case["shares"]), pad)


def mask(case) -> list[int]:
    total = np.zeros(len(case["out"]), word_type(case["bits"]))
    apply_masks(total, [raw(case["key"])], [])
    return total.tolist()


def roster(case) -> bytes:
    frames = CASES["frame"]
    known = Roster(
        "clinics", {f["device"]: reference.ed25519_public(raw(f["identity"])) for f in frames}
    )
    known.admit(*(raw(f["card"]) for f in frames))
    return known.digest([f["device"] for f in frames[: len(case["cards"])]])


def exchange(case) -> bytes:
    identity = Ed25519PrivateKey.from_private_bytes(raw(case["identity"]))
    return session.exchange_key(identity).private_bytes_raw()


# By file: the package's answer to a case, which has the right one as `out`.
ANSWERS = {
    "digest": lambda c: derive.digest(c["label"].encode(), *map(raw, c["parts"])),
    "expand": lambda c: derive.expand(
        raw(c["key"]), c["label"].encode(), raw(c["context"]), len(raw(c["out"]))
    ),
    "tag": lambda c: pairs.tag(raw(c["key"]), c["author"], raw(c["content"])),
    "pair_seed": pair_seed,
    "ratchet": lambda c: ratchet.begin(raw(c["seed"]), c["round"]).key,
    "mark": lambda c: pairs.marks(raw(c["shares"]), raw(c["plan"]), [c["dealer"]], [c["holder"]]),
    "self_mask_key": lambda c: pairs.self_mask_key(raw(c["secret"])),
    "wrap": lambda c: pairs.wrap(raw(c["roots"]), raw(c["secret"])),
    "exchange": exchange,
    "commitment": lambda c: pairs.commitment(
        c["kind"].encode(), raw(c["secret"]), raw(c["plan"]), c["device"]
    ),
    "seal": seal,
    "mask": mask,
    "graph": lambda c: list(
        Graph(c["members"], c["degree"], raw(c["seed"])).neighbours(c["device"])
    ),
    "roster": roster,
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in ANSWERS for case in CASES[name]]
)
def test_the_package_knows_the_answer(name, case):
    found = ANSWERS[name](case)
    assert (found.hex() if isinstance(found, bytes) else found) == case["out"]


@pytest.mark.parametrize("case", CASES["pair_keys"])
def test_pair_keys(case):
    keys = pairs.pair_keys(raw(case["seed"]), raw(case["plan"]))
    assert keys == PairKeys(*(raw(case[name]) for name in PairKeys._fields))
    assert pairs.mask_key(keys.root) == raw(case["mask_key"])
    assert pairs.root_print(keys.root) == raw(case["root_print"])
    assert pairs.pair_keys(raw(case["seed"]), raw(case["plan"]), masks=False) == PairKeys(keys.seal)


@pytest.mark.parametrize("case", CASES["ratchet"])
def test_a_ratchet_is_turned_to_the_same_key_from_any_earlier_round(case):
    seed, round_number = raw(case["seed"]), case["round"]
    for start in (0, 1, 14, 255, 300, round_number // 2, max(0, round_number - 1)):
        if start <= round_number:
            assert ratchet.advance(ratchet.begin(seed, start), round_number).key == raw(case["out"])


@pytest.mark.parametrize("case", CASES["session"])
def test_session(case, monkeypatch):
    keys = [X25519PrivateKey.from_private_bytes(raw(case[side])) for side in ("server", "device")]
    server, own = (key.public_key().public_bytes_raw() for key in keys)
    monkeypatch.setattr(session, "X25519PrivateKey", SimpleNamespace(generate=lambda: keys[1]))
    begun = session.begin(server, raw(case["plan"]), case["id"])
    assert begun.exchange == own
    assert begun.session.up.key + begun.session.down.key == raw(case["out"])
    assert session.answer(keys[0], server, own, raw(case["plan"]), case["id"]) == begun.session


@pytest.mark.parametrize("case", CASES["shares"])
def test_shares(case):
    tape, holders = b"".join(map(raw, case["coefficients"])), case["holders"]
    threshold = 1 + len(case["coefficients"])
    dealt = split([raw(case["secret"])], threshold, 100, lambda size: tape[:size])
    for holder, out in zip(holders, case["out"], strict=True):
        if holder <= 100:
            assert dealt[holder - 1].tobytes() == raw(out)
    rows = np.frombuffer(b"".join(map(raw, case["out"])), np.uint8).reshape(-1, 32)
    for chosen in ([0, 1, 2], [0, 3, 4], [1, 2, 4]):
        assert combine(np.array(holders)[chosen], rows[chosen]) == raw(case["secret"])


@pytest.mark.parametrize("case", CASES["frame"])
def test_frame(case):
    identity = Ed25519PrivateKey.from_private_bytes(raw(case["identity"]))
    agreement = X25519PrivateKey.from_private_bytes(raw(case["agreement"]))
    keys = DeviceKeys(case["federation"], case["device"], identity, agreement)
    assert keys.card() == raw(case["card"])
    known = Roster(case["federation"], {case["device"]: identity.public_key().public_bytes_raw()})
    known.admit(raw(case["card"]))
    assert known.get(case["device"]).fingerprint == raw(case["fingerprint"])


@pytest.mark.parametrize("case", CASES["transcript"])
def test_transcript(case, monkeypatch):
    """A whole round with a lost device, every frame byte for byte."""
    server_key = Ed25519PrivateKey.from_private_bytes(raw(case["server"]))
    public = server_key.public_key().public_bytes_raw()
    keys = {
        d["device"]: DeviceKeys(
            "clinics",
            d["device"],
            Ed25519PrivateKey.from_private_bytes(raw(d["identity"])),
            X25519PrivateKey.from_private_bytes(raw(d["agreement"])),
        )
        for d in case["devices"]
    }
    pinned = {i: k.identity.public_key().public_bytes_raw() for i, k in keys.items()}
    roster = Roster("clinics", pinned)
    roster.admit(*(k.card() for k in keys.values()))
    params = SecAggParams("clinics", min_honest=2, max_dropout=0.25)
    server = Server(server_key, roster, params).open(7, keys, 3, 32)
    assert server.plan == raw(case["plan"])
    rounds = {}
    for d in case["devices"]:
        drawn = iter([raw(d["self_secret"]), raw(d["pair_secret"])])
        for module in (device, dealing):
            monkeypatch.setattr(module, "draw_secret", lambda drawn=drawn: next(drawn))
        tape = raw(d["coefficients"])
        fixed = partial(split, random_bytes=lambda size, tape=tape: tape[:size])
        monkeypatch.setattr(dealing, "split", fixed)
        nonce = raw(d["nonce"])
        monkeypatch.setattr(dealing.os, "urandom", lambda _, nonce=nonce: nonce)
        fresh = X25519PrivateKey.from_private_bytes(raw(d["fresh"]))
        made = SimpleNamespace(generate=lambda fresh=fresh: fresh)
        monkeypatch.setattr(session, "X25519PrivateKey", made)
        participant = Participant(keys[d["device"]], roster, params, public, MemoryJournal())
        rounds[d["device"]] = participant.join(server.plan)
        assert rounds[d["device"]].shares == raw(d["shares"])
        server.receive(rounds[d["device"]].shares)
    server.close_sharing()
    for d in case["devices"]:
        assert server.sharers_for(d["device"]) == raw(d["sharers"])
        rounds[d["device"]].take_sharers(raw(d["sharers"]))
    survivors = [d for d in case["devices"] if "masked" in d]
    for d in survivors:
        masked = rounds[d["device"]].mask(np.array(d["vector"], dtype=np.int64))
        assert masked == raw(d["masked"])
        server.receive(masked)
    server.close_upload()
    for d in survivors:
        assert server.survivors_for(d["device"]) == raw(d["survivors"])
        assert rounds[d["device"]].confirm(raw(d["survivors"])) == raw(d["confirm"])
        server.receive(raw(d["confirm"]))
    server.close_confirmation()
    for d in survivors:
        assert server.confirmed_for(d["device"]) == raw(d["confirmed"])
        assert rounds[d["device"]].unmask(raw(d["confirmed"])) == raw(d["unmask"])
        server.receive(raw(d["unmask"]))
    assert server.finish().tolist() == case["sum"]


def test_every_file_is_tested():
    others = {"pair_keys", "session", "shares", "frame", "transcript"}
    assert set(CASES) == ANSWERS.keys() | others
