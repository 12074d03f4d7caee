"""Values of the algorithm's section that do not go together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradbus.errors import Fault
from gradbus.spec.algorithm import AlgorithmSpec, CovarianceClipSpec
from gradbus.spec.sections import ScheduleSpec, TrainerSpec
from gradbus.spec.teacher_faults import row_size_faults

_BOUNDED: Final = {
    "clip": "[lower in (0, 1], upper > 0]: the ratio counts within [1 - lower, 1 + upper]",
    "log_clip": "[lower > 0, upper > 0]: how many nats the log-ratio of a token may fall and rise",
    "cap": "[lower in (0, 1], upper > 0]: the weight lies within [1 - lower, 1 + upper]",
    "band": "[lower in (0, 1], upper > 0]: tokens with a ratio within [1 - lower, 1 + upper] are trained",
    "mass": "[lower in (0, 1), upper in (0, 1)]: how far the probability of a token may fall and rise",
}
"""The trust regions with bounds."""
_SEQUENCE_REGIONS: Final = ("clip", "log_clip", "gamma", "none")
_CURVED: Final = {
    "soft": ("soft_temperatures", "two temperatures", "[1.0, 1.05]"),
    "gamma": ("gamma_curves", "two pairs of a power and a rate", "[[2.0, 3.0], [3.0, 2.0]]"),
}
"""The trust regions with curves: the field that has their numbers, what these are, and an example."""
_SEQUENCE_MEANS: Final = {"sequence": ("sequence", "constant"), "product": ("sequence",)}
"""By level of the ratio. LUSPO weighs the geometric mean by the length of its sequence, to undo the mean's own 1 / length."""
_NO_BASELINE: Final = ("reinforce", "gae")
_BY_TOKEN: Final = (*_NO_BASELINE, "remax")
"""Advantages that take a KL from the rewards of single tokens."""
_NO_STD: Final = {
    "reinforce": "reads rewards as they are, and those of a group may be equal",
    "gae": "reads rewards as they are, and those of a group may be equal",
    "remax": "has a baseline of one sample, and a group may have one sample beside it, which has no deviation",
    "maxrl": "divides by the mean of the rewards",
    "gdpo": "divides each component by its standard deviation",
}
_NO_SHAPING: Final = {
    "maxrl": "takes rewards of 0 and more, and less may be left",
    "gdpo": "reads the components of the reward, which stay as they are",
}
"""Advantages that take nothing from the reward, and why."""
_CENTERING: Final = "algorithm.centering"
_CENTRED_REGIONS: Final = ("none", "cap", "band")
"""Trust regions whose weight is a function of a token's ratio alone."""
_OF_OTHERS: Final = ("sequence_mask", "off_policy_mask", "second_moment", "covariance_clip")
"""What drops a token for what others are."""


def algorithm_faults(spec: AlgorithmSpec, trainer: TrainerSpec | None, schedule: ScheduleSpec | None) -> Iterator[Fault]:
    """Fields that nothing would read, and combinations whose loss would not be the one that their names promise.

    `trainer` and `schedule` are None if they have faults of their own.
    """
    if trainer:
        yield from _critic_faults(spec, trainer, schedule)
    if trainer and spec.importance == "decoupled" and spec.dual_clip is not None and trainer.inner.updates == 1:
        message = "the ratio to the policy before the step is 1 in its only update"
        yield Fault(
            "algorithm.dual_clip", message, json.dumps(spec.dual_clip), 'none, or importance = "behaviour", or several updates a step'
        )
    if trainer and trainer.inner.stop_kl is not None and trainer.inner.updates == 1:
        message = "a step of one update has none to leave out"
        yield Fault("trainer.inner.stop_kl", message, json.dumps(trainer.inner.stop_kl), "none, or several `epochs` or `minibatches`")
    if trainer and trainer.inner.updates > 1:
        yield from _inner_faults(spec, trainer, schedule)
    yield from _bound_faults(spec)
    yield from _ratio_faults(spec)
    if spec.second_moment is not None:
        yield from _single_token_faults("algorithm.second_moment", spec, json.dumps(spec.second_moment))
    if spec.covariance_clip is not None:
        yield from _covariance_faults(spec, spec.covariance_clip)
    yield from _reward_faults(spec)
    yield from _control_faults(spec)
    if spec.kl_place == "reward":
        yield from _kl_in_reward_faults(spec, trainer)
    if spec.kl_reference_steps is not None and not spec.kl:
        message = "without a KL nothing is compared with a reference"
        yield Fault("algorithm.kl_reference_steps", message, str(spec.kl_reference_steps), "none, or algorithm.kl above 0")


