"""An episode from its claim to its end: what a request goes on from, what is a retry, and what a run's limits do to an agent."""

import asyncio
import json
import time

import pytest

from gradbus.v1 import environment_service_pb2 as pb

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
RETRY = {"x-stainless-retry-count": "1"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "How many?"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def said(answer):
    return [(one.role, one.content, one.call_id, one.name) for one in answer.messages]


async def test_an_episode_of_a_question_a_tool_and_an_end(begin):
    worker, agent, opening = await begin()
    assert agent.offer["item"] == {"question": "2+2"}
    assert (agent.offer["model"], agent.offer["attempt"], agent.offer["lease_seconds"]) == (worker.run_id, 0, 20)
    assert agent.offer["traceparent"] is None
    asked = asyncio.create_task(agent.chat([{"role": "system", "content": "Be brief."}, USER], tools=[LOOK], max_tokens=7))
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
    asked = asyncio.create_task(agent.chat([*history, back, result], tools=[LOOK]))
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


async def test_a_request_goes_on_from_an_earlier_turn_or_is_a_conversation_of_its_own(game):
    await game.ask([user("a")])
    await game.draw("b")
    extended = await game.ask([user("a"), assistant("b"), user("c"), user("d")])
    assert [one.content for one in extended.messages] == ["c", "d"]
    assert not extended.HasField("after_turn")
    await game.draw("e")
    forked = await game.ask([user("a"), assistant("b"), user("x")])
    assert ([one.content for one in forked.messages], forked.after_turn) == (["x"], 0)
    assert (await game.draw("y")).json()["gradbus"]["outcome"] == "extend"
    last = await game.ask([user("a"), assistant("b"), user("x"), assistant("y"), user("z")])
    assert ([one.content for one in last.messages], last.HasField("after_turn")) == (["z"], False)
    await game.draw("!")
    edited = await game.ask([user("a"), assistant("b!"), user("c")])
    assert [(one.role, one.content) for one in edited.conversation.messages] == [("user", "a"), ("assistant", "b!"), ("user", "c")]
    assert (await game.draw("f")).json()["gradbus"]["outcome"] == "fork"
    with_tools = await game.ask([user("a"), assistant("b"), user("c")], tools=TOOLS)
    assert (len(with_tools.conversation.messages), json.loads(with_tools.conversation.tools_json)[0]["name"]) == (3, "look")
    await game.draw("g")
    system = await game.ask([user("a"), assistant("b"), {"role": "system", "content": "s"}])
    assert len(system.conversation.messages) == 3, "a template takes no system message after a turn"
    await game.draw("h")
    shown = await game.agent.show()
    assert (shown["turns"], shown["extended"], shown["forked"]) == (7, 3, 4)


async def test_calls_of_the_conversation_go_to_the_worker_as_they_are(game):
    call = {"id": "mine", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    reply = await game.ask(
        [user("a"), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "mine", "content": "r"}]
    )
    _, called, result = reply.conversation.messages
    assert [(one.call_id, one.name, one.arguments_json) for one in called.calls] == [("mine", "look", "{}")]
    assert (result.call_id, result.name, result.content) == ("mine", "look", "r")
    await game.draw("b")


async def test_a_malformed_call_is_text(game):
    await game.ask("a")
    answer = await game.draw("hm ", ("", "<call>{", 2))
    (choice,) = answer.json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "hm <call>{")
    assert "tool_calls" not in choice["message"]
    extended = await game.ask([user("a"), choice["message"], user("that was no call")])
    assert [one.content for one in extended.messages] == ["that was no call"]
    await game.draw("b")


async def test_a_marked_retry_gets_the_same_bits_and_an_equal_request_draws_anew(game):
    await game.ask("a")
    retried = asyncio.create_task(game.agent.chat("a", RETRY))
    await asyncio.sleep(0.3)
    first = await game.draw("b")
    assert (await retried).content == first.content, "it joins the one in flight"
    assert (await game.agent.chat("a", RETRY)).content == first.content
    again = await game.ask("a")
    assert [one.content for one in again.conversation.messages] == ["a"]
    second = await game.draw("c")
    assert second.json()["gradbus"]["turn"] == 1
    third = await game.ask("a", headers=RETRY)
    assert [one.content for one in third.conversation.messages] == ["a"], "of two answered ones it could be either's"
    assert (await game.draw("d")).content not in {first.content, second.content}


