"""The table of permissions: which role reads and writes which key, stream, subject, record and method. All else is refused.

A role is a service; `supervisor` starts the services. Every process of a role has the role's rights. The processes themselves, with
their addresses, environment and secrets, stand in `gradbus.deploy.roles`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradbus.bus.subjects import EVENTS_STREAM, PROMPTS_STREAM, Buckets

Roles = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a bucket (`*` matches one part, `>` all that follow), their writers, and who else removes them.

    NATS cannot tell a removal from a write, so who may remove a key could write it too.
    """

    bucket: str
    pattern: str
    content: str
    writers: Roles
    removers: Roles = ()


@dataclass(frozen=True, slots=True)
class Hint:
    """A core message, which may be lost without harm."""

    subject: str
    content: str
    senders: Roles
    hearers: Roles


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of durable messages."""

    name: str
    subject: str
    writers: Roles
    readers: Roles
    removers: Roles = ()


@dataclass(frozen=True, slots=True)
class Records:
    """A role's rights in the buffer: commands on keys below `{<run>}:`."""

    keys: str
    commands: str
    access: str = "RW"
    """`R`: the keys are read, `W`: written."""
    own: str = ""
    """Further keys, which are read and written."""

    @property
    def rights(self) -> Sequence[tuple[str, str]]:
        """Keys with the access to them."""
        return [(self.keys, self.access), *([(self.own, "RW")] if self.own else [])]


KEYS: Final = (
    Keys(Buckets.RUNS, "*.spec", "the spec with all digests, once", ("gateway",), ("conductor",)),
    Keys(Buckets.RUNS, "*.desired", "`running`, `paused`, `cancelled`, `deleted`", ("gateway", "conductor")),
    Keys(Buckets.RUNS, "*.scorers_wanted", "the scorers that a user gives a live run", ("gateway",), ("conductor",)),
    Keys(Buckets.RUNS, "*.annotations", "tags and note of a run", ("gateway",), ("conductor",)),
    Keys(Buckets.RUNS, "*.scorers", "the same, with the groups from which they judge", ("conductor",)),
    Keys(Buckets.RUNS, "idempotency.key.*", "the run that a submission created", ("gateway",), ("conductor",)),
    Keys(Buckets.RUNS, "deleted.run.*", "that a run was deleted; expires after a day", ("conductor",)),
    Keys(Buckets.RUNS, "uploads.*.*", "the size of a file that a key uploaded", ("gateway",)),
    Keys(Buckets.RUNS, "*.status", "state, progress, reason of a wait", ("conductor",)),
    Keys(Buckets.RUNS, "*.evaluations", "the newest result on held-out rows", ("conductor",)),
    Keys(Buckets.RUNS, "*.served", "when a run of an API key last got a trainer", ("conductor",)),
    Keys(Buckets.WORKERS, ">", "presence, loaded version, claims", ("rollout", "trainer")),
    Keys(Buckets.ASSIGNMENTS, ">", "the run assigned to a worker", ("conductor",)),
    Keys(Buckets.LEASES, "conductor.*", "the conductor that drives a run", ("conductor",)),
    Keys(Buckets.LEASES, "trainer.*", "the trainer that trains a run", ("trainer",)),
    Keys(Buckets.LEASES, "device.*", "the process that may use a device's memory", ("rollout", "trainer")),
    Keys(Buckets.LEASES, "wanted.*", "the process that waits for a device", ("rollout", "trainer")),
    Keys(Buckets.HEADS, "*.version", "the newest version", ("weight_store",)),
    Keys(Buckets.HEADS, "*.checkpoint", "the newest durable checkpoint", ("weight_store",)),
    Keys(Buckets.HEADS, "*.term", "the newest trainer's term", ("weight_store",)),
    Keys(Buckets.HEADS, "attested.*", "the workers that attested each version", ("weight_store",)),
    Keys(Buckets.PROBES, "*", "digest of the fixed probe", ("rollout",), ("conductor",)),
    Keys(Buckets.CONDEMNED, "*", "a blob that no run names", ("weight_store",), ("gateway", "conductor")),
    Keys(Buckets.SESSIONS, "code.*", "a sign-in link, valid once", ("gateway",)),
    Keys(Buckets.SESSIONS, "session.*", "a signed-in browser", ("gateway",)),
)

READERS: Final[Mapping[str, Roles]] = {
    Buckets.RUNS: ("gateway", "conductor", "rollout", "trainer", "reference", "weight_store", "supervisor"),
    Buckets.WORKERS: ("gateway", "conductor", "weight_store"),
    Buckets.ASSIGNMENTS: ("conductor", "rollout", "trainer"),
    Buckets.LEASES: ("conductor", "rollout", "trainer"),
    Buckets.HEADS: ("conductor", "rollout", "weight_store"),
    Buckets.PROBES: ("rollout",),
    Buckets.CONDEMNED: ("gateway", "conductor", "weight_store"),
    Buckets.SESSIONS: ("gateway",),
}

