"""Agents of a user's own play a run's episodes: they know a base_url and a key, and speak OpenAI's chat completions over HTTP."""

import json

from guessing_agent import ClaimingAgent

from gradbus.client import document


class CompactingAgent(ClaimingAgent):
    """Asks, goes on, and makes its history short. `drawn`: the ids that it was told, by episode."""

    def __init__(self, lab, run):
        port = json.loads((lab.state / "ports.json").read_text())["agent.http"]
        super().__init__(f"http://127.0.0.1:{port}", (lab.state / "secrets" / "api-key").read_text(), run, players=8)
        self.drawn, self.ended, self.refused = {}, {}, []

    async def episode(self, http, episode):
        headers = {"authorization": f"Bearer {episode['api_key']}"}
        question, said = [{"role": "user", "content": episode["item"]["word"]}], []
        for messages in (
            lambda: question,
            lambda: [*question, {"role": "assistant", "content": text_of(said[0])}, {"role": "user", "content": "and"}],
            lambda: [{"role": "user", "content": "star"}],
        ):
            body = {"model": episode["model"], "messages": messages()}
            answer = await http.post(f"{episode['base_url']}/chat/completions", json=body, headers=headers)
            if answer.status_code != 200:
                self.refused.append((answer.status_code, answer.json()["error"]["code"]))
                break
            said.append(answer.json())
        self.drawn.setdefault(episode["episode"], [answer["choices"][0]["token_ids"] for answer in said])
        end = {"attempt": episode["attempt"], "reward": sum(len(set(text_of(answer))) for answer in said) / 64}
        path = f"{episode['base_url']}/agent/episodes/{episode['episode']}/end"
        self.ended[episode["episode"]] = (await http.post(path, json=end, headers=headers)).status_code


def text_of(answer):
    return answer["choices"][0]["message"]["content"] or ""


def test_an_agent_that_goes_on_and_compacts_trains_each_drawn_token_once(lab, episodes):
    run_id = lab.submit(episodes(environment={"agent": "pull", "max_turns": 4}, schedule={"groups_per_step": 4, "steps": 2}))
    with CompactingAgent(lab, run_id) as agent:
        run = lab.ends(run_id)
    assert [step["noop"] for step in lab.events(run["id"], "metrics")] == [False, False]
    shown = document(lab.client.samples_page(run["id"], limit=1000, include="tokens"))["data"]
    assert len(shown) == 2 * 4 * run["spec"]["rollout"]["group_size"]
    assert set(agent.ended.values()) == {200}
    for sample in shown:
        sequences = [sample["tokens"], *sample["tokens"]["forks"]]
        turns = sample["episode"]["turns"]
        spans = [span for span in sample["versions"] if span["trainable"]]
        trained = [sequences[span["sequence"]]["ids"][span["start"] : span["end"]] for span in spans]
        assert trained == [sequences[turn["sequence"]]["ids"][turn["start"] : turn["end"]] for turn in turns]
        assert trained in agent.drawn.values(), "what the agent was told is what is trained"
    assert max(len(sample["tokens"]["forks"]) for sample in shown) == 1
    lab.gone("agent")
    assert not [refusal for refusal in agent.refused if refusal[1] not in {"length", "context", "context_length_exceeded"}]
