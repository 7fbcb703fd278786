"""Cases of recurrences over the rows of several runs: programs, random inputs, float64 results.

Error bound: a row adds the product of a key and a change to the state, and its result is a sum of
products over the key depth. Keys have length one and the delta rule does not let the state grow, so
all sums are as large as the values. `check` allows 16 roundings of the largest value for each row.
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
    """A delta rule with `key_heads` heads of queries and keys of `key_depth` elements, and `heads`
    heads of values of `depth` elements.

    `each`: whether every row of a state has a decay of its own, instead of one for each head.
    """

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
        """Draw `count` rows of queries, keys, values, decay and beta."""
        q, k, v, decay, beta = (rng.normal(size=(count, *shape)) for shape in self.rows)
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        made = [q, k, v, np.exp(-np.abs(decay)), 1 / (1 + np.exp(-beta))]
        return [each.astype(np.float32) for each in made]

    def step(self, state: Any, row: Sequence[Any]) -> tuple[Any, Any]:
        """Return the state after a row, and the result of the row, in float64."""
        q, k, v, decay, beta = row
        q, k = (np.repeat(x, self.heads // self.key_heads, axis=0) for x in (q, k))
        state = state * decay.reshape(self.heads, -1, 1)
        change = beta[:, None] * (v - np.einsum("hk,hkv->hv", k, state))
        state = state + k[:, :, None] * change[:, None]
        return state, np.einsum("hk,hkv->hv", q, state)


@dataclass(frozen=True)
class Convolution:
    """A short convolution of `columns` columns over `width` rows. `weights`: their type."""

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
        """The weights in f32; every type of weights holds them exactly."""
        rng = np.random.default_rng(self.columns)
        drawn = rng.integers(-64, 65, size=(self.columns, self.width))
        return (drawn / 64).astype(np.float32)

    @property
    def stored(self) -> NDArray[Any]:
        """The weights in the type `weights`."""
        types = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
        return self.factors.astype(types[self.weights])

    def draw(self, rng: np.random.Generator, count: int) -> list[Array]:
        """Draw `count` rows."""
        return [rng.normal(size=(count, self.columns)).astype(np.float32)]

    def step(self, state: Any, row: Sequence[Any]) -> tuple[Any, Any]:
        """Return the state after a row, and the result of the row, in float64."""
        whole = np.concatenate([state, row[0][None]])
        return whole[1:], (whole * self.factors.T).sum(axis=0)


Case = Rule | Convolution


def program(cases: Sequence[Case]) -> str:
    """Return a program with a function for each case: rows, pool, runs, places, layer -> result,
    pool."""
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
    """Arguments of a call. `places`: the slot of the pool that each run has."""

    rows: list[Array]
    pool: Array
    runs: Integers
    places: Integers
    layer: int

    @property
    def arguments(self) -> list[Any]:
        """The arguments of the function, in their order."""
        return [*self.rows, self.pool, self.runs, self.places, self.layer]


def draw(case: Case, lengths: Sequence[tuple[int, int]], seed: int = 0, layer: int = -1) -> Given:
    """Draw a call. Its runs are in random slots of the pool; two slots belong to no run.

    `lengths`: for each run, its rows and the positions before them. `layer`: -1 is the last one.
    """
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
    """Return the result and the pool after the call, in float64."""
    pool, found = given.pool.astype(np.float64), []
    for (first, count, before), place in zip(given.runs, given.places, strict=True):
        state = pool[place, given.layer] * (before != 0)
        for row in range(first, first + count):
            state, result = case.step(state, [x[row].astype(np.float64) for x in given.rows])
            found.append(result)
        pool[place, given.layer] = state
    return np.stack(found), pool


def check(case: Case, given: Given, result: Array, pool: Array) -> None:
    """Assert that result and pool are near float64, and that slots and layers which are not part of
    the call have not changed."""
    wanted, wanted_pool = expected(case, given)
    longest = int(given.runs[:, 1].max())
    for found, want in ((result, wanted), (pool, wanted_pool)):
        allowed = 16 * U * (4 + longest) * max(1.0, np.abs(want).max())
        assert np.abs(found - want).max() <= allowed
    touched = np.zeros(given.pool.shape[:2], bool)
    touched[given.places, given.layer] = True
    assert np.array_equal(pool[~touched], given.pool[~touched])


def check_cuts(case: Case, start: int, call: Callable[[Given], tuple[Array, Array]]) -> None:
    """Assert that a run has the same bits if it is cut into pieces.

    Each piece is computed by a call of its own, among runs of other sequences, in another slot and
    layer. `start`: positions before the run. `call`: computes the result and the pool.
    """
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
