"""Runs the server on a port until it is told to end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping

import uvicorn

from mxc.errors import RequestError
from mxc.runtime.completions.text_model import TextModel
from mxc.server.app import make_app
from mxc.server.settings import Settings

#: The most connections at a time; uvicorn answers further ones with 503.
_CONNECTIONS = 1000


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port. Raises RequestError if it fails."""
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
    """Serve until an interrupt or SIGTERM; running answers may then take `drain_seconds` more.

    ready: called before the first request is accepted.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # asyncio warns of clients that have disconnected, which is normal here.
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
