"""Programs with dense products of parameters by any number of rows, and the epilogue of each.

A product is compiled with several schedules, chosen by the rows of a call, and run on the
simulator. A row has the same bits whichever of them computes it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func
from iree.runtime import HalElementType
from numpy.typing import NDArray

from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import CompileRequest
from mxc.compiler.worker import compile_program
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import Parameters
from mxc.dialects.quantize import quantize_mx
from mxc.formats.reference import quantize
from mxc.passes.kernels.gpu.dense.chunks import Chunks
from mxc.simulator.host.hal import HalBuffer, HalDevice, View
from mxc.simulator.host.vm import Machine
from mxc.simulator.host.vm_module import read_module
from mxc.simulator.watch.sanitizer import Sanitizer
from tests.passes.kernels.gpu.test_dynamic_rows import gate

Array = NDArray[Any]
BF16 = ml_dtypes.bfloat16
TYPES = {"bf16": BF16, "f16": np.float16, "f32": np.float32}
#: The element types of a host program (HAL) for numpy's types.
CODES = {
    np.dtype(BF16): int(HalElementType.BFLOAT_16),
    np.dtype(np.float16): int(HalElementType.FLOAT_16),
    np.dtype(np.float32): int(HalElementType.FLOAT_32),
    np.dtype(np.int32): int(HalElementType.INT_32),
}
#: No row, one row, less than a tile, more than a tile, and enough for a ring.
ROWS = (0, 1, 7, 33, 70)


@dataclass(frozen=True)
class Case:
    """A product of [?, k] of type `lhs` by [n, k] of type `rhs`.

    `after`: the epilogue. `experts`: number of weights, of which each row chooses one; 0: one.
    """

    name: str
    lhs: str
    rhs: str
    n: int
    k: int
    after: str = ""
    experts: int = 0


CASES = [
    Case("plain", "bf16", "bf16", 48, 544),
    Case("wide", "f32", "bf16", 36, 96),
    Case("half", "f16", "f16", 20, 320),
    Case("added", "bf16", "bf16", 36, 352, after="residual"),
    Case("gated", "bf16", "bf16", 64, 256, after="gate"),
    Case("brief", "bf16", "bf16", 40, 1024, after="round"),
    Case("blocks", "bf16", "bf16", 64, 288, after="quantize"),
    Case("experts", "bf16", "bf16", 36, 160, experts=3),
]
#: Schedules of each case: streams with several waves along K and with one, and a ring if the GPU
#: has one.
SCHEDULES = {
    case.name: [
        {"below": 5, "instruction": 16, "tiles": [1, 2], "waves": [1, 1, along]},
        {"below": 50, "instruction": 16, "tiles": [2, 2], "waves": [2, 2, 1]},
        {"instruction": 16, "tiles": [2, 2], "waves": [1, 4, 1], "transport": "ring",
         "stages": 3, "k_steps": 2},
    ]
    for case in (CASES[0], *CASES[3:6])
    for along in [Chunks.of(case.k // 32).count]
}  # fmt: skip


def build(case: Case, parameters: Parameters) -> None:
    dynamic, f32 = ir.ShapedType.get_dynamic_size(), ir.F32Type.get()
    kinds = [ir.RankedTensorType.get([dynamic, case.k], ir.Type.parse(case.lhs))]
    if case.experts:
        one = ir.RankedTensorType.get([dynamic, 1, case.k], ir.Type.parse(case.lhs))
        kinds = [one, ir.RankedTensorType.get([dynamic], ir.IntegerType.get_signless(32))]
    more = {"gate": [[case.n]], "residual": [[dynamic, case.n], [dynamic]]}.get(case.after, [])
    kinds += [ir.RankedTensorType.get(shape, f32) for shape in more]

    def wide(value: ir.Value) -> ir.Value:
        return value if value.type == f32 else arith.extf(f32, value)

    def multiply(a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        return arith.addf(total, arith.mulf(wide(a), wide(b)))

    @func.FuncOp.from_py_func(*kinds, name=case.name)
    def _(x: ir.Value, *more: ir.Value) -> Any:
        lead = [case.experts] if case.experts else []
        w = parameters.load(f"{case.name}.w", [*lead, case.n, case.k], ir.Type.parse(case.rhs))
        if case.experts:
            w = gather(w, more[0])
            return generic([(x, "e m k"), (w, "e n k")], "e m n", f32, multiply)
        y = generic([(x, "m k"), (w, "n k")], "m n", f32, multiply)
        if case.after == "gate":
            return gate(generic([(y, "m n"), (more[0], "n")], "m n", f32, arith.addf))
        if case.after == "residual":
            terms = [(y, "m n"), (more[0], "m n"), (more[1], "m")]
            return generic(terms, "m n", f32, lambda y, r, w: arith.addf(r, arith.mulf(y, w)))
        if case.after == "round":
            bf16 = ir.BF16Type.get()
            return generic([(y, "m n")], "m n", bf16, lambda y: arith.truncf(bf16, y))
        if case.after == "quantize":
            return quantize_mx(y, "mxfp8e4m3", "even")
        return y


def weights(case: Case) -> Array:
    rng = np.random.default_rng(case.n)
    lead = [case.experts] if case.experts else []
    return rng.normal(size=(*lead, case.n, case.k)).astype(TYPES[case.rhs])


class Program:
    """A program of all cases for one target, on the simulator."""

    def __init__(self, target: str, folder: Path) -> None:
        with new_context(), ir.Location.unknown():
            module = ir.Module.create()
            parameters = Parameters(module)
            with ir.InsertionPoint(module.body):
                for case in CASES:
                    build(case, parameters)
            text = str(module).encode()
        given: list[dict[str, Any]] = [
            {"n": case.n, "k": case.k, "schedule": SCHEDULES[case.name][: 3 if RING[target] else 2]}
            for case in CASES
            if case.name in SCHEDULES
        ]
        for entry in given:
            last = entry["schedule"][-1]
            entry["schedule"][-1] = {name: each for name, each in last.items() if name != "below"}
        (folder / "schedules.json").write_text(json.dumps(given))
        compiled = compile_program(
            CompileRequest(
                program=text,
                place="dense",
                target=target,
                module=folder / "module.vmfb",
                parameters=True,
                schedules=str(folder / "schedules.json"),
            )
        )
        self._target = target
        self.matmuls = compiled.report["matmuls"]
        module_file = read_module(folder / "module.vmfb")
        held = {f"{case.name}.w": weights(case).reshape(-1).view(np.uint8) for case in CASES}
        for case in CASES:
            name = f"{case.name}.w"
            if layout := compiled.panels.get(name):
                held[name] = to_panels(held[name], case.n, 2 * case.k, layout)
        self.watched: dict[str, Sanitizer] = {}
        self._device = HalDevice(
            held, lambda kernel: self.watched.setdefault(kernel.name, Sanitizer())
        )
        self._machine = Machine(module_file, self._device.functions())

    def __call__(self, name: str, *arguments: Array) -> list[Array]:
        """Run a case, and return its results as bytes. Asserts that the epilogue is in the kernel
        of the product."""
        self.watched.clear()
        views = [
            View(HalBuffer.over(each.reshape(-1).view(np.uint8)), each.shape, CODES[each.dtype], 1)
            for each in map(np.ascontiguousarray, arguments)
        ]
        found = self._machine.call(name, *views)
        # gfx942 quantizes in a kernel of its own. Rows that choose experts are sorted before the
        # product and put back in order after it.
        more = {("gfx942", "blocks"): 1, (self._target, "experts"): 2}
        assert len(self.watched) == 1 + more.get((self._target, name), 0)
        assert not [finding for each in self.watched.values() for finding in each.findings]
        return [np.frombuffer(view.buffer.bytes.tobytes(), np.uint8) for view in found]


#: Whether a GPU has a ring for dense products, which loads straight from memory to LDS.
RING = {"gfx950": True, "gfx942": False}


@pytest.fixture(scope="module", params=RING)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(request.param, tmp_path_factory.mktemp("dense"))


def arguments(case: Case, rows: int) -> tuple[list[Array], Array]:
    """Return the arguments of a call, and its expected result. A row is the same in all calls."""
    rng = np.random.default_rng(case.k)
    most = max(ROWS)
    x = rng.normal(size=(most, case.k)).astype(TYPES[case.lhs])[:rows]
    w = weights(case).astype(np.float64)
    if case.experts:
        ids = rng.integers(0, case.experts, most, dtype=np.int32)[:rows]
        wanted = np.einsum("mk,mnk->mn", x.astype(np.float64), w[ids])
        return [x.reshape(rows, 1, case.k), ids], wanted
    wanted = x.astype(np.float64) @ w.T
    if case.after == "gate":
        bias = rng.normal(size=case.n).astype(np.float32)
        wanted += bias
        return [x, bias], wanted[:, : case.n // 2] * wanted[:, case.n // 2 :]
    if case.after == "residual":
        added = rng.normal(size=(most, case.n)).astype(np.float32)[:rows]
        factors = rng.normal(size=most).astype(np.float32)[:rows]
        return [x, added, factors], added + wanted * factors[:, None]
    return [x], wanted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_products(case: Case, compiled: Program) -> None:
    kept: list[Array] = []
    kernels: set[Any] = set()
    for rows in reversed(ROWS):
        given, wanted = arguments(case, rows)
        results = compiled(case.name, *given)
        kernels |= compiled.watched.keys()
        if not kept:
            kept = results
        for most, found in zip(kept, results, strict=True):
            # A row has the same bits whichever kernel computes it, beside any other rows.
            np.testing.assert_array_equal(found, most[: found.size])
        if case.after == "quantize":
            blocks = quantize(wanted.astype(np.float32), "mxfp8e4m3", recipe="even")
            same = results[0].reshape(blocks.elements.shape) == blocks.elements
            # The last bits of sums may differ, so that ties may round to another number.
            assert (~same).sum() <= same.size // 100
            continue
        stored, bound = (BF16, 4e-3) if case.after == "round" else (np.float32, 2e-6)
        error = np.abs(results[0].view(stored).reshape(wanted.shape).astype(float) - wanted)
        assert error.max(initial=0) <= bound * np.abs(wanted).max(initial=0)
    if case.name in SCHEDULES:
        assert len(kernels) > 1


def test_the_report_names_the_instruction(compiled: Program) -> None:
    assert len(compiled.matmuls) == len(CASES)
    for found in compiled.matmuls:
        assert found["reason"] is None
        assert found["lowering"].startswith("v_mfma_f32_16x16x")
