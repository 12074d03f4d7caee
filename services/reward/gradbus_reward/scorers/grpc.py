"""A user's scorer over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio
from opentelemetry.trace import SpanKind

from gradbus.errors import ScorerError
from gradbus.rpc import describe_rpc_error, rpc_attributes
from gradbus.rpc.options import UNCOMPRESSED
from gradbus.telemetry import Attributes, get_logger, span, trace_headers
from gradbus.v1 import reward_pb2, reward_service_pb2_grpc
from gradbus_reward.scorers.addresses import AddressPolicy, Endpoint
from gradbus_reward.scorers.results import complete_results, failed_results

_log = get_logger(__name__)

_METHOD = "gradbus.v1.RewardService/Score"
_MAX_REQUEST_BYTES = 64 << 20
_MAX_RESPONSE_BYTES = 16 << 20

_OPTIONS = [
    UNCOMPRESSED,
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MAX_RESPONSE_BYTES),
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
        # By target: when the name resolves to another address, calls in flight keep their channel.
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample. A call that fails is an `error` for all of them."""
        try:
            async with asyncio.timeout(deadline_seconds):
                endpoint = await self._policy.resolve(self._service)
                response = await self._call(request, endpoint, deadline_seconds)
        except ScorerError as error:
            return failed_results(request.samples, str(error), "refused")
        except TimeoutError:
            reason = f"the scorer at {self._service} did not respond within {deadline_seconds:.1f} s; make it faster"
            return failed_results(request.samples, reason, "timeout")
        except grpc.aio.AioRpcError as error:
            _log.warning("scorer_call_failed", run_id=request.run_id, code=error.code().name, detail=error.details())
            return failed_results(request.samples, describe_rpc_error("the scorer", self._service, error), "unreachable")
        return complete_results(request.samples, response.results)

    async def _call(self, request: reward_pb2.ScoreRequest, endpoint: Endpoint, deadline_seconds: float) -> reward_pb2.ScoreResponse:
        stub = reward_service_pb2_grpc.RewardServiceStub(self._channel(endpoint))
        attributes: Attributes = {**rpc_attributes(_METHOD), "server.address": endpoint.host, "server.port": endpoint.port}
        with span(_METHOD, SpanKind.CLIENT, attributes=attributes):
            # The scorer gets the deadline too, but the timeout above decides.
            return await stub.Score(request, timeout=deadline_seconds, metadata=tuple((trace_headers() or {}).items()))

    async def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        """The channel to the checked addresses, which is opened at first use."""
        target = _target(endpoint)
        if target not in self._channels:
            options = [("grpc.default_authority", f"{endpoint.host}:{endpoint.port}"), *_OPTIONS]
            self._channels[target] = grpc.aio.insecure_channel(target, options=options)
        return self._channels[target]


def _target(endpoint: Endpoint) -> str:
    """The addresses of the first address's family, which gRPC tries in turn: `ipv4:10.0.0.7:9000,10.0.0.8:9000`."""
    version = endpoint.addresses[0].version
    hosts = [str(address) if version == 4 else f"[{address}]" for address in endpoint.addresses if address.version == version]
    return f"ipv{version}:" + ",".join(f"{host}:{endpoint.port}" for host in hosts)
