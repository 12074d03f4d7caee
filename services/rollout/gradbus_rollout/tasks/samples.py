"""From completions to the groups that go on the wire."""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Sequence

from gradbus.ids import sample_id, sample_seed
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup

_FINISH = {"stop": FinishReason.FINISH_REASON_STOP, "length": FinishReason.FINISH_REASON_LENGTH}
_Decode = Callable[[Sequence[Sequence[int]]], list[str]]


def request_for(task: Task, group: GroupTask, prompt_ids: Sequence[int], run_seed: int, size: int) -> PromptGroup:
    """What the engine is asked for: `size` samples of a training group, one greedy completion of a held-out row."""
    if task.kind == TaskKind.TASK_KIND_EVALUATION:
        return PromptGroup(str(group.index), tuple(prompt_ids), (sample_seed(run_seed, "evaluation", group.index, 0),), greedy=True)
    seeds = tuple(sample_seed(run_seed, "train", group.index, n) for n in range(size))
    return PromptGroup(str(group.index), tuple(prompt_ids), seeds)


def group_message(header: Group, request: PromptGroup, completion: GroupCompletion, decode: _Decode) -> Group:
    """Fills `header` (run, index, row, version, worker, engine, prompt text) with the prompt's ids and the samples."""
    texts = decode([sampled.token_ids for sampled in completion.completions])
    header.prompt_ids = int32_bytes(request.prompt_ids)
    header.samples.extend(
        _sample(header.index, n, seed, sampled, text)
        for n, (seed, sampled, text) in enumerate(zip(request.seeds, completion.completions, texts, strict=True))
    )
    return header


def int32_bytes(values: Sequence[int]) -> bytes:
    """Little-endian int32, `[T]`."""
    packed = array.array("i", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _sample(index: int, n: int, seed: int, completion: Completion, text: str) -> Sample:
    return Sample(
        sample_id=sample_id(index, n),
        n=n,
        seed=seed,
        token_ids=int32_bytes(completion.token_ids),
        logprobs=completion.logprobs,
        spans=[Span(start=span.start, end=span.end, version=span.version, trainable=True) for span in completion.spans],
        finish_reason=_FINISH[completion.finish],
        text=text,
    )