HINTS: Final = (
    Hint("groups.*", "groups are in the buffer", ("rollout",), ("conductor",)),
    Hint("broadcasts.*", "a version is offered by broadcast", ("weight_store",), ("rollout",)),
    Hint("missing.*", "groups that the trainer lacks", ("trainer",), ("conductor",)),
)

PROMPTS: Final = Stream(PROMPTS_STREAM, "prompts.*", ("conductor",), ("rollout",), ("conductor",))
EVENTS: Final = Stream(EVENTS_STREAM, "events.*", ("conductor", "trainer", "weight_store"), ("gateway",), ("conductor",))

BUFFER: Final[Mapping[str, Records]] = {
    # Only the buffer's functions append to the log; the commands inside them count as the caller's.
    "conductor": Records(
        "term admitted experience assembly:* evaluation:* journal:*",
        "get set mget del unlink scan getrange setbit xadd xdel xtrim xread xlen memory|usage fcall",
    ),
    # A function's keys count as read and written, so a journal is called by functions that touch nothing else.
    "rollout": Records("assembly:* evaluation:*", "set msetnx fcall hset hsetnx hget hmget hdel", "W", own="journal:*"),
    "trainer": Records("experience", "xread", "R"),
    "gateway": Records("experience", "xread", "R"),
    "supervisor": Records("", "function|load"),
}

METHODS: Final[Mapping[str, Mapping[str, Roles]]] = {
    "weight_store": {
        "gradbus.v1.WeightStoreService/OpenTerm": ("trainer", "conductor"),
        "gradbus.v1.WeightStoreService/PublishVersion": ("trainer",),
        "gradbus.v1.WeightStoreService/CommitCheckpoint": ("trainer",),
        "gradbus.v1.WeightStoreService/GetCheckpoint": ("trainer", "conductor"),
        "gradbus.v1.WeightStoreService/GetHeads": ("trainer",),
        "gradbus.v1.WeightStoreService/GetVersion": ("trainer", "conductor", "rollout"),
        "gradbus.v1.WeightStoreService/Attest": ("rollout",),
        "gradbus.v1.WeightStoreService/OpenBroadcast": ("trainer",),
        "gradbus.v1.WeightStoreService/JoinBroadcast": ("rollout",),
        "gradbus.v1.WeightStoreService/ListVersions": ("gateway",),
        "gradbus.v1.WeightStoreService/ListCheckpoints": ("gateway",),
        "gradbus.v1.WeightStoreService/DeleteRun": ("conductor",),
    },
    "reward": {"gradbus.v1.RewardService/Score": ("conductor",)},
    "environment": {
        "gradbus.v1.EnvironmentService/Describe": ("rollout",),
        "gradbus.v1.EnvironmentService/Open": ("rollout",),
        "gradbus.v1.EnvironmentService/Step": ("rollout",),
        "gradbus.v1.EnvironmentService/Close": ("rollout",),
        "gradbus.v1.EnvironmentService/KeepAlive": ("rollout",),
    },
    "agent": {
        "gradbus.v1.EnvironmentService/Describe": ("rollout",),
        "gradbus.v1.EnvironmentService/Open": ("rollout",),
        "gradbus.v1.EnvironmentService/Step": ("rollout",),
        "gradbus.v1.EnvironmentService/Close": ("rollout",),
        "gradbus.v1.EnvironmentService/KeepAlive": ("rollout",),
    },
    "reference": {"gradbus.v1.ReferenceService/LogProbs": ("conductor",), "gradbus.v1.RewardService/Score": ("conductor",)},
}

ROLE_NAMES: Final = (
    "supervisor",
    "gateway",
    "conductor",
    "rollout",
    "trainer",
    "reward",
    "environment",
    "agent",
    "reference",
    "weight_store",
)
"""Every role, in the order in which configurations list them. A role that is not here may not be in a row above."""


def host_name(role: str) -> str:
    """The host name of a role's server, which its certificate carries."""
    return role.replace("_", "-")


def callers_of(method: str) -> Roles:
    """Roles that may call `package.Service/Method`; empty for a method that is not in the table."""
    return next((methods[method] for methods in METHODS.values() if method in methods), ())


def in_role_order(*found: Roles) -> Roles:
    """The roles among `found`, each once, in the order of `ROLE_NAMES`. Raises ValueError for a role that is not among the names."""
    every = {role for roles in found for role in roles}
    if unknown := sorted(every.difference(ROLE_NAMES)):
        raise ValueError(f"the table of permissions has unknown roles ({', '.join(unknown)}); add them to ROLE_NAMES in {__name__}")
    return tuple(role for role in ROLE_NAMES if role in every)


NATS_USERS: Final = in_role_order(
    *(row.writers for row in KEYS), *READERS.values(), *(hint.senders + hint.hearers for hint in HINTS),
    *(stream.writers + stream.readers for stream in (PROMPTS, EVENTS)),
)  # fmt: skip
BUFFER_USERS: Final = in_role_order(tuple(BUFFER))
SERVERS: Final = tuple(METHODS)
CALLERS: Final[Mapping[str, Roles]] = {server: in_role_order(*methods.values()) for server, methods in METHODS.items()}
"""gRPC server to the roles that have a method there."""
