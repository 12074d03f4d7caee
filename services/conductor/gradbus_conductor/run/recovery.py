"""Rebuilds a run's schedule from what is stored: the experience log, and the training progress of the newest checkpoint."""

from __future__ import annotations

from gradbus.errors import CorruptRecordError
from gradbus.experience import ExperienceLog
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import VERDICT_TRAIN
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_conductor.run.learning_signal import LearningSignal
from gradbus_conductor.schedules.base import Schedule

_log = get_logger(__name__)


async def recover_schedule(
    log: ExperienceLog, term: int, schedule: Schedule, learning_signal: LearningSignal, trained: TrainerProgress
) -> list[int]:
    """Sets the schedule and the learning signal to the state of the log; returns the indexes that the log holds.

    Groups whose entries are corrupt or lost become outstanding again. Raises FencedError if a newer conductor wrote.
    """
    entries: list[tuple[int, bool]] = []
    corrupt = []
    learning_signal.clear(has_trained=trained.step > 0)
    after = "0-0"
    while stored := await log.read(after):
        after = stored[-1].stream_id
        for item in stored:
            try:
                entry = item.decode()
            except CorruptRecordError as error:
                _log.warning("corrupt_entry", run_id=trained.run_id, index=item.index, error=str(error))
                corrupt.append(item)
                continue
            entries.append((item.index, entry.verdict == VERDICT_TRAIN))
            learning_signal.add(entry)
    if corrupt:
        await log.delete(term, corrupt)
    frontier = trained.frontier
    known = {index for index, _ in entries} | set(frontier.above)
    # The index bitmap may outlive entries that the buffer lost: without this their groups could never be appended again.
    if lost := await log.reopen(term, frontier.below, known):
        _log.warning("log_lost_entries", run_id=trained.run_id, indexes=lost)
    schedule.recover(entries, trained)
    return [index for index, _ in entries]
