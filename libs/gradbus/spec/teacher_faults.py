"""A teacher that nothing reads, one that is missing, and settings that would change what it teaches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradbus.errors import Fault
from gradbus.spec.algorithm import AlgorithmSpec
from gradbus.spec.sections import RewardSpec, TeacherSpec

_DISTILL: Final = "advantage = distill"


def teacher_faults(kind: str, sections: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of a run of this kind. `sections` are those that are valid by themselves."""
    teacher, algorithm = sections.get("teacher"), sections.get("algorithm")
    if kind != "rl":
        if teacher is not None:
            message = f"a run of kind {kind} samples nothing that a teacher could judge"
            yield Fault("teacher", message, teacher.source, 'no [teacher], or kind = "rl"')
        return
    if algorithm is None:
        return
    if algorithm.reads_rewards:
        if teacher is not None:
            yield from _added_faults(teacher, algorithm)
        return
    if "teacher" in sections and teacher is None:
        yield Fault("teacher", f"{_DISTILL} needs a teacher", "none", "a section [teacher] with `path` or `run`")
    if teacher is not None and teacher.coefficient is not None:
        message = f"the teacher is all that {_DISTILL} trains on; trainer.learning_rate says how fast"
        yield Fault("teacher.coefficient", message, json.dumps(teacher.coefficient), "none, or an advantage that reads rewards")
    yield from _distill_faults(algorithm)
    if (reward := sections.get("reward")) and reward != RewardSpec() and (data := sections.get("data")) and data.eval is None:
        message = f"{_DISTILL} judges no sample, and the run has no held-out rows to judge"
        yield Fault("reward", message, allowed="no [reward], or data.eval")


def reads_reward(sections: Mapping[str, Any]) -> bool:
    """Whether something is judged in a run of kind `rl`: its samples, or held-out rows."""
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
    if algorithm.kl_place == "reward":
        yield Fault("algorithm.kl_place", f"{_DISTILL} has no reward from which it could be taken", '"reward"', '"loss"')


def _added_faults(teacher: TeacherSpec, algorithm: AlgorithmSpec) -> Iterator[Fault]:
    """Of a teacher beside rewards."""
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
