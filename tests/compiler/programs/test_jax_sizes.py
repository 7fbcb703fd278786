"""Programs from JAX with symbolic sizes: each runs with sizes of a call, and has JAX's numbers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export, lax

import mxc
from mxc.errors import MxcError
from mxc.runtime.session import Model

RANDOM = np.random.default_rng(0)


def whole(*shape: int, dtype: Any = np.float32, low: int = -4, high: int = 5) -> jax.Array:
    """Whole numbers: sums are exact, in whatever order."""
    return jnp.asarray(RANDOM.integers(low, high, shape).astype(dtype))


WEIGHT, SQUARE, TABLE = whole(64, 96), whole(64, 64), whole(20, 64)
FILTER, BYTES = whole(8, 64, 3), whole(32, 64, dtype=np.uint8, low=0, high=255)
HALF = FILTER.astype(ml_dtypes.bfloat16)
X = whole(2, 7, 64)
IDS = whole(2, 5, dtype=np.int32, low=0, high=7)
UNSIGNED = whole(2, 7, 64, dtype=np.uint8, low=0, high=255)
IMAGES = whole(2, 4, 6, 3)
POOLED = whole(2, 8, 64)
WIDE, KERNEL = whole(4, 2, 96), whole(3, 2, 3, 5)
INTEGERS = whole(4, 1, 3, dtype=np.int32)


def attention(x: Any) -> Any:
    b, t, d = x.shape
    q, k = ((x @ SQUARE).reshape(b, t, 4, 16).transpose(0, 2, 1, 3) for _ in range(2))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 64
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    return (jax.nn.softmax(scores, -1) @ k).transpose(0, 2, 1, 3).reshape(b, t, d)


def patches(x: Any) -> Any:
    b, h, w, _ = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 12)


def loss(x: Any, ids: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ WEIGHT / 64, -1), ids[..., None], -1).mean()


@dataclass(frozen=True)
class Case:
    """A function, its operands, and their symbolic sizes, "" for a number."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    sizes: tuple[str, ...]


def on_x(function: Callable[[Any], Any], sizes: str = "a, m, 64") -> Case:
    return Case(function, (X,), (sizes,))


