"""A user's scorer over gRPC."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
from google.protobuf.message import DecodeError
from opentelemetry.trace import SpanKind

from gradbus.errors import ScorerError
from gradbus.rpc import describe_rpc_error, rpc_attributes
from gradbus.rpc.options import UNCOMPRESSED
from gradbus.telemetry import Attributes, get_logger, span, trace_headers
from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.addresses import AddressPolicy, Endpoint
from gradbus_reward.scorers.first_connection import FirstConnection
from gradbus_reward.scorers.results import MAX_RESPONSE_BYTES, check_number, complete_results, failed_results, max_response_bytes

_log = get_logger(__name__)

_METHOD = "gradbus.v1.RewardService/Score"
_MAX_REQUEST_BYTES = 64 << 20
_CHANNELS = 8
"""A name may resolve to other addresses each time. Beyond it the channel that was used least recently is closed."""

_OPTIONS = [
    UNCOMPRESSED,
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ("grpc.max_send_message_length", _MAX_REQUEST_BYTES),
    # Reconnect within a second to a scorer that comes back, not after gRPC's two minutes.
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A connection per channel, which closes with it, not one from the pool that all channels share.
    ("grpc.use_local_subchannel_pool", 1),
]


class GrpcScorer:
    """Calls `RewardService.Score` with all samples of the request."""

    def __init__(self, service: str, policy: AddressPolicy) -> None:
        self._service = service
        self._policy = policy
        self._first_connection = FirstConnection()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scorer")
        # By target: when the name resolves to another address, calls in flight keep their channel.
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample. A call that fails is an `error` for all of them."""
        try:
            async with asyncio.timeout(deadline_seconds):
                endpoint = await self._policy.resolve(self._service, self._thread)
                await self._first_connection.wait(endpoint, deadline_seconds)
                body = await self._call(request, endpoint, deadline_seconds)
                # In a thread of its own, so that the results of one run hold up no other.
                results = await asyncio.get_running_loop().run_in_executor(self._thread, _results, body, len(request.samples))
        except ScorerError as error:
            return failed_results(request.samples, str(error), "refused")
        except TimeoutError:
            reason = f"the scorer at {self._service} did not respond within {deadline_seconds:.1f} s; make it faster"
            return failed_results(request.samples, reason, "timeout")
        except grpc.aio.AioRpcError as error:
            _log.warning("scorer_call_failed", run_id=request.run_id, code=error.code().name, detail=error.details())
            return failed_results(request.samples, describe_rpc_error("the scorer", self._service, error), "unreachable")
        return complete_results(request.samples, results)

    async def _call(self, request: reward_pb2.ScoreRequest, endpoint: Endpoint, deadline_seconds: float) -> bytes:
        channel = await self._channel(endpoint)
        score: grpc.aio.UnaryUnaryMultiCallable[reward_pb2.ScoreRequest, bytes] = channel.unary_unary(
            f"/{_METHOD}", request_serializer=reward_pb2.ScoreRequest.SerializeToString
        )
        attributes: Attributes = {**rpc_attributes(_METHOD), "server.address": endpoint.host, "server.port": endpoint.port}
        with span(_METHOD, SpanKind.CLIENT, attributes=attributes):
            # The scorer gets the deadline too, but the timeout above decides.
            body: bytes = await score(request, timeout=deadline_seconds, metadata=tuple((trace_headers() or {}).items()))
            return body

    async def close(self) -> None:
        """Closes the channels and the thread."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        """The channel to the checked addresses, which is opened at first use."""
        target = _target(endpoint)
        if target not in self._channels:
            options = [("grpc.default_authority", f"{endpoint.host}:{endpoint.port}"), *_OPTIONS]
            self._channels[target] = grpc.aio.insecure_channel(target, options=options)
        self._channels.move_to_end(target)
        channel = self._channels[target]
        if len(self._channels) > _CHANNELS:
            await self._channels.popitem(last=False)[1].close()
        return channel


def _results(body: bytes, samples: int) -> Sequence[reward_pb2.SampleReward]:
    if len(body) > max_response_bytes(samples):
        raise ScorerError(f"the scorer's response has {len(body)} bytes; send at most {max_response_bytes(samples)} for {samples} samples")
    try:
        results = reward_pb2.ScoreResponse.FromString(body).results
    except DecodeError as error:
        raise ScorerError(f"the scorer's response is not a gradbus.v1.ScoreResponse ({error}); send one") from error
    check_number(len(results), samples)
    return results


def _target(endpoint: Endpoint) -> str:
    """The addresses of the first address's family, which gRPC tries in turn: `ipv4:10.0.0.7:9000,10.0.0.8:9000`."""
    version = endpoint.addresses[0].version
    hosts = [str(address) if version == 4 else f"[{address}]" for address in endpoint.addresses if address.version == version]
    return f"ipv{version}:" + ",".join(f"{host}:{endpoint.port}" for host in hosts)
