"""The key of a request: of an episode, or one that may claim."""

from __future__ import annotations

from starlette.requests import Request

from gradbus.access.keyring import Keyring
from gradbus_agent.contract import RefusalError
from gradbus_agent.episodes.episode import AgentEpisode
from gradbus_agent.episodes.registry import Registry

_SCOPE = "runs:write"


def episode_of(request: Request, registry: Registry) -> AgentEpisode:
    """The episode whose key the request has. Raises RefusalError: 401 for no or a wrong key."""
    return registry.of_key(_token(request))


def check_may_claim(request: Request, keyring: Keyring) -> None:
    """Raises RefusalError unless the request has an API key of the gateway that may write runs."""
    record = keyring.find(_token(request))
    if record is None:
        raise RefusalError(401, "invalid_api_key", "the API key is missing or wrong; claim with an API key of the gateway")
    if not record.allows(_SCOPE):
        raise RefusalError(403, "forbidden", f"key {record.id} lacks the scope {_SCOPE}; use a key that has it")


def _token(request: Request) -> str:
    in_path = request.path_params.get("token")
    if in_path:
        return str(in_path)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    found = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not found:
        raise RefusalError(401, "invalid_api_key", "the request has no key; send `Authorization: Bearer <key>` or `x-api-key: <key>`")
    return found
