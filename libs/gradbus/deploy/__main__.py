"""The init jobs of a deployment: `python -m gradbus.deploy secrets`, then `stores` once the servers are up. All may be repeated.

`functions` and `bucket` are the two parts of `stores`, for the buffer and for object storage. `kubernetes` makes the secrets and prints
them as objects for `kubectl apply`. `key` prints the API key that `secrets` made, `authority` the certificate that clients of the gateway
trust, `grafana` the password of Grafana's user `admin`. `diagnose` reads what `kubectl get -o json` says of pods, their owners, claims and
events, and prints why pods do not run and what to do.
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
    parser.add_argument("job", choices=("secrets", "kubernetes", "diagnose", *_STORES, *_PRINTED))
    parser.add_argument("--served-hosts", type=_names, default=[], help='JSON list of the gateway\'s names, e.g. ["gradbus.example"]')
    parser.add_argument("--namespace", default="gradbus", help="of the objects that `kubernetes` prints (gradbus)")
    parser.add_argument("--state", type=Path, default=Path("/var/lib/gradbus"), help="where the volumes are mounted (/var/lib/gradbus)")
    arguments = parser.parse_args()
    from gradbus.errors import GradbusError

    try:
        return _run(arguments)
    except GradbusError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the output of the job
        return 1


def _run(arguments: argparse.Namespace) -> int:
    """The exit status: 1 of `diagnose` if it found trouble."""
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
    elif job == "diagnose":
        from gradbus.deploy.diagnosis import diagnose

        troubles = diagnose(sys.stdin.buffer.read())
        print("\n".join(troubles) or "every pod runs and is ready, but for those that a queue holds back")  # noqa: T201 - the output of the job
        return int(bool(troubles))
    else:
        from gradbus.deploy import secrets

        made = dict(zip(_PRINTED, (secrets.api_key, secrets.authority, secrets.grafana_password), strict=True))
        print(made[job](state).strip())  # noqa: T201 - the output of the job
    return 0


if __name__ == "__main__":
    sys.exit(main())
