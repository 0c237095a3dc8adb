"""A second implementation of every primitive, from the text of docs/secagg.md alone.

Plain and slow on purpose, and built on other libraries than the package: hashlib and hmac, big
integers for X25519 and Shamir, pycryptodome for AES, BLAKE2b and Ed25519. The known answers in
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
from Crypto.Hash import BLAKE2b
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

LABEL = b"fedveil.secagg.v5."
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
    "honest_server=False",
    "purposes=1:6:update",
    "members=16384",
    "degree=1024",
    "dimension=268435456",
    "round_step=16384",
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
    state = BLAKE2b.new(key=key, digest_bytes=length)
    return state.update(LABEL + label.encode() + b"\0" + context).digest()


def keystream(key: bytes, size: int) -> bytes:
    return AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=2).encrypt(bytes(size))


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


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
    return bytes([5, kind]) + le(device) + context + le(len(body), 4)


def frame(kind: int, device: int, context: bytes, body: bytes, seed: bytes) -> bytes:
    """Signed by an identity, of which the seed is given."""
    head = claims(kind, device, context, body)
    covered = signed(head, hashlib.sha256(body).digest())
    return b"FVSA" + head + ed25519_sign(seed, covered) + body


def stamped(kind: int, device: int, context: bytes, body: bytes, key: bytes) -> bytes:
    """The same under the key of a session."""
    head = claims(kind, device, context, body)
    hashed = AES.new(expand(key, "hash"), AES.MODE_GCM, nonce=bytes(12)).update(body).digest()
    return b"FVSA" + head + expand(key, "stamp", signed(head, hashed), 64) + body


def signed(head: bytes, content: bytes) -> bytes:
    return LABEL + b"frame\0" + head + content


def message_digest(data: bytes) -> bytes:
    return hashlib.sha256(data[4:50] + hashlib.sha256(data[114:]).digest()).digest()


def ratchet(seed: bytes, round_number: int) -> bytes:
    """The key of a round: along each digit's chain, then down a branch."""
    for place in range(8):
        for _ in range(round_number // 16 ** (7 - place) % 16):
            seed = expand(seed, "ratchet", length=64)[:32]
        seed = expand(seed, "ratchet", length=64)[32:]
    return seed


def print_of(kind: str, part: bytes, plan: bytes, dealer: int, holder: int) -> bytes:
    return expand(part, f"share-{kind}", plan + le(dealer) + le(holder), 16)


def mark(both: bytes, plan: bytes, dealer: int, holder: int) -> bytes:
    own = print_of("self", both[:32], plan, dealer, holder)
    return own + print_of("pair", both[32:], plan, dealer, holder)


def stamps(secret: bytes, public: bytes, server: bytes, device: bytes, context: bytes) -> bytes:
    """The keys of both directions, up and down; `context`: plan and id."""
    salt = hashlib.sha256(LABEL + b"session").digest()
    info = context + server + device
    key = hkdf_expand(hkdf_extract(salt, x25519(secret, public)), info, 32)
    return expand(key, "stamps", length=64)


def roster_of(cards: list[bytes]) -> bytes:
    return digest("roster", b"".join(cards))


def pair_seed(secret: bytes, public: bytes, low_card: bytes, high_card: bytes) -> bytes:
    salt = hashlib.sha256(LABEL + b"pair").digest()
    return hkdf_expand(hkdf_extract(salt, x25519(secret, public)), low_card + high_card, 32)


def mask_words(key: bytes, count: int, bits: int) -> list[int]:
    size = bits // 8
    stream = keystream(key, size * count)
    return [int.from_bytes(stream[i : i + size], "little") for i in range(0, size * count, size)]


def seal(key: bytes, both: bytes, nonce: bytes, dealer: int) -> bytes:
    return xor(both, expand(key, "pad", nonce + le(dealer), 64))


def elements(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]


def share(secret: bytes, coefficients: list[bytes], holder: int) -> bytes:
    """`coefficients[e - 1]` are those of x^e, 16 elements each."""
    columns = zip(elements(secret), *(elements(c) for c in coefficients), strict=True)
    values = [sum(c * pow(holder, e, PRIME) for e, c in enumerate(col)) % PRIME for col in columns]
    return b"".join(le(value, 2) for value in values)


def neighbours(members: list[int], degree: int, seed: bytes, device: int) -> list[int]:
    size = len(members)
    if degree == size - 1:
        return sorted(set(members) - {device})
    words = keystream(expand(seed, "order"), 8 * size)
    word = {m: int.from_bytes(words[8 * i : 8 * i + 8], "little") for i, m in enumerate(members)}
    order = sorted(members, key=lambda member: (word[member], member))
    place = order.index(device)
    near = range(1, degree // 2 + 1)
    return sorted({order[(place + s) % size] for s in near} | {order[place - s] for s in near})


def pattern(name: str, size: int) -> bytes:
    """Bytes that look random and need no file: SHAKE-256 of a name."""
    return hashlib.shake_256(name.encode()).digest(size)


def card(device: int, identity: bytes, public: bytes) -> bytes:
    body = text("clinics") + le(1) + public
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
    graph_seed = pattern("graph", 32)
    agreement = [pattern(f"agreement {i}", 32) for i in (1, 2)]
    base = (9).to_bytes(32, "little")
    public = [x25519(scalar, base) for scalar in agreement]
    identity = [pattern(f"identity {i}", 32) for i in (1, 2)]
    cards = [card(i + 1, identity[i], public[i]) for i in (0, 1)]
    prints = [message_digest(card) for card in cards]
    material = expand(key, "masks", plan, 64)
    root = material[:32]
    both = secret + secret_pattern("pair secret")
    roots = root + pattern("another root", 32)
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
            for label, context, length in (("mask", b"", 16), ("masks", plan, 64), ("x", b"y", 16))
        ],
        "tag": [
            {
                "key": key.hex(),
                "author": 14,
                "content": plan.hex(),
                "out": expand(key, "confirm", le(14) + plan, 16).hex(),
            }
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
                "seal": expand(key, "seal", plan).hex(),
                "root": root.hex(),
                "tag": material[32:].hex(),
                "mask_key": expand(root, "mask", length=16).hex(),
                "root_print": expand(root, "root-print", length=16).hex(),
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
        "self_mask_key": [
            {"secret": secret.hex(), "out": expand(secret, "self-mask", length=16).hex()}
        ],
        "wrap": [
            {
                "roots": roots.hex(),
                "secret": secret.hex(),
                "out": xor(roots, keystream(expand(secret, "wrap"), 64)).hex(),
            }
        ],
        "session": [
            {
                "server": agreement[0].hex(),
                "device": agreement[1].hex(),
                "plan": plan.hex(),
                "id": 14,
                "out": stamps(agreement[0], public[1], *public, plan + le(14)).hex(),
            }
        ],
        "exchange": [{"identity": identity[0].hex(), "out": expand(identity[0], "exchange").hex()}],
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
                "nonce": pattern("nonce", 16).hex(),
                "dealer": 14,
                "out": seal(key, both, pattern("nonce", 16), 14).hex(),
            }
        ],
        "mask": [
            {"key": key[:16].hex(), "bits": bits, "out": mask_words(key[:16], 9, bits)}
            for bits in (32, 64)
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
            {"cards": [p.hex() for p in prints[:count]], "out": roster_of(prints[:count]).hex()}
            for count in (1, 2)
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
    roster = roster_of([prints[i] for i in ids])
    params = digest("terms", *(line.encode() for line in TERMS))
    numbers = b"".join(le(n) for n in (words, 32, 3, 3, 2, 2))
    exchange = expand(server, "exchange")
    fresh = {i: pattern(f"fresh {i}", 32) for i in ids}
    base = (9).to_bytes(32, "little")
    server_key = x25519(exchange, base)
    device_key = {i: x25519(fresh[i], base) for i in ids}
    plan_body = text("clinics") + le(7) + text("update") + packed_ids(ids) + roster + params
    plan_body += server_key
    plan = frame(3, 0, bytes(32), plan_body + numbers + text(b"") + text(b""), server)
    plan_digest = message_digest(plan)
    others = {i: [j for j in ids if j != i] for i in ids}
    self_secret = {i: secret_pattern(f"self {i}") for i in ids}
    pair_secret = {i: secret_pattern(f"pair {i}") for i in ids}
    slopes = {
        i: (secret_pattern(f"slope self {i}"), secret_pattern(f"slope pair {i}")) for i in ids
    }
    seal_key, root, tag_key = {}, {}, {}
    for i in ids:
        for j in others[i]:
            low, high = min(i, j), max(i, j)
            seed = pair_seed(agreement[i], public[j], prints[low], prints[high])
            key = ratchet(seed, 7)
            material = expand(key, "masks", plan_digest, 64)
            seal_key[i, j] = expand(key, "seal", plan_digest)
            root[i, j], tag_key[i, j] = material[:32], material[32:]
    up, down = {}, {}
    for i in ids:
        context = plan_digest + le(i)
        both = stamps(fresh[i], server_key, server_key, device_key[i], context)
        up[i], down[i] = both[:32], both[32:]

    def tag(i: int, j: int, author: int, content: bytes) -> bytes:
        return expand(tag_key[i, j], "confirm", le(author) + content, 16)

    def share_of(i: int, j: int, kind: int) -> bytes:
        secret = (self_secret, pair_secret)[kind][i]
        return share(secret, [slopes[i][kind]], others[i].index(j) + 1)

    def both_of(i: int, j: int) -> bytes:
        return share_of(i, j, 0) + share_of(i, j, 1)

    def nonce(i: int) -> bytes:
        return pattern(f"nonce {i}", 16)

    def sealed(i: int, j: int) -> bytes:
        return seal(seal_key[i, j], both_of(i, j), nonce(i), i)

    def mark_of(i: int, j: int) -> bytes:
        return mark(both_of(i, j), plan_digest, i, j)

    def root_print(i: int, j: int) -> bytes:
        return expand(root[i, j], "root-print", length=16)

    def answer(i: int, j: int) -> bytes:
        """What j answers about i: the share that is owed."""
        return share_of(i, j, 0 if i in survivors else 1)

    def wrapped(i: int) -> bytes:
        roots = b"".join(root[i, j] for j in others[i])
        return xor(roots, keystream(expand(pair_secret[i], "wrap"), len(roots)))

    everybody, surviving, survivors = b"\x0f", b"\x07", [1, 2, 3]
    agreed = digest("survivors", plan_digest, everybody, surviving)
    vectors = {i: [i, -100 * i, 2**30 - i] for i in survivors}
    statement = {
        i: ed25519_sign(identity[i], digest("statement", plan_digest, le(i), everybody))
        for i in survivors
    }
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
            "nonce": nonce(i),
            "fresh": fresh[i],
            "shares": frame(
                4,
                i,
                plan_digest,
                device_key[i]
                + commitments
                + nonce(i)
                + text(b"".join(sealed(i, j) for j in others[i]))
                + text(b"".join(mark_of(i, j) for j in others[i]))
                + text(wrapped(i))
                + text(b"".join(root_print(i, j) for j in others[i])),
                identity[i],
            ),
            "sharers": stamped(
                5,
                i,
                plan_digest,
                text(everybody)
                + text(b"".join(nonce(j) for j in others[i]))
                + text(b"".join(sealed(j, i) for j in others[i]))
                + text(b"".join(mark_of(j, i) for j in others[i])),
                down[i],
            ),
        }
        if i in survivors:
            total = [
                x + m
                for x, m in zip(
                    vectors[i],
                    mask_words(expand(self_secret[i], "self-mask", length=16), words, 32),
                    strict=True,
                )
            ]
            for j in others[i]:
                sign = 1 if i < j else -1
                mask = mask_words(expand(root[i, j], "mask", length=16), words, 32)
                total = [x + sign * m for x, m in zip(total, mask, strict=True)]
            vector = b"".join(le(x % 2**32, 4) for x in total)
            alive = [j for j in others[i] if j in survivors]
            own = b"".join(tag(i, j, i, agreed) for j in alive)
            theirs = b"".join(tag(i, j, j, agreed) for j in alive)
            answers = b"".join(answer(j, i) for j in others[i])
            masked = text(statement[i]) + text(vector)
            named = text(surviving) + text(b"".join(statement[j] for j in alive))
            answered = agreed + text(b"\0") + text(answers)
            known |= {
                "vector": vectors[i],
                "masked": stamped(6, i, plan_digest, masked, up[i]),
                "survivors": stamped(7, i, plan_digest, named, down[i]),
                "confirm": stamped(8, i, plan_digest, agreed + text(own), up[i]),
                "confirmed": stamped(9, i, plan_digest, text(surviving) + text(theirs), down[i]),
                "unmask": stamped(10, i, plan_digest, answered, up[i]),
            }
        devices.append({k: v.hex() if isinstance(v, bytes) else v for k, v in known.items()})
    total = [sum(column) for column in zip(*vectors.values(), strict=True)]
    centred = [(x + 2**31) % 2**32 - 2**31 for x in total]
    return [{"server": server.hex(), "plan": plan.hex(), "devices": devices, "sum": centred}]


if __name__ == "__main__":
    for name, cases in known_answers().items():
        (VECTORS / f"{name}.json").write_text(json.dumps(cases, indent=1) + "\n")
