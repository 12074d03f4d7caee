"""The init jobs of a deployment: `python -m gradbus.deploy secrets`, then `stores` once the servers are up. Both may be repeated.

`key` prints the API key that `secrets` made, `grafana` the password of Grafana's user `admin`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path


def main() -> int:
    """Runs one job; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gradbus.deploy", description=__doc__)
    parser.add_argument("job", choices=("secrets", "stores", "key", "grafana"))
    parser.add_argument("--state", type=Path, default=Path("/var/lib/gradbus"), help="where the volumes are mounted (/var/lib/gradbus)")
    arguments = parser.parse_args()
    from gradbus.errors import GradbusError

    try:
        _run(arguments.job, arguments.state)
    except GradbusError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the output of the job
        return 1
    return 0


def _run(job: str, state: Path) -> None:
    if job == "stores":
        from gradbus.deploy.stores import prepare_stores
        from gradbus.process import ProcessSettings

        asyncio.run(prepare_stores(ProcessSettings()))
    elif job == "secrets":
        from gradbus.deploy.secrets import write_secrets

        write_secrets(state)
    else:
        from gradbus.deploy.secrets import api_key, grafana_password

        print((api_key if job == "key" else grafana_password)(state))  # noqa: T201 - the output of the job


if __name__ == "__main__":
    sys.exit(main())
