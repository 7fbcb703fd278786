"""Recurrences over the rows of several runs: programs, drawn numbers, what they are in float64.

Errors: a row adds a product of a key and a change to the state, and what it reads is a sum over K
of products. Keys have length one and the state does not grow by the rule, so that all sums are of
the size of the values; `allowed` is some tens of roundings of these for each row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects.context import new_context
from mxc.dialects.recurrence import States, delta_rule, short_convolution

Array = NDArray[np.float32]
Integers = NDArray[np.int32]

U = 2.0**-24


@dataclass(frozen=True)
class Rule:
    """The delta rule of `key_heads` and `heads` of `key_depth` and `depth` elements; `each`: every
    row of a state has a decay of its own."""

    key_heads: int
    heads: int
    key_depth: int
    depth: int
    each: bool = False
    layers: int = 2

    def __str__(self) -> str:
        each = "_each" if self.each else ""
        return f"rule_{self.key_heads}x{self.heads}x{self.key_depth}x{self.depth}{each}"

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """Shapes of a row of queries, keys, values, decay and beta."""
        keys = (self.key_heads, self.key_depth)
        decay = (self.heads, self.key_depth) if self.each else (self.heads,)
        return [keys, keys, (self.heads, self.depth), decay, (self.heads,)]

    @property
    def state(self) -> tuple[int, ...]:
        """Shape of the state of a slot."""
        return (self.layers, self.heads, self.key_depth, self.depth)

    def draw(self, rng: np.random.Generator, count: int) -> list[Array]:
        """So many rows."""
        q, k, v, decay, beta = (rng.normal(size=(count, *shape)) for shape in self.rows)
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        made = [q, k, v, np.exp(-np.abs(decay)), 1 / (1 + np.exp(-beta))]
        return [each.astype(np.float32) for each in made]

    def step(self, state: Any, row: Sequence[Any]) -> tuple[Any, Any]:
        """In float64: the state after a row, and what the row reads."""
        q, k, v, decay, beta = row
        q, k = (np.repeat(x, self.heads // self.key_heads, axis=0) for x in (q, k))
        state = state * decay.reshape(self.heads, -1, 1)
        change = beta[:, None] * (v - np.einsum("hk,hkv->hv", k, state))
        state = state + k[:, :, None] * change[:, None]
        return state, np.einsum("hk,hkv->hv", q, state)


@dataclass(frozen=True)
class Convolution:
    """The convolution of so many columns, with weights of a type."""

    columns: int
    width: int
    weights: str = "bf16"
    layers: int = 2

    def __str__(self) -> str:
        return f"convolution_{self.columns}x{self.width}_{self.weights}"

    @property
    def state(self) -> tuple[int, ...]:
        """Shape of the state of a slot."""
        return (self.layers, self.width - 1, self.columns)

    @property
    def factors(self) -> Array:
        """The weights; every type holds them."""
        rng = np.random.default_rng(self.columns)
        drawn = rng.integers(-64, 65, size=(self.columns, self.width))
        return (drawn / 64).astype(np.float32)

    @property
    def stored(self) -> NDArray[Any]:
        """The weights in their type."""
        types = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
        return self.factors.astype(types[self.weights])

    def draw(self, rng: np.random.Generator, count: int) -> list[Array]:
        """So many rows."""
        return [rng.normal(size=(count, self.columns)).astype(np.float32)]

    def step(self, state: Any, row: Sequence[Any]) -> tuple[Any, Any]:
        """In float64: the state after a row, and the result."""
        whole = np.concatenate([state, row[0][None]])
        return whole[1:], (whole * self.factors.T).sum(axis=0)


Case = Rule | Convolution


def program(cases: Sequence[Case]) -> str:
    """A function of each: rows, pool, runs, places, layer -> result and pool."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
        dynamic = ir.ShapedType.get_dynamic_size()

        def kind(*shape: int, element: ir.Type = f32) -> ir.Type:
            return ir.RankedTensorType.get([dynamic, *shape], element)

        def build(case: Case, *given: ir.Value) -> Sequence[ir.Value]:
            *rows, pool, runs, places, layer = given
            states = States(pool, arith.index_cast(ir.IndexType.get(), layer), runs, places)
            if isinstance(case, Rule):
                return delta_rule(*[*rows, states])
            element = ir.Type.parse(case.weights)
            drawn = ir.RankedTensorType.get(case.factors.shape, f32)
            weights = arith.ConstantOp(drawn, ir.DenseElementsAttr.get(case.factors)).result
            if case.weights != "f32":
                wanted = ir.RankedTensorType.get(case.factors.shape, element)
                weights = arith.truncf(wanted, weights)
            return short_convolution(rows[0], weights, states)

        with ir.InsertionPoint(module.body):
            for case in cases:
                rows = case.rows if isinstance(case, Rule) else [(case.columns,)]
                kinds = [*(kind(*row) for row in rows), kind(*case.state)]
                kinds += [kind(3, element=i32), kind(element=i32), i32]
                results = [kind(*rows[min(2, len(rows) - 1)]), kind(*case.state)]
                consumed = {"iree.abi.consume": ir.UnitAttr.get()}
                given = [consumed if n == len(rows) else {} for n in range(len(kinds))]
                made = ir.Operation.create(
                    "util.func",
                    attributes={
                        "sym_name": ir.StringAttr.get(str(case)),
                        "function_type": ir.TypeAttr.get(ir.FunctionType.get(kinds, results)),
                        "arg_attrs": ir.ArrayAttr.get([ir.DictAttr.get(each) for each in given]),
                    },
                    regions=1,
                )
                block = made.regions[0].blocks.append(*kinds)
                with ir.InsertionPoint(block):
                    found = build(case, *block.arguments)
                    ir.Operation.create("util.return", operands=list(found))
        return str(module)


