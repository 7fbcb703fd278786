"""CPU kernels of attention against float64, where rows, keys and heads do not fill tiles or lanes.

All cases are functions of one program, compiled as a model is, for this machine and, if it has
AVX-512, also for AVX2. If the CPU has no kernels, the same functions run as portable code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iree import runtime as rt
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.steps import Compiled, CompileRequest
from mxc.dialects.attention import AttentionChunk
from mxc.dialects.context import new_context
from mxc.passes.base import run
from mxc.passes.kernels.attention.shape import (
    ENOUGH_TOKENS,
    MOST_SCRATCH,
    PIECE_KEYS,
    CpuAttention,
)
from mxc.passes.kernels.attention.tiled_shape import BITS, LEAST_GROUP
from mxc.passes.kernels.cpu.isa import best_isa
from mxc.passes.lower_named_operations_to_cpu_kernels import LowerNamedOperationsToCpuKernels
from mxc.runtime.device import open_device
from mxc.targets.target import target
from tests.passes.attention_cases import (
    ENTRIES,
    KEYS,
    VALUES,
    Case,
    Inputs,
    check,
    draw,
    expected,
    program,
    seen,
)

HOST = iree.resolve(target("cpu"))
#: This machine, and AVX2 if this machine has the wider registers of AVX-512.
TARGETS = ["cpu"] + ["cpu:x86-64-v3"] * HOST.has_any(("avx512bw",))
each_target = pytest.mark.parametrize("name", TARGETS)

#: Groups of one tile, of less, of more, and that tiles do not divide; windows and chunks smaller
#: than a block of keys and larger than a piece; heads of one to eight registers, in pairs of bf16
#: or not; values that are too many to copy, and more heads than a workgroup has; heads of so many
#: elements that registers have eight lanes; latent values, with keys so long that a block is one
#: register of keys; capped scores; packed pools.
CASES = [
    Case(2, 8, 64),
    Case(1, 3, 80, "f16", reach=300),
    Case(2, 1, 16, "f32"),
    Case(2, 12, 48, "bf16", "bf16"),
    Case(4, 4, 32, reach=20),
    Case(2, 1, 128, "f32", reach=7),
    Case(1, 5, 112, "bf16", "f16", reach=AttentionChunk(300)),
    Case(1, 16, 64, cap=3.0),
    Case(100, 1, 16),
    Case(2, 6, 256),
    Case(1, 12, 576, latent=512),
    Case(2, 3, 48, "f32", reach=7, latent=32),
    Case(1, 6, 32, reach=AttentionChunk(20)),
    Case(2, 8, 64, "mxint8"),
    Case(2, 8, 64, "mxfp8e4m3"),
    Case(1, 3, 96, "mxint8", reach=20),
    Case(4, 4, 32, "mxfp8e4m3", "bf16"),
    Case(1, 12, 256, "mxint8", cap=3.0),
    Case(1, 12, 576, "mxint8", latent=512),
    Case(2, 8, 64, "fp8e4m3"),
    Case(1, 3, 96, "fp8e4m3", reach=20),
    Case(1, 12, 256, "fp8e4m3", cap=3.0),
    Case(1, 12, 576, "fp8e4m3", latent=512),
    Case(2, 8, 64, bits=16),
    Case(3, 9, 128, reach=20, bits=16),
    Case(1, 20, 80, "bf16", "bf16", reach=AttentionChunk(300), bits=16),
    Case(10, 8, 16, reach=300, bits=16),
    Case(1, 12, 192, cap=3.0, bits=16),
    Case(1, 17, 96, latent=48, bits=16),
    Case(1, 4, 32, bits=16),
    Case(2, 8, 64, "f16", bits=16),
]
#: Cases that are computed on AMX tiles, if the CPU has them.
TILED = [
    case
    for case in CASES
    if case.bits == BITS and case.pool == "bf16" and case.group >= LEAST_GROUP
]
#: Cases in which values are not part of the keys, so that they alone can be NaN.
APART = [case for case in CASES if not case.latent]
FLOATS = [case for case in APART if case.format is None]
each_case = pytest.mark.parametrize("case", CASES, ids=str)

#: Runs of a call as (tokens, positions before): one decoded token; several; a prompt; parts of
#: prompts beside decoded tokens, over one piece of keys and over several.
CALLS = {
    "one token": [(1, 700)],
    "tokens": [(1, 0), (1, 63), (1, 300), (1, 255)],
    "a prompt": [(45, 0)],
    "chunks": [(30, 250), (1, 513), (3, 127), (1, 5), (64, 0), (2, 600)],
}
each_call = pytest.mark.parametrize("lengths", CALLS.values(), ids=CALLS)
#: So many runs that pieces are not computed apart; beside a prompt, tiles take up to 512 rows each.
COMPANY = [(1, 3 * i % 70) for i in range(ENOUGH_TOKENS)]


class Sizes(CpuAttention):
    """A kernel without a body, for its sizes."""

    def body(self, *buffers: ir.Value) -> None:
        raise NotImplementedError

    def merge(self, *buffers: ir.Value) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Loaded:
    """The program for a target, ready to be called."""

    context: rt.VmContext
    module: rt.VmModule
    device: Any
    report: dict[str, Any]
    notes: tuple[str, ...]

    def attend(self, case: Case, given: Inputs) -> NDArray[np.float32]:
        function = self.module.lookup_function(str(case))
        entry = rt.FunctionInvoker(self.context, self.device, function)
        return np.array(entry(*given.arrays).to_host())


Load = Callable[..., Loaded]

#: The name of a program with a case that no kernel takes, and the case.
UNEVEN, NO_KERNEL = "uneven", Case(2, 2, 40)

#: The name of a program with kernels for the four lanes of NEON, which run on any CPU with
#: multiply-adds, and its cases: only one has long heads, because they take long to compile.
NARROW = "four lanes"
NARROW_CASES = [
    case for case in CASES if case.heads == 1 and (case.depth <= 112 or case.pool == "fp8e4m3")
]
NARROW_CASES.remove(Case(1, 12, 576, "fp8e4m3", latent=512))


def narrow() -> bytes:
    compiler = iree.Compiler(HOST, program(NARROW_CASES))
    run((LowerNamedOperationsToCpuKernels(lanes=4),), compiler.module)
    return str(compiler.module).encode()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Return a function that loads the program for a target, with a number of threads."""
    whole = program(CASES)

    @cache
    def compiled(name: str) -> tuple[Path, Compiled]:
        source = {UNEVEN: program([NO_KERNEL])}.get(name, whole)
        if name == NARROW:
            source = narrow()
        name = name if name in TARGETS else "cpu"
        folder = tmp_path_factory.mktemp("attention")
        file = folder / "module.vmfb"
        request = CompileRequest(
            program=source, place="attention", target=name, module=file, parameters=True
        )
        made = compile_here(request, None, folder / "program", lambda step: None)
        return file, made

    @cache
    def load(name: str = "cpu", threads: int = 2) -> Loaded:
        device = open_device("local-task", threads, "test")
        instance = rt.VmInstance()
        file, made = compiled(name)
        module = rt.VmModule.mmap(instance, str(file))
        modules = [rt.create_hal_module(instance, device), module]
        context = rt.VmContext(instance, modules)
        return Loaded(context, module, device, made.report, made.notes)

    return load


