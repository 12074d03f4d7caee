"""Values of the key-value buckets about runs and workers."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gradbus.errors import CorruptRecordError
from gradbus.spec import DEFAULT_QUEUE, RunSpec

DesiredState = Literal["running", "paused", "cancelled", "deleted"]
DELETED: Final = b'"deleted"'
"""The value of `<run>.desired` of a run that is being deleted."""
DELETED_SECONDS: Final = 86_400.0
"""How long a deleted run is remembered, so that a repeated request to delete it succeeds too."""
RunState = Literal[
    "queued",
    "starting",
    "running",
    "paused",
    "waiting_for_reward",
    "waiting_for_environment",
    "evaluating",
    "cancelling",
    "succeeded",
    "failed",
    "cancelled",
]
Determinism = Literal["spec", "given records", "none"]
"""What a run's episodes are a function of: the spec, or also the records of what their environment answered, or neither."""
FINAL_STATES: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled"})
_DESIRED: TypeAdapter[DesiredState] = TypeAdapter(DesiredState)
Role = Literal["rollout", "trainer", "reference", "reward"]


def deletion_key(run_id: str) -> str:
    """The key in the bucket `runs` that remembers a deleted run. Of three parts, so that no view of runs holds it."""
    return f"deleted.run.{run_id}"


class StoredModel(BaseModel):
    """JSON in a bucket. Unknown fields, of a newer release, are ignored."""

    model_config = ConfigDict(extra="ignore")

    def to_bytes(self) -> bytes:
        """As stored."""
        return self.model_dump_json().encode()


class RunRecord(StoredModel):
    """`<run>.spec`: written once, by the gateway."""

    run_id: str
    spec: RunSpec
    created_unix_ns: int
    key_id: str = ""
    """Id of the API key that submitted the run."""
    idempotency_key: str = ""
    """Hash under which the submission's idempotency key is stored; empty if it had none."""


class RunProgress(StoredModel):
    """Progress as of the newest step."""

    step: int = 0
    version: int = -1
    checkpoint_step: int = -1
    reward: float | None = None
    accuracy: float | None = None
    """On held-out rows: the mean of `evaluation.metric`; of pairs the share whose chosen response has the higher reward."""
    held_out_loss: float | None = None
    """On held-out rows, of a run on given responses."""
    loss: float | None = None
    """Of the newest step; None for a run that samples."""
    pair_accuracy: float | None = None
    """Share of the newest step's pairs whose chosen response has the higher reward; None for a run without pairs."""
    staleness: float | None = None
    explained_variance: float | None = None
    """Of the critic; None for a run without one."""
    teacher_kl: float | None = None
    """Reverse KL to the teacher, of the newest step, nats a token; None for a run without one."""
    tokens_per_second: float | None = None
    shares: dict[str, float] = Field(default_factory=dict)
    """Share of time by phase: generate and load (of rollouts), score, reference (if the run uses one), wait, train."""
    filtered: int = 0
    dropped: int = 0
    workers: int = 0
    determinism: Determinism = "spec"
    """Of the run's episodes, by what their environment says of itself."""


class RunStatus(StoredModel):
    """`<run>.status`: written by the conductor alone."""

    state: RunState
    reason: str = ""
    """Why the run is in this state, and what to do about it."""
    waiting_for: str = ""
    """What the run waits for, and from which process; empty if it does not wait."""
    ending: RunState | None = None
    """The final state, once it is decided: a conductor that takes the run over only completes it."""
    progress: RunProgress = Field(default_factory=RunProgress)
    prompts: str = ""
    """Digest of the prompts object: the dataset without its answers."""
    evaluation_prompts: str = ""
    yielded_unix_ns: int = 0
    """When the run gave its trainer to another one because its scorer was away; 0 once it has a trainer again."""
    updated_unix_ns: int = 0
    finished_unix_ns: int = 0

    @property
    def has_begun(self) -> bool:
        """Whether the run ever had a trainer. Before that it has no queue, no log and no versions."""
        return bool(self.prompts)


def read_run(run_id: str, spec: bytes, desired: bytes | None, status: bytes | None) -> tuple[RunRecord, DesiredState, RunStatus | None]:
    """The values of a run's three keys. Raises CorruptRecordError, naming the first that cannot be read."""
    key = "spec"
    try:
        record = RunRecord.model_validate_json(spec)
        key = "desired"
        requested: DesiredState = _DESIRED.validate_json(desired) if desired else "running"
        key = "status"
        return record, requested, RunStatus.model_validate_json(status) if status else None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptRecordError(
            f"the key {run_id}.{key} in the bucket `runs` cannot be read ({where + ': ' if where else ''}{first['msg']}); "
            f"restore its value, or delete the keys {run_id}.* there and submit the run again"
        ) from None


class WorkerPresence(StoredModel):
    """`<worker>` in the bucket `workers`: written by the worker each second."""

    worker: str
    role: Role
    incarnation: str
    """New with each process: when it changes, the claims of the process before are void."""
    run_id: str = ""
    queue: str = DEFAULT_QUEUE
    """Of a trainer: the queue whose runs it trains."""
    engine: str = ""
    version: int = -1
    digest: str = ""
    """The worker's own checksum of its weights."""
    claims: list[int] = Field(default_factory=list)
    """Indexes of the training groups in its inbox: waiting or being sampled."""
    evaluation_claims: list[tuple[int, int]] = Field(default_factory=list)
    """Held-out rows in its inbox, as (version, row)."""
    busy: float = 0.0
    """Share of the last seconds in which its engine had work."""
    loading: float = 0.0
    """Of a rollout: share of the last seconds in which it fetched and loaded weights."""
    shares: dict[str, float] = Field(default_factory=dict)
    """Of a trainer: share of its time by phase (wait, train)."""
    staleness: float | None = None
    """Of a trainer: mean staleness of the samples of its newest step, in versions; None for a run that samples nothing."""
    loss: float | None = None
    """Of a trainer: the newest step's loss; None for a run that samples, whose loss says little."""
    pair_accuracy: float | None = None
    """Of a trainer on pairs: share of the newest step's pairs whose chosen response has the higher reward."""
    explained_variance: float | None = None
    """Of a trainer with a critic: how well the critic told the returns of the newest step."""
    teacher_kl: float | None = None
    """Of a trainer with a teacher: the reverse KL to it, of the newest step's samples."""
    warning: str = ""
    """Of a trainer: an alarm of the run's learning, as long as it lasts."""
    receives: bool = False
    """Of a rollout: whether it takes part in broadcasts of weights."""
    preparing: str = ""
    """What it does before it can work on its run, e.g. `starts its sglang engine`; empty once it can."""
    trouble: str = ""
    """Why the worker cannot serve; empty if it can."""
    awaits_environment: bool = False
    """Of a rollout: whether the trouble is the run's environment, which does not answer; nothing is wrong with the worker."""
    determinism: Determinism = "spec"
    """Of a rollout: that of the run's episodes."""
    fatal: bool = False
    """Whether the trouble is the run's own, so that no other worker could serve it either."""
    reached: int = -1
    """How far the run came here: a trainer's step, or the highest index of the groups that a rollout sampled; -1 while it is prepared."""
    failures: int = 0
    """Attempts at the run that failed here in the same way since it last progressed. Infrastructure that is away is not counted."""
    failure: str = ""
    """The newest of these failures."""
