"""Agents of a user's own play a run's episodes: they know a base_url and a key, and speak OpenAI's chat completions over HTTP."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

AT_A_TIME = 8


class Agents:
    """Claims episodes of a run in a thread, and plays each by `play(ask, episode)`, which returns the reward."""

    def __init__(self, lab, play):
        port = json.loads((lab.state / "ports.json").read_text())["agent.http"]
        self.claims = f"http://127.0.0.1:{port}/v1/agent/claim"
        key = (lab.state / "secrets" / "api-key").read_text().strip()
        self.http = httpx2.Client(timeout=120, headers={"Authorization": f"Bearer {key}"})
        self.play, self.ended, self.refused, self.stopped = play, {}, [], threading.Event()

    def serve(self, run_id):
        """Until the block that `playing` opened is over."""
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            while not self.stopped.is_set():
                try:
                    claimed = self.http.post(self.claims, json={"run": run_id, "capacity": AT_A_TIME, "wait_seconds": 1})
                except httpx2.TransportError:  # the service is not started yet
                    self.stopped.wait(0.2)
                    continue
                if claimed.status_code == 200:
                    list(pool.map(self._episode, claimed.json()))
                else:
                    self.stopped.wait(0.2)

    def _episode(self, episode):
        with httpx2.Client(
            base_url=f"{episode['base_url']}/", headers={"Authorization": f"Bearer {episode['api_key']}"}, timeout=120
        ) as http:

            def ask(messages, **fields):
                answer = http.post("chat/completions", json={"model": episode["model"], "messages": messages, **fields})
                if answer.status_code != 200:
                    self.refused.append((answer.status_code, answer.json()["error"]["code"]))
                    return None
                return answer.json()

            reward = self.play(ask, episode)
            end = {"attempt": episode["attempt"], "reward": reward}
            self.ended[episode["episode"]] = http.post(f"agent/episodes/{episode['episode']}/end", json=end).status_code


@pytest.fixture
def played(lab):
    """Trains a run whose episodes are played; the run and the agents."""

    def train(body, play):
        run_id = lab.submit(body)
        agents = Agents(lab, play)
        thread = threading.Thread(target=agents.serve, args=(run_id,))
        thread.start()
        try:
            return lab.ends(run_id), agents
        finally:
            agents.stopped.set()
            thread.join()
            agents.http.close()

    return train


def text_of(answer):
    return answer["choices"][0]["message"]["content"] or ""


def test_an_agent_that_goes_on_and_compacts_trains_each_drawn_token_once(lab, episodes, played):
    drawn = {}

    def play(ask, episode):
        question = [{"role": "user", "content": episode["item"]["word"]}]
        said = []
        for messages in (
            lambda: question,
            lambda: [*question, {"role": "assistant", "content": text_of(said[0])}, {"role": "user", "content": "and"}],
            lambda: [{"role": "user", "content": "star"}],  # its history made short
        ):
            if (answer := ask(messages())) is None:
                break
            said.append(answer)
        drawn.setdefault(episode["episode"], [answer["choices"][0]["token_ids"] for answer in said])
        return sum(len(set(text_of(answer))) for answer in said) / 64

    body = episodes(environment={"agent": "pull", "max_turns": 4}, schedule={"groups_per_step": 4, "steps": 2})
    run, agents = played(body, play)
    assert [step["noop"] for step in lab.events(run["id"], "metrics")] == [False, False]
    shown = lab.client.samples(run["id"], limit=1000, include="tokens")["data"]
    assert len(shown) == 2 * 4 * run["spec"]["rollout"]["group_size"]
    assert set(agents.ended.values()) == {200}
    for sample in shown:
        sequences = [sample["tokens"], *sample["tokens"]["forks"]]
        turns = sample["episode"]["turns"]
        spans = [span for span in sample["versions"] if span["trainable"]]
        trained = [sequences[span["sequence"]]["ids"][span["start"] : span["end"]] for span in spans]
        assert trained == [sequences[turn["sequence"]]["ids"][turn["start"] : turn["end"]] for turn in turns]
        assert trained in drawn.values(), "what the agent was told is what is trained"
    assert max(len(sample["tokens"]["forks"]) for sample in shown) == 1
    lab.gone("agent")
    assert not [refusal for refusal in agents.refused if refusal[1] not in {"length", "context", "context_length_exceeded"}]
