"""The delta rule and the short convolution by themselves, against transformers and torch.

One program has a function for each number of tokens: one, a chunk that is not full, and three
chunks of which the last is not full.
"""

import json
from typing import Any

import numpy as np
import pytest
import torch
from iree.compiler import ir
from iree.compiler.dialects import arith, func
from numpy.typing import NDArray
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.models.blocks.delta_rule import Tokens, advance
from mxc.compiler.models.blocks.short_convolution import convolve
from mxc.dialects.context import new_context
from mxc.runtime import Model

COUNTS = (1, 5, 150)
#: Heads of keys, heads of values for each, the sizes of both; layers.
G, R, K, V, LAYERS = 2, 3, 16, 8, 2
COLUMNS, WIDTH = 24, 4

each_count = pytest.mark.parametrize("count", COUNTS)


def _program() -> str:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)

        def kind(*shape: int) -> ir.Type:
            return ir.RankedTensorType.get(list(shape), f32)

        def index(value: ir.Value) -> ir.Value:
            return arith.index_cast(ir.IndexType.get(), value)

        def rule(q: Any, k: Any, v: Any, beta: Any, g: Any, states: Any, layer: Any) -> Any:
            tokens = Tokens(queries=q, keys=k, values=v, beta=beta, g=g)
            return advance(tokens, states, index(layer))

        def convolution(x: Any, w: Any, states: Any, layer: Any, position: Any, count: Any) -> Any:
            return convolve(
                x,
                w,
                states,
                layer=index(layer),
                position=index(position),
                count=index(count),
                activation=lambda value: value,
            )

        with ir.InsertionPoint(module.body):
            for n in COUNTS:
                rows = [kind(n, G, K), kind(n, G, K), kind(n, G, R, V)]
                kinds = [*rows, kind(n, G, R), kind(n, G, R), kind(LAYERS, G, R, K, V), i32]
                func.FuncOp.from_py_func(*kinds, name=f"rule_{n}")(rule)
                kinds = [kind(n, COLUMNS), kind(COLUMNS, WIDTH), kind(LAYERS, WIDTH, COLUMNS)]
                func.FuncOp.from_py_func(*kinds, i32, i32, i32, name=f"convolution_{n}")(
                    convolution
                )
        return str(module)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "blocks.mlir").write_text(_program())
    mxc.compile(folder / "blocks.mlir", "cpu", folder / "blocks.mxc")
    return mxc.load(folder / "blocks.mxc")


Arrays = list[NDArray[np.float32]]


def _draw(count: int) -> Arrays:
    """Queries, keys of length one, values, beta, g; the state before them."""
    random = np.random.default_rng(count)
    q, k = random.normal(size=(2, count, G, K))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    rows = [q, k, random.normal(size=(count, G, R, V)), random.uniform(size=(count, G, R))]
    rows += [-random.exponential(size=(count, G, R)), random.normal(size=(LAYERS, G, R, K, V))]
    return [row.astype(np.float32) for row in rows]


def _wanted(given: Arrays, layer: int) -> Arrays:
    """What transformers' recurrence reads, and the state of `layer` behind it."""
    q, k, v, beta, g, states = (torch.from_numpy(each) for each in given)
    count = len(q)

    def of_values(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(1, count, G * R, -1)

    repeated = (x[:, :, None].expand(-1, -1, R, -1) for x in (q * K**0.5, k))
    read, state = torch_recurrent_gated_delta_rule(
        *map(of_values, repeated),
        of_values(v),
        g=of_values(g)[..., 0],
        beta=of_values(beta)[..., 0],
        initial_state=states[layer].reshape(1, G * R, K, V),
        output_final_state=True,
    )
    return [read.reshape(count, G, R, V).numpy(), state.reshape(G, R, K, V).numpy()]


def _check(model: Model, given: Arrays, tolerance: float = 2e-6) -> None:
    layer = 1
    read, states = model.call(f"rule_{len(given[0])}", *given, np.int32(layer))
    for found, wanted in zip((read, states[layer]), _wanted(given, layer), strict=True):
        assert np.abs(found - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())
    assert np.array_equal(states[0], given[-1][0])


def test_a_step_reads_and_writes_the_state_of_its_layer_once(model: Model) -> None:
    """One dispatch, whose bytes are those of one layer of the states, and a few rows."""
    report = json.loads((model.path / REPORT).read_text())
    moved = [each["bytes_moved"] for each in report["operations"] if each["function"] == "rule_1"]
    state, rows = G * R * K * V, G * (2 * K + R * (2 * V + 2))
    assert max(moved) <= 4 * (2 * state + rows) + 8
    assert sum(moved) <= 4 * (2 * state + 3 * rows) + 8
    (cost,) = (each for each in report["functions"] if each["name"] == "rule_1")
    assert cost["transient_bytes"] <= 256


@each_count
def test_rule(count: int, model: Model) -> None:
    _check(model, _draw(count))


def test_keys_that_are_alike(model: Model) -> None:
    """Sums of powers of what is inverted would be as large as 2^64."""
    given = _draw(150)
    given[1][:] = given[1][:1]
    given[3][:], given[4][:] = 0.999, -1e-4
    _check(model, given, 1e-5)


def test_rows_of_zeros_change_nothing(model: Model) -> None:
    given = _draw(150)
    for each in given[:-1]:
        each[:] = 0
    read, states = model.call("rule_150", *given, np.int32(0))
    assert not read.any()
    assert np.array_equal(states, given[-1])


def test_convolution(model: Model) -> None:
    """A sequence in pieces, of which some have rows that are no tokens."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, COLUMNS)).astype(np.float32)
    w = random.normal(size=(COLUMNS, WIDTH)).astype(np.float32)
    padded = torch.from_numpy(x).T[None]
    whole = torch.nn.functional.conv1d(
        padded, torch.from_numpy(w)[:, None], padding=WIDTH - 1, groups=COLUMNS
    )
    wanted = whole[0].T[: len(x)].numpy()
    states = np.zeros((LAYERS, WIDTH, COLUMNS), np.float32)
    position = 0
    for rows, count in [(5, 2), (5, 5), (1, 1), (5, 1), (1, 1), (1, 1), (5, 4), (150, 3), (5, 5)]:
        piece = np.full((rows, COLUMNS), 9.0, np.float32)
        piece[:count] = x[position : position + count]
        numbers = (np.int32(1), np.int32(position), np.int32(count))
        found, states = model.call(f"convolution_{rows}", piece, w, states, *numbers)
        assert np.abs(found[:count] - wanted[position : position + count]).max() <= 1e-5
        position += count
    assert not states[0].any()
