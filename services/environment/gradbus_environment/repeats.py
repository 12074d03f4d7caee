"""One of a hundred episodes of a seeded environment is played again before it is over: what differs is an error, and never silent."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol, runtime_checkable

from gradbus.errors import UserCodeError
from gradbus.telemetry import get_logger
from gradbus_environment.contract import Answer, Move, NondeterministicError, Opening, Session
from gradbus_environment.telemetry import count_repeat

_log = get_logger(__name__)
ONE_OF: Final = 100


@runtime_checkable
class RepeatableWorld(Protocol):
    """A world whose sessions can be played again beside the first time."""

    is_seeded: bool
    """Whether it says that its answers are a function of seed and calls."""

    async def repeat(self, session: Session, seconds: float) -> None:
        """Makes all calls of a session again. Raises NondeterministicError if an answer is another one, UserCodeError if it cannot."""
        ...


def is_repeated(opening: Opening) -> bool:
    """Whether the episode is one of those: a function of its name, so all of its attempts are."""
    name = f"{opening.run_id}.{opening.episode_id}".encode("utf-8", "replace")
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") % ONE_OF == 0


def is_over(move: Move, answer: Answer) -> bool:
    """Whether the episode ends with this answer."""
    return move.is_last or answer.done or not answer.messages


async def checked(world: object, session: Session, answer: Answer, seconds: float) -> Answer:
    """The last answer of an episode, or an error if the episode is one of those and differs when it is played again."""
    if not is_repeated(session.opening) or not isinstance(world, RepeatableWorld) or not world.is_seeded:
        return answer
    opening = session.opening
    try:
        await world.repeat(session, seconds)
    except NondeterministicError as error:
        _log.error("nondeterministic", run_id=opening.run_id, episode=opening.episode_id, error=str(error))
        count_repeat("differs")
        return Answer.error(str(error))
    except UserCodeError as error:
        _log.warning("episode_not_repeated", run_id=opening.run_id, episode=opening.episode_id, error=str(error))
        count_repeat("failed")
    else:
        count_repeat("same")
    return answer
