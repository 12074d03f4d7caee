"""Stop texts, turns that are not trained, and agents that begin again."""

import asyncio

import pytest
from lazy_import import lazy_import

from gradbus.v1 import environment_service_pb2 as pb

from .test_turns import RETRY, assistant, user

anthropic = lazy_import("anthropic")
openai = lazy_import("openai")

UNTRAINED = {"x-gradbus-train": "false"}


def client_of(game, **fields):
    return openai.AsyncOpenAI(base_url=game.agent.offer["base_url"], api_key=game.agent.offer["api_key"], **fields)


@pytest.mark.parametrize("stop", ["\nObservation:", ["###", "\nObservation:"]])
async def test_a_stop_text_of_openais_client(game, stop):
    asked = [user("a")]
    opened = await game.ask_by(client_of(game).chat.completions.create(model="m", messages=asked, stop=stop))
    assert list(opened.stop) == ([stop] if isinstance(stop, str) else stop)
    answer = await game.draw("I look.", stop_text="\nObservation:", tokens=(3, [7, 8, 9], [-1.0] * 3, (4, 4)))
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content, answer.usage.completion_tokens) == ("stop", "I look.", 3)
    assert answer.gradbus["stop"] == "\nObservation:"
    extended = await game.ask([*asked, assistant("I look."), user("four")])
    assert ([one.content for one in extended.messages], list(extended.stop)) == (["four"], [])
    await game.draw("b")


async def test_a_stop_text_of_anthropics_client(game):
    client = anthropic.AsyncAnthropic(base_url=game.agent.offer["base_url"].removesuffix("/v1"), api_key=game.agent.offer["api_key"])
    fields = {"model": "m", "max_tokens": 9, "messages": [user("a")]}
    opened = await game.ask_by(client.messages.create(stop_sequences=["###"], **fields))
    assert list(opened.stop) == ["###"]
    answer = await game.draw("I look.", stop_text="###")
    assert (answer.stop_reason, answer.stop_sequence, answer.content[0].text) == ("stop_sequence", "###", "I look.")

    async def streamed():
        async with client.messages.stream(stop_sequences=["##", "###"], **fields) as stream:
            return await stream.get_final_message()

    await game.ask_by(streamed())
    final = await game.draw("b", stop_text="##")
    assert (final.stop_reason, final.stop_sequence, final.content[0].text) == ("stop_sequence", "##", "b")


async def test_untrained_requests_are_conversations_of_their_own_and_count_as_no_turns(game):
    conversation = [user("a")]
    await game.ask(conversation)
    await game.draw("b")
    chat = client_of(game)
    whole = [*conversation, assistant("b"), user("Sum it up.")]
    opened = await game.ask_by(chat.chat.completions.create(model="m", messages=whole, extra_headers=UNTRAINED))
    assert opened.conversation.untrained
    assert [one.content for one in opened.conversation.messages] == ["a", "b", "Sum it up."]
    answer = await game.draw("sum", ("look", "{}"), untrained=True)
    assert (answer.gradbus["outcome"], answer.gradbus["turn"], answer.id[-2:]) == ("untrained", None, "u0")
    assert answer.choices[0].message.tool_calls[0].id == "u0.0"
    model = (await chat.models.list()).data[1].id
    assert (await chat.models.retrieve(model)).id == model == f"{game.worker.run_id}:untrained"
    opened = await game.ask_by(chat.responses.create(model=model, input="Judge."))
    assert opened.conversation.untrained
    second = await game.draw("fine", untrained=True)
    assert (second.output_text, second.id[-2:]) == ("fine", "u1")
    extended = await game.ask([*conversation, assistant("b"), user("c")])
    assert not extended.HasField("conversation")
    assert ([one.content for one in extended.messages], extended.HasField("after_turn")) == (["c"], False)
    assert (await game.draw("d")).json()["gradbus"]["turn"] == 1
    shown = await game.agent.show()
    assert (shown["turns"], shown["untrained"], shown["extended"], shown["forked"]) == (2, 2, 1, 1)


async def test_a_request_goes_on_from_no_untrained_turn(game):
    await game.ask([user("a")], headers=UNTRAINED)
    await game.draw("b", untrained=True)
    trained = await game.ask([user("a"), assistant("b"), user("c")])
    assert [one.content for one in trained.conversation.messages] == ["a", "b", "c"]
    assert not trained.conversation.untrained
    await game.draw("d")


async def test_an_equal_request_that_is_trained_is_no_retry_of_an_untrained_one(game):
    await game.ask("a", headers=UNTRAINED)
    await game.draw("b", untrained=True)
    await game.ask("a", headers=RETRY)
    assert (await game.draw("c")).json()["choices"][0]["message"]["content"] == "c"


