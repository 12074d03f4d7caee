"""Alarms of learning: a run's metrics in, step by step; out comes what looks wrong, and which setting of the spec to change.

A state machine without clock and I/O. An alarm is raised when its symptom has lasted for some steps in a row, and again only after the run
has recovered; between symptom and recovery nothing changes. The thresholds are wide: an alarm that is wrong now and then is not read.

The windows are in no checkpoint: a restarted trainer compares with the steps since its start, so that it misses what began before, and
may raise an alarm again that still holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gradbus.algorithms import algorithm_of
from gradbus.spec import RunSpec
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.telemetry.symptoms import EntropyLevel, RewardLevel, Sign, Spikes, StepRewards

AlarmKind = Literal[
    "reward_collapse",
    "entropy_collapse",
    "gradient_explosion",
    "kl_explosion",
    "off_policy",
    "critic_knows_nothing",
    "critic_diverges",
]
KL_FACTOR: Final = 10.0
"""Times its median: a KL grows slowly with the steps, by a learning rate each. A jump of an order of magnitude is no such growth."""
KL_NATS: Final = 1.0
"""A token: with one nat, the base model gives the policy's usual token a third of its probability. Useful runs stay near 0.1."""
GRADIENT_FACTOR: Final = 20.0
"""Times its median: norms of one run spread by a factor of 3, and where few groups have a signal by 10. Only above `max_grad_norm`, for
a run of which most steps have nearly no signal has steps a hundred times its median that are good."""
SPIKES: Final = 3
"""Steps in a row: one spike may be one odd sample, and it is clipped."""
OFF_POLICY_NATS: Final = 0.5
"""Mean difference of log-probabilities, a token. Rounding gives 0.01, a few versions of staleness 0.1; at 0.5 the ratio of a sequence says
nothing any more."""
OFF_POLICY_STEPS: Final = 10
"""A burst of stale groups passes sooner."""
CRITIC_KNOWS: Final = 0.05
"""Explained variance: a constant explains 0, and noise on top of it less."""
CRITIC_RECOVERED: Final = 0.1
CRITIC_STEPS: Final = 50
"""After the warm-up: a critic begins at 0, and with a fitting learning rate needs a few dozen steps."""
CRITIC_WRONG: Final = -0.5
"""Explained variance: half again as much error as a constant makes. A fresh critic's noise stays nearer to 0."""
CRITIC_RIGHT: Final = 0.0
"""As good as a constant: `critic_diverges` is over."""
CRITIC_WRONG_STEPS: Final = 5
ENTROPY_STEPS: Final = 10
"""The entropy of trained tokens depends on which groups had a signal, so that single steps say little."""
RECOVERED: Final = 3
"""Steps in a row without the symptom: one good step among bad ones is no recovery."""


@dataclass(frozen=True, slots=True)
class LearningAlarm:
    """What is wrong with a run's learning; the message says what was seen, and what to change."""

    kind: AlarmKind
    message: str


@dataclass(slots=True)
class _Watch:
    """One kind of alarm: raised after `steps` bad steps in a row, over after `RECOVERED` good ones."""

    kind: AlarmKind
    steps: int
    advice: str
    sign: Callable[[StepMetrics, StepRewards | None], Sign | None]
    """What a step says; None if it says nothing of this kind."""
    since: int = 0
    """The first step that counts."""
    raised: str = ""
    """The message, while the alarm lasts."""
    _bad: int = 0
    _good: int = 0

    def add(self, step: int, metrics: StepMetrics, rewards: StepRewards | None) -> bool:
        """Adds a step; whether it raises the alarm."""
        sign = self.sign(metrics, rewards) if step >= self.since else None
        if sign is None:
            return False
        self._bad = self._bad + 1 if sign.is_bad else 0
        self._good = self._good + 1 if sign.is_good else 0
        if self.raised:
            if self._good >= RECOVERED:
                self.raised = ""
        elif self._bad >= self.steps:
            self.raised = f"step {step}: {sign.seen}; {self.advice}"
            return True
        return False


_OF_GIVEN: Final = ("gradient_explosion",)
"""Kinds of alarm that a run on given responses can raise: it has no rewards, and is meant to become sure of its answers."""
_OF_REWARDS: Final = ("reward_collapse", "entropy_collapse")
"""Kinds that read rewards."""


