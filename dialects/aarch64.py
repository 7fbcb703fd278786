"""AArch64 instructions that MLIR's vector dialect lacks, as typed functions.

Each is an LLVM intrinsic. Compiling one for a CPU without its feature ends the compiler, so a
caller asks the target record first. Source: Arm Architecture Reference Manual, DDI 0487.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import llvm


def dot_i8(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """acc[i] + sum over t of a[4i+t] b[4i+t]: SDOT; acc i32 [4], a and b i8 [16].

    Needs dotprod. The sum wraps around at 32 bits.
    """
    return _call("llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, [acc, a, b])


def dot_bf16(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """acc[i] + (a[2i] b[2i] + a[2i+1] b[2i+1]): BFDOT; acc f32 [4], a and b bf16 [8].

    Needs bf16. Unless a CPU has FEAT_EBF16 and enables it, both additions round to odd, and
    subnormal inputs and results are flushed to zero.
    """
    return _call("llvm.aarch64.neon.bfdot.v4f32.v8bf16", acc.type, [acc, a, b])


def look_up_bytes(tables: list[ir.Value], indices: ir.Value) -> ir.Value:
    """tables[indices], 0 for indices past their end: TBL; i8 [16] each, up to 4 tables."""
    name = f"llvm.aarch64.neon.tbl{len(tables)}.v16i8"
    return _call(name, indices.type, [*tables, indices])


def _call(intrinsic: str, result: ir.Type, operands: list[ir.Value]) -> ir.Value:
    op = llvm.CallIntrinsicOp(result, intrinsic, operands, [], [])
    return op.operation.results[0]
