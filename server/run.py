"""A server on a port, until it is told to end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping

import uvicorn

from mxc.errors import RequestError
from mxc.runtime.completions.text_model import TextModel
from mxc.server.app import make_app
from mxc.server.settings import Settings

#: Connections at a time; more are answered with 503 by uvicorn.
_CONNECTIONS = 1000


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one. Raises RequestError where that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise RequestError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port"
        ) from error


def serve(
    models: Mapping[str, TextModel],
    settings: Settings,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until an interrupt or SIGTERM; answers on their way may end in `drain_seconds`.

    `ready` is called before the first request is taken.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Its warnings are of clients that have gone, which are no news here.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    config = uvicorn.Config(
        make_app(models, settings),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )
    ready()
    uvicorn.Server(config).run(sockets=[listener])
