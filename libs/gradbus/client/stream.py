"""Where a stream of events is, and when it is opened again."""

from __future__ import annotations

import httpx2

from gradbus.client.calls import parsed
from gradbus.errors import ApiError, StackError
from gradbus.resources.runs import EventResource

_QUIET_SECONDS = 60.0  # the gateway sends a heartbeat every 15 s
_CONNECT_SECONDS = 10.0
_RECONNECTS = 8
_LONGEST_PAUSE_SECONDS = 5.0
_MOST_DOUBLINGS = 16
STREAM_TIMEOUT = httpx2.Timeout(_CONNECT_SECONDS, read=_QUIET_SECONDS)
StreamError = (httpx2.TransportError, ApiError, StackError)


class Following:
    """The cursor of a stream, and its interruptions since the newest event."""

    def __init__(self, url: str, after: int) -> None:
        """`url` is the gateway's; the stream begins after the event with the id `after`."""
        self.after = after
        self._url = url
        self._failures = self._early_ends = 0

    @property
    def headers(self) -> dict[str, str]:
        """Of the request that opens the stream."""
        return {"Last-Event-ID": str(self.after)}

    def seen(self, message: httpx2.ServerSentEvent) -> EventResource:
        """The event, after which the stream goes on if it is interrupted. Raises AnswerError."""
        event = parsed(EventResource, message.data, "an event of the stream")
        self.after, self._failures, self._early_ends = event.id, 0, 0
        return event

    def ended(self) -> float:
        """The stream ended before the run. Returns the seconds of the pause before the next one."""
        self._early_ends += 1
        return _pause(self._early_ends)

    def failed(self, error: Exception) -> float:
        """Like `ended`, after an error. Raises the error if it would come again, StackError after too many."""
        asked = error.retry_after if isinstance(error, ApiError) else 0.0
        if asked is None:
            raise error
        self._failures += 1
        if self._failures > _RECONNECTS:
            raise StackError(
                f"lost the connection to the gateway at {self._url} ({error}); see `gradbus status`, the run itself may go on"
            ) from error
        return max(_pause(self._failures), asked)


def _pause(attempt: int) -> float:
    """Seconds before a stream is opened again."""
    return min(0.1 * 2.0 ** min(attempt, _MOST_DOUBLINGS), _LONGEST_PAUSE_SECONDS)
