"""Runs whose samples are episodes in a user's environment, seen as a user sees them."""

import pytest

from gradbus.client import document


def test_a_run_in_an_environment_over_http_trains_and_shows_its_episodes(lab, gradbus, episodes, worlds):
    world = worlds()
    run = lab.train(episodes(environment={"service": world.url, "max_turns": 3}))
    assert {asked["item"]["word"] for name, asked in world.asked if name == "open"} <= {"sun", "moon", "star", "sky"}
    samples = lab.samples(run["id"])
    assert len(samples) == run["steps"] * run["spec"]["schedule"]["groups_per_step"] * run["spec"]["rollout"]["group_size"]
    for sample in samples:
        turns = sample["episode"]["turns"]
        assert sample["reward"] == pytest.approx(sum(turn["reward"] for turn in turns))
        assert sample["components"]["letters"] == pytest.approx(16 * sample["reward"])
        assert [span["trainable"] for span in sample["versions"]] == [span["author"] == "policy" for span in sample["versions"]]
        assert [span["start"] for span in sample["versions"][1:]] == [span["end"] for span in sample["versions"][:-1]]
        said = [(message["role"], message["content"]) for turn in turns for message in turn["messages"]]
        assert set(said) <= {("user", " and")}
        assert len(said) in {len(turns) - 1, len(turns)}, "the model's context may be full before another turn can begin"
    longest = max(samples, key=lambda sample: len(sample["episode"]["turns"]))
    authors = [span["author"] for span in longest["versions"]]
    assert len(longest["episode"]["turns"]) > 1
    assert authors.count("user") == len(longest["episode"]["turns"]) - 1
    shown = gradbus("episode", run["id"], longest["id"])
    assert shown.returncode == 0, shown.stderr
    assert f"turn {len(longest['episode']['turns'])}" in shown.stdout
    assert "' and'" in shown.stdout
    assert "see `gradbus samples`" in gradbus("episode", run["id"], "99999.0").stderr
    assert not world.said, "every session is closed"


def test_the_source_of_an_environment_that_cannot_be_used_ends_the_run_with_the_cause(lab, episodes):
    run = lab.ends(lab.submit(episodes(environment={"source": "class Environment:\n    pass\n"})), "failed")
    assert "no class Environment with a method reset(item, seed) or" in run["reason"]


def test_an_environment_that_is_away_is_waited_for(lab, episodes, worlds, free_port):
    port = free_port()
    run_id = lab.submit(episodes(environment={"service": f"http://127.0.0.1:{port}/words", "max_turns": 3}))
    waits = lab.until(run_id, lambda run: run["state"] == "waiting_for_environment")
    assert f"127.0.0.1:{port}" in waits["waiting_for"]
    worlds(port)
    lab.ends(run_id)
    assert not any(worker["trouble"] for worker in map(document, lab.client.workers()))


ENDLESS = """
class Environment:
    def reset(self, item, seed):
        self.turns = 0

    def step(self, text):
        self.turns += 1
        return {"message": " and", "reward": len(set(text)) / 16}
"""


@pytest.mark.parametrize("numerics", ["batch_invariant", "fast"])
def test_the_trainer_computes_the_log_probabilities_that_eight_turns_were_drawn_with(lab, episodes, numerics):
    on_policy = {"max_staleness": 0, "groups_per_step": 2, "steps": 2}
    environment = {"source": ENDLESS, "max_turns": 8, "tool_parser": "plain"}
    body = episodes(numerics=numerics, schedule=on_policy, environment=environment)
    body["rollout"] |= {"max_new_tokens": 8, "temperature": 0.8, "stop_token_ids": [token for token in range(2, 290) if token % 4]}
    body["algorithm"] = {"truncated": "keep"}
    run = lab.train(body)
    assert max(len(sample["episode"]["turns"]) for sample in lab.samples(run["id"])) == 8
    steps = lab.events(run["id"], "metrics")
    assert [step["noop"] for step in steps] == [False, False]
    differences = [step["logprob_diff"] for step in steps]
    if numerics == "batch_invariant":
        assert differences == [0.0, 0.0]
    else:
        assert all(0.0 < difference < 1e-5 for difference in differences), "else the test above proves nothing"
