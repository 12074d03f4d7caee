"""Every metric that services emit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Instrument = Literal["counter", "up_down_counter", "gauge", "histogram"]
"""Histograms record; the others are read when metrics are exported, so that adding to one costs next to nothing."""

EVERY: Final = ("gateway", "conductor", "rollout", "reward", "reference", "trainer", "weight_store")
_RUN: Final = "gradbus.run.id"
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Attributes with a value for each run, group or sample are `gradbus.run.id` alone, and that only while it is worked on."""

    name: str
    instrument: Instrument
    unit: str
    services: tuple[str, ...]
    """Which services emit it."""
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    zeros: tuple[Mapping[str, str], ...] = field(default=(), hash=False)
    """Attributes under which it begins at 0, so that its first increase is seen as one."""


def _each(name: str, *values: str) -> tuple[Mapping[str, str], ...]:
    return tuple({name: value} for value in values)


_PROCESS: Final = (
    Metric("process.cpu.time", "counter", "s", EVERY, "Processor time that the process has used.", ("cpu.mode",)),
    Metric("process.memory.usage", "up_down_counter", "By", EVERY, "Physical memory that the process holds."),
    Metric("process.uptime", "gauge", "s", EVERY, "Time since the process started; it falls at a restart."),
    Metric("gradbus.process.ready", "gauge", "{process}", EVERY, "1 while the process can do its work, as /readyz says."),
    Metric(
        "gradbus.leases.held", "up_down_counter", "{lease}", ("conductor", "trainer"), "Runs that the process holds.", ("gradbus.lease",)
    ),
    Metric(
        "gradbus.leases.lost",
        "counter",
        "{lease}",
        ("conductor", "trainer"),
        "Leases that ended while they were held: NATS was away too long, or another process has the run.",
        zeros=({},),
    ),
)

_PROCESSED: Final = ("messaging.system", "messaging.operation.type", "messaging.destination.template", "error.type")
_MESSAGING: Final = (*_PROCESSED, "gradbus.operation")
_DATABASE: Final = ("db.system.name", "db.operation.name", "error.type")
_RPC: Final = ("rpc.system.name", "rpc.method", "error.type")
_WIRE: Final = tuple(dict.fromkeys(("gradbus.wire", "gradbus.side", *_MESSAGING, *_DATABASE, *_RPC)))
_ON_NATS: Final = tuple(service for service in EVERY if service != "reward")

_WIRES: Final = (
    Metric("gradbus.wire.items", "counter", "{item}", EVERY, "Messages, groups or objects moved by operations that succeeded.", _WIRE),
    Metric("gradbus.wire.payload", "counter", "By", EVERY, "Bytes put on or taken off a wire.", _WIRE),
    Metric(
        "gradbus.wire.duration",
        "histogram",
        "s",
        ("gateway", "conductor", "rollout", "trainer", "weight_store"),
        "Time an operation on object storage or a broadcast took.",
        ("gradbus.wire", "gradbus.operation", "error.type"),
        _LONG_SECONDS,
    ),
    Metric(
        "messaging.client.operation.duration",
        "histogram",
        "s",
        _ON_NATS,
        "Time a NATS operation took; a fetch's wait for tasks is in it.",
        _MESSAGING,
        _SECONDS,
    ),
    Metric(
        "messaging.process.duration",
        "histogram",
        "s",
        ("conductor", "rollout"),
        "Time a message's handler took.",
        _PROCESSED,
        _SECONDS,
    ),
    Metric(
        "db.client.operation.duration",
        "histogram",
        "s",
        ("gateway", "conductor", "rollout", "trainer"),
        "Time an operation on the buffer took; a read's wait for news is in it.",
        _DATABASE,
        _SECONDS,
    ),
    Metric(
        "rpc.client.call.duration",
        "histogram",
        "s",
        ("gateway", "conductor", "rollout", "trainer"),
        "Time a gRPC call took, as its caller saw it.",
        _RPC,
        _SECONDS,
    ),
    Metric(
        "rpc.server.call.duration",
        "histogram",
        "s",
        ("reward", "reference", "weight_store"),
        "Time a gRPC call took, as its server saw it.",
        _RPC,
        _SECONDS,
    ),
)

