"""Builds the program of a case of the coverage matrix with mxc's builders.

Weights are parameters, as in a model, so that a target may choose their layout; activations are
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, func, linalg, math, tensor
from matrix_case import SHORT, Case, format_of

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.dequantize import extend, is_byte
from mxc.dialects.generic import constant, element_of, fill, generic, shape_of
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import Parameters
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.repeated_rows import repeat_rows
from mxc.dialects.scaled import contraction_into, scaled_contraction
from mxc.formats.formats import F32

#: Elements [.., KO, KB] and their scales [.., KO]; no scales for plain numbers.
Side = tuple[ir.Value, ir.Value | None]


def program(case: Case) -> bytes:
    """Return the text of the program. Raises FormatError if there is no builder for the case."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            _Builder(case, Parameters(module)).write()
        return str(module).encode()


def _i8() -> ir.Type:
    return ir.IntegerType.get_signless(8)


def _scale(name: str) -> ir.Type:
    """Return the type of the scales of a format in memory: f32, or i8 for bytes."""
    return ir.F32Type.get() if format_of(name).scale == F32 else _i8()


def _size(count: int) -> int:
    """Return the size that MLIR has for `count`: a negative one is dynamic."""
    return ir.ShapedType.get_dynamic_size() if count < 0 else count


def _float(name: str) -> ir.Type:
    return {"bf16": ir.BF16Type, "f16": ir.F16Type, "f32": ir.F32Type}[name].get()


