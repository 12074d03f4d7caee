"""Every span that services emit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_RUN = ("gradbus.run.id",)
_GROUP = (*_RUN, "gradbus.group.index")
_STEP = (*_RUN, "gradbus.step", "gradbus.term")
_RPC = ("rpc.system.name", "rpc.method")
_MESSAGE = ("messaging.message.id", "gradbus.policy.version")
_SEND = ("messaging.system", "messaging.operation.type", "messaging.operation.name", "messaging.destination.template")
_TEXTS = ("input.value", "output.value")
"""Only with GRADBUS_TRACE_TEXTS; names of OpenInference."""
_SAMPLED = ("gen_ai.operation.name", "gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons")
_PEER = ("server.address", "server.port")
_REWARDS = ("gradbus.rewards", "gradbus.reward.part.*")
_AGENT = (*_RUN, "gradbus.episode.id", "gradbus.attempt")
_CALLERS = ("conductor", "rollout", "trainer")
_SERVERS = ("reward", "environment", "agent", "reference", "weight_store")
OpenInferenceKind = Literal["", "CHAIN", "LLM", "AGENT", "EVALUATOR"]


@dataclass(frozen=True, slots=True)
class SpanEntry:
    """Spans of one name."""

    name: str
    """`*` matches anything."""
    services: tuple[str, ...]
    """The services that emit it."""
    attributes: tuple[str, ...]
    """All attributes that it may carry; `*` matches anything."""
    meaning: str
    kind: OpenInferenceKind = ""
    """`openinference.span.kind`, by which Phoenix, Langfuse and others show spans of language models; empty: none."""


SPANS = (
    # A group's trace.
    SpanEntry(
        "group",
        ("conductor",),
        (*_GROUP, "gradbus.evaluation.version", "gradbus.verdict", "gradbus.reason"),
        "A group from its first dispatch to the log, or a held-out row from its dispatch to its result. First span of the trace.",
        "CHAIN",
    ),
    SpanEntry(
        "send prompts.*",
        ("conductor",),
        (*_SEND, *_MESSAGE, "messaging.batch.message_count"),
        "A task with the group is published to the queue; one span for each dispatch.",
    ),
    SpanEntry(
        "generate",
        ("rollout",),
        (*_GROUP, *_MESSAGE),
        "A worker's part: from the arrival of the task to the write to the buffer.",
        "CHAIN",
    ),
    SpanEntry("set_aside", ("rollout",), (), "The task waits in the worker for its policy version or for other tasks."),
    SpanEntry("queue", ("rollout",), (), "The group waits in the engine."),
    SpanEntry("prefill", ("rollout",), (), "Prefill of the prompt, batched with others, for all samples of the group."),
    SpanEntry(
        "sample",
        ("rollout",),
        ("gradbus.sample.n", "gradbus.queue.seconds", "gradbus.span.versions", "gradbus.span.starts", *_SAMPLED, *_TEXTS),
        "Decoding of one sample. Attributes give its policy versions and the token at which each begins.",
        "LLM",
    ),
    SpanEntry(
        "turn",
        ("rollout",),
        (*_RUN, "gradbus.sample.n", "gradbus.turn", "gradbus.environment.seconds", *_SAMPLED, *_TEXTS),
        "A turn of an episode: the policy draws it, and its environment or agent answers for so many seconds.",
        "LLM",
    ),
    SpanEntry("wait_for_agent", ("agent",), _AGENT, "An attempt of an episode is offered, and no agent has it yet."),
    SpanEntry(
        "agent_request",
        ("agent",),
        (*_AGENT, "gradbus.turn", "gradbus.agent.outcome"),
        "A request of an agent, from its arrival to the turn that the policy drew for it.",
    ),
    SpanEntry(
        "agent_episode",
        ("agent",),
        (*_AGENT, "gradbus.agent.turns", "gradbus.reason"),
        "An attempt of an episode, from the moment at which an agent has it to its end, and why it ended.",
        "AGENT",
    ),
    SpanEntry("deliver", ("rollout",), (), "The task's groups are serialized and written to the buffer."),
    SpanEntry("score", ("conductor",), _REWARDS, "One attempt to score the group; an error if a sample was not scored.", "EVALUATOR"),
    SpanEntry("grade", ("reward",), ("gradbus.grader.part",), "One part of the grader, for all groups of the call.", "EVALUATOR"),
    SpanEntry("reference", ("conductor",), (), "Log-probabilities of the group under the reference model."),
    SpanEntry("admit", ("conductor",), ("gradbus.verdict",), "The group is appended to the log."),
    SpanEntry("wait_in_log", ("trainer",), _STEP, "Wait in the log for the step that consumes the group; links to the step."),
    SpanEntry("train", ("trainer",), _STEP, "The step that trains the group; links to the step."),
    # A call's trace: a call carries many groups and links to them.
    SpanEntry("score_call", ("conductor",), _RUN, "A call of the scorer's service; links to the groups' `score`. First span of its trace."),
    SpanEntry(
        "reference_call",
        ("conductor",),
        _RUN,
        "A call of the reference service; links to the groups' `reference`. First span of its trace.",
    ),
    SpanEntry(
        "POST",
        ("reward", "environment", "agent"),
        ("http.request.method", *_PEER),
        "A call of the user's own scorer or environment over HTTP.",
    ),
    # A step's trace.
    SpanEntry(
        "train_step",
        ("trainer",),
        (*_STEP, "gradbus.groups", "gradbus.groups.linked"),
        "A step, from the wait for its groups until its version is handed to the publisher. First span of the trace.",
    ),
    SpanEntry(
        "trainer_start", ("trainer",), _STEP, "A trainer starts or restarts and publishes its current version. First span of its trace."
    ),
    SpanEntry("read", ("trainer",), (), "The wait for the step's groups; links to their traces, at most 128 a span."),
    SpanEntry("forward", ("trainer",), (), "Forward pass of a micro-batch, with its loss."),
    SpanEntry("backward", ("trainer",), (), "Backward pass of a micro-batch."),
    SpanEntry("optimise", ("trainer",), (), "Gradient clipping and optimizer step."),
    SpanEntry("export", ("trainer",), (), "The version is written as a file."),
    SpanEntry(
        "publish_version",
        ("trainer",),
        (*_RUN, "gradbus.policy.version", "gradbus.bytes"),
        "The version is stored and published while the next step is computed.",
    ),
    SpanEntry(
        "checkpoint", ("trainer",), (*_RUN, "gradbus.step"), "A checkpoint is stored and committed while the next steps are computed."
    ),
    SpanEntry(
        "load_weights",
        ("rollout",),
        (*_RUN, "gradbus.policy.version"),
        "A worker loads the version into its engine and proves its digest.",
    ),
    SpanEntry("fetch_shards", ("rollout",), (), "The version's files are fetched to the worker's machine."),
    SpanEntry("load_engine", ("rollout",), (), "The engine loads the files and computes its checksum."),
    # Calls, as children of the spans that make them.
    SpanEntry("gradbus.v1.*/*", (*_CALLERS, *_SERVERS), (*_RPC, *_PEER), "A gRPC call, recorded by the client and by the server."),
)
