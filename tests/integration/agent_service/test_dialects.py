"""Anthropic's messages and OpenAI's responses: other words for the same requests and turns."""

import asyncio
import json

import pytest

TOKENS = (11, [5, 6, 7], [-0.5, -0.25, -1.0], (2, 3))
SCHEMA = {"type": "object"}
TOOL = {"messages": {"name": "look", "input_schema": SCHEMA}, "responses": {"type": "function", "name": "look", "parameters": SCHEMA}}
CALLS = (("look", '{"at":  1.0}'), ("look", "{}"))


def user(text):
    return {"role": "user", "content": text}


@pytest.fixture
def post(game):
    """Sends a request by another interface."""

    def sent(path, **body):
        return game.agent.http.post(game.agent.url(path), json=body, headers={"x-api-key": game.agent.offer["api_key"]})

    return sent


def messages_of(reply):
    return [(one.role, one.content, one.call_id, one.name) for one in reply.messages]


def events(response):
    """(event, data) of each server-sent event."""
    found = []
    for block in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines.get("event"), json.loads(lines["data"])))
    return found


async def test_messages_with_tools(game, post):
    history = [user([{"type": "text", "text": "How "}, {"type": "text", "text": "many?", "cache_control": {}}])]
    fields = {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "Be brief."}], "tools": [TOOL["messages"]], "top_k": 5}
    opened = await game.ask_by(post("messages", messages=history, **fields))
    assert messages_of(opened.conversation) == [("system", "Be brief.", "", ""), ("user", "How many?", "", "")]
    assert json.loads(opened.conversation.tools_json) == [{"name": "look", "description": "", "parameters": SCHEMA}]
    assert opened.max_new_tokens == 9
    answer = (await game.draw("I look.", *CALLS, tokens=TOKENS)).json()
    assert answer["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c0.0", "name": "look", "input": {"at": 1.0}},
        {"type": "tool_use", "id": "c0.1", "name": "look", "input": {}},
    ]
    assert (answer["stop_reason"], answer["usage"]) == ("tool_use", {"input_tokens": 11, "output_tokens": 3})
    assert answer["gradbus"]["overridden_parameters"] == ["top_k"]
    results = [
        {"type": "tool_result", "tool_use_id": "c0.0", "content": "four"},
        {"type": "tool_result", "tool_use_id": "c0.1", "content": [{"type": "text", "text": "five"}], "is_error": True},
        {"type": "text", "text": "Well?"},
    ]
    history += [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}, *answer["content"]]},
        user(results),
    ]
    extended = await game.ask_by(post("messages", messages=history, **fields))
    assert messages_of(extended) == [("tool", "four", "c0.0", "look"), ("tool", "five", "c0.1", "look"), ("user", "Well?", "", "")]
    answer = (await game.draw("cut", finish="length", end="length")).json()
    assert (answer["stop_reason"], answer["gradbus"]["outcome"]) == ("max_tokens", "extend")
    refused = await post("messages", messages=history, **fields)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")


async def test_messages_as_a_stream(game, post):
    await game.ask_by(post("messages", messages=[user("a")], max_tokens=9, stream=True))
    found = events(await game.draw("I look.", *CALLS, tokens=TOKENS))
    assert [name for name, _ in found] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop") * 3,
        "message_delta",
        "message_stop",
    ]
    assert all(data["type"] == name for name, data in found)
    deltas = [data["delta"] for name, data in found if name == "content_block_delta"]
    assert [one.get("text", one.get("partial_json")) for one in deltas] == ["I look.", '{"at":  1.0}', "{}"]
    assert found[-2][1]["usage"]["output_tokens"] == 3


