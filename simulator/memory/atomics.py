"""Atomic operations on memory and LDS, sequential for lanes with the same address.

Source: AMD CDNA4 instruction set architecture, section 9.2 (floats: NaN, zeros, denormals) and the
pseudocode of the instructions. The simulator processes waves and lanes in ascending order. Hardware
may take another order, so only results that do not depend on the order agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxc.simulator.compute.modes import DENORM16, DENORM32, flush
from mxc.simulator.compute.numbers import from_bfloat, to_bfloat
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError

Run = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Atomic:
    """An atomic: `run` takes the old value and the operands, as `kind`, and returns the new value.

    kind: the integer type in which bits are passed, uint32, int32, uint64 or int64. operands: 1 or
    2. mode: for floats, the MODE field that says whether operands in LDS keep denormals; None for
    integers. flushes_memory: whether denormals of operands in memory are flushed.
    """

    kind: Any
    run: Run
    operands: int = 1
    mode: int | None = None
    flushes_memory: bool = False

    @property
    def dwords(self) -> int:
        """Number of registers of the value in memory, and of each operand."""
        return int(np.dtype(self.kind).itemsize) // 4


def _increment(old: Array, limit: Array) -> Array:
    result: Array = np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))
    return result


def _decrement(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _wrap(old: Array, size: Array, other: Array) -> Array:
    return np.where(old >= size, old - size, old + other)


def _float(bits: Array) -> Array:
    return bits.view(np.float32 if bits.dtype == np.uint32 else np.float64)


def _bits(value: Array) -> Array:
    return value.view(np.uint32 if value.dtype == np.float32 else np.uint64)


def _add(old: Array, value: Array, keep: bool) -> Array:
    a, b = _float(old), _float(value)
    if not keep:
        return _bits(flush(flush(a) + flush(b)))
    return _bits(a + b)


def _add_double(old: Array, value: Array, _: bool) -> Array:
    return _bits(_float(old) + _float(value))


def _add_halves(old: Array, value: Array, keep: bool) -> Array:
    a, b = old.view(np.float16), value.view(np.float16)
    total = a + b if keep else flush(flush(a) + flush(b))
    return np.ascontiguousarray(total).view(np.uint32)


def _add_bfloats(old: Array, value: Array, keep: bool) -> Array:
    result = np.zeros_like(old)
    for shift in (0, 16):
        a, b = (from_bfloat(x >> shift & 0xFFFF) for x in (old, value))
        total = a + b if keep else flush(flush(a) + flush(b))
        result |= to_bfloat(total) << shift
    return result


def _order(bits: Array, missing: int, keep: bool) -> Array:
    """Map floats to integers in the order of section 9.2.3.

    missing: 1 orders a quiet NaN last, -1 first.
    """
    value = _float(bits)
    seen = bits if keep else _bits(flush(value))
    signed = seen.view(np.dtype(f"i{bits.dtype.itemsize}"))
    top = signed.dtype.type(np.iinfo(signed.dtype).max)
    ordered = np.where(signed < 0, signed ^ top, signed)
    info = np.iinfo(signed.dtype)
    return np.where(np.isnan(value), info.max if missing > 0 else info.min, ordered)


def _extreme(largest: bool) -> Run:
    def run(old: Array, value: Array, keep: bool) -> Array:
        missing = -1 if largest else 1
        a, b = _order(old, missing, keep), _order(value, missing, keep)
        result = np.where(b > a if largest else b < a, value, old)
        quiet = old.dtype.type(1 << (22 if old.dtype == np.uint32 else 51))
        for operand in (value, old):
            signalling = np.isnan(_float(operand)) & (operand & quiet == 0)
            result = np.where(signalling, operand | quiet, result)
        return result

    return run


def _compare_store(old: Array, wanted: Array, value: Array, keep: bool) -> Array:
    a, b = _float(old), _float(wanted)
    if keep:
        return np.where(a == b, value, old)
    return _bits(flush(_float(np.where(flush(a) == flush(b), value, old))))


def _swap_if(old: Array, wanted: Array, value: Array) -> Array:
    return np.where(old == wanted, value, old)


_INTEGERS: dict[str, tuple[str, Run, int]] = {
    "add": ("u", lambda a, b: a + b, 1),
    "sub": ("u", lambda a, b: a - b, 1),
    "rsub": ("u", lambda a, b: b - a, 1),
    "smin": ("i", np.minimum, 1),
    "umin": ("u", np.minimum, 1),
    "smax": ("i", np.maximum, 1),
    "umax": ("u", np.maximum, 1),
    "and": ("u", lambda a, b: a & b, 1),
    "or": ("u", lambda a, b: a | b, 1),
    "xor": ("u", lambda a, b: a ^ b, 1),
    "inc": ("u", _increment, 1),
    "dec": ("u", _decrement, 1),
    "swap": ("u", lambda a, b: b, 1),
    "cmpst": ("u", _swap_if, 2),
    "mskor": ("u", lambda a, mask, bits: (a & ~mask) | bits, 2),
}
_FLOATS = {
    "add_f32": Atomic(np.uint32, _add, mode=DENORM32, flushes_memory=True),
    "add_f64": Atomic(np.uint64, _add_double, mode=DENORM16),
    "pk_add_f16": Atomic(np.uint32, _add_halves, mode=DENORM16),
    "pk_add_bf16": Atomic(np.uint32, _add_bfloats, mode=DENORM16),
    "min_f32": Atomic(np.uint32, _extreme(False), mode=DENORM32),
    "max_f32": Atomic(np.uint32, _extreme(True), mode=DENORM32),
    "min_f64": Atomic(np.uint64, _extreme(False), mode=DENORM16),
    "max_f64": Atomic(np.uint64, _extreme(True), mode=DENORM16),
    "cmpst_f32": Atomic(np.uint32, _compare_store, 2, mode=DENORM32),
    "cmpst_f64": Atomic(np.uint64, _compare_store, 2, mode=DENORM16),
}


def _memory_names() -> dict[str, Atomic]:
    """Return atomics on memory, by the end of the name after "_atomic_"."""
    table = dict(_FLOATS)
    for name, (sign, run, operands) in _INTEGERS.items():
        key = {"cmpst": "cmpswap"}.get(name, name)
        table[key] = Atomic(np.dtype(f"{sign}4"), run, operands)
        table[f"{key}_x2"] = Atomic(np.dtype(f"{sign}8"), run, operands)
    return table


def _local_names() -> dict[str, Atomic]:
    """Return atomics on LDS, by the name after "ds_", without "rtn"."""
    table = dict(_FLOATS)
    table["wrap_b32"] = Atomic(np.dtype("u4"), _wrap, 2)
    for name, (sign, run, operands) in _INTEGERS.items():
        for bits in (32, 64):
            plain = name.removeprefix("s").removeprefix("u") if "m" in name[1:2] else name
            plain = {"swap": "wrxchg"}.get(plain, plain)
            typed = plain in ("add", "sub", "rsub", "inc", "dec", "min", "max")
            letter = sign if typed else "b"
            table[f"{plain}_{letter}{bits}"] = Atomic(np.dtype(f"{sign}{bits // 8}"), run, operands)
    return table


_MEMORY, _LOCAL = _memory_names(), _local_names()


def memory_atomic(name: str) -> Atomic | None:
    """Return the atomic of an instruction such as "global_atomic_add"; None for others."""
    parts = name.split("_atomic_")
    return _MEMORY.get(parts[1]) if len(parts) == 2 and not name.startswith("s_") else None


def local_atomic(name: str) -> Atomic | None:
    """Return the atomic of an instruction such as "ds_add_rtn_u32"; None for others."""
    if not name.startswith("ds_"):
        return None
    return _LOCAL.get(name.removeprefix("ds_").replace("rtn_", ""))


def keeps_denormals(atomic: Atomic, mode: int | None) -> bool:
    """Whether operands keep denormals; mode: the MODE register for LDS, None for memory."""
    if atomic.mode is None or mode is None:
        return not atomic.flushes_memory
    return bool(mode >> atomic.mode & 1)


def perform(
    atomic: Atomic,
    index: Array,
    operands: list[Array],
    load: Callable[[Array, int], Array],
    store: Callable[[Array, Array, int], None],
    *,
    keep: bool,
) -> Array:
    """Do an atomic for lanes in order; return the old value of each, uint32 [lanes, dwords].

    index: byte addresses int64 [lanes]. operands: uint32 [lanes, dwords] each. load, store: access
    to the memory. keep: whether denormals are kept. Raises SimulationError for an unaligned
    address.
    """
    size = 4 * atomic.dwords
    if (index & (size - 1)).any():
        raise SimulationError(f"an atomic at an address that is not a multiple of {size} bytes")
    found = np.zeros((len(index), atomic.dwords), np.uint32)
    data = [np.ascontiguousarray(o, np.uint32) for o in operands]
    extra = () if atomic.mode is None else (keep,)
    for batch in _batches(index):
        old = np.ascontiguousarray(load(index[batch], size))
        found[batch] = old
        values = [np.ascontiguousarray(d[batch]).view(atomic.kind)[:, 0] for d in data]
        new = np.asarray(atomic.run(old.view(atomic.kind)[:, 0], *values, *extra))
        bits = np.ascontiguousarray(new.astype(atomic.kind, copy=False)[:, None]).view(np.uint32)
        store(index[batch], bits, size)
    return found


def _batches(index: Array) -> list[Array]:
    """Partition lanes into groups with distinct addresses; equal addresses stay in lane order."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    new = np.ones(len(order), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(new)
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    by_rank = np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank)) if len(rank) else np.zeros(0, np.int64)
    return np.split(order[by_rank], ends[:-1])
