"""Certificates and keys: a small authority of our own, the server's certificate, and a key for every node.

The authority's key signs the server's certificate, and is needed again only to renew it. Nodes get the authority's
certificate, by which they know the server, and an EC key of their own (P-384, as OpenSSH writes it), by which the
server knows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.errors import DataError, SettingError, check

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

INSTALL = "needs Flower and cryptography: pip install 'fedstrata[flower]'"
"""The end of a sentence about something that is not installed."""

AUTHORITY_DAYS, SERVER_DAYS = 3650, 365
"""How long certificates are valid unless told otherwise."""

EARLY = timedelta(minutes=5)
"""Certificates begin to be valid so much before they are made: clocks differ."""


@contextmanager
def needed(what: str) -> Iterator[None]:
    """A package that is missing within this block is said in a sentence."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise SettingError(f"{what} {INSTALL} (there is no {e.name})") from None


def check_days(days: int) -> None:
    """Raise unless a certificate of a new authority can be valid for so many days."""
    check(days >= 1, f"a certificate must be valid for at least 1 day; got {days}")
    most = AUTHORITY_DAYS - 1
    check(
        days <= most, f"a certificate can be valid for {most:,} days, as its authority ends a day later; got {days:,}"
    )


def make_authority(folder: Path, days: int = AUTHORITY_DAYS) -> None:
    """Write ca.key and ca.crt: who has the key can make itself the server."""
    with needed("making certificates"):
        from cryptography import x509
    key = new_key()
    name = _named("fedstrata authority")
    usage = {"key_cert_sign": True, "crl_sign": True}
    built = (
        _certificate(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    write_private(folder / "ca.key", _pem(key))
    write_public(folder / "ca.crt", _signed(built, key))


def make_server(authority: Path, folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS) -> None:
    """Write server.key and server.crt for these names and addresses, signed by the authority in its folder.

    Doing it again renews them: nodes trust the authority and need not be told.
    """
    with needed("making certificates"):
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID
    check_days(days)
    above, above_key = read_certificate(authority / "ca.crt"), _read_authority_key(authority / "ca.key")
    left = above.not_valid_after_utc - datetime.now(UTC)
    check(timedelta(days=days) <= left, f"the authority ends in {left.days} days, before {days} days are over")
    key = new_key()
    built = (
        _certificate(_named(hosts[0]), above.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage({"digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above_key.public_key()), critical=False)
    )
    write_private(folder / "server.key", _pem(key))
    write_public(folder / "server.crt", _signed(built, above_key))


def make_node_key(private: Path, public: Path) -> None:
    """Write the pair of a node, as `ssh-keygen -t ecdsa -b 384 -N ''` would."""
    with needed("making keys"):
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    key = new_key()
    write_private(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    write_public(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def read_certificate(path: Path) -> Certificate:
    """A certificate in PEM."""
    with needed("reading certificates"):
        from cryptography.x509 import load_pem_x509_certificate
    try:
        return load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as e:
        raise DataError(f"{path} cannot be read as a certificate: {e}") from None


def read_key(path: Path) -> Any:
    """A private key, as OpenSSH writes it or in PEM."""
    with needed("reading keys"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
    try:
        text = path.read_bytes()
        return (load_ssh_private_key if b"OPENSSH" in text else load_pem_private_key)(text, None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise DataError(f"{path} cannot be read as a private key without a password: {e}") from None


def read_public(path: Path) -> Any:
    """A public key, as OpenSSH writes it."""
    with needed("reading keys"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    try:
        return load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as e:
        raise DataError(f"{path} cannot be read as a public key of OpenSSH: {e}") from None


def is_node_key(key: Any) -> bool:
    """Whether a private or public key is of the kind that Flower takes: elliptic, P-384."""
    return getattr(getattr(key, "curve", None), "name", "") == "secp384r1"


def same_pair(private: Any, public: Any) -> bool:
    """Whether a public key belongs to a private one."""
    return is_same(private.public_key(), public)


def is_same(a: Any, b: Any) -> bool:
    """Whether two public keys are one."""
    with needed("comparing keys"):
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    raw = [k.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for k in (a, b)]
    return raw[0] == raw[1]


def hosts_of(certificate: Certificate) -> list[str]:
    """The names and addresses that a certificate is for."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName) + [str(a) for a in names.get_values_for_type(x509.IPAddress)]


def signed_by(certificate: Certificate, authority: Certificate) -> bool:
    """Whether the authority has signed this certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def days_left(certificate: Certificate) -> float:
    """Days until a certificate ends; below 0 where it has."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


def write_private(path: Path, content: bytes) -> None:
    """A file that nobody but its owner can read, at no moment."""
    other = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    other.unlink(missing_ok=True)
    with os.fdopen(os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
        f.write(content)
    other.replace(path)


def write_public(path: Path, content: bytes) -> None:
    """A file that anybody may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def new_key() -> EllipticCurvePrivateKey:
    """A new private key."""
    with needed("making keys"):
        from cryptography.hazmat.primitives.asymmetric import ec
    return ec.generate_private_key(ec.SECP384R1())


def _read_authority_key(path: Path) -> Any:
    if not path.exists():
        raise DataError(f"there is no {path}, the authority's key; bring it back from where it is kept, then try again")
    return read_key(path)


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: Any, issuer: Any, key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    built = built.serial_number(x509.random_serial_number()).not_valid_before(now - EARLY)
    return built.not_valid_after(now + timedelta(days=days))


def _usage(said: dict[str, bool]) -> Any:
    from cryptography import x509

    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    names += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{n: said.get(n, False) for n in names})


def _signed(built: Any, key: Any) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import Encoding

    return built.sign(key, SHA384()).public_bytes(Encoding.PEM)


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
