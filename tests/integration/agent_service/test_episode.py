"""An agent plays an episode: claim, requests, turns, end."""

import asyncio
import json

from gradbus.v1 import environment_service_pb2 as pb

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "How many?"}


def said(answer):
    return [(one.role, one.content, one.call_id, one.name) for one in answer.messages]


async def test_an_episode_of_a_question_a_tool_and_an_end(begin):
    worker, agent, opening = await begin()
    assert agent.offer["item"] == {"question": "2+2"}
    assert (agent.offer["model"], agent.offer["attempt"], agent.offer["lease_seconds"]) == (worker.run_id, 0, 20)
    assert agent.offer["traceparent"] is None
    asked = asyncio.create_task(agent.chat([{"role": "system", "content": "Be brief."}, USER], tools=TOOLS, max_tokens=7))
    opened = await opening
    worker.session = opened.session
    assert (opened.status, opened.max_new_tokens) == (OK, 7)
    assert [(one.role, one.content) for one in opened.conversation.messages] == [("system", "Be brief."), ("user", "How many?")]
    assert json.loads(opened.conversation.tools_json) == [{"name": "look", "description": "Looks.", "parameters": {"type": "object"}}]

    drawn = '{"x":  1.0, "y": true}'
    stepping = asyncio.create_task(worker.step("Let me look.", ("look", drawn), tokens=(11, [5, 6, 7], [-0.5, -0.25, -1.0], (2, 3))))
    answer = (await asked).json()
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["token_ids"], choice["logprobs"]) == ("tool_calls", [5, 6, 7], None)
    assert choice["message"]["content"] == "Let me look."
    assert choice["message"]["tool_calls"] == [{"id": "c0.0", "type": "function", "function": {"name": "look", "arguments": drawn}}]
    assert answer["usage"] == {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    assert answer["gradbus"] == {
        "episode": "train.0.0.0", "attempt": 0, "turn": 0, "outcome": "fork", "versions": [2, 3], "overridden_parameters": [], "stop": None
    }  # fmt: skip

    # The SDK between has written the arguments again, and None for an empty content.
    history = [{"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}, USER]
    back = choice["message"] | {"tool_calls": [{"id": "c0.0", "function": {"name": "look", "arguments": '{"y":true,"x":1}'}}]}
    result = {"role": "tool", "tool_call_id": "c0.0", "content": "four"}
    asked = asyncio.create_task(agent.chat([*history, back, result], tools=TOOLS))
    stepped = await stepping
    assert (stepped.status, said(stepped), stepped.HasField("after_turn"), stepped.HasField("conversation")) == (
        OK, [("tool", "four", "c0.0", "look")], False, False
    )  # fmt: skip

    stepping = asyncio.create_task(worker.step("4"))
    answer = (await asked).json()
    assert (answer["choices"][0]["finish_reason"], answer["gradbus"]["outcome"]) == ("stop", "extend")
    assert (await agent.show())["turns"] == 2
    ended = await agent.end(reward=1, components={"exact": 1})
    assert ended.status_code == 200
    over = await stepping
    assert (over.status, over.done, over.reward, dict(over.components)) == (OK, True, 1.0, {"exact": 1.0})
    assert (await agent.end(reward=1, components={"exact": 1})).status_code == 200, "a repeated end is answered as the first"
    assert (await agent.end(reward=0)).status_code == 410
    assert (await agent.chat("more")).status_code == 410
