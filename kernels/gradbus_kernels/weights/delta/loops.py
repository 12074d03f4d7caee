"""The loops of the codec over weights and lists, which numpy runs everywhere and numba several times as fast.

Both give the same bytes: `numpy_loops` is the reference, `numba_loops` is compiled. A process compiles once, in a thread, and numpy
serves until that is done, so no step waits for a compiler.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gradbus_kernels.weights.delta import numpy_loops

Bits = NDArray[np.unsignedinteger[Any]]
"""Floats as unsigned integers of their width."""
Bytes = NDArray[np.uint8]
Indices = NDArray[np.intp]

COMPILE_BYTES: Final = 1 << 24
"""Smaller weights are coded by numpy alone: loading the compiler takes longer, and memory."""


class Loops(Protocol):
    """What both implementations have. Lists of places, ranks and members ascend."""

    def changes(self, old: Bits, new: Bits, begin: int, /) -> tuple[Indices, Bits, Bits]:
        """Where `old` and `new`, which begin at `begin`, differ; and the elements there, before and after."""
        ...

    def split(self, places: Indices, before: Bits, after: Bits, limit: int, /) -> tuple[Indices, Indices, Bits, Bits]:
        """The places of the large and of the small elements (magnitude below `limit`) among changed ones, and their steps."""
        ...

    def ranks(self, old: Bits, limit: int, places: Indices, /) -> tuple[Indices, int]:
        """The ranks of small elements among all small ones of `old`; and how many these are."""
        ...

    def locate(self, old: Bits, limit: int, ranks: Indices, seen: int, begin: int, /) -> tuple[Indices, int]:
        """The places of those of `ranks` that are in `old`, and its number of small elements; `seen` of them, and `begin`, come before."""
        ...

    def patch(self, new: Bits, places: Indices, steps: Bits, /) -> None:
        """Changes the elements at `places`, which are within `new`, by so many steps."""
        ...

    def write_gaps(self, members: Indices, width: int, /) -> tuple[Bytes, Bytes, int]:
        """The quotients of the gaps, in unary; the planes of the remainders, of `width` bits; and the bits of the quotients."""
        ...

    def read_gaps(self, unary: Bytes, planes: Bytes, count: int, width: int, bits: int, /) -> tuple[Indices, int]:
        """The inverse: `count` members, which are undefined unless the other number, that of the bits set in `unary`, is the same."""
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
        try:
            self._loops = cast("Loops", importlib.import_module("gradbus_kernels.weights.delta.numba_loops"))
        except Exception:  # noqa: BLE001 -- numba is optional, and whatever it lacks here, numpy does the same
            self._loops = None


_compiled: Final = _Compiled()
NUMPY: Final = cast("Loops", numpy_loops)


def loops_for(size: int) -> Loops:
    """The loops for weights of `size` bytes: the compiled ones where they pay and are ready. Never waits."""
    return NUMPY if size < COMPILE_BYTES else _compiled.get() or NUMPY


def prepare_loops() -> None:
    """Begins to compile, in a thread, so that the first delta finds the loops ready."""
    _compiled.prepare()


def compiled_loops() -> Loops | None:
    """Waits for the compiled loops; none where numba is not installed or does not run."""
    return _compiled.wait()
