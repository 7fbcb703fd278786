"""Builds the programs of cases: a module of functions, each with one product and its epilogue.

A function takes bytes, or float activations, and returns f32, or the bytes of quantized blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from agreement_cases import SCHEDULES, Case
from iree.compiler import ir
from iree.compiler.dialects import arith, func, math, tensor

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.dequantize import extend, is_byte
from mxc.dialects.generic import constant, element_of, generic, shape_of
from mxc.dialects.linalg_ext import gather
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.scaled import scaled_contraction
from mxc.passes.kernels.gpu.schedule import Schedules, write_schedules

#: The format and the recipe of results that are quantized.
OUT, RECIPE = "mxfp8e4m3", "even"


def program(cases: Sequence[Case]) -> str:
    """Return the text of a module with a function for each case."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for case in cases:
                _function(case)
        return str(module)


def shapes(case: Case) -> dict[str, tuple[list[int], str]]:
    """Return shape and element type of each argument by name, in order. Bytes are "i8"."""
    lead = [case.groups] if case.groups else []
    found: dict[str, tuple[list[int], str]] = {}
    for side, name, rows in (("lhs", case.lhs, case.m), ("rhs", case.rhs, case.n)):
        format = case.format(name)
        outer = [case.experts] if side == "rhs" and case.experts else lead
        if format is None:
            found[side] = ([*outer, rows, case.k], name)
            continue
        blocks = [*outer, rows, case.k // format.block]
        found[side] = ([*blocks, format.block_bytes], "i8")
        found[f"{side}_scale"] = (blocks, "i8")
    if case.experts:
        found["ids"] = ([case.groups], "i32")
    others = {"bias_silu": [case.n], "gate": [case.n], "residual": [case.m, case.n],
              "rows": [case.m]}  # fmt: skip
    if case.epilogue in others:
        found["other"] = (others[case.epilogue], "f32")
    return found


def _function(case: Case) -> None:
    arguments = shapes(case)
    kinds = [ir.RankedTensorType.get(s, ir.Type.parse(kind)) for s, kind in arguments.values()]

    def body(*given: ir.Value) -> list[ir.Value]:
        values = dict(zip(arguments, given, strict=True))
        y = _product(case, values)
        if case.epilogue == "quantize":
            return [v if is_byte(element_of(v)) else pack(v) for v in quantize_mx(y, OUT, RECIPE)]
        return [_finished(case, y, values.get("other"))]

    func.FuncOp.from_py_func(*kinds, name=case.function)(body)


def _product(case: Case, values: dict[str, ir.Value]) -> ir.Value:
    left, lhs_scale = _side(case, values, "lhs", case.lhs)
    right, rhs_scale = _side(case, values, "rhs", case.rhs)
    if "ids" in values:
        assert rhs_scale is not None
        right, rhs_scale = gather(right, values["ids"]), gather(rhs_scale, values["ids"])
    if case.between:
        y = _by_tensors(case, (left, lhs_scale), (right, rhs_scale))
    else:
        y = scaled_contraction(
            left, right, lhs_scale=lhs_scale, rhs_scale=rhs_scale, batch=min(case.groups, 1)
        )
    write_schedules(y.owner, Schedules((SCHEDULES[case.schedule],)))
    return y


def _side(
    case: Case, values: dict[str, ir.Value], side: str, name: str
) -> tuple[ir.Value, ir.Value | None]:
    format = case.format(name)
    if format is None:
        other = case.format(case.rhs)
        assert other is not None
        *outer, k = shape_of(values[side])
        sizes = [*outer, k // other.block, other.block]
        groups = [*([axis] for axis in range(len(outer))), [len(outer), len(outer) + 1]]
        kind = ir.RankedTensorType.get(sizes, element_of(values[side]))
        return tensor.expand_shape(kind, values[side], groups, [], sizes), None
    element = ir.Type.parse(format.element.mlir)
    data = values[side] if is_byte(element) else unpack(values[side], element)
    return data, unpack(values[f"{side}_scale"], ir.Type.parse(format.scale.mlir))


def _by_tensors(case: Case, *sides: tuple[ir.Value, ir.Value | None]) -> ir.Value:
    """Dequantize the sides that have scales to plain tensors, and multiply these."""
    kind, f32 = ir.Type.parse(case.between), ir.F32Type.get()
    wide = []
    for elements, scales in sides:
        value = elements
        if scales is not None:
            value = generic(
                [(elements, "r o b"), (scales, "r o")], "r o b", kind,
                lambda e, s: arith.truncf(kind, extend(e, s)),
            )  # fmt: skip
        rows, blocks, block = shape_of(value)
        flat = ir.RankedTensorType.get([rows, blocks * block], element_of(value))
        wide.append(tensor.collapse_shape(flat, value, [[0], [1, 2]]))

    def to_f32(value: ir.Value) -> ir.Value:
        return value if value.type == f32 else arith.extf(f32, value)

    return generic(
        [(wide[0], "m k"), (wide[1], "n k")], "m n", f32,
        lambda a, b, acc: arith.addf(acc, arith.mulf(to_f32(a), to_f32(b))),
    )  # fmt: skip


def _finished(case: Case, y: ir.Value, other: ir.Value | None) -> ir.Value:
    f32 = ir.F32Type.get()
    if not case.epilogue:
        return y
    assert other is not None
    if case.epilogue == "rows":
        return generic([(y, "m n"), (other, "m")], "m n", f32, arith.mulf)
    if case.epilogue == "residual":
        return generic([(y, "m n"), (other, "m n")], "m n", f32, arith.addf)
    if case.epilogue == "bias_silu":
        return generic([(y, "m n"), (other, "n")], "m n", f32, _silu)
    y = generic([(y, "m n"), (other, "n")], "m n", f32, arith.addf)
    kind = ir.RankedTensorType.get([case.m, case.n // 2], f32)
    halves = [
        tensor.extract_slice(kind, y, [], [], [], [0, first], [case.m, case.n // 2], [1, 1])
        for first in (0, case.n // 2)
    ]
    return generic([(half, "m n") for half in halves], "m n", f32, arith.mulf)


def _silu(y: ir.Value, bias: ir.Value) -> ir.Value:
    x = arith.addf(y, bias)
    one = constant(1.0, ir.F32Type.get())
    return arith.divf(x, arith.addf(one, math.exp(arith.negf(x))))
