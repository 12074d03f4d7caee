"""The table as NATS permissions: the subjects that a user may publish to and subscribe to."""

from __future__ import annotations

from dataclasses import dataclass

from gradbus.access.table import EVENTS, HINTS, KEYS, PROMPTS, READERS
from gradbus.bus.subjects import inbox

_API = "$JS.API"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Allow-lists of one user; every other subject is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def nats_permissions(role: str) -> Permissions:
    """The role's allow-lists. Replies arrive in an inbox that no other role may subscribe to."""
    heard = [hint.subject for hint in HINTS if role in hint.hearers]
    return Permissions(
        publish=(*_creating(role), *_reading(role), *_writing(role), *_streams(role)),
        subscribe=(f"{inbox(role)}.>", *heard),
    )


def _creating(role: str) -> list[str]:
    """The first process creates streams and buckets; the server does not change existing ones."""
    buckets = sorted(
        {row.bucket for row in KEYS if role in row.writers + row.removers} | {bucket for bucket, roles in READERS.items() if role in roles}
    )
    names = [PROMPTS.name, EVENTS.name, *(f"KV_{bucket}" for bucket in buckets)]
    return [f"{_API}.STREAM.CREATE.{name}" for name in names] + [f"{_API}.STREAM.INFO.KV_{bucket}" for bucket in buckets]


def _reading(role: str) -> list[str]:
    """A value is requested; a view is a push consumer with flow control."""
    streams = [f"KV_{bucket}" for bucket, roles in READERS.items() if role in roles]
    return [
        subject
        for stream in streams
        for subject in (f"{_API}.STREAM.MSG.GET.{stream}", f"{_API}.DIRECT.GET.{stream}.>", *_consuming(stream))
    ]


def _writing(role: str) -> list[str]:
    keys = [f"$KV.{row.bucket}.{row.pattern}" for row in KEYS if role in row.writers + row.removers]
    return keys + [hint.subject for hint in HINTS if role in hint.senders]


def _streams(role: str) -> list[str]:
    allowed: list[str] = []
    allowed += [f"{_API}.STREAM.PURGE.{stream.name}" for stream in (PROMPTS, EVENTS) if role in stream.removers]
    if role in PROMPTS.writers:
        allowed += [PROMPTS.subject, f"{_API}.STREAM.INFO.{PROMPTS.name}", f"{_API}.CONSUMER.DELETE.{PROMPTS.name}.*"]
    if role in PROMPTS.readers:
        allowed += [f"{_API}.CONSUMER.MSG.NEXT.{PROMPTS.name}.*", f"$JS.ACK.{PROMPTS.name}.>"]
    if role in PROMPTS.writers + PROMPTS.readers:
        allowed += [f"{_API}.CONSUMER.INFO.{PROMPTS.name}.*", f"{_API}.CONSUMER.CREATE.{PROMPTS.name}.*.{PROMPTS.subject}"]
    if role in EVENTS.writers:
        allowed += [EVENTS.subject]
    if role in EVENTS.readers:
        allowed += [f"{_API}.STREAM.NAMES", *_consuming(EVENTS.name), f"{_API}.CONSUMER.DELETE.{EVENTS.name}.*"]
    return allowed


def _consuming(stream: str) -> tuple[str, ...]:
    return f"{_API}.CONSUMER.CREATE.{stream}", f"{_API}.CONSUMER.INFO.{stream}.*", f"$JS.FC.{stream}.>"
