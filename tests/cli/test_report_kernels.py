"""The kernels of a GPU in mxc report, from a report that is written by hand."""

import dataclasses
import io
import json
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from mxc.compiler.cli import app
from mxc.compiler.cli.report_kernels import render_kernels
from mxc.compiler.report import FunctionCost, Matmul, Report, ReportOperation
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.hot_loop import HotLoop
from mxc.targets.compute_unit import Occupancy

LOOP = HotLoop(
    is_loop=True,
    instructions=150,
    census={"matrix": 64, "ds_read": 24, "load_to_lds": 8, "v_perm": 6, "valu": 5, "convert": 2},
    load_bytes=13.5,
    clocks=2484.0,
    shares={"matrix": 0.412, "vector": 0.06, "lds": 0.5, "memory": 0.23},
    bound_by="lds",
    bytes_in_flight=17408,
)
KERNEL = KernelCode(
    name="decode_dispatch_3",
    instructions={"v_mfma_f32_16x16x16_bf16": 70},
    vgpr=215,
    agpr=128,
    sgpr=30,
    lds_bytes=34816,
    workgroup_size=512,
    occupancy=Occupancy(waves_per_simd=2, workgroups=1, limited_by="registers"),
    hot_loop=LOOP,
)


def product(kernel: str, name: str) -> Matmul:
    return Matmul(
        name=name, function="decode", batch=1, m=1, n=64, k=32, lhs="mxfp4", rhs="mxfp4",
        out="f32", kernel=kernel, lowering="v_mfma", kernels=1, bytes_moved=1536,
        bytes_minimum=1024, fallback=None,
    )  # fmt: skip


def call(kernel: str, name: str) -> ReportOperation:
    return ReportOperation(
        function="decode", name=name, kernel=kernel, bytes_moved=None, flops=None
    )


def report(*kernels: KernelCode, products: int) -> Report:
    """Kernel i is called for layers.i.up, and is one of a contraction where i < `products`."""
    cost = FunctionCost(name="decode", dispatches=1, transient_bytes=0, dynamic_transients=0)
    return Report(
        target="gfx950",
        matmuls=tuple(product(kernels[i].name, f"layers.{i}.up") for i in range(products)),
        kernels=kernels,
        functions=(cost,),
        operations=tuple(call(k.name, f"layers.{i}.up") for i, k in enumerate(kernels)),
    )


def shown(what: Report, width: int = 200, *, every: bool = False) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(render_kernels(what, console, every=every))
    return captured.get()


def test_a_row_has_the_loop_the_registers_and_the_model() -> None:
    text = shown(report(KERNEL, products=1))
    (row,) = [line.split() for line in text.splitlines() if "layers" in line]
    assert row == [
        "layers.*.up", "64", "24", "8", "7", "6", "215", "(128a)", "30", "0", "34", "KiB", "2",
        "registers", "13.5", "0.41", "lds", "17", "KiB", "1.50",
    ]  # fmt: skip


def test_equal_kernels_of_layers_are_one_row_and_others_are_counted() -> None:
    again = dataclasses.replace(KERNEL, name="decode_dispatch_9")
    plain = dataclasses.replace(KERNEL, name="norm", vgpr=8)
    text = shown(report(KERNEL, again, plain, products=2))
    assert "layers.*.up (2 calls, 2 kernels)" in text
    assert "1 kernels without a contraction: --kernels shows them" in text
    every = shown(report(KERNEL, again, plain, products=2), every=True)
    assert "without a contraction" not in every
    assert sum("layers.*.up" in line for line in every.splitlines()) == 2


def test_a_kernel_without_a_loop_and_one_that_spills() -> None:
    whole = HotLoop(is_loop=False, instructions=9, census={"matrix": 3})
    spilling = dataclasses.replace(KERNEL, hot_loop=whole, spills=7, scratch_bytes=28)
    text = shown(report(spilling, products=1))
    assert "(all) 3" in text
    assert "7 +28 B" in text
    assert "0.41" not in text


def test_narrow_terminals_get_sentences() -> None:
    text = " ".join(shown(report(KERNEL, products=1), 100).split())
    assert "layers.*.up: 64 matrix, 24 ds_read, 8 load_to_lds, 6 v_perm" in text
    assert "2 waves (registers); busy 0.41 (lds)" in text


def test_a_cpu_has_no_such_table() -> None:
    cpu = report(dataclasses.replace(KERNEL, vgpr=None), products=1)
    assert render_kernels(cpu, Console()) is None


def test_the_command_shows_it_and_json_has_it(tmp_path: Path) -> None:
    file = tmp_path / "p.mlir"
    file.write_text((Path(__file__).parents[1] / "compiler" / "stock_f4.mlir").read_text())
    artifact = str(tmp_path / "p.mxc")
    runner = CliRunner()
    assert (
        runner.invoke(app, ["compile", str(file), "--target", "gfx950", "-o", artifact]).exit_code
        == 0
    )
    text = runner.invoke(app, ["report", artifact, "--wide"]).stdout
    assert "hot loops of kernels for gfx950" in text
    raw = runner.invoke(app, ["report", artifact, "--json"]).stdout
    read = Report.from_dict(json.loads(raw))
    (kernel,) = read.kernels
    assert kernel.hot_loop is not None
    assert kernel.hot_loop.census["matrix"] >= 32
    assert kernel.occupancy is not None
