"""Addresses that a user's URL may resolve to, against server-side request forgery: users choose the URLs that services call."""

from __future__ import annotations

import asyncio
import fnmatch
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from urllib.parse import SplitResult, urlsplit

from gradbus.errors import UserCodeError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_SHOWN = 120

# Cloud metadata services that are not link-local.
_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200"), ipaddress.ip_address("192.0.0.192")})
# IPv6 networks whose last 32 bits are an IPv4 address: translated (NAT64, also a site's own), compatible, SIIT.
_ENDING_IN_IPV4 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")))
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
_LOOPBACK_OR_NONE = frozenset({ipaddress.IPv6Address("::"), ipaddress.IPv6Address("::1")})


@dataclass(frozen=True, slots=True)
class UserService:
    """How messages name a kind of users' services."""

    kind: str
    section: str
    """Section of the spec whose field has the URL."""
    forms: str
    """URLs that are understood."""
    field: str = "service"
    """Of the section."""
    caller: str = ""
    """The service that calls it; empty: the one with the section's name."""


SCORER = UserService("scorer", "reward", "grpc://host:port or http://host:port/path")
AGENT = UserService("agent", "environment", "http://host:port/path or https://host:port/path", "agent", "agent")
TEACHER = UserService("teacher", "teacher", "http://host:port or https://host:port", "url", "reference")
ENVIRONMENT = UserService("environment", "environment", "http://host:port/path or https://host:port/path")


class AddressRefusedError(UserCodeError):
    """A user's URL is none, or leads where it may not."""


class HostUnknownError(UserCodeError):
    """A user's host has no address. It may get one when the user's service starts."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The host of a user's service with its checked addresses."""

    host: str
    port: int
    addresses: tuple[IPAddress, ...]
    """IPv4 first: `localhost` has both, and most servers listen on IPv4."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The hosts that the operator allows. Link-local, metadata, multicast and unspecified addresses are always refused."""

    allowed_hosts: Sequence[str] = ()
    """Host patterns, e.g. `scorer`, `*.rewards.svc`, or `*` for any."""
    allow_loopback: bool = False
    named: UserService = SCORER

    async def resolve(self, url: str, threads: Executor | None = None) -> Endpoint:
        """The checked endpoint of `url`. Connect to its addresses, not to the name, which may resolve to others the next time.

        `threads`: where to wait for the name service. None: the event loop's threads, which all runs share.
        Raises HostUnknownError if the name has no address, and AddressRefusedError if the URL is none or an address is refused.
        """
        host, port = _host_and_port(url, self.named)
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                threads, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise HostUnknownError(
                f"the {self.named.kind}'s host {host!r} has no address ({error}); check {self.named.section}.{self.named.field}"
            ) from error
        addresses = tuple(
            sorted({ipaddress.ip_address(entry[4][0]) for entry in found}, key=lambda address: (address.version, int(address)))
        )
        for address in addresses:
            self.check(host, address)
        return Endpoint(host, port, addresses)

    def check(self, host: str, address: IPAddress) -> None:
        """Raises AddressRefusedError if `host` must not be called at `address`."""
        inner = _embedded_ipv4(address)
        kind, caller = self.named.kind, self.named.caller or self.named.section
        if _is_always_refused(inner):
            raise AddressRefusedError(
                f"the {kind}'s host {host!r} leads to {address}, which no {kind} may use; give the address of your own service"
            )
        if inner.is_loopback:
            if not self.allow_loopback:
                raise AddressRefusedError(
                    f"the {kind}'s host {host!r} leads to loopback ({address}); only the embedded stack allows it, use another host"
                )
        elif not any(fnmatch.fnmatchcase(host.lower(), pattern.lower()) for pattern in self.allowed_hosts):
            raise AddressRefusedError(
                f"the {kind}'s host {host!r} is not allowed; ask the operator to add it to the {caller} service's allowed hosts"
            )


def shown(url: str) -> str:
    """The beginning of a user's URL, which must leave room for the cause in a result's reason."""
    return url if len(url) <= _MAX_SHOWN else f"{url[:_MAX_SHOWN]}..."


def _host_and_port(url: str, named: UserService) -> tuple[str, int]:
    field = f"{named.section}.{named.field}"
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError as error:
        raise AddressRefusedError(f"{field} {shown(url)!r} is not a URL ({error}); write {named.forms}") from error
    if not parts.hostname or port is None:
        raise AddressRefusedError(f"{field} {shown(url)!r} lacks a host or port; write {named.forms}")
    if parts.username is not None or parts.password is not None:
        raise AddressRefusedError(f"{field} carries a user or password; leave them out of the URL")
    return parts.hostname, port


def _is_always_refused(address: IPAddress) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        return True  # link-local, with an interface
    if isinstance(address, ipaddress.IPv4Address) and address in _THIS_NETWORK:
        return True
    return address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA


def _embedded_ipv4(address: IPAddress) -> IPAddress:
    """The IPv4 address inside an IPv6 one (mapped, 6to4, Teredo, translated), else the address."""
    if isinstance(address, ipaddress.IPv4Address) or address in _LOOPBACK_OR_NONE or address.scope_id:
        return address
    if any(address in network for network in _ENDING_IN_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)
