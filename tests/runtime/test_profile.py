"""Profiles: how wall time is divided, and what IREE's profiler says of calls that we count."""

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxc.artifact.manifest import REPORT
from mxc.errors import RequestError
from mxc.runtime import capture, load
from mxc.runtime.capture import CapturedCall, CapturedDispatch, CapturedProgram, split
from mxc.runtime.profile import OperationRow, divided, operations, profile_model, summarise
from mxc.targets.tile_permission import refusal


def dispatch(kernel: str, start: int, end: int, busy: int | None = None) -> CapturedDispatch:
    return CapturedDispatch(
        kernel=kernel, start=start, end=end, busy=end - start if busy is None else busy
    )


def operation(
    kernel: str, name: str, size: int | None = None, flops: int | None = 0
) -> dict[str, Any]:
    return {
        "function": "f", "name": name, "kernel": kernel, "bytes_moved": size, "flops": flops,
        "samples": {},
    }  # fmt: skip


def test_an_instant_is_split_among_those_that_run() -> None:
    #  a: 0 ........ 10    b:    4 .. 6      c:        8 .... 12     d: 20 .. 21
    calls = [dispatch("a", 0, 10), dispatch("b", 4, 6), dispatch("c", 8, 12), dispatch("d", 20, 21)]
    assert divided(calls) == [4 + 1 + 2 + 1, 1, 1 + 2, 1]
    assert divided([]) == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12))
def test_the_parts_are_the_time_in_which_any_ran(intervals: list[tuple[int, int]]) -> None:
    calls = sorted(
        (dispatch("k", min(interval), max(interval)) for interval in intervals),
        key=lambda each: each.start,
    )
    covered = np.zeros(40, bool)
    for each in calls:
        covered[each.start : each.end] = True
    parts = divided(calls)
    assert sum(parts) == pytest.approx(covered.sum())
    for each, part in zip(calls, parts, strict=True):
        assert -1e-9 <= part <= each.end - each.start + 1e-9


def test_rows_of_layers_and_their_sum() -> None:
    call = CapturedCall(
        seconds=100e-9,
        dispatches=(
            dispatch("f_dispatch_0_norm_8", 10, 20),
            dispatch("mm_8x8", 20, 50, busy=55),
            dispatch("f_dispatch_1_norm_8", 50, 55),
            dispatch("mm_8x8", 60, 90, busy=60),
            dispatch("unknown", 90, 91),
        ),
    )
    known = [
        operation("f_dispatch_0_norm_8", "layers.0.norm", 40),
        operation("mm_8x8", "layers.0.q", 300, 600),
        operation("f_dispatch_1_norm_8", "layers.1.norm", 40),
        operation("mm_8x8", "layers.1.q", 300, 600),
    ]
    profile = summarise(call, known, function="f", position=3, tokens=1, threads=2, undisturbed=1.0)
    assert [(row.name, row.calls) for row in profile.operations] == [
        ("layers.*.q", 2),
        ("layers.*.norm", 2),
        ("unknown", 1),
    ]
    assert [row.milliseconds for row in profile.operations] == pytest.approx([60e-6, 15e-6, 1e-6])
    assert [row.share for row in profile.operations] == pytest.approx([0.6, 0.15, 0.01])
    q, norm, unknown = profile.operations
    assert q.busy == pytest.approx(115 / 120)
    assert (q.gigabytes_per_second, q.gflop_per_second) == pytest.approx((10.0, 20.0))
    assert norm.gigabytes_per_second == pytest.approx(80 / 15)
    assert norm.gflop_per_second is None
    assert unknown.gigabytes_per_second is None
    # The two norms are different kernels of one text: one row, no list of kernels.
    assert norm.kernels == ()
    assert profile.around_operations == pytest.approx(19e-6)
    assert profile.between_operations == pytest.approx(5e-6)
    assert total(profile.operations) + 24e-6 == pytest.approx(profile.milliseconds)


def total(rows: tuple[OperationRow, ...]) -> float:
    return sum(row.milliseconds for row in rows)


def test_an_operation_of_several_kernels() -> None:
    call = CapturedCall(seconds=1e-6, dispatches=(dispatch("a", 0, 10), dispatch("b", 10, 40)))
    known = [operation("a", "attention", 5), operation("b", "attention", None)]
    profile = summarise(call, known, function="f", position=0, tokens=1, threads=1, undisturbed=1.0)
    (row,) = profile.operations
    assert [kernel.name for kernel in row.kernels] == ["b", "a"]
    assert row.gigabytes_per_second is None
    assert [kernel.gigabytes_per_second for kernel in row.kernels] == [None, 0.5]


