"""Elements that neither a kernel of mxc nor IREE reads are refused, with the reasons of both."""

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.errors import PassError
from mxc.formats.formats import E4M3
from mxc.passes.kernels.gpu.float_scales import blocks_of_scale
from mxc.passes.set_cpu_schedule import refuse_elements
from mxc.targets.amd import GFX950

PROGRAM = """
func.func @main(%w: tensor<32xf6E3M2FN>, %out: tensor<32xf32>) -> tensor<32xf32> {
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%w : tensor<32xf6E3M2FN>) outs(%out : tensor<32xf32>) {
  ^bb0(%a: f6E3M2FN, %unused: f32):
    %y = arith.extf %a : f6E3M2FN to f32
    linalg.yield %y : f32
  } -> tensor<32xf32>
  return %r : tensor<32xf32>
}
"""


def test_six_bits() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(PROGRAM)
        op = module.body.operations[0].operation.regions[0].blocks[0].operations[0].operation
        with pytest.raises(PassError, match=r"reads tensor<32xf6E3M2FN>: no code generator"):
            refuse_elements(op)
        write_reason(op, Reason("its weights are no parameter"))
        said = r"no kernel of mxc takes it \(its weights are no parameter\), and no code generator"
        with pytest.raises(PassError, match=said):
            refuse_elements(op)


def test_f32_scales_of_blocks_of_32() -> None:
    assert blocks_of_scale(E4M3, 128, GFX950.matrix) == 4
    for block in (0, 48):
        found = blocks_of_scale(E4M3, block, GFX950.matrix)
        assert isinstance(found, Reason)
        assert f"an f32 scale is for {block} elements" in str(found)
