"""Products with slices of a weight: each slice is stored as the rows that its kernel reads."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.artifact import Artifact
from mxc.compiler.report import Report

M, N, K, BLOCK = 4, 48, 128, 32
RANDOM = np.random.default_rng(0)
X = RANDOM.integers(-8, 8, (M, K)).astype(np.float32)
DENSE = jnp.asarray(RANDOM.integers(-8, 8, (N, K)), jnp.float32)
EXPERTS = DENSE.reshape(3, 16, K)
ELEMENTS = jnp.asarray(
    RANDOM.integers(-4, 4, (N, K // BLOCK, BLOCK)).astype(ml_dtypes.float4_e2m1fn)
)
SCALES = jnp.asarray(
    RANDOM.integers(125, 129, (N, K // BLOCK), np.uint8).view(ml_dtypes.float8_e8m0fnu)
)


def packed(*part: slice) -> Any:
    """A slice of the mxfp4 weight, decoded: [rows, K]."""
    elements, scales = ELEMENTS[part].astype(jnp.float32), SCALES[part].astype(jnp.float32)
    decoded = elements * scales[..., None]
    return decoded.reshape(decoded.shape[0], -1)


#: Functions of x.
SLICES: dict[str, Callable[[Any], Any]] = {
    "first_rows": lambda x: x @ DENSE[:17].T,
    "rows_of_a_step": lambda x: x @ DENSE[1::3].T,
    "columns": lambda x: x[:, :64] @ DENSE[:, 64:].T,
    "of_the_transposed": lambda x: x @ DENSE.T[:, 5:20],
    "of_a_slice": lambda x: x @ DENSE[4:40].T[:, 5:20],
    "an_expert": lambda x: x @ EXPERTS[1].T,
    "two_parts": lambda x: jnp.concatenate([x @ DENSE[:17].T, x @ DENSE[17:].T], -1),
    "packed_rows": lambda x: x @ packed(slice(3, 20)).T,
    "packed_blocks": lambda x: x[:, :64] @ packed(slice(None), slice(1, 3)).T,
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    rows = jax.ShapeDtypeStruct((M, K), jnp.float32)
    exported = {
        name: export.export(jax.jit(function), platforms=["cpu"])(rows)
        for name, function in SLICES.items()
    }
    return mxc.compile(exported, output=tmp_path_factory.mktemp("slices") / "all.mxc")


@pytest.mark.parametrize("name", SLICES)
def test_numbers_are_those_of_jax(compiled: Artifact, name: str) -> None:
    """Sums of these integers are exact in any order."""
    (found,) = mxc.load(compiled.path, threads=1).call(name, X)
    np.testing.assert_array_equal(found, SLICES[name](X))


def test_each_has_a_kernel(compiled: Artifact) -> None:
    report = Report.from_dict(json.loads((compiled.path / REPORT).read_text()))
    assert len(report.matmuls) == len(SLICES) + 1
    assert not any(one.fallback or one.reason for one in report.matmuls)


def test_only_what_is_read_is_stored(compiled: Artifact) -> None:
    """A constant of JAX is one weight for each function; two of them read all rows in slices."""
    rows = sorted(one.shape[0] for one in compiled.manifest.weights.values() if one.shape[-1] == K)
    assert rows == [15, 15, 16, 16, 17, 17, 31]
