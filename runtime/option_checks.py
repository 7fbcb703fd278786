"""Checks of options that a caller gives: each is a number of the right kind, or a RequestError."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

from mxc.errors import RequestError


def whole(value: Any) -> int | None:
    """Return an integer of Python or numpy as an int; None for anything else, such as True."""
    if isinstance(value, bool) or getattr(value, "ndim", None):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole_number(name: str, value: Any, low: int) -> int:
    """Return a whole number of at least `low`; RequestError for another value."""
    found = whole(value)
    if found is None:
        raise RequestError(f"{name} must be a whole number, got {value!r}")
    if found < low:
        raise RequestError(f"{name} must be at least {low}, got {value}")
    return found


def number(name: str, value: Any, low: float | None = None, high: float | None = None) -> float:
    """Return a finite number of at least `low` and at most `high`, where these are given;
    RequestError for another value."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise RequestError(f"{name} must be a number, got {value!r}")
    found = float(value)
    if low is not None and high is not None:
        if not low <= found <= high:
            raise RequestError(f"{name} must be {low:g} to {high:g}, got {value}")
    elif low is not None and not found >= low:
        raise RequestError(f"{name} must be at least {low:g}, got {value}")
    elif not math.isfinite(found):
        least = "" if low is None else f"at least {low:g} and "
        raise RequestError(f"{name} must be {least}finite, got {value}")
    return found