CASES = {
    # Products.
    "dense": on_x(lambda x: x @ WEIGHT),
    "dense_one_size": on_x(lambda x: x @ WEIGHT, "a, 7, 64"),
    "batches": Case(lambda x, y: x @ y.transpose(0, 2, 1), (X, X), ("a, m, 64", "a, n, 64")),
    "outer": on_x(lambda x: jnp.einsum("am,an->amn", x[:, :, 0], x[:, :, 1])),
    "heads": on_x(lambda x: jnp.einsum("btd,dhk->bhtk", x, SQUARE.reshape(64, 4, 16))),
    "bf16": Case(
        lambda x: jnp.dot(x, WEIGHT.astype(x.dtype), preferred_element_type=jnp.float32),
        (X.astype(ml_dtypes.bfloat16),),
        ("a, m, 64",),
    ),
    "unsigned_product": Case(
        lambda x: jnp.einsum("amk,nk->amn", x, BYTES, preferred_element_type=jnp.int32),
        (UNSIGNED,),
        ("a, m, 64",),
    ),
    "convolution": on_x(
        lambda x: lax.conv_general_dilated(x.transpose(0, 2, 1), FILTER, (1,), "SAME"), "a, 7, 64"
    ),
    "convolution_one_wide": Case(
        lambda x: lax.conv(x, FILTER[:, :4, None] * jnp.ones((1, 1, 3, 1)), (2, 2), "VALID"),
        (whole(2, 4, 7, 4),),
        ("a, 4, 7, 4",),
    ),
    "convolution_of_places": on_x(
        lambda x: lax.conv_general_dilated(x.transpose(0, 2, 1), FILTER, (1,), "SAME")
    ),
    "convolution_with_strides": on_x(
        lambda x: lax.conv_general_dilated(x.transpose(0, 2, 1), FILTER, (2,), "SAME")
    ),
    "convolution_of_groups": on_x(
        lambda x: lax.conv_general_dilated(
            x, WIDE, (1,), [(3, 0)], feature_group_count=32, dimension_numbers=("NWC", "WIO", "NWC")
        )
    ),
    "convolution_with_gaps": on_x(
        lambda x: lax.conv_general_dilated(
            x.transpose(0, 2, 1), FILTER, (1,), [(2, 5)], lhs_dilation=(2,), rhs_dilation=(3,)
        )
    ),
    "convolution_of_bf16": on_x(
        lambda x: lax.conv(x.transpose(0, 2, 1).astype("bfloat16"), HALF, (1,), "VALID")
    ),
    "convolution_of_images": Case(
        lambda x: lax.conv_general_dilated(
            x, KERNEL, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ).reshape(x.shape[0], -1, 5),
        (IMAGES,),
        ("a, 2*h, w, 3",),
    ),
    "convolution_of_integers": Case(
        lambda x: lax.conv(x[:, None], INTEGERS, (1,), "VALID"),
        (IDS,),
        ("a, n",),
    ),
    "attention": on_x(attention),
    "attention_of_jax": on_x(
        lambda x: jax.nn.dot_product_attention(
            *[x.reshape(*x.shape[:2], 4, 16) / 8] * 3, is_causal=True
        )
    ),
    # Scatters of one part, also of known sizes.
    "part_added": on_x(lambda x: x.at[:, 1:].add(x[:, :-1])),
    "part_multiplied": on_x(lambda x: x.at[1:, :, 2:5].multiply(2)),
    "part_set": on_x(lambda x: x.at[:, 2:].set(3)),
    "part_of_known_size": on_x(lambda x: x.at[:, 1:].add(1), "2, 7, 64"),
    "part_of_integers": Case(lambda x: x.at[:, 1:].min(2), (IDS,), ("a, m",)),
    "part_of_bytes": Case(lambda x: x.at[:, :3].max(150), (UNSIGNED,), ("a, m, 64",)),
    "row_of_bytes": Case(lambda x: x.at[:, 0].add(200), (UNSIGNED,), ("2, 7, 64",)),
    "part_of_truth": Case(lambda x: (x > 2).at[:, 1:].set(True).astype(int), (IDS,), ("a, m",)),
    # Reshapes.
    "flat": on_x(lambda x: x.reshape(-1, 64)),
    "flat_whole": on_x(lambda x: x.reshape(-1)),
    "flat_and_back": on_x(lambda x: (x.reshape(-1, 64) @ WEIGHT).reshape(x.shape[0], -1, 96)),
    "split": on_x(lambda x: x.reshape(*x.shape[:2], 4, 16)),
    "merged": on_x(lambda x: x[:, :, 0].reshape(x.shape[0] * x.shape[1])),
    "swapped": on_x(lambda x: x.reshape(x.shape[1], x.shape[0], 64)),
    "ones": on_x(lambda x: x.reshape(1, -1, 1, 64)[0, :, 0]),
    "ones_inside": on_x(lambda x: x[:, :, :1].reshape(x.shape[0], 1, x.shape[1], 1)),
    "regrouped": on_x(lambda x: x.reshape(x.shape[0] * 4, -1)),
    "halves": Case(lambda x: x.reshape(-1, 2, 64).sum(1), (whole(6, 64),), ("2*a, 64",)),
    "patches": Case(patches, (IMAGES,), ("a, 2*h, 2*w, 3",)),
    "tiled": on_x(lambda x: jnp.tile(x, (1, 2, 1))),
    # Broadcasts.
    "softmax": on_x(lambda x: jax.nn.softmax(x, -1)),
    "norm": on_x(lambda x: (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1)),
    "pairs": on_x(lambda x: x[:, None] * x[:, :, None]),
    "ones_repeated": on_x(lambda x: jnp.broadcast_to(X[:1, :1, :1], x.shape) + 1),
    "repeated": on_x(lambda x: jnp.repeat(x, 2, axis=1)),
    "positions": on_x(lambda x: x * jnp.arange(x.shape[1], dtype=jnp.float32)[None, :, None]),
    "truth_values": on_x(lambda x: (x > 0)[:, None] & (x < 3)[:, :, None]),
    "bounds": on_x(lambda x: jnp.concatenate([jnp.clip(x, -1, 1), x[:, :1]], 1).reshape(-1, 64)),
    "one_hot": Case(lambda i: jax.nn.one_hot(i, 20) @ TABLE, (IDS,), ("a, n",)),
    "unsigned": Case(
        lambda x: (x[:, None] + x[:, :, None]).reshape(x.shape[0], -1)[:, 8:],
        (UNSIGNED,),
        ("a, m, 64",),
    ),
    # Places.
    "table": Case(lambda i: TABLE[i], (IDS,), ("a, n",)),
    "along": Case(
        lambda x, i: jnp.take_along_axis(x, i[:, :, None], 1), (X, IDS), ("a, m, 64", "a, n")
    ),
    "loss": Case(loss, (X, whole(2, 7, dtype=np.int32, low=0)), ("a, m, 64", "a, m")),
    "without_the_last": on_x(lambda x: x[:, :-1]),
    "last": on_x(lambda x: (x[:, -1] @ WEIGHT).argmax(-1)),
    "reversed": on_x(lambda x: x[:, ::-1]),
    "every_other": on_x(lambda x: x[:, ::2]),
    "halves_swapped": Case(
        lambda x: jnp.concatenate(jnp.split(x, 2, 1)[::-1], 1), (POOLED,), ("a, 2*n, 64",)
    ),
    "edges_repeated": on_x(lambda x: jnp.pad(x, ((0, 0), (2, 1), (0, 0)), mode="edge")),
    "rolled": on_x(lambda x: jnp.roll(x, 1, axis=1)),
    "set": on_x(lambda x: x.at[:, 0].set(1.0)),
    "cache": Case(
        lambda c, x, i: lax.dynamic_update_slice(c, x, (0, i, 0)),
        (whole(2, 9, 64), X[:, :3], jnp.int32(8)),
        ("a, s + 4, 64", "a, 3, 64", ""),
    ),
    "before_the_first": Case(
        lambda c, i: lax.dynamic_slice(c, (0, i, 0), (2, 4, 64)),
        (whole(2, 9, 64), jnp.int32(-20)),
        ("2, s + 4, 64", ""),
    ),
    "after_the_last": Case(
        lambda c, i: lax.dynamic_slice(c, (0, i, 0), (2, 4, 64)),
        (whole(2, 9, 64), jnp.int32(7)),
        ("2, s + 4, 64", ""),
    ),
    # Windows.
    "running_sum": on_x(lambda x: jnp.cumsum(x, 1)),
    "running_sum_of_integers": Case(lambda i: jnp.cumsum(i, 1), (IDS,), ("a, n",)),
    "running_maximum": on_x(lambda x: lax.cummax(x, 1)),
    "running_maximum_of_known_size": on_x(lambda x: lax.cummax(x, 2)),
    "running_sum_from_the_end": on_x(lambda x: lax.cumsum(x, 1, reverse=True)),
    "running_product_from_the_end": on_x(
        lambda x: lax.cumprod(jnp.sign(x), 2, reverse=True).astype("bfloat16")
    ),
    "pooled_places": Case(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        (IMAGES,),
        ("a, h, w, 3",),
    ),
    "sums_with_gaps": on_x(
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (1, 3, 1), (1, 2, 1), [(0, 0), (1, 4), (0, 0)], None, (1, 2, 1)
        )
    ),
    "pooled": Case(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 1), (1, 2, 1), "SAME"),
        (POOLED,),
        ("a, 8, 64",),
    ),
    "averaged": Case(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 2, 2), "VALID") / 4,
        (POOLED,),
        ("a, 8, 64",),
    ),
    # Control flow, and others.
    "loop": on_x(
        lambda x: lax.fori_loop(0, 2, lambda _, c: jax.nn.softmax(c @ SQUARE / 64, -1), x)
    ),
    "scan": on_x(lambda x: lax.scan(lambda c, y: (c + y, c), jnp.zeros(64), x[0])[1]),
    "branches": on_x(
        lambda x: lax.cond(
            x.sum() > 0, lambda y: y.reshape(-1, 64), lambda y: 2 * y.reshape(-1, 64), x
        )
    ),
    "both": Case(
        lambda x, y: jnp.concatenate([x, y], 1).sum(1),
        (X, whole(2, 5, 64)),
        ("a, m, 64", "a, n, 64"),
    ),
}


