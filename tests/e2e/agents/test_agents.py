"""An agent of the user's own plays a whole run over HTTP: claims, chat completions, rewards."""

import asyncio
import importlib.util
import json
import sys
import threading
from pathlib import Path

import httpx2
import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "guess"
PLAYERS = 16


@pytest.fixture(scope="session")
def game(tmp_path_factory):
    """Model and data of the guessing game."""
    spec = importlib.util.spec_from_file_location("make_guess", EXAMPLE / "make_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.make(tmp_path_factory.mktemp("game"))


class Agent:
    """Plays the guessing game until it is stopped."""

    def __init__(self, url, key, run):
        self.url, self.key, self.run = url, key, run
        self.ended, self.outcomes, self.drawn, self.faults = [], [], 0, []
        self.stopping = False
        self.thread = threading.Thread(target=lambda: asyncio.run(self.play()), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.thread.join(60)

    async def play(self):
        async with httpx2.AsyncClient(timeout=120, trust_env=False) as http:
            await asyncio.gather(*(self.player(http) for _ in range(PLAYERS)))

    async def player(self, http):
        claim = {"run": self.run, "capacity": 1, "wait_seconds": 1}
        while not self.stopping:
            try:
                claimed = await http.post(f"{self.url}/v1/agent/claim", json=claim, headers={"authorization": f"Bearer {self.key}"})
            except httpx2.TransportError:
                await asyncio.sleep(0.1)  # the service comes with the run
                continue
            for episode in claimed.json():
                await self.episode(http, episode)

    async def episode(self, http, episode):
        headers, letter, guesses = {"authorization": f"Bearer {episode['api_key']}"}, episode["item"]["letter"], 0
        messages, said = [{"role": "user", "content": episode["item"]["prompt"]}], None
        while said != letter and guesses < episode["limits"]["max_turns"]:
            body = {"model": episode["model"], "messages": messages}
            answer = await http.post(f"{episode['base_url']}/chat/completions", json=body, headers=headers)
            if answer.status_code == 403:  # a limit of the run: a turn was cut off
                break
            if answer.status_code != 200:
                self.faults.append(answer.text)
                break
            answer = answer.json()
            self.outcomes.append(answer["gradbus"]["outcome"])
            self.drawn += answer["usage"]["completion_tokens"]
            said = answer["choices"][0]["message"]["content"]
            guesses += 1
            messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "<" if letter < said else ">"}]
        end = {"attempt": episode["attempt"], "reward": 1.0 - 0.1 * guesses, "components": {"found": float(said == letter)}}
        path = f"{episode['base_url']}/agent/episodes/{episode['episode']}/end"
        self.ended.append((await http.post(path, json=end, headers=headers)).status_code)


def spec_of(game):
    return {
        "name": "guess-by-agent",
        "model": {"path": str(game / "model")},
        "data": {"train": str(game / "letters.jsonl"), "eval": str(game / "letters.jsonl")},
        "environment": {"agent": "pull", "max_turns": 4},
        "rollout": {"slots": 32, "group_size": 4, "max_new_tokens": 2, "stop_token_ids": list(range(3, 18))},
        "schedule": {"groups_per_step": 8, "steps": 4},
        "evaluation": {"every": 4, "samples": 15, "metric": "found"},
    }


def test_an_agent_plays_a_run(lab, game):
    url = f"http://127.0.0.1:{json.loads((lab.state / 'ports.json').read_text())['agent.http']}"
    run_id = lab.submit(spec_of(game))
    with Agent(url, (lab.state / "secrets" / "api-key").read_text(), run_id) as agent:
        run = lab.ends(run_id)
    assert lab.learned(run)
    assert agent.faults == []
    assert set(agent.ended) == {200}
    assert {"extend", "fork"} == set(agent.outcomes)
    assert agent.drawn >= len(agent.outcomes), "the usage is exact"
    assert len(lab.samples(run_id)) >= 4 * 8
    lab.gone("agent")
