"""Converts a task to prompt groups for the engine, and completions to the Group messages for the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.tokens import pack_ids
from gradbus.ids import sample_id, sample_seed
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import FinishReason
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup, RouteShape

_MOST_CHARACTERS: Final = 1 << 26
"""Of the responses of one group: as UTF-8, half of the largest value that the buffer takes."""
_FINISH = {"stop": FinishReason.FINISH_REASON_STOP, "length": FinishReason.FINISH_REASON_LENGTH}


def prompt_group(task: Task, group: GroupTask, prompt_ids: Sequence[int], run_seed: int, size: int, greedy: int = 0) -> PromptGroup:
    """Prompt and seeds: `size` samples of a training group, the last `greedy` ones greedy; one greedy completion of a held-out row."""
    if task.kind == TaskKind.TASK_KIND_EVALUATION:
        return PromptGroup(str(group.index), tuple(prompt_ids), (sample_seed(run_seed, "evaluation", group.index, 0),), greedy=1)
    seeds = tuple(sample_seed(run_seed, "train", group.index, n) for n in range(size))
    return PromptGroup(str(group.index), tuple(prompt_ids), seeds, greedy)


def group_header(run_id: str, task: Task, group: GroupTask, prompt_text: str, worker: str, engine: str) -> Group:
    """A group without its tokens: what it is, and which worker makes it with which engine."""
    return Group(
        run_id=run_id,
        index=group.index,
        row=group.row,
        version=task.version,
        prompt_text=prompt_text,
        worker=worker,
        engine=engine,
        traceparent=group.traceparent,
    )


def group_message(header: Group, prompt: PromptGroup, group: GroupCompletion, texts: Sequence[str]) -> Group:
    """Fills `header` (run, index, row, version, worker, engine, prompt text) with the prompt's ids, the samples and their `texts`.

    Raises ModelError for texts that are too long for the buffer.
    """
    if (characters := sum(map(len, texts))) > _MOST_CHARACTERS:
        raise ModelError(
            f"the responses of group {header.index} decode to {characters} characters, at most {_MOST_CHARACTERS} fit into the buffer; "
            "correct the tokenizer's decoder, or lower rollout.group_size or rollout.max_new_tokens"
        )
    header.prompt_ids = pack_ids(prompt.prompt_ids)
    add, index = header.samples.add, header.index
    for n, (seed, completion, text) in enumerate(zip(prompt.seeds, group.completions, texts, strict=True)):
        # Made in the memory of the group: messages that are made alone and copied take twice the time.
        sample = add(
            sample_id=sample_id(index, n),
            n=n,
            seed=seed,
            token_ids=pack_ids(completion.token_ids),
            logprobs=completion.logprobs,
            finish_reason=_FINISH[completion.finish],
            text=text,
        )
        for span in completion.spans:
            # Every span is trainable, because the policy drew every token. A tool's output would be a span that is not.
            sample.spans.add(start=span.start, end=span.end, version=span.version, trainable=True)
    if group.routed is not None:
        _add_routes(header, group.routed, group.completions)
    return header


def _add_routes(header: Group, shape: RouteShape, completions: Sequence[Completion]) -> None:
    header.routed_experts.layers = len(shape.layers)
    header.routed_experts.experts = shape.experts
    header.routed_experts.chosen = shape.chosen
    header.routed_experts.prompt = max((completion.prompt_routes for completion in completions), key=len)
    for sample, completion in zip(header.samples, completions, strict=True):
        sample.routed_experts = completion.routes
