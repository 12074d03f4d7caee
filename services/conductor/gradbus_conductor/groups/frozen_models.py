"""Whose log-probabilities a run asks of the reference service: those of its base model, its teacher, or one of its versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from gradbus.algorithms import algorithm_of, needs_reference_logprobs
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import Group
from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence, SequenceLogProbs
from gradbus_conductor.groups.task_kinds import TaskSet

LogProbsField = Literal["reference_logprobs", "teacher_logprobs"]
"""Of an entry: log-probabilities of one of the run's frozen models."""


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model of the run, and what it is asked for beside the log-probability of each token."""

    of_teacher: bool = False
    top_k: int = 0
    """Most likely tokens of each position, of a teacher; 0: none."""
    version_files: Sequence[str] = ()
    """Digests of a version's files."""

    def request(self, run_id: str, temperature: float, sequences: Sequence[ReferenceSequence]) -> LogProbsRequest:
        """What the reference service is asked."""
        return LogProbsRequest(
            run_id=run_id,
            temperature=temperature,
            sequences=sequences,
            of_teacher=self.of_teacher,
            top_k=self.top_k,
            version_files=self.version_files,
        )

    def answers(self, group: Group, found: Mapping[str, SequenceLogProbs]) -> list[SequenceLogProbs] | None:
        """What the model says of each sample of the group; None if `found`, which is by sample id, does not have all of it."""
        answers = (found.get(sample.sample_id) if sample.token_ids else SequenceLogProbs() for sample in group.samples)
        pairs = zip(answers, group.samples, strict=True)
        whole = [answer for answer, sample in pairs if answer is not None and self._is_whole(answer, sample.token_ids)]
        return whole if len(whole) == len(group.samples) else None

    def _is_whole(self, answer: SequenceLogProbs, token_ids: bytes) -> bool:
        size, rows, top_k = len(token_ids), answer.rows, self.top_k  # an id takes as many bytes as a log-probability
        fits = not top_k or (len(rows.ids), len(rows.logprobs)) == (top_k * size, (top_k + 1) * size)
        return len(answer.logprobs) == size and fits


_TOKENS: Final = attrgetter("token_ids")
BASE: Final = FrozenModel()


def needs_scores(spec: RunSpec, tasks: TaskSet) -> bool:
    """Whether a scorer judges the samples: of held-out rows with given responses the version itself, if it is a reward model.

    No scorer does if an environment alone gives rewards.
    """
    if tasks.version_files:
        return spec.kind == "reward_model"
    if spec.environment is not None and not spec.has_scorer:
        return False
    return algorithm_of(spec).is_scored if tasks.is_logged else not spec.trains_given


def models_of(spec: RunSpec, tasks: TaskSet) -> dict[LogProbsField, FrozenModel]:
    """The fields that the reference service adds to an entry that is trained, or whose loss is evaluated, and whose they are."""
    if not tasks.is_logged:
        return {"reference_logprobs": BASE} if tasks.version_files and algorithm_of(spec).needs_reference else {}
    base: dict[LogProbsField, FrozenModel] = {"reference_logprobs": BASE} if needs_reference_logprobs(spec) else {}
    return base if spec.teacher is None else base | {"teacher_logprobs": FrozenModel(of_teacher=True, top_k=spec.teacher.top_k or 0)}


def sequences_of(group: Group) -> Iterator[ReferenceSequence]:
    """A group's samples, as they are asked about; those without a token, of episodes that failed, are not."""
    for sample in filter(_TOKENS, group.samples):
        yield ReferenceSequence(sample_id=sample.sample_id, prompt_ids=group.prompt_ids, token_ids=sample.token_ids)
