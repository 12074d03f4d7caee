"""What is read of the objects of a cluster, as `kubectl get -o json` prints them (`core/v1`, `apps/v1` and `batch/v1` of its API)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from gradbus.errors import SettingsError

COMMAND: Final = "kubectl -n gradbus get pods,replicasets,statefulsets,jobs,persistentvolumeclaims,events -o json"


class _Part(BaseModel):
    """Times are as the cluster writes them, RFC 3339 in UTC, so that their order is that of text; what is missing or null is empty."""

    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class Reference(_Part):
    """Another object, of which an owner or an event speaks."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    field_path: str = ""
    """Of an event of one container: `spec.containers{NAME}`."""


class Metadata(_Part):
    """What every object has."""

    name: str = ""
    uid: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    owner_references: tuple[Reference, ...] = ()


class Condition(_Part):
    """One state of a pod or a job; `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class Waiting(_Part):
    """Why a container has not begun."""

    reason: str = ""
    message: str = ""


class Running(_Part):
    """Since when a container runs."""

    started_at: str = ""


class Ended(_Part):
    """How a container has ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str = ""


class State(_Part):
    """One of the three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Ended | None = None


class Container(_Part):
    """One container of a pod, and how it ended before."""

    name: str
    image: str = ""
    ready: bool = False
    state: State = State()
    last_state: State = State()


class _Status(_Part):
    """Of every kind, the fields that it has."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[Container, ...] = ()
    container_statuses: tuple[Container, ...] = ()
    replicas: int = 0
    ready_replicas: int = 0
    active: int = 0
    succeeded: int = 0

    def condition(self, name: str) -> Condition:
        """The condition; one of status Unknown if it is not there."""
        return next((one for one in self.conditions if one.type == name), Condition(type=name, status="Unknown"))


class _Object(_Part):
    kind: str
    metadata: Metadata
    status: _Status = _Status()

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, name and uid: a pod of a StatefulSet has the name of the one before it."""
        return self.kind, self.metadata.name, self.metadata.uid


class Volume(_Part):
    """Of a pod; only claims are looked at."""

    persistent_volume_claim: dict[str, Any] | None = None


class _PodSpec(_Part):
    node_name: str = ""
    volumes: tuple[Volume, ...] = ()


class Pod(_Object):
    """A pod."""

    kind: Literal["Pod"]
    spec: _PodSpec = _PodSpec()

    def is_owned_by(self, kind: str = "", name: str = "") -> bool:
        """Whether a controller (of the kind and the name) replaces it."""
        return any(kind in {"", owner.kind} and name in {"", owner.name} for owner in self.metadata.owner_references)

    @property
    def is_held_back(self) -> bool:
        """Whether it has a scheduling gate, as Kueue sets it."""
        return self.status.condition("PodScheduled").reason == "SchedulingGated"

    @property
    def has_claim(self) -> bool:
        """Whether it has a volume that outlives it."""
        return any(volume.persistent_volume_claim is not None for volume in self.spec.volumes)


class _SetSpec(_Part):
    replicas: int = 1


class PodSet(_Object):
    """What keeps up a number of pods; a Deployment does it by ReplicaSets."""

    kind: Literal["ReplicaSet", "StatefulSet"]
    spec: _SetSpec = _SetSpec()

    @property
    def wanted(self) -> int:
        """Pods that it should have."""
        return self.spec.replicas

    @property
    def made(self) -> int:
        """Pods that it has, ready or not."""
        return self.status.replicas


class _JobSpec(_Part):
    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False


class Job(_Object):
    """What runs pods to their end; a JobSet does it by jobs."""

    kind: Literal["Job"]
    spec: _JobSpec = _JobSpec()

    @property
    def wanted(self) -> int:
        """Pods that should run: none while a queue holds it back, or when it is over."""
        if self.spec.suspend or any(self.status.condition(name).status == "True" for name in ("Complete", "Failed")):
            return 0
        left = self.spec.parallelism if self.spec.completions is None else self.spec.completions - self.status.succeeded
        return min(self.spec.parallelism, left)

    @property
    def made(self) -> int:
        """Pods that have not ended."""
        return self.status.active


class _ClaimSpec(_Part):
    storage_class_name: str | None = None


class Claim(_Object):
    """A PersistentVolumeClaim. No class is none that was asked for, the empty one is the wish for a volume without class."""

    kind: Literal["PersistentVolumeClaim"]
    spec: _ClaimSpec = _ClaimSpec()


class _Series(_Part):
    last_observed_time: str = ""


class Event(_Part):
    """What a part of the cluster has said of an object."""

    kind: Literal["Event"]
    involved_object: Reference
    reason: str = ""
    message: str = ""
    last_timestamp: str = ""
    event_time: str = ""
    series: _Series = _Series()

    @property
    def key(self) -> tuple[str, str, str]:
        """That of the object which it is about."""
        return self.involved_object.kind, self.involved_object.name, self.involved_object.uid

    @property
    def at(self) -> str:
        """When it was seen last."""
        return max(self.last_timestamp, self.event_time, self.series.last_observed_time)


class _Other(_Part):
    kind: str


_KINDS: Final = {"Pod": "pod", "ReplicaSet": "set", "StatefulSet": "set", "Job": "job", "PersistentVolumeClaim": "claim", "Event": "event"}


def _tag(given: Any) -> str | None:
    kind = given.get("kind") if isinstance(given, dict) else None
    return _KINDS.get(kind, "other") if isinstance(kind, str) else None


_Item = Annotated[
    Annotated[Pod, Tag("pod")]
    | Annotated[PodSet, Tag("set")]
    | Annotated[Job, Tag("job")]
    | Annotated[Claim, Tag("claim")]
    | Annotated[Event, Tag("event")]
    | Annotated[_Other, Tag("other")],
    Discriminator(_tag),
]


class _List(_Part):
    items: tuple[_Item, ...]


def read_objects(said: bytes) -> tuple[Pod | PodSet | Job | Claim | Event | _Other, ...]:
    """The objects of a JSON list; of kinds that are not looked at nothing but the kind. Raises SettingsError when it is no such list."""
    try:
        return _List.model_validate_json(said).items
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = ": ".join((*map(str, first["loc"]), first["msg"]))
        raise SettingsError(f"no list of objects came in ({what}); give the output of `{COMMAND}`") from None
