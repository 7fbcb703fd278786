"""Attention whose last wave adds the pieces up, with workgroups in two orders.

The result has the bits of attention by two kernels, the second of which adds the pieces up. gfx950
and gfx942 are simulated, waves of 32 are interpreted. Faults are a missing fence or a wrong count.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree.compiler import ir
from numpy.typing import NDArray

import mxc
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import KERNEL
from mxc.passes.kernels.gpu.attention.shape import TAIL
from mxc.simulator.host import hal
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from tests.passes.attention_cases import KEYS, Case, Inputs, check, draw, program
from tests.passes.kernels.gpu import counted_attention, lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels
from tests.passes.kernels.gpu.test_attention_of_32 import attend, pieces_of

#: A token whose rows fill two tiles, with a result in bf16; values that two waves share, with a
#: window.
TWO, SLICED = Case(1, 20, 32, rounded=True), Case(1, 2, 256, reach=300)
#: Decoded tokens and part of a prompt, over one piece of keys and several.
LENGTHS = [(3, 254), (1, 513), (1, 0), (1, 255)]
each_order = pytest.mark.parametrize("backwards", [False, True])

Compiled = Callable[[str, Case], Any]
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def compiled(watched: Callable[..., Any]) -> Compiled:
    """Return a function that compiles a case twice: with attention after the kernel that writes
    keys and values, and with attention alone."""

    @functools.cache
    def make(target: str, case: Case) -> tuple[Any, Any]:
        alone = watched(program([case]).decode(), target=target)
        return watched(counted_attention.program(case), target=target), alone

    return make


def result(found: Any, case: Case, given: Inputs) -> Floats:
    """Return a result as f32 [T, V, G, mixed]."""
    whole = np.asarray(found).astype(np.float32)
    return whole.reshape(*given.queries.shape[:3], case.mixed)


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
@each_order
def test_one_dispatch_has_the_bits_of_two(
    target: str,
    backwards: bool,
    compiled: Compiled,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = TWO
    counted, alone = compiled(target, case)
    given = draw(case, LENGTHS)
    wanted = result(alone.model.call(str(case), *given.arrays), case, given)
    # Three waves run at once, so that the last wave of a tile is in a later batch.
    monkeypatch.setattr(hal, "launch", functools.partial(launch, waves=3, backwards=backwards))
    counted.seen.clear()
    found = counted.model.call("counted", *counted_attention.arguments(case, given))
    assert [kernel.name.split("_")[1] for kernel, _ in counted.seen] == ["rotary", "attention"]
    assert not [finding for _, sanitizer in counted.seen for finding in sanitizer.findings]
    found = result(found[0], case, given)
    check(found, case, given)
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))


@each_order
@pytest.mark.parametrize("fence", ["buffer_wbl2", "buffer_inv"])
def test_a_fence_that_is_missing_is_a_race(
    fence: str, backwards: bool, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(made: TranslatedKernel, *given: Any, **options: Any) -> int:
        kernel, code = made.kernel, bytearray(made.kernel.code)
        for i in made.instructions:
            if i.name == fence:
                first = i.address - kernel.address
                code[first : first + i.size] = b"\0\0\x80\xbf" * (i.size // 4)
        changed = TranslatedKernel(replace(kernel, code=bytes(code)), observed=True)
        return launch(changed, *given, backwards=backwards, **options)

    case = TWO
    counted, _ = compiled("gfx950", case)
    monkeypatch.setattr(hal, "launch", without)
    counted.seen.clear()
    given = draw(case, LENGTHS)
    counted.model.call("counted", *counted_attention.arguments(case, given))
    found = {f.kind for _, sanitizer in counted.seen for f in sanitizer.findings}
    assert found == {"race"}


def test_zeros_are_used_once(watched: Callable[..., Any]) -> None:
    """The second attention over what one kernel has written has two dispatches."""
    case = TWO
    made = watched(counted_attention.program(case, times=2))
    given = draw(case, LENGTHS)
    first, second, _ = made.model.call("counted", *counted_attention.arguments(case, given))
    names = sorted(kernel.name for kernel, _ in made.seen)
    assert len(names) == 4
    assert sum("merged" in name for name in names) == 1
    assert not [finding for _, sanitizer in made.seen for finding in sanitizer.findings]
    check(result(first, case, given), case, given)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


@pytest.mark.parametrize(
    ("target", "case"),
    [
        ("gfx950", Case(8, 3, 64)),
        ("gfx942", Case(8, 8, 64)),
        ("gfx1250", Case(8, 8, 64)),
        ("gfx1250", Case(8, 2, 256, cap=50.0, reach=4096)),
    ],
    ids=str,
)
def test_registers_are_enough(target: str, case: Case, tmp_path: Path) -> None:
    """Heads of Granite 3.1 3B-A800M, gpt-oss and Gemma 2: strict refuses kernels that keep
    registers in memory."""
    (tmp_path / "counted.mlir").write_text(counted_attention.program(case))
    output = tmp_path / "counted.mxc"
    mxc.compile(tmp_path / "counted.mlir", target=target, output=output, strict=True)


@functools.cache
def lowered(target: str, case: Case) -> ir.Module:
    """Return the MLIR of a case with its kernels."""
    with new_context():
        return with_kernels(counted_attention.program(case), target)


def interpreted(target: str, case: Case, given: Inputs, start: int, backwards: bool) -> Floats:
    """Interpret the kernel of a case in waves of 32, with counters that begin at `start`."""
    queries, sinks, _, runs, pool, lists = given.arrays
    tokens, count, rows = len(queries), len(runs), case.heads * case.group
    pieces = pieces_of(given)
    parts = np.full(count * pieces * rows * (case.mixed + TAIL), np.nan, np.float32)
    kind = np.uint16 if case.rounded else np.float32
    found = np.full(tokens * rows * case.mixed, np.nan, np.float32).astype(kind)
    counters = np.full(tokens * rows, start, np.int32)
    flat = [
        np.ascontiguousarray(each).reshape(-1).view(np.uint8)
        for each in (queries, pool, sinks, runs, lists, counters, parts, found)
    ]
    scalars = [tokens, count, lists.shape[1], len(pool), KEYS, case.values, pieces]
    module = lowered(target, case)
    with module.context:
        (name,) = [
            name
            for op in module.body.operations
            if op.operation.name == KERNEL
            and "attention" in (name := ir.StringAttr(op.attributes["sym_name"]).value)
        ]
        lane_interpreter.run(module, flat, scalars, name, backwards=backwards)
    whole: NDArray[Any] = flat[-1].view(kind)
    if case.rounded:
        whole = (whole.astype(np.uint32) << 16).view(np.float32)
    return whole.reshape(*queries.shape[:3], case.mixed)


@pytest.mark.parametrize("target", ["gfx1201", "gfx1250", "gfx1151"])
@each_order
def test_waves_of_32(target: str, backwards: bool) -> None:
    case = SLICED if target == "gfx1201" else TWO
    given = draw(case, [(1, 257), (1, 3)])
    found = interpreted(target, case, given, 0, backwards)
    check(found, case, given)
    wanted = attend(target, case, given, pieces_of(given))
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))


@each_order
def test_a_count_that_is_off_by_one_is_seen(backwards: bool) -> None:
    """The last wave has not stored when the others are added up, or nobody adds them up."""
    case = Case(1, 2, 32)
    given = draw(case, [(1, 257)])
    for start in (1, -1):
        found = interpreted("gfx1201", case, given, start, backwards)
        assert np.isnan(found).any()