def test_dispatches_are_dealt_out_to_calls() -> None:
    own = [dispatch(kernel, at, at + 1) for at, kernel in enumerate("xababab")]
    calls = split(own, [1.0, 2.0, 3.0], "f")
    assert [call.seconds for call in calls] == [1.0, 2.0, 3.0]
    assert ["".join(d.kernel for d in call.dispatches) for call in calls] == ["ab"] * 3
    with pytest.raises(RequestError, match="recorded 4 dispatches, which are not the same in each"):
        split([dispatch(kernel, 0, 1) for kernel in "abaa"], [1.0, 1.0], "f")
    with pytest.raises(RequestError, match="timed no call"):
        split([], [], "f")


def test_calls_as_the_profiler_saw_them(toy_artifact: Path, tmp_path: Path) -> None:
    """Four calls of a program with two dispatches, by names that the compiler gave."""
    program = CapturedProgram(
        module=toy_artifact / "module.vmfb", archives=(), device="local-task", threads=2
    )
    inputs = ["1xi32=3", "1xi32=2", "1x3xi32=0 1 2", "1xi32=0", "1xi32=2", "1x1xi32=0"]
    inputs.append("1x1x4x1x1xf32=0")
    calls = capture.capture(program, "step", inputs, 4, tmp_path)
    assert len(calls) == 4
    for call in calls:
        assert len(call.dispatches) >= 2
        assert all(each.kernel.startswith("step_dispatch_") for each in call.dispatches)
        ran = [(each.start, each.end) for each in call.dispatches]
        assert all(start <= end for start, end in ran)
        assert max(end for _, end in ran) - ran[0][0] < 1e9 * call.seconds
    for before, after in pairwise(calls):
        assert before.dispatches[-1].end <= after.dispatches[0].start
    with pytest.raises(RequestError, match=r"iree-benchmark-module failed \(status .*nowhere"):
        capture.capture(program, "nowhere", inputs, 1, tmp_path)


def test_a_model_with_tiles_is_profiled(toy_artifact: Path) -> None:
    """The tools of IREE do not ask for them."""
    (toy_artifact / REPORT).write_text(json.dumps({"operations": [], "samples": []}))
    model = load(toy_artifact)
    target = replace(model.manifest.target, features=("amx-tile",))
    model.manifest = replace(model.manifest, target=target)
    if refusal() is None:
        assert all(each.operations for each in profile_model(model, [1, 2, 3]))
    else:
        with pytest.raises(RequestError, match="a tool of IREE needs tiles of AMX"):
            profile_model(model, [1, 2, 3])


def test_a_missing_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from iree._runtime import libs

    monkeypatch.setattr(libs, "library_path", str(tmp_path))
    program = CapturedProgram(module=tmp_path / "m", archives=(), device="local-task", threads=1)
    with pytest.raises(RequestError, match="iree-benchmark-module: missing; install iree-base-run"):
        capture.capture(program, "f", [], 1, tmp_path)


def test_profiles_of_a_model(toy_artifact: Path) -> None:
    """Each adds up to its wall time, and is of the position that the prompt gives it."""
    listed = [operation(f"step_dispatch_{n}", "x") for n in range(4)]
    (toy_artifact / REPORT).write_text(json.dumps({"operations": listed, "samples": []}))
    profiles = profile_model(load(toy_artifact, threads=1), [1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert [(each.function, each.position, each.tokens) for each in profiles] == [
        ("step", 5, 4),
        ("step", 9, 1),
    ]
    for each in profiles:
        assert each.threads == 1
        assert each.operations
        rest = each.between_operations + each.around_operations
        assert total(each.operations) + rest == pytest.approx(each.milliseconds)
        assert min(total(each.operations), each.between_operations, each.around_operations) >= 0
        assert 0 < each.undisturbed < 1e3
        json.dumps(each.to_dict(), allow_nan=False)
        assert asdict(each)["operations"][0]["calls"] >= 1


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"levels": {}}'])
def test_a_report_that_names_nothing(toy_artifact: Path, content: str | None) -> None:
    if content is not None:
        (toy_artifact / REPORT).write_text(content)
    with pytest.raises(RequestError, match="does not say what the dispatches are"):
        operations(load(toy_artifact), "step")
