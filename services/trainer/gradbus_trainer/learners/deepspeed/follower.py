"""The other ranks: they wait for rank 0's commands and do their part, and speak to no wire."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from gradbus.errors import ModelError, TrainingError
from gradbus.objects import materialise
from gradbus.spec import RunSpec
from gradbus.telemetry import configure_logging, get_logger
from gradbus_trainer.learners.deepspeed.commands import Command, batch_of
from gradbus_trainer.learners.deepspeed.rank_engine import RankEngine
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.settings import Settings
from gradbus_trainer.torchrun import TorchrunRank

_log = get_logger(__name__)


def follow(settings: Settings, torchrun: TorchrunRank) -> int:
    """Serves rank 0 until it says stop; the exit status: 0 then, 1 when a rank failed or does not answer."""
    configure_logging("trainer", settings.log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 gets it too, finishes its step with us and then says stop
    try:
        Follower(settings, Ranks(torchrun, settings.device, settings.collective_seconds)).run()
    except Exception as error:  # noqa: BLE001 - the process boundary: torchrun then ends the other ranks
        _log.exception("rank_stopped", rank=torchrun.rank, error=f"{type(error).__name__}: {error}")
        return 1
    return 0


class Follower:
    """One rank that is not 0."""

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._engine: RankEngine | None = None

    def run(self) -> None:
        """Does as told until told to stop."""
        while (command := Command.from_bytes(self._ranks.receive())).name != "stop":
            # Rank 0 raises these too, and says what is next.
            with contextlib.suppress(ModelError, TrainingError):
                self._do(command)
        self._ranks.close()

    def _do(self, command: Command) -> None:
        if command.name == "open":
            self._open(command)
        elif self._engine is not None and command.name != "rest":
            _take_part(self._engine, command)

    def _open(self, command: Command) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        spec = RunSpec.model_validate_json(command.facts["spec"])
        folder = Path(command.facts["folder"])
        if not folder.is_dir():  # on another machine
            objects = self._settings.open_objects()
            folder = asyncio.run(materialise(objects, spec.model.files or {}, self._settings.cache_dir / "models"))
        self._engine = RankEngine(folder, spec, self._ranks)


def _take_part(engine: RankEngine, command: Command) -> None:
    facts = command.facts
    match command.name:
        case "train":
            engine.train(batch_of(facts["step"], command.tensors), facts["rate"])
        case "weight":
            engine.weight(facts["name"])
        case "moment":
            engine.moment(facts["name"], facts["moment"])
        case "probe":
            engine.probe()
        case "restore":
            engine.restore(facts["updates"], {})
