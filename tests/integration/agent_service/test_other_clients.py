"""Anthropic's own client, and OpenAI's for responses, play: nothing is changed but base_url and key."""

import pytest
from lazy_import import lazy_import

anthropic = lazy_import("anthropic")
openai = lazy_import("openai")

TOKENS = (11, [5, 6, 7], [-0.5, -0.25, -1.0], (2, 3))


async def test_messages_and_their_stream(game):
    client = anthropic.AsyncAnthropic(base_url=game.agent.offer["base_url"].removesuffix("/v1"), api_key=game.agent.offer["api_key"])
    tools = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}]
    fields = {"model": "m", "max_tokens": 9, "tools": tools}
    messages = [{"role": "user", "content": "How many?"}]
    await game.ask_by(client.messages.create(messages=messages, **fields))
    answer = await game.draw("I look.", ("look", '{"at": 1.0}'), tokens=TOKENS)
    assert (answer.stop_reason, answer.content[1].input, answer.usage.output_tokens) == ("tool_use", {"at": 1.0}, 3)
    result = {"type": "tool_result", "tool_use_id": answer.content[1].id, "content": "four"}
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]

    async def streamed():
        async with client.messages.stream(messages=messages, **fields) as stream:
            return await stream.get_final_message()

    extended = await game.ask_by(streamed())
    assert [(one.role, one.content, one.name) for one in extended.messages] == [("tool", "four", "look")]
    final = await game.draw("4", ("look", '{"at": 2}'), tokens=TOKENS)
    assert (final.content[0].text, final.content[1].input, final.stop_reason) == ("4", {"at": 2}, "tool_use")
    await game.agent.end(reward=1)
    with pytest.raises(anthropic.APIStatusError) as over:
        await client.messages.create(messages=messages, **fields)
    assert over.value.status_code == 410


async def test_responses_and_their_stream(game):
    client = openai.AsyncOpenAI(base_url=game.agent.offer["base_url"], api_key=game.agent.offer["api_key"])
    tools = [{"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": False}]
    given = [{"role": "user", "content": "How many?"}]
    await game.ask_by(client.responses.create(model="m", input=given, tools=tools))
    answer = await game.draw("I look.", ("look", '{"at": 1.0}'), tokens=TOKENS)
    assert (answer.output_text, answer.output[1].arguments, answer.usage.output_tokens) == ("I look.", '{"at": 1.0}', 3)
    given += [*answer.output, {"type": "function_call_output", "call_id": answer.output[1].call_id, "output": "four"}]

    async def streamed():
        async with client.responses.stream(model="m", input=given, tools=tools) as stream:
            return await stream.get_final_response()

    extended = await game.ask_by(streamed())
    assert [(one.role, one.content, one.name) for one in extended.messages] == [("tool", "four", "look")]
    final = await game.draw("4", ("look", '{"at": 2}'), tokens=TOKENS)
    assert (final.output_text, final.output[1].arguments) == ("4", '{"at": 2}')
