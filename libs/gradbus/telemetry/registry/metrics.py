"""Every metric that services emit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Instrument = Literal["counter", "up_down_counter", "gauge", "histogram"]
"""Histograms record each value; the others are read when metrics are exported, so that an update costs next to nothing."""

EVERY: Final = ("gateway", "conductor", "rollout", "reward", "reference", "trainer", "weight_store")
_RUN: Final = "gradbus.run.id"
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Only `gradbus.run.id` has unbounded values, and its series are exported only while the run is active."""

    name: str
    instrument: Instrument
    unit: str
    services: tuple[str, ...]
    """The services that emit it."""
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    zeros: tuple[Mapping[str, str], ...] = field(default=(), hash=False)
    """Attributes whose series start at 0, so that their first increase is visible to `rate`."""


def _each(name: str, *values: str) -> tuple[Mapping[str, str], ...]:
    return tuple({name: value} for value in values)


_PROCESS: Final = (
    Metric("process.cpu.time", "counter", "s", EVERY, "Processor time used by the process.", ("cpu.mode",)),
    Metric("process.memory.usage", "up_down_counter", "By", EVERY, "Physical memory of the process."),
    Metric("process.uptime", "gauge", "s", EVERY, "Time since the process started; it falls at a restart."),
    Metric("gradbus.process.ready", "gauge", "{process}", EVERY, "1 while the process is ready, as on /readyz."),
    Metric(
        "gradbus.leases.held",
        "up_down_counter",
        "{lease}",
        ("conductor", "trainer"),
        "Runs whose lease the process holds.",
        ("gradbus.lease",),
    ),
    Metric(
        "gradbus.leases.lost",
        "counter",
        "{lease}",
        ("conductor", "trainer"),
        "Leases lost: NATS was unreachable for too long, or another process took over the run.",
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
    Metric("gradbus.wire.items", "counter", "{item}", EVERY, "Messages, groups or objects moved by successful operations.", _WIRE),
    Metric("gradbus.wire.payload", "counter", "By", EVERY, "Bytes sent or received.", _WIRE),
    Metric(
        "gradbus.wire.duration",
        "histogram",
        "s",
        ("gateway", "conductor", "rollout", "trainer", "weight_store"),
        "Duration of an operation on object storage, or of a broadcast.",
        ("gradbus.wire", "gradbus.operation", "error.type"),
        _LONG_SECONDS,
    ),
    Metric(
        "messaging.client.operation.duration",
        "histogram",
        "s",
        _ON_NATS,
        "Duration of a NATS operation; for a fetch including its wait for tasks.",
        _MESSAGING,
        _SECONDS,
    ),
    Metric(
        "messaging.process.duration",
        "histogram",
        "s",
        ("conductor", "rollout"),
        "Duration of a message handler.",
        _PROCESSED,
        _SECONDS,
    ),
    Metric(
        "db.client.operation.duration",
        "histogram",
        "s",
        ("gateway", "conductor", "rollout", "trainer"),
        "Duration of an operation on the buffer; for a read including its wait for entries.",
        _DATABASE,
        _SECONDS,
    ),
    Metric(
        "rpc.client.call.duration",
        "histogram",
        "s",
        ("gateway", "conductor", "rollout", "trainer"),
        "Duration of a gRPC call, measured by the client.",
        _RPC,
        _SECONDS,
    ),
    Metric(
        "rpc.server.call.duration",
        "histogram",
        "s",
        ("reward", "reference", "weight_store"),
        "Duration of a gRPC call, measured by the server.",
        _RPC,
        _SECONDS,
    ),
)

_TRAINING: Final = (
    Metric("gradbus.step.duration", "histogram", "s", ("trainer",), "Compute time of a step: training and export.", (), _LONG_SECONDS),
    Metric(
        "gradbus.run.time",
        "counter",
        "s",
        ("trainer", "rollout", "conductor"),
        "Time by phase. A trainer waits, trains or publishes; generation, scoring and reference run in parallel.",
        (_RUN, "gradbus.phase"),
    ),
    Metric("gradbus.trained.steps", "counter", "{step}", ("trainer",), "Steps trained.", (_RUN,)),
    Metric("gradbus.trained.tokens", "counter", "{token}", ("trainer",), "Trainable tokens of all steps.", (_RUN,)),
    Metric(
        "gradbus.reward.mean",
        "gauge",
        "{reward}",
        ("trainer",),
        "Mean reward of the step's scored samples, and of each reward component.",
        (_RUN, "gradbus.reward.part"),
    ),
    Metric(
        "gradbus.reward.std",
        "gauge",
        "{reward}",
        ("trainer",),
        "Standard deviation of the reward over the step's scored samples, and of each reward component.",
        (_RUN, "gradbus.reward.part"),
    ),
    Metric(
        "gradbus.policy.kl", "gauge", "{nat}", ("trainer",), "KL divergence from the base model, k3 estimate, mean over tokens.", (_RUN,)
    ),
    Metric("gradbus.policy.entropy", "gauge", "{nat}", ("trainer",), "Entropy of the policy, mean over tokens.", (_RUN,)),
    Metric("gradbus.policy.loss", "gauge", "{loss}", ("trainer",), "The step's loss.", (_RUN,)),
    Metric("gradbus.policy.grad_norm", "gauge", "{norm}", ("trainer",), "Norm of the gradient before clipping.", (_RUN,)),
    Metric("gradbus.policy.learning_rate", "gauge", "{rate}", ("trainer",), "Learning rate of the step.", (_RUN,)),
    Metric(
        "gradbus.policy.clip_fraction",
        "gauge",
        "{share}",
        ("trainer",),
        "Fraction of the trained tokens whose ratio is below (low) or above (high) the clip range.",
        (_RUN, "gradbus.side"),
    ),
    Metric(
        "gradbus.policy.ratio",
        "gauge",
        "{ratio}",
        ("trainer",),
        "Importance ratio between the trained policy and the sampling policy.",
        (_RUN, "gradbus.statistic"),
    ),
    Metric(
        "gradbus.policy.logprob_difference",
        "gauge",
        "{nat}",
        ("trainer",),
        "Mean absolute difference of log-probabilities between trainer and rollout.",
        (_RUN,),
    ),
    Metric(
        "gradbus.response.length",
        "gauge",
        "{token}",
        ("trainer",),
        "Response length of the step.",
        (_RUN, "gradbus.statistic"),
    ),
    Metric("gradbus.response.truncated", "gauge", "{share}", ("trainer",), "Fraction of responses truncated at max_new_tokens.", (_RUN,)),
    Metric(
        "gradbus.samples.length",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples with at most `le` response tokens: cumulative histogram buckets.",
        (_RUN, "le"),
        (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    ),
    Metric(
        "gradbus.samples.staleness",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples with a staleness of at most `le` versions when trained: cumulative histogram buckets.",
        (_RUN, "le"),
        (0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
    ),
    Metric(
        "gradbus.samples.masked",
        "counter",
        "{sample}",
        ("trainer",),
        'Masked samples of trained groups: not scorable, or cut off in a run with `truncated = "mask"`.',
        (_RUN,),
    ),
    Metric(
        "gradbus.groups",
        "counter",
        "{group}",
        ("trainer",),
        "Groups consumed from the log, by verdict: trained, filtered (no learning signal) or dropped (too stale).",
        (_RUN, "gradbus.verdict"),
    ),
    Metric(
        "gradbus.groups.samples",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples of the groups consumed from the log, by verdict.",
        (_RUN, "gradbus.verdict"),
    ),
    Metric(
        "gradbus.groups.tokens",
        "counter",
        "{token}",
        ("trainer",),
        "Response tokens of the groups consumed from the log, by verdict; divided by samples, their mean length.",
        (_RUN, "gradbus.verdict"),
    ),
)

_SCHEDULING: Final = (
    Metric(
        "gradbus.run.state",
        "gauge",
        "{run}",
        ("conductor",),
        "1 for the current state of a run, 0 for earlier states.",
        (_RUN, "gradbus.state"),
    ),
    Metric("gradbus.run.step", "gauge", "{step}", ("conductor",), "Published steps of each run that a conductor drives.", (_RUN,)),
    Metric("gradbus.run.steps", "gauge", "{step}", ("conductor",), "Steps that the spec asks for.", (_RUN,)),
    Metric("gradbus.run.time_since_step", "gauge", "s", ("conductor",), "Time since the run's last step; 0 while no step is due.", (_RUN,)),
    Metric("gradbus.evaluation.score", "gauge", "{score}", ("conductor",), "Score of the newest evaluation.", (_RUN,)),
    Metric(
        "gradbus.groups.waiting",
        "up_down_counter",
        "{group}",
        ("conductor", "trainer"),
        "Outstanding groups by stage: sampling, judging, admission or log.",
        (_RUN, "gradbus.stage"),
    ),
    Metric(
        "gradbus.groups.unscored",
        "up_down_counter",
        "{group}",
        ("conductor",),
        "Groups whose last scoring attempt failed; scoring is retried.",
        (_RUN,),
    ),
    Metric(
        "gradbus.groups.dispatched",
        "counter",
        "{group}",
        ("conductor",),
        "Groups dispatched to workers: first, or again after a worker or its answer was lost.",
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
        "Duration of a task (several groups) in the engine.",
        ("gen_ai.operation.name", "gen_ai.provider.name", "error.type"),
        _LONG_SECONDS,
    ),
    Metric(
        "gen_ai.client.token.usage",
        "histogram",
        "{token}",
        ("rollout",),
        "Tokens of a task: prompts as input, responses as output.",
        ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.token.type"),
        _TOKENS,
    ),
    Metric(
        "gradbus.groups.abandoned",
        "counter",
        "{group}",
        ("rollout",),
        "Groups that a worker abandoned because their version was no longer available; they are dispatched again.",
        zeros=({},),
    ),
)

_WEIGHTS: Final = (
    Metric(
        "gradbus.weights.version",
        "gauge",
        "{version}",
        ("trainer", "rollout"),
        "The newest policy version that a trainer has handed to its publisher, or that a worker's engine has loaded.",
        (_RUN,),
    ),
    Metric(
        "gradbus.weights.moved",
        "counter",
        "By",
        ("trainer", "rollout"),
        "Bytes of weights written to or read from object storage.",
        ("gradbus.weights.transport", "gradbus.weights.direction"),
    ),
    Metric(
        "gradbus.weights.activation.duration",
        "histogram",
        "s",
        ("rollout",),
        "Time from a version's announcement to the proof that an engine has loaded it, including the wait for a task that needs it.",
        (),
        _LONG_SECONDS,
    ),
    Metric(
        "gradbus.weights.fallbacks",
        "counter",
        "{shard}",
        ("rollout",),
        "Shards that one transport failed to deliver, so that another was used.",
        ("gradbus.weights.transport",),
        zeros=_each("gradbus.weights.transport", "delta"),
    ),
    Metric(
        "gradbus.weights.troubles",
        "counter",
        "{event}",
        ("trainer", "weight_store"),
        "Versions without a change, and workers with old or wrong weights.",
        ("gradbus.weights.trouble",),
        zeros=_each("gradbus.weights.trouble", "unchanged", "lagging", "digest_differs"),
    ),
    Metric(
        "gradbus.broadcasts",
        "counter",
        "{broadcast}",
        ("trainer",),
        "Broadcasts by outcome: the version reached all workers, some or none.",
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
        "Duration of a scorer's call, which covers all waiting groups.",
        ("gradbus.scorer",),
        _SECONDS,
    ),
    Metric(
        "gradbus.reward.samples",
        "counter",
        "{sample}",
        ("reward",),
        "Samples sent to a scorer, by answer: ok, invalid (cannot be scored) or error (the scorer failed).",
        ("gradbus.scorer", "gradbus.reward.status"),
    ),
    Metric(
        "gradbus.reward.failures",
        "counter",
        "{sample}",
        ("reward",),
        "Samples answered with an error, by cause.",
        ("gradbus.reward.cause",),
        zeros=_each("gradbus.reward.cause", "timeout", "unreachable", "refused", "malformed", "missing", "scorer"),
    ),
    Metric(
        "gradbus.reward.calls",
        "up_down_counter",
        "{call}",
        ("reward",),
        "Calls running in a scorer or waiting for it.",
        ("gradbus.scorer",),
    ),
)

_HTTP: Final = ("http.request.method", "http.response.status_code", "http.route", "url.scheme", "error.type")
_ADDRESSED: Final = ("server.address", "server.port", "network.protocol.name", "network.protocol.version")

_REST: Final = (  # emitted by the web framework's instrumentation
    Metric("http.server.request.duration", "histogram", "s", ("gateway",), "Duration of a REST request.", (*_HTTP, *_ADDRESSED)),
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
