"""A scorer of your own in a few lines:

from gradbus.graders.serve import serve_scorer

def score(sample):
    return float(sample.item["answer"] in sample.response)

serve_scorer(score, "127.0.0.1:9000")     # then in the run: [reward] service = "grpc://127.0.0.1:9000"
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from gradbus.errors import SettingsError
from gradbus.graders.result import ScoreResult
from gradbus.v1 import reward_pb2, reward_service_pb2_grpc

MAX_MESSAGE_BYTES = 64 << 20

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample to score."""

    run_id: str
    sample_id: str
    group_id: str
    prompt: str
    response: str
    item: Mapping[str, Any]
    """The dataset row."""
    finish_reason: str
    """`stop` or `length`."""
    weight_version: int


ScoreFunction = Callable[[Sample], float | ScoreResult]


class ScorerServer:
    """A gRPC RewardService around one function. An exception of the function is an `error` of its sample only."""

    def __init__(self, score: ScoreFunction, address: str, *, threads: int = 8) -> None:
        """`address` is host:port; port 0 takes a free one. Raises SettingsError if it is taken."""
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(threads), options=options)
        reward_service_pb2_grpc.add_RewardServiceServicer_to_server(_Servicer(score), self._server)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise SettingsError(f"cannot listen on {address}: {error}; choose a free port") from error

    def start(self) -> None:
        """Starts to serve, in threads of its own."""
        self._server.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Finishes the calls in flight, then stops."""
        self._server.stop(grace_seconds).wait()


def serve_scorer(score: ScoreFunction, address: str) -> None:
    """Serves `score` at `address` (host:port) until SIGINT or SIGTERM.

    Calls are not authenticated: bind loopback or a private network. Raises SettingsError if the port is taken.
    """
    server = ScorerServer(score, address)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    server.start()
    _log.info("scorer_serving", address=address, port=server.port)
    stopped.wait()
    server.stop()


class _Servicer(reward_service_pb2_grpc.RewardServiceServicer):
    def __init__(self, score: ScoreFunction) -> None:
        self._score = score

    def Score(self, request: reward_pb2.ScoreRequest, context: grpc.ServicerContext) -> reward_pb2.ScoreResponse:  # noqa: N802 - gRPC's name
        results = []
        for sample in request.samples:
            if not context.is_active():
                break  # the caller's deadline has passed
            results.append(self._scored(request.run_id, sample))
        return reward_pb2.ScoreResponse(results=results)

    def _scored(self, run_id: str, sample: reward_pb2.ScoreSample) -> reward_pb2.SampleReward:
        try:
            result = self._score(_sample(run_id, sample))
            return (result if isinstance(result, ScoreResult) else ScoreResult(float(result))).message(sample.sample_id)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything; it becomes the sample's result
            _log.exception("score_function_failed", run_id=run_id, sample_id=sample.sample_id)
            return ScoreResult.error(f"{type(error).__name__}: {error}").message(sample.sample_id)


def _sample(run_id: str, sample: reward_pb2.ScoreSample) -> Sample:
    return Sample(
        run_id=run_id,
        sample_id=sample.sample_id,
        group_id=sample.group_id,
        prompt=sample.prompt,
        response=sample.response,
        item=json.loads(sample.item_json or "{}"),
        finish_reason=sample.finish_reason,
        weight_version=sample.weight_version,
    )
