"""Estimated times in mxc report, from a report that is written by hand."""

import io

from rich.console import Console

from mxc.compiler.cli.report_times import render_times
from mxc.compiler.report import Report, ReportOperation
from mxc.compiler.report.kernel_time import Time

SLOW = Time(seconds=4e-6, model="schedule", bound_seconds=1e-6, bound_by="memory", tail=0.125)
FAST = Time(seconds=1e-6, model="roofline", bound_seconds=2e-7, bound_by="matrix")


def operation(name: str, time: Time | None) -> ReportOperation:
    return ReportOperation(
        function="decode", name=name, kernel=name, bytes_moved=1024, flops=0, time=time
    )


def shown(*operations: ReportOperation, every: bool = False) -> list[str]:
    report = Report(target="gfx950", matmuls=(), kernels=(), functions=(), operations=operations)
    console = Console(width=100, file=io.StringIO())
    rendered = render_times(report, every=every)
    with console.capture() as captured:
        console.print(rendered)
    return [] if rendered is None else captured.get().splitlines()


def test_the_longest_together_come_first() -> None:
    lines = shown(operation("norm", FAST), *(operation(f"layers.{n}.up", SLOW) for n in range(3)))
    rows = [line.split() for line in lines if line.strip().startswith("decode:")]
    assert rows[0] == ["decode:layers.*.up", "3", "4", "0.25", "memory", "0.12", "schedule"]
    assert rows[1] == ["decode:norm", "1", "1", "0.20", "matrix", "roofline"]
    assert lines[-1] == "decode: 4 kernels, 13 us, 4 KiB"


def test_what_is_not_estimated_is_counted() -> None:
    assert shown(operation("a", None)) == []
    lines = shown(operation("a", None), operation("b", FAST))
    assert lines[-1] == "decode: 1 kernels, 1 us, 2 KiB, and 1 of unknown sizes"


def test_the_short_ones_are_left_out_unless_they_are_wanted() -> None:
    many = [operation(f"op{'x' * n}", FAST) for n in range(20)]
    assert any("8 shorter ones" in line for line in shown(*many))
    assert sum("opx" in line for line in shown(*many, every=True)) == 19
