"""The loops of the codec over weights and lists, which numpy runs everywhere and numba several times as fast.

Both give the same bytes: `numpy_loops` is the reference, `numba_loops` is compiled. numpy serves until the compiled loops are ready,
so no step waits for a compiler. A child process compiles them, once on a machine, and a thread loads what it has kept on the disk: a
compiler in a thread holds the interpreter nearly all the time, and numpy's loops would take several times as long beside it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gradbus_kernels.weights.delta import compile_loops, numpy_loops

Bits = NDArray[np.unsignedinteger[Any]]
"""Floats as unsigned integers of their width."""
Bytes = NDArray[np.uint8]
Indices = NDArray[np.intp]
Cursor = tuple[int, int, int, int]
"""What comes before a block: elements, large changes, small changes, small elements."""

COMPILE_BYTES: Final = 1 << 24
"""Smaller weights are coded by numpy alone: loading the compiler takes longer, and memory."""

_COMPILE_SECONDS: Final = 300.0


class Loops(Protocol):
    """What both implementations have. Lists of places, ranks and members ascend."""

    def compare(self, old: Bits, new: Bits, limit: int, begin: int, seen: int, /) -> tuple[Indices, Indices, Bits, Bits, int]:
        """The changes of a block, before which there are `begin` elements and `seen` small ones (magnitude below `limit`).

        The places of the large elements that changed; the ranks of the small ones among all small ones; the steps of both; and
        the small elements up to the block's end.
        """
        ...

    def rebuild(
        self, old: Bits, new: Bits, limit: int, places: tuple[Indices, Indices], steps: tuple[Bits, Bits], cursor: Cursor, /
    ) -> Cursor:
        """The inverse for a block of a chunk, all of whose places, ranks and steps are given; returns the next block's cursor."""
        ...

    def write_gaps(self, members: Indices, width: int, /) -> tuple[Bytes, Bytes, int]:
        """The quotients of the gaps, in unary; the planes of the remainders, of `width` bits; and the bits of the quotients."""
        ...

    def read_gaps(self, unary: Bytes, planes: Bytes, count: int, width: int, bits: int, /) -> tuple[Indices, int]:
        """The inverse: `count` members, which are undefined unless the other number, that of the bits set in `unary`, is the same."""
        ...

    def longer(self, sizes: Bits, level: int, /) -> tuple[Indices, Bits, Bytes]:
        """Which `sizes` have more than `level` bits; these sizes; and the plane of their bits at this level below the highest."""
        ...

    def lengthen(self, sizes: Bits, members: Indices, plane: Bytes, /) -> None:
        """Appends a bit of the plane to each of the members."""
        ...

    def others(self, members: Indices, size: int, /) -> Indices:
        """What {0 .. size - 1} has besides `members`, which are in it."""
        ...


class _Compiled:
    """The compiled loops, once a thread has them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loops: Loops | None = None

    def get(self) -> Loops | None:
        self.prepare()
        return self._loops

    def prepare(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, name="delta loops", daemon=True)
                self._thread.start()

    def wait(self) -> Loops | None:
        self.prepare()
        if self._thread is not None:
            self._thread.join()
        return self._loops

    def _load(self) -> None:
        if importlib.util.find_spec("numba") is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # no child: this thread compiles
            _compile_in_child()
        try:
            self._loops = cast("Loops", importlib.import_module(compile_loops.MODULE))
        except Exception:  # noqa: BLE001 -- numba is optional, and whatever it lacks here, numpy does the same
            self._loops = None


def _compile_in_child() -> None:
    """Leaves the machine code on the disk, where it is not there yet. Says nothing of a failure: the import says what is missing."""
    command = [sys.executable, "-m", compile_loops.__name__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    silent = subprocess.DEVNULL
    subprocess.run(command, env=environment, stdin=silent, stdout=silent, stderr=silent, timeout=_COMPILE_SECONDS, check=False)


_compiled: Final = _Compiled()
NUMPY: Final = cast("Loops", numpy_loops)


def loops_for(size: int) -> Loops:
    """The loops for weights of `size` bytes: the compiled ones where they pay and are ready. Never waits."""
    return NUMPY if size < COMPILE_BYTES else _compiled.get() or NUMPY


def prepare_loops(size: int) -> None:
    """Begins to compile what `loops_for` this size is to give, so that the first delta finds it ready. Does not wait."""
    if size >= COMPILE_BYTES:
        _compiled.prepare()


def compiled_loops() -> Loops | None:
    """Waits for the compiled loops; none where numba is not installed or does not run."""
    return _compiled.wait()
