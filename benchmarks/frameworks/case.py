"""One test case of a framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

Arrays: TypeAlias = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class Program:
    """What is compiled, and what it gives: for each call its arguments and its results.

    A result is right where |found - wanted| <= atol + rtol |wanted|.
    """

    name: str
    program: Any
    calls: Sequence[tuple[Arrays, Arrays]]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Case:
    """`load` makes the programs, without those of which a value is no tensor of numbers."""

    name: str
    load: Callable[[], Sequence[Program]]