@dataclass(frozen=True)
class Given:
    """Arguments of a call."""

    rows: list[Array]
    pool: Array
    runs: Integers
    places: Integers
    layer: int

    @property
    def arguments(self) -> list[Any]:
        """As the function takes them."""
        return [*self.rows, self.pool, self.runs, self.places, self.layer]


def draw(case: Case, lengths: Sequence[tuple[int, int]], seed: int = 0, layer: int = -1) -> Given:
    """Runs of so many rows after so many positions, in slots of any order, of which some are
    nobody's. `layer`: -1 is the last."""
    rng = np.random.default_rng(seed)
    counts = np.array([count for count, _ in lengths])
    firsts = np.cumsum(counts) - counts
    runs = np.stack([firsts, counts, [before for _, before in lengths]], axis=1)
    slots = len(lengths) + 2
    places = rng.permutation(slots)[: len(lengths)]
    pool = rng.normal(size=(slots, *case.state)).astype(np.float32)
    rows = case.draw(rng, int(counts.sum()))
    return Given(rows, pool, runs.astype(np.int32), places.astype(np.int32), layer % case.layers)


def expected(case: Case, given: Given) -> tuple[Any, Any]:
    """The result and the pool in float64."""
    pool, found = given.pool.astype(np.float64), []
    for (first, count, before), place in zip(given.runs, given.places, strict=True):
        state = pool[place, given.layer] * (before != 0)
        for row in range(first, first + count):
            state, result = case.step(state, [x[row].astype(np.float64) for x in given.rows])
            found.append(result)
        pool[place, given.layer] = state
    return np.stack(found), pool


def check(case: Case, given: Given, result: Array, pool: Array) -> None:
    """Near float64, and every slot and layer that is not of the call as it was."""
    wanted, wanted_pool = expected(case, given)
    longest = int(given.runs[:, 1].max())
    for found, want in ((result, wanted), (pool, wanted_pool)):
        allowed = 16 * U * (4 + longest) * max(1.0, np.abs(want).max())
        assert np.abs(found - want).max() <= allowed
    touched = np.zeros(given.pool.shape[:2], bool)
    touched[given.places, given.layer] = True
    assert np.array_equal(pool[~touched], given.pool[~touched])


def check_cuts(case: Case, start: int, call: Callable[[Given], tuple[Array, Array]]) -> None:
    """The bits of a run are those of its pieces, in calls of their own, each among runs of other
    sequences, in another slot and layer."""
    rng = np.random.default_rng(start)
    whole = draw(case, [(13, start)], seed=4)
    wanted, pool = call(whole)
    wanted_state = pool[whole.places[0], whole.layer]
    for cuts in ([], [1], [12], [1, 2, 3, 4, 5], [5, 9], range(1, 13)):
        state, found = whole.pool[whole.places[0], whole.layer], []
        for first, last in zip([0, *cuts], [*cuts, 13], strict=True):
            others = [(int(rng.integers(1, 5)), int(rng.integers(3))) for _ in range(3)]
            number = int(rng.integers(4))
            others.insert(number, (last - first, start + first))
            layer = int(rng.integers(case.layers))
            given = draw(case, others, seed=int(rng.integers(1 << 30)), layer=layer)
            own = slice(int(given.runs[number, 0]), int(given.runs[number, :2].sum()))
            for some, rows in zip(given.rows, whole.rows, strict=True):
                some[own] = rows[first:last]
            place = given.places[number], layer
            given.pool[place] = state
            result, pool = call(given)
            found.append(result[own])
            state = pool[place]
        assert np.array_equal(np.concatenate(found), wanted)
        assert np.array_equal(state, wanted_state)