def _reward_faults(spec: AlgorithmSpec) -> Iterator[Fault]:
    """What an advantage would do to the rewards of its group."""
    if spec.normalize_std and (reason := _NO_STD.get(spec.advantage)):
        yield Fault("algorithm.normalize_std", f"advantage = {spec.advantage} {reason}", "true", "false; `whiten` normalises over the step")
    if spec.overlong_penalty and (reason := _NO_SHAPING.get(spec.advantage)):
        yield Fault("algorithm.overlong_penalty", f"advantage = {spec.advantage} {reason}", json.dumps(spec.overlong_penalty), "0")
    if spec.truncated == "bootstrap" and spec.advantage != "gae":
        message = f"advantage = {spec.advantage} has no value of what would have followed"
        yield Fault("algorithm.truncated", message, '"bootstrap"', '"keep", "mask", or algorithm.advantage = "gae"')
    if spec.filter == "zero_variance" and spec.advantage in _NO_BASELINE:
        message = "equal rewards carry a signal where a group has no baseline"
        yield Fault("algorithm.filter", message, '"zero_variance"', '"none", or an advantage with a baseline')


def _kl_in_reward_faults(spec: AlgorithmSpec, trainer: TrainerSpec | None) -> Iterator[Fault]:
    if spec.kl_estimator != "k3":
        message = "a KL in the reward is the difference of two logged log-probabilities, and nothing estimates it"
        yield Fault("algorithm.kl_estimator", message, f'"{spec.kl_estimator}"', '"k3", or algorithm.kl_place = "loss"')
    if spec.kl == 0.0:
        return
    if spec.filter == "zero_variance" and spec.advantage not in _NO_BASELINE:
        message = "samples of equal rewards differ by their KL, which is not known when the group is judged"
        yield Fault("algorithm.filter", message, '"zero_variance"', '"none", or algorithm.kl_place = "loss"')
    others = '"loss", or algorithm.kl = 0'
    if reason := _NO_SHAPING.get(spec.advantage):
        yield Fault("algorithm.kl_place", f"advantage = {spec.advantage} {reason}", '"reward"', others)
    if trainer and trainer.lora is not None and spec.kl_reference_steps is None:
        message = "a trainer of adapters computes the reference in its forward pass, when the advantages are made already"
        yield Fault("algorithm.kl_place", message, '"reward"', f"{others}, or no [trainer.lora]")


def _control_faults(spec: AlgorithmSpec) -> Iterator[Fault]:
    """Controllers of coefficients."""
    if spec.kl_control and not spec.kl:
        message = "the controller multiplies the weight of the KL, and 0 stays 0"
        yield Fault("algorithm.kl", message, "0", "the weight of the first step, above 0; or no [algorithm.kl_control]")
    if spec.kl_control and spec.kl_place == "loss" and spec.aggregate == "constant":
        message = 'with aggregate = "constant" the KL that it observes is not a mean over tokens, as its target is'
        yield Fault("algorithm.kl_control", message, allowed="none, or another algorithm.aggregate")
    if spec.kl_control and spec.kl_place == "reward" and spec.advantage not in _BY_TOKEN:
        message = f"advantage = {spec.advantage} takes the KL from the reward of a whole sample before the step and its weight are known"
        yield Fault("algorithm.kl_control", message, allowed=f'none, algorithm.kl_place = "loss", or advantage = {" or ".join(_BY_TOKEN)}')
    if spec.entropy_control and spec.entropy > spec.entropy_control.max_coefficient:
        allowed = f"at most algorithm.entropy_control.max_coefficient, {spec.entropy_control.max_coefficient:g}"
        yield Fault("algorithm.entropy", "the weight begins above its bound", json.dumps(spec.entropy), allowed)


