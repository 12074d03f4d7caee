"""Workers that a hostile run attacks: what a run's name says happens while its model is loaded.

python hostile.py MODULE        starts MODULE (gradbus_trainer, gradbus_rollout) like that
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
import time
from pathlib import Path


def divides() -> None:
    """Every attempt fails in the same way."""
    _ = 1 // 0


def spins() -> None:
    """Computes for ever and takes no notice of a cancellation; a file says that it has begun."""
    (Path(os.environ["GRADBUS_CACHE_DIR"]) / "spins").touch()
    while True:
        pass


def freezes() -> None:
    """Computes for ever and never releases the interpreter lock."""
    re.match("(a+)+$", "a" * 80 + "b")


def dies() -> None:
    """As the kernel ends a process for its memory, or a library by a segmentation fault."""
    os.kill(os.getpid(), signal.SIGKILL)


def stumbles() -> None:
    """Trains a step, and dies at the next one: it needs more memory than there is."""
    from gradbus_trainer.learners.torch import TorchLearner

    train = TorchLearner.train

    def train_and_die(self, batch, coefficients=None):
        if batch.step == 1:
            time.sleep(2.0)  # a step takes a while: the heartbeat has shown that the trainer is ready
            dies()
        return train(self, batch, coefficients)

    TorchLearner.train = train_and_die


def grows() -> None:
    """Takes memory until there is none."""
    kept = []
    while True:
        kept.append(b"x" * 100_000_000)


KEPT: list[bytes] = []


def leaks() -> None:
    """Leaves memory behind that nothing frees, and fails."""
    KEPT.append(b"x" * 300_000_000)
    _ = 1 // 0


ATTACKS = {attack.__name__: attack for attack in (divides, spins, freezes, dies, stumbles, grows, leaks)}


def plant() -> None:
    """Lets the loaders of both kinds of worker run the attack that the run's name names."""
    if sys.argv[0] == "gradbus_trainer":
        from gradbus_trainer.learners.registry import Learners as Opener

        name = "open"
    else:
        from gradbus_rollout.engines.registry import EngineFactory as Opener

        name = "_torch_engine"
    load = getattr(Opener, name)

    def attacked(self, folder, spec, *given):
        ATTACKS.get(spec.name, lambda: None)()
        return load(self, folder, spec, *given)

    setattr(Opener, name, attacked)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    plant()
    runpy.run_module(sys.argv[0], run_name="__main__")
