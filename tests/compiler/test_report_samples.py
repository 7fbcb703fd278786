"""Figures of a report for samples of the arguments of a function."""

import io
import json
from dataclasses import replace

import pytest
from iree.compiler import ir
from rich.console import Console

from mxc.artifact.manifest import REPORT
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli.report_samples import render_samples
from mxc.compiler.compilation import compile
from mxc.compiler.report import Report
from mxc.compiler.report.costs import operation_cost
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import dispatches, moved_bytes
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.samples import Sample, Sizes, read_samples, write_samples
from mxc.targets.amd import GFX950
from mxc.targets.target import target

SAMPLE = Sample(name="token", function="f", rows=1, positions=64, sizes=((3, 8), (5,)))

#: Sizes of two arguments, and what is made of them.
ARGUMENTS = """
util.func @f(%a: !hal.buffer_view, %b: !hal.buffer_view) -> index {
  %c4 = arith.constant 4 : index
  %m = hal.buffer_view.dim<%a : !hal.buffer_view>[0] : index
  %n = hal.buffer_view.dim<%b : !hal.buffer_view>[0] : index
  %0 = arith.muli %m, %c4 : index
  %1 = arith.ceildivui %0, %n : index
  %2 = arith.cmpi slt, %1, %c4 : index
  %3 = arith.select %2, %0, %n : index
  util.return %3 : index
}"""

#: Attention of 4 rows of 2 runs over lists of 4 pages of 16 positions.
POOL = """
util.func @f(%q: tensor<4x2x3x8xf32>, %pool: tensor<9x6x16x2x8xbf16>, %runs: tensor<2x3xi32>,
    %lists: tensor<2x4xi32>) {
  %0 = flow.dispatch @k::@k(%q, %pool, %runs, %lists)
    : (tensor<4x2x3x8xf32>, tensor<9x6x16x2x8xbf16>, tensor<2x3xi32>, tensor<2x4xi32>)
    -> tensor<4xf32>
  util.return
}"""


def test_numbers_follow_the_sizes_of_arguments() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ARGUMENTS)
        (function,) = module.body.operations
        result = list(function.regions[0].blocks[0].operations)[-1].operands[0]
        assert Sizes(SAMPLE).number(result) == 12  # ceil(12 / 5) = 3 < 4
        other = replace(SAMPLE, sizes=((30, 8), (5,)))
        assert Sizes(other).number(result) == 5
        assert Sizes().number(result) is None


def test_samples_are_read_back_from_the_text() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ARGUMENTS)
        assert read_samples(module.operation) == ()
        write_samples(module.operation, [SAMPLE, replace(SAMPLE, name="prompt", rows=512)])
        again = ir.Module.parse(str(module))
        assert [each.name for each in read_samples(again.operation)] == ["token", "prompt"]
        assert read_samples(again.operation)[0] == SAMPLE


@pytest.mark.parametrize(("reach", "pages"), [(0, 4), (1, 1), (16, 2), (100, 4)])
def test_attention_reads_the_pages_that_its_rows_see(reach: int, pages: int) -> None:
    """Two of six entries; 2 rows a run, at the end of 64 positions."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(POOL)
        (found,) = dispatches(module.operation)
        whole = moved_bytes(found)
        read = PoolRead(
            operand=1, part=2, of=6, runs=2, lists=3, page=16, reach=reach, queries=0, mixed=8
        )
        read.write(found.op)
        page = 16 * 2 * 8 * 2 * 2
        others = 4 * 2 * 3 * 8 * 4 + 2 * 3 * 4 + 2 * 4 * 4 + 4 * 4
        assert whole == others + 9 * 6 * 16 * 2 * 8 * 2
        assert moved_bytes(found) == others + 2 * pages * page
        seen = [min(at + 1, reach or at + 1) for at in (62, 63)]
        assert read.flops(found.op, Sizes()) == 2 * 2 * sum(seen) * 2 * 3 * 16


@pytest.mark.parametrize("products", [1, 2, 3])
def test_the_bound_of_attention_has_each_product_of_parts(products: int) -> None:
    """Queries and weights are two or three bf16 each on GPUs."""
    with new_context(), ir.Location.unknown():
        text = POOL.replace("4x2x3x8x", "4096x2x3x8x").replace("2x3xi32", "1x3xi32")
        module = ir.Module.parse(text.replace("2x4xi32", "1x256xi32"))
        (found,) = dispatches(module.operation)
        read = PoolRead(operand=1, part=2, of=6, runs=2, lists=3, page=16, queries=0, mixed=8)
        replace(read, products=products).write(found.op)
        cost = operation_cost(found, None, [], target("gfx950"), Sizes())
        assert cost.time is not None
        assert cost.flops == 2 * sum(range(1, 4097)) * 2 * 3 * 16
        assert cost.time.bound_by == "matrix"
        assert cost.time.bound_seconds == pytest.approx(products * cost.flops / GFX950.flops(None))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of a small gpt-oss."""
    folder = tmp_path_factory.mktemp("samples")
    write_gpt_oss(folder / "model", GptOssOptions(num_hidden_layers=2), tokenizer=False)
    out = folder / "out.mxc"
    # On tiles of AMX a single row takes the bytes of a tile, which are many times its own.
    compile(folder / "model", output=out, target="cpu:x86-64-v3")
    return Report.from_dict(json.loads((out / REPORT).read_text()))


def test_a_model_has_figures_for_all_of_step_at_each_sample(report: Report) -> None:
    assert [each.name for each in report.samples] == ["token", "last token", "prompt"]
    assert report.operations
    for each in report.operations:
        assert list(each.samples) == ["token", "last token", "prompt"]
        assert None not in [cost.bytes_moved for cost in each.samples.values()], each.name
        assert None not in [cost.flops for cost in each.samples.values()], each.name
    moved = [
        sum(each.samples[name].bytes_moved or 0 for each in report.operations)
        for name in ("token", "last token", "prompt")
    ]
    assert moved == sorted(moved)
    assert moved[0] < moved[1] < moved[2]


def test_a_contraction_has_the_rows_of_the_sample(report: Report) -> None:
    for each in report.matmuls:
        token, prompt = each.samples["token"], each.samples["prompt"]
        assert token.bytes_minimum
        assert prompt.bytes_minimum
        # Few columns are padded to a panel.
        most = 1.4 if each.n > 100 else 4
        assert 0.9 < (token.bytes_moved or 0) / token.bytes_minimum < most
        if each.name == "lm_head":
            assert (token.m, prompt.m) == (1, 1)
        elif "experts" in each.name:
            assert prompt.batch == token.batch * report.samples[2].rows
        else:
            assert (token.m, prompt.m) == (1, report.samples[2].rows)


def test_the_table_has_each_operation_once(report: Report) -> None:
    shown = render_samples(report)
    assert shown is not None
    (table, line) = shown.renderables
    launches = [int(cell) for cell in table.columns[1].cells]
    assert launches[-1] == sum(launches[:-1]) == report.dispatches
    assert "?" not in [cell for column in table.columns[2:] for cell in column.cells]
    written = io.StringIO()
    Console(width=100, file=written).print(line)
    assert "1 row of step" in written.getvalue()
    assert render_samples(replace(report, samples=())) is None
