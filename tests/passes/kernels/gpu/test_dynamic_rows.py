"""Scaled products whose number of rows comes with the call, compiled and run on the simulator.

One program has a function for each case, which is called with several numbers of rows. Elements are
decoded by `mxc.formats.packing`, which has tests of its own; products are compared with numpy.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor
from numpy.typing import NDArray

import mxc
from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.expert_groups import clamped, group_by_expert
from mxc.dialects.generic import element_of, generic, loop_index, shape_of
from mxc.dialects.linalg_ext import gather
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.scaled import scaled_contraction
from mxc.dialects.sizes import dynamic_sizes
from mxc.formats.formats import FORMATS
from mxc.formats.packing import decode_elements, decode_scales
from mxc.formats.reference import dequantize, quantize
from mxc.runtime.session import Model
from mxc.runtime.simulated import load
from mxc.simulator.watch.count import Counter

Array = NDArray[Any]
F4, E2M3, E4M3, E5M2 = "mxfp4", "mxfp6e2m3", "mxfp8e4m3", "mxfp8e5m2"
FLOATS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
#: Rows of a group where rows are sorted by expert.
SLOTS = 16
#: No row, one row, less than a tile, a tile, and the tiles of a few workgroups and of many.
ROWS = (0, 1, 7, 16, 100, 300)


@dataclass(frozen=True)
class Case:
    """A product of [?, k] of type `lhs` by [n, k] of type `rhs`.

    `after`: the epilogue. `experts`: number of weights. Each row chooses one; if rows are
    `grouped`, each group of [?, ?, k] does, and if they are `sorted`, each group of [?, 16, k].
    `source`: type of the floats that the program quantizes to lhs; empty: lhs is an argument.
    """

    name: str
    lhs: str
    rhs: str
    n: int
    k: int
    after: str = ""
    experts: int = 0
    source: str = ""
    grouped: bool = False
    sorted: bool = False


CASES = [
    Case("small", F4, F4, 64, 512),
    Case("mixed", E4M3, E2M3, 52, 1056),
    Case("floats", "bf16", F4, 48, 544),
    Case("wide", "f32", E4M3, 36, 96),
    Case("gated", E4M3, F4, 64, 544, after="gate"),
    Case("added", "bf16", E2M3, 24, 64, after="residual"),
    Case("blocks", F4, F4, 64, 544, after="quantize"),
    Case("experts", E4M3, F4, 40, 160, experts=3),
    Case("groups", "bf16", F4, 64, 544, after="bias of experts", experts=3, grouped=True),
    Case("sorted", F4, F4, 40, 160, after="bias of experts", experts=3, grouped=True, sorted=True),
    Case("quantized", E4M3, F4, 36, 160, source="bf16"),
    Case("quantized_sixes", E2M3, E2M3, 40, 96, source="f32"),
]
#: Two cases have three schedules: for less than 5 rows, for less than 50 (one of them with splits
#: of K), and a ring for more. Groups have one for less than 17 rows, and a ring for more. The case
#: "mixed" has the compiler's choice. All others have one schedule that compiles fast.
SCHEDULES = [
    {"n": n, "k": k, "lhs": lhs, "schedule": [
        {"below": 5, "instruction": 16, "tiles": [1, halves], "waves": [1, 1, 4]},
        {"below": 50, "instruction": 32, **middle},
        {"instruction": 32, "tiles": [1, halves], "waves": waves, "transport": "ring",
         "stages": 3, "k_steps": 2},
    ]}
    for n, k, lhs, halves, waves, middle in (
        (64, 512, F4, 1, [4, 1, 1], {"tiles": [1, 1], "waves": [1, 4, 1], "transport": "ring",
                                     "stages": 2, "k_steps": 2, "splits": 2}),
        (64, 544, E4M3, 2, [1, 4, 1], {"tiles": [1, 2], "waves": [2, 2, 1]}),
    )
] + [
    {"n": 64, "k": 544, "lhs": "bf16", "schedule": [
        {"below": 17, "instruction": 16, "tiles": [1, 2], "waves": [1, 1, 2]},
        {"instruction": 32, "tiles": [1, 2], "waves": [2, 2, 1], "transport": "ring", "stages": 3,
         "k_steps": 1},
    ]}
] + [
    {"n": case.n, "k": case.k, "lhs": case.lhs,
     "schedule": {"instruction": 16, "tiles": [1, 2], "waves": [1, 1, 2]}}
    for case in CASES if case.name not in ("small", "gated", "mixed", "groups")
]  # fmt: skip


def build(case: Case) -> None:
    dynamic = ir.ShapedType.get_dynamic_size()
    byte, f32 = ir.IntegerType.get_signless(8), ir.F32Type.get()
    block = FORMATS[case.rhs].block
    lead = [dynamic]
    if case.experts:
        lead.append(SLOTS if case.sorted else dynamic if case.grouped else 1)

    def packed(rows: list[int], name: str) -> list[ir.Type]:
        blocks = [*rows, case.k // 32]
        return [
            ir.RankedTensorType.get([*blocks, FORMATS[name].block_bytes], byte),
            ir.RankedTensorType.get(blocks, byte),
        ]

    def elements(x: ir.Value, s: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
        e8 = ir.Type.parse("f8E8M0FNU")
        return unpack(x, ir.Type.parse(FORMATS[name].element.mlir)), unpack(s, e8)

    if case.source:
        kinds = [ir.RankedTensorType.get([dynamic, case.k], ir.Type.parse(case.source))]
    elif case.lhs in FLOATS:
        kind = ir.Type.parse(case.lhs)
        kinds = [ir.RankedTensorType.get([*lead, case.k // block, block], kind)]
    else:
        kinds = packed(lead, case.lhs)
    operands = len(kinds)
    outer = [case.experts] if case.experts else []
    kinds += packed([*outer, case.n], case.rhs)
    more = {"gate": [[case.n]], "residual": [[dynamic, case.n], [dynamic]]}.get(case.after, [])
    kinds += [ir.RankedTensorType.get(shape, f32) for shape in more]
    if case.experts:
        kinds.append(ir.RankedTensorType.get([dynamic], ir.IntegerType.get_signless(32)))
    if case.grouped:
        kinds.append(ir.RankedTensorType.get([case.experts, case.n], f32))

    def body(*given: ir.Value) -> Any:
        left, (w, t, *more) = given[:operands], given[operands:]
        right, factors = elements(w, t, case.rhs)
        if case.source:
            x, s = quantize_mx(left[0], case.lhs, "even")
        else:
            x, s = (left[0], None) if case.lhs in FLOATS else elements(left[0], left[1], case.lhs)
        if case.sorted:
            owners, *_ = group_by_expert(more[0], case.experts, SLOTS)
            more = [clamped(owners, case.experts), *more[1:]]
        if case.experts:
            right, factors = gather(right, more[0]), gather(factors, more[0])
        y = scaled_contraction(
            x, right, lhs_scale=s, rhs_scale=factors, batch=1 if case.experts else 0
        )
        if case.after == "quantize":
            return [v if element_of(v) == byte else pack(v) for v in quantize_mx(y, F4, "even")]
        if case.grouped:
            y = add_bias(y, *more)
            return y if case.sorted else gate(y)
        if case.after == "gate":
            return gate(generic([(y, "m n"), (more[0], "n")], "m n", f32, arith.addf))
        if case.after == "residual":
            terms = [(y, "m n"), (more[0], "m n"), (more[1], "m")]
            return generic(terms, "m n", f32, lambda y, r, w: arith.addf(r, arith.mulf(y, w)))
        return y

    func.FuncOp.from_py_func(*kinds, name=case.name)(body)


def add_bias(y: ir.Value, ids: ir.Value, bias: ir.Value) -> ir.Value:
    """Add to the rows of each group the bias of its expert."""

    def add(value: ir.Value, expert: ir.Value) -> ir.Value:
        row = arith.index_cast(ir.IndexType.get(), expert)
        return arith.addf(value, tensor.extract(bias, [row, loop_index("g m n", "n")]))

    return generic([(y, "g m n"), (ids, "g")], "g m n", ir.F32Type.get(), add)


def gate(y: ir.Value) -> ir.Value:
    """Return the left half of the columns times the right half."""
    f32 = ir.F32Type.get()
    *lead, n = shape_of(y)
    kind = ir.RankedTensorType.get([*lead, n // 2], f32)
    steps, first = [1] * (len(lead) + 1), [0] * len(lead)
    halves = [
        tensor.extract_slice(
            kind, y, [], dynamic_sizes(y), [], [*first, at], [*lead, n // 2], steps
        )
        for at in (0, n // 2)
    ]
    loops = "m n" if len(lead) == 1 else "g m n"
    return generic([(half, loops) for half in halves], loops, f32, arith.mulf)


@pytest.fixture(scope="module")
def compiled(watched: Callable[..., Any]) -> Any:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for case in CASES:
                build(case)
        return watched(str(module), SCHEDULES)


def operand(rng: np.random.Generator, shape: list[int], name: str) -> tuple[list[Array], Array]:
    """Draw an operand [.., k]: the arguments that pass it, and its values in float64."""
    if name in FLOATS:
        x = rng.normal(size=shape).astype(FLOATS[name])
        return [x.reshape(*shape[:-1], shape[-1] // 32, 32)], x.astype(np.float64)
    *lead, k = shape
    codes = rng.integers(0, 256, (*lead, FORMATS[name].packed_bytes(k)), dtype=np.uint8)
    if name == E4M3:
        codes[codes & 0x7F == 0x7F] = 0
    scales = rng.integers(117, 137, (*lead, k // 32), dtype=np.uint8)
    values = decode_elements(codes, name).astype(np.float64)
    values *= np.repeat(decode_scales(scales, name), 32, axis=-1)
    blocks = codes.reshape(*lead, k // 32, FORMATS[name].block_bytes)
    return [blocks.view(np.int8), scales.view(np.int8)], values


def test_rows_choose_the_kernel(compiled: Any) -> None:
    """What its name says, on both sides of each bound; each has registers of its own."""
    case, found = CASES[0], {}
    for rows in (0, 4, 5, 49, 50, 300):
        x, _ = operand(np.random.default_rng(0), [rows, case.k], case.lhs)
        w, _ = operand(np.random.default_rng(0), [case.n, case.k], case.rhs)
        compiled.call(case.name, *x, *w)
        found[rows] = compiled.kernel
    names = [kernel.name.rpartition("_from_")[2] for kernel in found.values()]
    assert names == [found[0].name, found[0].name, "5", "5", "50", "50"]
    assert len({kernel.descriptor.lds_bytes for kernel in found.values()}) == 3


GROUPED = next(case for case in CASES if case.grouped)
SORTED = next(case for case in CASES if case.sorted)
each_group = pytest.mark.parametrize(
    ("groups", "rows"), [(1, 16), (3, 16), (5, 7), (2, 64), (3, 65), (0, 16)]
)


@each_group
def test_groups_of_rows_with_an_expert_each(groups: int, rows: int, compiled: Any) -> None:
    """Both numbers come with the call; the rows of a group choose the kernel."""
    given, wanted = groups_of_rows(groups, rows)
    found = compiled.call(GROUPED.name, *given)[0].view(np.float32).reshape(wanted.shape)
    assert np.abs(found - wanted).max(initial=0) <= 2e-6 * np.abs(wanted).max(initial=0)
    if groups:
        assert ("_from_" in compiled.kernel.name) == (rows >= 64)


@each_group
def test_groups_of_rows_on_a_cpu(groups: int, rows: int, on_a_cpu: Model) -> None:
    given, wanted = groups_of_rows(groups, rows)
    found = np.asarray(on_a_cpu.call(GROUPED.name, *given)).reshape(wanted.shape)
    assert np.abs(found - wanted).max(initial=0) <= 2e-6 * np.abs(wanted).max(initial=0)


def test_a_group_without_pairs_ends_at_once(compiled: Any) -> None:
    """Two of four groups have pairs, then all."""
    matrix: list[int] = []
    for counts in ([0, 20, 0], [17, 2, 1]):
        chosen = np.repeat(np.arange(3, dtype=np.int32), counts)
        used = np.repeat(np.arange(3), [-(-count // SLOTS) for count in counts])
        rng = np.random.default_rng(3)
        x, left = operand(rng, [4, SLOTS, SORTED.k], SORTED.lhs)
        w, right = operand(rng, [3, SORTED.n, SORTED.k], SORTED.rhs)
        bias = rng.normal(size=(3, SORTED.n)).astype(np.float32)
        made = compiled.call(SORTED.name, *x, *w, chosen, bias, kernels=2)
        found = made[0].view(np.float32).reshape(4, SLOTS, -1)[: len(used)]
        wanted = left[: len(used)] @ right[used].swapaxes(1, 2) + bias[used][:, None]
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
        counter = Counter()
        load(compiled.artifact, observe=lambda _, counter=counter: counter).call(
            SORTED.name, *x, *w, chosen, bias
        )
        matrix.append(counter.counts.instructions["matrix"])
    assert matrix[0] * 2 == matrix[1]


@pytest.fixture(scope="module")
def on_a_cpu(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("groups")
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            build(GROUPED)
        (folder / "program.mlir").write_text(str(module))
    mxc.compile(folder / "program.mlir", target="cpu", output=folder / "program.mxc")
    report = json.loads((folder / "program.mxc" / "report.json").read_text())
    (product,) = report["matmuls"]
    assert product["kernel"].startswith("mxc_mxfp4_bf16_DxDx64x544_of_3")
    assert product["unfused"] is None
    return mxc.load(folder / "program.mxc")


def groups_of_rows(groups: int, rows: int) -> tuple[list[Array], Array]:
    """Return the arguments of the grouped case, and its expected result."""
    case, rng = GROUPED, np.random.default_rng(rows)
    x, left = operand(rng, [groups, rows, case.k], case.lhs)
    w, right = operand(rng, [case.experts, case.n, case.k], case.rhs)
    ids = rng.integers(0, case.experts, groups, dtype=np.int32)
    wanted = left @ right[ids].swapaxes(1, 2)
    bias = rng.normal(size=(case.experts, case.n)).astype(np.float32)
    bias *= np.abs(wanted).max(initial=0)
    wanted += bias[ids][:, None]
    return [*x, *w, ids, bias], wanted[..., : case.n // 2] * wanted[..., case.n // 2 :]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.grouped], ids=lambda case: case.name
)
def test_products(case: Case, rows: int, compiled: Any) -> None:
    rng = np.random.default_rng(rows)
    if case.source:
        floats = rng.normal(size=(rows, case.k)).astype(FLOATS[case.source])
        blocks = quantize(floats, case.lhs, recipe="even")
        x, left = [floats], dequantize(blocks).astype(np.float64)
    else:
        x, left = operand(rng, [rows, *([1] if case.experts else []), case.k], case.lhs)
    w, right = operand(rng, [*([case.experts] if case.experts else []), case.n, case.k], case.rhs)
    more: list[Array] = []
    if case.experts:
        ids = rng.integers(0, case.experts, rows, dtype=np.int32)
        wanted, more = left @ right[ids].swapaxes(1, 2), [ids]
    else:
        wanted = left @ right.T
    scale = np.abs(wanted).max(initial=0)
    if case.after == "gate":
        more = [(rng.normal(size=case.n) * scale).astype(np.float32)]
        wanted += more[0]
        wanted = wanted[:, : case.n // 2] * wanted[:, case.n // 2 :]
    if case.after == "residual":
        more = [
            (rng.normal(size=wanted.shape) * scale).astype(np.float32),
            rng.normal(size=rows).astype(np.float32),
        ]
        wanted = more[0] + wanted * more[1][:, None]
    made = compiled.call(case.name, *x, *w, *more, kernels=2 if case.source else 1)
    if case.after == "quantize":
        blocks = quantize(wanted.astype(np.float32), F4, recipe="even")
        assert (made[1] == blocks.scales).all()
        same = made[0].reshape(blocks.elements.shape) == blocks.elements
        # The last bits of sums may differ, so that ties may round to another number.
        assert (~same).sum() <= same.size // 100
        return
    found = made[0].view(np.float32).reshape(wanted.shape)
    error = np.abs(found - wanted).max(initial=0)
    assert error <= 2e-6 * np.abs(wanted).max(initial=0)
