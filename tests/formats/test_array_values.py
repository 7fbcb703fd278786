"""Quantized tensors as numpy sees them: their values, or a refusal that names them."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mxc
from mxc.errors import FormatError
from mxc.formats.array_values import matmul

RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 64)).astype(np.float32)
W = RNG.standard_normal((64, 8)).astype(np.float32)
MADE = {
    "scaled": lambda x: mxc.quantize_scaled(x, "e4m3:float32_t0"),
    "zero points": lambda x: mxc.quantize_scaled(x, "uint8:float32_float16_int9_t2"),
    "unscaled": lambda x: mxc.quantize_scaled(x, "bfloat16"),
    "blocks": lambda x: mxc.quantize(x, "mxfp8e5m2", axis=0 if len(x) == 64 else 1),
}
made = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


def values(q: mxc.Quantized | mxc.Scaled) -> NDArray[Any]:
    return mxc.dequantize(q) if isinstance(q, mxc.Quantized) else mxc.dequantize_scaled(q)


@made
@pytest.mark.parametrize(
    "function",
    [
        np.sum,
        np.mean,
        np.max,
        np.argmax,
        np.sort,
        np.transpose,
        np.linalg.norm,
        np.abs,
        np.ravel,
        np.asarray,
        np.square,
        lambda q: np.sum(q, axis=0, keepdims=True),
        lambda q: np.add.reduce(q, 1),
        lambda q: np.add.accumulate(q, 1),
        lambda q: np.concatenate([q, q]),
        lambda q: np.allclose(q, q),
        lambda q: np.array(q, np.float64),
        lambda q: q + 1,
        lambda q: 2 * q - q,
        lambda q: -q,
        lambda q: q > 0,
        lambda q: q == q,
        lambda q: q[1],
        lambda q: q[..., ::2],
        lambda q: np.stack(list(q)),
        lambda q: np.einsum("mk,nk->mn", q, q),
        lambda q: np.stack([q.ndim, q.size, len(q)]),
    ],
)
def test_numpy_reads_the_values(
    make: Callable[..., Any], function: Any | Callable[..., Any]
) -> None:
    q = make(X)
    found, wanted = function(q), function(values(q))
    np.testing.assert_array_equal(found, wanted)
    assert np.asarray(found).dtype == np.asarray(wanted).dtype
    assert not isinstance(found, type(q))


@made
def test_products_are_summed_in_float64(make: Callable[..., Any]) -> None:
    x, w = make(X), make(W)
    wanted = (values(x).astype(np.float64) @ values(w).astype(np.float64)).astype(np.float32)
    for found in (x @ w, np.matmul(x, w), matmul(x, w), values(x) @ w, x @ values(w)):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == np.float32


def test_truth_is_that_of_one_value() -> None:
    assert mxc.quantize_scaled([[2.0]], "e4m3:float32")
    assert not mxc.quantize_scaled([[0.0]], "e4m3:float32")
    with pytest.raises(ValueError, match="ambiguous"):
        bool(mxc.quantize(X, "mxfp4"))


def increment(q: Any) -> None:
    q += 1


@pytest.mark.parametrize(
    "write",
    [
        increment,
        lambda q: q.__setitem__(0, 1.0),
        lambda q: np.add(X, 1, out=q),
        lambda q: np.add.at(q, 0, 1),
    ],
)
def test_writing_is_refused_by_name(write: Callable[..., Any]) -> None:
    with pytest.raises(FormatError, match=re.escape("e4m3:float32_t0 [6, 64]")):
        write(mxc.quantize_scaled(X, "e4m3:float32_t0"))
    with pytest.raises(FormatError, match=re.escape("mxfp4 [6, 64]")):
        write(mxc.quantize(X, "mxfp4"))


def test_values_are_never_shared() -> None:
    with pytest.raises(ValueError, match="leave copy out"):
        np.asarray(mxc.quantize(X, "mxfp4"), copy=False)


def test_methods_of_numpy_are_refused_by_name() -> None:
    with pytest.raises(AttributeError, match=r"mxfp4 \[6, 64\] has no attribute 'sum'; numpy"):
        mxc.quantize(X, "mxfp4").sum()
    with pytest.raises(AttributeError, match="'Scaled' object has no attribute 'total'"):
        mxc.quantize_scaled(X, "mxfp4").total()


@pytest.mark.parametrize(
    ("shape", "named"),
    [((8, 64), "float32 [8, 64]"), ((), "float32 []"), ((2, 3, 5, 8), "float32 [2, 3, 5, 8]")],
)
def test_wrong_shapes_name_both_operands(shape: tuple[int, ...], named: str) -> None:
    q = mxc.quantize_scaled(X, "e2m1:e8m0_t32")
    for multiply in (matmul, np.matmul):
        with pytest.raises(FormatError) as found:
            multiply(q, np.ones(shape, np.float32))
        assert f"matmul of e2m1:e8m0_t32 [6, 64] by {named}: wants [.., M, K]" in str(found.value)
