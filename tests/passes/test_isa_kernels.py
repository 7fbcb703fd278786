"""The kernels of every instruction set: their assembly, and their results if this CPU runs them.

The program is compiled as a model is, for a CPU of each set, also for AArch64 on other machines.
The loop with the most dot products must have exactly those of a tile, in registers of the set's
width, and must not spill sums; kernels must not call functions. Error bound: a sum of K products
rounds K times with either sign, so its error is at most 4 u sqrt(K) |p|, u the unit roundoff.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import func
from numpy.typing import NDArray

from mxc.artifact.manifest import SCOPE
from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import CompileRequest
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import block_format
from mxc.formats.packing import pack_elements
from mxc.runtime.device import open_device
from mxc.targets.target import target

HOST = iree.resolve(target("cpu"))
U = 2.0**-24
BLOCKS, COLUMNS = 3, 40
FORMAT = "mxfp4"

#: Matches an instruction that stores a vector register to the stack.
_STORE = re.compile(r"v?mov\w+\s+%[xyz]mm\d+, \S*\(%[re][sb]p\)|st\w+\s+q\d+, .*\[(sp|x29)")


@dataclass(frozen=True)
class Case:
    """A product of activations [rows, 96] by mxfp4 weights [40, 96]."""

    activation: str
    rows: int

    def __str__(self) -> str:
        return f"{self.activation}_{self.rows}"

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        return {f"{self}.w": (COLUMNS, BLOCKS, 16), f"{self}.s": (COLUMNS, BLOCKS)}


#: One row, a tile, and enough rows for weights to be decoded once for all; 40 columns need a mask.
CASES = [Case("f32", 1), Case("f32", 17), Case("bf16", 4), Case("mxfp4", 4), Case("mxint8", 1)]


@dataclass(frozen=True)
class Expected:
    """A CPU and its expected code: patterns of the dot product for f32, bf16 and integer
    activations, and the name of vector registers."""

    cpu: str
    floats: str
    pairs: str
    quads: str
    register: str


_FMA = r"vfmadd\d+ps"
_VEX = r"\{vex\}\s+vpdpbusd"
SETS = [
    Expected("znver4", _FMA, "vdpbf16ps", "vpdpbusd", "zmm"),
    Expected("cooperlake", _FMA, "vdpbf16ps", "vpdpbusd", "zmm"),
    Expected("cascadelake", _FMA, _FMA, "vpdpbusd", "zmm"),
    Expected("x86-64-v4", _FMA, _FMA, "vpmaddubsw", "zmm"),
    Expected("alderlake", _FMA, _FMA, _VEX, "ymm"),
    Expected("x86-64-v3", _FMA, _FMA, "vpmaddubsw", "ymm"),
    Expected("x86-64", "mulps", "mulps", "mulps", "xmm"),
    Expected("neoverse-n2", "fmla", "bfdot", "sdot", r"v\d+\."),
    Expected("neoverse-n1", "fmla", "fmla", "sdot", r"v\d+\."),
    Expected("generic", "fmla", "fmla", "fmla", r"v\d+\."),
]
each_set = pytest.mark.parametrize("built", SETS, ids=lambda e: e.cpu, indirect=True)
RECORDS = {expected.cpu: target(f"cpu:{expected.cpu}") for expected in SETS}
#: The CPUs of SETS whose code this machine can run.
HERE = [
    expected
    for expected in SETS
    if RECORDS[expected.cpu].architecture == HOST.architecture
    and set(RECORDS[expected.cpu].features) <= set(HOST.features)
]


@dataclass(frozen=True)
class Built:
    """The program, compiled for a CPU."""

    expected: Expected
    file: Path
    assembly: str
    layouts: dict[str, str]


def program() -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        i8, e8m0 = ir.IntegerType.get_signless(8), ir.Float8E8M0FNUType.get()
        e2m1 = ir.Float4E2M1FNType.get()

        def body(case: Case, x: ir.Value, scales: ir.Value | None = None) -> ir.Value:
            weight, factor = (parameters.load(*item, i8) for item in case.parameters.items())
            if case.activation == "mxfp4":
                x = unpack(x, e2m1)
            return scaled_contraction(
                x,
                unpack(weight, e2m1),
                lhs_scale=None if scales is None else unpack(scales, e8m0),
                rhs_scale=unpack(factor, e8m0),
                name=str(case),
            )

        with ir.InsertionPoint(module.body):
            for case in CASES:
                floats = {"f32": ir.F32Type.get(), "bf16": ir.BF16Type.get()}
                element = floats.get(case.activation, i8)
                last = 16 if case.activation == "mxfp4" else 32
                types = [ir.RankedTensorType.get([case.rows, BLOCKS, last], element)]
                if element == i8:
                    types.append(ir.RankedTensorType.get([case.rows, BLOCKS], i8))
                func.FuncOp.from_py_func(*types, name=str(case))(
                    lambda *x, case=case: body(case, *x)
                )
        return str(module).encode()


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    expected: Expected = request.param
    folder = tmp_path_factory.mktemp(expected.cpu)
    made = compile_here(
        CompileRequest(
            program=program(),
            place="isas",
            target=f"cpu:{expected.cpu}",
            module=folder / "m.vmfb",
            parameters=True,
        ),
        folder / "assembly",
        folder / "program",
        lambda step: None,
    )
    (assembly,) = (folder / "assembly").glob("*.s")
    return Built(expected, folder / "m.vmfb", assembly.read_text(), made.panels)


def functions(assembly: str) -> dict[str, str]:
    """Return the text of each kernel of mxc, by name."""
    found = {}
    for match in re.finditer(r'^"?(\S*mxc_\S*?)"?:.*?^\.Lfunc_end', assembly, re.M | re.S):
        found[match[1]] = match[0]
    return found


def hottest(text: str, dot: str) -> list[str]:
    """Return the instructions between two labels that have the most dot products."""
    runs = re.split(r"^\.L\w+:.*$", text, flags=re.M)
    lines = [[line.strip() for line in run.splitlines() if line.startswith("\t")] for run in runs]
    return max(lines, key=lambda run: sum(bool(re.match(dot, line)) for line in run))


@each_set
def test_the_loop_has_the_dot_products_of_a_tile_and_keeps_its_sums(built: Built) -> None:
    names = functions(built.assembly)
    for case in CASES:
        kind = {"f32": "floats", "bf16": "pairs"}.get(case.activation, "quads")
        dot = getattr(built.expected, kind)
        (name,) = (n for n in names if f"mxc_{FORMAT}_{case}x{COLUMNS}x" in n.replace("_1x", "_"))
        run = hottest(names[name], dot)
        dots = [line for line in run if re.match(dot, line)]
        step_count = 32 if dot in ("fmla", "mulps", _FMA) else 16 if kind == "pairs" else 8
        assert len(dots) >= step_count * min(case.rows, 4), (name, len(dots))
        assert all(re.search(built.expected.register, line) for line in dots), dots[0]
        # Totals and some decoded weights may be spilled. Spilled sums would be stored in each step,
        # once for each dot product.
        stores = [line for line in run if _STORE.match(line)]
        assert len(stores) <= len(dots) * 2 / 3, (name, len(stores), len(dots))


@each_set
def test_kernels_call_nothing(built: Built) -> None:
    """A call would be one of an arithmetic function that LLVM had no instructions for."""
    names = functions(built.assembly)
    assert len(names) >= len(CASES)
    for name, text in names.items():
        assert not re.search(r"^\t(call|bl|blr)\w*\s", text, re.M), name


@each_set
def test_all_sets_read_the_same_panels(built: Built) -> None:
    wanted: dict[Any, Any] = {}
    for case in CASES:
        wanted |= dict(zip(case.parameters, ("panel16x4", "panel16x1"), strict=True))
    assert built.layouts == wanted


def draw(case: Case, rng: np.random.Generator) -> tuple[list[NDArray[Any]], NDArray[np.float64]]:
    """Draw activations: the arguments that pass them, and their values [rows, 96] in float64."""
    shape = (case.rows, BLOCKS, 32)
    if case.activation in ("f32", "bf16"):
        dtype = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}[case.activation]
        x = rng.normal(size=shape).astype(dtype)
        return [x], x.astype(np.float64).reshape(case.rows, -1)
    return blocks(case.activation, case.rows, rng)


def blocks(
    format: str, rows: int, rng: np.random.Generator
) -> tuple[list[NDArray[Any]], NDArray[np.float64]]:
    """Draw MX blocks [rows, 96]: packed elements and scales, and the values in float64."""
    element = block_format(format).element
    codes = rng.integers(0, 1 << element.bits, (rows, BLOCKS, 32), dtype=np.uint8)
    scales = rng.integers(120, 135, (rows, BLOCKS), dtype=np.uint8)
    factors = np.ldexp(1.0, scales.astype(np.int64) - 127)
    values = element.values[codes].astype(np.float64) * factors[..., None]
    return [pack_elements(codes, format), scales], values.reshape(rows, -1)


@pytest.mark.parametrize("built", HERE, ids=lambda e: e.cpu, indirect=True)
def test_numbers(built: Built) -> None:
    rng = np.random.default_rng(11)
    index, weights = rt.ParameterIndex(), {}
    for case in CASES:
        arrays, weights[case] = blocks(FORMAT, COLUMNS, rng)
        for name, array in zip(case.parameters, arrays, strict=True):
            flat = array.reshape(-1)
            row = flat.size // COLUMNS
            index.add_buffer(name, to_panels(flat, COLUMNS, row, built.layouts[name]))
    device, instance = open_device("local-task", 2, "test"), rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(built.file))
    modules = [
        rt.create_hal_module(instance, device),
        rt.create_io_parameters_module(instance, index.create_provider(scope=SCOPE)),
        module,
    ]
    context = rt.VmContext(instance, modules)
    for case in CASES:
        inputs, x = draw(case, rng)
        entry = rt.FunctionInvoker(context, device, module.lookup_function(str(case)))
        found = np.array(entry(*inputs).to_host())
        size = np.sqrt((x * x) @ (weights[case] ** 2).T)
        error = np.abs(found - x @ weights[case].T)
        assert (error <= 4 * U * np.sqrt(BLOCKS * 32) * size).all(), case
