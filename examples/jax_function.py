"""Compile a JAX function with mxfp4 weights for this CPU; the artifact's files hold its weights.

pip install 'mxc[jax]'
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import export

import mxc

N, K, BLOCK = 64, 128, 32

random = np.random.default_rng(0)
weight = mxc.quantize(random.standard_normal((N, K)), "mxfp4", recipe="even")
low, high = weight.elements & 15, weight.elements >> 4
codes = np.stack([low, high], axis=-1).reshape(N, K)
elements = jnp.asarray(codes.view(ml_dtypes.float4_e2m1fn))
scales = jnp.asarray(weight.scales.view(ml_dtypes.float8_e8m0fnu))


def layer(x: jax.typing.ArrayLike) -> jax.Array:
    """gelu(x) times dequantized weights; in the program one kernel of mxc reads the blocks."""
    blocks = elements.astype(jnp.float32).reshape(N, K // BLOCK, BLOCK)
    dequantized = (blocks * scales.astype(jnp.float32)[..., None]).reshape(N, K)
    return jax.nn.gelu(x) @ dequantized.T


(rows,) = export.symbolic_shape("rows")
exported = export.export(jax.jit(layer))(jax.ShapeDtypeStruct((rows, K), "float32"))
with tempfile.TemporaryDirectory() as folder:
    artifact = mxc.compile(exported, target="cpu", output=Path(folder) / "layer.mxc", strict=True)
    x = random.standard_normal((5, K)).astype(np.float32)
    (y,) = mxc.load(artifact.path).call("main", x)
print(artifact.manifest.functions["main"])
print(*artifact.manifest.weights.items(), sep="\n")
print(y.shape, abs(y - layer(x)).max())
np.testing.assert_allclose(y, layer(x), rtol=1e-4, atol=1e-4)
assert len(artifact.manifest.weights) == 2
