"""A second implementation of every primitive, from the text of docs/secagg.md alone.

Plain and slow on purpose, and built on other libraries than the package: hashlib and hmac, big
integers for X25519 and Shamir, pycryptodome for AES, GCM and Ed25519. The known answers in
`vectors/` come from here: `python -m tests.secagg.reference` writes them.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from pathlib import Path
from typing import Any

from Crypto.Cipher import AES
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

LABEL = b"fedveil.secagg.v2."
VECTORS = Path(__file__).parent / "vectors"
PRIME = 65521
# The terms of the transcript: every field and its value.
TERMS = (
    "federation=clinics",
    "min_honest=2",
    "colluders=0",
    "max_dropout=0x1.0000000000000p-2",
    "security_failure=0x1.0000000000000p-64",
    "recovery_failure=0x1.0000000000000p-20",
    "sparse=False",
    "honest_shares=None",
    "honest_server=False",
    "dropped_edges=None",
    "purposes=1:6:update",
    "members=16384",
    "degree=1024",
    "dimension=268435456",
    "round_step=16384",
    "draws=8",
)


def le(number: int, size: int = 8) -> bytes:
    return number.to_bytes(size, "little")


def digest(label: str, *parts: bytes) -> bytes:
    joined = b"".join(le(len(part)) + part for part in parts)
    return hashlib.sha256(LABEL + label.encode() + b"\0" + joined).digest()


def hkdf_extract(salt: bytes, secret: bytes) -> bytes:
    return hmac.new(salt, secret, hashlib.sha256).digest()


def hkdf_expand(key: bytes, info: bytes, length: int) -> bytes:
    out, block, counter = b"", b"", 1
    while len(out) < length:
        block = hmac.new(key, block + info + bytes([counter]), hashlib.sha256).digest()
        out, counter = out + block, counter + 1
    return out[:length]


def expand(key: bytes, label: str, context: bytes = b"", length: int = 32) -> bytes:
    return hkdf_expand(key, LABEL + label.encode() + b"\0" + context, length)


def tag(key: bytes, label: str, message: bytes) -> bytes:
    return hmac.new(key, LABEL + label.encode() + b"\0" + message, hashlib.sha256).digest()[:16]


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5, written out."""
    p = 2**255 - 19
    k = int.from_bytes(scalar, "little") & ~7 & ((1 << 255) - 1) | (1 << 254)
    u = int.from_bytes(point, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in reversed(range(255)):
        swap = k >> bit & 1
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b = x2 + z2, x2 - z2
        da, cb = (x3 - z3) * a, (x3 + z3) * b
        aa, bb = a * a, b * b
        x3, z3 = (da + cb) ** 2 % p, u * (da - cb) ** 2 % p
        x2, z2 = aa * bb % p, (aa - bb) * (aa + 121665 * (aa - bb)) % p
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def ed25519_public(seed: bytes) -> bytes:
    key = ECC.construct(curve="Ed25519", seed=seed)
    return key.public_key().export_key(format="raw")


def ed25519_sign(seed: bytes, message: bytes) -> bytes:
    return eddsa.new(ECC.construct(curve="Ed25519", seed=seed), "rfc8032").sign(message)


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return le(len(content), 4) + content


def packed_ids(ids: list[int]) -> bytes:
    """Steps of one byte: enough for the ids used here."""
    steps = [after - before for before, after in itertools.pairwise(ids)]
    assert all(0 < step < 256 for step in steps)
    return le(len(ids), 4) + (b"\1" + le(ids[0]) + bytes(steps) if ids else b"")


def claims(kind: int, device: int, context: bytes, body: bytes) -> bytes:
    return bytes([2, kind]) + le(device) + context + le(len(body), 4)


def frame(kind: int, device: int, context: bytes, body: bytes, seed: bytes) -> bytes:
    head = claims(kind, device, context, body)
    signed = LABEL + b"frame\0" + head + hashlib.sha256(body).digest()
    return b"FVSA" + head + ed25519_sign(seed, signed) + body


def message_digest(data: bytes) -> bytes:
    return hashlib.sha256(data[4:50] + hashlib.sha256(data[114:]).digest()).digest()


def ratchet(seed: bytes, round_number: int) -> bytes:
    """The key of a round: along each digit's chain, then down a branch."""
    for place in range(8):
        for _ in range(round_number // 16 ** (7 - place) % 16):
            seed = hmac.new(seed, LABEL + b"ratchet\0", hashlib.sha512).digest()[:32]
        seed = hmac.new(seed, LABEL + b"ratchet\0", hashlib.sha512).digest()[32:]
    return seed


def print_of(kind: str, part: bytes, plan: bytes, dealer: int, holder: int) -> bytes:
    return expand(part, f"share-{kind}", plan + le(dealer) + le(holder), 16)


def mark(both: bytes, plan: bytes, dealer: int, holder: int) -> bytes:
    own = print_of("self", both[:32], plan, dealer, holder)
    pair = print_of("pair", both[32:], plan, dealer, holder)
    return digest("mark", own, pair)[:16]


def check(root: bytes, up: bytes, down: bytes) -> bytes:
    prints = [expand(key, "check-seal", length=16) for key in (up, down)]
    return expand(root, "check", length=16) + digest("check-seals", *prints)[:16]


def pair_seed(secret: bytes, public: bytes, low_card: bytes, high_card: bytes) -> bytes:
    salt = hashlib.sha256(LABEL + b"pair").digest()
    return hkdf_expand(hkdf_extract(salt, x25519(secret, public)), low_card + high_card, 32)


def mask_words(key: bytes, count: int, bits: int) -> list[int]:
    size = bits // 8
    stream = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=0).encrypt(bytes(size * count))
    return [int.from_bytes(stream[i : i + size], "little") for i in range(0, size * count, size)]


def seal(key: bytes, both: bytes, nonce: bytes) -> bytes:
    ciphertext, mac = AES.new(key, AES.MODE_GCM, nonce=nonce).encrypt_and_digest(both)
    return nonce + ciphertext + mac


def elements(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]


def share(secret: bytes, coefficients: list[bytes], holder: int) -> bytes:
    """`coefficients[e - 1]` are those of x^e, 16 elements each."""
    columns = zip(elements(secret), *(elements(c) for c in coefficients), strict=True)
    values = [sum(c * pow(holder, e, PRIME) for e, c in enumerate(col)) % PRIME for col in columns]
    return b"".join(le(value, 2) for value in values)


def neighbours(members: list[int], degree: int, seed: bytes, device: int) -> list[int]:
    order = sorted(members, key=lambda member: digest("order", seed, le(member)))
    place, size = order.index(device), len(order)
    if degree == size - 1:
        return sorted(set(members) - {device})
    near = range(1, degree // 2 + 1)
    return sorted({order[(place + s) % size] for s in near} | {order[place - s] for s in near})


def pattern(name: str, size: int) -> bytes:
    """Bytes that look random and need no file: SHAKE-256 of a name."""
    return hashlib.shake_256(name.encode()).digest(size)


def card(device: int, identity: bytes, public: bytes) -> bytes:
    body = text("clinics") + le(1) + public + text(b"")
    return frame(1, device, ed25519_public(identity), body, identity)


def secret_pattern(name: str) -> bytes:
    return b"".join(le(value % PRIME, 2) for value in elements(pattern(name, 32)))


def known_answers() -> dict[str, list[dict[str, Any]]]:
    """Inputs and outputs of every primitive and of a whole round; bytes as hexadecimal."""
    return primitives() | {"transcript": transcript()}


def primitives() -> dict[str, list[dict[str, Any]]]:
    key, plan = pattern("key", 32), pattern("plan", 32)
    secret = secret_pattern("self secret")
    coefficients = [secret_pattern(f"coefficient {e}") for e in (1, 2)]
    members = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
    members.sort()
    drawers, drawn = [14, 35], [pattern("drawn 14", 32), pattern("drawn 35", 32)]
    hidden = [digest("draw", plan, le(d), own) for d, own in zip(drawers, drawn, strict=True)]
    listed = digest("commitments", plan, b"".join(map(le, drawers)), b"".join(hidden))
    graph_seed = digest("graph", listed, b"".join(drawn))
    agreement = [pattern(f"agreement {i}", 32) for i in (1, 2)]
    base = (9).to_bytes(32, "little")
    public = [x25519(scalar, base) for scalar in agreement]
    identity = [pattern(f"identity {i}", 32) for i in (1, 2)]
    cards = [card(i + 1, identity[i], public[i]) for i in (0, 1)]
    prints = [message_digest(card) for card in cards]
    material = expand(key, "round", plan, 128)
    root = material[:32]
    both = secret + secret_pattern("pair secret")
    pad = expand(secret, "wrap", le(92))
    return {
        "digest": [
            {
                "label": "sharers",
                "parts": [plan.hex(), "0f"],
                "out": digest("sharers", plan, b"\x0f").hex(),
            },
            {"label": "members", "parts": [], "out": digest("members").hex()},
        ],
        "expand": [
            {
                "key": key.hex(),
                "label": label,
                "context": context.hex(),
                "out": expand(key, label, context, length).hex(),
            }
            for label, context, length in (("mask", b"", 32), ("round", plan, 128), ("x", b"y", 16))
        ],
        "tag": [
            {
                "key": key.hex(),
                "label": label,
                "message": plan.hex(),
                "out": tag(key, label, plan).hex(),
            }
            for label in ("upload", "confirm")
        ],
        "pair_seed": [
            {
                "private": agreement[0].hex(),
                "public": public[1].hex(),
                "low_card": prints[0].hex(),
                "high_card": prints[1].hex(),
                "out": pair_seed(agreement[0], public[1], *prints).hex(),
            }
        ],
        "pair_keys": [
            {
                "seed": key.hex(),
                "plan": plan.hex(),
                "root": root.hex(),
                "seal_up": material[32:64].hex(),
                "seal_down": material[64:96].hex(),
                "tag": material[96:].hex(),
                "mask_key": expand(root, "mask").hex(),
                "check": check(root, material[32:64], material[64:96]).hex(),
            }
        ],
        "ratchet": [
            {"seed": key.hex(), "round": round_number, "out": ratchet(key, round_number).hex()}
            for round_number in (0, 1, 15, 16, 300, 65535, 65536, 2**32 - 1)
        ],
        "mark": [
            {
                "shares": both.hex(),
                "plan": plan.hex(),
                "dealer": 14,
                "holder": 92,
                "out": mark(both, plan, 14, 92).hex(),
            }
        ],
        "draw": [
            {
                "draft": plan.hex(),
                "devices": drawers,
                "drawn": [own.hex() for own in drawn],
                "hidden": [one.hex() for one in hidden],
                "commitments": listed.hex(),
                "out": graph_seed.hex(),
            }
        ],
        "self_mask_key": [{"secret": secret.hex(), "out": expand(secret, "self-mask").hex()}],
        "wrap": [
            {
                "root": root.hex(),
                "secret": secret.hex(),
                "neighbour": 92,
                "out": bytes(a ^ b for a, b in zip(root, pad, strict=True)).hex(),
            }
        ],
        "commitment": [
            {
                "kind": kind,
                "secret": secret.hex(),
                "plan": plan.hex(),
                "device": 14,
                "out": digest(f"commit-{kind}", plan, le(14), secret).hex(),
            }
            for kind in ("self", "pair")
        ],
        "seal": [
            {
                "key": key.hex(),
                "shares": both.hex(),
                "nonce": pattern("nonce", 12).hex(),
                "out": seal(key, both, pattern("nonce", 12)).hex(),
            },
        ],
        "mask": [
            {"key": key.hex(), "bits": bits, "out": mask_words(key, 9, bits)} for bits in (32, 64)
        ],
        "shares": [
            {
                "secret": secret.hex(),
                "coefficients": [c.hex() for c in coefficients],
                "holders": [1, 2, 3, 100, 65520],
                "out": [share(secret, coefficients, x).hex() for x in (1, 2, 3, 100, 65520)],
            }
        ],
        "graph": [
            {
                "members": members,
                "seed": graph_seed.hex(),
                "degree": degree,
                "device": device,
                "out": neighbours(members, degree, graph_seed, device),
            }
            for degree in (4, 9)
            for device in (3, 35, 92)
        ],
        "frame": [
            {
                "identity": identity[i].hex(),
                "agreement": agreement[i].hex(),
                "federation": "clinics",
                "device": i + 1,
                "card": cards[i].hex(),
                "fingerprint": prints[i].hex(),
            }
            for i in (0, 1)
        ],
        "roster": [
            {"cards": [p.hex() for p in prints], "out": digest("roster", b"".join(prints)).hex()},
        ],
        "certificate": [
            {
                "authority": key.hex(),
                "federation": "clinics",
                "device": 1,
                "identity": ed25519_public(identity[0]).hex(),
                "out": ed25519_sign(
                    key,
                    digest("certificate", b"clinics", le(1), ed25519_public(identity[0])),
                ).hex(),
            }
        ],
    }


def transcript() -> list[dict[str, Any]]:
    """Four devices, all joined, threshold 2; device 4 shares and is then lost."""
    ids, words = [1, 2, 3, 4], 3
    server = pattern("server", 32)
    identity = {i: pattern(f"identity {i}", 32) for i in ids}
    agreement = {i: pattern(f"agreement {i}", 32) for i in ids}
    public = {i: x25519(agreement[i], (9).to_bytes(32, "little")) for i in ids}
    cards = {i: card(i, identity[i], public[i]) for i in ids}
    prints = {i: message_digest(cards[i]) for i in ids}
    roster = digest("roster", b"".join(prints[i] for i in ids))
    params = digest("terms", *(line.encode() for line in TERMS))
    numbers = b"".join(le(n) for n in (words, 32, 3, 2, 2))
    plan_body = text("clinics") + le(7) + text("update") + packed_ids(ids) + roster + params
    plan = frame(3, 0, bytes(32), plan_body + numbers + packed_ids([]) + text(b""), server)
    plan_digest = message_digest(plan)
    others = {i: [j for j in ids if j != i] for i in ids}
    self_secret = {i: secret_pattern(f"self {i}") for i in ids}
    pair_secret = {i: secret_pattern(f"pair {i}") for i in ids}
    slopes = {
        i: (secret_pattern(f"slope self {i}"), secret_pattern(f"slope pair {i}")) for i in ids
    }
    material, root, tag_key = {}, {}, {}
    for i in ids:
        for j in others[i]:
            low, high = min(i, j), max(i, j)
            seed = pair_seed(agreement[i], public[j], prints[low], prints[high])
            material[i, j] = expand(ratchet(seed, 7), "round", plan_digest, 128)
            root[i, j], tag_key[i, j] = material[i, j][:32], material[i, j][96:]

    def share_of(i: int, j: int, kind: int) -> bytes:
        secret = (self_secret, pair_secret)[kind][i]
        return share(secret, [slopes[i][kind]], others[i].index(j) + 1)

    def both_of(i: int, j: int) -> bytes:
        return share_of(i, j, 0) + share_of(i, j, 1)

    def nonce(i: int, j: int) -> bytes:
        return pattern(f"nonce {i} {j}", 12)

    def sealed(i: int, j: int) -> bytes:
        key = material[i, j][32:64] if i < j else material[i, j][64:96]
        return seal(key, both_of(i, j), nonce(i, j))

    def mark_of(i: int, j: int) -> bytes:
        return mark(both_of(i, j), plan_digest, i, j)

    def check_of(i: int, j: int) -> bytes:
        return check(root[i, j], material[i, j][32:64], material[i, j][64:96])

    def answer(i: int, j: int) -> bytes:
        """What j answers about i: the share that is owed, and the other one's print."""
        kind = 0 if i in survivors else 1
        other = share_of(i, j, 1 - kind)
        return share_of(i, j, kind) + print_of(("pair", "self")[kind], other, plan_digest, i, j)

    def wrapped(i: int, j: int) -> bytes:
        pad = expand(pair_secret[i], "wrap", le(j))
        return bytes(a ^ b for a, b in zip(root[i, j], pad, strict=True))

    everybody, surviving, survivors = b"\x0f", b"\x07", [1, 2, 3]
    sharers = digest("sharers", plan_digest, everybody)
    agreed = digest("survivors", plan_digest, everybody, surviving)
    vectors = {i: [i, -100 * i, 2**30 - i] for i in survivors}
    devices = []
    for i in ids:
        commitments = digest("commit-self", plan_digest, le(i), self_secret[i])
        commitments += digest("commit-pair", plan_digest, le(i), pair_secret[i])
        known = {
            "device": i,
            "identity": identity[i],
            "agreement": agreement[i],
            "self_secret": self_secret[i],
            "pair_secret": pair_secret[i],
            "coefficients": slopes[i][0] + slopes[i][1],
            "nonces": b"".join(nonce(i, j) for j in others[i]),
            "shares": frame(
                4,
                i,
                plan_digest,
                commitments
                + text(b"".join(sealed(i, j) for j in others[i]))
                + text(b"".join(wrapped(i, j) for j in others[i]))
                + text(b"".join(check_of(i, j) for j in others[i]))
                + text(b"".join(mark_of(i, j) for j in others[i])),
                identity[i],
            ),
            "sharers": frame(
                5,
                i,
                plan_digest,
                text(everybody)
                + text(b"\0")
                + text(b"".join(sealed(j, i) for j in others[i]))
                + text(b"".join(mark_of(j, i) for j in others[i])),
                server,
            ),
        }
        if i in survivors:
            total = [
                x + m
                for x, m in zip(
                    vectors[i],
                    mask_words(expand(self_secret[i], "self-mask"), words, 32),
                    strict=True,
                )
            ]
            for j in others[i]:
                sign = 1 if i < j else -1
                mask = mask_words(expand(root[i, j], "mask"), words, 32)
                total = [x + sign * m for x, m in zip(total, mask, strict=True)]
            vector = b"".join(le(x % 2**32, 4) for x in total)
            upload = b"".join(tag(tag_key[i, j], "upload", le(i) + sharers) for j in others[i])
            statement = ed25519_sign(
                identity[i], digest("statement", plan_digest, le(i), everybody)
            )
            alive = [j for j in others[i] if j in survivors]
            uploaded = b"".join(tag(tag_key[i, j], "upload", le(j) + sharers) for j in alive)
            own = b"".join(tag(tag_key[i, j], "confirm", le(i) + agreed) for j in alive)
            theirs = b"".join(tag(tag_key[i, j], "confirm", le(j) + agreed) for j in alive)
            answers = b"".join(answer(j, i) for j in others[i])
            accepted = digest("accepted", plan_digest, b"".join(mark_of(j, i) for j in others[i]))
            known |= {
                "vector": vectors[i],
                "masked": frame(
                    6, i, plan_digest, text(upload) + statement + text(vector), identity[i]
                ),
                "survivors": frame(
                    7,
                    i,
                    plan_digest,
                    text(surviving) + text(uploaded) + packed_ids([]) + text(b""),
                    server,
                ),
                "confirm": frame(
                    8, i, plan_digest, agreed + text(own) + text(b"\0") + accepted, identity[i]
                ),
                "confirmed": frame(9, i, plan_digest, text(surviving) + text(theirs), server),
                "unmask": frame(10, i, plan_digest, text(answers), identity[i]),
            }
        devices.append({k: v.hex() if isinstance(v, bytes) else v for k, v in known.items()})
    total = [sum(column) for column in zip(*vectors.values(), strict=True)]
    centred = [(x + 2**31) % 2**32 - 2**31 for x in total]
    return [{"server": server.hex(), "plan": plan.hex(), "devices": devices, "sum": centred}]


if __name__ == "__main__":
    for name, cases in known_answers().items():
        (VECTORS / f"{name}.json").write_text(json.dumps(cases, indent=1) + "\n")
