"""Checks the text of `reward.service`, and of the URLs of judges. The reward service checks the addresses that it resolves to."""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from gradbus.errors import Fault
from gradbus_gateway.settings import GatewaySettings

_SCHEMES = ("grpc", "http", "https")
_METADATA_HOSTS = ("metadata", "metadata.google.internal", "instance-data", "100.100.100.200", "fd00:ec2::254", "192.0.0.192")


def address_faults(url: str, settings: GatewaySettings, path: str = "reward.service") -> Iterator[Fault]:
    """Faults of the address of a scorer or a judge; none for another scheme, which is a fault of the spec already."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        yield Fault(path, f"not an address: {error}", url, "grpc://host:port or http://host:port/path")
        return
    if parts.scheme not in _SCHEMES:
        return
    if not host or (parts.scheme == "grpc" and port is None):
        yield Fault(path, "host or port is missing", url, "grpc://host:port or http://host:port/path")
    elif parts.username is not None or parts.password is not None:
        yield Fault(path, "an address carries no user and no password", host, "grpc://host:port or http://host:port/path")
    elif _is_forbidden(host):
        yield Fault(path, "link-local, metadata and unspecified addresses are never called", host, "the address of your own service")
    elif _is_loopback(host):
        if not settings.allow_loopback:
            yield Fault(path, "loopback is the server itself; only the embedded stack allows it", host, _allowed(settings))
    elif not any(fnmatch.fnmatchcase(host, pattern.lower()) for pattern in settings.allowed_hosts):
        yield Fault(path, "the operator does not allow this host (GRADBUS_ALLOWED_HOSTS)", host, _allowed(settings))


def _allowed(settings: GatewaySettings) -> str:
    loopback = ("loopback",) if settings.allow_loopback else ()
    return ", ".join((*settings.allowed_hosts, *loopback)) or "no host yet"


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
