"""The application: routers, errors, limits. No handler holds anything between two requests."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from gradbus_gateway.http import problems
from gradbus_gateway.http.body_limit import BodyLimit
from gradbus_gateway.http.hosts import HostCheck
from gradbus_gateway.routes import events, files, health, runs, samples, sign_in, versions, workers
from gradbus_gateway.routes.dependencies import Gateway
from gradbus_gateway.settings import GatewaySettings
from gradbus_gateway.web import routes as page

_DESCRIPTION = "Reinforcement-learning runs of language models. Errors are `application/problem+json` (RFC 9457)."


# In the order in which a path is looked for: what is asked most comes first. Each route names the scope that it needs.
_ROUTERS = (
    *(part.router for part in (runs, events, samples, versions, files, workers, sign_in, health)),
    sign_in.page_router,
    page.router,
)


def create_app(gateway: Gateway | None = None) -> FastAPI:
    """The application over `gateway`; without one it can only describe itself."""
    # Its own spans, several a request, would be most of what a collector gets, for everybody polls.
    silent: TelemetryConfig = {"tracing": False, "operation_spans": False}
    # One flat list: a router that is included matches each of its routes twice, and again for every router around it.
    routes = [route for router in _ROUTERS for route in router.routes]
    app = FastAPI(title="Gradbus", version="1", description=_DESCRIPTION, docs_url=None, redoc_url=None, telemetry=silent, routes=routes)
    problems.register(app)
    settings = gateway.settings if gateway else GatewaySettings()
    app.add_middleware(BodyLimit, file_bytes=settings.max_file_bytes)
    app.add_middleware(HostCheck, served=settings.served_hosts)
    app.state.gateway = gateway
    return app
