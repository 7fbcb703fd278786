"""The operations of onnx_quantized.py on tensors, in linalg: quantization in every form of ONNX.

IREE's importer has no scales of blocks, and no elements of 4 bits or scales of powers of two.
"""

from __future__ import annotations

import re
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, math, tensor

from mxc.compiler.programs.onnx_codes import LIMITS
from mxc.compiler.programs.onnx_types import DEQUANTIZE, QUANTIZE, QUANTIZE_BLOCKS, ROUND_BLOCKS
from mxc.dialects.dispatches import walk
from mxc.dialects.generic import constant, element_of, extended, generic, shape_of, to_f32
from mxc.dialects.locations import with_place
from mxc.dialects.quantize import quantize_mx, quantize_nvfp4
from mxc.dialects.sizes import size_of
from mxc.errors import CompileError
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe

_VTENSOR = re.compile(r"!torch\.vtensor<\[([\d,?]*)\],(\w+)>")


def lower_quantized(module: ir.Module) -> None:
    """Lower every operation of onnx_quantized.py. Raises CompileError with the name of its node."""
    lower = {
        DEQUANTIZE: _dequantize,
        QUANTIZE: _quantize,
        QUANTIZE_BLOCKS: _quantize_blocks,
        ROUND_BLOCKS: _round_blocks,
    }
    for op in [op for op in walk(module.operation) if _called(op) in lower]:
        with ir.InsertionPoint(op), op.location:
            values = [_from_torch(each) for each in op.operands]
            made = lower[_called(op)](op, values)
            for result, value in zip(op.results, made, strict=True):
                result.replace_all_uses_with(_to_torch(value, result.type))
        op.erase()


def _dequantize(op: ir.Operation, values: list[ir.Value]) -> list[ir.Value]:
    """(x - zero point) * scale in f32."""
    unsigned = "ui" in str(op.operands[0].type)

    def body(x: ir.Value, s: ir.Value, *zero: ir.Value) -> ir.Value:
        value = _float(x, unsigned=unsigned)
        if len(values) > 2:
            value = arith.subf(value, _float(zero[0], unsigned=unsigned))
        return arith.mulf(value, _float(s, unsigned=False))

    return [_by_scales(op, values, ir.F32Type.get(), body)]


def _quantize(op: ir.Operation, values: list[ir.Value]) -> list[ir.Value]:
    """x / scale + zero point, rounded to nearest, ties to even, and saturated unless `saturate` of
    a float is 0."""
    to = _number(op, "to", 0)
    if to not in LIMITS:
        raise CompileError(
            with_place(op.location, f"QuantizeLinear to data type {to}"), phase="import"
        )
    least, most = (constant(limit, ir.F32Type.get()) for limit in LIMITS[to])
    kind = ir.RankedTensorType(builtin(op.results[0].type)).element_type
    unsigned = "ui" in str(op.results[0].type)

    def body(x: ir.Value, s: ir.Value, *zero: ir.Value) -> ir.Value:
        value = arith.divf(_float(x, unsigned=False), _float(s, unsigned=False))
        integer = isinstance(kind, ir.IntegerType)
        value = math.roundeven(value) if integer else value
        if len(values) > 2:
            value = arith.addf(value, _float(zero[0], unsigned=unsigned))
        if integer or _number(op, "saturate", 1):
            value = arith.minimumf(arith.maximumf(value, least), most)
        if not integer:
            return arith.truncf(kind, value)
        return (arith.fptoui if unsigned else arith.fptosi)(kind, value)

    return [_by_scales(op, values, kind, body)]


