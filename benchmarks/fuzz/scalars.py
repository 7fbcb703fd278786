"""Scalar operations over whole arrays: uint64 bits and float64 values.

`dialects/scalar_operations.py` computes the exact operations. This module adds operations that a
math library approximates, and conversions to elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf

import numpy as np
from iree.compiler import ir

from mxc.dialects.scalar_operations import FLOATS, Array, bits_of, decoded, evaluate, rounded

_ERF = np.vectorize(erf, otypes=[np.float64])

#: Functions of floats, in float64, each rounded once to the type of the result.
_APPROXIMATE: Mapping[str, Callable[..., Array]] = {
    "math.exp": np.exp,
    "math.tanh": np.tanh,
    "math.erf": _ERF,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: 1 / np.sqrt(x),
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.fma": lambda x, y, z: x * y + z,
}


def computed(op: ir.Operation, inputs: Sequence[Array]) -> Array:
    """Evaluate a scalar operation. Raises NotImplementedError for one that is not known."""
    result = op.results[0].type
    found = evaluate(op, inputs)
    if found is None and op.name in _APPROXIMATE:
        with np.errstate(all="ignore"):
            found = rounded(_APPROXIMATE[op.name](*inputs), result)
    if found is None and op.name in ("arith.truncf", "arith.extf"):
        found = narrowed(inputs[0], result)
    if found is None:
        raise NotImplementedError(f"no numpy for {op}")
    return found


def narrowed(values: Array, kind: ir.Type) -> Array:
    """Round values, which f32 holds exactly, to a float type, to nearest even; return float64."""
    with np.errstate(all="ignore"):
        return np.asarray(values.astype(np.float32).astype(FLOATS[str(kind)]).astype(np.float64))


def encoded(values: Array, kind: ir.Type) -> Array:
    """Return the bits of values of a scalar type, as uint64."""
    if not isinstance(kind, ir.FloatType):
        return values.astype(np.uint64)
    narrow: Array = values.astype(FLOATS[str(kind)])
    return narrow.view(f"u{narrow.dtype.itemsize}").astype(np.uint64)


def regrouped(values: Array, source: ir.Type, result: ir.Type) -> Array:
    """Bitcast a row-major tensor along its last dimension to another element type, whose width may
    differ."""
    bits, wide = encoded(values, source), bits_of(source)
    narrow = bits_of(result)
    if wide != narrow:
        # The lowest bit first, as bytes of sub-byte elements are packed.
        places = np.arange(wide, dtype=np.uint64)
        stream = (bits[..., None] >> places & np.uint64(1)).reshape(*bits.shape[:-1], -1)
        parts = stream.reshape(*bits.shape[:-1], -1, narrow)
        bits = (parts << np.arange(narrow, dtype=np.uint64)).sum(-1, dtype=np.uint64)
    found = decoded(bits, result)
    if found is None:
        raise NotImplementedError(f"no numpy for {result}")
    return found
