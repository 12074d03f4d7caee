"""Completions as the messages for the buffer."""

import pytest

from gradbus.errors import ModelError
from gradbus.v1.group_pb2 import Group
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup, TokenSpan
from gradbus_rollout.tasks import samples
from gradbus_rollout.tasks.samples import group_message

PROMPT = PromptGroup("3", (5, 6), (1, 2))
COMPLETION = GroupCompletion("3", (Completion((7,), bytes(4), (TokenSpan(0, 1, 0),), "stop"),) * 2)


def test_a_group_whose_texts_do_not_fit_into_the_buffer_is_the_tokenizers_fault(monkeypatch):
    monkeypatch.setattr(samples, "_MOST_CHARACTERS", 5)
    assert [sample.text for sample in group_message(Group(index=3), PROMPT, COMPLETION, ["abc", "de"]).samples] == ["abc", "de"]
    with pytest.raises(ModelError, match="the responses of group 3 decode to 6 characters, at most 5 fit"):
        group_message(Group(index=3), PROMPT, COMPLETION, ["abc", "def"])