def _critic_faults(spec: AlgorithmSpec, trainer: TrainerSpec, schedule: ScheduleSpec | None) -> Iterator[Fault]:
    """A critic that nothing reads, one that is missing, and one that the trainer cannot train."""
    if spec.advantage == "gae" and trainer.critic is None:
        message = 'algorithm.advantage = "gae" needs a critic'
        yield Fault("trainer.critic", message, "none", "a section [trainer.critic], which may be empty")
    if spec.advantage != "gae" and trainer.critic is not None:
        message = f"algorithm.advantage = {spec.advantage} reads no values"
        yield Fault("trainer.critic", message, allowed='none, or algorithm.name = "ppo"')
    if trainer.critic is not None and trainer.critic.rank is not None and trainer.critic.kind != "lora":
        message = f"a critic of kind {trainer.critic.kind} has no adapters"
        yield Fault("trainer.critic.rank", message, str(trainer.critic.rank), 'none, or trainer.critic.kind = "lora"')
    if trainer.critic is not None and trainer.critic.kind != "full" and trainer.critic.freeze != "none":
        message = f"a critic of kind {trainer.critic.kind} trains no attention of its own"
        yield Fault("trainer.critic.freeze", message, f'"{trainer.critic.freeze}"', '"none", or trainer.critic.kind = "full"')
    if trainer.critic is not None and schedule and trainer.critic.warmup_steps >= schedule.steps:
        given, allowed = str(trainer.critic.warmup_steps), f"less than schedule.steps, {schedule.steps}"
        yield Fault("trainer.critic.warmup_steps", "the policy would never be trained", given, allowed)


def _inner_faults(spec: AlgorithmSpec, trainer: TrainerSpec, schedule: ScheduleSpec | None) -> Iterator[Fault]:
    """Several updates in a step."""
    inner = trainer.inner
    if schedule and inner.minibatches > schedule.groups_per_step:
        allowed = f"at most schedule.groups_per_step, {schedule.groups_per_step}"
        yield Fault("trainer.inner.minibatches", "a minibatch consists of whole groups", str(inner.minibatches), allowed)
    if schedule and schedule.max_staleness and spec.trust_region == "none" and not (spec.drift and spec.importance == "none"):
        message = f"nothing would bound the change of the policy by {inner.updates} updates with samples that are stale already"
        yield Fault(
            "algorithm.trust_region",
            message,
            '"none"',
            "another one, schedule.max_staleness = 0, or one update a step; or no ratio and a drift, as DRO",
        )


def _bound_faults(spec: AlgorithmSpec) -> Iterator[Fault]:
    region = spec.trust_region
    if region in _BOUNDED and not (spec.clip and _fits(spec.clip, region)):
        yield Fault("algorithm.clip", f"bounds of trust_region = {region}", json.dumps(spec.clip), _BOUNDED[region])
    if region not in _BOUNDED and spec.clip is not None:
        yield _unread("algorithm.clip", spec, spec.clip, " or ".join(_BOUNDED))
    if region != "clip" and spec.dual_clip is not None:
        yield _unread("algorithm.dual_clip", spec, spec.dual_clip, "clip")
    for curved, (field, numbers, example) in _CURVED.items():
        given = getattr(spec, field)
        if region == curved and given is None:
            yield Fault(f"algorithm.{field}", f"trust_region = {region} needs {numbers}", "none", f"for example {example}")
        if region != curved and given is not None:
            yield _unread(f"algorithm.{field}", spec, given, curved)
    if spec.sequence_mask is not None and not spec.sequence_mask[0] < 1.0 < spec.sequence_mask[1]:
        message = "the mean ratio of a sequence that no update moved is 1"
        yield Fault("algorithm.sequence_mask", message, json.dumps(spec.sequence_mask), "[lower < 1, upper > 1]")


def _fits(clip: tuple[float, float], region: str) -> bool:
    lower, upper = clip
    if region == "log_clip":
        return lower > 0.0 and upper > 0.0
    if region in {"clip", "cap", "band"}:
        return 0.0 < lower <= 1.0 and upper > 0.0
    return 0.0 < lower < 1.0 and 0.0 < upper < 1.0


