"""Decoding and dot products of every instruction set that this CPU can run, one by one.

Each of these operations of an instruction set is a kernel of its own here: it reads a panel, or
operands, and stores the results. All codes of all formats are decoded, also NaN and infinities, at
every place of a block. The values of codes are those of formats/formats.py, which another test
compares with ml_dtypes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import vector
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.packing.panels import to_panels
from mxc.dialects.context import new_context
from mxc.formats.formats import BlockFormat
from mxc.formats.packing import pack_elements
from mxc.formats.panels import PANEL
from mxc.passes.kernels.cpu.elements import ELEMENTS, CodeElements, Elements
from mxc.passes.kernels.cpu.isa import ISAS, Isa, Kind, best_isa
from mxc.passes.kernels.cpu.weights import RegisterWeights
from mxc.passes.kernels.executables import dispatch, executable
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import bitcast, f32, i8, i32, index, load, loop
from mxc.runtime.device import open_device
from mxc.targets.target import TARGETS, target

HOST = iree.resolve(target("cpu"))
#: A CPU for each instruction set.
CPU_OF = {
    "avx512-bf16": "znver4",
    "avx512-bf16-bw": "cooperlake",
    "avx512-vnni": "icelake-server",
    "avx512-vnni-bw": "cascadelake",
    "avx512": "x86-64-v4",
    "avx2-vnni": "alderlake",
    "avx2": "x86-64-v3",
    "portable": "x86-64",
    "neon-bf16": "neoverse-n2",
    "neon-dotprod": "neoverse-n1",
    "neon": "generic",
}
RECORDS = {name: target(f"cpu:{cpu}") for name, cpu in CPU_OF.items()}
#: The sets that this machine can run.
HERE = [
    name
    for name, record in RECORDS.items()
    if record.architecture == HOST.architecture and set(record.features) <= set(HOST.features)
]
each_set = pytest.mark.parametrize("runner", HERE, indirect=True)

#: Blocks of a panel, which has 16 x 32 times as many codes: each of 256 codes is at each of the 32
#: places of a block about twice.
BLOCKS = 32


#: Every type of weights; "by 16": with a scale for each half of a block.
TYPES: dict[str, Elements] = ELEMENTS | {
    f"{name} by 16": replace(ELEMENTS[name], block=BLOCK // 2) for name in ("f4E2M1FN", "bf16")
}


def kinds_of(isa: Isa, name: str) -> list[Kind]:
    """Return the kinds of dot products for which an instruction set decodes a type."""
    elements = TYPES[name]
    return [k for k in elements.kinds if k in isa.kinds and isa.decodes(elements.bits, k)]


@dataclass(frozen=True)
class Word:
    """A kernel of one operation of an instruction set. `buffers`: types of its arguments."""

    name: str
    buffers: Callable[[], list[ir.Type]]
    body: Callable[..., None]


def decoding(isa: Isa, name: str, kind: Kind) -> Word:
    """Return a kernel that decodes a panel to i8 [blocks, registers, steps, 4 * lanes]."""
    weights = RegisterWeights(TYPES[name], kind)
    registers, steps = PANEL // isa.lanes, len(weights.elements.order(kind))
    blocks = BLOCKS * BLOCK // weights.elements.block

    def buffers() -> list[ir.Type]:
        panel = weights.buffers(0, 1, blocks)[0].memref
        return [panel, ir.MemRefType.get([blocks, registers, steps, 4 * isa.lanes], i8())]

    def body(panel: ir.Value, result: ir.Value) -> None:
        with (
            loop(index(0), index(blocks), index(1)) as (block, _, _),
            loop(index(0), index(registers), index(1)) as (register, _, _),
        ):
            column = weights.column(isa, [], register)
            for step, found in enumerate(weights.steps(isa, panel, column, block, None)):
                at = [block, register, index(step), index(0)]
                vector.store(bitcast(found, i8(), 4 * isa.lanes), result, at)

    return Word(f"{name}_{kind}", buffers, body)


def multiplying(isa: Isa, kind: Kind) -> Word:
    """Return a kernel of dot products: total, weights, activations -> total, each the bits of
    registers as i32 [n, lanes]."""
    size = 64
    cast: dict[Kind, Callable[[ir.Value], ir.Value]] = {
        "quads": lambda v: bitcast(v, i8(), 4 * isa.lanes),
        "pairs": lambda v: bitcast(v, ir.BF16Type.get(), 2 * isa.lanes),
        "floats": lambda v: bitcast(v, f32(), isa.lanes),
    }

    def body(total: ir.Value, weight: ir.Value, one: ir.Value, result: ir.Value) -> None:
        with loop(index(0), index(size), index(1)) as (row, _, _):
            begun, a, b = (load(v, [row, index(0)], i32(), isa.lanes) for v in (total, weight, one))
            begun = begun if kind == "quads" else bitcast(begun, f32(), isa.lanes)
            dots = {"quads": isa.dot_quads, "pairs": isa.dot_pairs}
            if kind == "floats":
                found = isa.multiply_add(cast[kind](a), cast[kind](b), begun)
            else:
                found = dots[kind](begun, cast[kind](a), cast[kind](b))
            vector.store(bitcast(found, i32(), isa.lanes), result, [row, index(0)])

    def buffers() -> list[ir.Type]:
        return [ir.MemRefType.get([size, isa.lanes], i32())] * 4

    return Word(f"dot_{kind}", buffers, body)


def program(words: Sequence[Word]) -> bytes:
    """Return a program with a function for each word, which has its name."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for word in words:
                types = word.buffers()
                executable(f"k_{word.name}", types, lambda _: [1], word.body)
                shapes = [ir.MemRefType(kind) for kind in types]
                *inputs, result = (
                    ir.RankedTensorType.get(kind.shape, kind.element_type) for kind in shapes
                )
                function = ir.Operation.create(
                    "util.func",
                    attributes={
                        "sym_name": ir.StringAttr.get(word.name),
                        "sym_visibility": ir.StringAttr.get("public"),
                        "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, [result])),
                    },
                    regions=1,
                )
                block = function.regions[0].blocks.append(*inputs)
                with ir.InsertionPoint(block):
                    found = dispatch(f"k_{word.name}", list(block.arguments), [result]).results[0]
                    ir.Operation.create("util.return", operands=[found])
        return str(module).encode()


