"""A user's scorer over gRPC."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
from google.protobuf.message import DecodeError
from opentelemetry.trace import SpanKind

from gradbus.errors import ScorerError, UserCodeError
from gradbus.rpc import describe_rpc_error, rpc_attributes
from gradbus.rpc.options import UNCOMPRESSED
from gradbus.telemetry import Attributes, get_logger, span, trace_headers
from gradbus.user_services.addresses import AddressPolicy, Endpoint
from gradbus.user_services.first_connection import FirstConnection
from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.relay import Relay
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
        # When the name resolves to another address, calls in flight keep their channel.
        self._channels: OrderedDict[Endpoint, _Channel] = OrderedDict()

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample. A call that fails is an `error` for all of them."""
        try:
            async with asyncio.timeout(deadline_seconds):
                endpoint = await self._policy.resolve(self._service, self._thread)
                await self._first_connection.wait(endpoint, deadline_seconds)
                body = await self._call(request, endpoint, deadline_seconds)
                # In a thread of its own, so that the results of one run hold up no other.
                results = await asyncio.get_running_loop().run_in_executor(self._thread, _results, body, len(request.samples))
        except UserCodeError as error:
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
        channel.relay.allow(max_response_bytes(len(request.samples)))
        score: grpc.aio.UnaryUnaryMultiCallable[reward_pb2.ScoreRequest, bytes] = channel.grpc.unary_unary(
            f"/{_METHOD}", request_serializer=reward_pb2.ScoreRequest.SerializeToString
        )
        attributes: Attributes = {**rpc_attributes(_METHOD), "server.address": endpoint.host, "server.port": endpoint.port}
        with span(_METHOD, SpanKind.CLIENT, attributes=attributes):
            # The scorer gets the deadline too, but the timeout above decides.
            call = score(request, timeout=deadline_seconds, metadata=tuple((trace_headers() or {}).items()))
            try:
                body: bytes | None = await call
            except KeyError as error:  # of grpc, for a status that its list does not have
                raise self._refused(f"responded with the unknown gRPC status {error}; send one of gRPC's") from None
            except grpc.aio.AioRpcError:
                if channel.relay.is_cut:
                    raise self._refused("sent far more than its response; send nothing else") from None
                raise
            if body is None:
                raise self._refused("responded without a message; send a gradbus.v1.ScoreResponse")
            return body

    def _refused(self, fault: str) -> ScorerError:
        return ScorerError(f"the scorer at {self._service} {fault}")

    async def close(self) -> None:
        """Closes the channels and the thread."""
        while self._channels:
            await self._channels.popitem()[1].close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _channel(self, endpoint: Endpoint) -> _Channel:
        """The channel to the checked addresses, which is opened at first use."""
        if endpoint not in self._channels:
            self._channels[endpoint] = _Channel(endpoint)
        self._channels.move_to_end(endpoint)
        channel = self._channels[endpoint]
        if len(self._channels) > _CHANNELS:
            await self._channels.popitem(last=False)[1].close()
        await channel.open()
        return channel


class _Channel:
    """A channel of gRPC whose connections a relay bounds."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.relay = Relay(endpoint)
        options = [("grpc.default_authority", f"{endpoint.host}:{endpoint.port}"), *_OPTIONS]
        self.grpc = grpc.aio.insecure_channel(self.relay.target, options=options)

    async def open(self) -> None:
        """Lets the relay accept connections, if it does not yet."""
        await self.relay.open()

    async def close(self) -> None:
        """Ends the calls in flight and closes the connections."""
        await self.grpc.close()
        await self.relay.close()


def _results(body: bytes, samples: int) -> Sequence[reward_pb2.SampleReward]:
    if len(body) > max_response_bytes(samples):
        raise ScorerError(f"the scorer's response has {len(body)} bytes; send at most {max_response_bytes(samples)} for {samples} samples")
    try:
        results = reward_pb2.ScoreResponse.FromString(body).results
    except DecodeError as error:
        raise ScorerError(f"the scorer's response is not a gradbus.v1.ScoreResponse ({error}); send one") from error
    check_number(len(results), samples)
    return results
