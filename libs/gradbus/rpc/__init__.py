"""gRPC: requests with an answer. Health, tokens, deadlines and trace context are the same on every server."""

from gradbus.rpc.callers import token_hash
from gradbus.rpc.client import open_channel
from gradbus.rpc.error_text import describe_rpc_error
from gradbus.rpc.operation import rpc_attributes
from gradbus.rpc.retries import AWAY, until_answered
from gradbus.rpc.server import RpcServer, RpcSettings

__all__ = ["AWAY", "RpcServer", "RpcSettings", "describe_rpc_error", "open_channel", "rpc_attributes", "token_hash", "until_answered"]
