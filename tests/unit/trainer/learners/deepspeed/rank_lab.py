"""Two ranks whose engine trains nothing: `rank_lab.py <rank that fails> <how> <file>`. Rank 0 writes what it knows of the failure."""

import os
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace


class Absent(ModuleType):
    """A module of DeepSpeed, which need not be installed."""

    ops = SimpleNamespace(__compatible_ops__={})

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return object


sys.modules |= {name: Absent(name) for name in ("deepspeed", "deepspeed.ops", "deepspeed.ops.adam", "deepspeed.utils")}
FAILING, HOW, ANSWER = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])


class Engine:
    """All ranks agree on each step, so none can go on without the others."""

    def __init__(self, _folder, _spec, ranks):
        self._ranks = ranks

    def train(self, _batch, _rate, _coefficients=None):
        if self._ranks.rank == FAILING:
            if HOW == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a fault of this rank") if HOW == "bug" else RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return self._ranks.all_true(True)


def main():
    from gradbus_trainer.learners.deepspeed import follower, leader
    from gradbus_trainer.learners.deepspeed.commands import Command
    from gradbus_trainer.learners.deepspeed.ranks import Ranks
    from gradbus_trainer.settings import Settings, TorchrunRank

    leader.RankEngine = follower.RankEngine = Engine
    follower.batch_of = lambda step, tensors: None
    torchrun = TorchrunRank.of(os.environ)
    if torchrun.rank:
        return follower.follow(Settings(), torchrun)
    leading = leader.Leader(Ranks(torchrun, "cpu", 60.0), 60.0)
    spec = make_spec()
    engine = leading.open(Path("/"), spec)
    try:
        leading.lead(engine, Command("train", {"step": 0, "rate": 0.1, "coefficients": None}), lambda: engine.train(None, 0.1))
    except Exception as error:
        ANSWER.write_text(f"{type(error).__name__}\n{leading.failure()}")
        raise
    return 0


def make_spec():
    from gradbus.spec import parse_spec

    body = {"name": "p", "model": {"path": "m", "files": {}}, "data": {"train": "t"}, "reward": {"service": "grpc://127.0.0.1:1"}}
    return parse_spec(body | {"schedule": {"steps": 1}})


if __name__ == "__main__":
    sys.exit(main())
