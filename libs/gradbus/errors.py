"""The tree of Gradbus errors.

GradbusError
├── SpecError              the run spec is wrong; carries every fault at once
├── SettingsError          a service or the embedded stack is set up wrongly
├── ModelError             a model folder cannot be used
├── DatasetError           a dataset cannot be used
├── TrainingError          the optimiser cannot take a step (loss, gradient or weights not finite)
├── OutOfMemoryError       an allocation failed: the run does not fit, or something else has the memory
├── RestartNeededError     this process cannot serve any run; it ends and must be started again
│   ├── RankLostError          a rank of the trainer is gone; all ranks must start again
│   └── EngineHungError        a sampling engine has work and makes no progress
├── CorruptRecordError     stored bytes do not match their digest
├── ObjectMissingError     object storage does not hold what was asked for
├── StorageError           object storage or the weight store does not answer, or refuses
├── DiskError              a folder of this machine cannot be written, or is full
├── FencedError            a newer term owns the run; this process must let go
├── UserCodeError          a user's service or Python failed as a whole, or may not be used
│   ├── BusyServiceError       it refuses work for now
│   ├── ServiceAwayError       it is not reached, does not answer in time, or refuses work for now
│   └── ScorerError            a scorer as a whole failed (never a reward of 0)
├── EnvironmentFaultError  an environment failed for a reason that no policy causes
│   ├── SessionLostError       its service does not know the session any more
│   └── InvalidItemError       it cannot judge the item or the state
├── GraderError            a grader's template, formula or source is wrong
├── ManifestError          a manifest is incomplete, or contradicts itself
├── HistoryError           a manifest contradicts what was published or committed before
├── VersionGoneError       the policy version was deleted by retention
├── AttestationError       loaded weights differ from the manifest's
├── BroadcastError         a worker takes no part in a broadcast of weights
├── EngineError            a sampling server failed; `state` says how
├── TrackerError           an experiment tracker cannot be opened or written
├── ReplayError            a run cannot be trained again from its archive, or ends in other digests
├── ApiError               the gateway refused a request; carries the problem document
│   ├── AuthenticationError    it does not know the key (401)
│   ├── PermissionDeniedError  the key has no right to this (403)
│   ├── NotFoundError          there is no such thing (404)
│   ├── ConflictError          the state of the run forbids it (409)
│   └── RateLimitError         too many requests or runs (429)
├── AnswerError            the gateway's answer is not what this client reads
├── RunNameError           no run, or more than one, has the id or name that was given
└── StackError             the embedded stack cannot start or be reached

A few packages derive their own from these; control flow inside one package may use its own class, e.g. `gradbus.bus.Conflict`.
Every message ends with what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

EngineFailure = Literal["start_failed", "dead", "hung", "out_of_memory", "wrong_version", "refused"]
"""How a sampling server fails: it does not start, it ends, it does not answer in time, it lacks memory, its weights were not
loaded by this engine, or it refuses a request."""


class GradbusError(Exception):
    """Base of all errors that Gradbus raises on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a run spec."""

    path: str
    """Dotted path of the field, e.g. `rollout.temperature`."""
    message: str
    given: str = ""
    allowed: str = ""
    nearest: str = ""
    """The valid name closest to an unknown one, or empty."""

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.message}"]
        if self.given:
            parts.append(f"given {self.given}")
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.nearest:
            parts.append(f"did you mean `{self.nearest}`?")
        return "; ".join(parts)


class SpecError(GradbusError):
    """A run spec is wrong. Lists all of its faults."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        lines = "\n".join(f"  {fault}" for fault in self.faults)
        super().__init__(f"the run spec has {len(self.faults)} fault(s); fix each and submit again:\n{lines}")


class SettingsError(GradbusError):
    """A service or the embedded stack is set up wrongly."""


class ModelError(GradbusError):
    """A model folder cannot be used."""


class DatasetError(GradbusError):
    """A dataset cannot be used."""


class TrainingError(GradbusError):
    """The optimiser cannot take a step: a loss or gradient is not finite, or the weights are no longer."""


class OutOfMemoryError(GradbusError):
    """An allocation failed in this process: the run does not fit here, or something else has the memory for now."""


class RestartNeededError(GradbusError):
    """This process cannot serve any run: it gives its work back, ends with status 1, and must be started again."""


