import signal
import socket
import subprocess
import sys

import grpc
import pytest

from gradbus.errors import SettingsError
from gradbus.graders import ScoreResult
from gradbus.graders.serve import ScorerServer
from gradbus.v1 import reward_pb2, reward_service_pb2_grpc


def asked(server, *responses):
    samples = [
        reward_pb2.ScoreSample(sample_id=f"0.{n}", response=text, item_json='{"answer": "12"}', finish_reason="stop")
        for n, text in enumerate(responses)
    ]
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = reward_service_pb2_grpc.RewardServiceStub(channel)
        return stub.Score(reward_pb2.ScoreRequest(run_id="run-1", samples=samples), timeout=60).results


@pytest.fixture
def serve():
    servers = []

    def start(score):
        server = ScorerServer(score, "127.0.0.1:0")
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop(0)


def test_a_function_of_a_sample_is_a_whole_scorer(serve):
    server = serve(lambda sample: sample.item["answer"] in sample.response and sample.finish_reason == "stop" and sample.run_id == "run-1")
    first, second = asked(server, "it is 12", "it is 13")
    assert (first.sample_id, first.status, first.reward) == ("0.0", reward_pb2.REWARD_STATUS_OK, 1.0)
    assert (second.sample_id, second.status, second.reward) == ("0.1", reward_pb2.REWARD_STATUS_OK, 0.0)


def test_a_function_may_return_components_or_invalid(serve):
    server = serve(lambda sample: ScoreResult(0.5, {"digits": 1.0}) if sample.response else ScoreResult.invalid("empty"))
    first, second = asked(server, "12", "")
    assert dict(first.components) == {"digits": 1.0}
    assert (second.status, second.reason) == (reward_pb2.REWARD_STATUS_INVALID, "empty")


def test_an_exception_spoils_its_own_sample_only(serve):
    first, second = asked(serve(lambda sample: 1.0 / len(sample.response)), "", "ab")
    assert (first.status, first.reason) == (reward_pb2.REWARD_STATUS_ERROR, "ZeroDivisionError: float division by zero")
    assert second.reward == 0.5


def test_a_result_that_cannot_be_sent_spoils_its_own_sample_only(serve):
    first, second = asked(serve(lambda sample: ScoreResult(1.0, {"n": sample.response if sample.response == "a" else 0.5})), "a", "b")
    assert (first.status, second.status) == (reward_pb2.REWARD_STATUS_ERROR, reward_pb2.REWARD_STATUS_OK)
    assert first.reason.startswith("TypeError")


def test_a_taken_port_is_said_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="free port"):
        ScorerServer(lambda _sample: 1.0, f"127.0.0.1:{taken.getsockname()[1]}")


SCORER = """
import sys
from gradbus.graders.serve import serve_scorer

def score(sample):
    return float(sample.item["answer"] in sample.response)

serve_scorer(score, "127.0.0.1:" + sys.argv[1])
"""


def test_a_script_of_ten_lines_serves_until_it_is_told_to_stop():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", SCORER, str(port)]) as script:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = reward_service_pb2_grpc.RewardServiceStub(channel)
            sample = reward_pb2.ScoreSample(sample_id="0.0", response="it is 12", item_json='{"answer": "12"}')
            answer = stub.Score(reward_pb2.ScoreRequest(samples=[sample]), timeout=60, wait_for_ready=True)
        assert [result.reward for result in answer.results] == [1.0]
        script.send_signal(signal.SIGTERM)
        assert script.wait(20) == 0
