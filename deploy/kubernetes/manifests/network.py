"""Who may reach whom: nothing by default, and then exactly the wires of docs/architecture.md, from the table of permissions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradbus.access import CALLERS
from gradbus.deploy.kubernetes import NATS_ROUTES_PORT
from gradbus.deploy.roles import AGENTS_PORT, ROLES
from manifests.documents import Object, named, selector
from manifests.servers import BUFFER_PORT, NATS_PORT, S3_PORT

LINK_LOCAL: Final = "169.254.0.0/16"
"""Addresses of the node itself, among them a cloud's metadata service."""
OUTSIDE: Final[list[Object]] = [
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": [LINK_LOCAL]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::/32"]}},
]
"""Every address but a cloud's metadata service, which gives credentials to whoever asks. Pods inside decide themselves who may call."""
USERS_SERVICES: Final = ("reward", "environment", "agent", "reference", "gateway")
"""They call scorers, environments, agents and teachers of users, at addresses that the operator allows."""
STORING: Final = tuple(role.hostname for role in ROLES.values() if role.stores_objects)


@dataclass(frozen=True, slots=True)
class Wire:
    """Components that open connections to a port of another one; port 0: all ports."""

    callers: tuple[str, ...]
    server: str
    port: int


def wires() -> list[Wire]:
    """All wires between components."""
    named_by = {role.name: role.hostname for role in ROLES.values()}
    return [
        Wire(tuple(role.hostname for role in ROLES.values() if role.uses_nats), "nats", NATS_PORT),
        Wire(tuple(role.hostname for role in ROLES.values() if role.uses_buffer), "buffer", BUFFER_PORT),
        *(Wire(tuple(named_by[caller] for caller in callers), named_by[server], ROLES[server].port) for server, callers in CALLERS.items()),
        # A broadcast's members all connect to each other, on ports that gloo and NCCL choose.
        Wire(("rollout",), "trainer", 0),
        Wire(("trainer",), "rollout", 0),
        Wire(("rollout",), "rollout", 0),
    ]


def policies() -> list[Object]:
    """Nothing is allowed, then names, then each component's wires."""
    components = [role.hostname for role in ROLES.values()]
    return [
        _policy("default-deny", {}, ingress=[], egress=[]),
        _policy("names", selector(*components), egress=[_names()]),
        *(_component(name) for name in ("nats", "buffer", *components)),
        _policy("object-storage", selector(*STORING), egress=[{"to": OUTSIDE, "ports": [_port(443)]}]),
    ]


def peers_policy() -> Object:
    """The servers of a clustered NATS reach each other, by name."""
    rule = [_port(NATS_ROUTES_PORT)]
    peers = [{"podSelector": selector("nats")}]
    return _policy(
        "nats-peers", selector("nats"), ingress=[{"from": peers, "ports": rule}], egress=[{"to": peers, "ports": rule}, _names()]
    )


def inside_storage() -> tuple[Object, Object]:
    """Object storage in the same namespace: the policy of its callers, in place of that of the base, and its own."""
    ports = [_port(S3_PORT)]
    callers = _policy("object-storage", selector(*STORING), egress=[{"to": [{"podSelector": selector("objects")}], "ports": ports}])
    own = _policy("objects", selector("objects"), ingress=[{"from": [{"podSelector": selector(*STORING)}], "ports": ports}])
    return callers, own


def _component(name: str) -> Object:
    ingress = [{"from": [{"podSelector": selector(*wire.callers)}], **_ports(wire.port)} for wire in wires() if wire.server == name]
    egress = [{"to": [{"podSelector": selector(wire.server)}], **_ports(wire.port)} for wire in wires() if name in wire.callers]
    if name == "gateway":
        ingress.append({"ports": [_port(ROLES["gateway"].port)]})
    if name == "agent":
        ingress.append({"ports": [_port(AGENTS_PORT)]})
    if name in USERS_SERVICES:
        egress.append({"to": OUTSIDE})
    return _policy(name, selector(name), ingress=ingress, egress=egress)


def _names() -> Object:
    """The cluster's name servers, and the cache of names that a node may have at a link-local address, where no selector finds it."""
    servers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    return {"to": [servers, {"ipBlock": {"cidr": LINK_LOCAL}}], "ports": [_port(53, "UDP"), _port(53)]}


def _ports(port: int) -> Object:
    return {"ports": [_port(port)]} if port else {}


def _port(port: int, protocol: str = "TCP") -> Object:
    return {"protocol": protocol, "port": port}


def _policy(name: str, pods: Object, **rules: Iterable[Object]) -> Object:
    kinds = [kind.capitalize() for kind in rules]
    spec = {"podSelector": pods, "policyTypes": kinds, **{kind: list(given) for kind, given in rules.items() if given}}
    return named("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)