def test_what_no_kernel_takes_is_a_note(loaded: Load) -> None:
    """With the reason; the numbers are right."""
    found = loaded(UNEVEN)
    (note,) = found.notes
    assert (
        "IREE's code generator computes @mxc.attention: keys have 40 elements, values 40;" in note
    )
    given = draw(NO_KERNEL, CALLS["chunks"])
    check(found.attend(NO_KERNEL, given), NO_KERNEL, given)


@each_target
@each_case
def test_kernels_are_used_where_the_cpu_has_them(case: Case, name: str, loaded: Load) -> None:
    rows = [row for row in loaded(name).report["operations"] if row["function"] == str(case)]
    ours = [row["kernel"].startswith("mxc_attention") for row in rows]
    if iree.resolve(target(name)).has_any(("fma",)):
        assert ours == [True, True]
    else:
        assert not any(ours)


@each_case
def test_tiles_are_used_where_the_cpu_has_them(case: Case, loaded: Load) -> None:
    rows = [row for row in loaded("cpu").report["operations"] if row["function"] == str(case)]
    tiled = [row for row in rows if "_tiles" in row["kernel"]]
    assert bool(tiled) == (case in TILED and best_isa(HOST) == "amx-bf16")
    (why,) = [row["choice"] or "" for row in rows if not row["kernel"].endswith("_merged")]
    assert why.startswith("no tiles: ") == (best_isa(HOST) == "amx-bf16" and case not in TILED)


