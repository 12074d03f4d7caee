"""Environments of verifiers play the episodes of a run: tasks, harness and rewards are theirs, and the policy is asked as their model.

By the Python of verifiers (0.4 was tried), beside a server of its own environment (`verifiers.v1.serve`):

    python examples/agents/play_verifiers.py rows TASKSET > train.jsonl                # the dataset of the run
    python examples/agents/play_verifiers.py play tcp://127.0.0.1:5000 RUN             # with GRADBUS_API_KEY, and AGENTS_URL

Tokens and log-probabilities are those of the run's own engine; of an episode of theirs the rewards and metrics are read, and its error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from typing import Any

from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.serve import EnvClient
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

AT_A_TIME = 32
"""Episodes."""
HEALTH_SECONDS, SILENT = 5.0, 3
"""A server that is asked so often and is silent so many times is given up: a run of theirs has no limit of time."""
JUDGED_NEVER = {"TaskError", "HarnessError"}
"""Errors that another attempt would meet again; the others are those of providers, tools and sandboxes."""
NO_KEY = "GRADBUS_EPISODE_KEY"
"""A variable that is not set: the key of an episode is in its address, for the server reads keys from its own variables."""


def verdict(episode: Any) -> dict[str, Any]:
    """The end of an episode, as the agent service takes it."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        kind = "invalid" if errors[-1].type in JUDGED_NEVER else "error"
        return {"status": kind, "reason": f"{errors[-1].type}: {errors[-1].message}"[:1000]}
    if not episode.traces or any(reward is None for trace in episode.traces for reward in trace.rewards.values()):
        return {"status": "error", "reason": "verifiers gave no reward"}
    metrics = {name: value for trace in episode.traces for name, value in trace.metrics.items() if value is not None}
    rewards = {name: reward.score for trace in episode.traces for name, reward in trace.rewards.items()}
    return {"reward": sum(trace.reward for trace in episode.traces), "components": metrics | rewards}


async def play(server: EnvClient, offer: dict[str, Any]) -> None:
    """Plays one episode, and says how it went."""
    root = offer["base_url"].removesuffix("/v1")
    client = EvalClientConfig(base_url=f"{root}/e/{offer['api_key']}/v1", api_key_var=NO_KEY)
    running = asyncio.create_task(server.run(client, offer["model"], SamplingConfig(), offer["item"]["task"]))
    watching = asyncio.create_task(watched(server, offer))
    await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        watching.cancel()
        end = {"status": "error", "reason": str(running.exception())[:1000]} if running.exception() else verdict(running.result())
    else:
        running.cancel()  # which their client tells the server
        end = {"status": "error", "reason": f"the environment server was silent for {SILENT * HEALTH_SECONDS:.0f} s"}
    await post(f"{offer['base_url']}/agent/episodes/{offer['episode']}/end", offer["api_key"], {"attempt": offer["attempt"], **end})


async def watched(server: EnvClient, offer: dict[str, Any]) -> None:
    """Returns when the server is silent. A server that lives keeps the episode, also while it scores."""
    silent = 0
    while silent < SILENT:
        await asyncio.sleep(HEALTH_SECONDS)
        silent = 0 if await server.health(timeout=HEALTH_SECONDS) else silent + 1
        await post(f"{offer['base_url']}/agent/episodes/{offer['episode']}/beat", offer["api_key"], {})


async def post(url: str, key: str, body: dict[str, Any]) -> Any:
    """The answer to a post; None if it is refused, as when the run has ended the episode."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        return await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request, timeout=90)))
    except OSError:
        return None


async def main(server_address: str, run: str) -> None:
    """Claims episodes for ever, and plays as many at a time as there is room for."""
    server, playing = EnvClient(server_address), set[asyncio.Task[None]]()
    await server.wait_for_server_startup()
    claim, key = f"{os.environ['AGENTS_URL']}/v1/agent/claim", os.environ["GRADBUS_API_KEY"]
    while True:
        offers = await post(claim, key, {"run": run, "capacity": AT_A_TIME - len(playing), "wait_seconds": 5})
        if offers is None:
            await asyncio.sleep(1.0)
        playing |= {asyncio.create_task(play(server, offer)) for offer in offers or ()}
        if len(playing) == AT_A_TIME:
            await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
        playing = {task for task in playing if not task.done()}


def rows(taskset: str) -> None:
    """Prints the tasks of a taskset, one a line: the prompt that Gradbus shows, and the task as their server takes it."""
    for task in load_taskset(taskset_config_type(taskset)(id=taskset)):
        data = task.data.model_dump(mode="json")
        print(json.dumps({"prompt": task.data.prompt_text or taskset, "task": data}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rows", taskset]:
            rows(taskset)
        case ["play", address, run]:
            asyncio.run(main(address, run))
        case _:
            sys.exit(__doc__)
