"""Divides what a call would send, because gRPC takes no message above 64 MiB: a group may have a thousand long samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from gradbus.v1.reference_service_pb2 import ReferenceSequence
from gradbus.v1.reward_pb2 import ScoreSample

_Part = TypeVar("_Part", ReferenceSequence, ScoreSample)
_MOST_BYTES: Final = 16 << 20
"""Of one call. A single sample takes a few megabytes at most."""
_CHARACTER_BYTES: Final = 4
"""At most, in UTF-8."""


def fits_one_call(characters: int) -> bool:
    """Whether samples of so many characters fit into one call, whatever the characters: then no sample has to be measured."""
    return _CHARACTER_BYTES * characters <= _MOST_BYTES


def divided(pieces: Iterable[Sequence[_Part]], factor: int = 1) -> Iterator[list[_Part]]:
    """What each call sends: as many pieces as fit, in order, and at least one. Pieces are made when their call is.

    `factor`: how many times the size of a piece its answer may have.
    """
    call: list[_Part] = []
    room = _MOST_BYTES
    for piece in pieces:
        size = factor * sum(part.ByteSize() for part in piece)
        if call and size > room:
            yield call
            call, room = [], _MOST_BYTES
        call += piece
        room -= size
    if call:
        yield call


def divided_by_group(groups: Iterable[Iterable[_Part]], factor: int = 1) -> Iterator[list[_Part]]:
    """The same, with whole groups. One that is too large is divided by itself, so the bits of its answers depend on no other group."""
    return divided((piece for group in groups for piece in divided(([part] for part in group), factor)), factor)
