"""Products whose columns are queries, keys and values, rotated and written to pages by one kernel.

Programs are compiled with several schedules, by the rows of a call, and run on the simulator. A
program whose product has another reader needs two kernels, which must give the same bits. Numpy
checks its product, test_rotary_writes.py its rotation. Waves of 32 are interpreted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func
from numpy.typing import NDArray

from mxc.artifact.pages import stored_positions
from mxc.compiler.models.blocks.primitives import parts_of
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.parameters import Parameters
from mxc.dialects.rotary_writes import rotary_write
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import FORMATS
from mxc.formats.reference import quantize
from mxc.passes.kernels.gpu.dense.chunks import Chunks
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels
from tests.passes.kernels.gpu.test_dynamic_rows import E4M3, F4, FLOATS, operand

Array = NDArray[Any]
#: Number of pages, entries of a page, the entry that holds keys, and positions of a page.
PAGES, ENTRIES, ENTRY, POSITIONS = 4, 6, 2, 32
ROWS = (0, 1, 7, 33, 70)


@dataclass(frozen=True)
class Case:
    """A product of [?, k] of type `lhs` by weights of type `rhs`.

    Its columns are `queries` + 2 `heads` heads of `depth` elements. `pages`: the format in which
    keys and values are stored. `pairs`: rotary pairs of a head that are rotated; 0: all. `apart`:
    whether the product has another reader. `loaded`: whether scaled weights are a parameter, in
    panels.
    """

    name: str
    lhs: str
    rhs: str
    queries: int
    heads: int
    depth: int
    k: int
    pages: str = "bf16"
    pairs: int = 0
    apart: bool = False
    loaded: bool = False

    @property
    def in_blocks(self) -> bool:
        """Whether pages have blocks with scales."""
        return self.pages.startswith("mx")

    @property
    def columns(self) -> list[int]:
        """Numbers of columns of queries, of keys and of values."""
        return [count * self.depth for count in (self.queries, self.heads, self.heads)]


CASES = [
    Case("dense", "bf16", "bf16", 3, 1, 64, 288),
    Case("wide", "f32", "bf16", 1, 2, 128, 96, pages="f16"),
    Case("blocks", F4, F4, 2, 1, 64, 544, pages="f32"),
    Case("floats", "bf16", E4M3, 4, 2, 64, 512),
    Case("dense_mxint8", "bf16", "bf16", 3, 1, 64, 288, pages="mxint8"),
    Case("wide_mxfp8", "f32", "bf16", 1, 2, 128, 96, pages="mxfp8e4m3"),
    Case("blocks_mxint8", F4, F4, 2, 1, 64, 544, pages="mxint8"),
    Case("floats_mxfp8", "bf16", E4M3, 4, 2, 64, 512, pages="mxfp8e4m3"),
    Case("dense_fp8", "bf16", "bf16", 3, 1, 64, 288, pages="fp8e4m3"),
]
#: Cases that the product's kernel does not rotate, so that a kernel of rows does: part of a head is
#: rotated, or heads do not fill tiles.
LEFT = [
    replace(CASES[0], name="partial", pairs=16),
    replace(CASES[0], name="narrow", depth=32),
]


def schedules(target: str, cases: list[Case]) -> Iterator[dict[str, Any]]:
    """Yield the schedules of each case: streams with several waves along K and with one, and a ring
    if the target has one. At K = 512 the ring has two splits, and a stream takes 1000 rows or more.
    """
    small, ring = {"instruction": 16}, {"transport": "ring", "stages": 3}
    for case in cases:
        dense, least = case.rhs in FLOATS, 4 if case.in_blocks else 2
        along = Chunks.of(case.k // 32).count if dense else 2
        found: list[dict[str, Any]] = [
            {**small, "below": 5, "tiles": [1, least], "waves": [1, 1, along]},
            {**small, "tiles": [1, 4], "waves": [1, 2, 1]},
        ]
        if target == "gfx950" and case.lhs != "f32":
            found[-1]["below"] = 50
            size = 16 if dense else 32
            waves = [1, 4, 1] if dense else [2, 2, 1] if case.lhs in FLOATS else [4, 1, 1]
            steps = 2 if dense or case.lhs not in FLOATS else 1
            tiles = [1, least if dense else 2]
            found.append(
                {**ring, "instruction": size, "tiles": tiles, "waves": waves, "k_steps": steps}
            )
        if target == "gfx942" and not dense:
            found[-1]["below"] = 50
            found.append(
                {
                    "instruction": 32,
                    "tiles": [1, 2],
                    "waves": [2, 2, 1],
                    "transport": "decoded",
                    "stages": 2,
                    "k_steps": 1,
                }
            )
        if case.k == 512 and "below" in found[-2]:
            found[-1] |= {"below": 1000, "splits": 2}
            found.append({**small, "tiles": [1, 4], "waves": [1, 2, 1]})
        yield {"n": sum(case.columns), "k": case.k, "schedule": found}


def build(case: Case, parameters: Parameters) -> None:
    size, f32 = ir.ShapedType.get_dynamic_size(), ir.F32Type.get()
    i8, i32 = (ir.IntegerType.get_signless(bits) for bits in (8, 32))

    def packed(rows: int, name: str) -> list[ir.Type]:
        blocks = [rows, case.k // 32]
        bytes_of = [*blocks, FORMATS[name].block_bytes]
        return [ir.RankedTensorType.get(shape, i8) for shape in (bytes_of, blocks)]

    whole, pairs = sum(case.columns), case.pairs or case.depth // 2
    if case.rhs in FLOATS:
        kinds = [ir.RankedTensorType.get([size, case.k], ir.Type.parse(case.lhs))]
    elif case.lhs in FLOATS:
        kinds = [ir.RankedTensorType.get([size, case.k // 32, 32], ir.Type.parse(case.lhs))]
    else:
        kinds = packed(size, case.lhs)
    operands = len(kinds)
    kinds += [] if case.rhs in FLOATS else packed(whole, case.rhs)[case.loaded :]
    kinds += [ir.RankedTensorType.get(shape, f32) for shape in ([whole], *[[size, pairs]] * 2)]
    kinds.append(ir.RankedTensorType.get([size], i32))
    kinds.append(ir.RankedTensorType.get([size, *pool_of(case)], ir.Type.parse(stored(case)[0])))

    def elements(x: ir.Value, s: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
        element = ir.Type.parse(FORMATS[name].element.mlir)
        return unpack(x, element), unpack(s, ir.Type.parse("f8E8M0FNU"))

    def wide(value: ir.Value) -> ir.Value:
        return value if value.type == f32 else arith.extf(f32, value)

    def multiply(a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        return arith.addf(total, arith.mulf(wide(a), wide(b)))

    def body(*given: ir.Value) -> list[ir.Value]:
        left, (*right, bias, cos, sin, slots, pool) = given[:operands], given[operands:]
        if case.rhs in FLOATS:
            w = parameters.load(weight_name(case), [whole, case.k], ir.Type.parse(case.rhs))
            y = generic([(left[0], "m k"), (w, "n k")], "m n", f32, multiply)
        else:
            x, s = (left[0], None) if case.lhs in FLOATS else elements(left[0], left[1], case.lhs)
            if case.loaded:
                shape = ir.RankedTensorType(packed(whole, case.rhs)[0]).shape
                right.insert(0, parameters.load(weight_name(case), shape, i8))
            w, t = elements(right[0], right[1], case.rhs)
            y = scaled_contraction(x, w, lhs_scale=s, rhs_scale=t)
        y = generic([(y, "m n"), (bias, "n")], "m n", f32, arith.addf)
        q, k, v = parts_of(y, case.columns)
        format = None if stored(case)[0] != "i8" else case.pages
        found = rotary_write(
            q, k, v, (cos, sin), slots, pool, ENTRY, distance=case.depth // 2, format=format
        )
        return [*found, *([y] if case.apart else [])]

    func.FuncOp.from_py_func(*kinds, name=case.name)(body)


def weight_name(case: Case) -> str:
    """Return the name of the weights of a case; cases with the same weights share it."""
    return f"w_{sum(case.columns)}_{case.k}"


def stored(case: Case) -> tuple[str, Any]:
    """Return the type of a pool's elements, in MLIR and in numpy."""
    return (case.pages, FLOATS[case.pages]) if case.pages in FLOATS else ("i8", np.int8)


