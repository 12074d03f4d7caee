"""An agent that plays the guessing game of examples/guess over HTTP, as a user's own would."""

import asyncio
import importlib.util
import random
import sys
import threading
import time
from pathlib import Path

import httpx2

EXAMPLE = Path(__file__).parents[2] / "examples" / "guess"


def make_game(folder):
    """Model and data of the game."""
    spec = importlib.util.spec_from_file_location("make_guess", EXAMPLE / "make_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.make(folder)


def agent_spec(game, steps):
    """A short run of the game, played by an agent that claims."""
    return {
        "name": "guess-by-agent",
        "model": {"path": str(game / "model")},
        "data": {"train": str(game / "letters.jsonl"), "eval": str(game / "letters.jsonl")},
        "environment": {"agent": "pull", "max_turns": 4, "step_seconds": 5},
        "rollout": {"slots": 32, "group_size": 4, "max_new_tokens": 2, "stop_token_ids": list(range(3, 18))},
        "schedule": {"groups_per_step": 8, "steps": steps},
        "checkpoint": {"every": 4, "keep": 100},
        "evaluation": {"every": steps, "samples": 15, "metric": "found"},
    }


def run_id_of(client):
    """The id of the first run, as soon as there is one."""
    while not (found := client.runs_page().data):
        time.sleep(0.1)
    return found[0].id


class ClaimingAgent:
    """Claims episodes and plays each by `episode`, until it is stopped."""

    def __init__(self, url, key, run, players=16):
        self.url, self.headers, self.run, self.players = url, {"authorization": f"Bearer {key}"}, run, players
        self.stopping = False
        self.thread = threading.Thread(target=lambda: asyncio.run(self.play()), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.thread.join(60)

    async def play(self):
        async with httpx2.AsyncClient(timeout=600, trust_env=False) as http:  # as long as OpenAI's SDK waits
            await asyncio.gather(*(self.player(http) for _ in range(self.players)))

    async def player(self, http):
        claim = {"run": self.run, "capacity": 1, "wait_seconds": 1}
        while not self.stopping:
            try:
                for episode in (await http.post(f"{self.url}/v1/agent/claim", json=claim, headers=self.headers)).json():
                    await self.episode(http, episode)
            except httpx2.TransportError:
                await asyncio.sleep(0.1)  # the service comes with the run, and after its death


class GuessingAgent(ClaimingAgent):
    """Plays the game. `dies`: the share of episodes that it leaves without a word. `told`: ids of the turns of episodes that it ended."""

    def __init__(self, url, key, run, dies=0.0, players=16):
        super().__init__(url, key, run, players)
        self.dies, self.random = dies, random.Random(0)
        self.ended, self.outcomes, self.drawn, self.faults = [], [], 0, []
        self.told = {}

    async def episode(self, http, episode):
        headers, letter, guesses = {"authorization": f"Bearer {episode['api_key']}"}, episode["item"]["letter"], 0
        messages, said, told = [{"role": "user", "content": episode["item"]["prompt"]}], None, []
        while said != letter and guesses < episode["limits"]["max_turns"]:
            body = {"model": episode["model"], "messages": messages}
            answer = await http.post(f"{episode['base_url']}/chat/completions", json=body, headers=headers)
            if answer.status_code == 403:  # a limit of the run: a turn was cut off
                break
            if answer.status_code != 200:
                self.faults.append(answer.status_code)
                return
            answer = answer.json()
            self.outcomes.append(answer["gradbus"]["outcome"])
            self.drawn += answer["usage"]["completion_tokens"]
            told.append(tuple(answer["choices"][0]["token_ids"]))
            said, guesses = answer["choices"][0]["message"]["content"], guesses + 1
            messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "<" if letter < said else ">"}]
            if self.random.random() < self.dies:
                return
        end = {"attempt": episode["attempt"], "reward": 1.0 - 0.1 * guesses, "components": {"found": float(said == letter)}}
        path = f"{episode['base_url']}/agent/episodes/{episode['episode']}/end"
        self.told.setdefault(episode["episode"], []).append(told)
        self.ended.append((await http.post(path, json=end, headers=headers)).status_code)
