"""The FastAPI application: routes, problem documents, middleware."""

from __future__ import annotations

from functools import partial
from typing import cast

from fastapi import Request, Response
from fastapi.telemetry import TelemetryConfig

from gradbus_gateway.http import problems
from gradbus_gateway.http.admission import Admissions
from gradbus_gateway.http.body_limit import BodyLimit
from gradbus_gateway.http.description import DescribedApp
from gradbus_gateway.http.hosts import HostCheck
from gradbus_gateway.http.methods import HeadAndOptions
from gradbus_gateway.http.request_limits import AdmissionMiddleware
from gradbus_gateway.routes import (
    events,
    files,
    health,
    lineage,
    plans,
    reward,
    runs,
    samples,
    sign_in,
    spec_checks,
    version_lineage,
    versions,
    workers,
)
from gradbus_gateway.routes.dependencies import Gateway
from gradbus_gateway.settings import GatewaySettings, RequestLimits
from gradbus_gateway.web import routes as web

_DESCRIPTION = "Reinforcement-learning runs of language models. Errors are `application/problem+json` (RFC 9457)."


# Paths are matched in this order, so the routes that are requested most come first.
_ROUTERS = (
    *(part.router for part in (runs, events, samples, versions, lineage, version_lineage)),
    *(part.router for part in (reward, files, spec_checks, plans, workers, sign_in, health)),
    sign_in.browser_router,
    web.router,
)


def _has_key(gateway: Gateway | None, authorization: str) -> bool:
    return gateway is not None and gateway.keyring.find_in_header(authorization) is not None


async def _document(request: Request) -> Response:
    return Response(cast("DescribedApp", request.app).document, media_type="application/json")


def create_app(gateway: Gateway | None = None, settings: GatewaySettings | None = None) -> DescribedApp:
    """The application over `gateway`. Without a gateway it can only produce its OpenAPI document."""
    # No spans of FastAPI: several per request, they would drown all others, because every client polls.
    silent: TelemetryConfig = {"tracing": False, "operation_spans": False}
    # One flat list: FastAPI matches the routes of an included router twice.
    routes = [route for router in _ROUTERS for route in router.routes]
    app = DescribedApp(
        title="Gradbus",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=silent,
        routes=routes,
    )
    app.add_api_route("/openapi.json", _document, include_in_schema=False)
    problems.register(app)
    settings = settings or GatewaySettings()
    app.add_middleware(HeadAndOptions)
    app.add_middleware(BodyLimit, file_bytes=settings.max_file_bytes)
    app.add_middleware(HostCheck, served=settings.served_hosts)
    app.add_middleware(AdmissionMiddleware, admissions=Admissions(RequestLimits()), has_key=partial(_has_key, gateway))
    app.state.gateway = gateway
    return app