def _to(value: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert a scalar to a wider or narrower float type."""
    if value.type == kind:
        return value
    widens = ir.FloatType(value.type).width < ir.FloatType(kind).width
    return arith.extf(kind, value) if widens else arith.truncf(kind, value)


class _Builder:
    def __init__(self, case: Case, parameters: Parameters) -> None:
        self.case, self.parameters = case, parameters
        self.lead = [case.batch] if case.batch else []
        if case.experts:
            groups, rows = (_size(count) for count in case.group_rows)
            self.lead, self.rows = [groups], rows
        else:
            self.rows = _size(case.m)

    def write(self) -> None:
        """Add function @main to the module."""
        case = self.case
        kinds = self._activation_types()
        count = len(kinds)
        if case.experts:
            kinds.append(ir.RankedTensorType.get(self.lead, ir.IntegerType.get_signless(32)))
        if case.epilogue == "bias_silu":
            kinds.append(ir.RankedTensorType.get([case.n], ir.F32Type.get()))

        def main(*arguments: ir.Value) -> list[ir.Value]:
            left = self._activations(arguments[:count])
            if case.form == "quantize":
                assert left[1] is not None
                return [_bytes(left[0]), _bytes(left[1])]
            if case.form == "dequantize":
                return [self._widened(left, _float(case.between))]
            right = self._weights(arguments[count] if case.experts else None)
            y = self._contract(left, right)
            if case.epilogue == "bias_silu":
                return [generic([(y, "m n"), (arguments[-1], "n")], "m n", ir.F32Type.get(), _silu)]
            if case.epilogue in _AFTER:
                kind, after = _AFTER[case.epilogue]
                return [generic([(y, "m n")], "m n", _float(kind), after)]
            if case.epilogue == "quantize":
                return [_bytes(part) for part in quantize_mx(y, SHORT[case.lhs], "floor")]
            return [y]

        func.FuncOp.from_py_func(*kinds, name="main")(main)

    def _shape(self, name: str, outer: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the shapes of elements in bytes, [.., N, KO, bytes], and of scales, [.., N, KO]; N
        is smaller there if rows share scales. outer: the dimensions before KO."""
        format = format_of(name)
        block = self.case.block or format.block
        *lead, rows, blocks = [*outer, self.case.k // block]
        data = [*lead, rows, blocks, block * format.element.bits // 8]
        return data, [*lead, rows if format.rows == 1 else -(-rows // format.rows), blocks]

    def _activation_types(self) -> list[ir.Type]:
        case = self.case
        if case.source or case.weight_only:
            kind = _float(case.source or case.lhs)
            return [ir.RankedTensorType.get([*self.lead, self.rows, case.k], kind)]
        shapes = self._shape(case.lhs, [*self.lead, self.rows])
        kinds = (_i8(), _scale(case.lhs))
        return [ir.RankedTensorType.get(*each) for each in zip(shapes, kinds, strict=True)]

    def _activations(self, arguments: Sequence[ir.Value]) -> Side:
        case = self.case
        if case.is_dense:
            kind, given = _float(case.lhs), arguments[0]
            if case.source:
                given = generic([(given, "m k")], "m k", kind, lambda x: _to(x, kind))
            return given, None
        if case.source:
            wide = generic(
                [(arguments[0], "m k")], "m k", ir.F32Type.get(),
                lambda x: _to(x, ir.F32Type.get()),
            )  # fmt: skip
            return quantize_mx(wide, SHORT[case.lhs], "floor")
        if case.weight_only:
            format = format_of(case.rhs)
            block = case.block or format.block
            return _blocked(arguments[0], block), None
        return self._elements(case.lhs, arguments[0], arguments[1])

    def _elements(self, name: str, data: ir.Value, scales: ir.Value) -> Side:
        format = format_of(name)
        kind = ir.Type.parse(format.element.mlir)
        elements = data if is_byte(kind) else unpack(data, kind)
        if format.scale == F32:
            return elements, scales
        return elements, unpack(scales, ir.Type.parse(format.scale.mlir))

    def _weights(self, ids: ir.Value | None) -> Side:
        case = self.case
        outer = [case.experts] if case.experts else [] if case.shared else self.lead
        if case.is_dense:
            shape = [*outer, case.n, case.k]
            plain = self.parameters.load("weight", shape, _float(case.rhs))
            return plain if ids is None else gather(plain, ids), None
        data, scales = self._shape(case.rhs, [*outer, case.n])
        elements, factors = self._elements(
            case.rhs,
            self.parameters.load("weight_blocks", data, _i8()),
            repeat_rows(
                self.parameters.load("weight_scales", scales, _scale(case.rhs)),
                case.n,
                format_of(case.rhs).rows,
            ),
        )
        if ids is None:
            return elements, factors
        assert factors is not None
        return gather(elements, ids), gather(factors, ids)

    def _contract(self, left: Side, right: Side) -> ir.Value:
        case = self.case
        with ir.Location.name("contraction"):
            if case.form == "floordiv":
                return self._by_floordiv(left, right)
            if case.form in ("materialised", "dequantized"):
                return self._by_tensors(left, right)
            if case.shared:
                return self._shared(left, right)
            batch = 1 if self.lead else 0
            if case.is_dense:
                return _plain(left[0], right[0], batch)
            return scaled_contraction(
                left[0], right[0], lhs_scale=left[1], rhs_scale=right[1], batch=batch,
                name="contraction",
            )  # fmt: skip

    def _shared(self, left: Side, right: Side) -> ir.Value:
        """Multiply by one weight for all of the batch: its maps leave out the batch dimension."""
        d = [ir.AffineDimExpr.get(i) for i in range(5)]
        reads = [
            [d[0], d[1], d[3], d[4]],
            [d[2], d[3], d[4]],
            [d[0], d[1], d[3]],
            [d[2], d[3]],
            d[:3],
        ]
        maps = [ir.AffineMap.get(5, 0, read) for read in reads]
        zero = fill([*self.lead, self.rows, self.case.n], ir.F32Type.get(), 0.0)
        return contraction_into(left[0], right[0], left[1], right[1], zero, maps)

    def _by_floordiv(self, left: Side, right: Side) -> ir.Value:
        """Multiply rank-2 operands: one reduction loop, and scales read at k floordiv the block."""
        flat = [_flat(side[0]) for side in (left, right)]
        m, n, k = (ir.AffineDimExpr.get(i) for i in range(3))
        block = shape_of(left[0])[-1]
        scale = ir.AffineExpr.get_floor_div(k, block)
        reads = [[m, k], [n, k], [m, scale], [n, scale], [m, n]]
        maps = [ir.AffineMap.get(3, 0, read) for read in reads]
        zero = fill([self.rows, self.case.n], ir.F32Type.get(), 0.0)
        loops = [linalg.IteratorType.parallel] * 2 + [linalg.IteratorType.reduction]

        def body(x: ir.Value, w: ir.Value, p: ir.Value, q: ir.Value, acc: ir.Value) -> ir.Value:
            return arith.addf(acc, arith.mulf(extend(x, p), extend(w, q)))

        return linalg.generic([*flat, left[1], right[1]], [zero], maps, loops)(body)

    def _by_tensors(self, left: Side, right: Side) -> ir.Value:
        """Dequantize the sides that have scales to plain tensors, and multiply these."""
        kind = _float(self.case.between)
        x, w = (_flat(self._widened(side, kind)) for side in (left, right))
        return _plain(x, w, batch=0)

    def _widened(self, side: Side, kind: ir.Type) -> ir.Value:
        """Dequantize [.., KO, KB] to the type `kind`. In the form "materialised", scales are first
        broadcast to a tensor."""
        elements, scales = side
        if scales is None:
            return elements
        if self.case.form == "materialised":
            scales = generic([(scales, "r o")], "r o b", element_of(scales), lambda s: s,
                             sizes={"b": shape_of(elements)[-1]})  # fmt: skip
            inner = "r o b"
        else:
            inner = "r o"
        return generic(
            [(elements, "r o b"), (scales, inner)], "r o b", kind,
            lambda e, s: _to(extend(e, s), kind),
        )  # fmt: skip


def _plain(x: ir.Value, w: ir.Value, batch: int) -> ir.Value:
    """Multiply plain tensors [.., M, K] by [.., N, K] in f32. batch: leading dimensions, 0 or 1."""
    f32, lead = ir.F32Type.get(), "g " * batch

    def body(a: ir.Value, b: ir.Value, sum: ir.Value) -> ir.Value:
        return arith.addf(sum, arith.mulf(_to(a, f32), _to(b, f32)))

    return generic([(x, lead + "m k"), (w, lead + "n k")], lead + "m n", f32, body)


def _bytes(value: ir.Value) -> ir.Value:
    return value if is_byte(element_of(value)) else pack(value)


def _blocked(x: ir.Value, block: int) -> ir.Value:
    """Expand [.., K] to [.., KO, block]."""
    *outer, k = shape_of(x)
    shape = [*outer, k // block, block]
    kind = ir.RankedTensorType.get(shape, element_of(x))
    groups = [*([i] for i in range(len(outer))), [len(outer), len(outer) + 1]]
    dynamic = [
        tensor.dim(x, constant(axis, ir.IndexType.get()))
        for axis, size in enumerate(outer)
        if size < 0
    ]
    return tensor.expand_shape(kind, x, groups, dynamic, shape)


def _flat(x: ir.Value) -> ir.Value:
    rows, blocks, block = shape_of(x)
    kind = ir.RankedTensorType.get([rows, blocks * block], element_of(x))
    return tensor.collapse_shape(kind, x, [[0], [1, 2]])


def _silu(y: ir.Value, bias: ir.Value) -> ir.Value:
    x = arith.addf(y, bias)
    one = constant(1.0, ir.F32Type.get())
    return arith.divf(x, arith.addf(one, math.exp(arith.negf(x))))


def _f32(value: float) -> ir.Value:
    return constant(value, ir.F32Type.get())


def _gelu(y: ir.Value) -> ir.Value:
    half = arith.mulf(y, _f32(0.5))
    return arith.mulf(half, arith.addf(_f32(1.0), math.erf(arith.mulf(y, _f32(0.70710678)))))


def _gelu_tanh(y: ir.Value) -> ir.Value:
    cube = arith.mulf(arith.mulf(y, y), arith.mulf(y, _f32(0.044715)))
    inner = arith.mulf(arith.addf(y, cube), _f32(0.7978845608))
    return arith.mulf(arith.mulf(y, _f32(0.5)), arith.addf(_f32(1.0), math.tanh(inner)))


#: Epilogues that read nothing but the product: the type of the result, and the body.
_AFTER = {
    "gelu": ("f32", _gelu),
    "gelu_tanh": ("f32", _gelu_tanh),
    "relu": ("f32", lambda y: arith.maximumf(y, _f32(0.0))),
    "bf16": ("bf16", lambda y: _to(y, ir.BF16Type.get())),
    "f16": ("f16", lambda y: _to(y, ir.F16Type.get())),
}
