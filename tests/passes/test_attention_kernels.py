"""Attention kernels against float64, over every way that rows, keys and registers can be ragged.

All cases are functions of one program, compiled the way a model is, for this machine and for AVX2
where it runs that. Where the CPU has no kernels the same functions take the portable road.

Errors: a score is a sum of D products in f32, so that it is off by about scale |q| |k| u,
u = 2^-24, and its weight by as much relatively; a weight has 2 u of its own. A result is a mean of
values, so that it is off by that times the largest of them. Eight times as much is allowed; one key
too many or too few is a thousand times more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.pipelines import pipeline
from mxc.compiler.steps import Request
from mxc.dialects.attention import attention
from mxc.dialects.context import new_context
from mxc.dialects.targets import target
from mxc.passes.base import run
from mxc.passes.lower_attention_to_cpu_kernels import LowerAttentionToCpuKernels
from mxc.runtime.device import open_device

Floats = NDArray[np.float64]

U = 2.0**-24
HOST = iree.resolve(target("cpu"))
#: For this machine, and for the registers of AVX2 where they are not those of this machine.
TARGETS = ["cpu"] + ["cpu:x86-64-v3"] * HOST.has_any(("avx512bw",))
each_target = pytest.mark.parametrize("name", TARGETS)
TYPES = {
    "bf16": (ir.BF16Type, ml_dtypes.bfloat16),
    "f16": (ir.F16Type, np.float16),
    "f32": (ir.F32Type, np.float32),
}
#: Which entry of a cache has the keys, and which the values.
ENTRIES, KEYS, VALUES = 3, 2, 0


@dataclass(frozen=True)
class Case:
    """Queries [tokens, heads, group, depth] over a cache [ENTRIES, capacity, heads, depth].

    `size`: how many keys the slices have; 0: as many as the caller says.
    """

    tokens: int
    heads: int
    group: int
    depth: int
    capacity: int
    cache: str = "bf16"
    sinks: str = "f32"
    width: int | None = None
    size: int = 0

    def __str__(self) -> str:
        sizes = f"{self.tokens}x{self.heads}x{self.group}x{self.depth}"
        window = "" if self.width is None else f"_near_{self.width}"
        size = f"_static_{self.size}" if self.size else ""
        return f"{sizes}_{self.cache}_{self.sinks}_of_{self.capacity}{window}{size}"

    @property
    def scale(self) -> float:
        return self.depth**-0.5

    @property
    def queries(self) -> tuple[int, ...]:
        return (self.tokens, self.heads, self.group, self.depth)


#: One token over pieces of keys, with a group that is a tile, less than one and more than one; a
#: window that is one workgroup a head; tiles of several tokens, of parts of one and of neither;
#: several blocks of rows; head sizes of one register to eight, in pairs of bf16 or not; a tile of
#: every rest of rows; values that are too many to copy, and heads for one workgroup.
CASES = [
    Case(1, 2, 8, 64, 700),
    Case(1, 1, 3, 80, 300, "f16"),
    Case(1, 2, 1, 16, 300, "f32"),
    Case(1, 2, 12, 48, 400, "bf16", "bf16"),
    Case(1, 4, 4, 32, 64, width=20, size=20),
    Case(5, 2, 1, 128, 90, "f32", width=7),
    Case(7, 1, 6, 48, 130, "bf16", "f16"),
    Case(3, 3, 2, 112, 60, "f16", size=60),
    Case(33, 2, 8, 64, 120, width=20, size=52),
    Case(20, 1, 16, 64, 600),
    Case(9, 1, 4, 128, 40, "f32"),
    Case(1, 70, 1, 16, 300),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def build(case: Case) -> Callable[..., ir.Value]:
    """The function of a case, over queries, cache, sinks, position, first key and size."""

    def body(queries: ir.Value, cache: ir.Value, sinks: ir.Value, *numbers: ir.Value) -> ir.Value:
        position, first, size = (arith.index_cast(ir.IndexType.get(), n) for n in numbers)
        dynamic = ir.ShapedType.get_dynamic_size()
        sizes = [case.size or dynamic, case.heads, case.depth]
        kind = ir.RankedTensorType.get(sizes, ir.RankedTensorType(cache.type).element_type)
        keys, values = (
            tensor.extract_slice(
                kind, cache, [first], [] if case.size else [size], [],
                [entry, dynamic, 0, 0], [1, *sizes], [1] * 4,
            )
            for entry in (KEYS, VALUES)
        )  # fmt: skip
        return attention(
            queries, keys, values, sinks,
            position=position, first=first, width=case.width, scale=case.scale,
        )  # fmt: skip

    return body


def program(cases: Sequence[Case] = CASES) -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        i32 = ir.IntegerType.get_signless(32)
        with ir.InsertionPoint(module.body):
            for case in cases:
                shape = [ENTRIES, case.capacity, case.heads, case.depth]
                kinds = [
                    ir.RankedTensorType.get(case.queries, ir.F32Type.get()),
                    ir.RankedTensorType.get(shape, TYPES[case.cache][0].get()),
                    ir.RankedTensorType.get([case.heads, case.group], TYPES[case.sinks][0].get()),
                ]
                func.FuncOp.from_py_func(*kinds, i32, i32, i32, name=str(case))(build(case))
        return str(module).encode()


@dataclass(frozen=True)
class Inputs:
    """Arguments of a case."""

    queries: NDArray[np.float32]
    cache: NDArray[Any]
    sinks: NDArray[Any]
    position: int
    first: int
    size: int

    def seen(self, case: Case) -> NDArray[np.bool_]:
        """Whether each token sees each key of the capacity."""
        tokens = self.position + np.arange(case.tokens)[:, None]
        keys = np.arange(case.capacity)[None]
        seen = (keys <= tokens) & (keys >= self.first) & (keys < self.first + self.size)
        return seen if case.width is None else seen & (tokens - keys < case.width)


def draw(case: Case, position: int, first: int, size: int, seed: int = 0) -> Inputs:
    """Numbers of usual size."""
    rng = np.random.default_rng(seed)
    return Inputs(
        rng.normal(size=case.queries).astype(np.float32),
        rng.normal(size=(ENTRIES, case.capacity, case.heads, case.depth)).astype(
            TYPES[case.cache][1]
        ),
        rng.normal(size=(case.heads, case.group)).astype(TYPES[case.sinks][1]),
        position,
        first,
        size,
    )


def at_the_end(case: Case, seed: int = 0) -> Inputs:
    """The last tokens that the cache has room for."""
    first = case.capacity - case.size if case.size else 0
    return draw(case, case.capacity - case.tokens, first, case.capacity - first, seed)


def expected(case: Case, given: Inputs) -> tuple[Floats, float]:
    """Attention in float64, and the error that is allowed."""
    queries, cache, sinks = (
        x.astype(np.float64) for x in (given.queries, given.cache, given.sinks)
    )
    seen = given.seen(case)[:, None, None]
    scores = np.einsum("mhgd,shd->mhgs", queries, cache[KEYS]) * case.scale
    scores = np.where(seen, scores, -np.inf)
    sinks = np.broadcast_to(sinks[None, :, :, None], (*scores.shape[:3], 1))
    top = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(sinks - top)
    values = np.where(seen.any(axis=0)[0, 0][:, None, None], cache[VALUES], 0)
    norms = [np.linalg.norm(x, axis=-1).max() for x in (queries, cache[KEYS])]
    allowed = 8 * U * (case.scale * norms[0] * norms[1] + 2) * np.abs(values).max()
    return np.einsum("mhgs,shd->mhgd", weights / total, values), allowed


@dataclass(frozen=True)
class Loaded:
    """The program, ready to be called."""

    context: rt.VmContext
    module: rt.VmModule
    device: Any

    def call(self, name: object, *arguments: Any) -> NDArray[np.float32]:
        function = self.module.lookup_function(str(name))
        entry = rt.FunctionInvoker(self.context, self.device, function)
        return np.array(entry(*arguments).to_host())

    def attend(self, case: Case, given: Inputs) -> NDArray[np.float32]:
        numbers = (given.position, given.first, given.size)
        return self.call(case, given.queries, given.cache, given.sinks, *numbers)


Load = Callable[..., Loaded]

#: Some cases in the four lanes of NEON, which run anywhere that has multiply-adds.
NARROW, NARROW_CASES = "four lanes", [case for case in CASES if case.heads == 1]


def narrow() -> bytes:
    compiler = iree.Compiler(HOST, program(NARROW_CASES))
    run((LowerAttentionToCpuKernels(lanes=4),), compiler.module)
    return str(compiler.module).encode()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The program for a target, with so many threads."""
    whole = program()

    @cache
    def compiled(name: str) -> Path:
        source = whole
        if name == NARROW:
            source, name = narrow(), "cpu"
        folder = tmp_path_factory.mktemp("attention")
        request = Request(
            program=source, place="attention", target=name, module=folder / "module.vmfb"
        )
        compile_here(request, folder / "assembly", folder / "program", lambda step: None)
        return folder / "module.vmfb"

    @cache
    def load(name: str = "cpu", threads: int = 2) -> Loaded:
        device = open_device("local-task", threads, "test")
        instance = rt.VmInstance()
        module = rt.VmModule.mmap(instance, str(compiled(name)))
        modules = [rt.create_hal_module(instance, device), module]
        return Loaded(rt.VmContext(instance, modules), module, device)

    return load


