"""Descriptions of instructions: kinds of results and operands, and a numpy function.

A kind is one letter, which gives the number of registers of an operand and the dtype that the
function receives. Arrays have one row per wave and one column per lane (one column for scalars).

    u uint32        i int32         f float32      U uint64   I int64   d float64
    w uint16 in uint32              s int16 in int32
    h float16       b bfloat16 widened to float32
    m lane mask (bool, from 64 bits)               c the SCC bit (bool), implicit in assembly text
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: Number of 32-bit registers of an operand of each kind.
REGISTERS = dict.fromkeys("uifwshb", 1) | dict.fromkeys("UIdm", 2) | {"c": 0}


@dataclass(frozen=True, slots=True)
class Operation:
    """`run` takes the operands of kinds `ins` and returns the results of kinds `outs`.

    tied: the old value of the result is an additional last operand.
    """

    outs: str
    ins: str
    run: Callable[..., Any]
    tied: bool = False


def operation(outs: str, ins: str, run: Callable[..., Any], *, tied: bool = False) -> Operation:
    """Make an Operation; "u", "uu" is a function of two uint32 arrays that returns one."""
    return Operation(outs, ins, run, tied)


def u64(value: Array) -> Array:
    """Zero-extend to 64 bits."""
    return value.astype(np.uint64)


def i64(value: Array) -> Array:
    """Extend to int64, by sign for signed types."""
    return value.astype(np.int64)


def low32(value: Array) -> Array:
    """Return the lower half of 64 bits."""
    return value.astype(np.uint32)


def high32(value: Array) -> Array:
    """Return the upper half of 64 bits."""
    return (value >> np.uint64(32)).astype(np.uint32)
