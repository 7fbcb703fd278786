"""The server's routes, its check of API keys, and its handlers of errors."""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mxc.runtime.completions.text_model import TextModel
from mxc.server import chat, completions, responses
from mxc.server.answers import ClientLeft
from mxc.server.errors import ApiError, as_api_error, on_api_error, on_http_error
from mxc.server.served import Served
from mxc.server.settings import Settings

#: Paths that need no API key: the page where users enter it, and the health check.
_OPEN = ("/", "/health")
_PAGE = Path(__file__).with_name("page.html")
#: Restrict the page to its own inline code and to requests to this server.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(models: Mapping[str, TextModel], settings: Settings | None = None) -> Starlette:
    """Return the application that serves `models`, by name; it closes their engines at its end."""
    shared = Served(models, settings or Settings())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        yield
        shared.close()

    async def page(request: Request) -> Response:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=_PAGE_HEADERS)

    async def health(request: Request) -> Response:
        failed = [n for n, each in shared.models.items() if each.model.engine.failure is not None]
        body = {"status": "failed", "models": failed} if failed else {"status": "ok"}
        return JSONResponse(body, 503 if failed else 200)

    async def metrics(request: Request) -> Response:
        return Response(shared.metrics.text(), media_type="text/plain; version=0.0.4")

    async def list_models(request: Request) -> Response:
        data = [each.described() for each in shared.models.values()]
        return JSONResponse({"object": "list", "data": data})

    async def one_model(request: Request) -> Response:
        return JSONResponse(shared.find(request.path_params["name"]).described())

    def post(path: str, answer: Callable[[Request, Served], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request, shared)
            except ClientLeft:
                return Response(status_code=499)  # only for the metrics: the client has gone
            except Exception as error:
                return as_api_error(error).response()

        return Route(path, endpoint, methods=["POST"])

    return Starlette(
        routes=[
            Route("/", page),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", one_model),
            post("/v1/chat/completions", chat.answer),
            post("/v1/completions", completions.answer),
            post("/v1/responses", responses.answer),
        ],
        middleware=[Middleware(_Gate, shared=shared)],
        exception_handlers={
            ApiError: on_api_error,
            HTTPException: on_http_error,
            Exception: on_api_error,
        },
        lifespan=lifespan,
    )


class _Gate:
    """Middleware that checks API keys and counts responses by status."""

    def __init__(self, app: ASGIApp, shared: Served) -> None:
        self._app, self._shared = app, shared
        self._keys = [key.encode() for key in shared.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._shared.metrics.responded(message["status"])
            await send(message)

        if self._keys and scope["path"] not in _OPEN and not self._known(scope):
            error = ApiError(
                401,
                "an API key is wanted: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, counted)
            return
        await self._app(scope, receive, counted)

    def _known(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        # Every key is compared, in constant time.
        found = [hmac.compare_digest(key.strip(), each) for each in self._keys]
        return scheme.lower() == b"bearer" and any(found)
