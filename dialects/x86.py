"""x86 instructions that MLIR's vector dialect lacks, as typed functions.

Each is an LLVM intrinsic. Compiling one for a CPU without its feature ends the compiler, so a
caller asks the target record first. Source: Intel SDM volume 2; AMD64 APM volume 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm

#: The target feature of dot products of bf16 pairs.
BF16 = "avx512bf16"

#: Bytes of a register -> prefix of the names of its intrinsics.
_YMM, _ZMM = 32, 64
_FAMILY = {_YMM: "avx2", _ZMM: "avx512"}


def dot_bf16(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """acc[i] + a[2i] b[2i] + a[2i+1] b[2i+1]: vdpbf16ps; acc f32 [16], a and b bf16 [32].

    Needs avx512bf16. Subnormal inputs and results are flushed to zero (SDM, VDPBF16PS).
    """
    return _call("llvm.x86.avx512bf16.dpbf16ps.512", acc.type, [acc, a, b])


def round_to_bf16(low: ir.Value, high: ir.Value) -> ir.Value:
    """low ++ high, to nearest even: vcvtne2ps2bf16; both f32 [16], the result bf16 [32].

    Needs avx512bf16. Subnormal inputs are flushed to zero (SDM, VCVTNE2PS2BF16).
    """
    kind = ir.VectorType.get([2 * _size(low)], ir.BF16Type.get())
    return _call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, [high, low])


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
    """Per 16 bytes, table[indices & 15], or 0 where bit 7 of the index is set: vpshufb.

    Both are i8 [32], which needs avx2, or i8 [64], which needs avx512bw.
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


def shift_out_bytes(places: ir.Value, words: ir.Value) -> ir.Value:
    """Per i64 of `words`, the 8 bits from bit places[i] & 63 on, around its end: vpmultishiftqb.

    Both are i8 [64]. Needs avx512vbmi.
    """
    return _call("llvm.x86.avx512.pmultishift.qb.512", words.type, [places, words])


def permute_floats(table: ir.Value, indices: ir.Value) -> ir.Value:
    """table[indices & (n - 1)]: vpermps; table f32 [n], indices i32 [n].

    n = 16 needs avx512f, n = 8 avx2.
    """
    name = "avx512.permvar.sf.512" if _size(table) == 16 else "avx2.permps"
    return _call(f"llvm.x86.{name}", table.type, [table, indices])


def tile_zero(rows: ir.Value | None = None) -> ir.Value:
    """A tile of `rows` (i16; None: 16) rows of 64 bytes, all zero: tilezero. Needs amx-tile, as all
    tiles do."""
    return _call("llvm.x86.tilezero.internal", tile(), _size_of_tile(rows))


def tile_load(
    pointer: ir.Value, stride: ir.Value, *, streamed: bool = False, rows: ir.Value | None = None
) -> ir.Value:
    """`rows` (None: 16) rows of 64 bytes from !llvm.ptr on, `stride` (i64) bytes apart: tileloadd.

    `streamed`: tileloaddt1, for data that is read once and would evict other data from the cache.
    """
    name = "llvm.x86.tileloaddt164.internal" if streamed else "llvm.x86.tileloadd64.internal"
    return _call(name, tile(), [*_size_of_tile(rows), pointer, stride])


def tile_store(
    value: ir.Value, pointer: ir.Value, stride: ir.Value, rows: ir.Value | None = None
) -> None:
    """`rows` (None: 16) rows of 64 bytes to !llvm.ptr, `stride` (i64) bytes apart: tilestored."""
    operands = [*_size_of_tile(rows), pointer, stride, value]
    llvm.CallIntrinsicOp(None, "llvm.x86.tilestored64.internal", operands, [], [])


def tile_dot_bf16(
    acc: ir.Value, a: ir.Value, b: ir.Value, rows: ir.Value | None = None
) -> ir.Value:
    """acc[m, n] += sum over pairs p of a[m, 2p] b[p, 2n] + a[m, 2p + 1] b[p, 2n + 1]: tdpbf16ps.

    Needs amx-bf16. The three tiles must differ, else the instruction is invalid. Subnormal inputs
    and results are flushed to zero (SDM, TDPBF16PS).
    """
    rows, bytes_ = _size_of_tile(rows)
    return _call("llvm.x86.tdpbf16ps.internal", tile(), [rows, bytes_, bytes_, acc, a, b])


def tile() -> ir.Type:
    """The type of a tile register."""
    return ir.Type.parse("!llvm.x86_amx")


def _size_of_tile(rows: ir.Value | None) -> list[ir.Value]:
    """Number of rows, 16 where it is None, and bytes per row, of a tile."""
    i16 = ir.IntegerType.get_signless(16)
    whole = [arith.ConstantOp(i16, number).result for number in (16, 64)]
    return whole if rows is None else [rows, whole[1]]


def _size(vector: ir.Value) -> int:
    size: int = ir.VectorType(vector.type).shape[0]
    return size


def _call(intrinsic: str, result: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
    op = llvm.CallIntrinsicOp(result, intrinsic, operands, [], [])
    return op.operation.results[0]