async def test_responses_with_tools(game, post):
    fields = {"model": "m", "instructions": "Be brief.", "tools": [TOOL["responses"]], "store": True, "temperature": 0}
    opened = await game.ask_by(post("responses", input="How many?", max_output_tokens=9, **fields))
    assert messages_of(opened.conversation) == [("system", "Be brief.", "", ""), ("user", "How many?", "", "")]
    answer = (await game.draw("I look.", *CALLS, tokens=TOKENS)).json()
    message, *calls = answer["output"]
    assert message["content"] == [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]
    assert [(one["call_id"], one["name"], one["arguments"]) for one in calls] == [("c0.0", "look", '{"at":  1.0}'), ("c0.1", "look", "{}")]
    assert (answer["status"], answer["usage"]["total_tokens"], answer["gradbus"]["overridden_parameters"]) == (
        "completed",
        14,
        ["temperature"],
    )
    outputs = [{"type": "function_call_output", "call_id": f"c0.{n}", "output": f"{n}"} for n in range(2)]
    history = [user([{"type": "input_text", "text": "How many?"}]), {"type": "reasoning", "summary": []}, *answer["output"], *outputs]
    extended = await game.ask_by(post("responses", input=history, include=["message.output_text.logprobs"], **fields))
    assert messages_of(extended) == [("tool", "0", "c0.0", "look"), ("tool", "1", "c0.1", "look")]
    answer = (await game.draw("cut", finish="length", end="max_tokens", tokens=TOKENS)).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [one["logprob"] for one in answer["output"][0]["content"][0]["logprobs"]] == [-0.5, -0.25, -1.0]
    assert (await post("responses", input="x")).json()["error"]["code"] == "max_tokens"


async def test_responses_as_a_stream(game, post):
    await game.ask_by(post("responses", input="a", stream=True))
    found = events(await game.draw("I look.", CALLS[0], tokens=TOKENS))
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert [name.removeprefix("response.") for name, _ in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    assert found[-1][1]["response"]["output"][1]["arguments"] == '{"at":  1.0}'


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("messages", {"stop_sequences": "x" * 257}),
        ("messages", {"tool_choice": {"type": "any"}}),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("messages", {"messages": [user([{"type": "image", "source": {}}])]}),
        ("messages", {"messages": [{"role": "system", "content": "x"}]}),
        ("messages", {"messages": [user("a"), {"role": "assistant", "content": "prefill"}]}),
        ("messages", {"max_tokens": -1}),
        ("messages/count_tokens", {}),
        ("responses", {"previous_response_id": "resp_1"}),
        ("responses", {"background": True}),
        ("responses", {"stop": ["x"]}),
        ("responses", {"text": {"format": {"type": "json_schema"}}}),
        ("responses", {"tool_choice": "required"}),
        ("responses", {"tools": [{"type": "web_search"}]}),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("responses", {"input": [{"type": "function_call", "name": "x"}]}),
        ("responses", {"input": [user([{"type": "input_image", "image_url": "x"}])]}),
    ],
)
async def test_what_the_policy_cannot_do_is_refused_with_what_to_do(post, path, fields):
    whole = {"input": "a"} if path == "responses" else {"messages": [user("a")], "max_tokens": 9}
    refused = await post(path, **whole | fields)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert ";" in refused.json()["error"]["message"]


async def test_a_key_that_is_wrong_is_told_in_the_words_of_the_interface(game):
    refused = await game.agent.http.post(game.agent.url("messages"), json={}, headers={"x-api-key": "wrong"})
    assert (refused.status_code, refused.json()["type"], refused.json()["error"]["type"]) == (401, "error", "authentication_error")


async def test_a_stream_that_waits_says_that_it_is_alive_and_may_still_be_refused(begin_game):
    alive, refused = await begin_game(), await begin_game()
    for game in (alive, refused):
        await game.ask("a", stream=True)
    await asyncio.sleep(11)
    answer = await alive.draw("b")
    assert answer.text.startswith(": keep-alive\n\n")
    assert answer.text.endswith("data: [DONE]\n\n")
    answer = await refused.draw("", finish="none", end="context")
    assert answer.status_code == 200
    assert events(answer)[-1][1]["error"]["code"] == "context_length_exceeded"