async def test_of_one_body_sent_twenty_times_no_two_get_one_answer(game):
    async def sent():
        """As an SDK does: refused ones are sent again, and say so."""
        answer = await game.agent.chat("a")
        while answer.status_code == 429:
            await asyncio.sleep(0.2)
            answer = await game.agent.chat("a", RETRY)
        return answer.json()["gradbus"]["turn"]

    asked = [asyncio.create_task(sent()) for _ in range(20)]
    game.worker.session = (await game.opening).session
    await asyncio.sleep(0.5)
    for n in range(20):
        reply = asyncio.create_task(game.worker.step(f"{n}"))
        await asyncio.wait({reply}, timeout=5 if n < 19 else 0.1)
    assert sorted(await asyncio.gather(*asked)) == list(range(20))
    reply.cancel()


async def test_an_idempotency_key_names_one_request(game):
    key = {"idempotency-key": "k1"}
    await game.ask("a", headers=key)
    first = await game.draw("b")
    assert (await game.agent.chat("a", key)).content == first.content
    refused = await game.agent.chat("other", key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "idempotency_key_reused")


async def test_a_request_whose_connection_was_lost_is_found_again(game):
    asked = asyncio.create_task(game.agent.chat("a"))
    reply = await game.opening
    game.worker.session = reply.session
    asked.cancel()
    await asyncio.sleep(0.3)
    game.answering = asyncio.create_task(game.worker.step("b"))
    await asyncio.sleep(0.3)
    assert (await game.agent.chat("a")).json()["choices"][0]["message"]["content"] == "b"
    anew = asyncio.create_task(game.agent.chat("a"))
    assert (await game.answering).HasField("conversation"), "it was delivered now, so an equal one is another"
    anew.cancel()


async def test_a_request_that_is_lost_before_its_turn_is_dropped(game):
    await game.ask("a")
    waiting = asyncio.create_task(game.agent.chat("b"))
    await asyncio.sleep(0.3)
    waiting.cancel()
    await asyncio.sleep(0.3)
    await game.draw("1")
    reply = await game.ask("c")
    assert [one.content for one in reply.conversation.messages] == ["c"]
    await game.draw("2")


async def test_parallel_requests_wait_in_order_and_too_many_are_refused(game):
    asked = []
    for n in range(16):
        asked.append(asyncio.create_task(game.agent.chat(f"{n}")))
        await asyncio.sleep(0.03)
    refused = await game.agent.chat("17")
    assert (refused.status_code, refused.headers["retry-after"], refused.json()["error"]["type"]) == (429, "1", "rate_limit_error")
    game.worker.session = (await game.opening).session
    for n in range(16):
        game.answering = asyncio.create_task(game.worker.step(f"to {n}"))
        assert (await asked[n]).json()["choices"][0]["message"]["content"] == f"to {n}"
        if n < 15:
            assert [one.content for one in (await game.answering).conversation.messages] == [f"{n + 1}"]


async def test_of_sixteen_requests_at_once_as_many_are_drawn_as_the_run_allows(game):
    asked = []
    for n in range(16):
        asked.append(asyncio.create_task(game.agent.chat(f"{n}")))
        await asyncio.sleep(0.03)
    game.worker.session = (await game.opening).session
    for n in range(2):
        game.answering = asyncio.create_task(game.worker.step(f"to {n}"))
        await asked[n]
        await game.answering
    game.answering = asyncio.create_task(game.worker.step("to 2", end="max_turns"))
    answers = await asyncio.gather(*asked)
    assert [one.status_code for one in answers] == [200] * 3 + [403] * 13
    assert {one.json()["error"]["code"] for one in answers[3:]} == {"max_turns"}
    await game.agent.end(reward=1)
    assert (await game.answering).done


async def test_the_last_turn_is_given_and_the_end_is_waited_for(game):
    await game.ask("a")
    waiting = asyncio.create_task(game.agent.chat("b"))
    await asyncio.sleep(0.2)
    answer = await game.draw("cut", finish="length", end="max_tokens")
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    refused = await waiting
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "max_tokens")
    assert (await game.agent.chat("c")).status_code == 403
    await game.agent.end(reward=0.25)
    over = await game.answering
    assert (over.done, over.reward) == (True, 0.25)


@pytest.mark.parametrize(("end", "status", "code"), [("context", 400, "context_length_exceeded"), ("max_tokens", 403, "max_tokens")])
async def test_a_turn_without_room_is_refused(game, end, status, code):
    await game.ask("a")
    answer = await game.draw("", finish="none", end=end)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert (await game.agent.chat("b")).status_code == 403
    await game.agent.end(reward=1)
    assert (await game.answering).done


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"status": "invalid", "reason": "no such file"}, INVALID, "no such file"),
        ({"status": "error", "reason": "disk full"}, ERROR, "disk full"),
        ({"status": "error"}, ERROR, "the agent failed and gave no reason"),
    ],
)
async def test_an_agent_ends_an_episode_that_it_cannot_judge(game, body, status, reason):
    await game.ask("a")
    await game.draw("b")
    await game.agent.end(**body)
    over = await game.answering
    assert (over.status, over.reason, over.done) == (status, reason, False)


