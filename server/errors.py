"""Errors in the format of OpenAI's API, without paths, traces or template source."""

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

#: Seconds after which a client may retry when the queue was full.
RETRY_SECONDS = 1


class ApiError(Exception):
    """An error response: HTTP `status`, a message, and the parameter that was wrong."""

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
        """kind, code: OpenAI's names for the class of the error."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the response."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Return the response."""
        return JSONResponse(self.body(), self.status, self.headers)


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error (400) of a wrong request."""
    return ApiError(400, message, param=param, code=code)


def internal() -> ApiError:
    """Return the error (500) of a failure of the server, whose details go to the log only."""
    return ApiError(500, "the server failed on this request", kind="server_error")


def as_api_error(error: BaseException) -> ApiError:
    """Return what a client is told of `error`; an unexpected error is logged."""
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
    """Raise ApiError for errors of a chat template.

    A refusal by the template is passed on with its message. Of any other failure the client is told
    only that the template failed; the log has the error.
    """
    try:
        yield
    except TemplateRefusal as error:
        raise bad(str(error), "messages") from error
    except (RequestError, ArtifactError) as error:
        LOG.warning("a chat template failed: %s", error)
        raise bad("the model's chat template fails on these messages", "messages") from error


async def on_api_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error that a route raised."""
    return as_api_error(error).response()


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error of starlette, such as an unknown path or method."""
    assert isinstance(error, HTTPException)
    message = {404: f"there is nothing at {request.url.path[:100]}"}.get(
        error.status_code, error.detail
    )
    return ApiError(error.status_code, message, headers=dict(error.headers or {})).response()
