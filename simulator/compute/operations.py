"""How an instruction is described: the kinds of its results and operands, and a numpy function.

A kind is one letter. It says how many registers an operand takes and as what the function sees
them; arrays have one row for each wave and one column for each lane (one column: scalar).

    u uint32        i int32         f float32      U uint64   I int64   d float64
    w uint16 in uint32              s int16 in int32
    h float16       b bfloat16 widened to float32
    m lane mask (bool, from 64 bits)               c the SCC bit (bool), not written in the text
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: Registers (32 bits each) that an operand of a kind takes.
REGISTERS = dict.fromkeys("uifwshb", 1) | dict.fromkeys("UIdm", 2) | {"c": 0}


@dataclass(frozen=True, slots=True)
class Operation:
    """`run` takes the operands of kinds `ins` and returns the results of kinds `outs`.

    tied: the old value of the result is one more operand, the last one.
    """

    outs: str
    ins: str
    run: Callable[..., Any]
    tied: bool = False


def operation(outs: str, ins: str, run: Callable[..., Any], *, tied: bool = False) -> Operation:
    """An Operation; "u", "uu" is a function of two uint32 arrays that gives one."""
    return Operation(outs, ins, run, tied)


def u64(value: Array) -> Array:
    """Zero-extended to 64 bits."""
    return value.astype(np.uint64)


def i64(value: Array) -> Array:
    """Sign-extended to 64 bits."""
    return value.astype(np.int64)


def low32(value: Array) -> Array:
    """The lower half of 64 bits."""
    return value.astype(np.uint32)


def high32(value: Array) -> Array:
    """The upper half of 64 bits."""
    return (value >> np.uint64(32)).astype(np.uint32)
