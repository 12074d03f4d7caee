"""The routes by which agents reach the service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from gradbus.access.keyring import Keyring
from gradbus.telemetry import get_logger
from gradbus_agent.contract import Document, RefusalError
from gradbus_agent.dialects.base import Dialect
from gradbus_agent.dialects.chat_completions import ChatCompletions
from gradbus_agent.dialects.messages import CountTokens, Messages
from gradbus_agent.dialects.responses import Responses
from gradbus_agent.episodes.episode import AgentEpisode
from gradbus_agent.episodes.registry import Registry
from gradbus_agent.http.answers import UNTRAINED, Answering, error_response
from gradbus_agent.http.bodies import read_body, read_object, watched
from gradbus_agent.http.fields import claim_of, verdict_of
from gradbus_agent.http.keys import check_may_claim, episode_of

_log = get_logger(__name__)
_OPENAI = ChatCompletions()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the routes work on."""

    registry: Registry
    keyring: Keyring
    public_url: str
    """Empty: agents reach it by the host that they claim at."""

    def give_up(self, claiming: asyncio.Task[list[tuple[AgentEpisode, str]]]) -> None:
        """Ends a claim whose client is gone."""
        if not claiming.done():
            claiming.cancel()
        elif claiming.exception() is None:
            for episode, _ in claiming.result():
                self.registry.take_back(episode)


def create_app(endpoint: Endpoint) -> Starlette:
    """The application. Every route is also below `/e/<key>`, for clients that send no key."""
    routes = _routes(endpoint)
    app = Starlette(routes=[*routes, Mount("/e/{token}", routes=routes)])
    app.add_exception_handler(RefusalError, _on_refusal)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_crash)
    return app


def _routes(endpoint: Endpoint) -> list[BaseRoute]:
    async def claim(request: Request) -> Response:
        check_may_claim(request, endpoint.keyring)
        run_id, capacity, seconds = claim_of(read_object(await read_body(request)))
        async with watched(request.receive) as gone:
            claiming = asyncio.create_task(endpoint.registry.claim(run_id, capacity, seconds), name="claim")
            await asyncio.wait({claiming, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():  # or the lease of an episode that nobody got would have to run out
                endpoint.give_up(claiming)
                raise ClientDisconnect
            claimed = await claiming
        url = f"{endpoint.public_url or f'{request.url.scheme}://{request.url.netloc}'}/v1"
        return JSONResponse([episode.opening.document(url, key) for episode, key in claimed])

    async def end(request: Request) -> Response:
        episode = _named(request, endpoint)
        episode.end(verdict_of(read_object(await read_body(request)), episode.opening.attempt))
        return JSONResponse(episode.counters())

    async def beat(request: Request) -> Response:
        episode = _named(request, endpoint)
        episode.beat()
        return JSONResponse({"lease_seconds": episode.opening.section.step_seconds})

    async def restart(request: Request) -> Response:
        return JSONResponse(_named(request, endpoint).restart())

    async def show(request: Request) -> Response:
        return JSONResponse(_named(request, endpoint).counters())

    async def models(request: Request) -> Response:
        episode = episode_of(request, endpoint.registry)
        run_id = episode.opening.run_id
        return JSONResponse({"object": "list", "data": [_model(run_id), _model(run_id + UNTRAINED)]})

    async def model(request: Request) -> Response:
        run_id = episode_of(request, endpoint.registry).opening.run_id
        return JSONResponse(_model(run_id + UNTRAINED * request.path_params["model"].endswith(UNTRAINED)))

    episode_path = "/v1/agent/episodes/{episode}"
    return [
        *(Route(f"/v1/{path}", Answering(endpoint.registry, dialect), methods=["POST"]) for path, dialect in _DIALECTS.items()),
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", model),
        Route("/v1/agent/claim", claim, methods=["POST"]),
        Route(f"{episode_path}/end", end, methods=["POST"]),
        Route(f"{episode_path}/beat", beat, methods=["POST"]),
        Route(f"{episode_path}/restart", restart, methods=["POST"]),
        Route(episode_path, show),
    ]


_DIALECTS: dict[str, Dialect] = {
    "chat/completions": _OPENAI,
    "responses": Responses(),
    "messages": Messages(),
    "messages/count_tokens": CountTokens(),
}


def _named(request: Request, endpoint: Endpoint) -> AgentEpisode:
    episode = episode_of(request, endpoint.registry)
    if request.path_params["episode"] != episode.opening.episode_id:
        message = f"this is the key of the episode {episode.opening.episode_id}; use the key of the episode in the path"
        raise RefusalError(403, "forbidden", message)
    return episode


def _model(run_id: str) -> Document:
    return {"id": run_id, "object": "model", "created": 0, "owned_by": "gradbus"}


async def _on_refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)  # noqa: S101 - the class that it is registered for
    return error_response(error, _OPENAI)


async def _on_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    message = f"{error.detail}; see docs/agents.md for the paths that are served"
    return error_response(RefusalError(error.status_code, "not_found", message), _OPENAI)


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


async def _on_crash(_request: Request, error: Exception) -> Response:
    _log.error("request_crashed", exc_info=error)
    return error_response(RefusalError(500, "internal_error", "the agent service failed; its log says why"), _OPENAI)
