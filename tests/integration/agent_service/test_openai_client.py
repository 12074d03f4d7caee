"""OpenAI's own client plays: nothing is changed but base_url and key."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from lazy_import import lazy_import

from gradbus.v1 import environment_service_pb2 as pb

openai = lazy_import("openai")

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}]
TOKENS = (11, [5, 6, 7], [-0.5, -0.25, -1.0], (2, 3))


@pytest.fixture
def client(begin):
    """A client for an episode of its own, with the worker and its opening."""

    async def made(**fields):
        worker, agent, opening = await begin()
        return openai.AsyncOpenAI(base_url=agent.offer["base_url"], api_key=agent.offer["api_key"], **fields), worker, agent, opening

    return made


async def test_a_loop_of_tools(client):
    chat, worker, agent, opening = await client()
    messages = [{"role": "user", "content": "How many?"}]
    asked = asyncio.create_task(chat.chat.completions.create(model="m", messages=messages, tools=TOOLS, temperature=1.0))
    worker.session = (await opening).session
    stepping = asyncio.create_task(worker.step("I look.", ("look", '{"at": 1.0}'), ("look", "{}"), tokens=TOKENS))
    answer = await asked
    said = answer.choices[0].message
    assert [call.function.arguments for call in said.tool_calls] == ['{"at": 1.0}', "{}"]
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("tool_calls", 3)
    messages += [said.model_dump(), *({"role": "tool", "tool_call_id": call.id, "content": "4"} for call in said.tool_calls)]
    asked = asyncio.create_task(chat.chat.completions.create(model="m", messages=messages, tools=TOOLS))
    stepped = await stepping
    assert [(one.call_id, one.name, one.content) for one in stepped.messages] == [("c0.0", "look", "4"), ("c0.1", "look", "4")]
    stepping = asyncio.create_task(worker.step("4"))
    assert (await asked).choices[0].message.content == "4"
    await agent.end(reward=1)
    assert (await stepping).done
    with pytest.raises(openai.APIStatusError) as over:
        await chat.chat.completions.create(model="m", messages=messages)
    assert over.value.status_code == 410


async def test_a_stream(client):
    chat, worker, _, opening = await client()
    asked = await_stream(chat, logprobs=True)
    worker.session = (await opening).session
    stepping = asyncio.create_task(worker.step("I look.", ("look", '{"at": 1}'), tokens=TOKENS))
    chunks = await asked
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    (call,) = [call for one in chunks if one.choices for call in one.choices[0].delta.tool_calls or ()]
    assert (text, call.id, call.function.name, call.function.arguments) == ("I look.", "c0.0", "look", '{"at": 1}')
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "tool_calls"
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (11, 3)
    (logprobs,) = [one.choices[0].logprobs for one in chunks if one.choices and one.choices[0].logprobs]
    assert [(one.token, one.logprob) for one in logprobs.content] == [("token_id:5", -0.5), ("token_id:6", -0.25), ("token_id:7", -1.0)]
    stepping.cancel()


def await_stream(chat, **fields):
    async def collected():
        messages, options = [{"role": "user", "content": "a"}], {"include_usage": True}
        stream = await chat.chat.completions.create(model="m", messages=messages, stream=True, stream_options=options, **fields)
        return [one async for one in stream]

    return asyncio.create_task(collected())


async def test_a_stream_with_its_helper(client):
    chat, worker, _, opening = await client()

    async def collected():
        async with chat.chat.completions.stream(model="m", messages=[{"role": "user", "content": "a"}], tools=TOOLS) as stream:
            return await stream.get_final_completion()

    asked = asyncio.create_task(collected())
    worker.session = (await opening).session
    stepping = asyncio.create_task(worker.step("I look.", ("look", "{}"), tokens=TOKENS))
    final = await asked
    assert (final.choices[0].message.content, final.choices[0].message.tool_calls[0].function.arguments) == ("I look.", "{}")
    stepping.cancel()


async def test_a_stream_that_is_refused_raises(client):
    chat, worker, agent, opening = await client()
    asked = await_stream(chat)
    worker.session = (await opening).session
    stepping = asyncio.create_task(worker.step("", finish="none", end="context"))
    with pytest.raises(openai.BadRequestError) as refused:
        await asked
    assert refused.value.code == "context_length_exceeded"
    await agent.end(reward=0)
    assert (await stepping).status == pb.ENVIRONMENT_STATUS_OK


async def test_its_retry_after_a_time_limit_joins_the_request_in_flight(client):
    chat, worker, agent, opening = await client(timeout=1.0, max_retries=2)
    asked = asyncio.create_task(chat.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}]))
    worker.session = (await opening).session
    await asyncio.sleep(1.8)
    stepping = asyncio.create_task(worker.step("b", tokens=TOKENS))
    answer = await asked
    assert (answer.choices[0].message.content, answer.gradbus["turn"]) == ("b", 0)
    shown = await agent.show()
    assert (shown["turns"], shown["replayed"]) == (1, 1)
    await agent.end(reward=1)
    assert (await stepping).done


async def test_it_lists_the_models(client):
    chat, worker, _, opening = await client()
    assert [one.id async for one in await chat.models.list()] == [worker.run_id, f"{worker.run_id}:untrained"]
    assert (await chat.models.retrieve(worker.run_id)).id == worker.run_id
    opening.cancel()


async def test_the_example_plays_its_game(client, http):
    chat, worker, agent, opening = await client()
    path = Path(__file__).parents[3] / "examples" / "agents" / "play_guess.py"
    spec = importlib.util.spec_from_file_location("play_guess", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    agent.offer["item"] = {"prompt": "a-o:", "letter": "c"}
    playing = asyncio.create_task(example.play(http, chat, agent.offer))
    worker.session = (await opening).session
    assert [one.content for one in (await worker.step("h")).messages] == ["<"]
    assert [one.content for one in (await worker.step("b")).messages] == [">"]
    over = await worker.step("c")
    assert (over.done, over.reward, dict(over.components)) == (True, pytest.approx(0.8), {"found": 1.0})
    await playing