async def test_an_end_without_a_reward_has_none(game):
    await game.ask("a")
    await game.draw("b")
    await game.agent.end()
    over = await game.answering
    assert (over.done, over.HasField("reward")) == (True, False)


async def test_an_end_before_the_first_request_is_an_error(game):
    await game.agent.end(reward=1)
    opened = await game.opening
    assert (opened.status, "before it asked anything" in opened.reason) == (ERROR, True)


@pytest.mark.parametrize(
    "wrong",
    [{"reward": 1e9}, {"reward": "1"}, {"reward": True}, {"components": {"a": 1}}, {"status": "fine"}, {"reward": 1, "components": [1]}],
)
async def test_an_end_that_is_wrong_changes_nothing(game, wrong):
    await game.ask("a")
    assert (await game.agent.end(**wrong)).status_code == 400
    assert (await game.agent.end(attempt=5, reward=1)).status_code == 410
    await game.draw("b")
    await game.agent.end(reward=1)
    assert (await game.answering).done


async def test_a_repeated_step_gets_its_first_reply_and_another_one_is_refused(game):
    await game.ask("a")
    await game.draw("b")
    reply = await game.ask([user("a"), assistant("b"), user("c")])
    game.worker.turn -= 1
    again = await game.worker.step("b")
    assert again == reply
    game.worker.turn -= 1
    assert "another one before" in (await game.worker.step("other")).reason
    game.worker.turn += 3
    assert "send the turns in order" in (await game.worker.step("x")).reason
    game.worker.turn = 0
    await game.draw("d")


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2}, {"n": []}, {"best_of": {}}, {"logit_bias": {"1": 5}}, {"response_format": {"type": "json_object"}}, {"stop": [""]},
        {"stop": ["x"] * 17}, {"stop": [5]}, {"guided_json": {"type": "object"}}, {"min_tokens": 5}, {"top_logprobs": 3},
        {"tool_choice": "required"}, {"max_tokens": 0}, {"max_tokens": "7"}, {"stream": "yes"}, {"tools": [{"type": "web"}]},
        {"tools": TOOLS * 2}, {"messages": []}, {"messages": [assistant("a")]}, {"messages": [{"role": "robot", "content": "a"}]},
        {"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]}, {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [user("a")] * 4097}, {"messages": "a"},
    ],
)  # fmt: skip
async def test_what_the_policy_cannot_do_is_refused_with_what_to_do(game, fields):
    refused = await game.agent.http.post(
        game.agent.url("chat/completions"), json={"messages": [user("a")], **fields}, headers=game.agent.headers
    )
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert ";" in error["message"]


async def test_reading_a_body_stops_no_other_run(game, begin, http):
    _, other, opening = await begin()
    lists = b"[[]" + b",[]" * 80_000 + b"]"
    tools = b'[{"function": {"name": "f", "parameters": {"a": %b}}}]' % lists
    bodies = [b'{"messages": [{"role": "user", "content": "a"}], "%b": %b}' % part for part in ((b"x", lists), (b"tools", tools))]
    posts = [http.post(game.agent.url("chat/completions"), content=body, headers=game.agent.headers) for body in bodies * 4]
    asked = [asyncio.create_task(post) for post in posts]
    slowest = 0.0
    while not asked[-1].done():
        began = time.monotonic()
        await other.beat()
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1.0
    refused = [(await one).json()["error"]["message"] for one in asked[1::2]]
    assert refused == ["the tools have more than 16384 values; give fewer tools, or simpler parameters"] * 4
    opening.cancel()
    for one in asked:
        one.cancel()


async def test_sampling_parameters_are_the_runs_and_are_told(game):
    await game.ask("a", temperature=0.0, top_p=0.5, seed=3, n=1, stop=None, response_format={"type": "text"})
    answer = (await game.draw("b")).json()
    assert answer["gradbus"]["overridden_parameters"] == ["temperature", "top_p", "seed"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"messages": NaN}', b"\xff", b'{"a": "\\ud800"}'])
async def test_a_body_that_is_no_json_object_is_refused(game, content):
    refused = await game.agent.http.post(game.agent.url("chat/completions"), content=content, headers=game.agent.headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_body_that_is_too_large_is_refused(game):
    refused = await game.agent.http.post(game.agent.url("chat/completions"), content=b"x" * (4 << 20) + b"x", headers=game.agent.headers)
    assert refused.status_code == 413
