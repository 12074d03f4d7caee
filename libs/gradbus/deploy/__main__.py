"""The init jobs of a deployment: `python -m gradbus.deploy secrets`, then `stores` once the servers are up. All may be repeated.

`functions` and `bucket` are the two parts of `stores`, for the buffer and for object storage. `kubernetes` makes the secrets and prints
them as objects for `kubectl apply`. `key` prints the API key that `secrets` made, `authority` the certificate that clients of the gateway
trust, `grafana` the password of Grafana's user `admin`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

_PRINTED = ("key", "authority", "grafana")
_STORES = ("stores", "functions", "bucket")


def _names(given: str) -> list[str]:
    try:
        names = json.loads(given)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise argparse.ArgumentTypeError('write a JSON list of names, like ["gradbus.example"]')
    return names


def main() -> int:
    """Runs one job; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gradbus.deploy", description=__doc__)
    parser.add_argument("job", choices=("secrets", "kubernetes", *_STORES, *_PRINTED))
    parser.add_argument("--served-hosts", type=_names, default=[], help='JSON list of the gateway\'s names, e.g. ["gradbus.example"]')
    parser.add_argument("--namespace", default="gradbus", help="of the objects that `kubernetes` prints (gradbus)")
    parser.add_argument("--state", type=Path, default=Path("/var/lib/gradbus"), help="where the volumes are mounted (/var/lib/gradbus)")
    arguments = parser.parse_args()
    from gradbus.errors import GradbusError

    try:
        _run(arguments)
    except GradbusError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the output of the job
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    job, state = arguments.job, arguments.state
    if job in _STORES:
        from gradbus.deploy import stores
        from gradbus.process import ProcessSettings

        done = dict(zip(_STORES, (stores.prepare_stores, stores.prepare_buffer, stores.make_bucket), strict=True))
        asyncio.run(done[job](ProcessSettings()))
    elif job == "secrets":
        from gradbus.deploy.secrets import write_secrets

        write_secrets(state, arguments.served_hosts)
    elif job == "kubernetes":
        from gradbus.deploy.kubernetes import secrets_manifest

        print(secrets_manifest(state, arguments.namespace, arguments.served_hosts))  # noqa: T201 - the output of the job
    else:
        from gradbus.deploy import secrets

        made = dict(zip(_PRINTED, (secrets.api_key, secrets.authority, secrets.grafana_password), strict=True))
        print(made[job](state).strip())  # noqa: T201 - the output of the job


if __name__ == "__main__":
    sys.exit(main())
