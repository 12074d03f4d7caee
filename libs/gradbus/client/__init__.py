"""The Python client of the gateway."""

from gradbus.client.client import Client
from gradbus.client.discovery import find_gateway
from gradbus.client.retries import RetryPolicy
from gradbus.client.spec_file import load_spec, with_overrides

__all__ = ["Client", "RetryPolicy", "find_gateway", "load_spec", "with_overrides"]
