"""What stands on the dispatch of a kernel of ours, and the layouts that parameters ask for."""

from dataclasses import replace

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.contraction import ATTRIBUTE, Contraction, OperandFormat, read_contraction
from mxc.dialects.dispatches import Dispatch, walk
from mxc.dialects.kernel_calls import moved_bytes
from mxc.dialects.parameters import LAYOUT, MATRICES, Parameters, take_layouts

CALL = Contraction(
    batch=3,
    m=2,
    n=40,
    k=64,
    experts=5,
    chosen=True,
    lhs=OperandFormat("bf16"),
    rhs=OperandFormat("f4E2M1FN", "f8E8M0FNU", 32, "bf16"),
    out=OperandFormat("f32"),
    kind="dot product",
)


def program(batch: int | str, experts: int = 5) -> str:
    kinds = (
        f"tensor<{batch}x2x2x4x4x2xbf16>, tensor<{batch}xi32>, "
        f"tensor<{experts}x3x2x4x64xi8>, tensor<{experts}x3x2x16xi8>"
    )
    names = [f"%{i}" for i in range(4)]
    arguments = ", ".join(f"{n}: {k}" for n, k in zip(names, kinds.split(", "), strict=True))
    sizes = "{%n}" if batch == "?" else ""
    a, b, *rest = kinds.split(", ")
    kinds = ", ".join([f"{a}{sizes}", f"{b}{sizes}", *rest])
    return f"""
      util.func private @f({arguments}, %n: index) -> tensor<{batch}x2x40xf32> {{
        %r = flow.dispatch @k::@k({", ".join(names)}) : ({kinds}) -> tensor<{batch}x2x40xf32>{sizes}
        util.return %r : tensor<{batch}x2x40xf32>
      }}"""


def dispatch(module: ir.Module) -> Dispatch:
    (found,) = [op for op in walk(module.operation) if op.name == "flow.dispatch"]
    return Dispatch(op=found, function="f", entry="k", body=None)


@pytest.mark.parametrize("choice", ["", "no tiles: 2 rows"])
@pytest.mark.parametrize("m", [2, None])
def test_what_is_written_is_read_from_the_text(choice: str, m: int | None) -> None:
    call = replace(CALL, choice=choice, m=m)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program(3))
        assert read_contraction(dispatch(module).op) is None
        call.write(dispatch(module).op)
        again = ir.Module.parse(str(module))
        assert ATTRIBUTE in str(module)
        assert ("choice" in str(module)) == bool(choice)
        assert read_contraction(dispatch(again).op) == call


@pytest.mark.parametrize(
    ("format", "name", "size", "packed"),
    [
        (OperandFormat("bf16"), "bf16", 512, False),
        (OperandFormat("f8E4M3FN"), "f8E4M3FN", 256, True),
        # OCP MX 1.0, table 1; nvfp4: 16 elements of 4 bits and a scale of 8.
        (OperandFormat("f4E2M1FN", "f8E8M0FNU", 32), "mxfp4", 8 * 17, True),
        (OperandFormat("f6E3M2FN", "f8E8M0FNU", 32), "mxfp6e3m2", 8 * 25, True),
        (OperandFormat("i8", "f8E8M0FNU", 32), "mxint8", 8 * 33, True),
        (OperandFormat("f4E2M1FN", "f8E4M3FN", 16), "nvfp4", 16 * 9, True),
        (OperandFormat("i8", "f32", 32), "int8", 8 * 36, True),
        (OperandFormat("i4", "f32", 64), "i4 with f32 per 64", 4 * 36, True),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_names_and_bytes_of_a_row(
    format: OperandFormat, name: str, size: int, packed: bool
) -> None:
    with new_context():
        assert (format.name, format.matrix_bytes(1, 256), format.is_packed) == (name, size, packed)


@pytest.mark.parametrize(
    ("batch", "experts", "read"),
    [(3, 5, 3), (9, 5, 5), (5, 5, 5), (2, 1, 1)],
    ids=["fewer groups than experts", "more", "as many", "one weight"],
)
def test_bytes_of_the_experts_that_are_chosen(batch: int, experts: int, read: int) -> None:
    call = replace(CALL, batch=batch, experts=experts)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program(batch, experts))
        activations = batch * 2 * 64 * 2 + batch * 4
        weights = read * 3 * 2 * (256 + 16)
        assert moved_bytes(dispatch(module), call) == activations + weights + batch * 2 * 40 * 4


def test_flat_weights_after_the_ids_are_those_of_the_experts_that_are_chosen() -> None:
    flat = """
      util.func private @f(%x: tensor<3840xi8>, %ids: tensor<3xi32>, %w: tensor<6400xi8>,
          %b: tensor<200xf32>) -> tensor<3x2x40xf32> {
        %r = flow.dispatch @k::@k(%x, %ids, %w, %b)
          : (tensor<3840xi8>, tensor<3xi32>, tensor<6400xi8>, tensor<200xf32>)
          -> tensor<3x2x40xf32>
        util.return %r : tensor<3x2x40xf32>
      }"""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(flat)
        read = 3840 + 12 + 6400 * 3 // 5 + 800 * 3 // 5
        assert moved_bytes(dispatch(module), CALL) == read + 3 * 2 * 40 * 4


def test_bytes_of_dynamic_shapes_are_not_known() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program("?"))
        assert moved_bytes(dispatch(module), CALL) is None


def test_layouts_are_taken_once() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        with ir.InsertionPoint(module.body):
            for name in ("a", "b", "layers.0.c"):
                parameters.load(name, [16, 32], ir.BF16Type.get())
        for view in module.body.operations:
            op = view.operation
            name = op.attributes["sym_name"].value if op.name == "util.global" else "b"
            if name != "b":
                op.attributes[LAYOUT] = ir.StringAttr.get("panel16x4")
                op.attributes[MATRICES] = ir.DenseI64ArrayAttr.get([2, 8])
        layouts, matrices = take_layouts(module)
        assert layouts == {"a": "panel16x4", "layers.0.c": "panel16x4"}
        assert matrices == {"a": (2, 8), "layers.0.c": (2, 8)}
        assert LAYOUT not in str(module)
        assert MATRICES not in str(module)
        assert take_layouts(module) == ({}, {})
