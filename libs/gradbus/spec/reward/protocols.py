"""The protocols that `reward.service` may name before its URL, as in `openrlhf+http://127.0.0.1:5000/get_reward`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ServiceProtocol:
    """What a protocol reads of the section."""

    reads: frozenset[str] = frozenset()
    """Fields beside `service`."""
    paths: tuple[str, ...] = ()
    """How the URL's path may end; empty: it may be any."""


PROTOCOLS: Final[Mapping[str, ServiceProtocol]] = {
    "openrlhf": ServiceProtocol(frozenset({"label"})),
    "slime": ServiceProtocol(frozenset({"label", "reward_key"})),
    "nemo-gym": ServiceProtocol(),
    "sglang": ServiceProtocol(frozenset({"served_model", "label_token_ids"}), ("/classify", "/score")),
    "vllm": ServiceProtocol(frozenset({"served_model"}), ("/classify", "/score")),
}
HTTP: Final = ("http://", "https://")
OWN: Final = ("grpc://", *HTTP)
"""Of scorers that speak Gradbus's own protocol."""


def split_service(service: str) -> tuple[str, str]:
    """The protocol before the URL, empty if there is none that is known, and the URL."""
    name, plus, url = service.partition("+")
    return (name, url) if plus and name in PROTOCOLS else ("", service)
