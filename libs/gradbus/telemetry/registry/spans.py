"""Every span that services make."""

from __future__ import annotations

from dataclasses import dataclass

_RUN = ("gradbus.run.id",)
_GROUP = (*_RUN, "gradbus.group.index")
_STEP = (*_RUN, "gradbus.step", "gradbus.term")
_RPC = ("rpc.system.name", "rpc.method")
_WIRE = ("gradbus.wire", "messaging.system", "messaging.operation.type", "messaging.destination.template")
_MESSAGE = ("messaging.message.id", "gradbus.policy.version")
_SEND = ("messaging.system", "messaging.operation.type", "messaging.operation.name", "messaging.destination.template")
_SAMPLED = ("gen_ai.operation.name", "gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons")
_PEER = ("server.address", "server.port")
_REWARDS = ("gradbus.rewards", "gradbus.reward.part.*")
_CALLERS = ("conductor", "rollout", "trainer")
_SERVERS = ("reward", "reference", "weight_store")


@dataclass(frozen=True, slots=True)
class SpanEntry:
    """Spans of one name."""

    name: str
    """`*` stands for anything."""
    services: tuple[str, ...]
    """Who makes them."""
    attributes: tuple[str, ...]
    """All that one may carry; `*` stands for anything."""
    meaning: str


SPANS = (
    # A group's trace.
    SpanEntry(
        "group",
        ("conductor",),
        (*_GROUP, "gradbus.evaluation.version", "gradbus.verdict", "gradbus.reason"),
        "A group, or a held-out row, from its first dispatch to its end in the log, or to its result. Begins the trace.",
    ),
    SpanEntry(
        "send prompts.*",
        ("conductor",),
        (*_SEND, *_MESSAGE, "messaging.batch.message_count"),
        "A task that names the group is put on the queue; one more each time it is dispatched again.",
    ),
    SpanEntry("generate", ("rollout",), (*_GROUP, *_MESSAGE), "The group on a worker: from the task's arrival to the buffer."),
    SpanEntry("set_aside", ("rollout",), (), "The task waits in the worker: for its version, or for other tasks."),
    SpanEntry("queue", ("rollout",), (), "The group waits in the engine."),
    SpanEntry("prefill", ("rollout",), (), "The prompt is computed, together with others, for all samples of the group."),
    SpanEntry(
        "sample",
        ("rollout",),
        ("gradbus.sample.n", "gradbus.queue.seconds", "gradbus.span.versions", "gradbus.span.starts", *_SAMPLED),
        "One sample is decoded. Its policy versions, and the token each begins at, are attributes.",
    ),
    SpanEntry("deliver", ("rollout",), (), "The task's groups are turned into messages and put into the buffer."),
    SpanEntry("score", ("conductor",), _REWARDS, "One attempt to have the group judged; an error if some sample was not."),
    SpanEntry("grade", ("reward",), ("gradbus.grader.part",), "One part of the grader, for all groups of the call."),
    SpanEntry("reference", ("conductor",), (), "The frozen model's log-probabilities of the group."),
    SpanEntry("admit", ("conductor",), ("gradbus.verdict",), "The group is appended to the log."),
    SpanEntry("wait_in_log", ("trainer",), _STEP, "From the log to the step that consumes it; links to the step."),
    SpanEntry("train", ("trainer",), _STEP, "The step trains it; links to the step."),
    # A call's trace: it carries many groups, and links to them.
    SpanEntry("score_call", ("conductor",), _RUN, "A call of the reward service; links to the groups' `score`. Begins a trace."),
    SpanEntry("reference_call", ("conductor",), _RUN, "A call of the reference service; links to the groups' `reference`. Begins a trace."),
    SpanEntry("POST", ("reward",), ("http.request.method", *_PEER), "A call of the user's own scorer over HTTP."),
    # A step's trace.
    SpanEntry(
        "train_step",
        ("trainer",),
        (*_STEP, "gradbus.groups", "gradbus.groups.linked"),
        "A step, from the wait for its groups to the hand-over of its version. Begins the trace.",
    ),
    SpanEntry(
        "trainer_start", ("trainer",), _STEP, "A trainer begins, or comes back, and publishes the version it stands at. Begins a trace."
    ),
    SpanEntry("read", ("trainer",), (), "The wait for the step's groups; links to their traces, at most 128 a span."),
    SpanEntry("forward", ("trainer",), (), "A micro-batch forward, with its loss."),
    SpanEntry("backward", ("trainer",), (), "A micro-batch backward."),
    SpanEntry("optimise", ("trainer",), (), "The gradient is clipped and the weights move."),
    SpanEntry("export", ("trainer",), (), "The version is written as a file."),
    SpanEntry(
        "publish_version",
        ("trainer",),
        (*_RUN, "gradbus.policy.version", "gradbus.bytes"),
        "The version is stored and announced, while the next step is computed.",
    ),
    SpanEntry(
        "checkpoint", ("trainer",), (*_RUN, "gradbus.step"), "A checkpoint is stored and committed, while the next steps are computed."
    ),
    SpanEntry(
        "load_weights",
        ("rollout",),
        (*_RUN, "gradbus.policy.version"),
        "A worker brings the version into its engine, and proves what it holds.",
    ),
    SpanEntry("fetch_shards", ("rollout",), (), "The version's files come to the worker's machine."),
    SpanEntry("load_engine", ("rollout",), (), "The engine takes them and computes its checksum."),
    # The wires, below whatever uses them.
    SpanEntry("gradbus.v1.*/*", (*_CALLERS, *_SERVERS), (*_RPC, *_PEER), "A gRPC call, seen from the client and from the server."),
    SpanEntry("process *", ("conductor", "rollout"), _WIRE, "A core message is handled."),
)
