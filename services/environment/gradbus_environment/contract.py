"""What environments are asked and what they answer, whichever way they run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from gradbus.errors import UserCodeError
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.episode_pb2 import CallStatus, Message

Status = Literal["ok", "invalid", "error", "unknown_session"]
Determinism = Literal["seeded", "recorded", "none"]
Document = dict[str, Any]

STATUS: Final[Mapping[Status, pb.EnvironmentStatus]] = {
    "ok": pb.ENVIRONMENT_STATUS_OK,
    "invalid": pb.ENVIRONMENT_STATUS_INVALID,
    "error": pb.ENVIRONMENT_STATUS_ERROR,
    "unknown_session": pb.ENVIRONMENT_STATUS_UNKNOWN_SESSION,
}
DETERMINISM: Final[Mapping[Determinism, pb.Determinism]] = {
    "seeded": pb.DETERMINISM_SEEDED,
    "recorded": pb.DETERMINISM_RECORDED,
    "none": pb.DETERMINISM_NONE,
}
CALL_STATUS: Final[Mapping[CallStatus, str]] = {
    CallStatus.CALL_STATUS_UNSPECIFIED: "ok",
    CallStatus.CALL_STATUS_OK: "ok",
    CallStatus.CALL_STATUS_MALFORMED: "malformed",
    CallStatus.CALL_STATUS_UNKNOWN_TOOL: "unknown_tool",
}


class EnvironmentRefusedError(UserCodeError):
    """The environment cannot be used as it is: to ask again would change nothing."""


class NondeterministicError(UserCodeError):
    """The calls of a session, made again, had other answers."""

    @classmethod
    def at(cls, turn: int) -> NondeterministicError:
        """Of the opening (-1), or of a turn."""
        called = "reset" if turn < 0 else f"turn {turn}"
        return cls(f"nondeterministic: {called} had another answer when it was repeated; let it depend on its seed and calls alone")


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """A tool that the policy may call."""

    name: str
    description: str
    parameters_json: str


@dataclass(frozen=True, slots=True)
class Description:
    """What an environment says of itself."""

    name: str
    digest: str
    determinism: Determinism
    tools: Sequence[ToolDescription] = ()
    tools_by_episode: bool = False
    """Whether each episode has tools of its own."""
    sandbox: str = ""
    """The confinement of the commands that it executes; empty: it executes none."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The begin of an episode."""

    run_id: str
    episode_id: str
    attempt: int
    item_json: str
    seed: int
    player: str = ""
    """Who plays: sessions of the same episode by others are not touched."""

    @property
    def key(self) -> str:
        """Of the episode as this player plays it."""
        return f"{self.player}.{self.episode_id}" if self.player else self.episode_id


@dataclass(frozen=True, slots=True)
class Move:
    """One turn of the policy."""

    turn: int
    assistant: Document
    """text, finish, and calls of {call_id, name, arguments, status}."""
    is_last: bool
    end_reason: str
    surplus: Sequence[tuple[str, str]] = ()
    """Call id and tool of the calls beyond those that a turn may have: the service answers them."""

    def document(self) -> Document:
        """As environments get it."""
        return {"turn": self.turn, "assistant": self.assistant, "is_last": self.is_last, "end_reason": self.end_reason}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the world says."""

    status: Status = "ok"
    reason: str = ""
    messages: Sequence[Message] = ()
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    state_digest: str = ""
    is_away: bool = False
    """With an error: nobody listens at the environment's address, or it has no room for now."""
    tools: Sequence[ToolDescription] = ()
    """Of an opening: those of this episode, in place of the description's."""

    @classmethod
    def error(cls, reason: str) -> Answer:
        """A fault that the policy did not cause."""
        return cls("error", reason)

    @classmethod
    def away(cls, reason: str) -> Answer:
        """An error that passes: the caller asks again, and counts no attempt."""
        return cls("error", reason, is_away=True)

    @classmethod
    def invalid(cls, reason: str) -> Answer:
        """The item or the state cannot be judged."""
        return cls("invalid", reason)

    def document(self) -> Document:
        """What counts for the state's digest."""
        messages = [[one.role, one.content, one.call_id, one.name] for one in self.messages]
        return {
            "status": self.status,
            "reason": self.reason,
            "messages": messages,
            "reward": self.reward,
            "components": dict(self.components),
            "done": self.done,
        }


@dataclass(slots=True)
class Session:
    """One attempt of an episode: what it was asked, and the digests of its answers."""

    id: str
    opening: Opening
    moves: list[Move] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    """Of the log after the opening and after each move."""

    def next_digest(self, asked: Document, answer: Answer) -> str:
        """Digest of the log with one more entry: SHA-256 over the digest before it and the entry as canonical JSON."""
        return log_digest(self.digests[-1] if self.digests else "", asked, answer)


class World(Protocol):
    """The environment of one run. Answers are OK, INVALID or ERROR; a failure of the environment is never raised."""

    async def describe(self, seconds: float) -> Description:
        """Raises EnvironmentRefusedError, or UserCodeError if asking again may help."""
        ...

    async def open(self, session: Session, seconds: float) -> Answer:
        """Begins the session."""
        ...

    async def step(self, session: Session, move: Move, seconds: float) -> Answer:
        """The answer to the move after `session.moves`. After an ERROR the same move may be asked again."""
        ...

    async def close(self, session: Session) -> None:
        """Forgets the session."""
        ...

    async def end(self) -> None:
        """Frees all that the environment holds."""
        ...


def opening_document(opening: Opening) -> Document:
    """What of an opening counts for the state's digest: attempts of an episode are alike."""
    return {"item": opening.item_json, "seed": opening.seed}


def log_digest(before: str, asked: Document, answer: Answer) -> str:
    """SHA-256 over the digest before it and one entry of the log."""
    return hashlib.sha256(f"{before}\n{canonical([asked, answer.document()])}".encode("utf-8", "replace")).hexdigest()


def canonical(value: object) -> str:
    """The one form of a JSON value: keys sorted, no spaces."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
