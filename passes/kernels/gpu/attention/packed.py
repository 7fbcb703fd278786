"""Keys and values in fp8 or an MX format: loaded as they are, decoded to bf16 in registers.

What is loaded ahead stays packed, as words i32, for LLVM gives each i8 that a loop carries a
register. Integers are converted to f32 and multiplied with the scale, e4m3 are by
v_cvt_scalef32_pk_bf16_fp8. Both are exact, but for what no bf16 holds. The scale of fp8 is one.

After the B positions of an entry in an MX format are its scales, [V, D / 32, B]: see
dialects/pages.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, rocdl, vector

from mxc.dialects.quantise import BLOCK
from mxc.formats.formats import BlockFormat
from mxc.passes.kernels.gpu.attention.softmax import number
from mxc.passes.kernels.gpu.decode import power
from mxc.passes.kernels.gpu.lanes import plus, times
from mxc.passes.kernels.vectors import bitcast, f32, i8, i16, i32, of, splat


def bytes_of_entries(pool: ir.Value) -> ir.Value:
    """The memref i8 [N, E, .., V, D] of a pool as [N * E, bytes of an entry]."""
    kind = ir.MemRefType(pool.type)
    _, _, rows, heads, depth = kind.shape
    unknown, size = ir.ShapedType.get_dynamic_stride_or_offset(), rows * heads * depth
    _, offset = kind.get_strides_and_offset()
    layout = ir.StridedLayoutAttr.get(offset if offset == 0 else unknown, [size, 1])
    wanted = ir.MemRefType.get(
        [ir.ShapedType.get_dynamic_size(), size], i8(), layout, kind.memory_space
    )
    return memref.collapse_shape(wanted, pool, [[0, 1], [2, 3, 4]])


def first_scale(pool: ir.Value, position: ir.Value, head: ir.Value) -> ir.Value:
    """Where in an entry the scale of the first block of a position and a head is."""
    _, _, rows, heads, depth = ir.MemRefType(pool.type).shape
    positions = rows * BLOCK // (BLOCK + 1)
    before = times(head, depth // BLOCK * positions)
    return plus(arith.addi(before, position), positions * heads * depth)


def load_words(memory: ir.Value, at: Sequence[ir.Value], count: int) -> ir.Value:
    """`count` bytes, an even number, as i32: of the last one half may be zero."""
    codes, pairs = vector.load(of(i8(), count), memory, list(at)), count // 2
    if pairs % 2:
        zero = splat(0, i16(), 1)
        codes = vector.shuffle(bitcast(codes, i16(), pairs), zero, list(range(pairs + 1)))
    return bitcast(codes, i32(), (pairs + 1) // 2)


def byte_of(word: ir.Value, number: int) -> ir.Value:
    """A byte of an i32, as i8."""
    return arith.trunci(i8(), arith.shrui(word, constant_i32(8 * number)))


def constant_i32(value: int) -> ir.Value:
    """An i32."""
    return arith.ConstantOp(i32(), ir.IntegerAttr.get(i32(), value)).result


def decoded(format: BlockFormat, words: ir.Value, count: int, scale: ir.Value | None) -> ir.Value:
    """bf16 [count] of elements in words i32, of one scale i8; None: one."""
    element = format.element
    factor = number(1.0) if scale is None else power(scale)
    each = [vector.extract(words, [], [n]) for n in range(ir.VectorType(words.type).shape[0])]
    pairs = []
    for pair in range(count // 2):
        word, place = divmod(pair, 2)
        if element.exponent:
            kind = of(ir.BF16Type.get(), 2)
            pairs.append(rocdl.cvt_scalef32_pk_bf16_fp8(kind, each[word], factor, bool(place)))
        else:
            unit = arith.mulf(factor, number(element.min_positive))
            pairs.append(_integers(each[word], place, unit))
    found = pairs
    while len(found) > 1:
        joined = [_joined(a, b) for a, b in zip(found[::2], found[1::2], strict=False)]
        found = [*joined, *found[2 * len(joined) :]]
    return found[0]


def _joined(*parts: ir.Value) -> ir.Value:
    """Two vectors as one."""
    size = sum(ir.VectorType(part.type).shape[0] for part in parts)
    return vector.shuffle(*parts, list(range(size)))


def _integers(word: ir.Value, place: int, unit: ir.Value) -> ir.Value:
    """The first or the second two signed bytes of a word, times a unit, as bf16: upper halves."""
    wide = []
    for byte in (2 * place, 2 * place + 1):
        high = arith.shli(word, constant_i32(24 - 8 * byte))
        value = arith.sitofp(f32(), arith.shrsi(high, constant_i32(24)))
        wide.append(arith.mulf(value, unit))
    halves = bitcast(vector.from_elements(of(f32(), 2), wide), ir.BF16Type.get(), 4)
    return vector.shuffle(halves, halves, [1, 3])
