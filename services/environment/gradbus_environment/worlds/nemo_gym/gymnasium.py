"""Servers with `/reset` and `/step`: what Gym's `gymnasium_agent` says to them."""

from __future__ import annotations

from typing import Any

from gradbus_environment.answers import AnswerError, checked_reward, ok_answer, opening_messages, step_messages
from gradbus_environment.contract import Answer, Document, Move
from gradbus_environment.sandbox.world import MAX_TEXT, cut
from gradbus_environment.worlds.nemo_gym.responses_api import output_of, parameters_of, response_of, row_of
from gradbus_environment.worlds.nemo_gym.server import GymEpisode, GymServer


class Gymnasium:
    """Each turn is one `/step` with the turn's response, its answer the results of calls and what is observed."""

    def __init__(self, server: GymServer) -> None:
        self._server = server

    async def begin(self, episode: GymEpisode) -> Answer:
        """`/reset` with the row. What it observes follows the row's messages."""
        parameters, messages, tools = row_of(episode.item)
        said = await self._server.ask(episode, "/reset", {**episode.item, "responses_create_params": parameters})
        info = said["info"] if isinstance(said.get("info"), dict) else {}
        episode.is_repeatable = info.get("supports_step_idempotency") is True
        episode.closes = info.get("supports_explicit_close") is True
        return Answer(messages=opening_messages([*messages, *_observed(said)]), tools=tools)

    async def turn(self, episode: GymEpisode, move: Move) -> Answer:
        """`/step`. A malformed call is text to the server, as it is to Gym."""
        assistant = move.assistant
        if assistant["finish"] == "none":
            return ok_answer([], None, {}, done=False)  # the last turn was judged with its own step
        is_cut = assistant["finish"] == "length"
        calls = [] if is_cut else [call for call in assistant["calls"] if call["status"] != "malformed"]
        parameters = parameters_of(episode.item)
        name = f"{episode.name}.{move.turn}"
        response = response_of(output_of(move, calls), parameters.get("tools"), name=name, is_cut=is_cut)
        body = {**episode.item, "responses_create_params": parameters, "response": response}
        if episode.is_repeatable:
            body["_ng_step_request_id"] = name[-128:]
        said = await self._server.ask(episode, "/step", body)
        done = _flag(said, "terminated") or _flag(said, "truncated")
        results = _results(said, move)
        answered = {one["call_id"] for one in results}
        # A server may answer a call by what is observed alone.
        empty = [{"role": "tool", "call_id": call["call_id"], "content": ""} for call in calls if call["status"] == "ok"]
        given = [*results, *(one for one in empty if one["call_id"] not in answered)]
        messages = step_messages([*given, *_observed(said)], move)
        return ok_answer(messages, *checked_reward(said.get("reward"), {}), done)


def _flag(said: Document, name: str) -> bool:
    value = said.get(name, False)
    if not isinstance(value, bool):
        raise AnswerError(f"{name} is neither true nor false")
    return value


def _observed(said: Document) -> list[Document]:
    observed = said.get("observation")
    if observed is not None and not isinstance(observed, str):
        raise AnswerError("observation is no text")
    return [{"role": "user", "content": cut(observed, MAX_TEXT)}] if observed else []


def _results(said: Document, move: Move) -> list[Document]:
    info: Any = said.get("info")
    given = info.get("tool_outputs", []) if isinstance(info, dict) else []
    if not isinstance(given, list) or len(given) > len(move.assistant["calls"]):
        raise AnswerError("info.tool_outputs is no list with at most one output for each call")
    results = []
    for one in given:
        match one:
            case {"call_id": str(call_id), "output": str(output)}:
                results.append({"role": "tool", "call_id": call_id, "content": cut(output, MAX_TEXT)})
            case _:
                raise AnswerError("an output of info.tool_outputs has no call_id and output that are texts")
    return results