@pytest.mark.parametrize("group", [1, 3, 4, 8, 20, 128])
def test_scratch_is_on_the_stack(group: int) -> None:
    """A kernel has 32 KiB of scratch, however many heads there are."""
    with new_context():
        for heads, lanes, depth, element in product(
            (1, 8, 64, 128, 1000), (4, 8, 16), (32, 64, 96, 128), ("bf16", "f32", "mxint8")
        ):
            kernel = Sizes(
                heads=heads, group=group, depth=depth, mixed=depth, entries=2, element=element,
                sinks="f32", scale=1.0, cap=None, reach=None, positions=64, lanes=lanes,
            )  # fmt: skip
            assert kernel.scratch_bytes <= MOST_SCRATCH


@each_target
@each_call
@each_case
def test_runs(case: Case, lengths: list[tuple[int, int]], name: str, loaded: Load) -> None:
    given = draw(case, lengths)
    check(loaded(name).attend(case, given), case, given)


@each_target
@pytest.mark.parametrize("pool", ["fp8e4m3", "mxfp8e4m3"])
def test_each_code_of_a_key(pool: str, name: str, loaded: Load) -> None:
    """One key per token, whose first element is a code, so that its score is 1 or -1."""
    case = Case(2, 8, 64, pool)
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    codes = codes[np.isfinite(codes) & (codes != 0)]
    given = draw(case, [(1, 0)] * len(codes))
    given.queries[...] = 0
    given.queries[..., 0] = (8 / np.abs(codes.astype(np.float32)))[:, None, None]
    for number, code in enumerate(codes):
        page, place = given.place(number, 0)
        # The second element makes the scale of the block 1; queries multiply it by zero.
        given.pool[page, KEYS, place, :, :2] = float(code), 448
    found, (wanted, _) = loaded(name).attend(case, given), expected(case, given)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(given.pool[:, VALUES]).max()


@pytest.mark.parametrize("case", NARROW_CASES, ids=str)
def test_four_lanes(case: Case, loaded: Load) -> None:
    given = draw(case, CALLS["chunks"])
    check(loaded(NARROW).attend(case, given), case, given)


