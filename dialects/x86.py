"""x86 instructions that MLIR's vector dialect has no word for, as typed functions.

Each is an LLVM intrinsic: compiling it for a CPU without its feature ends the compiler, so that a
caller asks the target record first. Source: Intel SDM volume 2; AMD64 APM volume 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import llvm

#: Target features by what they give: dot products of pairs of bf16 and of quads of bytes, the
#: permutation of words and that of bytes.
BF16 = "avx512bf16"
VNNI = "avx512vnni"
BW = "avx512bw"
VBMI = "avx512vbmi"


def dot_bf16(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """acc[i] + a[2i] b[2i] + a[2i+1] b[2i+1]: vdpbf16ps; acc f32 [16], a and b bf16 [32].

    Needs avx512bf16. Subnormal inputs and results are zero (SDM, VDPBF16PS).
    """
    return _call("llvm.x86.avx512bf16.dpbf16ps.512", acc.type, [acc, a, b])


def dot_u8i8(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """acc[i] + sum over t of a[4i+t] b[4i+t]: vpdpbusd; acc i32 [16], a u8 and b i8 [64].

    Needs avx512vnni. The sum wraps around at 32 bits.
    """
    return _call("llvm.x86.avx512.vpdpbusd.512", acc.type, [acc, a, b])


def permute_bytes(table: ir.Value, indices: ir.Value) -> ir.Value:
    """table[indices & 63]: vpermb; both i8 [64]. Needs avx512vbmi."""
    return _call("llvm.x86.avx512.permvar.qi.512", table.type, [table, indices])


def permute_bytes_of_two(low: ir.Value, indices: ir.Value, high: ir.Value) -> ir.Value:
    """(low ++ high)[indices & 127]: vpermi2b; all i8 [64]. Needs avx512vbmi."""
    return _call("llvm.x86.avx512.vpermi2var.qi.512", low.type, [low, indices, high])


def permute_words_of_two(low: ir.Value, indices: ir.Value, high: ir.Value) -> ir.Value:
    """(low ++ high)[indices & 63]: vpermi2w; all i16 [32]. Needs avx512bw."""
    return _call("llvm.x86.avx512.vpermi2var.hi.512", low.type, [low, indices, high])


def permute_words(table: ir.Value, indices: ir.Value) -> ir.Value:
    """table[indices & 31]: vpermw; both i16 [32]. Needs avx512bw."""
    return _call("llvm.x86.avx512.permvar.hi.512", table.type, [table, indices])


def permute_floats(table: ir.Value, indices: ir.Value) -> ir.Value:
    """table[indices & 15]: vpermps; table f32 [16], indices i32 [16]. Needs avx512f."""
    return _call("llvm.x86.avx512.permvar.sf.512", table.type, [table, indices])


def _call(intrinsic: str, result: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
    op = llvm.CallIntrinsicOp(result, intrinsic, operands, [], [])
    return op.operation.results[0]