def pool_of(case: Case) -> list[int]:
    """Return the shape of a page."""
    positions = stored_positions(None if case.pages in FLOATS else case.pages, POSITIONS)
    return [ENTRIES, positions, case.heads, case.depth]


def weights(case: Case) -> Array:
    shape = (sum(case.columns), case.k)
    return np.random.default_rng(case.k).normal(size=shape).astype(FLOATS[case.rhs])


def program(*cases: Case, run: bool = True) -> str:
    """Return a program with a function for each case. Dense weights are constants; if the program
    is not `run`, they are parameters, because constants would be 336 MB of text."""
    drawn = {weight_name(case): weights(case) for case in cases if run and case.rhs in FLOATS}
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            parameters = Parameters(module)
            for case in cases:
                build(case, parameters)
        for view in module.body.operations:
            if run and view.operation.name == "util.global":
                name = ir.StringAttr(view.operation.attributes["sym_name"]).value
                kind = ir.TypeAttr(view.operation.attributes["type"]).value
                value = ir.DenseElementsAttr.get(drawn[name].view(np.uint16), type=kind)
                view.operation.attributes["initial_value"] = value
        return str(module)


def draw(case: Case, rows: int) -> tuple[list[Array], Array]:
    """Draw the arguments of a call; return them, and the product with its bias. A row is the same
    in all calls."""
    rng = np.random.default_rng(case.depth)
    most, whole, pairs = max(ROWS), sum(case.columns), case.pairs or case.depth // 2
    x, left = operand(rng, [most, case.k], case.lhs)
    if case.rhs in FLOATS:
        w: list[Array] = []
        x, right = [x[0].reshape(most, case.k)], weights(case).astype(np.float64)
    else:
        w, right = operand(rng, [whole, case.k], case.rhs)
    product = left @ right.T
    bias = (rng.normal(size=whole) * np.abs(product).max()).astype(np.float32)
    tables = [rng.normal(size=(most, pairs)).astype(np.float32) for _ in range(2)]
    slots = rng.permutation(PAGES * POSITIONS)[:most].astype(np.int32)
    pool = rng.integers(-9, 9, (PAGES, *pool_of(case))).astype(stored(case)[1])
    by_rows = [each[:rows] for each in (*x, *tables, slots)]
    *x, cos, sin, slots = by_rows
    return [*x, *w, bias, cos, sin, slots, pool], (product + bias)[:rows]