def exported(case: Case) -> Any:
    scope = export.SymbolicScope()
    arguments = [
        jax.ShapeDtypeStruct(export.symbolic_shape(sizes, scope=scope), each.dtype)
        for each, sizes in zip(case.operands, case.sizes, strict=True)
    ]
    return export.export(jax.jit(case.function))(*arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("programs")
    programs = {name: exported(case) for name, case in CASES.items()}
    return mxc.load(mxc.compile(programs, output=folder / "all.mxc", listing=False).path)


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, model: Model) -> None:
    case = CASES[name]
    (found,) = model.call(name, *(np.asarray(each) for each in case.operands))
    wanted = np.asarray(case.function(*case.operands))
    assert found.shape == wanted.shape
    # Bytes have no sign in the results of a call.
    found = found.view(wanted.dtype) if wanted.dtype == np.uint8 else found
    np.testing.assert_allclose(
        found.astype(np.float32), wanted.astype(np.float32), rtol=1e-5, atol=1e-5
    )


def test_sizes_of_several_calls(model: Model) -> None:
    for rows in (1, 2, 13):
        x = whole(rows, rows + 1, 64)
        (found,) = model.call("flat_and_back", np.asarray(x))
        np.testing.assert_array_equal(found, np.asarray(x @ WEIGHT))


