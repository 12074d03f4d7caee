"""`python -m gradbus_load`: runs all scenarios and the machine's own probes; writes a table, plots and files."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradbus_load.outcome import Outcome

SCENARIOS = ("throughput", "rest", "overlap", "memory", "queue", "workers")
RESULTS = Path(__file__).resolve().parents[1] / "results"


def main() -> int:
    """Measures the selected scenarios. Exit status 1 when a floor is missed."""
    parser = argparse.ArgumentParser(prog="gradbus_load", description=__doc__.partition("\n")[0].partition(": ")[2])
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="one scenario; may be given again")
    parser.add_argument("--minutes", type=float, help="how long memory is watched; an hour is what is promised")
    parser.add_argument("--points", help="of `workers`: numbers of workers and runs, e.g. 10x1,100x1,1000x64")
    parser.add_argument("--sync-ms", type=float, default=0.0, help="of `workers`: by how much NATS's syncs are slower; needs strace")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where files are written")
    options = parser.parse_args()
    from gradbus_load import probes, report

    before = probes.load_average()
    with tempfile.TemporaryDirectory(prefix="gradbus-load-") as folder:
        found = probes.probe(Path(folder))
        outcomes = []
        for name in options.only or SCENARIOS:
            print(f"{name} ...", file=sys.stderr, flush=True)
            outcomes.append(asyncio.run(_measured(name, _given(name, options), Path(folder) / name)))
    date = datetime.now(UTC).date().isoformat()
    session = report.Session(date, probes.machine(), before, probes.load_average(), found, outcomes)
    print(report.text(session))
    for path in report.write(session, options.results, "-".join(options.only or ["load"])):
        print(path, file=sys.stderr)
    return int(any(one.holds is False for outcome in outcomes for one in outcome.findings))


async def _measured(name: str, given: dict[str, Any], folder: Path) -> Outcome:
    from gradbus_load.rig import running

    scenario = importlib.import_module(f"gradbus_load.scenarios.{name}")
    settings = scenario.Settings(**given)
    async with running(folder, settings.rig) as bench:
        outcome: Outcome = await scenario.measure(settings, bench)
    return outcome


def _given(name: str, options: argparse.Namespace) -> dict[str, Any]:
    if name == "workers" and options.points:
        points = tuple(tuple(map(int, point.split("x"))) for point in options.points.split(","))
        return {"points": points, "sync_delay_seconds": options.sync_ms / 1000}
    return {"minutes": options.minutes} if name == "memory" and options.minutes else {}


if __name__ == "__main__":
    sys.exit(main())