async def test_so_many_untrained_turns_are_drawn(begin_game):
    game = await begin_game(max_turns=1)
    for number in range(4):
        await game.ask(f"{number}", headers=UNTRAINED)
        await game.draw("b", untrained=True)
    refused = await game.agent.chat("4", headers=UNTRAINED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "untrained_limit")
    await game.ask("4")
    assert (await game.draw("b")).status_code == 200


async def test_untrained_requests_without_room_are_counted_as_untrained_turns(begin_game):
    game = await begin_game(max_turns=1)
    for _ in range(4):
        await game.ask("a", headers=UNTRAINED)
        request = game.worker.request("", finish="none", end="context", untrained=True)
        request.is_last = False
        game.answering = asyncio.ensure_future(game.worker.stub.Step(request, timeout=60))
        assert (await game.asked).json()["error"]["code"] == "context_length_exceeded"
    shown = await game.agent.show()
    assert (shown["untrained"], shown["refused"], shown["limit"]) == (4, 0, None)
    assert (await game.agent.chat("a", headers=UNTRAINED)).json()["error"]["code"] == "untrained_limit"
    await game.ask("b")
    assert (await game.draw("c")).status_code == 200


async def test_another_value_of_the_header_is_refused(game):
    refused = await game.agent.chat("a", headers={"x-gradbus-train": "maybe"})
    assert (refused.status_code, "true nor false" in refused.json()["error"]["message"]) == (400, True)


async def restart(game):
    path = f"agent/episodes/{game.agent.offer['episode']}/restart"
    return await game.agent.http.post(game.agent.url(path), headers=game.agent.headers)


async def test_an_agent_that_begins_again_gets_the_answers_that_it_had_and_then_new_ones(game):
    first = []
    for text in ("b", "c"):  # the same question twice
        await game.ask("a")
        first.append(await game.draw(text))
    await game.ask([user("a"), assistant("b"), user("d")])
    first.append(await game.draw("e"))
    lost = await game.ask("f", headers=UNTRAINED)
    assert lost.conversation.untrained
    await game.draw("g", untrained=True)
    for _ in range(2):  # as often as it likes
        again = await restart(game)
        assert (again.status_code, again.json()) == (200, {"answers": 4})
        assert (await game.agent.chat("a")).content == first[0].content
        assert (await game.agent.chat("a", RETRY)).content == first[0].content, "an SDK's retry is of the newest one"
        assert (await game.agent.chat("a")).content == first[1].content
        other = await game.agent.http.post(
            game.agent.url("responses"),
            json={"input": [user("a"), {"role": "assistant", "content": "b"}, user("d")]},
            headers=game.agent.headers,
        )
        assert other.json()["output"][0]["content"][0]["text"] == "e", "in whatever interface"
        assert (await game.agent.chat("f", UNTRAINED)).json()["gradbus"]["outcome"] == "untrained"
    extended = await game.ask([user("a"), assistant("b"), user("d"), assistant("e"), user("h")])
    assert [one.content for one in extended.messages] == ["h"]
    assert (await game.draw("i")).json()["gradbus"]["turn"] == 3
    await game.ask("a")
    assert (await game.draw("new")).json()["gradbus"]["turn"] == 4, "its third answer was never given"


async def test_other_terms_are_another_question(game):
    await game.ask("a", max_tokens=5)
    await game.draw("b")
    await restart(game)
    await game.ask("a", max_tokens=6)
    await game.draw("c")
    await game.ask("a", max_tokens=5, stop="x")
    await game.draw("d")
    assert (await game.agent.chat("a", max_tokens=5)).json()["choices"][0]["message"]["content"] == "b"


async def test_after_the_runs_limit_an_agent_begins_again_and_ends(game):
    await game.ask("a")
    await game.draw("b", end="max_turns")
    await restart(game)
    assert (await game.agent.chat("a")).json()["choices"][0]["message"]["content"] == "b"
    assert (await game.agent.chat("c")).status_code == 403
    await game.agent.end(reward=1)
    assert (await game.answering).done
    assert (await restart(game)).status_code == 410


async def test_after_the_runs_limit_beginning_again_does_not_put_off_the_end(begin_game):
    game = await begin_game(step_seconds=1)
    await game.ask("a")
    await game.draw("b", end="max_turns")
    async with asyncio.timeout(30):
        while (await restart(game)).status_code == 200:
            assert (await game.agent.chat("a")).status_code in (200, 410)
    answer = await game.answering
    assert (answer.status, "did not end it within 1 s of the run's limit" in answer.reason) == (pb.ENVIRONMENT_STATUS_ERROR, True)
