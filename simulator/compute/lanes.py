"""Instructions that move values between lanes, or between a lane and a scalar register.

Source: AMD CDNA4 instruction set architecture, sections on DPP, DS (swizzle, permute) and VOP3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.state import Waves

Step = Callable[[Waves], None]
_LANE = np.arange(64)


@cache
def dpp_lanes(control: int) -> tuple[Array, Array]:
    """Return for each lane the lane that it reads, and whether that lane exists.

    A row has 16 lanes. Raises SimulationError for controls of other generations.
    """
    row, place = _LANE & ~15, _LANE & 15
    valid = np.ones(64, bool)
    if control < 0x100:
        source = (_LANE & ~3) | (control >> 2 * (_LANE & 3) & 3)
    elif 0x101 <= control <= 0x10F:
        source, valid = _LANE + (control & 15), place + (control & 15) < 16
    elif 0x111 <= control <= 0x11F:
        source, valid = _LANE - (control & 15), place >= control & 15
    elif 0x121 <= control <= 0x12F:
        source = row | (place - (control & 15)) & 15
    elif control == 0x130:
        source, valid = _LANE + 1, _LANE < 63
    elif control == 0x134:
        source = (_LANE + 1) & 63
    elif control == 0x138:
        source, valid = _LANE - 1, _LANE > 0
    elif control == 0x13C:
        source = (_LANE - 1) & 63
    elif control == 0x140:
        source = row | 15 - place
    elif control == 0x141:
        source = (_LANE & ~7) | 7 - (_LANE & 7)
    elif control == 0x142:
        source, valid = row - 1, _LANE >= 16
    elif control == 0x143:
        source, valid = np.full(64, 31), _LANE >= 32
    elif 0x150 <= control <= 0x15F:
        source = row | control & 15
    else:
        raise SimulationError(f"DPP control 0x{control:x} is not modelled")
    return np.clip(source, 0, 63), valid


@cache
def dpp_enabled(row_mask: int, bank_mask: int) -> Array:
    """Return the lanes that both masks enable for writing; a bank is 4 lanes of each row."""
    return ((row_mask >> (_LANE >> 4) & 1) & (bank_mask >> (_LANE >> 2 & 3) & 1)).astype(bool)


def dpp(waves: Waves, value: Array, i: Instruction) -> tuple[Array, Array]:
    """Return the first operand of a DPP instruction, and the lanes that it may write."""
    source, valid = dpp_lanes(i.has("dpp_ctrl"))
    moved = waves.wide(value)[:, source]
    readable = valid & waves.lanes[:, source]
    keep = dpp_enabled(i.has("row_mask") ^ 15, i.has("bank_mask") ^ 15)[None]
    if i.has("bound_ctrl"):
        return np.where(readable, moved, np.uint32(0)), keep
    return moved, keep & readable


@cache
def swizzle_lanes(offset: int) -> Array:
    """ds_swizzle_b32: return for each lane the lane that it reads."""
    mask, rotation = offset & 31, offset >> 5 & 31
    low, high = _LANE & 31, _LANE & 32
    if offset >= 0xE000:
        # FFT mode: the bits of the lane that the mask does not keep are reversed.
        reversed_bits = sum((low >> n & 1) << (4 - n) for n in range(5))
        return np.asarray(high | reversed_bits >> mask.bit_count() | (_LANE & mask))
    if offset >= 0xC000:
        rotation = -rotation if offset & 0x400 else rotation
        return np.asarray(high | ((_LANE & mask) | ((_LANE + rotation) & ~mask)) & 31)
    if offset & 0x8000:
        return (_LANE & ~3) | (offset >> 2 * (_LANE & 3) & 3)
    return high | (((low & mask) | rotation) ^ (offset >> 10 & 31))


def lane_step(i: Instruction, read: Callable[[int], Callable[[Waves], Array]]) -> Step | None:
    """Return the step of a cross-lane instruction, else None; read: returns an operand's reader."""
    maker = _MAKERS.get(i.name)
    return maker(i, read) if maker else None


Reader = Callable[[int], Callable[[Waves], Array]]


