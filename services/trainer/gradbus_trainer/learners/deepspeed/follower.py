"""The other ranks: they do their part of each command of rank 0 and hold no connection to a service."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from gradbus.algorithms import Coefficients
from gradbus.objects import materialise
from gradbus.spec import RunSpec
from gradbus.telemetry import configure_logging, get_logger
from gradbus_kernels.models.loading import return_device_memory
from gradbus_trainer.learners.deepspeed.commands import Command, batch_of
from gradbus_trainer.learners.deepspeed.rank_engine import RAISED_BY_ALL, RankEngine
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.settings import Settings, TorchrunRank

_log = get_logger(__name__)


def follow(settings: Settings, torchrun: TorchrunRank) -> int:
    """Serves rank 0 until its `stop`. Exit status: 0 then, 1 when a rank failed or does not answer."""
    configure_logging("trainer", settings.log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 gets it too, finishes its step with this rank and then sends `stop`
    ranks = None
    try:
        ranks = Ranks(torchrun, settings.device, settings.collective_seconds)
        Follower(settings, ranks).run()
    except Exception as error:  # noqa: BLE001 - the process boundary: torchrun then ends the other ranks
        _log.exception("rank_stopped", rank=torchrun.rank, error=f"{type(error).__name__}: {error}")
        if ranks is not None:
            with contextlib.suppress(RuntimeError):  # rank 0 and its notes are gone
                ranks.note_failure(error)
        return 1
    return 0


class Follower:
    """A rank other than 0."""

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._engine: RankEngine | None = None

    def run(self) -> None:
        """Carries out commands until `stop`."""
        while (command := Command.from_bytes(self._ranks.receive())).name != "stop":
            with contextlib.suppress(*RAISED_BY_ALL):  # by rank 0 too, which decides how to go on
                self._carry_out(command)
        self._ranks.close()

    def _carry_out(self, command: Command) -> None:
        if command.name == "open":
            self._open(command)
        elif command.name == "release":
            self._release()
        elif self._engine is not None and command.name != "rest":
            _take_part(self._engine, command)

    def _open(self, command: Command) -> None:
        self._release()
        spec = RunSpec.model_validate_json(command.arguments["spec"])
        folder = Path(command.arguments["folder"])
        if not folder.is_dir():  # on another machine
            objects = self._settings.open_objects()
            folder = asyncio.run(materialise(objects, spec.model.files or {}, self._settings.cache_dir / "models"))
        self._engine = RankEngine(folder, spec, self._ranks)

    def _release(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            return_device_memory()


def _take_part(engine: RankEngine, command: Command) -> None:
    arguments = command.arguments
    match command.name:
        case "train":
            coefficients = arguments["coefficients"] and Coefficients(**arguments["coefficients"])
            engine.train(batch_of(arguments["step"], command.tensors), arguments["rate"], coefficients)
        case "weight":
            engine.weight(arguments["name"])
        case "moment":
            engine.moment(arguments["name"], arguments["moment"])
        case "probe":
            engine.probe()
        case "restore":
            engine.restore(arguments["updates"], {}, with_critic=arguments["critic"])
