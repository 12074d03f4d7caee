"""An agent of the user's own plays a whole run over HTTP: claims, chat completions, rewards."""

import json

import pytest
from guessing_agent import GuessingAgent, agent_spec, make_game


@pytest.fixture(scope="session")
def game(tmp_path_factory):
    return make_game(tmp_path_factory.mktemp("game"))


@pytest.mark.slow  # the run of tests/e2e/environments/test_agents.py is played in the same way
def test_an_agent_plays_a_run(lab, game):
    url = f"http://127.0.0.1:{json.loads((lab.state / 'ports.json').read_text())['agent.http']}"
    run_id = lab.submit(agent_spec(game, steps=4))
    with GuessingAgent(url, (lab.state / "secrets" / "api-key").read_text(), run_id) as agent:
        run = lab.ends(run_id)
    assert lab.learned(run)
    assert agent.faults == []
    assert set(agent.ended) == {200}
    assert set(agent.outcomes) == {"extend", "fork"}
    assert agent.drawn >= len(agent.outcomes), "the usage is exact"
    assert len(lab.samples(run_id)) >= 4 * 8
    lab.gone("agent")
