"""Rank 0's side of every command: it is sent to the other ranks, then all carry it out together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from gradbus.control.failures import described
from gradbus.errors import FencedError, RankLostError
from gradbus.spec import RunSpec
from gradbus_trainer.learners.deepspeed.commands import Command
from gradbus_trainer.learners.deepspeed.rank_engine import RAISED_BY_ALL, RankEngine
from gradbus_trainer.learners.deepspeed.ranks import Ranks, own_failure

_Result = TypeVar("_Result")
_RESTS_A_DEADLINE = 3


class Leader:
    """One engine, and one command at a time from any thread.

    The other ranks wait for commands with a deadline, so that `rest` is sent while there is nothing to do. With several ranks every
    failure that not all of them raise is a RankLostError: they no longer agree on the state, and all must start again.
    """

    def __init__(self, ranks: Ranks, seconds: float) -> None:
        self.ranks = ranks
        self._lock = threading.Lock()
        self._engine: RankEngine | None = None
        self._lost = ""
        self._failure = ""
        self._closed = threading.Event()
        if ranks.size > 1:
            threading.Thread(target=self._rest, args=(seconds / _RESTS_A_DEADLINE,), name="rest", daemon=True).start()

    def open(self, folder: Path, spec: RunSpec) -> RankEngine:
        """Replaces the engine on every rank. Raises ModelError."""
        command = Command("open", {"folder": str(folder), "spec": spec.model_dump_json()})
        with self._lock, self._together(command):
            if self._engine is not None:
                self._engine.close()
                self._engine = None
            self._engine = RankEngine(folder, spec, self.ranks)
            return self._engine

    def release(self) -> None:
        """Drops the engine on every rank."""
        with self._lock:
            if self._engine is not None:
                with self._together(Command("release")):
                    self._engine.close()
                    self._engine = None

    def lead(self, engine: RankEngine, command: Command, work: Callable[[], _Result]) -> _Result:
        """Sends the command and does rank 0's part, `work`. Raises FencedError when `engine` has been replaced."""
        with self._lock:
            if engine is not self._engine:
                raise FencedError(f"`{command.name}` came too late: this trainer serves another run now; drop this learner")
            with self._together(command):
                return work()

    def failure(self) -> str:
        """Why a rank failed by itself; empty if none did, or if none could say so. A rank that hangs need not know of it yet."""
        return self._failure or self.ranks.noted_failure()

    def close(self) -> None:
        """Ends the other ranks."""
        self._closed.set()
        with self._lock, contextlib.suppress(RankLostError), self._together(Command("stop")):
            self.ranks.close()

    @contextlib.contextmanager
    def _together(self, command: Command) -> Iterator[None]:
        if self._lost:
            raise RankLostError(self._lost)
        try:
            self.ranks.send(command.to_bytes())
            yield
        except RAISED_BY_ALL:
            raise
        except Exception as error:
            if self.ranks.size == 1:
                raise
            self._failure = self.ranks.noted_failure() or own_failure(error)
            self._lost = (
                f"the {self.ranks.size} ranks no longer agree after `{command.name}` failed ({self._failure or described(error)}); "
                "they start again from the newest checkpoint; see the log of each rank for the first error"
            )
            raise RankLostError(self._lost) from error

    def _rest(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            with self._lock:
                if self._closed.is_set() or self._lost:
                    return
                # The next command raises the error found here.
                with contextlib.suppress(RankLostError), self._together(Command("rest")):
                    pass
