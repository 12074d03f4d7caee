"""Where a step of the demo's run goes: CPU by service and by part, a flame graph, and a line of the history of figures.

    python benchmarks/step_profile.py [--steps 150] [--note "quiet machine"] [--no-history]

CPU is read from outside in the first part of the run's steady state; in the second py-spy samples the stacks of every Python
process, which costs the run a little. Both end before the last evaluation.
"""

from __future__ import annotations

import argparse
import bisect
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from charts.flame_graph import flame_graph
from compare_trl import HERE, machine, make_base
from gradbus_run import ADDITION, addition_spec, events_of, services, stack, usage
from sampled_stacks import Stack, by_service, parse_collapsed, part_of

from gradbus.client import Client, document
from gradbus.embedded import StateFolder

PAGE: Final = HERE.parent / "docs" / "performance.md"
MARKERS: Final = ("<!-- measured -->", "<!-- /measured -->")
_WARM: Final = 0.2
_MEASURED: Final = 0.6
"""Shares of the steps at which CPU is read first and last."""
_POLL_SECONDS: Final = 0.5
_SHOWN: Final = 0.01
"""Parts below this share of the step are added up."""


@dataclass
class Profile:
    """One run."""

    steps_per_second: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU milliseconds a step, by service."""
    stacks: dict[str, Counter[Stack]] = field(default_factory=dict)
    """Samples by service."""

    def parts(self) -> dict[tuple[str, str], float]:
        """CPU milliseconds a step by service and part: the service's CPU, shared out by samples."""
        found: dict[tuple[str, str], float] = defaultdict(float)
        for service, milliseconds in self.cpu.items():
            stacks = self.stacks.get(service, Counter())
            for one, count in stacks.items():
                found[service, part_of(one)] += milliseconds * count / stacks.total()
            if not stacks:
                found[service, ""] = milliseconds
        return found


def run_profiled(folder: StateFolder, spec: dict[str, Any], steps: int) -> Profile:
    """Runs `spec` and measures it. Raises RuntimeError if the run fails, or is over before its stacks were sampled."""
    supervisor, read = folder.read("stack.json")["pid"], []
    profile, sampler = Profile(), None
    with tempfile.TemporaryDirectory() as scratch, Client.discover(folder.root) as client:
        raw, run = Path(scratch, "stacks"), document(client.submit(spec, ADDITION))
        while run["finished_at"] is None:
            time.sleep(_POLL_SECONDS)
            run = document(client.run(run["id"]))
            step = run["progress"]["step"]
            if step < steps * _WARM:
                continue
            if sampler is None:
                read.append((time.time(), usage(supervisor)[0]))
            if sampler is None and step >= steps * _MEASURED:
                left = (steps - step) * (read[-1][0] - read[0][0]) / (steps * (_MEASURED - _WARM))
                names, sampler = services(supervisor), sample_stacks(supervisor, raw, max(1, int(left * 0.8)))
        if run["state"] != "succeeded" or sampler is None or len(read) < 2:
            if sampler is not None:
                sampler.terminate()
            raise RuntimeError(f"run {run['id']} ended as {run['state']}: {run['reason']}; give --steps more if it was too short")
        sampler.wait()
        profile.stacks = by_service(parse_collapsed(raw.read_text()), names)
        metrics = [event for event in events_of(client, run["id"]) if event["type"] == "metrics"]
    times = [datetime.fromisoformat(event["created_at"]).timestamp() for event in metrics]
    (began, before), (ended, after) = read[0], read[-1]
    trained = bisect.bisect(times, ended) - bisect.bisect(times, began)
    profile.steps_per_second = trained / (ended - began)
    profile.cpu = {name: 1000 * (after[name] - before[name]) / trained for name in after}
    return profile


def sample_stacks(supervisor: int, target: Path, seconds: int) -> subprocess.Popen[bytes]:
    """py-spy over all Python processes of the stack."""
    binary = shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")
    if binary is None:
        raise RuntimeError("py-spy is not installed; it comes with the extra `load`: run make profile")
    command = [binary, "record", "--pid", str(supervisor), "--subprocesses", "--nonblocking", "--rate", "200"]
    command += ["--duration", str(seconds), "--format", "raw", "--output", str(target)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tables(profile: Profile) -> str:
    """CPU by service, and by part."""
    total = sum(profile.cpu.values())
    rows = [f"| {name} | {spent:.1f} | {spent / total:.0%} |" for name, spent in sorted(profile.cpu.items(), key=lambda item: -item[1])]
    lines = ["| service | CPU ms a step | share |", "|---|---|---|", *rows, f"| all | {total:.1f} | 100% |", ""]
    shown = {key: spent for key, spent in profile.parts().items() if key[1] and spent >= _SHOWN * total}
    lines += ["| service | part | CPU ms a step |", "|---|---|---|"]
    lines += [f"| {service} | {part} | {spent:.1f} |" for (service, part), spent in sorted(shown.items(), key=lambda item: -item[1])]
    rest = sum(spent for (_, part), spent in profile.parts().items() if part) - sum(shown.values())
    return "\n".join([*lines, f"| all | parts below {_SHOWN:.0%} of the step | {rest:.1f} |"])


def graph(profile: Profile, title: str) -> str:
    """The flame graph; services are as wide as their CPU."""
    weighted = {
        (service, *frames): profile.cpu[service] * count / stacks.total()
        for service, stacks in profile.stacks.items()
        for frames, count in stacks.items()
        if service in profile.cpu
    }
    return flame_graph(weighted, title)


def commit() -> str:
    """The commit that is measured; with a `+` if files were changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def replaced(page: str, content: str) -> str:
    """The page with `content` between the markers."""
    before, _, rest = page.partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    return f"{before}{MARKERS[0]}\n\n{content}\n\n{MARKERS[1]}{after}"


def main() -> None:
    """Measures, and writes the page, the flame graph and the history."""
    parser = argparse.ArgumentParser(description="Where a step of the demo's run goes.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--note", default="", help="What else the machine did.")
    parser.add_argument("--no-history", action="store_true", help="Append no line to the history.")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    base = make_base(0)
    with tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        profile = run_profiled(folder, addition_spec(base, options.steps, 0, evaluate_every=options.steps), options.steps)
    now, of = datetime.now(UTC).strftime("%Y-%m-%d"), commit()
    about = f"Commit {of}, {now}, {machine()}. {profile.steps_per_second:.1f} steps/s. {options.note}".strip()
    PAGE.write_text(replaced(PAGE.read_text(), f"{about}\n\n{tables(profile)}"))
    (options.out / "profile.svg").write_text(graph(profile, f"CPU of a step, commit {of}"))
    if not options.no_history:
        line = {"commit": of, "date": now, "machine": machine(), "steps_per_second": round(profile.steps_per_second, 2)}
        line |= {"cpu_ms_per_step": {name: round(spent, 2) for name, spent in profile.cpu.items()}, "note": options.note}
        with (options.out / "history.jsonl").open("a") as history:
            history.write(json.dumps(line) + "\n")
    print(f"{about}\n\n{tables(profile)}")


if __name__ == "__main__":
    main()
