"""Modules that JAX itself ships, with random weights: name -> (function, shapes of arguments)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.example_libraries import stax
from jax.experimental import rnn

Module = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def stax_mlp() -> Module:
    layers = (stax.Dense(32), stax.Relu, stax.Dense(32), stax.Relu, stax.Dense(10))
    init, apply = stax.serial(*layers, stax.LogSoftmax)
    _, weights = init(jax.random.key(0), (8, 64))
    return lambda x: apply(weights, x), (_floats(8, 64),)


def stax_conv() -> Module:
    layers = (stax.Conv(4, (3, 3), padding="SAME"), stax.Relu, stax.MaxPool((2, 2)), stax.Flatten)
    init, apply = stax.serial(*layers, stax.Dense(10), stax.LogSoftmax)
    _, weights = init(jax.random.key(0), (2, 9, 9, 1))
    return lambda x: apply(weights, x), (_floats(2, 9, 9, 1),)


def attention() -> Module:
    def causal(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    return causal, (_floats(1, 16, 2, 16),) * 3


def lstm() -> Module:
    sizes = (16, 32, 1, False)
    count = rnn.get_num_params_in_lstm(*sizes)
    weights = jax.random.uniform(jax.random.key(0), (count,), minval=-0.2, maxval=0.2)
    lengths = jnp.full((2,), 3, jnp.int32)

    def run(x: Any, h: Any, c: Any) -> Any:
        every = rnn.unpack_lstm_weights(weights, *sizes)
        return rnn.lstm_ref(x, h, c, *every, lengths, 16, 32, 1, 0.0, False)[0]

    return run, (_floats(2, 3, 16), _floats(1, 2, 32), _floats(1, 2, 32))


def mlp_gelu() -> Module:
    layers = (stax.Dense(48), stax.Gelu, stax.Dense(16), stax.Softmax)
    init, apply = stax.serial(*layers)
    _, weights = init(jax.random.key(1), (3, 32))
    return lambda x: apply(weights, x), (_floats(3, 32),)


def largest() -> Module:
    """Beside the function, its module has a public one that compares two numbers."""
    return lambda x: jax.lax.approx_max_k(x, 2)[0], (_floats(4, 8),)


MODULES: dict[str, Callable[[], Module]] = {
    "stax_mlp": stax_mlp,
    "stax_conv": stax_conv,
    "dot_product_attention": attention,
    "lstm_ref": lstm,
    "stax_gelu": mlp_gelu,
    "approx_max_k": largest,
}
