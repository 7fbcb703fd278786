"""Flat, global and scratch instructions.

Source: AMD CDNA4 instruction set architecture, chapter 10; LLVM, User Guide for AMDGPU Backend,
section Flat (apertures); ROCm's kernel driver, kfd_flat_memory.c (their addresses on gfx9). A flat
address in the aperture of LDS or scratch accesses that memory, any other address global memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.operations import Array, i64, u64
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.access import (
    Reader,
    Step,
    change,
    dwords_to_lds,
    gather,
    put_loaded,
    scatter,
    size_of,
    stored_data,
)
from mxc.simulator.memory.atomics import memory_atomic
from mxc.simulator.memory.local import into_lds, local_change, local_load, local_store
from mxc.simulator.run.operands import PRIVATE_BASE, SHARED_BASE
from mxc.simulator.run.state import Waves, join

#: Executes an instruction at int64 addresses [waves, 64] for the active lanes.
Action = Callable[[Waves, Array], None]


def flat_step(i: Instruction, read: Reader) -> Step | None:
    """Return the step of a flat, global or scratch instruction; None where it is not modelled."""
    if i.name.startswith("scratch_"):
        return _scratch(i, read)
    vector = i.operands[0]
    scalar = i.operands[-1] if i.name.startswith("global_") else Operand("off", 0)
    offset = np.int64(i.has("offset"))
    action = _global(i)
    if action is None:
        return None
    if i.name.startswith("flat_"):
        action = _anywhere(i, action)

    def step(w: Waves) -> None:
        if scalar.bank == "s":
            start = join(w.s[scalar.index], w.s[scalar.index + 1]) + u64(w.v[vector.index])
        else:
            start = join(w.v[vector.index], w.v[vector.index + 1])
        action(w, start.view(np.int64) + offset)

    return step


def _global(i: Instruction) -> Action | None:
    """Return the action of an instruction on global memory; None where it is not modelled."""
    atomic = memory_atomic(i.name)
    if atomic is not None:
        data = i.operands[1]
        return lambda w, address: change(w, i, atomic, data, address, w.lanes)
    to_lds = "_load_lds_" in i.name
    size, signed, high = size_of(i) or (0, False, False)
    size = 4 * dwords_to_lds(i.name) if to_lds else size
    if not size:
        return None
    stores = "_store_" in i.name

    def action(w: Waves, address: Array) -> None:
        lanes = None if w.every else w.lanes
        if w.observer is not None:
            w.observer.vector(w, i, address, lanes, size, stores)
        if to_lds:
            into_lds(w, i, gather(w, address, lanes, size), size)
        elif stores:
            scatter(w, address, lanes, stored_data(w, i.operands[1], size, high), size)
        else:
            put_loaded(w, i, gather(w, address, lanes, size), size, signed, high)

    return action


def _anywhere(i: Instruction, elsewhere: Action) -> Action:
    """Return the action of a flat instruction, which accesses each lane's memory by its address."""
    atomic = memory_atomic(i.name)
    size, signed, high = size_of(i) or (0, False, False)
    stores = "_store_" in i.name

    def shared(w: Waves, address: Array) -> None:
        place = w.wide(address & 0xFFFFFFFF)
        if atomic is not None:
            raw = stored_data(w, i.operands[1], 4 * i.operands[1].count, False)
            width = atomic.dwords
            two = [raw[..., width:], raw[..., :width]]
            local_change(w, i, atomic, place, two if atomic.operands == 2 else [raw])
        elif stores:
            local_store(w, i, place, stored_data(w, i.operands[1], size, high), size)
        else:
            put_loaded(w, i, local_load(w, i, place, size), size, signed, high)

    def private(w: Waves, address: Array) -> None:
        if atomic is not None:
            raise SimulationError("an atomic on scratch is not modelled")
        _own(w, i, w.wide(address & 0xFFFFFFFF), size, signed, high)

    def action(w: Waves, address: Array) -> None:
        aperture = address >> 32
        in_lds, in_scratch = aperture == SHARED_BASE, aperture == PRIVATE_BASE
        others = ~(in_lds | in_scratch)
        if others.all():
            elsewhere(w, address)
            return
        for chosen, run in ((in_lds, shared), (in_scratch, private), (others, elsewhere)):
            lanes = w.lanes & chosen
            if lanes.any():
                with w.only(lanes):
                    run(w, address)

    return action


def _scratch(i: Instruction, read: Reader) -> Step | None:
    sized = size_of(i)
    if sized is None or "_load_lds_" in i.name:
        return None
    size, signed, high = sized
    parts = [read(o) for o in (i.operands[0], i.operands[-1]) if o.is_register]
    offset = i.has("offset")

    def step(w: Waves) -> None:
        place: Array = np.full((1, 1), offset, np.int64)
        for part in parts:
            place = place + i64(part(w))
        _own(w, i, w.wide(place), size, signed, high)

    return step


def _own(w: Waves, i: Instruction, place: Array, size: int, signed: bool, high: bool) -> None:
    """Do a load or store at byte offsets in each work item's scratch."""
    stores = "_store_" in i.name
    if w.observer is not None:
        w.observer.scratch(w, i, place, size, stores)
    lanes = w.lanes
    used = place[lanes]
    if used.size and (used.min() < 0 or used.max() + size > w.scratch_size):
        raise SimulationError(
            f"scratch access of {size} bytes outside of the {w.scratch_size} of a work item"
        )
    index = (w.scratch_base + place)[lanes]
    if stores:
        w.scratch.store(index, stored_data(w, i.operands[1], size, high)[lanes], size)
    else:
        values = np.zeros((*w.shape, max(1, size // 4)), np.uint32)
        values[lanes] = w.scratch.load(index, size)
        put_loaded(w, i, values, size, signed, high)
