"""An environment server of verifiers plays a run by the example, each in the Python of verifiers: GRADBUS_TEST_VERIFIERS names it."""

import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradbus.client import document

VERIFIERS = os.environ.get("GRADBUS_TEST_VERIFIERS", "")
HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "agents" / "play_verifiers.py"

pytestmark = pytest.mark.skipif(not VERIFIERS, reason="GRADBUS_TEST_VERIFIERS names no Python with verifiers")


@contextmanager
def program(log, *arguments, **variables):
    """A program in that Python, until the end of the block."""
    environment, command = {**os.environ, "PYTHONPATH": str(HERE), **variables}, [VERIFIERS, *map(str, arguments)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as run:
        try:
            yield run
        finally:
            run.terminate()


def test_their_server_plays_a_run(lab, talk_spec, rows, tmp_path, free_port):
    variables = {**os.environ, "PYTHONPATH": str(HERE)}
    told = subprocess.run([VERIFIERS, EXAMPLE, "rows", "verifiers_world"], capture_output=True, check=False, text=True, env=variables)
    assert told.returncode == 0, told.stderr
    theirs = [json.loads(line) for line in told.stdout.splitlines()]
    assert [row["task"]["word"] for row in theirs] == ["sun", "moon", "star", "sky"]
    body = talk_spec(1) | {"data": {"train": rows(theirs)}}
    body["environment"] |= {"max_masked": 1.0}
    run_id = lab.submit(body)
    port = json.loads((lab.state / "ports.json").read_text())["agent.http"]
    key, address = (lab.state / "secrets" / "api-key").read_text(), f"tcp://127.0.0.1:{free_port()}"
    variables = {"AGENTS_URL": f"http://127.0.0.1:{port}", "GRADBUS_API_KEY": key}
    server, log = (HERE / "verifiers_world.py", address), tmp_path / "agent.log"
    with program(tmp_path / "server.log", *server), program(log, EXAMPLE, "play", address, run_id, **variables) as agent:
        lab.ends(run_id, seconds=240)
        assert agent.poll() is None, log.read_text()
    shown = document(lab.client.samples_page(run_id, limit=100, include="tokens"))["data"]
    size = body["rollout"]["group_size"]
    assert len(shown) == 4 * size
    for sample in shown:
        word, outcome = theirs[int(sample["id"].split(".")[0]) % 4]["task"]["word"], sample["episode"]
        if word in {"sun", "sky"}:
            last = outcome["turns"][-1]["text"]
            assert (len(outcome["turns"]), outcome["attempt"]) == (2, 0)
            assert sample["reward"] == pytest.approx(len(set(last)) / 64)
        elif word == "star":
            assert "nobody can judge a star" in json.dumps(sample)
        else:
            assert "the dictionary is away" in json.dumps(sample)