@dataclass(slots=True)
class LearningAlarms:
    """The alarms of one run, as long as it is trained here."""

    spec: RunSpec
    _watches: Sequence[_Watch] = field(init=False)

    def __post_init__(self) -> None:
        watches = [*_policy_watches(self.spec), *_critic_watches(self.spec)]
        if self.spec.trains_given:
            watches = [watch for watch in watches if watch.kind in _OF_GIVEN]
        if not self.spec.algorithm.reads_rewards:
            watches = [watch for watch in watches if watch.kind not in _OF_REWARDS]
        self._watches = watches

    @property
    def kinds(self) -> Sequence[AlarmKind]:
        """The kinds that this run can raise."""
        return [watch.kind for watch in self._watches]

    @property
    def lasting(self) -> Mapping[AlarmKind, str]:
        """The messages of the alarms that were raised and are not over."""
        return {watch.kind: watch.raised for watch in self._watches if watch.raised}

    def add(self, step: int, metrics: StepMetrics, rewards: StepRewards | None) -> list[LearningAlarm]:
        """The alarms that step `step` raises. `rewards` is None if no sample could be scored."""
        return [LearningAlarm(watch.kind, watch.raised) for watch in self._watches if watch.add(step, metrics, rewards)]


def _policy_watches(spec: RunSpec) -> list[_Watch]:
    algorithm, trainer = spec.algorithm, spec.trainer
    rate = f"lower trainer.learning_rate ({trainer.learning_rate:g})"
    level, entropy = RewardLevel(spec.rollout.group_size - algorithm_of(spec).greedy_samples), EntropyLevel()
    norms, kls = Spikes("the gradient's norm", GRADIENT_FACTOR, trainer.max_grad_norm), Spikes("the KL a token", KL_FACTOR, KL_NATS)
    stale = spec.schedule.max_staleness
    fresher = f"lower schedule.max_staleness ({stale}) or trainer.learning_rate" if stale else "set trainer.dtype and weights.dtype to fp32"
    watches = [
        _Watch("reward_collapse", 1, f"{rate} or raise algorithm.kl ({algorithm.kl:g})", lambda _, rewards: level.sign(rewards)),
        _Watch(
            "entropy_collapse",
            ENTROPY_STEPS,
            f"raise algorithm.entropy ({algorithm.entropy:g}), the upper bound of algorithm.clip or rollout.temperature",
            lambda step, rewards: None if step.noop else entropy.sign(step.loss.entropy, rewards),
        ),
        _Watch(
            "gradient_explosion",
            SPIKES,
            f"{rate} or trainer.max_grad_norm ({trainer.max_grad_norm:g})",
            lambda step, _: None if step.noop else norms.sign(step.grad_norm),
        ),
        _Watch("off_policy", OFF_POLICY_STEPS, fresher, lambda step, _: None if step.noop else _distance(step.ratio.logprob_diff)),
    ]
    if algorithm.kl > 0.0:
        advice = f"raise algorithm.kl ({algorithm.kl:g}) or {rate}"
        watches.append(_Watch("kl_explosion", SPIKES, advice, lambda step, _: None if step.noop else kls.sign(step.loss.kl)))
    return watches


def _critic_watches(spec: RunSpec) -> list[_Watch]:
    critic = spec.trainer.critic
    if critic is None:
        return []
    settings = f"trainer.critic.learning_rate ({critic.learning_rate:g}) or trainer.critic.updates ({critic.updates})"
    wrong = _Watch(
        "critic_diverges",
        CRITIC_WRONG_STEPS,
        f"lower {settings}",
        lambda step, _: _explained(step, CRITIC_WRONG, CRITIC_RIGHT),
        critic.warmup_steps,
    )
    # Either advice is the opposite of the other.
    blind = _Watch(
        "critic_knows_nothing",
        CRITIC_STEPS,
        f"raise {settings}",
        lambda step, _: None if wrong.raised else _explained(step, CRITIC_KNOWS, CRITIC_RECOVERED),
        critic.warmup_steps,
    )
    return [wrong, blind]


def _distance(nats: float) -> Sign:
    seen = f"trainer and rollout differ by {nats:.2g} nats a token"
    return Sign(nats > OFF_POLICY_NATS, nats < OFF_POLICY_NATS / 2, seen)


def _explained(step: StepMetrics, least: float, recovered: float) -> Sign | None:
    if step.critic is None or not math.isfinite(step.critic.explained_variance):
        return None
    value = step.critic.explained_variance
    return Sign(value < least, value >= recovered, f"the critic explains {value:.2g} of the returns' variance")
