"""`python -m gradbus_kernels.weights.delta.compile_loops`: compiles the codec's loops for every process of the machine.

Processes that begin together, such as the workers of a stack, take turns: the first compiles, the others find what it has kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
from pathlib import Path
from typing import Final

MODULE: Final = "gradbus_kernels.weights.delta.numba_loops"
_NICENESS: Final = 10


def main() -> None:
    """Waits for its turn and imports the loops, which compiles them unless they are kept already."""
    os.nice(_NICENESS)
    lock = os.open(Path(__file__).parent, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a file system without locks: each process compiles
        fcntl.flock(lock, fcntl.LOCK_EX)
    importlib.import_module(MODULE)


if __name__ == "__main__":
    main()