class EngineHungError(RestartNeededError):
    """A sampling engine has work and makes no progress: a stuck device, a decode that never returns."""


class RankLostError(RestartNeededError):
    """A rank of the trainer ended, failed or did not answer in time. All ranks must be started again."""


class CorruptRecordError(GradbusError):
    """Stored bytes do not match their digest; the record must be made again."""


class ObjectMissingError(GradbusError):
    """Object storage does not hold the object."""


class StorageError(GradbusError):
    """Object storage, or the weight store, does not answer or refuses; the request may be repeated."""


class DiskError(GradbusError):
    """A folder of this machine cannot be written, or its disk is full."""


class FencedError(GradbusError):
    """A newer term owns the run; the process that gets this error stops working on the run."""


class SupersededError(GradbusError):
    """Another worker plays the episode from here on; what this one has is dropped."""


class UserCodeError(GradbusError):
    """A user's service or Python failed as a whole, or may not be used."""


class BusyServiceError(UserCodeError):
    """A user's service, or a proxy before it, refuses work for now: 429, 502, 503 or 504."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServiceAwayError(UserCodeError):
    """A user's service is not reached, does not answer in time or refuses work for now; it is asked again."""


class ScorerError(UserCodeError):
    """A scorer failed as a whole: none of the samples it was given has a reward."""


class EnvironmentFaultError(GradbusError):
    """An environment failed for a reason that no policy causes: the episode is played again, or the environment cannot be used."""


class SessionLostError(EnvironmentFaultError):
    """The environment service was started again and does not know the session; the episode is opened again."""


class InvalidItemError(EnvironmentFaultError):
    """The environment cannot judge the item or the state: to play again would not help."""


class GraderError(GradbusError):
    """A grader's template, formula or source is wrong, or does not fit a sample."""


class ManifestError(GradbusError):
    """A manifest is refused: it is incomplete, or contradicts itself."""


class HistoryError(GradbusError):
    """A manifest contradicts what was published or committed before it."""


class VersionGoneError(GradbusError):
    """The policy version existed and has been deleted by retention."""


class AttestationError(GradbusError):
    """The weights that a worker loaded differ from the manifest's."""


class BroadcastError(GradbusError):
    """This worker takes no part in a broadcast of weights; it takes the version from object storage."""


class EngineError(GradbusError):
    """The sampling server of an engine failed; `state` says how."""

    def __init__(self, state: EngineFailure, message: str) -> None:
        self.state = state
        super().__init__(f"{state}: {message}")


class TrackerError(GradbusError):
    """An experiment tracker cannot be opened or written."""


class ReplayError(GradbusError):
    """A run cannot be trained again from its archive, or ends in other digests than the recorded ones."""


class ApiError(GradbusError):
    """The gateway answered with a problem document (RFC 9457). `retry_after`, in seconds, is set if the request may come again then."""

    def __init__(self, status: int, problem: Mapping[str, object], retry_after: float | None = None) -> None:
        self.status = status
        self.problem = dict(problem)
        self.retry_after = retry_after
        title = problem.get("title", "request refused")
        errors = problem.get("errors")
        faults = [f"\n  {entry.get('path')}: {entry.get('message')}" for entry in errors] if isinstance(errors, list) else []
        super().__init__(f"{status} {title}: {problem.get('detail', '')}".rstrip(": ") + "".join(faults))


class AuthenticationError(ApiError):
    """The gateway does not know the key."""


class PermissionDeniedError(ApiError):
    """The key has no right to this."""


class NotFoundError(ApiError):
    """There is no such run, version or file."""


class ConflictError(ApiError):
    """The state of the run forbids it."""


class RateLimitError(ApiError):
    """The key has made too many requests, or has too much: `retry_after` is set if it is enough to wait."""


def api_error(status: int, problem: Mapping[str, object], retry_after: float | None = None) -> ApiError:
    """The error of an answer with this status."""
    return _BY_STATUS.get(status, ApiError)(status, problem, retry_after)


_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    429: RateLimitError,
}


class AnswerError(GradbusError):
    """The gateway's answer is not what this client reads: another release, or another server."""


class RunNameError(GradbusError):
    """No run, or more than one, has the id or name that was given."""


class StackError(GradbusError):
    """The embedded stack cannot start, or cannot be reached."""


def first_line(error: BaseException) -> str:
    """The error's first line: some libraries append a trace to the message."""
    return str(error).partition("\n")[0]
