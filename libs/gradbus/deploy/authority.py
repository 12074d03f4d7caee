"""The certificate authority of a deployment: it issues a certificate to each process, and renews it before it expires."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gradbus.deploy.credentials import write_secret
from gradbus.errors import SettingsError
from gradbus.tls import AUTHORITY, CERTIFICATE, KEY

_AUTHORITY_KEY: Final = "ca.key"
_AUTHORITY_LASTS: Final = timedelta(days=3650)
_LASTS: Final = timedelta(days=365)
_RENEWED_AT: Final = timedelta(days=120)
"""A certificate that expires sooner is replaced at the next start."""
_CLOCKS_DIFFER: Final = timedelta(hours=1)
_USES: Final = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class Authority:
    """The authority in `folder`, made if it is missing. Nobody but the job that issues certificates reads its key.

    Raises SettingsError when its files cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        stored, stored_key = folder / AUTHORITY, folder / _AUTHORITY_KEY
        if not (stored.exists() and stored_key.exists()):
            key = ec.generate_private_key(ec.SECP256R1())
            write_secret(stored_key, _pem(key))
            write_secret(stored, _self_signed(key).public_bytes(Encoding.PEM).decode())
        try:
            self._certificate = x509.load_pem_x509_certificate(stored.read_bytes())
            self._key = _elliptic(stored_key)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{folder} holds no authority that can be read ({error}); delete it, and a new one is made") from None

    def issue(self, folder: Path, names: Sequence[str]) -> None:
        """Writes a certificate for `names` (host names and IP addresses), its key and the authority's certificate into `folder`.

        Keeps a certificate that is this authority's, has these names and lasts for another 120 days.
        """
        wanted = [_general_name(name) for name in names]
        if not self._is_current(folder, wanted):
            key = ec.generate_private_key(ec.SECP256R1())
            write_secret(folder / KEY, _pem(key))
            write_secret(folder / CERTIFICATE, self._issued(key.public_key(), wanted).public_bytes(Encoding.PEM).decode())
        write_secret(folder / AUTHORITY, self._certificate.public_bytes(Encoding.PEM).decode())

    def _is_current(self, folder: Path, names: list[x509.GeneralName]) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            certificate.verify_directly_issued_by(self._certificate)
            known = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
            same_key = certificate.public_key() == _elliptic(folder / KEY).public_key()
        except (FileNotFoundError, TypeError, ValueError, InvalidSignature):
            return False
        return same_key and known == names and certificate.not_valid_after_utc - datetime.now(UTC) > _RENEWED_AT

    def _issued(self, key: ec.EllipticCurvePublicKey, names: list[x509.GeneralName]) -> x509.Certificate:
        usage = _usage(digital_signature=True)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        draft = _draft(str(names[0].value), key, _LASTS).issuer_name(self._certificate.subject)
        draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(usage, critical=True)
        draft = draft.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(_USES, critical=False)
        return draft.add_extension(issuer, critical=False).sign(self._key, SHA256())


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    usage = _usage(key_cert_sign=True, crl_sign=True)
    draft = _draft("Gradbus", key.public_key(), _AUTHORITY_LASTS).issuer_name(_named("Gradbus"))
    draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(usage, critical=True)
    return draft.sign(key, SHA256())


def _draft(name: str, key: ec.EllipticCurvePublicKey, lasts: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    draft = x509.CertificateBuilder().subject_name(_named(name)).public_key(key).serial_number(x509.random_serial_number())
    draft = draft.not_valid_before(now - _CLOCKS_DIFFER).not_valid_after(now + lasts)
    return draft.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    if not name.isascii():
        raise SettingsError(f"{name!r} has characters that a certificate does not take; write the name as browsers send it: xn--...")
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


def _usage(**allowed: bool) -> x509.KeyUsage:
    return x509.KeyUsage(**(dict.fromkeys(_USAGES, False) | allowed))


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _elliptic(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path.name} is not an elliptic-curve key")
    return key
