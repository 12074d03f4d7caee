"""Values of every JSON type in every field that an interface knows: each is answered or refused, and nothing breaks."""

import contextlib

import pytest

from gradbus.spec.sections import EnvironmentSpec
from gradbus.v1 import environment_service_pb2 as pb
from gradbus_agent.contract import RefusalError, Reply
from gradbus_agent.dialects.chat_completions import ChatCompletions
from gradbus_agent.dialects.messages import CountTokens, Messages
from gradbus_agent.dialects.responses import Responses
from gradbus_agent.episodes.turns import Opening, open_response, policy_turn
from gradbus_agent.http.fields import claim_of, verdict_of
from gradbus_agent.matching import Question

TYPES = [None, True, False, 0, -1, 10**299, 1.5, "", "x", "\x00", [], [None], [[]], ["x"], {}, {"type": "text"}, {"x": []}, [{}]]
TYPES += [{"type": []}, [{"type": []}], [{"type": {}, "name": 5}], [{"role": {}, "type": "message"}], [{"role": "user", "content": [5]}]]
TYPES += [[{"role": "assistant", "content": [{"type": "tool_use"}], "tool_calls": [{}]}, {"role": "user", "content": "x"}]]
TYPES += [[{"role": "user", "content": [{"type": "tool_result", "content": {}}]}], [{"type": "function", "function": [], "parameters": 5}]]
COMMON = ["model", "stream", "tools", "tool_choice", "temperature", "top_p", "metadata"]
FIELDS = {
    "chat/completions": [
        *(
            "messages",
            "n",
            "best_of",
            "response_format",
            "max_tokens",
            "max_completion_tokens",
            "stream_options",
            "logprobs",
            "top_logprobs",
        ),
        *("logit_bias", "stop", "functions", "function_call", "audio", "prediction", "web_search_options", "seed", "parallel_tool_calls"),
    ],
    "messages": ["messages", "system", "max_tokens", "stop_sequences", "mcp_servers", "container", "output_format", "top_k", "thinking"],
    "responses": [
        *("input", "instructions", "text", "max_output_tokens", "include", "previous_response_id", "conversation", "prompt"),
        *("background", "max_tool_calls", "reasoning", "parallel_tool_calls", "store"),
    ],
}


DIALECTS = {"chat/completions": ChatCompletions(), "messages": Messages(), "responses": Responses()}
OPENING = Opening("run", "train.0.0.0", 0, "p", "{}", EnvironmentSpec(agent="pull"))


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, fields in FIELDS.items() for field in [*COMMON, *fields]])
def test_a_value_of_a_field_is_answered_or_refused(path, field):
    whole = {"input": "a"} if path == "responses" else {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}
    dialect = DIALECTS[path]
    for value in TYPES:
        try:
            wish = dialect.read(whole | {field: value})
        except RefusalError:
            continue
        question = Question.of(wish.request)
        assert open_response("s", Reply(conversation=question.request, stop=question.request.stop)).SerializeToString()
        turn = policy_turn(OPENING, pb.StepRequest(), question.request, "fork")
        assert dialect.whole(turn, wish)
        assert b"".join(dialect.events(turn, wish))


def test_counting_tokens_is_refused_whatever_is_sent():
    for value in TYPES:
        with pytest.raises(RefusalError):
            CountTokens().read({"messages": value})


@pytest.mark.parametrize("field", ["attempt", "status", "reason", "reward", "components"])
def test_a_value_of_an_end_is_taken_or_refused(field):
    for value in TYPES:
        with contextlib.suppress(RefusalError):
            verdict_of({"reward": 1, field: value}, 0)


@pytest.mark.parametrize("field", ["run", "capacity", "wait_seconds"])
def test_a_value_of_a_claim_is_taken_or_refused(field):
    for value in TYPES:
        with contextlib.suppress(RefusalError):
            claim_of({"run": "run", field: value})
