"""An agent of pydantic-ai plays the calculator: the framework runs the loop of tools, and knows no more than a base_url and a key.

python examples/agents/play_calculator.py RUN        # with GRADBUS_API_KEY, and AGENTS_URL of the agent service
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import httpx2
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

AT_A_TIME = 64
"""Episodes."""

agent: Agent[None, str] = Agent()


@agent.tool_plain
def mul(left: int, right: int) -> str:
    """Multiplies two numbers."""
    return f"{left * right}."


async def play(http: httpx2.AsyncClient, episode: dict[str, Any]) -> None:
    """Plays one episode, and says how it went."""
    item = episode["item"]
    provider = OpenAIProvider(base_url=episode["base_url"], api_key=episode["api_key"], http_client=http)
    end: dict[str, Any] = {"reward": 0.0}
    try:
        said = await agent.run(item["prompt"], model=OpenAIChatModel(episode["model"], provider=provider))
        right = f"{item['left'] * item['right']}."
        exact, alike = float(said.output == right), sum(map(str.__eq__, said.output, right)) / max(len(said.output), len(right))
        end = {"reward": 0.5 * exact + 0.5 * alike, "components": {"exact": exact}}
    except ModelHTTPError as error:
        if error.status_code != httpx2.codes.FORBIDDEN:  # a limit of the run is reached: the answer is missing
            end = {"status": "error", "reason": str(error)}
    except AgentRunError:
        pass  # the framework gave up on what the model said
    path = f"{episode['base_url']}/agent/episodes/{episode['episode']}/end"
    await http.post(path, json={"attempt": episode["attempt"], **end}, headers={"Authorization": f"Bearer {episode['api_key']}"})


async def main(run: str) -> None:
    """Claims episodes of the run and plays them, until it is stopped."""
    headers = {"Authorization": f"Bearer {os.environ['GRADBUS_API_KEY']}"}
    async with httpx2.AsyncClient(timeout=120) as http:
        playing: set[asyncio.Task[None]] = set()
        while True:
            claim = {"run": run, "capacity": AT_A_TIME - len(playing), "wait_seconds": 30}
            claimed = await http.post(f"{os.environ['AGENTS_URL']}/v1/agent/claim", json=claim, headers=headers)
            claimed.raise_for_status()
            playing |= {asyncio.create_task(play(http, episode)) for episode in claimed.json()}
            if len(playing) >= AT_A_TIME:
                await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
            playing = {task for task in playing if not task.done()}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
