"""`python -m gpu_check.child MODULE ORDERS`: runs one part in this process. ORDERS is the JSON of the context's fields."""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

from gpu_check.context import Context, SkipPartError

FAILED: Final = 1
SKIPPED: Final = 3
"""Exit status of a part that cannot run here; its last line on stderr says why."""
_PR_SET_PDEATHSIG: Final = 1
_OURS: Final = ("gradbus", "gpu_check")


def main() -> int:
    """Runs the part; 0, FAILED or SKIPPED."""
    if sys.platform == "linux":  # a part must not outlive a runner that is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a part stops what it has started
    orders = json.loads(sys.argv[2])
    paths = {name: Path(orders.pop(name)) for name in ("folder", "findings")}
    try:
        importlib.import_module(sys.argv[1]).run(Context(**orders, **paths))
    except SkipPartError as reason:
        return _skipped(str(reason))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(_OURS):
            traceback.print_exc()
            return FAILED
        return _skipped(f"needs the package {error.name}, which this Python lacks; install it, or add its folder to PYTHONPATH")
    except Exception:  # noqa: BLE001 -- the process's boundary: the runner reports it
        traceback.print_exc()
        return FAILED
    return 0


def _skipped(reason: str) -> int:
    print(reason, file=sys.stderr)
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
