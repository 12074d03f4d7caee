"""Group commit: while one write of a bucket waits for the server's disk, the writes that come share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nats.aio.client import Client
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from gradbus.bus.batch import MOST_MESSAGES, Message, publish_batch

_MOST_SECONDS: Final = 1.0
"""That writes are gathered: an answer that is lost must not hold up others for as long as it is waited for."""
Outcome = int | BaseException
"""The new revision, or why there is none."""
Outcomes = Mapping[object, Outcome]
"""By write."""


@dataclass(eq=False, slots=True)
class _Group:
    """Writes that are sent together."""

    writes: dict[object, Message] = field(default_factory=dict)
    sending: asyncio.Task[Outcomes] | None = None


class GroupCommit:
    """Compare-and-set of many keys by many tasks of one process: what they cost the disk follows its speed, not their number.

    A write that comes alone goes alone and at once, so nothing changes for a process that writes seldom.
    """

    def __init__(self, client: Client, jetstream: JetStreamContext) -> None:
        self._client = client
        self.jetstream = jetstream
        self._open: _Group | None = None
        """Takes writes until it is sent."""
        self._newest: asyncio.Task[Outcomes] | None = None

    async def write(self, message: Message) -> int:
        """Stores the message; returns its revision. Raises an error of NATS: its own or, if the server does not answer, the group's.

        A write whose caller is cancelled is not sent, unless it is on its way.
        """
        if self._open is None or len(self._open.writes) == MOST_MESSAGES:
            self._open = group = _Group()
            self._newest = group.sending = asyncio.create_task(self._send(group, self._newest), name="group commit")
        group, write = self._open, object()
        group.writes[write] = message
        assert group.sending is not None  # noqa: S101 - set where the group is made
        try:
            # Whoever stops waiting must not stop the others' write.
            outcome = (await asyncio.shield(group.sending))[write]
        except asyncio.CancelledError:
            if self._open is group:
                del group.writes[write]
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _send(self, group: _Group, before: asyncio.Task[Outcomes] | None) -> Outcomes:
        if before is not None:
            await asyncio.wait([before], timeout=_MOST_SECONDS)
        if self._open is group:
            self._open = None
        messages = list(group.writes.values())
        if len(messages) > 1:
            try:
                last = await publish_batch(self._client, messages)
                return dict(zip(group.writes, range(last - len(messages) + 1, last + 1), strict=True))
            except (APIError, MaxPayloadError):
                pass  # one of them was refused, so none is stored; or the bucket, of another release, takes no batches
        alone: Sequence[Outcome] = await asyncio.gather(*map(self._alone, messages), return_exceptions=True)
        return dict(zip(group.writes, alone, strict=True))

    async def _alone(self, message: Message) -> int:
        return (await self.jetstream.publish(message.subject, message.payload, headers=dict(message.headers))).seq
