"""Servers with tools and `/verify`: what Gym's `simple_agent` says to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gradbus_environment.answers import checked_reward, ok_answer, opening_messages, step_messages
from gradbus_environment.contract import Answer, Document, Move
from gradbus_environment.sandbox.world import MAX_TEXT, cut, error_text
from gradbus_environment.worlds.calls import arguments_of, executed_calls
from gradbus_environment.worlds.nemo_gym.responses_api import output_of, parameters_of, response_of, result_of, row_of
from gradbus_environment.worlds.nemo_gym.server import GymEpisode, GymFaultError, GymServer, InvalidEpisodeError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_RESERVED: Final = frozenset({"verify", "seed_session", "aggregate_metrics", "reverify_mode", "mcp"})
_FAULT: Final = 500
_ACCEPTED: Final = frozenset({200, 400, 404, 409, 422, _FAULT})
"""Statuses of a tool. What the policy may have caused, below 500, is told to it by the body."""


class GymTools:
    """Each call is a request of its own; `/verify` judges the whole conversation at the end."""

    def __init__(self, server: GymServer) -> None:
        self._server = server

    async def begin(self, episode: GymEpisode) -> Answer:
        """`/seed_session` with the row, whose messages and tools are the episode's."""
        parameters, messages, tools = row_of(episode.item)
        for tool in tools:
            if not _NAME.fullmatch(tool.name) or tool.name in _RESERVED:
                raise InvalidEpisodeError(f"the row's tool {tool.name[:80]!r} has a name that no tool of Gym has; rename it")
        await self._server.ask(episode, "/seed_session", {**episode.item, "responses_create_params": parameters})
        return Answer(messages=opening_messages(messages), tools=tools)

    async def turn(self, episode: GymEpisode, move: Move) -> Answer:
        """One request for each call; `/verify` if the episode ends, which a turn without calls does."""
        calls, assistant = executed_calls(move), move.assistant
        output = [*episode.output, *(output_of(move, calls) if assistant["finish"] != "none" else [])]
        known = {tool["name"] for tool in parameters_of(episode.item).get("tools") or []}
        results = []
        for call in calls:
            said = cut(await self._called(episode, call, known), MAX_TEXT)
            output.append(result_of(call["call_id"], said))
            results.append({"role": "tool", "call_id": call["call_id"], "content": said})
        messages = step_messages(results, move)
        reward: tuple[float | None, dict[str, float]] = (None, {})
        if move.is_last or not assistant["calls"]:
            reward = await self._verified(episode, move, output)
        episode.output = output
        return ok_answer(messages, *reward, done=False)

    async def _called(self, episode: GymEpisode, call: Mapping[str, str], known: set[str]) -> str:
        """The body of the tool's response, as it is."""
        arguments = arguments_of(call)
        if isinstance(arguments, str):
            return arguments
        if call["name"] not in known:  # the name becomes a path
            return error_text("unknown_tool", f"there is no tool {call['name'][:80]}; known: {', '.join(sorted(known)) or 'none'}")
        response = await self._server.call_tool(episode, call["name"], arguments, _ACCEPTED)
        text = response.body.decode("utf-8", "replace")
        if response.status == _FAULT:
            raise GymFaultError(f"{self._server.name} failed at /{call['name']}: {text[:400]}")
        return text

    async def _verified(self, episode: GymEpisode, move: Move, output: list[Document]) -> tuple[float | None, dict[str, float]]:
        parameters = parameters_of(episode.item)
        is_cut = move.assistant["finish"] == "length"
        response = response_of(output, parameters.get("tools"), name=episode.name, is_cut=is_cut)
        said = await self._server.ask(episode, "/verify", {**episode.item, "responses_create_params": parameters, "response": response})
        components = said.get("reward_components")
        return checked_reward(said.get("reward"), {} if components is None else components)
