"""Typed reading of the fields of a request; fields that were not read are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mxc.server.errors import bad

#: Fields of OpenAI's requests that this server accepts and ignores.
HARMLESS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)
_MISSING = object()


class RequestFields:
    """The fields of one JSON object. An absent field and null are the same.

    Each method removes a field and returns its value, or the default where it is absent. It raises
    ApiError for a value of another type or range.
    """

    def __init__(self, value: Any, place: str = "") -> None:
        """`place` names the object in errors: "" or "tools[0]."."""
        if not isinstance(value, dict):
            name = place.rstrip(".")
            raise bad(f"{name or 'the body'} must be an object", name or None)
        self._value: dict[str, Any] = {k: v for k, v in value.items() if v is not None}
        self._place = place

    def name(self, key: str) -> str:
        """Return the full name of a field, for messages."""
        return f"{self._place}{key}"

    def any(self, key: str, default: Any = None) -> Any:
        """Read a field of any type."""
        return self._value.pop(key, default)

    def required(self, key: str) -> Any:
        """Read a field of any type that must be present."""
        found = self._value.pop(key, _MISSING)
        if found is _MISSING:
            raise bad(f"missing required parameter: {self.name(key)}", self.name(key))
        return found

    def text(self, key: str, default: str | None = None) -> str | None:
        """Read a string."""
        found = self.any(key, default)
        if found is not None and not isinstance(found, str):
            raise self._wrong(key, "a string", found)
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """Read a Boolean."""
        found = self.any(key, default)
        if not isinstance(found, bool):
            raise self._wrong(key, "true or false", found)
        return found

    def number(self, key: str, low: float, high: float, default: float | None) -> float | None:
        """Read a number from `low` to `high`."""
        found = self.any(key, default)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self._wrong(key, "a number", found)
        if not low <= found <= high:  # NaN is in no range
            raise self._wrong(key, f"from {low:g} to {high:g}", found)
        return float(found)

    def whole(self, key: str, low: int, high: int | None, default: int | None) -> int | None:
        """Read an integer from `low` to `high`; None for no upper limit."""
        found = self.any(key, default)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._wrong(key, "a whole number", found)
        if found < low or (high is not None and found > high):
            wanted = f"at least {low}" if high is None else f"from {low} to {high}"
            raise self._wrong(key, wanted, found)
        return found

    def choice(self, key: str, choices: Sequence[str], default: str | None) -> str | None:
        """Read one of the strings `choices`."""
        found = self.text(key, default)
        if found is not None and found not in choices:
            raise self._wrong(key, f"one of {', '.join(choices)}", found)
        return found

    def items(self, key: str) -> list[Any]:
        """Read a list."""
        found = self.any(key, [])
        if not isinstance(found, list):
            raise self._wrong(key, "a list", found)
        return found

    def strings(self, key: str, most: int) -> tuple[str, ...]:
        """Read a string or a list of up to `most` strings."""
        found = self.any(key, [])
        found = [found] if isinstance(found, str) else found
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self._wrong(key, "a string or a list of strings", found)
        if len(found) > most:
            raise self._wrong(key, f"at most {most} strings", found)
        return tuple(found)

    def object(self, key: str) -> RequestFields | None:
        """Read an object."""
        found = self.any(key)
        return None if found is None else RequestFields(found, f"{self.name(key)}.")

    def only(self, key: str, allowed: Any, why: str) -> None:
        """Check a field of which only the value `allowed` is supported; `why`: the reason."""
        found = self.any(key, allowed)
        if found != allowed:
            raise bad(f"{self.name(key)} is not supported: {why}", self.name(key), "unsupported")

    def done(self, ignored: Sequence[str] = ()) -> None:
        """Raise ApiError for a field that was not read and is not in `ignored`."""
        for key in self._value:
            if key not in ignored:
                name = self.name(key)[:100]
                raise bad(f"unrecognized request argument supplied: {name}", name)

    def _wrong(self, key: str, wanted: str, found: Any) -> Exception:
        shown = json.dumps(found, default=str)[:60]
        return bad(f"{self.name(key)} must be {wanted}, got {shown}", self.name(key))
