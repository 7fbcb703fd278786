"""Kernels for products of two computed tensors, against numpy.

Kernels in waves of 64 run on the simulator without a finding; those in waves of 32 are interpreted
as MLIR.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree.compiler import ir

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.report import Report
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import walk
from mxc.targets.amd import GPUS, known_gpu
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixUnit
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels
from tests.passes.product_forms import BLOCKS, PLAIN, SIZES, Form, draw, wanted

OF_32 = ("gfx1201", "gfx1250", "gfx1151")


def has_instruction(form: Form, unit: MatrixUnit) -> bool:
    """Return whether a GPU has a matrix instruction for a product; sides of different float types
    are multiplied as f32."""
    element = form.types[0] if len(set(form.types)) == 1 else "f32"
    return unit.layout(element) is not None


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_all_have_a_matrix_instruction(gpu: Gpu, tmp_path: Path) -> None:
    file = tmp_path / "products.mlir"
    file.write_text("".join(form.text for form in (*BLOCKS, *PLAIN)))
    made = mxc.compile(file, target=gpu.name, output=tmp_path / "products.mxc")
    report = Report.from_dict(json.loads((made.path / REPORT).read_text()))
    assert sum(kernel.spills for kernel in report.kernels) == 0
    forms = {form.name: form for form in (*BLOCKS, *PLAIN)}
    assert sorted(each.function for each in report.matmuls) == sorted(forms)
    for each in report.matmuls:
        form = forms[each.function]
        ours = form in BLOCKS or has_instruction(form, gpu.matrix)
        assert each.kernel.startswith("mxc_") == ours, each
        assert each.lowering.startswith(("v_mfma", "v_wmma")) == ours, each


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
def test_numbers(target: str, watched: Callable[..., Any]) -> None:
    """Nor does a lane read or write outside of a buffer, or what was not written."""
    forms = [*BLOCKS, *PLAIN]
    compiled = watched("".join(form.text for form in forms), target=target)
    for form in forms:
        compiled.seen.clear()
        operands = draw(form)
        (found,) = compiled.model.call(form.name, *operands)
        np.testing.assert_array_equal(found, wanted(form, operands), err_msg=form.name)
        ((kernel, sanitizer),) = compiled.seen
        assert kernel.name.startswith("mxc_")
        assert not sanitizer.findings


#: Batches of products, in two layouts.
BESIDE = [Form("amk", "akn", "amn", "amnk"), Form("akm", "ank", "anm", "amnk", ("f32", "f32"))]


@pytest.fixture(scope="module")
def beside(watched: Callable[..., Any]) -> Any:
    return watched("".join(form.text for form in BESIDE))


def test_what_lies_beside(beside: Any) -> None:
    """NaN of one product, one row or one column is in no other."""
    for form in BESIDE:
        lhs, rhs = draw(form)
        lhs[1] = np.nan
        lhs[0][(5, slice(None)) if form.lhs == "amk" else (slice(None), 5)] = np.nan
        rhs[0][(slice(None), 7) if form.rhs == "akn" else (7, slice(None))] = np.inf
        (found,) = beside.model.call(form.name, lhs, rhs)
        np.testing.assert_array_equal(found, wanted(form, [lhs, rhs]))


@pytest.mark.parametrize(
    "sizes",
    [*({empty: 0} for empty in "amnk"), *({"m": n, "n": n} for n in (127, 128, 129))],
    ids=str,
)
def test_ends(sizes: dict[str, int], beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to multiply, and one less or more than there are tiles."""
    for letter, size in sizes.items():
        monkeypatch.setitem(SIZES, letter, size)
    for form in BESIDE:
        operands = draw(form)
        (found,) = beside.model.call(form.name, *operands)
        np.testing.assert_array_equal(found, wanted(form, operands))
    assert not [finding for _, sanitizer in beside.seen for finding in sanitizer.findings]


@pytest.mark.parametrize("form", PLAIN, ids=lambda form: form.name)
@pytest.mark.parametrize("target", OF_32)
def test_waves_of_32(target: str, form: Form) -> None:
    if not has_instruction(form, known_gpu(target).matrix):
        return
    operands = draw(form)
    result = wanted(form, operands)
    found = np.full(result.size, -1, result.dtype)
    flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (*operands, found)]
    with new_context():
        module = with_kernels(form.text, target)
        (call,) = [op for op in walk(module.operation) if op.name == "flow.dispatch"]
        counts = list(ir.DenseI32ArrayAttr(call.attributes["operandSegmentSizes"]))
        first = counts[0] + len(operands)
        scalars = [_number(v, form) for v in list(call.operands)[first : sum(counts[:2])]]
        lane_interpreter.run(module, flat, scalars)
    np.testing.assert_array_equal(flat[-1].view(result.dtype).reshape(result.shape), result)


def _number(value: ir.Value, form: Form) -> int:
    """Return the value of an index in the workload of a call."""
    op = value.owner
    if op.name == "tensor.dim":
        source, axis = op.operands
        letters, _ = form.operands[ir.BlockArgument(source).arg_number]
        return SIZES[letters[_number(axis, form)]]
    if op.name == "arith.muli":
        left, right = (_number(each, form) for each in op.operands)
        return left * right
    return int(ir.IntegerAttr(op.attributes["value"]).value)
