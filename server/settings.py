"""Settings of a server. Units are in the names."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """API keys and limits of a server.

    api_keys: each request must have one of them; empty for no check. body_bytes: largest body of a
    request. body_seconds: time in which the body must arrive. prompt_tokens: most tokens of a
    prompt, None for the model's limit. request_seconds: time from the request to the end of its
    answer. choices: largest `n`, and most prompts of a completion. drain_seconds: time for running
    answers when the server is told to end.
    """

    api_keys: tuple[str, ...] = ()
    body_bytes: int = 8 << 20
    body_seconds: float = 30.0
    prompt_tokens: int | None = None
    request_seconds: float = 600.0
    choices: int = 16
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Raise RequestError for a key that a request cannot have."""
        if any(key != key.strip() or not key for key in self.api_keys):
            raise RequestError("an API key must not be empty, or begin or end with whitespace")
