"""The secrets of a deployment as objects of Kubernetes, one Secret for each component. The authority's key is in none of them.

The objects in `deploy/kubernetes` refer to them by name and hold no secret.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradbus.access import host_name, nats_configuration
from gradbus.deploy.credentials import Credentials
from gradbus.deploy.roles import ROLES
from gradbus.deploy.secrets import write_secrets

NATS_MONITOR_PORT: Final = 8222
NATS_ROUTES_PORT: Final = 6222
NATS_PEERS: Final = "nats-peers"
"""Service by which the servers of a clustered NATS have a name each: `nats-0.nats-peers`."""
NATS_SERVERS: Final = 3
"""Servers of a clustered NATS."""
_SERVERS: Final = ("nats", "buffer", "objects")
_TLS_DIR: Final = "/run/gradbus"
_RESTRICTED: Final = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "audit", "warn")}

Object = dict[str, Any]


def secret_name(component: str) -> str:
    """The Secret of a role or a server."""
    return f"gradbus-{host_name(component)}"


def namespace_object(namespace: str) -> Object:
    """The namespace, in which a pod that asks for privileges is refused."""
    marked = {"app.kubernetes.io/name": "gradbus", **_RESTRICTED}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": marked}}


def secrets_manifest(state: Path, namespace: str, served_hosts: Sequence[str] = ()) -> str:
    """The namespace and all Secrets as a JSON list for `kubectl apply`, from the files below `state/secrets`, which are made if missing.

    `served_hosts` are names of the gateway besides its own and localhost. Raises SettingsError when the folder cannot be written.
    """
    write_secrets(state, served_hosts)
    root = state / "secrets"
    credentials = Credentials(root)
    more = {"nats": _nats_configurations(credentials)}
    secrets = [_secret(name, _files(root / name) | more.get(name, {})) for name in (*_SERVERS, *ROLES, "supervisor")]
    for secret in secrets:
        secret["metadata"]["namespace"] = namespace
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [namespace_object(namespace), *secrets]}, indent=1)


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def _secret(component: str, files: Mapping[str, str]) -> Object:
    marked = {"app.kubernetes.io/name": "gradbus", "app.kubernetes.io/component": host_name(component)}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(component), "labels": marked},
        "type": "Opaque",
        "data": data,
    }


def _nats_configurations(credentials: Credentials) -> dict[str, str]:
    """Of NATS alone, and as one of several servers. Probes come from outside the pod, so it answers on every interface."""
    alone = nats_configuration(credentials.nats_password, "0.0.0.0:4222", "/var/lib/gradbus", f"0.0.0.0:{NATS_MONITOR_PORT}", _TLS_DIR)
    return {"nats.conf": alone, "cluster.conf": _cluster(credentials.nats_password("nats"))}


def _cluster(password: str) -> str:
    """Adds to nats.conf. Only who has the servers' own password becomes one of them; a certificate, which each role has, is not enough.

    Clients are not told the addresses of the other servers, which no certificate names: they reach them all by the name `nats`.
    """
    routes = [f"nats-route://nats:{password}@nats-{number}.{NATS_PEERS}:{NATS_ROUTES_PORT}" for number in range(NATS_SERVERS)]
    return f"""include "./nats.conf"
server_name: $POD_NAME
cluster {{
  name: gradbus
  listen: "0.0.0.0:{NATS_ROUTES_PORT}"
  no_advertise: true
  authorization {{ user: "nats", password: "{password}", timeout: 5 }}
  tls {{ cert_file: "{_TLS_DIR}/tls.crt", key_file: "{_TLS_DIR}/tls.key", ca_file: "{_TLS_DIR}/ca.crt", verify: true }}
  routes: {json.dumps(routes)}
}}
"""
