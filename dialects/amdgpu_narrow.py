"""AMD GPU operations on narrow elements: scaled conversions of gfx950, and exchange between lanes.

    v_cvt_scalef32_pk_{fp4,fp8,bf8}_f32     two f32 / scale -> a part of a register
    v_cvt_scalef32_2xpk16_{fp6,bf6}_f32     32 f32 / scale -> six registers
    v_cvt_scalef32_pk_f32_{fp4,fp8,bf8}     a part of a register * scale -> two f32
    v_cvt_scalef32_pk32_f32_{fp6,bf6}       six registers * scale -> 32 f32
    the same to bf16 and f16 instead of f32

They round once, to nearest even, and keep subnormal inputs and results, regardless of the rounding
mode in MODE. Only the exponent of the scale is used. fp4 and fp6 saturate. fp8 and bf8 saturate,
also Inf, only under MODE.FP16_OVFL (`saturate`), and otherwise become NaN or Inf.

Sources: AMD CDNA4 ISA document, section 7.3 and VOP3; composable_kernel,
include/ck/utility/mxf6_utils.hpp, for the order of the 32: its tests run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import amdgpu, arith, rocdl, vector

from mxc.dialects.amdgpu import intrinsic, pinned, thread
from mxc.formats.formats import ElementFormat
from mxc.targets.matrix_unit import MatrixUnit

#: s_setreg's encoding of MODE[23:23], FP16_OVFL: register 1, first bit 23, one bit.
_FP16_OVFL = 1 | 23 << 6
#: f32 values that a conversion to 6 bits takes, in two vectors.
_SIX = 32
#: DPP control of a move from one lane of 16 to all of them.
_ROW_NEWBCAST = 0x150
#: Elements -> their name in conversions.
_NAMES = {
    "f4E2M1FN": "fp4",
    "f6E2M3FN": "fp6",
    "f6E3M2FN": "bf6",
    "f8E4M3FN": "fp8",
    "f8E5M2": "bf8",
}


def saturate() -> None:
    """Make later conversions to 8 bits saturate, and overflows of f16 and of matrix sums too.

    This sets a mode of the wave, so call it where all lanes are active.
    """
    i32 = ir.IntegerType.get_signless(32)
    name, on = (arith.ConstantOp(i32, ir.IntegerAttr.get(i32, n)).result for n in (_FP16_OVFL, 1))
    intrinsic("llvm.amdgcn.s.setreg", [name, on])


def narrowed(values: ir.Value, scale: ir.Value, element: ElementFormat) -> ir.Value:
    """values f32 [n] / scale f32 -> packed elements i32 [n * bits / 32], the first element lowest.

    n * bits is a multiple of 32. For 6-bit elements, n is at most 32, and unused bits of the last
    i32 are 0.
    """
    if element.bits == 6:
        return _six(values, scale, element)
    count = ir.VectorType(values.type).shape[0]
    each = 32 // element.bits
    kind = ir.VectorType.get([each], ir.Type.parse(element.mlir))
    word = ir.VectorType.get([1], ir.IntegerType.get_signless(32))
    words = []
    for first in range(0, count, each):
        packed = None
        for pair in range(each // 2):
            two = vector.shuffle(values, values, [first + 2 * pair, first + 2 * pair + 1])
            packed = amdgpu.packed_scaled_trunc(kind, two, scale, pair, existing=packed)
        words.append(vector.bitcast(word, packed))
    return _concat(words)


def _six(values: ir.Value, scale: ir.Value, element: ElementFormat) -> ir.Value:
    """Convert to 6 bits. The first vector goes to even places, the second to odd places."""
    count = ir.VectorType(values.type).shape[0]
    zero = ir.DenseElementsAttr.get_splat(values.type, ir.FloatAttr.get(ir.F32Type.get(), 0.0))
    zeros = arith.ConstantOp(values.type, zero).result
    halves = []
    for first in range(2):
        taken = [min(at, count) for at in range(first, _SIX, 2)]
        halves.append(vector.shuffle(values, zeros, taken))
    kind = ir.VectorType.get([6], ir.IntegerType.get_signless(32))
    convert = getattr(rocdl, f"cvt_scalef32_2xpk16_{_NAMES[element.mlir]}_f32")
    whole = convert(kind, *halves, scale)
    return vector.shuffle(whole, whole, list(range(-(-count * 6 // 32))))


def widened(packed: ir.Value, scale: ir.Value, element: ElementFormat) -> ir.Value:
    """Packed elements i32 [n * bits / 32] times the scale f32 -> f32 [n].

    For 6-bit elements, n is at most 32. Exact, except that results beyond f32 are Inf.
    """
    words = ir.VectorType(packed.type).shape[0]
    f32 = ir.F32Type.get()
    if element.bits == 6:
        zero = ir.DenseElementsAttr.get_splat(
            packed.type, ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 0)
        )
        zeros = arith.ConstantOp(packed.type, zero).result
        whole = vector.shuffle(packed, zeros, [min(at, words) for at in range(6)])
        found = extended_block(whole, scale, element, f32)
        return vector.shuffle(found, found, list(range(words * 32 // 6)))
    values = []
    for at in range(words):
        word = vector.shuffle(packed, packed, [at])
        for pair in range(16 // element.bits):
            two = widened_pair(word, scale, element, pair)
            values += [vector.extract(two, [], [place]) for place in range(2)]
    return vector.from_elements(ir.VectorType.get([len(values)], f32), values)


def widened_pair(word: ir.Value, scale: ir.Value, element: ElementFormat, pair: int) -> ir.Value:
    """Pair `pair` of the 4-bit or 8-bit elements of i32 [1], times the scale f32: f32 [2]."""
    kind = ir.VectorType.get([32 // element.bits], ir.Type.parse(element.mlir))
    two = ir.VectorType.get([2], ir.F32Type.get())
    return amdgpu.scaled_ext_packed(two, vector.bitcast(kind, word), scale, pair)


def extended_pair(
    word: ir.Value, scale: ir.Value, element: ElementFormat, kind: ir.Type, pair: int
) -> ir.Value:
    """Pair `pair` of the 4-bit or 8-bit elements of an i32, times the scale f32: [2] of `kind`.

    `kind` is bf16 or f16, and for 4-bit elements may also be f32.
    """
    convert = getattr(rocdl, f"cvt_scalef32_pk_{kind}_{_NAMES[element.mlir]}")
    found: ir.Value = convert(ir.VectorType.get([2], kind), word, scale, pair)
    return found


def extended_block(
    words: ir.Value, scale: ir.Value, element: ElementFormat, kind: ir.Type
) -> ir.Value:
    """The 32 6-bit elements of i32 [6], times the scale f32: f32, bf16 or f16 [32]."""
    convert = getattr(rocdl, f"cvt_scalef32_pk32_{kind}_{_NAMES[element.mlir]}")
    found: ir.Value = convert(ir.VectorType.get([_SIX], kind), words, scale)
    return found


def _concat(words: Sequence[ir.Value]) -> ir.Value:
    whole = words[0]
    for word in words[1:]:
        size = ir.VectorType(whole.type).shape[0]
        wide = vector.shuffle(word, word, [0] * size)
        whole = vector.shuffle(whole, wide, [*range(size), size])
    return whole


def neighbour(value: ir.Value, distance: int) -> ir.Value:
    """The i32 of the lane whose number is this lane's XOR `distance`, 1 or 2: DPP quad_perm."""
    order = [lane ^ distance for lane in range(4)]
    i32 = ir.IntegerType.get_signless(32)
    places = ir.ArrayAttr.get([ir.IntegerAttr.get(i32, lane) for lane in order])
    return amdgpu.dpp(value, value, amdgpu.DPPPerm.quad_perm, perm_argument=places, bound_ctrl=True)


