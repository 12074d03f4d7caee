"""Writes the manifests: `python deploy/kubernetes/build.py`. A test holds the committed files to its output.

The table of roles (`gradbus.deploy.roles`) gives environment, addresses, health pages, secrets and who calls whom, as for
docker-compose.yml and the embedded stack. `manifests/` adds what only a cluster has: replicas, requests, probes, budgets, policies.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from manifests import written  # noqa: E402 - imported from the folder of this file

if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, text in written().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(name)
