"""What the builder builds the matcher reads, with the right sizes; wrong calls are refused."""

import re
from collections.abc import Iterator

import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import (
    ScaledContraction,
    match_scaled_contraction,
    scaled_contraction,
)

DYNAMIC = -(2**63)


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with new_context(), ir.Location.unknown():
        yield


def tensor(element: str, *shape: int) -> ir.Type:
    return ir.RankedTensorType.get(list(shape), ir.Type.parse(element))


def build(*types: ir.Type, scales: str = "rhs", batch: int = 0) -> tuple[ir.Module, ir.Operation]:
    """A program that contracts its first two arguments, and the linalg.generic in it."""
    module = ir.Module.create()
    built: list[ir.Operation] = []
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(*types, name="f")
        def _(lhs: ir.Value, rhs: ir.Value, *rest: ir.Value) -> ir.Value:
            named = dict(zip([f"{side}_scale" for side in scales.split()], rest, strict=True))
            result = scaled_contraction(lhs, rhs, **named, batch=batch, name="layer.3.up")
            built.append(result.owner.operation)
            return result

    assert module.operation.verify()
    return module, built[0]


def matched(op: ir.Operation) -> ScaledContraction:
    found = match_scaled_contraction(op)
    assert not isinstance(found, Reason), found
    return found


def test_blocks_that_differ_have_a_loop_more() -> None:
    """Read where that is asked for, and by no pass that wants the canonical form."""
    _module, op = build(
        tensor("f8E4M3FN", 5, 3, 32),
        tensor("f4E2M1FN", 8, 6, 16),
        tensor("f8E8M0FNU", 5, 3),
        tensor("f8E4M3FN", 8, 6),
        scales="lhs rhs",
    )
    assert isinstance(match_scaled_contraction(op), Reason)
    found = match_scaled_contraction(op, mixed=True)
    assert not isinstance(found, Reason)
    assert (found.m, found.n, found.k, found.block, found.blocks) == (5, 8, 96, 16, (32, 16))
    assert not found.is_canonical
    assert found.is_row_major
    _module, op = build(
        tensor("f4E2M1FN", DYNAMIC, 4, 32),
        tensor("f8E5M2", 8, 1, 128),
        tensor("f8E8M0FNU", DYNAMIC, 4),
        tensor("f8E8M0FNU", 8, 1),
        scales="lhs rhs",
    )
    found = match_scaled_contraction(op, mixed=True)
    assert not isinstance(found, Reason)
    assert (found.m, found.k, found.blocks) == (-1, 128, (32, 128))


def test_weight_only_with_dynamic_rows() -> None:
    _module, op = build(
        tensor("bf16", DYNAMIC, 3, 32), tensor("f4E2M1FN", 8, 3, 32), tensor("f8E8M0FNU", 8, 3)
    )
    found = matched(op)
    assert (found.batch, found.m, found.n, found.k, found.block) == ((), -1, 8, 96, 32)
    assert found.lhs_scale is None
    assert (str(found.lhs_type), str(found.rhs_type)) == ("bf16", "f4E2M1FN")
    assert found.is_canonical
    assert found.is_row_major
    assert str(op.location) == 'loc("layer.3.up")'


def test_both_scaled_in_two_batches() -> None:
    _module, op = build(
        tensor("f8E4M3FN", 2, 5, 4, 3, 32),
        tensor("f6E2M3FN", 2, 5, 8, 3, 32),
        tensor("f8E8M0FNU", 2, 5, 4, 3),
        tensor("f8E8M0FNU", 2, 5, 8, 3),
        scales="lhs rhs",
        batch=2,
    )
    found = matched(op)
    assert (found.batch, found.m, found.n, found.k) == ((2, 5), 4, 8, 96)
    assert found.is_canonical
    assert list(op.operands)[:4] == [found.lhs, found.rhs, found.lhs_scale, found.rhs_scale]


def test_nvfp4_multiplies_by_the_whole_scale() -> None:
    _module, op = build(
        tensor("f32", 4, 6, 16), tensor("f4E2M1FN", 8, 6, 16), tensor("f8E4M3FN", 8, 6)
    )
    found = matched(op)
    assert (found.block, found.is_canonical) == (16, True)
    assert "scaling_extf" not in str(op)


@pytest.mark.parametrize(
    ("types", "scales"),
    [
        (["i8 4 3 32", "i8 8 3 32", "f8E8M0FNU 4 3", "f8E8M0FNU 8 3"], "lhs rhs"),
        (["i8 4 3 32", "f4E2M1FN 8 3 32", "f32 4 3", "f8E8M0FNU 8 3"], "lhs rhs"),
        (["i8 4 3 32", "i8 8 3 32", "f32 4 3", "f8E8M0FNU 8 3"], "lhs rhs"),
        (["i8 4 3 32", "i8 8 3 32", "f32 4 3", "f32 8 3"], "lhs rhs"),
        (["f8E4M3FN 4 3 32", "i8 8 3 32", "f8E8M0FNU 4 3", "f8E8M0FNU 8 3"], "lhs rhs"),
        (["bf16 4 3 32", "i8 8 3 32", "f8E8M0FNU 8 3"], "rhs"),
        (["f32 4 3 32", "i8 8 3 32", "f32 8 3"], "rhs"),
    ],
)
def test_bytes_are_elements_under_a_scale(types: list[str], scales: str) -> None:
    """As built, and with its constants where IREE moves them: out of the body."""
    module, op = build(
        *(tensor(t.split()[0], *map(int, t.split()[1:])) for t in types), scales=scales
    )
    for _ in range(2):
        found = matched(op)
        assert (found.m, found.n, found.k, found.block, found.is_canonical) == (4, 8, 96, 32, True)
        sides = [f"{found.lhs_type}", f"{found.rhs_type}"]
        assert sides == [t.split()[0] for t in types[:2]]
        assert list(op.operands)[-2] == found.rhs_scale
        for constant in [
            o for o in op.regions[0].blocks[0] if o.operation.name == "arith.constant"
        ]:
            constant.operation.move_before(op)
    assert module.operation.verify()


