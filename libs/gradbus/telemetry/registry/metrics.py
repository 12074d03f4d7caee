"""Every metric that services emit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gradbus.telemetry.registry.gateway import GATEWAY
from gradbus.telemetry.registry.metric import EVERY, LONG_SECONDS, RUN, Metric, each
from gradbus.telemetry.registry.training import TRAINING

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)

_PROCESS: Final = (
    Metric("process.cpu.time", "counter", "s", EVERY, "Processor time used by the process.", ("cpu.mode",)),
    Metric("process.memory.usage", "up_down_counter", "By", EVERY, "Physical memory of the process."),
    Metric("process.uptime", "gauge", "s", EVERY, "Time since the process started; it falls at a restart."),
    Metric("gradbus.process.ready", "gauge", "{process}", EVERY, "1 while the process is ready, as on /readyz."),
    Metric(
        "gradbus.process.certificate.remaining",
        "gauge",
        "s",
        EVERY,
        "Time until the certificate of the process expires; not exported without one.",
    ),
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
_ON_NATS: Final = tuple(service for service in EVERY if service not in {"reward", "environment", "agent"})

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
        LONG_SECONDS,
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
        ("conductor",),
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
        ("reward", "environment", "agent", "reference", "weight_store"),
        "Duration of a gRPC call, measured by the server.",
        _RPC,
        _SECONDS,
    ),
)

_SCHEDULING: Final = (
    Metric(
        "gradbus.run.state",
        "gauge",
        "{run}",
        ("conductor",),
        "1 for the current state of a run, 0 for earlier states.",
        (RUN, "gradbus.state"),
    ),
    Metric("gradbus.run.step", "gauge", "{step}", ("conductor",), "Published steps of each run that a conductor drives.", (RUN,)),
    Metric("gradbus.run.steps", "gauge", "{step}", ("conductor",), "Steps that the spec asks for.", (RUN,)),
    Metric("gradbus.run.time_since_step", "gauge", "s", ("conductor",), "Time since the run's last step; 0 while no step is due.", (RUN,)),
    Metric("gradbus.evaluation.score", "gauge", "{score}", ("conductor",), "Score of the newest evaluation; accuracy of pairs.", (RUN,)),
    Metric("gradbus.evaluation.loss", "gauge", "{loss}", ("conductor",), "Loss of the newest evaluation on given responses.", (RUN,)),
    Metric(
        "gradbus.groups.waiting",
        "up_down_counter",
        "{group}",
        ("conductor", "trainer"),
        "Outstanding groups by stage: sampling, judging, admission or log.",
        (RUN, "gradbus.stage"),
    ),
    Metric(
        "gradbus.groups.unscored",
        "up_down_counter",
        "{group}",
        ("conductor",),
        "Groups whose last scoring attempt failed; scoring is retried.",
        (RUN,),
    ),
    Metric(
        "gradbus.groups.dispatched",
        "counter",
        "{group}",
        ("conductor",),
        "Groups dispatched to workers: first, or again after a worker or its answer was lost.",
        ("gradbus.dispatch",),
        zeros=each("gradbus.dispatch", "first", "again"),
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
        LONG_SECONDS,
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

_EPISODES: Final = (
    Metric("gradbus.episode.turns", "counter", "{turn}", ("rollout",), "Turns that the policy drew in episodes.", zeros=({},)),
    Metric(
        "gradbus.episode.forks",
        "counter",
        "{sequence}",
        ("rollout",),
        "Sequences of tokens beyond the first one of an episode: its agent did not go on with one conversation.",
        zeros=({},),
    ),
    Metric(
        "gradbus.episode.tokens",
        "counter",
        "{token}",
        ("rollout",),
        "Tokens of episodes after their prompts, by author: the policy, tools, users, or the chat template (frame, close).",
        ("gradbus.author",),
        zeros=each("gradbus.author", "policy", "tool", "user", "frame", "close"),
    ),
    Metric(
        "gradbus.journal.entries",
        "counter",
        "{entry}",
        ("rollout",),
        "Entries of episodes' journals by use: written, or read by the worker that goes on with an episode of another one.",
        ("gradbus.journal.use",),
        zeros=each("gradbus.journal.use", "written", "read"),
    ),
)

_WEIGHTS: Final = (
    Metric(
        "gradbus.weights.version",
        "gauge",
        "{version}",
        ("trainer", "rollout"),
        "The newest policy version that a trainer has handed to its publisher, or that a worker's engine has loaded.",
        (RUN,),
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
        "Time from a version's publication to the proof that an engine has loaded it, including the wait for a task that needs it.",
        (),
        LONG_SECONDS,
    ),
    Metric(
        "gradbus.weights.fallbacks",
        "counter",
        "{shard}",
        ("rollout",),
        "Shards that one transport failed to deliver, so that another was used.",
        ("gradbus.weights.transport",),
        zeros=each("gradbus.weights.transport", "delta"),
    ),
    Metric(
        "gradbus.weights.troubles",
        "counter",
        "{event}",
        ("trainer", "weight_store"),
        "Versions without a change, and workers with old or wrong weights.",
        ("gradbus.weights.trouble",),
        zeros=each("gradbus.weights.trouble", "unchanged", "lagging", "digest_differs"),
    ),
    Metric(
        "gradbus.broadcasts",
        "counter",
        "{broadcast}",
        ("trainer",),
        "Broadcasts by outcome: the version reached all workers, some or none.",
        ("gradbus.outcome",),
        zeros=each("gradbus.outcome", "all", "some", "none"),
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
        ("reward", "reference"),
        "Samples sent to a scorer, by answer: ok, invalid (cannot be scored) or error (the scorer failed).",
        ("gradbus.scorer", "gradbus.reward.status"),
    ),
    Metric(
        "gradbus.reward.kept",
        "counter",
        "{sample}",
        ("reward",),
        "Samples that a scorer with `cache` was not asked about, because an equal one has its answer.",
    ),
    Metric(
        "gradbus.reward.failures",
        "counter",
        "{sample}",
        ("reward",),
        "Samples answered with an error, by cause.",
        ("gradbus.reward.cause",),
        zeros=each("gradbus.reward.cause", "timeout", "unreachable", "refused", "grader", "malformed", "missing", "scorer"),
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

_ENVIRONMENTS: Final = (
    Metric(
        "gradbus.environment.duration",
        "histogram",
        "s",
        ("environment",),
        "Duration of a call: describe, open or step, with its wait for a child.",
        ("gradbus.environment.call",),
        LONG_SECONDS,
    ),
    Metric(
        "gradbus.environment.calls",
        "counter",
        "{call}",
        ("environment",),
        "Calls by answer: ok, invalid (the item cannot be judged), error (the environment failed) or unknown_session.",
        ("gradbus.environment.call", "gradbus.environment.status"),
    ),
    Metric(
        "gradbus.environment.repeats",
        "counter",
        "{episode}",
        ("environment",),
        "Episodes of seeded environments that were played again, by what came out: same, differs (nondeterministic) or failed.",
        ("gradbus.environment.result",),
        zeros=each("gradbus.environment.result", "same", "differs", "failed"),
    ),
    Metric("gradbus.environment.sessions", "up_down_counter", "{session}", ("environment",), "Sessions that are open."),
    Metric("gradbus.environment.children", "up_down_counter", "{process}", ("environment",), "Processes of users' Python environments."),
)

_AGENTS: Final = (
    Metric(
        "gradbus.agent.calls",
        "counter",
        "{call}",
        ("agent",),
        "Calls of rollout workers by reply: ok, invalid, error, away (nobody claims, or an agent works on) or unknown_session.",
        ("gradbus.agent.call", "gradbus.agent.status"),
    ),
    Metric(
        "gradbus.agent.turns",
        "counter",
        "{turn}",
        ("agent",),
        "Turns given to agents: extend (the request goes on from a turn), fork (it begins a sequence), untrained or replay (a retry); and "
        "withdrawn ones, which were drawn to no end because their agent went away.",
        ("gradbus.agent.outcome",),
        zeros=each("gradbus.agent.outcome", "extend", "fork", "untrained", "replay", "withdrawn"),
    ),
    Metric(
        "gradbus.agent.refusals",
        "counter",
        "{request}",
        ("agent",),
        "Requests for a turn that were refused, by HTTP status.",
        ("http.response.status_code",),
    ),
    Metric("gradbus.agent.episodes", "up_down_counter", "{episode}", ("agent",), "Episodes that are offered or played."),
)

METRICS: Final[tuple[Metric, ...]] = (
    *_PROCESS,
    *_WIRES,
    *TRAINING,
    *_SCHEDULING,
    *_GENERATION,
    *_EPISODES,
    *_WEIGHTS,
    *_REWARDS,
    *_ENVIRONMENTS,
    *_AGENTS,
    *GATEWAY,
)
METRIC: Final[Mapping[str, Metric]] = {metric.name: metric for metric in METRICS}
