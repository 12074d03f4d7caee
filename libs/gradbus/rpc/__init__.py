"""gRPC: health checks, tokens and trace context, the same on every server and channel."""

from gradbus.rpc.callers import token_hash
from gradbus.rpc.client import open_channel
from gradbus.rpc.failures import AWAY, describe_rpc_error, until_answered
from gradbus.rpc.live_callers import LiveCallers
from gradbus.rpc.operation import rpc_attributes
from gradbus.rpc.server import RpcServer, RpcSettings

__all__ = [
    "AWAY",
    "LiveCallers",
    "RpcServer",
    "RpcSettings",
    "describe_rpc_error",
    "open_channel",
    "rpc_attributes",
    "token_hash",
    "until_answered",
]
