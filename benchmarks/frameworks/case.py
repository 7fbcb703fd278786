"""One test case of a framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

Arrays: TypeAlias = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class Program:
    """A program for mxc.compile, and calls of it: arguments and wanted results of each.

    A result of floats is right if |found - wanted| <= atol + rtol |wanted|; integers have to be
    equal.
    """

    name: str
    program: Any
    calls: Sequence[tuple[Arrays, Arrays]]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Case:
    """A test case. `load` returns its programs, without those in which an argument or a result is
    no tensor of numbers."""

    name: str
    load: Callable[[], Sequence[Program]]
