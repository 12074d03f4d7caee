"""Completions as the messages for the buffer."""

import pytest

from gradbus.errors import ModelError
from gradbus.ids import sample_seed
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import TASK_KIND_EVALUATION, TASK_KIND_TRAIN, GroupTask, Task
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup, TokenSpan
from gradbus_rollout.tasks import samples
from gradbus_rollout.tasks.samples import group_message, prompt_group

PROMPT = PromptGroup("3", (5, 6), (1, 2))
COMPLETION = GroupCompletion("3", (Completion((7,), bytes(4), (TokenSpan(0, 1, 0),), "stop"),) * 2)


def test_a_group_whose_texts_do_not_fit_into_the_buffer_is_the_tokenizers_fault(monkeypatch):
    monkeypatch.setattr(samples, "_MOST_CHARACTERS", 5)
    assert [sample.text for sample in group_message(Group(index=3), PROMPT, COMPLETION, ["abc", "de"]).samples] == ["abc", "de"]
    with pytest.raises(ModelError, match="the responses of group 3 decode to 6 characters, at most 5 fit"):
        group_message(Group(index=3), PROMPT, COMPLETION, ["abc", "def"])


def test_the_last_samples_of_a_training_group_are_greedy_and_seeds_are_those_of_their_places():
    asked = [prompt_group(Task(kind=TASK_KIND_TRAIN), GroupTask(index=3), (5, 6), 9, 3, greedy) for greedy in (0, 1)]
    assert {group.seeds for group in asked} == {tuple(sample_seed(9, "train", 3, n) for n in range(3))}
    assert [[group.is_greedy(n) for n in range(3)] for group in asked] == [[False] * 3, [False, False, True]]
    held_out = prompt_group(Task(kind=TASK_KIND_EVALUATION), GroupTask(index=3), (5, 6), 9, 3, 1)
    assert (len(held_out.seeds), held_out.is_greedy(0)) == (1, True)