def _read_first(i: Instruction, read: Reader) -> Step:
    value, target = read(0), i.results[0].index

    def step(w: Waves) -> None:
        w.s[target] = w.put_scalar(w.s[target], w.first_lane(value(w)))

    return step


def _read_lane(i: Instruction, read: Reader) -> Step:
    value, lane, target = read(0), read(1), i.results[0].index

    def step(w: Waves) -> None:
        chosen = np.broadcast_to(lane(w).astype(np.int64) & 63, (w.count, 1))
        found = np.take_along_axis(w.wide(value(w)), chosen, axis=1)
        w.s[target] = w.put_scalar(w.s[target], found)

    return step


def _write_lane(i: Instruction, read: Reader) -> Step:
    value, lane, target = read(0), read(1), i.results[0].index

    def step(w: Waves) -> None:
        here = np.arange(64)[None] == (lane(w).astype(np.int64) & 63)
        if w.active is not None:
            here = here & w.active
        w.v[target] = np.where(here, value(w), w.v[target])

    return step


def _swizzle(i: Instruction, read: Reader) -> Step:
    value, target = read(0), i.results[0].index
    source = swizzle_lanes(i.has("offset"))

    def step(w: Waves) -> None:
        moved = np.where(w.lanes[:, source], w.wide(value(w))[:, source], np.uint32(0))
        w.v[target] = w.put(w.v[target], moved)

    return step


def _pull(i: Instruction, read: Reader) -> Step:
    """ds_bpermute_b32: each lane reads the lane that its address (in bytes) names."""
    address, value, target, offset = read(0), read(1), i.results[0].index, i.has("offset")

    def step(w: Waves) -> None:
        source = (w.wide(address(w)).astype(np.int64) + offset) >> 2 & 63
        moved = np.take_along_axis(w.wide(value(w)), source, axis=1)
        readable = np.take_along_axis(w.lanes, source, axis=1)
        w.v[target] = w.put(w.v[target], np.where(readable, moved, np.uint32(0)))

    return step


def _push(i: Instruction, read: Reader) -> Step:
    """ds_permute_b32: each lane writes to the lane that its address names; the last lane wins."""
    address, value, target, offset = read(0), read(1), i.results[0].index, i.has("offset")

    def step(w: Waves) -> None:
        place = (w.wide(address(w)).astype(np.int64) + offset) >> 2 & 63
        moved = np.zeros(w.shape, np.uint32)
        rows, columns = np.nonzero(w.lanes)
        moved[rows, place[rows, columns]] = w.wide(value(w))[rows, columns]
        w.v[target] = w.put(w.v[target], moved)

    return step


def _exchange(rows: int) -> Callable[[Instruction, Reader], Step]:
    """v_permlane16_swap, v_permlane32_swap: swap odd groups of the result with even source groups.

    EXEC restricts only the lanes that are written.
    """

    def make(i: Instruction, _: Reader) -> Step:
        first, second = i.results[0].index, i.operands[0].index
        low = (_LANE // rows) % 2 == 0

        def step(w: Waves) -> None:
            a, b = w.wide(w.v[first]), w.wide(w.v[second])
            other = _LANE ^ rows
            new_first = np.where(low, a, b[:, other])
            new_second = np.where(low, a[:, other], b)
            w.v[first] = w.put(w.v[first], new_first)
            w.v[second] = w.put(w.v[second], new_second)

        return step

    return make


def _swap(i: Instruction, _: Reader) -> Step:
    first, second = i.results[0].index, i.operands[0].index

    def step(w: Waves) -> None:
        a, b = w.v[first], w.v[second]
        w.v[first], w.v[second] = w.put(a, b), w.put(b, a)

    return step


_MAKERS: dict[str, Callable[[Instruction, Reader], Step]] = {
    "v_readfirstlane_b32": _read_first,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
    "v_swap_b32": _swap,
    "ds_swizzle_b32": _swizzle,
    "ds_bpermute_b32": _pull,
    "ds_permute_b32": _push,
    "v_permlane16_swap_b32": _exchange(16),
    "v_permlane32_swap_b32": _exchange(32),
}
LANE_INSTRUCTIONS = frozenset(_MAKERS)
