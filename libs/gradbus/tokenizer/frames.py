"""Frames between a service and its tokenizer processes.

    offset 0   uint32, big-endian   bytes of the header
           4   uint32, big-endian   bytes of the ids
           8   the header, a JSON object in ASCII
               token ids, int32, little-endian: sequences one after the other, their lengths in the header

No pickle (R9). A frame that is larger than MAX_FRAME_BYTES is refused by both ends.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedRWPair
from typing import Any, Final

from gradbus.formats.tokens import pack_ids, token_count, unpack_ids

MAX_FRAME_BYTES: Final = 256 << 20
"""A row of the largest dataset, escaped to ASCII."""
CONTROL_BYTES: Final = 4096
"""Of a message to or from the fork server, which is one frame, written and read in one piece."""
_LENGTHS: Final = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Frame:
    """A request, a reply, or a report of progress."""

    header: dict[str, Any]
    ids: bytes = b""

    @classmethod
    def of_sequences(cls, header: dict[str, Any], sequences: Sequence[Sequence[int]]) -> Frame:
        """A frame with token ids."""
        lengths = [len(sequence) for sequence in sequences]
        return cls({**header, "lengths": lengths}, pack_ids([token for sequence in sequences for token in sequence]))

    def sequences(self) -> Iterator[tuple[int, ...]]:
        """The token ids. Raises ValueError if the lengths do not add up."""
        ids, start = unpack_ids(self.ids), 0
        lengths: list[int] = self.header["lengths"]
        if sum(lengths) != len(ids) or min(lengths, default=0) < 0:
            raise ValueError(f"{len(ids)} ids in sequences of {sum(lengths)}")
        for length in lengths:
            yield ids[start : start + length]
            start += length

    @classmethod
    def from_bytes(cls, message: bytes) -> Frame:
        """The frame that is the whole of `message`. Raises ValueError if it is none."""
        of_header, of_ids = _LENGTHS.unpack_from(message)
        begin, end = _LENGTHS.size, _LENGTHS.size + of_header
        if len(message) != end + of_ids:
            raise ValueError("a message that is not one frame")
        return _parsed(message[begin:end], message[end:])

    def to_bytes(self) -> bytes:
        """The frame on the wire. Raises ValueError if it is too large."""
        header = json.dumps(self.header).encode("ascii")
        _check_size(len(header) + len(self.ids))
        return _LENGTHS.pack(len(header), len(self.ids)) + header + self.ids


def read_frame(stream: BufferedRWPair) -> Frame | None:
    """The next frame, or None at the end of the stream."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    of_header, of_ids = _LENGTHS.unpack(lengths)
    return _parsed(stream.read(of_header), stream.read(of_ids))


async def receive_frame(stream: asyncio.StreamReader) -> Frame:
    """The next frame. Raises IncompleteReadError at the end of the stream, ValueError if it is no frame."""
    of_header, of_ids = _LENGTHS.unpack(await stream.readexactly(_LENGTHS.size))
    _check_size(of_header + of_ids)
    return _parsed(await stream.readexactly(of_header), await stream.readexactly(of_ids))


def _parsed(header: bytes, ids: bytes) -> Frame:
    value = json.loads(header)
    if not isinstance(value, dict) or 4 * token_count(ids) != len(ids):
        raise ValueError("a frame without a JSON object, or with parts of ids")
    return Frame(value, ids)


def _check_size(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES}")
