"""Programs that round floats to mxfp4 elements by their own operations, against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

import mxc
from mxc.formats.packing import decode_elements
from mxc.runtime.simulated import SimulatedModel, load

FLOATS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
PROGRAM = """
func.func @{name}(%x: tensor<64x64x{name}>) -> tensor<64x32xi8> {{
  %i = tensor.empty() : tensor<64x64xf4E2M1FN>
  %q = linalg.generic {{
      indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%x : tensor<64x64x{name}>) outs(%i : tensor<64x64xf4E2M1FN>) {{
  ^bb0(%a: {name}, %o: f4E2M1FN):
    %e = arith.truncf %a : {name} to f4E2M1FN
    linalg.yield %e : f4E2M1FN
  }} -> tensor<64x64xf4E2M1FN>
  %b = flow.tensor.bitcast %q : tensor<64x64xf4E2M1FN> -> tensor<64x32xi8>
  return %b : tensor<64x32xi8>
}}
"""


@pytest.fixture(scope="module", params=["gfx950", "gfx942"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SimulatedModel:
    folder = tmp_path_factory.mktemp("truncations")
    (folder / "p.mlir").write_text("".join(PROGRAM.format(name=name) for name in FLOATS))
    mxc.compile(folder / "p.mlir", target=request.param, output=folder / "p.mxc", listing=False)
    return load(folder / "p.mxc")


@pytest.mark.parametrize("name", FLOATS)
def test_rounded_to_the_nearest_and_ties_to_even(name: str, model: SimulatedModel) -> None:
    rng = np.random.default_rng(0)
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.0, 6.0, 7.0, 100.0, np.inf])
    numbers = [rng.normal(size=2048) * 0.4, np.linspace(-7, 7, 2024), ties, -ties]
    x = np.concatenate(numbers).astype(np.float32).reshape(64, 64).astype(FLOATS[name])
    (found,) = model.call(name, x)
    values = decode_elements(np.asarray(found).view(np.uint8), "mxfp4")
    wanted = x.astype(np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(wanted))
