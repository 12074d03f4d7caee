"""An agent that knows nothing but the variables of OpenAI's clients plays a run, one process an episode."""

import asyncio
import json

import pytest

from gradbus.client import document
from gradbus.sandbox.commands.run import found_level

pytestmark = pytest.mark.skipif(asyncio.run(found_level())[0] is None, reason="this kernel gives no namespaces")
CODE = """
import json, os, sys, urllib.request
word = json.load(sys.stdin)["item"]["word"]
key = os.environ["OPENAI_API_KEY"]
messages = [{"role": "user", "content": word}]
for turn in range(2):
    body = json.dumps({"model": "any", "messages": messages, "stop": ["\\n"]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    answer = json.load(urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)))
    said = answer["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "and"}]
"""


def test_a_spawned_agent_plays_a_run_that_a_scorer_judges(stack, lab_on, episodes):
    commands = json.dumps({"words": {"command": ["python", "-c", CODE]}})
    with stack(GRADBUS_AGENT_COMMANDS=commands) as state, lab_on(state) as lab:
        check_run(lab, episodes)


def check_run(lab, episodes):
    """A run of one step."""
    grader = {"type": "text_similarity", "input": "{{sample.output_text}}", "reference": "{{item.word}}"}
    body = episodes(environment={"agent": "spawn://words", "max_turns": 4}, schedule={"groups_per_step": 2, "steps": 1})
    run_id = lab.submit(body | {"reward": {"grader": grader}})
    lab.ends(run_id)
    shown = document(lab.client.samples_page(run_id, limit=100, include="tokens"))["data"]
    assert len(shown) == 2 * body["rollout"]["group_size"]
    assert {len(sample["episode"]["turns"]) for sample in shown} <= {1, 2}
    assert all(sample["episode"]["attempt"] == 0 for sample in shown)
    lab.gone("agent")