def _ratio_faults(spec: AlgorithmSpec) -> Iterator[Fault]:
    region = spec.trust_region
    if spec.importance == "none" and (region != "none" or spec.ratio != "token"):
        given = f"trust_region = {region}, ratio = {spec.ratio}"
        yield Fault("algorithm.importance", "without a ratio nothing can be bounded", given, "trust_region = none and ratio = token")
    if spec.importance == "decoupled" and (region != "clip" or spec.ratio != "token"):
        message = "what is bounded is the ratio to the policy before the step, by token, and the correction beside it is by token too"
        given = f"trust_region = {region}, ratio = {spec.ratio}"
        yield Fault("algorithm.importance", message, given, "trust_region = clip and ratio = token")
    if spec.ratio != "token" and region not in _SEQUENCE_REGIONS:
        message = f"trust_region = {region} is defined on the ratios of tokens"
        yield Fault("algorithm.ratio", message, f'"{spec.ratio}"', f'"token", or trust_region = {" or ".join(_SEQUENCE_REGIONS)}')
    weighs_ratio = spec.ratio != "token" and region != "gamma"  # which weighs each token's own log-probability
    if weighs_ratio and spec.aggregate not in (allowed := _SEQUENCE_MEANS[spec.ratio]):
        message = "a sequence has one ratio, and this mean would weigh it by its length"
        yield Fault("algorithm.aggregate", message, f'"{spec.aggregate}"', " or ".join(f'"{name}"' for name in allowed))


def _covariance_faults(spec: AlgorithmSpec, clip: CovarianceClipSpec) -> Iterator[Fault]:
    path = "algorithm.covariance_clip"
    yield from _single_token_faults(path, spec)
    if clip.bounds[0] >= clip.bounds[1]:
        yield Fault(f"{path}.bounds", "no covariance is between them", json.dumps(clip.bounds), "[lower, upper > lower]")
    if spec.advantage == "gae":
        message = "it reads the advantages of a step before the trainer's first pass, and a critic makes them in that pass"
        yield Fault(path, message, allowed="none, or an advantage without a critic")


def _single_token_faults(path: str, spec: AlgorithmSpec, given: str = "") -> Iterator[Fault]:
    if spec.ratio != "token":
        message = f"it drops single tokens, and with ratio = {spec.ratio} a sequence gains as a whole"
        yield Fault(path, message, given, "none, or ratio = token; `sequence_mask` drops sequences")


def _unread(path: str, spec: AlgorithmSpec, given: object, readers: str) -> Fault:
    return Fault(path, f"trust_region = {spec.trust_region} does not read it", json.dumps(given), f"none, or trust_region = {readers}")


def centering_faults(algorithm: AlgorithmSpec, sections: Mapping[str, Any], numerics: object) -> Iterator[Fault]:
    """Settings with which the mean that score centring takes from a score would be that of something else.

    `sections` are those that are valid by themselves.
    """
    if algorithm.centering is None:
        return
    given = str(algorithm.centering)
    yield from _centred_loss_faults(algorithm, given)
    for name, unfit, value, message in (
        ("schedule", "mode", "free", "tokens of one sample may be of several versions, and its rows are those of one"),
        ("weights", "transport", "delta", "the reference service computes with each version that sampled, and needs its whole files"),
        ("rollout", "routing_replay", True, "the rows would be computed with other experts than the samples were"),
    ):
        if (section := sections.get(name)) and getattr(section, unfit) == value:
            yield Fault(_CENTERING, message, given, f"none, or another {name}.{unfit} than {json.dumps(value)}")
    if numerics == "batch_invariant":
        yield Fault(_CENTERING, "the mean of the score is computed by other operators", given, 'none, or numerics = "fast"')
    if rollout := sections.get("rollout"):
        yield from row_size_faults(_CENTERING, algorithm.centering, rollout)


def _centred_loss_faults(algorithm: AlgorithmSpec, given: str) -> Iterator[Fault]:
    region = algorithm.trust_region
    if region not in _CENTRED_REGIONS:
        message = f"what trust_region = {region} weighs a token with is no function of its ratio alone, so its mean is another"
        yield Fault(_CENTERING, message, given, f"none, or trust_region = {' or '.join(_CENTRED_REGIONS)}")
    elif algorithm.ratio != "token":
        yield Fault(_CENTERING, "the weight of a token is that of its sequence, whose mean is another", given, "none, or ratio = token")
    elif region == "none" and algorithm.importance == "behaviour":
        message = "weighed with the ratio itself, the mean of the score is 0 already"
        yield Fault(_CENTERING, message, given, "none, importance = none, or trust_region = cap or band")
    for name in _OF_OTHERS:
        if getattr(algorithm, name) is not None:
            yield Fault(_CENTERING, f"{name} drops a token for what others are, so the mean is another", given, f"none, or no {name}")
    if algorithm.kl and algorithm.kl_place == "loss" and algorithm.kl_estimator == "unbiased":
        message = "the unbiased KL weighs its own score with the ratio, and nothing centres that"
        yield Fault(_CENTERING, message, given, "none, or another kl_estimator")
