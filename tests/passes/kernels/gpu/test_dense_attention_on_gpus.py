"""Attention over dense keys and values by kernels for GPUs, against torch.

Kernels for waves of 64 run on the simulator; those for waves of 32 are interpreted as MLIR.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree.compiler import ir
from numpy.typing import NDArray

import mxc
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import KERNEL
from tests.passes import test_raise_attention as written
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels
from tests.passes.test_dense_attention import CASES, Case, check, draw, program

Array = NDArray[Any]

#: Sequences with one query, whose pieces have waves of their own; prompts, where a wave may have
#: two tiles of rows; part of a piece of keys, and several pieces; values of another size than keys.
OWN = [
    Case(1, 45, 64, 2, 4, 64, causal=True, element="bf16"),
    Case(1, 45, 64, 2, 4, 64, element="bf16"),
    Case(2, 40, 96, 1, 2, 32, causal=True, element="f16"),
    Case(1, 1, 544, 2, 8, 64, element="bf16"),
    Case(2, 33, 320, 1, 1, 128, mixed=48, element="bf16"),
    Case(1, 40, 333, 2, 2, 64, mask=(1, 4, 40), element="bf16"),
]
LOWEST = np.finfo(np.float32).min


@pytest.fixture(scope="module")
def compiled(watched: Callable[..., Any]) -> Any:
    return watched(program([*CASES, *OWN]).decode())


def attend(case: Case, given: list[Array], compiled: Any) -> Array:
    """Run a case on the simulator; assert that kernels of mxc compute it, without a finding."""
    compiled.seen.clear()
    (found,) = compiled.model.call(str(case), *given)
    kernels = [kernel for kernel, _ in compiled.seen if kernel.name.startswith("mxc_attention")]
    # The second kernel adds pieces up, if the call has several.
    assert len(kernels) == 2
    # Heads that are no multiple of 16 are copied first; dynamic sizes take a dispatch for the table
    # of sequences.
    if case.depth % 16 == 0:
        assert len(compiled.seen) == 2 + case.dynamic
    assert not [finding for _, sanitizer in compiled.seen for finding in sanitizer.findings]
    shape = (*given[0].shape[:-1], case.mixed or case.depth)
    return np.asarray(found).reshape(shape)


@pytest.mark.parametrize("case", [*CASES, *OWN], ids=str)
def test_kernels(case: Case, compiled: Any) -> None:
    given = draw(case)
    check(attend(case, given, compiled), case, given)


@pytest.mark.parametrize(("case", "one_tile"), [(OWN[0], False), (OWN[2], True)], ids=str)
def test_tiles_of_rows(case: Case, one_tile: bool, compiled: Any) -> None:
    """Two, where no sequence has a single query."""
    attend(case, draw(case), compiled)
    assert compiled.seen[0][0].name.endswith("_from_1") == one_tile


def test_registers_are_enough_for_a_mask(tmp_path: Path) -> None:
    """strict refuses kernels that keep registers in memory."""
    case = Case(2, 64, 100, 2, 1, 64, mask=(2, 1, 1), element="bf16")
    (tmp_path / "program.mlir").write_bytes(program([case]))
    output = tmp_path / "program.mxc"
    mxc.compile(tmp_path / "program.mlir", target="gfx950", output=output, strict=True)


def test_another_gpu(watched: Callable[..., Any]) -> None:
    compiled = watched(program(OWN).decode(), target="gfx942")
    for case in OWN:
        given = draw(case)
        check(attend(case, given, compiled), case, given)


@pytest.mark.parametrize("case", [c for c in [*CASES, *OWN] if c.mask], ids=str)
def test_a_row_of_which_all_is_masked(case: Case, compiled: Any) -> None:
    """Zero for -inf; of numbers that are only very low the mean of the values."""
    given = draw(case)
    given[3][...] = -np.inf
    assert not attend(case, given, compiled).any()
    given[3][...] = LOWEST
    check(attend(case, given, compiled), case, given)


#: Cases for waves of 32: keys that end within a block, each kind of mask, and more queries than
#: keys.
OF_32 = [
    Case(1, 7, 3, 2, 1, 16, causal=True),
    Case(2, 20, 45, 2, 2, 64, mask=(2, 4, 20)),
    Case(2, 9, 61, 2, 2, 64, mask=(2, 1, 9), dynamic=True),
    Case(2, 31, 31, 2, 1, 64, mask=(1, 1, 31), causal=True),
    Case(1, 3, 300, 1, 2, 32, mask=(1, 1, 1), element="bf16"),
]


@pytest.mark.parametrize("target", ["gfx1201", "gfx1250", "gfx1151"])
@pytest.mark.parametrize("case", OF_32, ids=str)
def test_waves_of_32(case: Case, target: str) -> None:
    given = draw(case)
    check(interpreted(case, given, target), case, given)
    if case.mask:
        given[3][...] = LOWEST
        given[3][..., :5] = -np.inf
        check(interpreted(case, given, target), case, given)


def interpreted(case: Case, given: list[Array], target: str) -> Array:
    """Interpret the first kernel of a case, and return its result. Pieces are not computed apart,
    so the second kernel has nothing to add up."""
    queries, keys, values, *mask = given
    count, tokens, heads, group, _ = queries.shape
    mixed = values.shape[-1]
    positions = keys.shape[1]
    last = 0 if case.causal else positions - 1
    runs = np.array([[n * tokens, tokens, last] for n in range(count)], np.int32)
    found = np.full((count, tokens, heads, group, mixed), np.nan, np.float32)
    operands = [
        queries,
        keys,
        np.full((heads, group), -np.inf, np.float32),
        runs,
        np.arange(count, dtype=np.int32),
        values,
        *mask,
        np.zeros(1, np.float32),
        found,
    ]
    flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in operands]
    dynamic = [positions] if case.dynamic else []
    scalars = [count * tokens, count, 1, count, 0, 0, *dynamic, int(count > 1)]
    with new_context():
        module = with_kernels(program([case]), target)
        (name,) = [
            name
            for op in module.body.operations
            if op.operation.name == KERNEL
            and (name := ir.StringAttr(op.attributes["sym_name"]).value).startswith("mxc_attention")
            and not name.endswith("_merged")
        ]
        lane_interpreter.run(module, flat, scalars, name)
    return np.asarray(flat[-1].view(np.float32)).reshape(found.shape)


@pytest.fixture(scope="module")
def raised(watched: Callable[..., Any]) -> Any:
    forms = [written.function(name, form) for name, form in written.FORMS.items() if form.kernel]
    return watched("".join(forms))


@pytest.mark.parametrize("name", [name for name, form in written.FORMS.items() if form.kernel])
def test_attention_that_is_written_out(name: str, raised: Any) -> None:
    form = written.FORMS[name]
    given = written.draw(form)
    raised.seen.clear()
    results = raised.model.call(name, *given)
    assert sum(kernel.name.startswith("mxc_attention") for kernel, _ in raised.seen) == 2
    assert not [finding for _, sanitizer in raised.seen for finding in sanitizer.findings]
    (found,) = results if isinstance(results, list | tuple) else [results]
    wanted = written.expected(form, given)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)
