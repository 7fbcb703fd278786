"""The conversions to and from fp4, fp8 and bf8, which read or write a part of a register."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.runtime.simulator.conversions import (
    NARROW,
    NARROW_UNSCALED,
    WIDEN,
    WIDEN_UNSCALED,
    halves,
    narrow,
    widen,
)
from mxc.runtime.simulator.instruction import Instruction, Operand
from mxc.runtime.simulator.operations import Array
from mxc.runtime.simulator.state import Waves

Step = Callable[[Waves], None]
Reader = Callable[[Operand], Callable[[Waves], Array]]
_FP16_OVFL = 1 << 23


def widen_step(i: Instruction, read: Reader) -> Step:
    """v_cvt_scalef32_pk_{f32,f16,bf16}_{fp4,fp8,bf8} and v_cvt_pk_f32_{fp8,bf8}.

    op_sel[1:0] chooses the byte of an fp4 source, op_sel[0] the half of an fp8 one.
    """
    scaled = i.name in WIDEN
    small, wide = (WIDEN if scaled else WIDEN_UNSCALED)[i.name]
    source = read(i.operands[0])
    scale = read(i.operands[1]) if scaled else None
    select = i.has("op_sel")
    shift = 8 * (select & 3) if small == "fp4" else 16 * (select & 1)
    if i.has("src0_sel"):
        raise ValueError(i.name)
    target = i.results[0].index

    def step(w: Waves) -> None:
        parts = widen(small, wide, source(w) >> shift, scale(w) if scale else None)
        for n, part in enumerate(parts):
            w.v[target + n] = w.put(w.v[target + n], part)

    return step


def narrow_step(
    i: Instruction, read: Reader, read_float: Callable[[Instruction, int], Callable[[Waves], Array]]
) -> Step:
    """v_cvt_scalef32_pk_{fp4,fp8,bf8}_{f32,f16,bf16} and v_cvt_pk_{fp8,bf8}_f32.

    op_sel[3:2] chooses the byte of an fp4 result, op_sel[3] the half of an fp8 one; the other
    bits of the register keep their values.
    """
    scaled = i.name in NARROW
    small, wide = (NARROW if scaled else NARROW_UNSCALED)[i.name]
    scale = read(i.operands[-1]) if scaled else None
    select = i.has("op_sel")
    shift = 8 * (select >> 2 & 3) if small == "fp4" else 16 * (select >> 3 & 1)
    keep = np.uint32(~((0xFF if small == "fp4" else 0xFFFF) << shift) & 0xFFFFFFFF)
    target = i.results[0].index
    if wide == "f32":
        first, second = read_float(i, 0), read_float(i, 1)
    else:
        packed = read(i.operands[0])

    def step(w: Waves) -> None:
        a, b = (first(w), second(w)) if wide == "f32" else halves(wide, packed(w))
        clamp = bool(w.mode & _FP16_OVFL)
        code = narrow(small, a, b, scale(w) if scale else None, clamp=clamp)
        w.v[target] = w.put(w.v[target], (w.v[target] & keep) | code << shift)

    return step
