"""Packed instructions: operations on two halves of a register, or on two registers.

Source: AMD CDNA4 instruction set architecture, section on VOP3P, and the pseudocode there.
`op_sel` selects the half that the lower result reads, `op_sel_hi` the half that the upper result
reads. v_pk_mov_b32 uses only op_sel in the pseudocode: op_sel[0] for the lower result, which reads
the first operand, and op_sel[1] for the upper result, which reads the second.
"""

from __future__ import annotations

import numpy as np

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.floats import FLOATS, fused32, maximum3, minimum3
from mxc.simulator.compute.integers import INTEGERS
from mxc.simulator.compute.operations import Array, Operation, operation

#: Instructions on two 16-bit halves of registers, with the operation of one half.
PACKED16: dict[str, Operation] = {
    **{
        f"v_pk_{name}": INTEGERS[f"v_{name}"]
        for name in (
            *("add_u16", "sub_u16", "add_i16", "sub_i16", "mul_lo_u16", "mad_u16", "mad_i16"),
            *("lshlrev_b16", "lshrrev_b16", "ashrrev_i16"),
            *("min_i16", "max_i16", "min_u16", "max_u16"),
        )
    },
    **{f"v_pk_{name}_f16": FLOATS[f"v_{name}_f16"] for name in ("add", "mul", "min", "max", "fma")},
    "v_pk_fmac_f16": FLOATS["v_fmac_f16"],
    "v_pk_minimum3_f16": operation("h", "hhh", minimum3),
    "v_pk_maximum3_f16": operation("h", "hhh", maximum3),
}
#: Instructions on two registers, with the operation of one.
PACKED32: dict[str, Operation] = {
    "v_pk_add_f32": FLOATS["v_add_f32"],
    "v_pk_mul_f32": FLOATS["v_mul_f32"],
    "v_pk_fma_f32": FLOATS["v_fma_f32"],
    "v_pk_mov_b32": INTEGERS["v_mov_b32"],
}


def packed_reads(i: Instruction, half: int) -> list[tuple[int, int]]:
    """Return the operands that one half of a packed result reads: (index, 1 for upper half)."""
    if i.name == "v_pk_mov_b32":
        return [(half, i.has("op_sel") >> half & 1)]
    # Stored as the difference from the default, all ones.
    chosen = i.has("op_sel_hi") ^ 7 if half else i.has("op_sel")
    return [(n, chosen >> n & 1) for n in range(len(i.operands))]


def _mixed_half(a: Array, b: Array, c: Array) -> Array:
    return fused32(a, b, c).astype(np.float16)


#: Fused multiply-adds in float32, whose operands are each a float32 or a float16 half.
MIXED: dict[str, Operation] = {
    "v_mad_mix_f32": operation("f", "fff", fused32),
    "v_mad_mixlo_f16": operation("h", "fff", _mixed_half),
    "v_mad_mixhi_f16": operation("h", "fff", _mixed_half),
}
