"""A teacher that nothing reads, one that is missing, and settings that would change what it teaches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradbus.errors import Fault
from gradbus.spec.algorithm import AlgorithmSpec
from gradbus.spec.reward.section import RewardSpec
from gradbus.spec.sections import RolloutSpec, Section, TeacherSpec

_DISTILL: Final = "advantage = distill"
_SAMPLE_ENTRIES: Final = 1 << 22
"""Of a sample's rows, of 8 bytes each: half of what a gRPC message may have."""
_GROUP_ENTRIES: Final = 1 << 23
"""64 MiB, an eighth of the largest value that the buffer takes."""
_SERVED_ENTRIES: Final = 1 << 20
"""Of a sample's rows that come as JSON, of some 40 bytes each."""

_UNREAD_BY_ROWS: Final[Mapping[str, float | None]] = {
    "kl": 0.0,
    "entropy": 0.0,
    "drift": 0.0,
    "second_moment": None,
    "covariance_clip": None,
    "kl_control": None,
    "entropy_control": None,
    "sequence_mask": None,
    "off_policy_mask": None,
    "centering": None,
}
"""What a loss over a teacher's rows does not read, unset."""


def teacher_faults(kind: str, sections: Mapping[str, Any], deterministic: object) -> Iterator[Fault]:
    """Faults of a run of this kind. `sections` are those that are valid by themselves."""
    teacher, algorithm = sections.get("teacher"), sections.get("algorithm")
    if kind != "rl":
        if teacher is not None:
            message = f"a run of kind {kind} samples nothing that a teacher could judge"
            yield Fault("teacher", message, teacher.source, 'no [teacher], or kind = "rl"')
        return
    yield from _served_faults(teacher, sections.get("rollout"), deterministic)
    if algorithm is None:
        return
    if algorithm.reads_rewards:
        if teacher is not None:
            yield from _added_faults(teacher, algorithm)
        return
    if "teacher" in sections and teacher is None:
        yield Fault("teacher", f"{_DISTILL} needs a teacher", "none", "a section [teacher] with `path`, `run` or `url`")
    if teacher is not None and teacher.coefficient is not None:
        message = f"the teacher is all that {_DISTILL} trains on; trainer.learning_rate says how fast"
        yield Fault("teacher.coefficient", message, json.dumps(teacher.coefficient), "none, or an advantage that reads rewards")
    yield from _distill_faults(algorithm)
    if teacher is not None and teacher.top_k is not None:
        yield from _row_faults(teacher.top_k, algorithm, sections)
    if (reward := sections.get("reward")) and reward != RewardSpec() and (data := sections.get("data")) and data.eval is None:
        message = f"{_DISTILL} judges no sample, and the run has no held-out rows to judge"
        yield Fault("reward", message, allowed="no [reward], or data.eval")


def reads_reward(sections: Mapping[str, Any]) -> bool:
    """Whether a run of kind `rl` needs a scorer: for its samples or held-out rows, unless an environment alone judges them."""
    has_environment = "environment" not in sections or sections["environment"] is not None  # it may be there and not valid
    if has_environment and sections.get("reward") == RewardSpec():
        return False
    algorithm, data = sections.get("algorithm"), sections.get("data")
    return algorithm is None or algorithm.reads_rewards or (data is not None and data.eval is not None)


def _distill_faults(algorithm: AlgorithmSpec) -> Iterator[Fault]:
    """Settings that read rewards, of which there are none, or that would scale the KL by something else than the learning rate."""
    if algorithm.normalize_std:
        yield Fault("algorithm.normalize_std", f"{_DISTILL} has no rewards whose deviation could divide", "true", "false")
    if algorithm.whiten != "none":
        message = "the divergence from the teacher would be moved by its mean and divided by its noise"
        yield Fault("algorithm.whiten", message, json.dumps(algorithm.whiten), '"none"')
    if algorithm.filter != "none":
        yield Fault("algorithm.filter", f"{_DISTILL} has no rewards that could be equal", json.dumps(algorithm.filter), '"none"')
    if algorithm.overlong_penalty:
        message = f"{_DISTILL} has no reward from which it could be taken"
        yield Fault("algorithm.overlong_penalty", message, json.dumps(algorithm.overlong_penalty), "0")
    if algorithm.nll:
        yield Fault("algorithm.nll", f"{_DISTILL} has no reward that says which sample is best", json.dumps(algorithm.nll), "0")
    if algorithm.kl_place == "reward":
        yield Fault("algorithm.kl_place", f"{_DISTILL} has no reward from which it could be taken", '"reward"', '"loss"')


