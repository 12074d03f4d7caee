"""An agent that plays the guessing game: the world is here, and the policy is asked as any model of OpenAI's interface is.

python examples/agents/play_guess.py RUN        # with GRADBUS_API_KEY, and AGENTS_URL of the agent service
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import httpx2
import openai

AT_A_TIME = 64
"""Episodes."""


async def play(http: httpx2.AsyncClient, openai_client: openai.AsyncOpenAI, episode: dict[str, Any]) -> None:
    """Plays one episode, and says how it went."""
    client = openai_client.with_options(base_url=episode["base_url"], api_key=episode["api_key"])
    letter, most = episode["item"]["letter"], episode["limits"]["max_turns"]
    messages: list[Any] = [{"role": "user", "content": episode["item"]["prompt"]}]
    end: dict[str, Any] = {"reward": 0.0, "components": {"found": 0.0}}
    try:
        for guesses in range(most):
            answer = await client.chat.completions.create(model=episode["model"], messages=messages)
            said = answer.choices[0].message
            if said.content == letter:
                end = {"reward": 1.0 - 0.1 * guesses, "components": {"found": 1.0}}
                break
            messages += [said.model_dump(exclude_none=True), {"role": "user", "content": "<" if letter < (said.content or "") else ">"}]
    except openai.PermissionDeniedError:
        pass  # a limit of the run is reached: the game counts as it stands
    except openai.APIError as error:
        end = {"status": "error", "reason": str(error)}
    path = f"{episode['base_url']}/agent/episodes/{episode['episode']}/end"
    await http.post(path, json={"attempt": episode["attempt"], **end}, headers={"Authorization": f"Bearer {episode['api_key']}"})


async def main(run: str) -> None:
    """Claims episodes of the run and plays them, until it is stopped."""
    headers = {"Authorization": f"Bearer {os.environ['GRADBUS_API_KEY']}"}
    # One client for all episodes: a new one reads the certificates of the machine, which takes longer than a turn.
    async with httpx2.AsyncClient(timeout=120) as http, openai.AsyncOpenAI(api_key="of each episode") as client:
        playing: set[asyncio.Task[None]] = set()
        while True:
            claim = {"run": run, "capacity": AT_A_TIME - len(playing), "wait_seconds": 30}
            claimed = await http.post(f"{os.environ['AGENTS_URL']}/v1/agent/claim", json=claim, headers=headers)
            claimed.raise_for_status()
            playing |= {asyncio.create_task(play(http, client, episode)) for episode in claimed.json()}
            if len(playing) >= AT_A_TIME:
                await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
            playing = {task for task in playing if not task.done()}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
