"""The whole system on one machine: servers from wheels, each service in its own process, all of them supervised."""

from gradbus.embedded.config import StackConfig
from gradbus.embedded.stack import Stack
from gradbus.embedded.state import DEFAULT_STATE, StateFolder

__all__ = ["DEFAULT_STATE", "Stack", "StackConfig", "StateFolder"]
