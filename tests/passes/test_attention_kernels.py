"""Attention kernels against float64, over every way that rows, keys and registers can be ragged.

All cases are functions of one program, compiled the way a model is, for this machine and for AVX2
where it runs that. Where the CPU has no kernels the same functions run as portable code.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_cases import KEYS, VALUES, Case, Inputs, at_the_end, check, draw, program
from hypothesis import given, settings
from hypothesis import strategies as st
from iree import runtime as rt
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.pipelines import pipeline
from mxc.compiler.steps import Request
from mxc.dialects.attention import Chunk
from mxc.passes.base import run
from mxc.passes.lower_attention_to_cpu_kernels import LowerAttentionToCpuKernels
from mxc.runtime.device import open_device
from mxc.targets.target import target

HOST = iree.resolve(target("cpu"))
#: For this machine, and for the registers of AVX2 where they are not those of this machine.
TARGETS = ["cpu"] + ["cpu:x86-64-v3"] * HOST.has_any(("avx512bw",))
each_target = pytest.mark.parametrize("name", TARGETS)

#: One token over pieces of keys, with a group that is a tile, less than one and more than one; a
#: window that is one workgroup a head; tiles of several tokens, of parts of one and of neither;
#: several blocks of rows; head sizes of one register to eight, in pairs of bf16 or not; a tile of
#: every rest of rows; values that are too many to copy, and heads for one workgroup; heads of so
#: many elements that registers have eight lanes; values that are the first elements of keys, of so
#: many elements that a block is one register of keys; chunks.
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
    Case(1, 2, 6, 256, 300),
    Case(11, 1, 8, 256, 90),
    Case(1, 1, 12, 576, 300, latent=512),
    Case(5, 2, 3, 48, 90, "f32", width=7, latent=32),
    Case(33, 1, 6, 32, 120, width=Chunk(20)),
]
#: Those whose values can be poisoned alone.
APART = [case for case in CASES if not case.latent]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


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
    whole = program(CASES)

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


def test_kernels_are_used_where_the_cpu_has_them() -> None:
    source = program(CASES)
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
    for entry in {KEYS, case.values}:
        given.cache[entry][hidden] = [[[np.inf], [np.nan]][entry == VALUES] * case.depth]
        given.cache[entry][hidden, :, ::3] = -np.inf
    np.testing.assert_array_equal(loaded(name).attend(case, given), clean)


@each_target
@pytest.mark.parametrize("case", [c for c in APART if c.tokens > 1], ids=str)
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
@pytest.mark.parametrize("case", APART, ids=str)
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