def rotated(case: Case, y: Array, given: list[Array]) -> tuple[Array, Array]:
    """Rotate the product `y`: return its queries, and the pool after keys and values are written,
    both in the precision of `y`."""
    cos, sin, slots, pool = given[-4:]
    half = case.depth // 2
    heads = y.reshape(len(y), case.queries + 2 * case.heads, case.depth)
    turned = case.queries + case.heads
    a, b = heads[:, :turned, :half], heads[:, :turned, half:]
    c, s = cos[:, None].astype(y.dtype), sin[:, None].astype(y.dtype)
    whole = np.concatenate([a * c - b * s, b * c + a * s], axis=2)
    wanted = pool[:, :, :POSITIONS].astype(y.dtype)
    page, at = slots // POSITIONS, slots % POSITIONS
    wanted[page, ENTRY, at] = whole[:, case.queries :]
    wanted[page, ENTRY + 1, at] = heads[:, turned:]
    return whole[:, : case.queries].reshape(len(y), case.columns[0]), wanted


def require_packed(
    case: Case, y: Array, given: list[Array], found: Array, *, exact: bool = True
) -> None:
    """Assert that a packed pool is that of numpy, apart from at most 1 % of its keys.

    Sums of keys may be rounded differently in f32, so that a few bytes differ. `exact`: whether `y`
    has the bits of the product; if not, a few values may differ, too.
    """
    slots, pool = given[-2:]
    page, at = slots // POSITIONS, slots % POSITIONS
    wanted, written = pool.copy(), rotated(case, y, given)[1]
    for entry in (ENTRY, ENTRY + 1):
        rows = written[page, entry, at].astype(np.float32)
        if not case.in_blocks:
            codes = np.clip(rows, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            wanted[page, entry, at] = codes.view(np.int8)
            continue
        blocks = quantize(rows, case.pages, recipe="rceil")
        wanted[page, entry, at] = blocks.elements.view(np.int8)
        # Scales [N, V, D / 32, B] follow the positions of the entry.
        scales = np.ascontiguousarray(wanted[:, entry, POSITIONS:])
        scales = scales.reshape(len(pool), case.heads, case.depth // 32, POSITIONS)
        scales[page, :, :, at] = blocks.scales.view(np.int8)
        wanted[:, entry, POSITIONS:] = scales.reshape(wanted[:, entry, POSITIONS:].shape)
    differ = found != wanted
    assert not np.delete(differ, [ENTRY] if exact else [ENTRY, ENTRY + 1], axis=1).any()
    assert differ.sum() <= 0.01 * slots.size * case.heads * case.depth


@pytest.fixture(scope="module", params=["gfx950", "gfx942"])
def compiled(request: pytest.FixtureRequest, watched: Callable[..., Any]) -> dict[bool, Any]:
    """Compile each case alone and with another reader of the product. Cases with pages in blocks
    are a program of their own, because they have other schedules for the same product."""
    found = {}
    for in_blocks in (False, True):
        cases = [case for case in CASES if case.in_blocks == in_blocks]
        both = [
            replace(case, name=case.name + "_apart" * apart, apart=apart)
            for case in cases
            for apart in (False, True)
        ]
        chosen = {(each["n"], each["k"]): each for each in schedules(request.param, cases)}
        found[in_blocks] = watched(program(*both), list(chosen.values()), request.param)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_heads_are_rotated_by_the_kernel_of_the_product(
    case: Case, compiled: dict[bool, Any]
) -> None:
    kernels = set()
    for rows in ROWS:
        given, y = draw(case, rows)
        made = compiled[case.in_blocks]
        found = made.call(case.name, *given[:-1], given[-1].copy())
        assert given[-1].any()
        kernels.add(made.kernel.name)
        *others, product = made.call(f"{case.name}_apart", *given[:-1], given[-1].copy(), kernels=2)
        for one, other in zip(found, others, strict=True):
            np.testing.assert_array_equal(one, other)
        product = product.view(np.float32).reshape(y.shape)
        assert np.abs(product - y).max(initial=0) <= 2e-6 * np.abs(y).max(initial=0)
        asked, pool = rotated(case, product, given)
        np.testing.assert_allclose(
            found[0].view(np.float32).reshape(asked.shape), asked, rtol=1e-5,
            atol=1e-6 * np.abs(y).max(initial=1),
        )  # fmt: skip
        if stored(case)[0] == "i8":
            require_packed(case, product, given, found[1].view(np.int8).reshape(given[-1].shape))
            continue
        kind = stored(case)[1]
        written = found[1].view(kind).reshape(pool.shape).astype(np.float32)
        # A sum that is rounded differently in f32 may become the adjacent number of 16 bits.
        most = 2**-7 if kind == ml_dtypes.bfloat16 else 2**-10
        np.testing.assert_allclose(written, pool, rtol=most, atol=1e-6 * np.abs(y).max(initial=1))
    assert len(kernels) == len({name.partition("_from_")[2] for name in kernels}) > 1


@pytest.mark.parametrize(
    ("target", "case"),
    [
        ("gfx942", Case("gpt_oss", "bf16", F4, 64, 8, 64, 2880, pages="mxint8", loaded=True)),
        ("gfx942", Case("llama_f4", F4, F4, 64, 8, 128, 4096, pages="mxfp8e4m3", loaded=True)),
        ("gfx1201", Case("gpt_oss", "bf16", "bf16", 64, 8, 64, 2880)),
        ("gfx1151", Case("llama", "bf16", "bf16", 64, 8, 128, 8192, pages="mxint8")),
        ("gfx1151", Case("llama_f4", F4, F4, 64, 8, 128, 8192, pages="mxint8")),
        ("gfx1151", Case("llama_f4", F4, F4, 64, 8, 128, 8192, pages="mxint8", loaded=True)),
        ("gfx1250", Case("llama_f4", F4, F4, 64, 8, 128, 8192, pages="mxint8", loaded=True)),
        ("gfx1201", Case("llama", "bf16", F4, 64, 8, 128, 8192, pages="mxint8", loaded=True)),
    ],
)
def test_heads_of_models_fit_in_registers(
    target: str, case: Case, resources: Callable[[str, str], dict[str, Any]]
) -> None:
    """Sums of five chunks of K in one wave; four tiles of columns, of which a block has two."""
    found = resources(program(case, run=False), target)
    assert found
    assert not [name for name, use in found.items() if use.spills or use.scratch_bytes]


@pytest.mark.parametrize("case", LEFT, ids=lambda case: case.name)
def test_other_heads_have_a_kernel_of_their_own(case: Case, watched: Callable[..., Any]) -> None:
    given, _ = draw(case, 3)
    made = watched(program(case))
    made.call(case.name, *given, kernels=2)
    assert made.kernel.name.startswith("mxc_rotary_write_")


@pytest.mark.parametrize("pages", ["bf16", "mxint8", "mxfp8e4m3", "fp8e4m3"])
@pytest.mark.parametrize("target", ["gfx1201", "gfx1151", "gfx1250"])
def test_waves_of_32(target: str, pages: str) -> None:
    """The same, and a zero for each query of each row."""
    case, rows = replace(CASES[3], pages=pages), 7
    given, y = draw(case, rows)
    asked, zeros = (
        np.full((rows, case.columns[0]), np.nan, np.float32),
        np.full((rows, case.queries), -1),
    )
    zeros = zeros.astype(np.int32)
    with new_context():
        module = with_kernels(program(case), target)
        buffers = [
            np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (*given, asked, zeros)
        ]
        lane_interpreter.run(module, buffers, (ENTRY, PAGES, rows))
    assert not zeros.any()
    wanted, pool = rotated(case, y, given)
    most = 1e-5 * np.abs(y).max()
    np.testing.assert_allclose(asked, wanted, atol=most)
    if stored(case)[0] == "i8":
        found = buffers[-3].view(np.int8).reshape(given[-1].shape)
        require_packed(case, y, given, found, exact=False)
        return
    written = buffers[-3].view(stored(case)[1]).reshape(pool.shape).astype(np.float64)
    np.testing.assert_allclose(written, pool, rtol=2**-7, atol=most)
