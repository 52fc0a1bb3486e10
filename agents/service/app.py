"""The reward service on the network: routes, and a server that ends what it has begun.

    serve(ServiceConfig(world=WorldConfig(recipe="echo_n1")), tell=print)

Python-only servers (h11) read heads of bounded size; there are no websockets, no CORS, no pages for browsers.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from echo_env.agents.service import Service, ServiceConfig, Unusable
from echo_env.agents.service.guard import LOCAL_NAMES, Guard, Limits, is_loopback
from echo_env.agents.service.wire import RewardAnswer, RewardRequest, ScoreAnswer, ScoreRequest
from echo_env.errors import ConfigError, missing_extra
from echo_env.version import VERSION

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from fastapi.routing import APIRoute
    from starlette.requests import Request
    from starlette.responses import Response

TOKEN_VARIABLE = "ECHO_ENV_TOKEN"
"""Environment variable that holds the bearer token."""
SHORTEST_TOKEN = 16
"""Characters."""
MOST_FAULTS = 20
"""Mistakes of a request that its answer lists."""


def limits_of(config: ServiceConfig) -> Limits:
    """Return what the guard holds requests against.

    Raises:
        ConfigError: The address is not loopback and there is no token, or the token cannot stand in a header.
    """
    local = is_loopback(config.host)
    token = config.token.get_secret_value() if config.token is not None else None
    if token is None and not local:
        raise ConfigError(
            f"the address '{config.host}' can be reached from other machines, and there is no token",
            f"set the environment variable {TOKEN_VARIABLE}, or listen on 127.0.0.1",
        )
    if token is not None and (
        len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token
    ):
        raise ConfigError(
            f"the token is not of {SHORTEST_TOKEN} printable ASCII characters or more, without spaces",
            f"{TOKEN_VARIABLE}=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')",
        )
    return Limits(
        token=token,
        hosts=LOCAL_NAMES | {config.host.lower()} if local else None,
        max_body=config.max_body,
        inside=config.at_once + config.queue,
        timeout=config.timeout,
    )


def create_app(config: ServiceConfig) -> FastAPI:
    """Return the service as an ASGI application, guard included.

    Raises:
        ConfigError: A name or an option is unknown, or the address needs a token.
        MissingExtra: FastAPI or prometheus_client is not installed.
    """
    try:
        from fastapi import FastAPI
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import JSONResponse, Response
        from prometheus_client import CONTENT_TYPE_LATEST
    except ImportError as e:
        raise missing_extra(e.name or "fastapi", "serve") from None

    limits, service = limits_of(config), Service(config)
    app = FastAPI(title="echo-env rewards", version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = _strict_route()
    app.add_middleware(Guard, limits=limits, metrics=service.metrics)

    @app.exception_handler(Unusable)
    async def unusable(_: object, e: Unusable) -> JSONResponse:
        shown = [fault.shown for fault in e.faults[:MOST_FAULTS]]
        return JSONResponse({"detail": shown}, e.code, {"Retry-After": "1"} if e.code == 503 else None)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: object, e: RequestValidationError) -> JSONResponse:
        faults = [{"loc": [_short(part) for part in f["loc"]], "msg": f["msg"]} for f in e.errors()[:MOST_FAULTS]]
        return JSONResponse({"detail": faults}, 422)

    @app.post("/score")
    async def score(request: ScoreRequest) -> ScoreAnswer:
        return await service.score(request)

    @app.post("/get_reward")
    async def get_reward(request: RewardRequest) -> RewardAnswer:
        return await service.get_reward(request)

    @app.get("/health")
    async def health() -> dict[str, object]:
        scorer = config.world.scorer
        told = {"recipe": service.recipe, "judges": service.judges, "scorer": scorer, "max_batch": config.max_batch}
        return {"status": "ok", "version": VERSION, **told}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return app


def _short(part: object) -> object:
    return part if isinstance(part, int) else str(part)[:80]


def _strict_route() -> type[APIRoute]:
    """Return a route that reads JSON as the standard has it: no NaN, no half characters, no bottomless nesting."""
    from fastapi import HTTPException
    from fastapi.routing import APIRoute
    from pydantic_core import from_json
    from starlette.requests import Request

    class StrictRequest(Request):
        async def json(self) -> object:
            try:
                return from_json(await self.body(), allow_inf_nan=False)
            except ValueError as e:
                raise HTTPException(400, f"the body is no JSON: {e}"[:200]) from None

    class StrictRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def strictly(request: Request) -> Response:
                return await handle(StrictRequest(request.scope, request.receive))

            return strictly

    return StrictRoute


def serve(config: ServiceConfig, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; then take no more, and give what is under way `config.grace` seconds.

    Args:
        config: What to serve, and where.
        tell: Is told the service's address once it can be reached.

    Raises:
        ConfigError: It cannot be served so, or not there.
        MissingExtra: A package of the extra `serve` is not installed.
    """
    # uvicorn raises the signal again once it has ended: an exit in order, where the default would be a death by signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server, door = server_of(config, tell)
    server.run(sockets=[door])


def server_of(config: ServiceConfig, tell: Callable[[str], None]) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server, to be run with the socket that it listens on; arguments and errors are those of `serve`."""
    app = create_app(config)
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("uvicorn", "serve") from None

    door = _listen(config.host, config.port)
    host, port = door.getsockname()[:2]

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            tell(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    settings = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", access_log=False, log_level="warning", server_header=False,
        proxy_headers=False, limit_concurrency=config.connections, timeout_graceful_shutdown=config.grace,
    )  # fmt: skip
    return Server(settings), door


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as e:
        raise ConfigError(f"cannot listen on {host}, port {port}: {e.strerror or e}", "take another --port") from None
