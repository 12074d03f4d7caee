"""Reports each step: to the run's history with its alarms, to its metrics, and in the worker's heartbeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradbus.bus import EventLog
from gradbus.process import WorkerHeartbeat
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.step.batch_builder import BatchStats
from gradbus_trainer.telemetry.learning_alarms import LearningAlarms
from gradbus_trainer.telemetry.step_metrics import StepMetricsRecorder
from gradbus_trainer.telemetry.symptoms import StepRewards

_DECAY = 0.95
_SHARES = ("wait", "train", "switch")


@dataclass(slots=True)
class StepReporter:
    """Reports of one run, as long as it is trained here. `metric_names` are the algorithm's."""

    events: EventLog
    heartbeat: WorkerHeartbeat
    recorder: StepMetricsRecorder
    metric_names: Sequence[str]
    alarms: LearningAlarms
    _spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SHARES, 0.0))

    def trained(self, step: int, metrics: StepMetrics, stats: BatchStats, seconds: Mapping[str, float]) -> None:
        """Step `step` is trained and its version handed to the publisher; `seconds` by phase."""
        data = self._emit_metrics(step, metrics, stats, seconds)
        self.recorder.step(metrics, stats, seconds)
        self._check_learning(step, metrics, StepRewards(data["reward"], data["reward_std"], len(stats.rewards)) if stats.rewards else None)
        if stats.unjudged and not stats.rewards:
            text = f"no sample of step {step} could be judged, nothing was learned: {stats.unjudged}; check the scorer or the data"
            self.events.emit("alarm", text, {"step": step}, "error", key=f"unjudged:{step}")
        self._update_presence(seconds, metrics, stats)

    def reached(self, version: int, waiting: int) -> None:
        """The learner's weights are those of version `version`, while `waiting` groups had arrived for later steps."""
        self.heartbeat.presence.version = version
        self.heartbeat.progressed(version)
        self.recorder.reached(version, waiting)

    def disk_full(self, what: str, step: int, error: Exception) -> None:
        """`what` cannot be written; it is tried again."""
        self.events.emit("alarm", f"{what} waits: {error}", {"step": step}, "error", key=f"disk:{what}")

    def _emit_metrics(self, step: int, metrics: StepMetrics, stats: BatchStats, seconds: Mapping[str, float]) -> dict[str, Any]:
        data: dict[str, Any] = {
            "step": step,
            "version": step + 1,
            "noop": metrics.noop,
            "tokens": metrics.tokens,
            "updates": metrics.updates,
        }
        data["seconds"] = dict(seconds)
        data |= {"learning_rate": metrics.learning_rate, "grad_norm": metrics.grad_norm, "loss": metrics.loss.total}
        named = metrics.named()
        data |= {name: named[name] for name in self.metric_names}
        data |= stats.to_json()
        self.events.emit("metrics", f"step {step}", data, key=f"step:{step}")
        return data

    def _check_learning(self, step: int, metrics: StepMetrics, rewards: StepRewards | None) -> None:
        """Alarms that the step raises go to the history; those that last to the metrics, and one to the run's status."""
        for alarm in self.alarms.add(step, metrics, rewards):
            data = {"step": step, "kind": alarm.kind}
            self.events.emit("alarm", alarm.message, data, "warning", key=f"{alarm.kind}:{step}")
        lasting = self.alarms.lasting
        self.recorder.alarms({kind: int(kind in lasting) for kind in self.alarms.kinds})
        self.heartbeat.presence.warning = next(iter(lasting.values()), "")

    def _update_presence(self, seconds: Mapping[str, float], metrics: StepMetrics, stats: BatchStats) -> None:
        """The shares of the newest steps' time and what else the run's status shows."""
        for name in _SHARES:
            self._spent[name] = _DECAY * self._spent[name] + seconds.get(name, 0.0)
        total = sum(self._spent.values()) or 1.0
        presence = self.heartbeat.presence
        presence.shares = {name: spent / total for name, spent in self._spent.items() if name in seconds}
        presence.staleness = stats.mean_staleness if stats.sampled else None
        presence.loss = None if stats.sampled else metrics.loss.total
        if metrics.teacher_kl is not None:
            presence.teacher_kl = metrics.teacher_kl
        presence.pair_accuracy = metrics.preference.accuracy if metrics.preference is not None else None
        if metrics.critic is not None:
            presence.explained_variance = metrics.critic.explained_variance
