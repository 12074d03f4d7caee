"""Hostile users beside a run that trains, on a stack of its own: `python -m gradbus_hostile [--minutes 60]`.

Measures the well-behaved run alone, beside another one, beside hostile users, and alone again; how each submission ended; the memory of
every process before and after; and the answers of the API meanwhile. Writes the results like the other load tests. The exit status
is 1 if a promise does not hold; standard error says which.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from gradbus.client import Client
from gradbus.embedded import Stack, StackConfig
from gradbus_hostile.hour import Hour, Measurement, Plan
from gradbus_hostile.promises import broken, outcome
from gradbus_hostile.submissions import SUBMISSIONS
from gradbus_load import material, probes, report
from gradbus_load.__main__ import RESULTS

_SHORT = {
    "rollout": {"slots": 32, "group_size": 8, "max_new_tokens": 8},
    "schedule": {"groups_per_step": 8, "steps": 200},
    "checkpoint": {"every": 50},
}
"""The well-behaved run: deterministic, a minute or less."""


def main() -> int:
    """Measures and reports. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gradbus_hostile", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the attack lasts; it ends with a whole table")
    parser.add_argument("--only", default="", help="submissions whose name contains this")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where files are written")
    options = parser.parse_args()
    selected = [submission for submission in SUBMISSIONS if options.only in submission.name]
    if not selected:
        parser.error(f"no submission's name contains {options.only!r}; the names are in loadtests/gradbus_hostile/table")
    before = probes.load_average()
    with tempfile.TemporaryDirectory(prefix="gradbus-hostile-") as root:
        found = probes.probe(Path(root))
        hour = asyncio.run(_measured(Path(root), Plan(options.minutes, submissions=selected)))
    seen = outcome(hour)
    date = datetime.now(UTC).date().isoformat()
    session = report.Session(date, probes.machine(), before, probes.load_average(), found, [seen])
    print(report.text(session))
    for path in report.write(session, options.results, "hostile"):
        print(path, file=sys.stderr)
    missed = broken(seen, hour)
    for line in missed:
        print(f"broken: {line}", file=sys.stderr)
    return int(bool(missed))


async def _measured(root: Path, plan: Plan) -> Hour:
    spec = material.spec(material.make(root / "material"), "well-behaved", **_SHORT)
    async with Stack(StackConfig(root / "state", port=0, trainers=2, rollouts=2)) as stack:
        with Client(stack.url, stack.api_key) as client:
            return await Measurement(stack.state.root, client, spec, plan).run()


if __name__ == "__main__":
    sys.exit(main())