@each_target
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_runs(name: str, loaded: Load, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    lengths = st.tuples(st.integers(1, 40), st.integers(0, 600))
    given = draw(case, data.draw(st.lists(lengths, min_size=1, max_size=6)))
    check(loaded(name).attend(case, given), case, given)


@each_target
@each_case
def test_a_row_has_the_same_bits_in_any_call(case: Case, name: str, loaded: Load) -> None:
    """Alone and in company; of a prompt, a chunk or one token; with pieces of keys apart or not."""
    count, before = 2 * PIECE_KEYS + 40, 17
    given = draw(case, [(count, before), (9, 2), (1, 3 * PIECE_KEYS), *COMPANY]).fixed()
    attend = loaded(name).attend
    whole = attend(case, given)
    others = [(run, 0, 1) for run in range(3, 3 + len(COMPANY))]
    cuts = [0, 1, 8, 100, 101, 367, 512, count]
    chunks = [(0, first, end - first) for first, end in pairwise(cuts)]
    # Which pieces a call computes apart depends on its runs, not on their rows. So each chunk and
    # each token of the prompt has one of the companies, and each company has some of both.
    companies = [[], [(1, 0, 9)], [(2, 0, 1)], others]
    for chunk, company in zip(chunks, cycle(companies), strict=False):
        assert_same(attend, case, given, whole, [*company, chunk])
    companies = [[], [(2, 0, 1)], others, [(1, 0, 4), *others]]
    for token, company in zip((0, 5, 239, 240, 495, count - 1), cycle(companies), strict=False):
        assert_same(attend, case, given, whole, [(0, token, 1), *company])


def assert_same(
    attend: Callable[[Case, Inputs], NDArray[np.float32]],
    case: Case,
    given: Inputs,
    whole: NDArray[np.float32],
    lengths: Sequence[tuple[int, int, int]],
) -> None:
    """Assert that the rows of a call of parts (`Inputs.some`) have the same bits as in `whole`."""
    found = attend(case, given.some(case, lengths))
    rows = [given.runs[run, 0] + first + i for run, first, n in lengths for i in range(n)]
    np.testing.assert_array_equal(found.view(np.int32), whole[rows].view(np.int32))


@each_target
@each_call
@each_case
def test_what_nobody_sees_may_be_anything(
    case: Case, lengths: list[tuple[int, int]], name: str, loaded: Load
) -> None:
    """Other entries, other pages, positions before the window and past the last token."""
    given = draw(case, lengths)
    hidden = ~seen(case, given)
    clean = loaded(name).attend(case, given)
    for entry in range(ENTRIES):
        unused = entry not in (KEYS, case.values)
        given.pool[:, entry][np.full_like(hidden, True) if unused else hidden] = np.nan
        given.pool[:, entry, :, :, ::3][hidden] = -np.inf
    np.testing.assert_array_equal(loaded(name).attend(case, given), clean)


@each_target
@pytest.mark.parametrize(
    ("case", "poison"),
    # No packed format has infinities.
    [(case, np.nan) for case in APART] + [(case, np.inf) for case in FLOATS],
    ids=str,
)
def test_a_token_spoils_what_comes_after_it_alone(
    case: Case, poison: float, name: str, loaded: Load
) -> None:
    count, before = 11, 270
    given = draw(case, [(5, 20), (count, before), (1, 400)])
    rows, token = given.rows_of(1), count // 2
    page, at = given.place(1, before + token)
    clean = loaded(name).attend(case, given)
    sees = np.zeros(len(clean), bool)
    for i in range(token, count):
        sees[rows.start + i] = case.first_seen(before + i) <= before + token
    given.pool[page, VALUES, at, :, 5] = poison
    found = loaded(name).attend(case, given)
    np.testing.assert_array_equal(found[~sees], clean[~sees])
    assert not np.isfinite(found[sees, ..., 5]).any()
    rest = np.arange(case.depth) // case.block != 5 // case.block
    np.testing.assert_array_equal(found[..., rest], clean[..., rest])
    given.pool[page, KEYS, at, :, 1] = np.nan
    found = loaded(name).attend(case, given)
    np.testing.assert_array_equal(found[~sees], clean[~sees])
    assert np.isnan(found[sees]).all()


@each_target
@pytest.mark.parametrize("case", [case for case in FLOATS if not case.cap], ids=str)
def test_a_value_without_weight_is_not_there(case: Case, name: str, loaded: Load) -> None:
    """A key so far below the others that its weight is zero: its value may be infinite."""
    given = draw(case, [(4, 301)])
    page, at = given.place(0, 301)
    given.queries[:] = np.abs(given.queries)
    given.pool[page, KEYS, at] = -60000.0
    given.pool[page, VALUES, at] = 0.0
    if case.first_seen(301) < 301:
        # The first token sees only this key, which then has all of the weight.
        clean = loaded(name).attend(case, given)
        given.pool[page, VALUES, at] = np.inf
        np.testing.assert_array_equal(loaded(name).attend(case, given), clean)
        pool = np.where(np.isinf(given.pool), 0, given.pool)
        check(clean, case, replace(given, pool=pool))


@each_target
@each_case
def test_without_sinks(case: Case, name: str, loaded: Load) -> None:
    given = draw(case, [(7, 250), (1, 600)])
    given.sinks[:] = -np.inf
    check(loaded(name).attend(case, given), case, given)
    given.sinks[:] = 60.0
    check(loaded(name).attend(case, given), case, given)


@each_target
@each_case
def test_threads_do_not_change_results(case: Case, name: str, loaded: Load) -> None:
    given = draw(case, CALLS["chunks"], seed=1)
    one, two = (loaded(name, threads).attend(case, given) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
