"""Converts a task to prompt groups for the engine, and completions to the Group messages for the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.tokens import pack_ids
from gradbus.ids import sample_id, sample_seed
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup

_MOST_CHARACTERS: Final = 1 << 26
"""Of the responses of one group: as UTF-8, half of the largest value that the buffer takes."""
_FINISH = {"stop": FinishReason.FINISH_REASON_STOP, "length": FinishReason.FINISH_REASON_LENGTH}


def prompt_group(task: Task, group: GroupTask, prompt_ids: Sequence[int], run_seed: int, size: int) -> PromptGroup:
    """Prompt and seeds: `size` samples of a training group, one greedy completion of a held-out row."""
    if task.kind == TaskKind.TASK_KIND_EVALUATION:
        return PromptGroup(str(group.index), tuple(prompt_ids), (sample_seed(run_seed, "evaluation", group.index, 0),), greedy=True)
    seeds = tuple(sample_seed(run_seed, "train", group.index, n) for n in range(size))
    return PromptGroup(str(group.index), tuple(prompt_ids), seeds)


def group_message(header: Group, prompt: PromptGroup, completion: GroupCompletion, texts: Sequence[str]) -> Group:
    """Fills `header` (run, index, row, version, worker, engine, prompt text) with the prompt's ids, the samples and their `texts`.

    Raises ModelError for texts that are too long for the buffer.
    """
    if (characters := sum(map(len, texts))) > _MOST_CHARACTERS:
        raise ModelError(
            f"the responses of group {header.index} decode to {characters} characters, at most {_MOST_CHARACTERS} fit into the buffer; "
            "correct the tokenizer's decoder, or lower rollout.group_size or rollout.max_new_tokens"
        )
    header.prompt_ids = pack_ids(prompt.prompt_ids)
    header.samples.extend(
        _sample(header.index, n, seed, sample, text)
        for n, (seed, sample, text) in enumerate(zip(prompt.seeds, completion.completions, texts, strict=True))
    )
    return header


def _sample(index: int, n: int, seed: int, completion: Completion, text: str) -> Sample:
    return Sample(
        sample_id=sample_id(index, n),
        n=n,
        seed=seed,
        token_ids=pack_ids(completion.token_ids),
        logprobs=completion.logprobs,
        spans=_trainable_spans(completion),
        finish_reason=_FINISH[completion.finish],
        text=text,
    )


def _trainable_spans(completion: Completion) -> list[Span]:
    """Every span is trainable, because the policy drew every token. A tool's output would be a span that is not."""
    return [Span(start=span.start, end=span.end, version=span.version, trainable=True) for span in completion.spans]
