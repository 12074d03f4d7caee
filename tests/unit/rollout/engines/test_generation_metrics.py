"""A call of the engine in metrics: one value each for time and tokens, whatever the call holds."""

import pytest

from gradbus_rollout.engines import generation_metrics as generation
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup


@pytest.fixture
def recorded(monkeypatch):
    found = []
    monkeypatch.setattr(generation, "observe", lambda name, value, attributes: found.append((name, value, attributes)))
    return found


def sampled(*lengths):
    return GroupCompletion("0", tuple(Completion((1,) * length, b"", (), "stop") for length in lengths))


def test_a_call_tells_its_time_and_its_tokens(recorded):
    groups = [PromptGroup("0", (1, 2, 3), (7, 8)), PromptGroup("1", (4,), (9,))]
    with generation.GenerationMetrics("torch 2.13.0 cpu float32").measured(groups) as generated:
        generated.completions = [sampled(5, 6), sampled(7)]
    assert [name for name, _, _ in recorded] == ["gen_ai.client.operation.duration", *["gen_ai.client.token.usage"] * 2]
    assert {attributes["gen_ai.provider.name"] for _, _, attributes in recorded} == {"torch"}
    usage = {attributes["gen_ai.token.type"]: value for name, value, attributes in recorded if name.endswith("usage")}
    assert usage == {"input": 4, "output": 18}


def test_a_call_that_fails_tells_its_error_and_no_tokens(recorded):
    with pytest.raises(ValueError, match="broken"), generation.GenerationMetrics("sglang").measured([]):
        raise ValueError("broken")
    assert [(name, attributes["error.type"]) for name, _, attributes in recorded] == [("gen_ai.client.operation.duration", "ValueError")]
