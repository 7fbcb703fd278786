"""Donated arguments of JAX: a result takes their memory only where nothing reads them later."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import mxc
from mxc.runtime.session import Model

RANDOM = np.random.default_rng(0)
SIZE = 64
#: Functions of two donated arguments, of which each result takes the memory of one.
EXCHANGES: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "exchanged": lambda a, b: (b, a),
    "computed": lambda a, b: (b + 1, 2 * a),
    "kept": lambda a, b: (b + 1, a),
    "summed_later": lambda a, b: (b + 1, a + b.sum()),
    "both_read": lambda a, b: (a + b, a - b),
    "in_another_order": lambda a, b: (jnp.flip(a), jnp.roll(b, 5)),
    "in_another_shape": lambda a, b: (b.reshape(8, 8).T.reshape(-1), a.reshape(8, 8).reshape(-1)),
    "in_a_loop": lambda a, b: lax.fori_loop(0, 3, lambda _, c: (c[1] + 1, c[0]), (a, b)),
}


def cache(rows: Any, at: Any, x: Any) -> tuple[Any, Any]:
    """A cache in place, and what reads all of it before."""
    return lax.dynamic_update_slice(rows, x * rows.sum(), (at, 0)), rows[0] * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    whole = jax.ShapeDtypeStruct((SIZE,), "float32")
    programs = {
        name: export.export(jax.jit(each, donate_argnums=(0, 1)))(whole, whole)
        for name, each in EXCHANGES.items()
    }
    shapes = [((16, 4), "float32"), ((), "int32"), ((1, 4), "float32")]
    arguments = [jax.ShapeDtypeStruct(*each) for each in shapes]
    programs["cache"] = export.export(jax.jit(cache, donate_argnums=0))(*arguments)
    (n,) = export.symbolic_shape("n")
    programs["any"] = export.export(jax.jit(lambda a, x: (a * x, x), donate_argnums=0))(
        jax.ShapeDtypeStruct((n,), "float32"), jax.ShapeDtypeStruct((), "float32")
    )
    folder = tmp_path_factory.mktemp("donation")
    return mxc.load(mxc.compile(programs, output=folder / "all.mxc", listing=False).path)


def floats(*shape: int) -> Any:
    return RANDOM.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_each_result_reads_is_what_was_given(model: Model, name: str) -> None:
    a, b = floats(2, SIZE)
    kept = a.copy(), b.copy()
    wanted = EXCHANGES[name](jnp.asarray(a), jnp.asarray(b))
    for found, each in zip(model.call(name, a, b), wanted, strict=True):
        np.testing.assert_array_equal(found, np.asarray(each))
    assert all(map(np.array_equal, (a, b), kept))


def test_a_cache_that_is_read_before(model: Model) -> None:
    rows, x = floats(16, 4), floats(1, 4)
    keep = model.stateful("cache", {"rows": rows})
    for at in range(3):
        wanted, first = cache(jnp.asarray(rows), at, x)
        (found,) = keep(at, x)
        np.testing.assert_array_equal(found, np.asarray(first))
        rows = keep.states["rows"]
        np.testing.assert_array_equal(rows, np.asarray(wanted))


def test_a_state_whose_sizes_come_with_the_call_begins_with_an_array(model: Model) -> None:
    with pytest.raises(mxc.errors.RequestError, match=r"any: state a is f32 \[\?\]; give what"):
        model.stateful("any")
    grow = model.stateful("any", {"a": np.ones(5, np.float32)})
    grow(np.float32(3))
    assert grow(np.float32(2))[0] == 2
    np.testing.assert_array_equal(grow.states["a"], np.full(5, 6, np.float32))