def check(found: NDArray[np.float32], case: Case, given: Inputs) -> None:
    wanted, allowed = expected(case, given)
    error = np.abs(found - wanted).max()
    assert error <= allowed, error / allowed


def test_kernels_are_used_where_the_cpu_has_them() -> None:
    source = program()
    for name in TARGETS:
        record = iree.resolve(target(name))
        compiler = iree.Compiler(record, source)
        stages = pipeline(name).stages
        run([p for stage in stages if stage.phase is None for p in stage.passes], compiler.module)
        left = str(compiler.module).count("linalg.generic")
        assert left == 0 if record.has_any(("fma",)) else left > len(CASES)


@each_target
@each_case
def test_last_tokens(case: Case, name: str, loaded: Load) -> None:
    given = at_the_end(case)
    check(loaded(name).attend(case, given), case, given)


@pytest.mark.parametrize("case", NARROW_CASES, ids=str)
def test_four_lanes(case: Case, loaded: Load) -> None:
    given = at_the_end(case)
    check(loaded(NARROW).attend(case, given), case, given)


@each_target
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_window(name: str, loaded: Load, data: st.DataObject) -> None:
    """Tokens may stand before, within and behind the keys of the slice."""
    case = data.draw(st.sampled_from(CASES))
    first = data.draw(st.integers(0, case.capacity - max(case.size, 1)))
    size = case.size or data.draw(st.integers(1, case.capacity - first))
    position = data.draw(st.integers(0, case.capacity))
    given = draw(case, position, first, size, seed=data.draw(st.integers(0, 9)))
    check(loaded(name).attend(case, given), case, given)


