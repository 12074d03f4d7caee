"""Whose log-probabilities a run asks of the reference service: those of its base model, its teacher, or one of its versions.

Which version, if it is one of them, the version of a group decides alone: its entry is the same whenever it is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gradbus.algorithms import algorithm_of, needs_reference_logprobs, sequences
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import Group, TeacherRows
from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence, SequenceLogProbs
from gradbus.v1.sample_pb2 import Fork, Sample
from gradbus_conductor.groups.pending_group import PendingGroup
from gradbus_conductor.groups.task_kinds import TaskSet

EntryField = Literal["reference_logprobs", "teacher_logprobs", "behaviour_rows"]
"""Of an entry: what one of the run's frozen models or versions says of its samples."""


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model of the run, and what it is asked for beside the log-probability of each token."""

    of_teacher: bool = False
    top_k: int = 0
    """Most likely tokens of each position; 0: none."""
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
        """What the model says of each sample of the group; None if `found`, by ids of `sequences_of`, lacks some of it."""
        answers: list[SequenceLogProbs] = []
        for sample in group.samples:
            parts = [(found.get(sequence_id), part) for sequence_id, part in _asked(sample)]
            whole = [answer for answer, part in parts if answer is not None and self._is_whole(answer, part.token_ids)]
            if len(whole) < len(parts):
                return None
            answers.append(whole[0] if len(whole) == 1 else _joined(sample.sample_id, whole))
        return answers

    def _is_whole(self, answer: SequenceLogProbs, token_ids: bytes) -> bool:
        size, rows, top_k = len(token_ids), answer.rows, self.top_k  # an id takes as many bytes as a log-probability
        fits = not top_k or (len(rows.ids), len(rows.logprobs)) == (top_k * size, (top_k + 1) * size)
        return len(answer.logprobs) == size and fits


BASE: Final = FrozenModel()


@dataclass(frozen=True, slots=True)
class EntryModel:
    """Who fills a field of an entry, with rows if it is asked for any."""

    model: FrozenModel = BASE
    version_of: Callable[[int], int] | None = None
    """From the version of a group to that of the run which answers, 0 for `model` itself; None: it answers for all groups."""

    def by_version(self, groups: Sequence[PendingGroup]) -> dict[int, list[PendingGroup]]:
        """The groups by the version that answers."""
        found: dict[int, list[PendingGroup]] = {}
        for pending in groups:
            found.setdefault(self.version_of(pending.group.version) if self.version_of else 0, []).append(pending)
        return found

    def of_version(self, files: Sequence[str]) -> FrozenModel:
        """The version of these files, asked for the same."""
        return replace(self.model, version_files=files)


def needs_scores(spec: RunSpec, tasks: TaskSet) -> bool:
    """Whether a scorer judges the samples: of held-out rows with given responses the version itself, if it is a reward model.

    No scorer does if an environment alone gives rewards.
    """
    if tasks.version_files:
        return spec.kind == "reward_model"
    if spec.environment is not None and not spec.has_scorer:
        return False
    return algorithm_of(spec).is_scored if tasks.is_logged else not spec.trains_given


def models_of(spec: RunSpec, tasks: TaskSet) -> dict[EntryField, EntryModel]:
    """The fields that the reference service adds to an entry that is trained, or whose loss is evaluated, and whose they are."""
    if not tasks.is_logged:
        return {"reference_logprobs": EntryModel()} if tasks.version_files and algorithm_of(spec).needs_reference else {}
    found: dict[EntryField, EntryModel] = {}
    if needs_reference_logprobs(spec):
        moves = spec.algorithm.kl_reference_steps is not None
        found["reference_logprobs"] = EntryModel(_first_version(spec) if moves else BASE, version_of=spec.reference_version)
    if spec.teacher is not None:
        found["teacher_logprobs"] = EntryModel(FrozenModel(of_teacher=True, top_k=spec.teacher.top_k or 0))
    if (count := spec.algorithm.centering) is not None:
        found["behaviour_rows"] = EntryModel(replace(_first_version(spec), top_k=count), version_of=lambda version: version)
    return found


def _first_version(spec: RunSpec) -> FrozenModel:
    """Version 0: the base model, in a run that goes on with adapters with these beside it."""
    return BASE if spec.model.adapters is None else FrozenModel(version_files=(spec.model.adapters,))


def sequences_of(group: Group) -> Iterator[ReferenceSequence]:
    """The sequences of a group's samples, as they are asked about; those without a token, of episodes that failed, are not."""
    for sample in group.samples:
        for sequence_id, part in _asked(sample):
            prompt_ids = part.prompt_ids if isinstance(part, Fork) else group.prompt_ids
            yield ReferenceSequence(sample_id=sequence_id, prompt_ids=prompt_ids, token_ids=part.token_ids)


def _asked(sample: Sample) -> Iterator[tuple[str, Sample | Fork]]:
    """The sequences with a token, and an id of each; the first has the sample's."""
    for number, part in enumerate(sequences(sample)):
        if part.token_ids:
            yield f"{sample.sample_id}#{number}" if number else sample.sample_id, part


def _joined(sample_id: str, parts: Sequence[SequenceLogProbs]) -> SequenceLogProbs:
    """What is said of all sequences of a sample, one after the other; nothing of one without a token."""
    rows = TeacherRows(ids=b"".join(part.rows.ids for part in parts), logprobs=b"".join(part.rows.logprobs for part in parts))
    return SequenceLogProbs(sample_id=sample_id, logprobs=b"".join(part.logprobs for part in parts), rows=rows if rows.ids else None)