def test_windows_that_do_not_fit(model: Model) -> None:
    (found,) = model.call("convolution_of_bf16", np.zeros((2, 2, 64), np.float32))
    assert found.shape == (2, 8, 0)


def test_what_has_no_lowering(tmp_path: Path) -> None:
    """It is refused in a line, with its place in the user's file and those that called it."""
    case = on_x(lambda x: lax.cumlogsumexp(x, 2))
    with pytest.raises(MxcError) as refusal:
        mxc.compile(exported(case), output=tmp_path / "out.mxc", listing=False)
    assert re.fullmatch(
        r"\S*test_jax_sizes.py:\d+:\d+ \(reduce_window, .*\), called from .*: "
        "stablehlo.reduce_window of such sizes has no lowering; write it with other operations",
        str(refusal.value),
    )
    assert len(str(refusal.value)) < 600


#: In StableHLO a dimension of unknown size might be repeated; JAX never means it.
REPEATED = """
func.func @main(%x: tensor<?xf32>, %y: tensor<?x2xf32>) -> tensor<?x2xf32> {
  %n = stablehlo.get_dimension_size %y, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
  %one = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %two = stablehlo.constant dense<2> : tensor<1xi32>
  %s = stablehlo.concatenate %one, %two, dim = 0
    : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %b = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [0]
    : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x2xf32>
  %r = stablehlo.add %b, %y : tensor<?x2xf32>
  return %r : tensor<?x2xf32>
}
"""


def test_a_size_that_differs(tmp_path: Path) -> None:
    (tmp_path / "in.stablehlo").write_text(REPEATED)
    made = mxc.compile(tmp_path / "in.stablehlo", output=tmp_path / "out.mxc", listing=False)
    model, y = mxc.load(made.path), np.ones((3, 2), np.float32)
    (found,) = model.call("main", np.arange(3, dtype=np.float32), y)
    np.testing.assert_array_equal(found, [[1, 1], [2, 2], [3, 3]])
    with pytest.raises(RuntimeError, match="a broadcast repeats dimension 0, whose size is not 1"):
        model.call("main", np.ones(1, np.float32), y)
