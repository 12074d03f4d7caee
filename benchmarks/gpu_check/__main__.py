"""Proves this project on a GPU machine, part by part; docs/gpu.md says how to read the result.

    python benchmarks/gpu_check [--dry] [--only probe trainer] [--out FILE]

Runs on the Python that starts it, with the torch that it has; fetches nothing. The exit status is 1 if a check of correctness fails.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_DRY_SLACK = 4.0
"""Times a part's deadline in dry mode: the CPU may be busy, and a GPU has no part in it."""


def main() -> int:
    """Runs the parts and prints the table."""
    own = [ROOT / "benchmarks", ROOT / "libs", ROOT / "kernels", *sorted((ROOT / "services").iterdir())]
    sys.path[:1] = map(str, own)  # in place of this folder, whose modules are of the package
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])])
    from gpu_check.parts import PARTS
    from gpu_check.results import table
    from gpu_check.runner import Options, run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    dry = os.environ.get("GPU_CHECK_DRY", "") not in ("", "0")
    parser.add_argument("--dry", action="store_true", default=dry, help="toy sizes on the CPU (also GPU_CHECK_DRY=1)")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts and the probe")
    parser.add_argument("--out", type=Path, default=ROOT / ".gradbus" / "gpu_check.json")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the whole run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the part that runs as well
    slack = _DRY_SLACK if options.dry else 1.0
    named = (part for part in PARTS if options.only is None or part.name in {"probe", *options.only})
    chosen = [replace(part, seconds=slack * part.seconds) for part in named]
    report = run(chosen, Options(options.out, options.dry, options.seconds))
    print(f"{table(report)}\n{options.out}")
    return int(report.verdict == "fail")


if __name__ == "__main__":
    sys.exit(main())