@each_target
@each_case
def test_what_nobody_sees_may_be_anything(case: Case, name: str, loaded: Load) -> None:
    """Other entries of the cache, keys outside of the slice or the window, tokens to come."""
    size = case.size or case.capacity // 2
    given = draw(case, position=size // 2, first=3 if not case.size else 0, size=size)
    hidden = ~given.seen(case).any(axis=0)
    assert hidden.any()
    clean = loaded(name).attend(case, given)
    given.cache[1] = np.nan
    for entry in (KEYS, VALUES):
        given.cache[entry][hidden] = [[[np.inf], [np.nan]][entry == VALUES] * case.depth]
        given.cache[entry][hidden, :, ::3] = -np.inf
    np.testing.assert_array_equal(loaded(name).attend(case, given), clean)


@each_target
@pytest.mark.parametrize("case", [c for c in CASES if c.tokens > 1], ids=str)
@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_a_token_spoils_what_comes_after_it_alone(
    case: Case, poison: float, name: str, loaded: Load
) -> None:
    given = at_the_end(case)
    clean = loaded(name).attend(case, given)
    token = case.tokens // 2
    key = given.position + token
    given.cache[VALUES, key, :, 5] = poison
    found = loaded(name).attend(case, given)
    np.testing.assert_array_equal(found[:token], clean[:token])
    after = given.seen(case)[:, key]
    assert not np.isfinite(found[after, ..., 5]).any()
    rest = np.arange(case.depth) != 5
    np.testing.assert_array_equal(found[..., rest], clean[..., rest])
    given.cache[KEYS, key, :, 1] = np.nan
    found = loaded(name).attend(case, given)
    np.testing.assert_array_equal(found[:token], clean[:token])
    assert np.isnan(found[after]).all()
    np.testing.assert_array_equal(found[~after], clean[~after])


@each_target
@each_case
def test_a_value_without_weight_is_not_there(case: Case, name: str, loaded: Load) -> None:
    """A key so far below the others that its weight is zero: its value may be infinite."""
    given = at_the_end(case)
    key = given.position
    given.queries[:] = np.abs(given.queries)
    given.cache[KEYS, key] = -60000.0
    given.cache[VALUES, key] = 0.0
    clean = loaded(name).attend(case, given)
    given.cache[VALUES, key] = np.inf
    np.testing.assert_array_equal(loaded(name).attend(case, given), clean)
    check(clean, case, replace(given, cache=np.where(np.isinf(given.cache), 0, given.cache)))


@each_target
@each_case
def test_without_sinks(case: Case, name: str, loaded: Load) -> None:
    given = at_the_end(case)
    given.sinks[:] = -np.inf
    check(loaded(name).attend(case, given), case, given)
    given.sinks[:] = 60.0
    check(loaded(name).attend(case, given), case, given)


@each_target
@each_case
def test_threads_do_not_change_results(case: Case, name: str, loaded: Load) -> None:
    given = at_the_end(case, seed=1)
    one, two = (loaded(name, threads).attend(case, given) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
