"""Streams of floats whose rows are loaded when they are needed: how often a wave waits."""

from pathlib import Path

from iree.compiler import tools

from mxc.compiler.iree import LLVM_FLAGS
from mxc.compiler.report.issue_model import estimate
from mxc.compiler.report.issue_steps import read_steps
from mxc.compiler.report.loops import hot_loop
from mxc.formats.formats import FORMATS
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.gpu.sides import ScaledBlocks
from mxc.passes.kernels.gpu.stream import StreamKernel
from mxc.targets.amd import GFX942
from tests.passes.kernels.gpu.rings import program


def test_one_k_step_is_loaded_while_another_is_multiplied(tmp_path: Path) -> None:
    """Eight tiles of a wave that is alone on its SIMD; with a wait for each it was 0.3."""
    device = GFX942
    schedule = GpuSchedule(
        instruction=TileInstruction(16, device.matrix), tiles=(4, 2), waves=(2, 2, 1)
    )
    lhs, rhs = FloatBlocks("bf16", False, 64), ScaledBlocks(FORMATS["mxfp4"], 64)
    kernel = StreamKernel(lhs, rhs, 1, 128, 128, 0, schedule, decoded="bf16")
    tools.compile_str(
        program([kernel]),
        extra_args=[
            "--iree-hal-target-device=hip",
            f"--iree-rocm-target={device.name}",
            *LLVM_FLAGS,
            f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
        ],
    )
    (text,) = (file.read_text() for file in tmp_path.glob("*.rocmasm"))
    loop = hot_loop(text)
    assert loop.is_loop
    found = estimate(read_steps(loop.lines, device.rates), device.unit, workgroup_size=256)
    assert found.shares["matrix"] + found.shares["vector"] >= 0.8