def test_another_step_is_another_format() -> None:
    """2^-6 is the weight of an mxint8 element's lowest bit; 2^-7 is nobody's."""
    module, _ = build(tensor("bf16", 4, 3, 32), tensor("i8", 8, 3, 32), tensor("f8E8M0FNU", 8, 3))
    text = str(module)
    for step, named in (("1.562500e-02", True), ("7.812500e-03", False)):
        other = ir.Module.parse(text.replace("1.562500e-02", step))
        found = [
            match_scaled_contraction(op.operation)
            for op in other.body.operations[0].regions[0].blocks[0]
            if op.operation.name == "linalg.generic"
        ]
        assert [not isinstance(each, Reason) for each in found] == [named]


@pytest.mark.parametrize("element", ["f4E2M1FN", "f6E3M2FN", "f8E4M3FN", "f8E5M2FNUZ", "i8"])
def test_a_float_may_scale_any_element(element: str) -> None:
    _module, op = build(tensor("bf16", 4, 3, 32), tensor(element, 8, 3, 32), tensor("f32", 8, 3))
    found = matched(op)
    assert found.is_canonical
    assert str(found.rhs_scale.type) == "tensor<8x3xf32>"


def test_a_lone_scale_on_the_left_is_matched_but_not_canonical() -> None:
    _module, op = build(
        tensor("f4E2M1FN", 8, 3, 32),
        tensor("f32", 4, 3, 32),
        tensor("f8E8M0FNU", 8, 3),
        scales="lhs",
    )
    found = matched(op)
    assert (found.m, found.n, found.is_canonical) == (4, 8, False)
    assert found.rhs == op.operands[0]
    assert not found.is_row_major


@pytest.mark.parametrize(
    ("types", "scales", "message"),
    [
        (["f32 4 3 32", "f32 8 3 32"], "", "needs lhs_scale or rhs_scale, got neither"),
        (["f32 4 96", "f4E2M1FN 8 3 32", "f8E8M0FNU 8 3"], "rhs", "both sides need rank 3"),
        (["f32 4 2 32", "f4E2M1FN 8 3 32", "f8E8M0FNU 8 3"], "rhs", "KO and KB"),
        (["i8 4 3 32", "f4E2M1FN 8 3 32", "f8E8M0FNU 8 3"], "rhs", "must be f32, bf16 or f16"),
        (["f32 4 3 32", "f8E4M3FN 8 3 32", "f8E4M3FN 8 3"], "rhs", "cannot scale the elements"),
        (["f32 4 3 32", "f4E2M1FN 8 3 32", "f16 8 3"], "rhs", "cannot scale the elements"),
        (["f32 4 3 32", "i8 8 3 32", "bf16 8 3"], "rhs", "cannot scale the elements"),
        (["f32 4 3 32", "f4E2M1FN 8 3 32", "f8E8M0FNU 8 2"], "rhs", "must have shape [8, 3]"),
    ],
)
def test_refusals(types: list[str], scales: str, message: str) -> None:
    arguments = [tensor(t.split()[0], *map(int, t.split()[1:])) for t in types]
    with pytest.raises(ValueError, match=re.escape(message)):
        build(*arguments, scales=scales)


@pytest.mark.parametrize(
    ("packed", "element", "unpacked"),
    [
        (("i8", DYNAMIC, 3, 16), "f4E2M1FN", (DYNAMIC, 3, 32)),
        (("i8", 8, 3), "f8E8M0FNU", (8, 3)),
        (("i8", 8, 3, 24), "f6E3M2FN", (8, 3, 32)),
    ],
)
def test_boundary(
    packed: tuple[str, *tuple[int, ...]], element: str, unpacked: tuple[int, ...]
) -> None:
    module = ir.Module.create()
    outside = tensor(*packed)
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(outside, name="f")
        def _(value: ir.Value) -> ir.Value:
            inside = unpack(value, ir.Type.parse(element))
            assert inside.type == tensor(element, *unpacked)
            back = pack(inside)
            assert back.type == outside
            return back

    assert module.operation.verify()


def test_boundary_refusals() -> None:
    module = ir.Module.create()
    f6 = ir.Type.parse("f6E3M2FN")
    types = [tensor("i8", 8, DYNAMIC), tensor("i8", 8, 16), tensor("f32", 8, 16)]
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(*types, name="f")
        def _(dynamic: ir.Value, odd: ir.Value, floats: ir.Value) -> None:
            with pytest.raises(ValueError, match="must be static"):
                unpack(dynamic, f6)
            with pytest.raises(ValueError, match="not a whole number of f6E3M2FN"):
                unpack(odd, f6)
            with pytest.raises(ValueError, match="must be i8"):
                unpack(floats, f6)