@dataclass(frozen=True)
class Runner:
    """The words of an instruction set, ready to be called."""

    isa: Isa
    module: rt.VmModule
    context: rt.VmContext
    device: Any

    def call(self, name: str, *inputs: NDArray[Any]) -> NDArray[Any]:
        entry = rt.FunctionInvoker(self.context, self.device, self.module.lookup_function(name))
        return np.array(entry(*inputs).to_host())


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    name = request.param
    isa, file = ISAS[name], tmp_path_factory.mktemp(name) / "m.vmfb"
    words = [decoding(isa, each, kind) for each in TYPES for kind in kinds_of(isa, each)]
    compile_words([*words, *(multiplying(isa, kind) for kind in isa.kinds)], name, file)
    device, instance = open_device("local-task", 1, "test"), rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(file))
    context = rt.VmContext(instance, [rt.create_hal_module(instance, device), module])
    return Runner(isa, module, context, device)


def compile_words(words: Sequence[Word], isa: str, file: Path) -> None:
    compiler = iree.Compiler(RECORDS[isa], program(words))
    for phase in iree.PHASES:
        compiler.run_to(phase)
    compiler.write_module(file)


def panel(elements: Elements) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Draw a panel: its bytes in the layout of kernels, and its values [column, block, k]."""
    rng = np.random.default_rng(7)
    shape = (PANEL, BLOCKS * BLOCK // elements.block, elements.block)
    if isinstance(elements, CodeElements):
        element = elements.element
        codes = rng.integers(0, 1 << element.bits, shape, dtype=np.uint8)
        values = element.values[codes]
        packed = pack_elements(codes, BlockFormat(element.name, element))
    else:
        dtype = ml_dtypes.bfloat16 if elements.type == "bf16" else np.float32
        rows = rng.normal(size=shape).astype(dtype)
        values, packed = rows.astype(np.float32), rows.view(np.uint8)
    layout = RegisterWeights(elements, "floats").layouts[0]
    row = packed.size // PANEL
    data = to_panels(packed.reshape(-1), PANEL, row, layout)
    return data.view(np.int8).reshape(1, shape[1], elements.units, 4 * PANEL), values


@each_set
def test_every_code_is_its_value(runner: Runner) -> None:
    isa = runner.isa
    for name, elements in TYPES.items():
        for kind in kinds_of(isa, name):
            data, values = panel(elements)
            found = runner.call(f"{name}_{kind}", data)
            types = {"pairs": ml_dtypes.bfloat16, "floats": np.float32}
            quads = np.int8 if isa.signed else np.uint8
            found = found.view(types.get(kind, quads)).astype(np.float32)
            # [block, register, step, lane, element] -> [register and lane, block, step, element]
            order = np.array(elements.order(kind))
            blocks = values.shape[1]
            found = found.reshape(blocks, -1, len(order), isa.lanes, order.shape[1])
            found = found.transpose(1, 3, 0, 2, 4).reshape(PANEL, blocks, *order.shape)
            if kind == "quads":
                found = (found - elements.offset(isa)) * elements.unit
            np.testing.assert_array_equal(found, values[:, :, order], f"{name} as {kind}")


@each_set
def test_quads_are_exact_at_their_largest(runner: Runner) -> None:
    """For weights of every format that the set takes as quads."""
    isa, rng = runner.isa, np.random.default_rng(3)
    if "quads" not in isa.kinds:
        assert not [name for name in TYPES if "quads" in kinds_of(isa, name)]
        return
    names = [name for name in TYPES if "quads" in kinds_of(isa, name)]
    assert {"f4E2M1FN", "f6E2M3FN"} <= set(names)
    for name in names:
        elements = TYPES[name]
        assert isinstance(elements, CodeElements)
        values = elements.element.values
        low, high = (f(values) / elements.unit + elements.offset(isa) for f in (np.min, np.max))
        weights = rng.integers(int(low), int(high) + 1, (64, isa.lanes, 4))
        ones = rng.integers(-128, 128, weights.shape)
        weights[:8], ones[:8] = high, rng.choice([-128, 127], (8, isa.lanes, 1))
        weights[8:16], ones[8:16] = low, rng.choice([-128, 127], (8, isa.lanes, 1))
        total = rng.integers(-(2**20), 2**20, (64, isa.lanes), dtype=np.int32)
        found = runner.call("dot_quads", total, packed(weights), packed(ones))
        np.testing.assert_array_equal(found, total + (weights * ones).sum(axis=2), name)


def packed(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """Pack bytes, four in each lane."""
    return values.astype(np.uint8).view(np.int32)[..., 0]


@each_set
def test_floats_and_pairs_are_summed(runner: Runner) -> None:
    """A sum of numbers of few bits is exact; others are off by the roundings of its terms."""
    isa, rng = runner.isa, np.random.default_rng(5)
    widths: dict[Kind, tuple[Any, int]] = {
        "floats": (np.float32, 1),
        "pairs": (ml_dtypes.bfloat16, 2),
    }
    for kind in [kind for kind in isa.kinds if kind != "quads"]:
        dtype, width = widths[kind]
        total = rng.integers(-99, 99, (64, isa.lanes)).astype(np.float32)
        weights, ones = (
            rng.integers(-99, 99, (64, isa.lanes * width)).astype(np.float32) for _ in range(2)
        )
        for scale in (1.0, 1 / 3):
            a, b = ((v * scale).astype(dtype) for v in (weights, ones))
            words = [v.view(np.int32) for v in (total, a, b)]
            found = runner.call(f"dot_{kind}", *words).view(np.float32)
            terms = a.astype(np.float64) * b.astype(np.float64)
            terms = np.stack([total, *np.moveaxis(terms.reshape(64, isa.lanes, -1), 2, 0)])
            error = np.abs(found - terms.sum(axis=0))
            allowed = 0 if scale == 1.0 else 2.0**-22 * np.abs(terms).sum(axis=0)
            assert (error <= allowed).all(), kind


@pytest.mark.parametrize("name", CPU_OF)
def test_a_cpu_gets_the_best_set_that_it_has(name: str) -> None:
    record = RECORDS[name]
    assert best_isa(record) == name


def test_every_cpu_has_an_instruction_set() -> None:
    for record in TARGETS.values():
        if record.is_gpu:
            assert best_isa(record) is None
        else:
            assert best_isa(record) in ISAS, record.name


@pytest.mark.parametrize("name", ["sapphirerapids", "emeraldrapids", "graniterapids"])
def test_a_cpu_with_slow_dot_products_of_bf16_gets_a_set_without_them(name: str) -> None:
    """The features of Zen 5 and more, half of its rate."""
    record = target(f"cpu:{name}")
    assert set(RECORDS["avx512-bf16"].features) < set(record.features)
    assert best_isa(record) == "amx-bf16"
    assert "pairs" not in ISAS["amx-bf16"].kinds
    without = replace(record, features=tuple(f for f in record.features if f != "amx-tile"))
    assert best_isa(without) == "avx512-vnni"
    assert best_isa(target("cpu:znver5")) == "avx512-bf16"
    # The same CPU in a virtual machine, where LLVM takes its model number for another CPU; and a
    # CPU with the same features that LLVM identifies correctly.
    assert best_isa(replace(without, chip="rocketlake")) == "avx512-vnni"
    assert best_isa(replace(without, chip="znver4")) == "avx512-bf16"
