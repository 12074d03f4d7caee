"""TensorBoard: one event file a run, which is only ever appended to."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradbus.trackers.lock import lock
from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

_FILE: Final = "events.out.tfevents.0.gradbus"
_VERSION: Final = "brain.Event:2"
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_MAX_RECORD: Final = 1 << 24


class TensorBoardSink:
    """A file of TFRecords. What a killed process left half written at its end is cut off."""

    def __init__(self, target: str, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra, and slow to load
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

        self._event, self._summary = Event, Summary
        folder = Path(target).expanduser() / run.title
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / _FILE).open("a+b")
        lock(self._file, run.run_id)
        self.written, end = 0, 0
        for event, after in read_events(folder / _FILE):
            self.written, end = max([self.written, *(int(value.node_name) for value in event.summary.value)]), after
        self._file.truncate(end)
        self._records = RecordWriter(self._file)
        if not end:
            self._append(Event(wall_time=0.0, file_version=_VERSION))

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`. A point is one record, so that it is there whole or not at all."""
        for point in points:
            shown = {name: value for name, value in point.values.items() if name != EVENT}
            # In the field `node_name`, which nothing shows: a value is a float32, in which an event's number does not fit.
            values = [self._summary.Value(tag=name, simple_value=value, node_name=str(point.event)) for name, value in shown.items()]
            self._append(self._event(wall_time=point.unix_seconds, step=point.step, summary=self._summary(value=values)))

    def close(self, state: str) -> None:  # noqa: ARG002 - TensorBoard shows no state
        """See `Sink.close`."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _append(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()


def read_events(path: Path) -> Iterator[tuple[Event, int]]:
    """(event, position after it) of each whole record, up to the first that is cut off."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # noqa: PLC0415

    position = 0
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size + _CRC.size)) == _LENGTH.size + _CRC.size:
            (size,), (crc,) = _LENGTH.unpack_from(head), _CRC.unpack_from(head, _LENGTH.size)
            if crc != masked_crc32c(head[: _LENGTH.size]) or size > _MAX_RECORD:
                return
            data, tail = file.read(size), file.read(_CRC.size)
            if len(tail) < _CRC.size or _CRC.unpack(tail)[0] != masked_crc32c(data):
                return
            position += len(head) + size + len(tail)
            yield Event.FromString(data), position
