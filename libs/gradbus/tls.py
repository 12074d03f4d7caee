"""Certificates of a process: PEM files in a folder, checked when the process starts.

The folder has the layout of a Kubernetes secret of type `kubernetes.io/tls`: `tls.crt`, `tls.key`, and the authority `ca.crt`.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.errors import SettingsError

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
FILES: Final = (CERTIFICATE, KEY, AUTHORITY)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key."""

    chain: Path
    key: Path
    expires: float
    """Unix time, in seconds."""

    @property
    def remaining(self) -> float:
        """Seconds until it expires."""
        return self.expires - time.time()


@dataclass(frozen=True, slots=True)
class Identity(Certificate):
    """The certificate of a process that calls, and is called, with mutual TLS."""

    authority: Path
    """The one that has issued the certificates of all processes."""

    def client_context(self) -> ssl.SSLContext:
        """For a client that shows this certificate and checks the server's name."""
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(self.chain, self.key)
        return context


def read_certificate(folder: Path) -> Certificate:
    """The certificate in `folder`, issued by whomever. Raises SettingsError when a file is missing or wrong, or when it has expired."""
    chain, key = folder / CERTIFICATE, folder / KEY
    # Trusted itself, so that only its validity and its key are checked.
    return Certificate(chain, key, _checked(chain, key, chain))


def read_identity(folder: Path) -> Identity:
    """The identity in `folder`.

    Raises SettingsError when a file is missing or wrong, when the certificate has expired, or when the authority has not issued it.
    """
    chain, key, authority = (folder / name for name in FILES)
    return Identity(chain, key, _checked(chain, key, authority), authority)


def _checked(chain: Path, key: Path, authority: Path) -> float:
    """When the certificate expires (Unix time). Raises SettingsError with the reason for which a peer would refuse it."""
    for path in (chain, key, authority):
        try:
            path.read_bytes()
        except OSError as error:
            raise SettingsError(f"cannot read {path} ({error.strerror}); a folder of certificates holds {', '.join(FILES)}") from None
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(chain, key, _no_passphrase)
        client.load_verify_locations(authority)
        return _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        raise SettingsError(
            f"{chain} is not valid: {error.verify_message}; replace it with one that {authority} has issued, see docs/deploy.md"
        ) from None
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").lower().replace("_", " ")
        raise SettingsError(
            f"{chain}, {key} or {authority} cannot be used ({reason}); write PEM files that belong together, the key without a passphrase"
        ) from None


def _no_passphrase() -> str:
    """In place of a question on the terminal, which nobody would answer."""
    return ""


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    """Shakes hands in memory, because only a verified certificate can be read; returns when the server's expires (Unix time)."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking, answering = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering, asking):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    found = asking.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))
