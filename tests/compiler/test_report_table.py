"""The report as people see it, from a report that is written by hand."""

import dataclasses
import io

from rich.console import Console

from mxc.compiler.cli.report_table import bytes_text, group, render
from mxc.compiler.report import FunctionCost, Matmul, Report, ReportOperation
from mxc.compiler.report.assembly import KernelCode

UP = Matmul(
    name="layers.0.up",
    function="decode",
    batch=1,
    m=1,
    n=64,
    k=32,
    lhs="bf16",
    rhs="mxfp4",
    out="f32",
    kernel="decode_dispatch_3_up",
    lowering="v_cvt_scalef32_pk_f32_fp4 + v_pk_fma_f32",
    kernels=1,
    bytes_moved=1536,
    bytes_minimum=1024,
    fallback="a weight-only contraction",
)
SPILLING = KernelCode(name="decode_dispatch_3_up", spills=7, scratch_bytes=28, vgpr=128)


def report(*matmuls: Matmul, kernels: tuple[KernelCode, ...] = ()) -> Report:
    cost = FunctionCost(name="decode", dispatches=3, transient_bytes=278528, dynamic_transients=1)
    return Report(
        target="gfx950",
        matmuls=matmuls,
        kernels=kernels,
        functions=(cost,),
        findings=("a weight is copied",),
    )


def shown(what: Report) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(render(what, console))
    return captured.get()


def test_equal_layers_are_one_row_and_reasons_are_numbered() -> None:
    other = dataclasses.replace(UP, name="layers.1.up", kernel="decode_dispatch_9_up")
    wider = dataclasses.replace(UP, name="head", n=128, fallback=None, bytes_moved=None)
    what = report(UP, other, wider)
    assert [(row.name, row.count) for row in group(what.matmuls)] == [
        ("layers.*.up", 2),
        ("head", 1),
    ]
    text = shown(what)
    assert "layers.*.up" in text
    assert "1.50" in text
    assert "note: a weight is copied" in text
    assert "[1] a weight-only contraction" in text
    assert "[2]" not in text
    assert (
        "3 contractions, 2 fell back; 3 dispatches; transient memory 272 KiB and 1 buffers of "
        "dynamic size" in text
    )


def test_choices_of_other_operations_are_lines() -> None:
    said = [("layers.0.attn", "no tiles: a"), ("layers.1.attn", "no tiles: a"), ("rope", None)]
    operations = tuple(
        ReportOperation(
            function="step", name=name, kernel="k", bytes_moved=1, flops=0, choice=choice
        )
        for name, choice in said
    )
    text = shown(dataclasses.replace(report(UP), operations=operations))
    assert text.count("no tiles: a") == text.count("step:layers.*.attn: no tiles: a") == 1
    assert "rope" not in text


def test_kernels_that_spill_alike_are_one_line() -> None:
    again = dataclasses.replace(SPILLING, name="decode_dispatch_9_up")
    worse = dataclasses.replace(SPILLING, name="decode_dispatch_12_up", spills=8)
    clean = dataclasses.replace(SPILLING, name="decode_dispatch_1_q", spills=0, scratch_bytes=0)
    on_a_cpu = dataclasses.replace(SPILLING, name="main_dispatch_0", vgpr=None)
    text = shown(report(UP, kernels=(SPILLING, again, worse, clean, on_a_cpu)))
    assert "decode_dispatch_*_up (2 kernels): 7 spills, 28 bytes of scratch, 128 VGPR" in text
    assert "decode_dispatch_*_up: 8 spills" in text
    assert "decode_dispatch_1_q" not in text
    assert "main_dispatch" not in text


def test_sizes_are_written_with_three_digits() -> None:
    texts = [bytes_text(size) for size in (None, 0, 999, 1023, 1024, 1536, 278528, 5 << 30)]
    assert texts == ["?", "0 B", "999 B", "1023 B", "1 KiB", "1.5 KiB", "272 KiB", "5 GiB"]
