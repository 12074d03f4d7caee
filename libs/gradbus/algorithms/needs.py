"""What a run with its algorithm needs of other services, and whether it can have it."""

from __future__ import annotations

from collections.abc import Iterator

from gradbus.algorithms.of_run import algorithm_of
from gradbus.errors import Fault
from gradbus.spec import Grader, RunSpec


def need_faults(spec: RunSpec) -> Iterator[Fault]:
    """Faults of a spec whose groups or rewards do not have what its algorithm needs."""
    if spec.trains_given:
        return
    algorithm = algorithm_of(spec)
    estimator, name = algorithm.estimator, spec.algorithm.advantage
    if (least := estimator.least_samples + algorithm.greedy_samples) > spec.rollout.group_size:
        beside = ", one of them greedy, as the others' baseline" if algorithm.greedy_samples else ""
        message = f"advantage = {name} trains a group from {least} valid samples on{beside}; smaller groups are never trained"
        given, allowed = str(spec.rollout.group_size), f'at least {least}, or algorithm.advantage = "reinforce"'
        yield Fault("rollout.group_size", message, given, allowed)
    yield from _turn_faults(spec, by_turn=estimator.by_turn)
    for reward in spec.reward.in_turn if estimator.reads_components else ():
        if reward.model is not None or (reward.grader is not None and _has_one_component(reward.grader)):
            source = f"{reward.grader.type} grader" if reward.grader is not None else "reward model"
            message = f"normalises each component of a reward, and this {source} has one"
            yield Fault("algorithm.advantage", message, f'"{name}"', 'a multi or python grader or a service with two components; or "grpo"')
    if (control := spec.algorithm.kl_control) and control.horizon < spec.samples_per_step:
        message = f"a step takes {spec.samples_per_step} samples, and its weight could change by more than its fifth"
        yield Fault("algorithm.kl_control.horizon", message, str(control.horizon), f"at least {spec.samples_per_step}")
    if spec.algorithm.whiten != "none" and spec.samples_per_step == 1:
        message = "the only sample of a step would have an advantage of 0"
        yield Fault("algorithm.whiten", message, f'"{spec.algorithm.whiten}"', '"none", or more samples a step')


def _turn_faults(spec: RunSpec, *, by_turn: bool) -> Iterator[Fault]:
    if spec.environment is None or spec.environment.credit == "episode":
        return
    algorithm = spec.algorithm
    if not by_turn:
        message = f"advantage = {algorithm.advantage} does not compare returns of turns by their mean"
        yield Fault("environment.credit", message, '"turn"', '"episode", or algorithm.advantage "grpo", "rloo", "reinforce" or "gae"')
    if algorithm.kl and algorithm.kl_place == "reward":
        message = "a KL in the reward is one of tokens, and no turn's"
        yield Fault("environment.credit", message, '"turn"', '"episode", or algorithm.kl_place = "loss"')


def _has_one_component(grader: Grader) -> bool:
    return len(grader.graders) == 1 if grader.type == "multi" else grader.type != "python"


def learner_computes_reference(spec: RunSpec) -> bool:
    """Whether the learner computes the reference log-probabilities: its model without the adapters is the base model."""
    is_base = spec.algorithm.kl_reference_steps is None
    return algorithm_of(spec).needs_reference and spec.trainer.lora is not None and is_base


def needs_reference_logprobs(spec: RunSpec) -> bool:
    """Whether the conductor asks the reference service for the reference log-probabilities of each trained group."""
    return algorithm_of(spec).needs_reference and not learner_computes_reference(spec)


def needs_reference_service(spec: RunSpec) -> bool:
    """Whether the reference service computes for the run: log-probabilities of a frozen model or version, scores, a held-out loss."""
    evaluates = spec.trains_given and spec.data.eval is not None
    models = spec.reward.model is not None or spec.teacher is not None or spec.algorithm.centering is not None
    return needs_reference_logprobs(spec) or models or evaluates