def mirrored(value: ir.Value, of: int = 8) -> ir.Value:
    """The i32 of the lane at the mirrored position within its group of 8 or 16 lanes: DPP."""
    kind = {8: amdgpu.DPPPerm.row_half_mirror, 16: amdgpu.DPPPerm.row_mirror}[of]
    return amdgpu.dpp(value, value, kind, perm_argument=ir.UnitAttr.get(), bound_ctrl=True)


def of_sixteen(value: ir.Value, lane: int) -> ir.Value:
    """The f32 or i32 of lane number `lane` in this lane's group of 16: DPP row_newbcast, which LLVM
    folds into the instruction that reads the result."""
    control, every = _ROW_NEWBCAST + lane, 0xF
    found: ir.Value = rocdl.update_dpp(value.type, value, value, control, every, every, True)
    return found


def swapped(first: ir.Value, second: ir.Value, rows: int) -> tuple[ir.Value, ir.Value]:
    """v_permlane{16,32}_swap of two i32: lanes in groups of `rows`, 16 or 32, counted from 0.

    Odd groups of `first` and even groups of `second` change places. The new `first` then holds the
    even groups of both, and the new `second` the odd groups of both:

        first   a0 a1 a2 a3    a0 b0 a2 b2
        second  b0 b1 b2 b3    a1 b1 a3 b3
    """
    i32 = ir.IntegerType.get_signless(32)
    both = ir.Type.parse("!llvm.struct<(i32, i32)>")
    swap = {16: rocdl.permlane16_swap, 32: rocdl.permlane32_swap}[rows]
    pair = swap(both, first, second, False, False)
    low, high = (
        ir.Operation.create(
            "llvm.extractvalue",
            results=[i32],
            operands=[pair],
            attributes={"position": ir.DenseI64ArrayAttr.get([place])},
        ).result
        for place in range(2)
    )
    return low, high


def exchanged(value: ir.Value, distance: int, unit: MatrixUnit) -> tuple[ir.Value, ir.Value]:
    """The i32 of this lane and of the lane `distance` apart, 16 or 32, in either order."""
    i32 = value.type
    if unit.swaps:
        return swapped(value, value, distance)
    if unit.lanes == 2 * distance == 32:
        # Each half of the lanes reads the same lane of the other half.
        order = (0x76543210, -0x01234568)
        low, high = (arith.ConstantOp(i32, ir.IntegerAttr.get(i32, n)).result for n in order)
        return value, rocdl.permlanex16(i32, value, value, low, high, True, False)
    # The address is recomputed at each use: keeping it would take one register too many.
    (lane,) = pinned([arith.index_cast(i32, thread())])
    return value, of_lane(value, lane ^ distance)


def of_lane(value: ir.Value, lane: ir.Value) -> ir.Value:
    """The i32 of another lane of the wave, given by its number, i32: ds_bpermute."""
    return rocdl.ds_bpermute(value.type, lane * 4, value)
