"""What limits a server. Units are in the names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits, and who may ask.

    api_keys: one of them is wanted in each request; nobody is asked where there are none.
    body_bytes: of one request. body_seconds: until it has come. prompt_tokens: None for what the
    model takes. request_seconds: from the request to the end of its answer. choices: `n`.
    drain_seconds: how long answers may still take when the server is told to end.
    """

    api_keys: tuple[str, ...] = ()
    body_bytes: int = 8 << 20
    body_seconds: float = 30.0
    prompt_tokens: int | None = None
    request_seconds: float = 600.0
    choices: int = 16
    drain_seconds: float = 30.0
