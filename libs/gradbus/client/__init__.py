"""The Python clients of the gateway."""

from gradbus.client.async_client import AsyncClient
from gradbus.client.calls import AnnotationChanges, SampleSelection
from gradbus.client.client import Client
from gradbus.client.discovery import find_gateway
from gradbus.client.retries import RetryPolicy
from gradbus.client.spec_file import load_spec, with_overrides
from gradbus.client.submission import SpecSource
from gradbus.resources.document import document

__all__ = [
    "AnnotationChanges",
    "AsyncClient",
    "Client",
    "RetryPolicy",
    "SampleSelection",
    "SpecSource",
    "document",
    "find_gateway",
    "load_spec",
    "with_overrides",
]
