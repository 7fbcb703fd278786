"""CPU kernels of recurrences, and their reference bodies, against float64, and against themselves
with runs cut into pieces.

All cases are functions of one program, compiled as a model is: for this machine, for AVX2 if this
machine runs it, and for a CPU without multiply-adds, which has only the reference.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from iree import runtime as rt

from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.pipelines import pipeline
from mxc.compiler.steps import CompileRequest
from mxc.passes.base import run
from mxc.passes.lower_named_operations_to_cpu_kernels import LowerNamedOperationsToCpuKernels
from mxc.runtime.device import open_device
from mxc.targets.target import target
from tests.passes.recurrence_cases import (
    Array,
    Case,
    Convolution,
    Given,
    Rule,
    check,
    check_cuts,
    draw,
    program,
)

HOST = iree.resolve(target("cpu"))
HAS_KERNELS = HOST.has_any(("fma", "neon"))
#: NARROW: kernels for the four lanes of NEON, which run on any CPU with multiply-adds.
NARROW, REFERENCE = "four lanes", "reference"
TARGETS = ["cpu", REFERENCE]
TARGETS += ["cpu:x86-64-v3"] * HOST.has_any(("avx512bw",)) + [NARROW] * HAS_KERNELS

#: States of one register of columns, of several, and of several workgroups; one or several heads of
#: values for a head of keys, also odd numbers; a decay for each row of a state.
RULES = [
    Rule(2, 4, 16, 32),
    Rule(1, 3, 128, 64),
    Rule(2, 2, 8, 16, layers=1),
    Rule(3, 3, 24, 48, layers=3),
    Rule(2, 2, 16, 32, each=True),
    Rule(1, 1, 72, 96, each=True),
    Rule(1, 1, 128, 128, each=True),
]
#: One register and several; odd widths; every type of weights.
CONVOLUTIONS = [
    Convolution(192, 4),
    Convolution(16, 2, "f16", layers=1),
    Convolution(80, 3, "f32"),
    Convolution(48, 8, layers=3),
]
CASES: list[Case] = [*RULES, *CONVOLUTIONS]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_target = pytest.mark.parametrize("name", TARGETS)

#: Runs of a call as (rows, positions before): one run; several, some of them new; and more runs of
#: one row than slots for the lanes of a workgroup.
RUNS = [
    [(1, 7)],
    [(1, 0)],
    [(9, 0)],
    [(1, 5), (7, 0), (3, 2), (1, 1), (12, 40)],
    [(1, n % 3) for n in range(19)],
]

Call = Callable[[str, Case, Given], tuple[Array, Array]]


def lowered(lanes: int, source: str) -> str:
    """Return a program with kernels for registers of `lanes` lanes."""
    compiler = iree.Compiler(HOST, source.encode())
    run((LowerNamedOperationsToCpuKernels(lanes=lanes),), compiler.module)
    return str(compiler.module)


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Return a function that computes a case on a target: the result, and the pool afterwards."""
    device = open_device("local-task", 2, "test")

    @cache
    def loaded(name: str) -> tuple[rt.VmContext, rt.VmModule]:
        source = program(CASES)
        kind = {NARROW: "cpu", REFERENCE: "cpu:x86-64"}.get(name, name)
        if name == NARROW:
            source = lowered(4, source)
        folder: Path = tmp_path_factory.mktemp("recurrences")
        file = folder / "module.vmfb"
        request = CompileRequest(
            program=source.encode(), place="cases", target=kind, module=file, parameters=True
        )
        compile_here(request, None, folder / "program", lambda step: None)
        instance = rt.VmInstance()
        module = rt.VmModule.mmap(instance, str(file))
        modules = [rt.create_hal_module(instance, device), module]
        return rt.VmContext(instance, modules), module

    def compute(name: str, case: Case, given: Given) -> tuple[Array, Array]:
        context, module = loaded(name)
        entry = rt.FunctionInvoker(context, device, module.lookup_function(str(case)))
        # The program may write to its arguments.
        arguments = [
            each.copy() if isinstance(each, np.ndarray) else each for each in given.arguments
        ]
        result, pool = entry(*arguments)
        return np.array(result.to_host()), np.array(pool.to_host())

    return compute


def test_kernels_are_used_where_the_cpu_has_them() -> None:
    source = program(CASES)
    for name in ("cpu", "cpu:x86-64-v3", "cpu:x86-64"):
        record = iree.resolve(target(name))
        compiler = iree.Compiler(record, source.encode())
        stages = pipeline(name).stages
        run([p for stage in stages if stage.phase is None for p in stage.passes], compiler.module)
        left = str(compiler.module).count("util.call")
        assert left == (0 if record.has_any(("fma", "neon")) else len(CASES))


@each_target
@each_case
@pytest.mark.parametrize("runs", RUNS, ids=str)
def test_runs(case: Case, runs: list[tuple[int, int]], name: str, call: Call) -> None:
    given = draw(case, runs)
    check(case, given, *call(name, case, given))


@each_target
@each_case
def test_a_new_sequence_reads_no_state(case: Case, name: str, call: Call) -> None:
    """What the slot held before may be anything, as may what is in the slots of nobody."""
    given = draw(case, [(3, 0), (2, 0)])
    given.pool[:] = np.nan
    result, pool = call(name, case, given)
    assert np.isfinite(result).all()
    kept = np.zeros(pool.shape[:2], bool)
    kept[given.places, given.layer] = True
    assert np.isfinite(pool[kept]).all()
    assert np.isnan(pool[~kept]).all()


@each_target
@each_case
@pytest.mark.parametrize("start", [0, 6])
def test_cuts_and_company_change_no_bit(case: Case, start: int, name: str, call: Call) -> None:
    check_cuts(case, start, lambda given: call(name, case, given))
