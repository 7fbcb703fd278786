"""Products of JAX whose operands are unsigned, in branches, or the same weight."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

import mxc

M, N, K = 4, 32, 64
RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (M, K), np.uint8)
WORDS = RANDOM.integers(0, 1 << 16, (M, K), np.uint16)
TRUTH = RANDOM.integers(0, 2, (M, K)).astype(bool)
FLOATS = RANDOM.integers(-8, 8, (M, K)).astype(np.float32)
DENSE = jnp.asarray(RANDOM.integers(-8, 8, (N, K)), jnp.float32)
SIGNED = jnp.asarray(RANDOM.integers(-128, 128, (N, K)), jnp.int8)
UNSIGNED = jnp.asarray(RANDOM.integers(0, 256, (N, K)), jnp.uint8)
ELEMENTS = jnp.asarray(RANDOM.integers(-4, 4, (N, K)).astype(ml_dtypes.float4_e2m1fn))
SCALES = jnp.asarray(
    RANDOM.integers(125, 129, (N, K // 32), np.uint8).view(ml_dtypes.float8_e8m0fnu)
)


def packed() -> Any:
    """The weight of mxfp4."""
    blocks = ELEMENTS.astype(jnp.float32).reshape(N, K // 32, 32)
    return (blocks * SCALES.astype(jnp.float32)[..., None]).reshape(N, K)


def branches(p: Any, x: Any) -> Any:
    """Both branches multiply the same rows."""
    return jax.lax.cond(p, lambda x: 2 * (x @ packed().T), lambda x: -(x @ packed().T), x)


def a_branch(p: Any, x: Any) -> Any:
    """A branch and what is after it multiply the same rows."""
    found = jax.lax.cond(p, lambda x: x @ DENSE.T, lambda x: jnp.zeros((M, N)), x)
    return found + x @ (DENSE + 1).T


def in_f32(x: Any) -> Any:
    """A product of bf16 that is summed in f32."""
    w = DENSE.T.astype(jnp.bfloat16)
    return jax.lax.dot(x, w, preferred_element_type=jnp.float32)


def experts(x: Any, ids: Any) -> Any:
    """Each row by the expert that its number chooses; one tensor of scales is a small constant."""
    elements, scales = ELEMENTS.reshape(4, 8, K)[ids], SCALES.reshape(4, 8, K // 32)[ids]
    blocks = elements.astype(jnp.float32).reshape(-1, 8, K // 32, 32)
    weights = (blocks * scales.astype(jnp.float32)[..., None]).reshape(-1, 8, K)
    return jnp.einsum("tk,tnk->tn", x, weights)


def by_algorithm(x: Any) -> Any:
    """The same, as attention of JAX says it."""
    w = DENSE.T.astype(jnp.bfloat16)
    return jax.lax.dot(
        x,
        w,
        precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
        preferred_element_type=jnp.float32,
    )


def integers(x: Any, w: Any) -> Any:
    """A product of integers, which JAX gives to the product as they are."""
    return jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)


def images(x: Any) -> Any:
    """A convolution of bytes with bytes."""
    kernel = UNSIGNED[:9].reshape(3, 3, 8, 8).astype(jnp.float32)
    return jax.lax.conv_general_dilated(
        x.reshape(1, 4, 8, 8).astype(jnp.float32), kernel, (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "bytes_by_floats": (lambda x: x.astype(jnp.float32) @ DENSE.T, (BYTES,)),
    "bytes_by_bf16": (lambda x: in_f32(x.astype(jnp.bfloat16)), (BYTES,)),
    "bytes_by_bytes": (lambda x: x.astype(jnp.float32) @ UNSIGNED.T.astype(jnp.float32), (BYTES,)),
    "bytes_by_signed": (lambda x: x.astype(jnp.int32) @ SIGNED.T.astype(jnp.int32), (BYTES,)),
    "floats_by_bytes": (lambda x: x @ UNSIGNED.T.astype(jnp.float32), (FLOATS,)),
    "bytes_by_packed": (lambda x: x.astype(jnp.float32) @ packed().T, (BYTES,)),
    "truth_by_packed": (lambda x: x.astype(jnp.float32) @ packed().T, (TRUTH,)),
    "bf16_in_f32": (lambda x: by_algorithm(x.astype(jnp.bfloat16)), (BYTES,)),
    "words": (lambda x: x.astype(jnp.float32) @ DENSE.T, (WORDS,)),
    "einsum": (lambda x: jnp.einsum("mk,nk->nm", x.astype(jnp.float32), DENSE), (BYTES,)),
    "integers": (lambda x: integers(x, UNSIGNED), (BYTES,)),
    "images": (images, (BYTES,)),
    "sum_of_bytes": (lambda x: x.astype(jnp.float32).sum(axis=1), (BYTES,)),
    "branches": (branches, (np.array(True), FLOATS)),
    "a_branch_and_after": (a_branch, (np.array(False), FLOATS)),
    "experts": (experts, (FLOATS, np.array([3, 0, 1, 3], np.int32))),
    "both_sides": (lambda: packed() @ packed().T, ()),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    exported = {
        name: export.export(jax.jit(function), platforms=["cpu"])(
            *[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in values]
        )
        for name, (function, values) in PRODUCTS.items()
    }
    made = mxc.compile(exported, output=tmp_path_factory.mktemp("products") / "all.mxc")
    return mxc.load(made.path, threads=1)


@pytest.mark.parametrize("name", PRODUCTS)
def test_numbers_are_those_of_jax(model: Any, name: str) -> None:
    """Sums are exact in any order, but those of words."""
    function, values = PRODUCTS[name]
    (found,) = model.call(name, *values)
    wanted = np.asarray(function(*values)).astype(np.float64)
    bound = 1e-6 * np.abs(wanted).max() if name == "words" else 0
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=bound)
