"""Kernels of contractions with parameters, against float64, over all shapes that their tiles meet.

All cases are functions of one program, compiled once for this machine the way a model is. Where
the CPU has the instructions they are kernels of ours on panels; elsewhere the same functions take
the portable road and must give the same numbers.

Small integers times powers of two: every sum is exact in f32 in any order, so results are equal to
the bit. Random numbers: a sum of K products p rounds partial sums, which are random walks, by
u = 2^-24, so that its error is about u * sqrt(K) * |p| / sqrt(2), |p| the root of the sum of
squares; 4 u sqrt(K) |p| is allowed. One product too few is a thousand times more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import arith, func
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import Compiled, Request
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import SCOPE, Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.dialects.targets import target
from mxc.runtime.device import open_device

Floats = NDArray[np.float64]

U = 2.0**-24
HOST = iree.resolve(target("cpu"))
#: What the kernels need of a CPU: for f32 activations, and for bf16 ones too.
KERNELS = {"f32": HOST.has_any(("avx512bw",)), "bf16": HOST.has_any(("avx512bf16",))}


@dataclass(frozen=True)
class Case:
    """x [groups, rows, depth] times weights [columns, depth]; of one of `experts` where gathered.

    A case without experts has one group, whose dimension x and the result have not.
    """

    format: str
    activation: str
    groups: int
    rows: int
    columns: int
    depth: int
    experts: int = 0

    def __str__(self) -> str:
        of = f"_of_{self.experts}" if self.experts else ""
        shape = f"{self.groups}x{self.rows}x{self.columns}x{self.depth}"
        return f"{self.format}_{self.activation}_{shape}{of}"

    @property
    def blocks(self) -> int:
        return self.depth // 32

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        if self.format == "bf16":
            return {f"{self}.w": (self.columns, self.depth)}
        lead = (self.experts,) if self.experts else ()
        shape = (*lead, self.columns, self.blocks)
        return {f"{self}.w": (*shape, 16), f"{self}.s": shape}


#: Tiles of 8 rows with every rest, panels of 16 columns with every rest, few columns (a router),
#: one block of K and many, more and fewer groups than experts.
CASES = [
    Case("mxfp4", "bf16", 2, 1, 96, 2880, 7),
    Case("mxfp4", "bf16", 4, 2, 17, 64, 5),
    Case("mxfp4", "bf16", 3, 5, 1, 32, 2),
    Case("mxfp4", "bf16", 2, 9, 33, 64, 3),
    Case("mxfp4", "bf16", 4, 16, 130, 96, 3),
    Case("mxfp4", "bf16", 1, 1, 100, 2880),
    Case("mxfp4", "bf16", 1, 7, 16, 64),
    Case("mxfp4", "bf16", 1, 64, 17, 32),
    Case("mxfp4", "f32", 5, 1, 33, 64, 3),
    Case("mxfp4", "f32", 3, 3, 2, 96, 4),
    Case("mxfp4", "f32", 2, 7, 100, 64, 3),
    Case("mxfp4", "f32", 2, 8, 15, 32, 1),
    Case("mxfp4", "f32", 3, 17, 100, 96, 4),
    Case("mxfp4", "f32", 1, 4, 96, 2880),
    Case("mxfp4", "f32", 1, 64, 17, 64),
    Case("bf16", "bf16", 1, 1, 4, 96),
    Case("bf16", "bf16", 1, 1, 100, 2880),
    Case("bf16", "bf16", 1, 8, 1, 32),
    Case("bf16", "bf16", 1, 17, 130, 320),
    Case("bf16", "f32", 1, 1, 16, 2880),
    Case("bf16", "f32", 1, 2, 2, 64),
    Case("bf16", "f32", 1, 9, 15, 64),
    Case("bf16", "f32", 1, 64, 17, 32),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
#: One case of each kind of kernel, with more than one tile, panel and block.
KINDS = [case for case in CASES if case.rows > 8 and case.columns > 16 and case.depth > 32]
each_kind = pytest.mark.parametrize("case", KINDS, ids=str)
each_mx = pytest.mark.parametrize("case", [c for c in KINDS if c.format == "mxfp4"], ids=str)


def build(case: Case, parameters: Parameters) -> Callable[..., ir.Value]:
    """The body of the function of a case, over x and the ids if any."""

    def body(x: ir.Value, *ids: ir.Value) -> ir.Value:
        i8, f32, bf16 = ir.IntegerType.get_signless(8), ir.F32Type.get(), ir.BF16Type.get()
        names = list(case.parameters.items())
        if case.format == "bf16":

            def multiply(a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
                a, b = (v if v.type == f32 else arith.extf(f32, v) for v in (a, b))
                return arith.addf(total, arith.mulf(a, b))

            weight = parameters.load(*names[0], bf16)
            return generic([(x, "m k"), (weight, "n k")], "m n", f32, multiply)
        elements = unpack(parameters.load(*names[0], i8), ir.Float4E2M1FNType.get())
        scales = unpack(parameters.load(*names[1], i8), ir.Float8E8M0FNUType.get())
        if ids:
            elements, scales = (gather(value, ids[0]) for value in (elements, scales))
        return scaled_contraction(x, elements, rhs_scale=scales, batch=len(ids), name=str(case))

    return body


def program() -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        element = {"bf16": ir.BF16Type.get(), "f32": ir.F32Type.get()}
        with ir.InsertionPoint(module.body):
            for case in CASES:
                lead = [case.groups] if case.experts else []
                depth = [case.depth] if case.format == "bf16" else [case.blocks, 32]
                shape, kind = [*lead, case.rows, *depth], element[case.activation]
                kinds = [ir.RankedTensorType.get(shape, kind)]
                if case.experts:
                    kinds.append(ir.RankedTensorType.get(lead, ir.IntegerType.get_signless(32)))
                func.FuncOp.from_py_func(*kinds, name=str(case))(build(case, parameters))
        return str(module).encode()


@dataclass(frozen=True)
class Weight:
    """The parameters of a case as a checkpoint has them, and what they mean.

    arrays: bf16 [columns, depth]; or bytes [.., columns, blocks, 16] and scales without the last.
    values: [experts, columns, depth].
    """

    arrays: tuple[NDArray[Any], ...]
    values: Floats


def mxfp4(case: Case, codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> Weight:
    """From codes [experts, columns, blocks, 32] and scale bytes [experts, columns, blocks]."""
    elements = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    values = (elements * factors[..., None]).reshape(*scales.shape[:2], case.depth)
    return Weight((codes[..., 0::2] | codes[..., 1::2] << 4, scales), values)


def bf16(values: Floats) -> Weight:
    """From [columns, depth]."""
    rounded = values.astype(ml_dtypes.bfloat16)
    return Weight((rounded,), rounded.astype(np.float64)[None])


def draw(case: Case, *, exact: bool) -> Weight:
    """Small integers times powers of two, or anything of usual size."""
    rng = np.random.default_rng([case.groups, case.rows, case.columns, case.depth])
    experts = max(case.experts, 1)
    if case.format == "bf16":
        if exact:
            return bf16(rng.integers(-12, 13, (case.columns, case.depth)).astype(np.float64))
        return bf16(rng.normal(size=(case.columns, case.depth)))
    codes = rng.integers(0, 16, (experts, case.columns, case.blocks, 32), dtype=np.uint8)
    low, high = (125, 130) if exact else (97, 150)
    return mxfp4(case, codes, rng.integers(low, high, codes.shape[:3], dtype=np.uint8))


def activations(case: Case, *, exact: bool) -> NDArray[Any]:
    """[groups, rows, depth] in the type of the case."""
    rng = np.random.default_rng(case.depth)
    shape = (case.groups, case.rows, case.depth)
    values = rng.integers(-8, 9, shape) if exact else rng.normal(size=shape)
    return values.astype({"bf16": ml_dtypes.bfloat16, "f32": np.float32}[case.activation])


def ids(case: Case) -> NDArray[np.int32]:
    """An expert for each group: the last one first, repeats where there are fewer experts."""
    return (np.arange(case.groups, dtype=np.int32) * 2 + case.experts - 1) % max(case.experts, 1)


@dataclass(frozen=True)
class Loaded:
    """The program on some weights, ready to be called."""

    context: rt.VmContext
    module: rt.VmModule
    device: Any
    weights: dict[Case, Weight]

    def call(self, case: Case, x: NDArray[Any]) -> NDArray[np.float32]:
        """The result of a case, [groups, rows, columns]."""
        lead = [case.groups] if case.experts else []
        depth = [case.depth] if case.format == "bf16" else [case.blocks, 32]
        arguments: list[NDArray[Any]] = [x.reshape(*lead, case.rows, *depth)]
        if case.experts:
            arguments.append(ids(case))
        function = self.module.lookup_function(str(case))
        entry = rt.FunctionInvoker(self.context, self.device, function)
        result = np.array(entry(*arguments).to_host())
        return result.reshape(case.groups, case.rows, case.columns)

    def factors(self, case: Case, x: NDArray[Any]) -> tuple[Floats, Floats]:
        """x [groups, rows, depth] and the weights of each group [groups, columns, depth]."""
        return x.astype(np.float64), self.weights[case].values[ids(case)]


@dataclass(frozen=True)
class Program:
    """The compiled program."""

    file: Path
    compiled: Compiled

    def load(self, weights: dict[Case, Weight], threads: int = 2) -> Loaded:
        """Give it the weights of every case."""
        device = open_device("local-task", threads, "test")
        index = rt.ParameterIndex()
        for case, weight in weights.items():
            for name, array in zip(case.parameters, weight.arrays, strict=True):
                index.add_buffer(name, self.packed(case, name, array))
        instance = rt.VmInstance()
        module = rt.VmModule.mmap(instance, str(self.file))
        hal = rt.create_hal_module(instance, device)
        parameters = rt.create_io_parameters_module(instance, index.create_provider(scope=SCOPE))
        return Loaded(rt.VmContext(instance, [hal, parameters, module]), module, device, weights)

    def packed(self, case: Case, name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
        """The bytes of a parameter in the layout that the program reads."""
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        layout = self.compiled.panels.get(name)
        if layout is None:
            return flat
        row_bytes = flat.size // (max(case.experts, 1) * case.columns)
        return np.concatenate([*to_panels([flat], case.columns, row_bytes, layout)])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("kernels")
    request = Request(
        program=program(), place="kernels", target="cpu", module=folder / "m.vmfb", parameters=True
    )
    made = compile_here(request, folder / "assembly", folder / "program", lambda step: None)
    return Program(folder / "m.vmfb", made)


@pytest.fixture(scope="module")
def exact(compiled: Program) -> Loaded:
    return compiled.load({case: draw(case, exact=True) for case in CASES})


@pytest.fixture(scope="module")
def usual(compiled: Program) -> Loaded:
    return compiled.load({case: draw(case, exact=False) for case in CASES})


def check(found: NDArray[np.float32], x: Floats, w: Floats) -> None:
    """Equal within what the roundings of a sum of K f32 products make; see above."""
    wanted = np.einsum("gmk,gnk->gmn", x, w)
    size = np.sqrt(np.einsum("gmk,gnk->gmn", x * x, w * w))
    error = np.abs(found - wanted)
    assert (error <= 4 * U * np.sqrt(x.shape[2]) * size).all(), (error / size).max() / U


@each_case
def test_kernels_are_used_where_the_cpu_has_them(case: Case, compiled: Program) -> None:
    layouts = ("panel16x4", "panel16x1") if case.format == "mxfp4" else ("panel16x4",)
    found = [compiled.compiled.panels.get(name) for name in case.parameters]
    assert found == (list(layouts) if KERNELS[case.activation] else [None] * len(found))


@each_case
def test_sums_that_are_exact(case: Case, exact: Loaded) -> None:
    x = activations(case, exact=True)
    values, w = exact.factors(case, x)
    np.testing.assert_array_equal(exact.call(case, x), np.einsum("gmk,gnk->gmn", values, w))


@each_case
def test_sums_that_are_rounded(case: Case, usual: Loaded) -> None:
    x = activations(case, exact=False)
    check(usual.call(case, x), *usual.factors(case, x))


@each_kind
def test_threads_do_not_change_a_bit(case: Case, compiled: Program, usual: Loaded) -> None:
    x = activations(case, exact=False)
    alone = compiled.load(usual.weights, threads=1)
    for _ in range(3):
        np.testing.assert_array_equal(usual.call(case, x), alone.call(case, x))


@each_kind
def test_a_row_is_nobody_elses(case: Case, exact: Loaded) -> None:
    """What is not finite in one row of the activations stays in that row of the result."""
    x = activations(case, exact=True)
    wanted = exact.call(case, x)
    for row, value in ((0, np.inf), (case.rows // 2, np.nan), (case.rows - 1, -np.inf)):
        x[-1, row, 33], wanted[-1, row] = value, np.nan
    found = exact.call(case, x)
    # An infinity times the zero or the sign of a weight is infinite or NaN.
    np.testing.assert_array_equal(np.where(np.isfinite(found), found, np.nan), wanted)


@each_kind
def test_zeros_and_subnormals(case: Case, exact: Loaded) -> None:
    """The machine reads subnormal activations as zero, or as what they are."""
    x = activations(case, exact=True)
    for zeros in (np.zeros_like(x), -np.zeros_like(x)):
        assert not exact.call(case, zeros).any()
    tiny = (x.astype(np.float64) * 2.0**-130).astype(x.dtype)
    limit = case.depth * 8 * 48 * 2.0**-130
    assert (np.abs(exact.call(case, tiny)) <= limit).all()


@each_kind
def test_large_activations(case: Case, usual: Loaded) -> None:
    x = activations(case, exact=False)
    x = (x.astype(np.float64) * 2.0**90).astype(x.dtype)
    check(usual.call(case, x), *usual.factors(case, x))


def with_scale(weight: Weight, case: Case, at: tuple[int, int, int], byte: int) -> Weight:
    """`weight` with another scale byte at (expert, column, block)."""
    packed, scales = weight.arrays
    scales = scales.copy()
    scales[at] = byte
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*scales.shape, 32)
    return mxfp4(case, codes, scales)


@each_mx
def test_a_nan_scale_is_nan_where_it_is_read(case: Case, compiled: Program, exact: Loaded) -> None:
    """In every row of its column, of the groups of its expert; and where its elements are zero."""
    expert, columns = ids(case)[-1], (case.columns - 2, 0)
    packed, scales = (array.copy() for array in exact.weights[case].arrays)
    packed[expert, 0, 1] = 0
    weight = Weight((packed, scales), exact.weights[case].values)
    for column in columns:
        weight = with_scale(weight, case, (expert, column, 1), 255)
    x = activations(case, exact=True)
    wanted = exact.call(case, x)
    wanted[np.ix_(ids(case) == expert, range(case.rows), columns)] = np.nan
    found = compiled.load(exact.weights | {case: weight}).call(case, x)
    np.testing.assert_array_equal(found, wanted)


@each_mx
def test_scale_byte_0_is_zero(case: Case, compiled: Program, exact: Loaded) -> None:
    """2^-127 is subnormal: the machine reads it as zero, and so do we."""
    at = (int(ids(case)[0]), 0, 0)
    weight = with_scale(exact.weights[case], case, at, 0)
    loaded = compiled.load(exact.weights | {case: weight})
    # Activations of a size that would make 2^-127 a number to be seen.
    x = np.zeros_like(activations(case, exact=True))
    x[:, :, :32] = 2.0**100
    found = loaded.call(case, x)
    values, w = loaded.factors(case, x)
    w = np.where(np.abs(w) < 2.0**-100, 0, w)
    np.testing.assert_array_equal(found, np.einsum("gmk,gnk->gmn", values, w))


@each_mx
def test_the_largest_scale(case: Case, compiled: Program, exact: Loaded) -> None:
    """Byte 254 is 2^127; times 1.0 that is finite."""
    experts = max(case.experts, 1)
    codes = np.zeros((experts, case.columns, case.blocks, 32), np.uint8)
    codes[:, ::2, 1, 5], codes[:, 1::2, 0, 31] = 2, 9  # 1.0 and -0.5
    scales = np.full(codes.shape[:3], 254, np.uint8)
    loaded = compiled.load(exact.weights | {case: mxfp4(case, codes, scales)})
    x = np.sign(activations(case, exact=True))
    values, w = loaded.factors(case, x)
    np.testing.assert_array_equal(loaded.call(case, x), np.einsum("gmk,gnk->gmn", values, w))
