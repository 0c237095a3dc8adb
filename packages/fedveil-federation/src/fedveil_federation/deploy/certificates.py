"""Certificates by which the couriers' processes know each other (mTLS).

The federation's authority signs one for the hub and one for each site. They carry bytes that are
signed by hub and guards once more, so whoever holds the authority's key can disturb a federation
and cannot speak for anybody in it.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import NameOID

from fedveil.core.errors import ConfigError

AUTHORITY_DAYS = 3650
DAYS = 365
RENEW_DAYS = 60  # before the end
_SKEW = timedelta(days=1)  # by which the clocks of two parties may differ
_SIZES = (256, 2048)  # bits, of P-256 and RSA
_KEY_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
BUNDLE_DAYS = 14  # a site that has come with it gets one for a year, for a key of its own


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key (PEM)."""

    certificate: str
    key: str = field(repr=False)


def new_authority(federation: str) -> Pair:
    key = _new_key()
    own = _signed(federation, key.public_key(), federation, key, AUTHORITY_DAYS)
    return Pair(own, _pem(key))


def new_pair(authority: Pair, name: str, host: str | None = None, days: int = DAYS) -> Pair:
    """Return a fresh key and a certificate for it.

    Args:
        authority: signs it.
        name: the party's.
        host: where others reach it, if that is another name.
        days: how long it is valid.
    """
    key = _new_key()
    return Pair(_issued(authority, name, key.public_key(), host, days), _pem(key))


def renewed(authority: Pair, old: str, host: str | None = None, days: int = DAYS) -> str:
    """A certificate for the same party and key for another year: nothing secret has to travel."""
    found = _read(old)
    return _issued(authority, _name(found), found.public_key(), host, days)


def certified(authority: Pair, name: str, public: str, days: int = DAYS) -> str:
    """Return a certificate for a key that its owner has made, by its public part (PEM).

    Raises:
        ConfigError: it is no key of the curve P-256, nor one of RSA as older versions made it.
    """
    try:
        key = serialization.load_pem_public_key(public.encode())
    except ValueError:
        raise ConfigError("certificate: the public key cannot be read") from None
    if not isinstance(key, EllipticCurvePublicKey | RSAPublicKey) or key.key_size not in _SIZES:
        raise ConfigError("certificate: not for a key of the usual kind and size")
    return _issued(authority, name, key, None, days)


def new_key() -> str:
    """Return a fresh private key (PEM)."""
    return _pem(_new_key())


def public_part(key: str) -> str:
    """Return the public part of a private key (PEM)."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return str(_key(key).public_key().public_bytes(serialization.Encoding.PEM, form), "ascii")


@lru_cache(maxsize=4096)  # a hub looks at all of them again and again
def key_of(certificate: str | bytes) -> str:
    """Return the SHA-256 of the key in a certificate (PEM, or DER as bytes)."""
    if isinstance(certificate, str):
        found = _read(certificate)
    else:
        found = x509.load_der_x509_certificate(certificate)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = found.public_key().public_bytes(serialization.Encoding.DER, form)
    return hashlib.sha256(public).hexdigest()


def end_of(certificate: str) -> datetime:
    return _read(certificate).not_valid_after_utc


def days_left(certificate: str) -> float:
    return (end_of(certificate) - datetime.now(UTC)) / timedelta(days=1)


def check(certificate: str, authority: str, party: str, key: str) -> None:
    """Refuse a certificate that is not this party's, for this key, by this authority."""
    found, root = _read(certificate), _read(authority)
    try:
        found.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise ConfigError("certificate: not by this federation's authority") from None
    if _name(found) != party or not is_for(certificate, key):
        raise ConfigError(f"certificate: not for {party!r} and its key")


def is_for(certificate: str, key: str) -> bool:
    """Return whether a certificate is for this private key."""
    return bool(_read(certificate).public_key() == _key(key).public_key())


def _issued(authority: Pair, name: str, key: Any, host: str | None, days: int) -> str:
    root = _read(authority.certificate)
    return _signed(name, key, _name(root), _key(authority.key), days, host or name)


def _signed(name: str, key: Any, issuer: str, by: Any, days: int, host: str = "") -> str:
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), False)
        .add_extension(x509.BasicConstraints(ca=not host, path_length=None), True)
    )
    if host:
        made = made.add_extension(x509.SubjectAlternativeName([_alternative(host)]), False)
    else:
        uses = dict.fromkeys(_KEY_USES, False) | {"key_cert_sign": True, "crl_sign": True}
        made = made.add_extension(x509.KeyUsage(**uses), True)
    return made.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_key() -> Any:
    return generate_private_key(SECP256R1())


def _pem(key: Any) -> str:
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return str(key.private_bytes(serialization.Encoding.PEM, form, none), "ascii")


def _key(pem: str) -> Any:
    try:
        return serialization.load_pem_private_key(pem.encode(), None)
    except ValueError:
        raise ConfigError("certificate: its key cannot be read") from None


def _read(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        raise ConfigError("certificate: cannot be read") from None


def _name(certificate: x509.Certificate) -> str:
    (found,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found.value)
