"""x86 instructions that MLIR's vector dialect has no word for, as typed functions.

Each is an LLVM intrinsic: compiling it for a CPU without its feature ends the compiler, so that a
caller asks the target record first. Source: Intel SDM volume 2; AMD64 APM volume 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import llvm

#: The target feature that gives dot products of pairs of bf16.
BF16 = "avx512bf16"

#: Bytes of a register -> how names of intrinsics begin.
_YMM, _ZMM = 32, 64
_FAMILY = {_YMM: "avx2", _ZMM: "avx512"}


def dot_bf16(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """acc[i] + a[2i] b[2i] + a[2i+1] b[2i+1]: vdpbf16ps; acc f32 [16], a and b bf16 [32].

    Needs avx512bf16. Subnormal inputs and results are zero (SDM, VDPBF16PS).
    """
    return _call("llvm.x86.avx512bf16.dpbf16ps.512", acc.type, [acc, a, b])


def dot_u8i8(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """acc[i] + sum over t of a[4i+t] b[4i+t]: vpdpbusd; acc i32 [n], a u8 and b i8 [4n].

    n = 16 needs avx512vnni, n = 8 avxvnni. The sum wraps around at 32 bits.
    """
    bits = 32 * _size(acc)
    return _call(f"llvm.x86.avx512.vpdpbusd.{bits}", acc.type, [acc, a, b])


def multiply_pairs_u8i8(a: ir.Value, b: ir.Value) -> ir.Value:
    """a[2i] b[2i] + a[2i+1] b[2i+1], saturated: vpmaddubsw; a u8 and b i8 [2n], the result i16 [n].

    n = 16 needs avx2, n = 32 avx512bw.
    """
    size = _size(a)
    name = "pmadd.ub.sw" if size == _YMM else "pmaddubs.w.512"
    result = ir.VectorType.get([size // 2], ir.IntegerType.get_signless(16))
    return _call(f"llvm.x86.{_FAMILY[size]}.{name}", result, [a, b])


def multiply_pairs_i16(a: ir.Value, b: ir.Value) -> ir.Value:
    """a[2i] b[2i] + a[2i+1] b[2i+1]: vpmaddwd; a and b i16 [2n], the result i32 [n].

    n = 8 needs avx2, n = 16 avx512bw. Wraps around where all four are -2^15.
    """
    size = 2 * _size(a)
    name = "pmadd.wd" if size == _YMM else "pmaddw.d.512"
    result = ir.VectorType.get([size // 4], ir.IntegerType.get_signless(32))
    return _call(f"llvm.x86.{_FAMILY[size]}.{name}", result, [a, b])


def shuffle_bytes(table: ir.Value, indices: ir.Value) -> ir.Value:
    """In each 16 bytes, table[indices & 15], or 0 where bit 7 of the index is set: vpshufb.

    Both i8 [32], which needs avx2, or i8 [64], avx512bw.
    """
    size = _size(table)
    name = "pshuf.b" if size == _YMM else "pshuf.b.512"
    return _call(f"llvm.x86.{_FAMILY[size]}.{name}", table.type, [table, indices])


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
    """table[indices & (n - 1)]: vpermps; table f32 [n], indices i32 [n].

    n = 16 needs avx512f, n = 8 avx2.
    """
    name = "avx512.permvar.sf.512" if _size(table) == 16 else "avx2.permps"
    return _call(f"llvm.x86.{name}", table.type, [table, indices])


def _size(vector: ir.Value) -> int:
    size: int = ir.VectorType(vector.type).shape[0]
    return size


def _call(intrinsic: str, result: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
    op = llvm.CallIntrinsicOp(result, intrinsic, operands, [], [])
    return op.operation.results[0]
