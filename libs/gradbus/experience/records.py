"""Records: a payload with its SHA-256. Neither NATS nor the buffer protects content against corruption."""

from __future__ import annotations

import hashlib
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gradbus.errors import CorruptRecordError
from gradbus.v1.record_pb2 import StoredRecord

_Content = TypeVar("_Content", bound=Message)


def seal(payload: bytes) -> bytes:
    """`payload` as a serialised StoredRecord."""
    return StoredRecord(payload=payload, digest=hashlib.sha256(payload).digest()).SerializeToString()


def unseal(record: bytes, what: str) -> bytes:
    """The payload of a serialised StoredRecord. Raises CorruptRecordError, naming `what`, when it does not match its digest."""
    try:
        stored = StoredRecord.FromString(record)
    except DecodeError:
        raise CorruptRecordError(f"{what} is not a record; it must be made again") from None
    if hashlib.sha256(stored.payload).digest() != stored.digest:
        raise CorruptRecordError(f"{what} does not match its digest; it must be made again")
    return stored.payload


def unseal_message(kind: type[_Content], record: bytes, what: str) -> _Content:
    """The message in a serialised StoredRecord. Raises CorruptRecordError, also for a payload that is no such message."""
    try:
        return kind.FromString(unseal(record, what))
    except DecodeError:
        raise CorruptRecordError(f"{what} holds no {kind.DESCRIPTOR.name}; it must be made again") from None


def record_digest(record: bytes) -> str:
    """The digest in a sealed record, hex. It is not checked."""
    return StoredRecord.FromString(record).digest.hex()