_TRAINING: Final = (
    Metric("gradbus.step.duration", "histogram", "s", ("trainer",), "Time a step computed: training and export.", (), _LONG_SECONDS),
    Metric(
        "gradbus.run.time",
        "counter",
        "s",
        ("trainer", "rollout", "conductor"),
        "Time by what it was spent on. A trainer waits, trains or publishes; generate, score and reference go on beside it.",
        (_RUN, "gradbus.phase"),
    ),
    Metric("gradbus.trained.steps", "counter", "{step}", ("trainer",), "Steps trained.", (_RUN,)),
    Metric("gradbus.trained.tokens", "counter", "{token}", ("trainer",), "Trainable tokens of all steps.", (_RUN,)),
    Metric(
        "gradbus.reward.mean",
        "gauge",
        "{reward}",
        ("trainer",),
        "Mean over the step's judged samples, of the reward and of its parts.",
        (_RUN, "gradbus.reward.part"),
    ),
    Metric(
        "gradbus.reward.std",
        "gauge",
        "{reward}",
        ("trainer",),
        "Standard deviation over the step's judged samples, of the reward and of its parts.",
        (_RUN, "gradbus.reward.part"),
    ),
    Metric("gradbus.policy.kl", "gauge", "{nat}", ("trainer",), "KL to the base model, k3, a token.", (_RUN,)),
    Metric("gradbus.policy.entropy", "gauge", "{nat}", ("trainer",), "Entropy of the policy, a token.", (_RUN,)),
    Metric("gradbus.policy.loss", "gauge", "{loss}", ("trainer",), "The step's loss.", (_RUN,)),
    Metric("gradbus.policy.grad_norm", "gauge", "{norm}", ("trainer",), "Norm of the gradient before clipping.", (_RUN,)),
    Metric("gradbus.policy.learning_rate", "gauge", "{rate}", ("trainer",), "Learning rate of the step.", (_RUN,)),
    Metric(
        "gradbus.policy.clip_fraction",
        "gauge",
        "{share}",
        ("trainer",),
        "Share of the trained tokens whose ratio lies below (low) or above (high) the clip range.",
        (_RUN, "gradbus.side"),
    ),
    Metric(
        "gradbus.policy.ratio",
        "gauge",
        "{ratio}",
        ("trainer",),
        "Importance ratio of the trained policy to the one that sampled.",
        (_RUN, "gradbus.statistic"),
    ),
    Metric(
        "gradbus.policy.logprob_difference",
        "gauge",
        "{nat}",
        ("trainer",),
        "Mean absolute difference of log-probability between trainer and rollout.",
        (_RUN,),
    ),
    Metric(
        "gradbus.response.length",
        "gauge",
        "{token}",
        ("trainer",),
        "Tokens of the step's responses.",
        (_RUN, "gradbus.statistic"),
    ),
    Metric("gradbus.response.truncated", "gauge", "{share}", ("trainer",), "Share of responses cut at max_new_tokens.", (_RUN,)),
    Metric(
        "gradbus.samples.length",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples with at most `le` response tokens: a histogram's cumulative buckets.",
        (_RUN, "le"),
        (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    ),
    Metric(
        "gradbus.samples.staleness",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples at most `le` versions old when they were trained: a histogram's cumulative buckets.",
        (_RUN, "le"),
        (0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
    ),
    Metric("gradbus.samples.masked", "counter", "{sample}", ("trainer",), "Samples that could not be judged.", (_RUN,)),
    Metric(
        "gradbus.groups",
        "counter",
        "{group}",
        ("trainer",),
        "Groups that left the log, by verdict: trained, filtered (nothing to learn) or dropped (too late).",
        (_RUN, "gradbus.verdict"),
    ),
    Metric(
        "gradbus.groups.samples",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples of the groups that left the log, by verdict.",
        (_RUN, "gradbus.verdict"),
    ),
    Metric(
        "gradbus.groups.tokens",
        "counter",
        "{token}",
        ("trainer",),
        "Response tokens of the groups that left the log, by verdict; by samples, their mean length.",
        (_RUN, "gradbus.verdict"),
    ),
)

_SCHEDULING: Final = (
    Metric(
        "gradbus.run.state", "gauge", "{run}", ("conductor",), "1 for the state a run is in, 0 for earlier ones.", (_RUN, "gradbus.state")
    ),
    Metric("gradbus.run.step", "gauge", "{step}", ("conductor",), "Steps published of each run that a conductor drives.", (_RUN,)),
    Metric("gradbus.run.steps", "gauge", "{step}", ("conductor",), "Steps that the run is to make.", (_RUN,)),
    Metric("gradbus.run.time_since_step", "gauge", "s", ("conductor",), "Time since the run last made a step; 0 unless it should.", (_RUN,)),
    Metric("gradbus.evaluation.score", "gauge", "{score}", ("conductor",), "The newest evaluation's metric.", (_RUN,)),
    Metric(
        "gradbus.groups.waiting",
        "up_down_counter",
        "{group}",
        ("conductor", "trainer"),
        "Groups on their way, by where they are: sampling, judging, admission or log.",
        (_RUN, "gradbus.stage"),
    ),
    Metric(
        "gradbus.groups.unscored",
        "up_down_counter",
        "{group}",
        ("conductor",),
        "Groups whose last scoring failed; they are asked for again.",
        (_RUN,),
    ),
    Metric(
        "gradbus.groups.dispatched",
        "counter",
        "{group}",
        ("conductor",),
        "Groups sent to workers: for the first time, or again because a worker or its answer was lost.",
        ("gradbus.dispatch",),
        zeros=_each("gradbus.dispatch", "first", "again"),
    ),
)

_GENERATION: Final = (
    Metric(
        "gen_ai.client.operation.duration",
        "histogram",
        "s",
        ("rollout",),
        "Time the engine took for a task: several groups.",
        ("gen_ai.operation.name", "gen_ai.provider.name", "error.type"),
        _LONG_SECONDS,
    ),
    Metric(
        "gen_ai.client.token.usage",
        "histogram",
        "{token}",
        ("rollout",),
        "Tokens of a task: prompts in, responses out.",
        ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.token.type"),
        _TOKENS,
    ),
    Metric(
        "gradbus.groups.abandoned",
        "counter",
        "{group}",
        ("rollout",),
        "Groups given up by a worker because their version was gone; they are dispatched again.",
        zeros=({},),
    ),
)

_WEIGHTS: Final = (
    Metric(
        "gradbus.weights.version",
        "gauge",
        "{version}",
        ("trainer", "rollout"),
        "The version a trainer has published or a worker's engine holds.",
        (_RUN,),
    ),
    Metric(
        "gradbus.weights.moved",
        "counter",
        "By",
        ("trainer", "rollout"),
        "Bytes of weights put into or taken out of object storage.",
        ("gradbus.weights.transport", "gradbus.weights.direction"),
    ),
    Metric(
        "gradbus.weights.activation.duration",
        "histogram",
        "s",
        ("rollout",),
        "From a version's announcement to the proof that an engine holds it; the wait for a task that wants it is in it.",
        (),
        _LONG_SECONDS,
    ),
    Metric(
        "gradbus.weights.fallbacks",
        "counter",
        "{shard}",
        ("rollout",),
        "Shards that one way failed to bring and another had to.",
        ("gradbus.weights.transport",),
        zeros=_each("gradbus.weights.transport", "broadcast", "delta"),
    ),
    Metric(
        "gradbus.weights.troubles",
        "counter",
        "{event}",
        ("trainer", "weight_store"),
        "Versions that changed nothing, and workers with old or other weights.",
        ("gradbus.weights.trouble",),
        zeros=_each("gradbus.weights.trouble", "unchanged", "behind", "digest_differs"),
    ),
    Metric(
        "gradbus.broadcasts",
        "counter",
        "{broadcast}",
        ("trainer",),
        "Broadcasts of a version, by outcome: it reached all workers, some or none.",
        ("gradbus.outcome",),
        zeros=_each("gradbus.outcome", "all", "some", "none"),
    ),
)

_REWARDS: Final = (
    Metric(
        "gradbus.reward.duration",
        "histogram",
        "s",
        ("reward",),
        "Time a scorer took for a call: every group that waited.",
        ("gradbus.scorer",),
        _SECONDS,
    ),
    Metric(
        "gradbus.reward.samples",
        "counter",
        "{sample}",
        ("reward",),
        "Samples asked about, by the answer: ok, invalid (cannot be judged) or error (the scorer failed).",
        ("gradbus.scorer", "gradbus.reward.status"),
    ),
    Metric(
        "gradbus.reward.failures",
        "counter",
        "{sample}",
        ("reward",),
        "Samples answered with an error, by its cause.",
        ("gradbus.reward.cause",),
        zeros=_each("gradbus.reward.cause", "timeout", "unreachable", "refused", "malformed", "missing", "scorer"),
    ),
    Metric(
        "gradbus.reward.calls", "up_down_counter", "{call}", ("reward",), "Calls in a scorer or waiting for a turn.", ("gradbus.scorer",)
    ),
)

_HTTP: Final = ("http.request.method", "http.response.status_code", "http.route", "url.scheme", "error.type")
_ADDRESSED: Final = ("server.address", "server.port", "network.protocol.name", "network.protocol.version")

_REST: Final = (  # the web framework's own
    Metric("http.server.request.duration", "histogram", "s", ("gateway",), "Time a REST request took.", (*_HTTP, *_ADDRESSED)),
    Metric(
        "http.server.active_requests", "up_down_counter", "{request}", ("gateway",), "REST requests in progress.", (*_HTTP, *_ADDRESSED)
    ),
)

METRICS: Final[tuple[Metric, ...]] = (
    *_PROCESS,
    *_WIRES,
    *_TRAINING,
    *_SCHEDULING,
    *_GENERATION,
    *_WEIGHTS,
    *_REWARDS,
    *_REST,
)
METRIC: Final[Mapping[str, Metric]] = {metric.name: metric for metric in METRICS}
