"""Reads the JSON body of a request, within limits of size and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from mxc.server.errors import ApiError, bad
from mxc.server.fields import RequestFields
from mxc.server.settings import Settings


async def read_fields(request: Request, settings: Settings) -> RequestFields:
    """Return the fields of a request's body. Raises ApiError for anything but a JSON object."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Pages of other sites can send other types without a CORS preflight request.
        raise ApiError(415, "the content type must be application/json")
    return RequestFields(_parsed(await _read(request, settings)))


async def _read(request: Request, settings: Settings) -> bytes:
    most = settings.body_bytes
    too_large = ApiError(
        413, f"the body has more than {most} bytes", headers={"Connection": "close"}
    )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise ApiError(
            408, "the body did not come in time", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise bad("the body ended early") from None
    return bytes(body)


def _parsed(body: bytes) -> Any:
    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        text = body.decode()
        found = json.loads(text, parse_constant=constant)
        if "\\ud" in text.lower():  # maybe a lone surrogate, which cannot be encoded
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise bad("the body is not UTF-8") from error
    except UnicodeEncodeError as error:
        raise bad("a text of the body is not Unicode: it has half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise bad(f"the body is not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise bad("the body is not JSON, or nested too deeply") from error
    return found