def _row_faults(top_k: int, algorithm: AlgorithmSpec, sections: Mapping[str, Any]) -> Iterator[Fault]:
    """Of a loss over the teacher's most likely tokens, which has no ratio and stands alone."""
    if algorithm.importance != "none":
        message = "teacher.top_k compares whole rows, and no ratio of the sampled token weighs them"
        yield Fault("algorithm.importance", message, json.dumps(algorithm.importance), '"none", with trust_region = "none"')
    for name, unset in _UNREAD_BY_ROWS.items():
        if (given := getattr(algorithm, name)) != unset:
            shown = json.dumps(given.model_dump() if isinstance(given, Section) else given)
            yield Fault(
                f"algorithm.{name}", "the loss of teacher.top_k is the KL alone", shown, "0" if unset is not None else "leave it out"
            )
    if rollout := sections.get("rollout"):
        yield from row_size_faults("teacher.top_k", top_k, rollout)


def _served_faults(teacher: TeacherSpec | None, rollout: RolloutSpec | None, deterministic: object) -> Iterator[Fault]:
    """Of a teacher that is a server."""
    if teacher is None or teacher.url is None:
        if teacher is not None and teacher.served is not None:
            yield Fault("teacher.served", "only a server has it", teacher.served.model_path, "none, or `url` in place of `path`")
        return
    if teacher.files is not None:
        yield Fault("teacher.files", "a server has its own", f"{len(teacher.files)} files", "none, or `path` in place of `url`")
    if deterministic is True:
        message = "the log-probabilities of a server depend in their last bits on what it computes beside them"
        yield Fault("deterministic", message, "true", "false, or a teacher with `path` or `run`")
    if rollout is None:
        return
    if rollout.temperature != 1.0:
        message = "a server gives the log-probabilities of given tokens at temperature 1"
        yield Fault("rollout.temperature", message, json.dumps(rollout.temperature), "1.0, or a teacher with `path` or `run`")
    if (entries := rollout.max_new_tokens * (teacher.top_k or 0)) > _SERVED_ENTRIES:
        message = "the product max_new_tokens · top_k is too large for a server's answer"
        yield Fault("teacher.top_k", message, str(entries), f"at most {_SERVED_ENTRIES}")


def row_size_faults(path: str, count: int, rollout: RolloutSpec) -> Iterator[Fault]:
    """Rows of `count` tokens, which the field at `path` asks for, that no message or buffer would take."""
    name = path.rpartition(".")[2]
    for product, tokens, most in (
        ("max_new_tokens", rollout.max_new_tokens, _SAMPLE_ENTRIES),
        ("group_size · max_new_tokens", rollout.group_size * rollout.max_new_tokens, _GROUP_ENTRIES),
    ):
        if tokens * count > most:
            yield Fault(path, f"the product {product} · {name} is too large", str(tokens * count), f"at most {most}")


def _added_faults(teacher: TeacherSpec, algorithm: AlgorithmSpec) -> Iterator[Fault]:
    """Of a teacher beside rewards."""
    if teacher.top_k is not None:
        message = f"algorithm.advantage = {algorithm.advantage} has an advantage for each token, and a row has none"
        yield Fault("teacher.top_k", message, str(teacher.top_k), 'none, or algorithm.advantage = "distill"')
    if teacher.coefficient is None:
        message = f"algorithm.advantage = {algorithm.advantage} reads rewards, and the teacher only with a coefficient"
        yield Fault("teacher.coefficient", message, "none", 'a number above 0, or algorithm.advantage = "distill"')
        return
    if algorithm.advantage == "gae":
        message = "a critic makes advantages from rewards and values, to which nothing is added"
        yield Fault("teacher", message, teacher.source, "none, or another algorithm.advantage")
    if algorithm.whiten != "none":
        message = "what the teacher adds would be moved by the mean of the step and divided by its deviation"
        yield Fault("algorithm.whiten", message, json.dumps(algorithm.whiten), '"none", or no [teacher]')
    if algorithm.filter == "zero_variance":
        message = "samples of equal rewards differ by what the teacher adds, which is not known when the group is judged"
        yield Fault("algorithm.filter", message, '"zero_variance"', '"none", or no [teacher]')
