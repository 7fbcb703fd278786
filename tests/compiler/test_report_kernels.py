"""Rows of the report for kernels of our own; bytes are worked out by hand.

The program is compiled for a named CPU with the instructions, which need not be this machine's.
"""

import io
from pathlib import Path

import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func
from rich.console import Console

from mxc.compiler.cli.report_table import render
from mxc.compiler.driver import compile_here
from mxc.compiler.report import Matmul, Report, require_no_fallback
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.lowering import explain_own
from mxc.compiler.steps import CompileRequest
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import Parameters
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.scaled import scaled_contraction
from mxc.targets.target import target

#: Columns of the result, the same in whole panels, depth.
N, PADDED, K = 250, 256, 96
#: Bytes of one expert: those that are needed, and those that are read.
LEAST, READ = N * (K // 2 + K // 32), PADDED * (K // 2 + K // 32)
IDS = 4


def _program() -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        i8, i32 = (ir.IntegerType.get_signless(bits) for bits in (8, 32))
        f32, bf16 = ir.F32Type.get(), ir.BF16Type.get()

        def tensor(element: ir.Type, *shape: int) -> ir.Type:
            return ir.RankedTensorType.get(shape, element)

        def experts(x: ir.Value, ids: ir.Value) -> ir.Value:
            elements = parameters.load("w", [32, N, K // 32, 16], i8)
            scales = parameters.load("s", [32, N, K // 32], i8)
            w = gather(unpack(elements, ir.Float4E2M1FNType.get()), ids)
            s = gather(unpack(scales, ir.Float8E8M0FNUType.get()), ids)
            return scaled_contraction(x, w, rhs_scale=s, batch=1, name="layers.0.up")

        def head(x: ir.Value) -> ir.Value:
            w = parameters.load("head", [N, K], bf16)

            def multiply(a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
                return arith.addf(total, arith.mulf(arith.extf(f32, a), arith.extf(f32, b)))

            with ir.Location.name("head"):
                return generic([(x, "m k"), (w, "n k")], "m n", f32, multiply)

        def quantized(x: ir.Value, x_scales: ir.Value) -> ir.Value:
            w = parameters.load("int8", [N, K // 32, 32], i8)
            bytes = parameters.load("int8_scales", [N, K // 32], i8)
            scales = unpack(bytes, ir.Float8E8M0FNUType.get())
            return scaled_contraction(x, w, lhs_scale=x_scales, rhs_scale=scales, name="down")

        def dynamic(x: ir.Value) -> ir.Value:
            return quantized(*quantize_mx(x, "mxint8", "rceil"))

        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(tensor(f32, 5, K), name="dynamic")(dynamic)
            x = tensor(i8, 5, K // 32, 32)
            func.FuncOp.from_py_func(x, tensor(f32, 5, K // 32), name="quantized")(quantized)
            for name, groups, rows in (("decode", 4, 1), ("many", 40, 3)):
                x = tensor(bf16, groups, rows, K // 32, 32)
                func.FuncOp.from_py_func(x, tensor(i32, groups), name=name)(experts)
            func.FuncOp.from_py_func(tensor(bf16, 5, K), name="logits")(head)
        return module.operation.get_asm(enable_debug_info=True).encode()


def _report(folder: Path, target: str) -> Report:
    request = CompileRequest(
        program=_program(), place="p", target=target, module=folder / "m", parameters=True
    )
    made = compile_here(request, folder / "assembly", folder / "program", lambda step: None)
    return Report.from_dict(made.report)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return _report(tmp_path_factory.mktemp("znver5"), "cpu:znver5")


def _one(report: Report, function: str) -> Matmul:
    (found,) = [matmul for matmul in report.matmuls if matmul.function == function]
    return found


def test_chosen_experts(report: Report) -> None:
    one = _one(report, "decode")
    assert (one.name, one.kernels, one.fallback) == ("layers.0.up", 1, None)
    assert (one.batch, one.m, one.n, one.k) == (4, 1, N, K)
    assert (one.lhs, one.rhs, one.out) == ("bf16", "mxfp4", "f32")
    activations = 4 * (2 * K + 4 * N)
    assert one.bytes_minimum == activations + 4 * LEAST
    assert one.bytes_moved == activations + 4 * READ + 4 * IDS


def test_more_groups_than_experts(report: Report) -> None:
    one = _one(report, "many")
    assert (one.batch, one.m) == (40, 3)
    activations = 40 * 3 * (2 * K + 4 * N)
    assert one.bytes_minimum == activations + 32 * LEAST
    assert one.bytes_moved == activations + 32 * READ + 40 * IDS


def test_dense(report: Report) -> None:
    one = _one(report, "logits")
    assert (one.name, one.lhs, one.rhs) == ("head", "bf16", "bf16")
    assert (one.batch, one.m, one.n, one.k) == (1, 5, N, K)
    activations = 5 * (2 * K + 4 * N)
    assert one.bytes_minimum == activations + N * K * 2
    assert one.bytes_moved == activations + PADDED * K * 2


def test_quantized_activations(report: Report) -> None:
    """Elements and a float32 a block of activations; elements and a byte a block of weights."""
    one = _one(report, "quantized")
    assert (one.name, one.lhs, one.rhs, one.fallback) == ("down", "int8", "mxint8", None)
    assert (one.batch, one.m, one.n, one.k) == (1, 5, N, K)
    blocks = K // 32
    assert one.bytes_minimum == 5 * (K + 4 * blocks + 4 * N) + N * (K + blocks)


def test_activations_that_the_program_quantizes(report: Report) -> None:
    """The kernel that does so is one of the contraction's, and what it moves is the contraction's.

    It writes elements, a scale and a sum for each block.
    """
    one, given = _one(report, "dynamic"), _one(report, "quantized")
    assert (one.lhs, one.kernels, one.fallback) == ("mxint8", 2, None)
    prepared = 5 * (K // 32) * 4 * (8 + 2)
    weights_and_result = PADDED * (K + K // 32) + 5 * 4 * N
    assert one.bytes_moved == 5 * 4 * K + 2 * prepared + weights_and_result
    assert given.bytes_moved == one.bytes_moved - 5 * 4 * K + 5 * (K + 4 * K // 32)


def test_instructions(report: Report) -> None:
    """What the assembly has: one product an activation of a block, one look-up a step of it."""
    kernels = {kernel.name: kernel for kernel in report.kernels}
    for function, rows, lowering in (
        ("decode", 1, "vpermw zmm + vdpbf16ps zmm"),
        ("many", 3, "vpermw zmm + vdpbf16ps zmm"),
        ("logits", 5, "vdpbf16ps zmm"),
    ):
        one = _one(report, function)
        assert one.lowering == lowering
        assert str(one.plan).startswith("tiles of ")
        found = kernels[one.kernel].instructions
        # A tile of several rows has two registers of columns.
        columns = 1 if rows == 1 else 2
        assert found["vdpbf16ps zmm"] == 16 * rows * columns
        assert found.get("vpermw zmm", 0) == (0 if function == "logits" else 16 * columns)
        assert kernels[one.kernel].spills in (None, 0)


def test_strict_takes_them(report: Report) -> None:
    require_no_fallback(report)
    assert not report.findings


def test_the_same_program_without_the_instructions(tmp_path: Path) -> None:
    """Rows are the same but for how."""
    report = _report(tmp_path, "cpu:x86-64-v3")
    for function, sizes in (("decode", (4, 1)), ("many", (40, 3)), ("logits", (1, 5))):
        one = _one(report, function)
        assert (one.batch, one.m, one.n, one.k) == (*sizes, N, K)
        assert (one.fallback, one.rhs) == (None, "bf16" if function == "logits" else "mxfp4")
        assert one.kernel.startswith("mxc_")
        assert "zmm" not in one.lowering


def test_what_the_cpu_has_and_is_not_used(report: Report, tmp_path: Path) -> None:
    """Tiles for one row, and what is slower than f32: the report says why."""
    found = _report(tmp_path, "cpu:sapphirerapids")
    slow = (
        "taken as f32: vdpbf16ps makes 16 products per clock of a core here, multiply-add of f32 32"
    )
    one = _one(found, "decode")
    assert one.choice == f"no tiles: M = 1; from 3 rows on they are faster; {slow}"
    assert "vfmadd" in one.lowering
    for function in ("many", "logits"):
        assert "tdpbf16ps" in _one(found, function).lowering
        assert _one(found, function).choice is None
    assert _one(found, "quantized").lowering == _one(report, "quantized").lowering
    assert _one(found, "quantized").choice == "no tiles: bf16 does not hold activations of int8"
    assert all(_one(report, function).choice is None for function in ("decode", "quantized"))
    require_no_fallback(found)
    text = Console(width=200, record=True, file=io.StringIO())
    text.print(render(found, text))
    assert f"decode:layers.0.up: {one.choice}" in text.export_text()


def test_every_dispatch_is_an_operation(report: Report) -> None:
    """In the order of the program, with what it moves and multiplies: K is 96 here."""
    assert len(report.operations) == report.dispatches
    own = {one.name: one for one in report.operations if one.kernel.startswith("mxc_")}
    up, head = _one(report, "decode"), _one(report, "logits")
    assert [own[up.name].kernel, own[head.name].kernel] == [
        _one(report, "many").kernel,
        head.kernel,
    ]
    assert own[head.name].flops == 2 * 5 * N * K
    assert own[head.name].bytes_moved == head.bytes_moved
    flops = [one.flops for one in report.operations if one.name == up.name and one.flops]
    assert flops == [2 * groups * rows * N * K for groups, rows in ((4, 1), (40, 3))]
    functions = {one.function for one in report.operations}
    assert functions == {"decode", "many", "logits", "quantized", "dynamic"}


def test_a_kernel_whose_body_was_removed_is_a_fallback() -> None:
    own = target("cpu:znver4")
    assert explain_own([], own, "dot product") == "its kernel is not in the assembly"
    empty = KernelCode(name="k", instructions={"retq": 1, "vmovups zmm": 3})
    assert "no multiplication" in str(explain_own([empty], own, "dot product"))
    fma = [KernelCode(name="k", instructions={"vfmadd231ps zmm": 1})]
    assert explain_own(fma, own, "multiply-add") is None
    assert explain_own(fma, own, "dot product") == (
        "its kernel was meant to multiply by a dot product, and its assembly has a multiply-add"
    )
