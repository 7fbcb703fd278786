"""Errors as OpenAI's clients read them; no path, trace or code of a template goes out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from mxc.artifact.chat_template import TemplateRefusal
from mxc.errors import ArtifactError, RequestError
from mxc.runtime.engine.engine import EngineStopped, QueueFull

LOG = logging.getLogger("mxc.server")

#: Seconds after which a client that was turned away may try again.
RETRY_SECONDS = 1


class ApiError(Exception):
    """An answer that is an error: `status` of HTTP, what was wrong, and in which parameter."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        """`kind` and `code` are OpenAI's names for the class of error."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is wrong."""
    return ApiError(400, message, param=param, code=code)


def internal() -> ApiError:
    """What is told of our own errors: the log has the rest."""
    return ApiError(500, "the server failed on this request", kind="server_error")


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of `error`; what it is not told goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(
            429,
            "too many requests wait already; try again later",
            code="rate_limit_exceeded",
            kind="requests",
            headers={"Retry-After": str(RETRY_SECONDS)},
        )
    if isinstance(error, EngineStopped):
        return ApiError(503, "the model is not available", kind="server_error")
    if isinstance(error, TimeoutError):
        return ApiError(504, "the answer took too long", code="timeout", kind="server_error")
    if isinstance(error, RequestError):
        return bad(str(error))
    LOG.error("a request failed", exc_info=error)
    return internal()


@contextmanager
def template_errors() -> Iterator[None]:
    """Tell of a chat template what it says itself; where it fails, only that it does."""
    try:
        yield
    except TemplateRefusal as error:
        raise bad(str(error), "messages") from error
    except (RequestError, ArtifactError) as error:
        LOG.warning("a chat template failed: %s", error)
        raise bad("the model's chat template fails on these messages", "messages") from error


async def on_api_error(request: Request, error: Exception) -> JSONResponse:
    """The handler of everything that a route raises."""
    return as_api_error(error).response()


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Unknown paths and methods, which starlette finds."""
    assert isinstance(error, HTTPException)
    message = {404: f"there is nothing at {request.url.path[:100]}"}.get(
        error.status_code, error.detail
    )
    return ApiError(error.status_code, message, headers=dict(error.headers or {})).response()
