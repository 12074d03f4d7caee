"""Other frameworks' own software behind a `[reward]` section.

pip install --no-deps --target PEERS openrlhf==0.11.2 verl==0.9.1 atroposlib==0.4.0
pip install --no-deps --target PEERS verifiers==0.1.9 openai-agents==0.3.3 griffe==1.14.0 colorama==0.4.6
GRADBUS_TEST_PEERS=PEERS python -m pytest tests/contract/scorers/test_reward_peers.py
"""

import asyncio
import json
import os
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scorer_lab import OK, SETTINGS, scored

from gradbus.v1 import reward_pb2
from gradbus_reward.graders.base import Capacity
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer

PEERS = os.environ.get("GRADBUS_TEST_PEERS", "")
pytestmark = pytest.mark.skipif(not PEERS, reason="GRADBUS_TEST_PEERS names no folder with the packages")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@asynccontextmanager
async def openrlhf_server():
    port = free_port()
    script = Path(__file__).with_name("openrlhf_server.py")
    process = await asyncio.create_subprocess_exec(sys.executable, script, str(port), env={**os.environ, "PYTHONPATH": PEERS})
    try:
        async with asyncio.timeout(120):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    assert process.returncode is None
                    await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}/get_reward"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_openrlhfs_own_server_scores():
    async with openrlhf_server() as url:
        answers = await scored({"service": f"openrlhf+{url}"})
    assert [(answer.status, answer.reward) for answer in answers] == [(OK, 6.0)] * 3  # "7+5=12", by its length
    assert dict(answers[0].components) == {"scores": 6.0, "dummy_scores": 6.0}


async def graded(grader, item, *responses):
    module = grader["module"].partition(":")[0]
    settings = ScorerSettings(addresses=SETTINGS.addresses, modules=(module,), pool=PoolSettings(processes=1))
    scorer = create_scorer(json.dumps({"grader": {"type": "python", **grader}}), settings, Capacity())
    samples = [
        reward_pb2.ScoreSample(sample_id=f"0.{n}", response=text, finish_reason="stop", item_json=json.dumps(item))
        for n, text in enumerate(responses)
    ]
    try:
        answers = await scorer.score(reward_pb2.ScoreRequest(samples=samples), 60.0)
    finally:
        await scorer.close()
    assert [answer.status for answer in answers] == [OK] * len(responses), answers
    return [answer.reward for answer in answers]


async def test_atropos_own_reward_functions_grade(monkeypatch):
    monkeypatch.syspath_prepend(PEERS)
    accuracy = {"interface": "atropos", "module": "atroposlib.envs.reward_fns.accuracy_reward:AccuracyReward"}
    assert await graded(accuracy, {"solution": r"\boxed{12}"}, r"\boxed{12}", r"\boxed{13}") == [1.0, 0.0]


async def test_a_rubric_of_verifiers_own_grades(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(PEERS)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_rubric.py").write_text(
        "import verifiers as vf\nparser = vf.XMLParser(fields=['answer'])\n"
        "def right(completion, answer, parser):\n    return float(parser.parse_answer(completion) == answer)\n"
        "rubric = vf.Rubric(funcs=[right, parser.get_format_reward_func()], weights=[1.0, 0.25], parser=parser)\n"
    )
    row = {"prompt": [{"role": "user", "content": "5 + 7"}], "answer": "12"}
    given = await graded({"interface": "verifiers", "module": "own_rubric:rubric"}, row, "<answer>\n12\n</answer>", "12")
    assert given[0] == 1.25
    assert given[1] < 0.25


async def test_verls_own_scores_grade(monkeypatch, tmp_path):
    # Without `import verl` itself, which wants ray and tensordict; its modules are its own.
    for name in ("verl", "verl/utils"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"__path__.append({f'{PEERS}/{name}'!r})\n")
    monkeypatch.syspath_prepend(PEERS)
    monkeypatch.syspath_prepend(tmp_path)
    default = {"interface": "verl", "module": "verl.utils.reward_score:default_compute_score"}
    row = {"data_source": "openai/gsm8k", "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"index": 0}}
    assert await graded(default, row, "9 * 8 = 72\n#### 72", "#### 71", "72") == [1.0, 0.0, 0.0]
