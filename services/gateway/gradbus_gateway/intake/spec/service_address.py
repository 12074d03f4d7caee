"""Checks the text of `reward.service`, and of the URLs of judges and teachers. Who calls them checks the addresses that they resolve to."""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from gradbus.errors import Fault
from gradbus.user_services.addresses import SCORER, UserService
from gradbus_gateway.settings import GatewaySettings

_SCHEMES = ("grpc", "http", "https")
_METADATA_HOSTS = ("metadata", "metadata.google.internal", "instance-data", "100.100.100.200", "fd00:ec2::254", "192.0.0.192")


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Where servers of users may be."""

    patterns: tuple[str, ...]
    allow_loopback: bool
    variable: str = "GRADBUS_ALLOWED_HOSTS"
    """By which the operator sets the patterns."""
    named: UserService = SCORER

    @classmethod
    def of_rewards(cls, settings: GatewaySettings) -> AllowedHosts:
        """Of scorers and judges."""
        return cls(settings.allowed_hosts, settings.allow_loopback)

    def __str__(self) -> str:
        return ", ".join((*self.patterns, *(("loopback",) if self.allow_loopback else ()))) or "no host yet"


def address_faults(url: str, allowed: AllowedHosts, path: str) -> Iterator[Fault]:
    """Faults of the address of a scorer, a judge or a teacher; none for another scheme, which is a fault of the spec already."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        yield Fault(path, f"not an address: {error}", url, allowed.named.forms)
        return
    if parts.scheme not in _SCHEMES:
        return
    if not host or (parts.scheme == "grpc" and port is None):
        yield Fault(path, "host or port is missing", url, allowed.named.forms)
    elif parts.username is not None or parts.password is not None:
        yield Fault(path, "an address carries no user and no password", host, allowed.named.forms)
    elif _is_forbidden(host):
        yield Fault(path, "link-local, metadata and unspecified addresses are never called", host, "the address of your own service")
    elif _is_loopback(host):
        if not allowed.allow_loopback:
            yield Fault(path, "loopback is the server itself; only the embedded stack allows it", host, str(allowed))
    elif not any(fnmatch.fnmatchcase(host, pattern.lower()) for pattern in allowed.patterns):
        yield Fault(path, f"the operator does not allow this host ({allowed.variable})", host, str(allowed))


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address else host == "localhost" or host.endswith(".localhost")


def _is_forbidden(host: str) -> bool:
    address = _address(host)
    if host in _METADATA_HOSTS:
        return True
    return address is not None and (address.is_link_local or address.is_multicast or address.is_unspecified)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address