def _by_scales(op: ir.Operation, values: list[ir.Value], kind: ir.Type, body: Any) -> ir.Value:
    """`body` of each element, its scale and its zero point: one, of an axis, or of blocks."""
    elements, scale = values[:2]
    sizes = list(shape_of(elements))
    rank = len(sizes)
    axis, block = _number(op, "axis", 1) % max(rank, 1), _number(op, "block_size", 0)
    loops = [ir.AffineDimExpr.get(i) for i in range(rank)]
    by, wanted = loops[axis : axis + 1], sizes[axis : axis + 1]
    if block:
        by, wanted = [*loops], [*sizes]
        by[axis] = ir.AffineExpr.get_floor_div(loops[axis], block)
        wanted[axis] = -(-wanted[axis] // block) if wanted[axis] >= 0 else wanted[axis]
    reads = [loops]
    for each in values[1:]:
        shape = list(shape_of(each))
        if shape in ([], [1]):
            reads.append([ir.AffineConstantExpr.get(0) for _ in shape])
        elif len(wanted) == len(shape) and all(
            a == b or min(a, b) < 0 for a, b in zip(wanted, shape, strict=True)
        ):
            reads.append(by)
        else:
            what = "scales" if each == scale else "zero points"
            place = f"along axis {axis}" + (f" in blocks of {block}" if block else "")
            raise CompileError(
                with_place(
                    op.location, f"{what} {shape} for elements {sizes} {place}; wanted {wanted}"
                ),
                phase="import",
            )
    empty = tensor.empty([size_of(elements, i) for i in range(rank)], kind)
    maps = [ir.AffineMap.get(rank, 0, at) for at in (*reads, loops)]
    parallel = [linalg.IteratorType.parallel] * rank
    return linalg.generic(values, [empty], maps, parallel)(body)


def _quantize_blocks(op: ir.Operation, values: list[ir.Value]) -> list[ir.Value]:
    x = values[0]
    _require_blocks(op, x, 16 if len(values) > 1 else 32)
    if len(values) > 1:
        elements, scales, _ = quantize_nvfp4(extended(x), values[1])
    else:
        elements, scales = quantize_mx(x, "mxfp8e4m3", ScaleRecipe.RCEIL)
    return [_collapsed(elements), scales]


def _round_blocks(op: ir.Operation, values: list[ir.Value]) -> list[ir.Value]:
    x = values[0]
    rank = len(shape_of(x))
    format = FORMATS[ir.StringAttr(op.attributes["torch.onnx.format"]).value]
    if _number(op, "axis", 1) % rank != rank - 1:
        raise CompileError(
            with_place(
                op.location,
                f"blocks along axis {_number(op, 'axis', 1)} of activations {list(shape_of(x))} "
                "have no lowering; wanted the last axis",
            ),
            phase="import",
        )
    _require_blocks(op, x, format.block)
    elements, scales = quantize_mx(x, format, ScaleRecipe.FLOOR)
    f32 = ir.F32Type.get()
    lead = " ".join("abcdefgh"[:rank])

    def value(element: ir.Value, scale: ir.Value) -> ir.Value:
        return arith.mulf(_float(element, unsigned=False), _float(scale, unsigned=False))

    return [_collapsed(generic([(elements, f"{lead} k"), (scales, lead)], f"{lead} k", f32, value))]


def _require_blocks(op: ir.Operation, x: ir.Value, block: int) -> None:
    depth = shape_of(x)[-1]
    if depth < 0 or depth % block:
        raise CompileError(
            with_place(
                op.location,
                f"its last axis has {depth if depth >= 0 else 'a dynamic number of'} elements; "
                f"wanted a multiple of {block}",
            ),
            phase="import",
        )


def _collapsed(blocks: ir.Value) -> ir.Value:
    """[.., K / block, block] as [.., K]."""
    *lead, count, block = shape_of(blocks)
    groups = [*([axis] for axis in range(len(lead))), [len(lead), len(lead) + 1]]
    kind = ir.RankedTensorType.get([*lead, count * block], element_of(blocks))
    return tensor.collapse_shape(kind, blocks, groups)


def _float(value: ir.Value, *, unsigned: bool) -> ir.Value:
    f32 = ir.F32Type.get()
    if isinstance(value.type, ir.IntegerType):
        return arith.uitofp(f32, value) if unsigned else arith.sitofp(f32, value)
    return to_f32(value)


def _called(op: ir.Operation) -> str:
    """The operator of ONNX that an operation is."""
    if op.name != "torch.operator":
        return ""
    return str(ir.StringAttr(op.attributes["name"]).value).removeprefix("onnx.")


def _number(op: ir.Operation, name: str, otherwise: int) -> int:
    key = f"torch.onnx.{name}"
    return int(ir.IntegerAttr(op.attributes[key]).value) if key in op.attributes else otherwise


def _from_torch(value: ir.Value) -> ir.Value:
    return ir.Operation.create(
        "torch_c.to_builtin_tensor", results=[builtin(value.type)], operands=[value]
    ).result


def _to_torch(value: ir.Value, kind: ir.Type) -> ir.Value:
    made = builtin(kind)
    if value.type != made:
        value = tensor.cast(made, value)
    return ir.Operation.create(
        "torch_c.from_builtin_tensor", results=[kind], operands=[value]
    ).result


def builtin(kind: ir.Type) -> Any:
    """The tensor type of a !torch.vtensor."""
    found = _VTENSOR.fullmatch(str(kind))
    if found is None:
        raise CompileError(f"{kind} is no tensor of a known shape", phase="import")
    sizes = "".join(f"{size}x" for size in found[1].split(",") if size)
    element = re.sub(r"^[us]i", "i", found[2])
    return ir.RankedTensorType(ir.Type.parse(f"tensor<{sizes}{element}>"))
