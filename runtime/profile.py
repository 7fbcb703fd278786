"""Where the time of a step goes: a profile by operation, checked against the clock.

    time of an operation    the wall time in which its dispatches ran; an instant in which several
                            ran is split evenly, so that the operations never add up to more
    between operations      from the first dispatch to the last, the time in which none ran
    around them             what is left of the call: allocation, starting and waking threads

All together are the wall time of the call. Names, bytes and products are those of the artifact's
report. A call is repeated with equal arguments, and the fastest one is shown whole: the operations
of one row were measured in the same call as those of the next.
"""

from __future__ import annotations

import heapq
import json
import re
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mxc.artifact.kernel_names import in_all_layers
from mxc.artifact.manifest import REPORT, STEP, ModelRecord, TensorType
from mxc.errors import RequestError
from mxc.runtime import arrays
from mxc.runtime.capture import Call, Dispatch, Program, capture
from mxc.runtime.device import driver_of
from mxc.runtime.levels import CPU_DRIVERS
from mxc.runtime.page_store import PageStore
from mxc.runtime.paged_steps import PagedSteps, inputs, language_model
from mxc.runtime.plans import Run, plan_of
from mxc.runtime.session import Model
from mxc.runtime.steps import StepPlan
from mxc.targets.tile_permission import TILES

#: Calls that are profiled, after one that reads the weights from disk.
REPETITIONS = 7

#: The number of a dispatch in a kernel's name.
_KERNEL = re.compile(r"^\w+?_dispatch_\d+_")

#: Bytes of a pool that are written at a time.
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """An operation in all layers, or a kernel in it.

    `share` is of the wall time of the call. `busy` is the part of the threads that worked, on
    average over its time: 1.0 is all of them. Rates are None where the report does not know the
    bytes, or the products (padding included).
    """

    name: str
    calls: int
    milliseconds: float
    share: float
    busy: float
    gigabytes_per_second: float | None
    gflop_per_second: float | None


_R = TypeVar("_R", bound=Row)


@dataclass(frozen=True, kw_only=True)
class OperationRow(Row):
    """An operation, with its kernels where they are several. The longest come first."""

    kernels: tuple[Row, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One call of `function`: `tokens` rows of one sequence, from `position`.

    `milliseconds` is the wall time of the call and the sum of those of `operations`,
    `between_operations` and `around_operations`; `undisturbed` is the wall time without the
    profiler. All in milliseconds, of the fastest of `repetitions` calls.
    """

    function: str
    position: int
    tokens: int
    threads: int
    repetitions: int
    milliseconds: float
    undisturbed: float
    between_operations: float
    around_operations: float
    operations: tuple[OperationRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `mxc bench --profile --json` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class _Share:
    """A dispatch with its part of the wall time (ns) and what the report says of it."""

    dispatch: Dispatch
    nanoseconds: float
    name: str
    bytes_moved: int | None
    flops: int | None


def profile_model(model: Model, tokens: Sequence[int]) -> tuple[Profile, ...]:
    """Profiles of two steps of a prompt of `tokens`: the last rows of it, and a token after it.

    The first is the call for the last rows of the prompt, as many as a call takes, with the logits
    of the last one. Raises RequestError for an artifact that is no language model, not for a CPU or
    with tiles of AMX, and where IREE's tools fail.
    """
    record = language_model(model)
    if record.devices > 1:
        raise RequestError(
            f"{model.path}: compiled for {record.devices} devices: a profile is of one; compile it "
            "without --devices"
        )
    if driver_of(model.uri) not in CPU_DRIVERS:
        raise RequestError(
            f"{model.path}: compiled for {model.manifest.target.name}: profiles are made on CPUs "
            "only, because IREE's profiler records nothing on this device"
        )
    if TILES in model.manifest.target.features:
        raise RequestError(
            f"{model.path}: level {model.level} uses tiles of AMX, for which IREE's profiler, a "
            "program of its own, does not ask; compile for a second target without them "
            "(--target cpu --target cpu:icelake-server) and give that --level"
        )
    pages = -(-(len(tokens) + 1) // record.page_size)
    steps = PagedSteps(model, [pages] * len(record.pages), 1)
    store = PageStore(steps, record.rows)
    held = store.open((), 0)
    store.extend(held, len(tokens) + 1)
    last = max(0, len(tokens) - record.rows)

    def run(first: int, some: Sequence[int]) -> StepPlan:
        return plan_of([Run(pages=held, tokens=some, before=first, wanted=[len(some) - 1])], steps)

    for first in range(0, last, record.rows):
        steps.step(run(first, tokens[first : min(first + record.rows, last)]))
    with tempfile.TemporaryDirectory(prefix="mxc-profile-") as folder:
        work = _Work(model, steps, record, Path(folder))
        # A step that is repeated writes what it wrote; the states of a model go on.
        prompt = work.profile(run(last, tokens[last:]))
        token = work.profile(run(len(tokens), [0]))
    return prompt, token


@dataclass(frozen=True)
class _Work:
    model: Model
    steps: PagedSteps
    record: ModelRecord
    folder: Path

    def profile(self, plan: StepPlan) -> Profile:
        """The profile of one step."""
        given = inputs(plan, self.record)
        kinds = self.model.functions[STEP].inputs
        words = [
            f"{'x'.join(map(str, array.shape))}xi32={' '.join(map(str, array.ravel().tolist()))}"
            for array, _ in given
        ]
        memory = self.steps.arguments(plan)[len(given) :]
        words += [
            self._file(buffer, kind, len(given) + number)
            for number, (buffer, kind) in enumerate(zip(memory, kinds[len(given) :], strict=True))
        ]
        fastest = float("inf")
        for _ in range(REPETITIONS + 1):
            begin = time.perf_counter()
            self.steps.step(plan)
            fastest = min(fastest, time.perf_counter() - begin)
        calls = capture(self._program(), STEP, words, REPETITIONS + 1, self.folder)
        position, rows = int(plan.positions[0]), len(plan.tokens)
        return summarise(
            min(calls[1:], key=lambda call: call.seconds),
            operations(self.model, STEP, rows, position + rows),
            function=STEP,
            position=position,
            tokens=rows,
            threads=self.model.threads,
            undisturbed=1e3 * fastest,
        )

    def _program(self) -> Program:
        model = self.model
        return Program(
            module=model.module_file,
            archives=model.archives,
            device=model.uri,
            threads=model.threads,
        )

    def _file(self, buffer: Any, kind: TensorType, place: int) -> str:
        """Write the argument at a place for the tool; what is zero takes no space on disk."""
        file = self.folder / f"buffer-{place}.bin"
        data = arrays.window(self.model.device, buffer).reshape(-1).view(np.uint8)
        with file.open("wb") as out:
            for at in range(0, data.size, _PIECE):
                part = data[at : at + _PIECE]
                if part.any():
                    out.seek(at)
                    out.write(part.data)
            out.truncate(data.size)
        return f"{'x'.join(map(str, buffer.shape))}x{kind.stored.dtype}=@{file}"


def operations(
    model: Model, function: str, rows: int = 0, positions: int = 0
) -> list[dict[str, Any]]:
    """The operations of one function in the artifact's report, in the order of the program.

    Bytes and products that come with the call are those of the sample of so many `rows` of a
    sequence of so many `positions`, or those that all samples of so many rows have in common.
    Raises RequestError where the report cannot be read.
    """
    file = model.path / REPORT
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        if "levels" in report:
            report = report["levels"][model.level]
        samples = [each for each in report["samples"] if each["rows"] == rows]
        exact = [each for each in samples if each["positions"] == positions]
        names = [each["name"] for each in exact or (samples if len(samples) > 1 else [])]
        own = [each for each in report["operations"] if each["function"] == function]
        return [each | _at(each["samples"], names) for each in own]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"{file}: does not say what the dispatches are ({error!r}); compile the model again"
        ) from error


def _at(samples: dict[str, dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Bytes and products that samples of these names have in common; nothing of none."""
    found: dict[str, Any] = {}
    for key in ("bytes_moved", "flops"):
        amounts = {samples[name][key] for name in names if name in samples}
        if amounts:
            found[key] = amounts.pop() if len(amounts) == 1 else None
    return found


def summarise(
    call: Call,
    known: Sequence[dict[str, Any]],
    *,
    function: str,
    position: int,
    tokens: int,
    threads: int,
    undisturbed: float,
) -> Profile:
    """The profile of one call; `known` are the operations of the report, in their order.

    The k-th dispatch of a kernel is its k-th operation: where independent dispatches of one kernel
    were reordered, their rows have equal sizes.
    """
    wall = 1e9 * call.seconds
    span = max((d.end for d in call.dispatches), default=0)
    span -= min((d.start for d in call.dispatches), default=0)
    waiting: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
    for each in known:
        waiting[each["kernel"]].append(each)
    shares = []
    for dispatch, part in zip(call.dispatches, divided(call.dispatches), strict=True):
        line = waiting[dispatch.kernel].popleft() if waiting[dispatch.kernel] else {}
        shares.append(
            _Share(
                dispatch,
                part,
                line.get("name", dispatch.kernel),
                line.get("bytes_moved"),
                line.get("flops"),
            )
        )
    rows = []
    for name, group in _grouped(shares, lambda each: in_all_layers(each.name)).items():
        kernels = _grouped(group, lambda each: _KERNEL.sub("", each.dispatch.kernel))
        inner = [_row(kernel, part, wall, threads) for kernel, part in kernels.items()]
        rows.append(
            OperationRow(
                **asdict(_row(name, group, wall, threads)),
                kernels=_longest_first(inner) if len(inner) > 1 else (),
            )
        )
    return Profile(
        function=function,
        position=position,
        tokens=tokens,
        threads=threads,
        repetitions=REPETITIONS,
        milliseconds=wall / 1e6,
        undisturbed=undisturbed,
        between_operations=(span - sum(share.nanoseconds for share in shares)) / 1e6,
        around_operations=(wall - span) / 1e6,
        operations=_longest_first(rows),
    )


def divided(dispatches: Sequence[Dispatch]) -> list[float]:
    """Nanoseconds of each dispatch, where an instant is split evenly among all that run in it.

    They add up to the time in which any ran. `dispatches` are ordered by their start.
    """
    shares = [0.0] * len(dispatches)
    running: list[tuple[int, int]] = []  # (end, index), the first to end on top
    now = 0

    def pass_to(then: int) -> None:
        nonlocal now
        while running and now < then:
            until = min(then, running[0][0])
            for _, index in running:
                shares[index] += (until - now) / len(running)
            now = until
            while running and running[0][0] <= now:
                heapq.heappop(running)
        now = max(now, then)

    for index, dispatch in enumerate(dispatches):
        pass_to(dispatch.start)
        heapq.heappush(running, (dispatch.end, index))
    pass_to(max((dispatch.end for dispatch in dispatches), default=0))
    return shares


def _row(name: str, group: list[_Share], wall: float, threads: int) -> Row:
    nanoseconds = sum(share.nanoseconds for share in group)
    return Row(
        name=name,
        calls=len(group),
        milliseconds=nanoseconds / 1e6,
        share=nanoseconds / wall,
        busy=_per(sum(share.dispatch.busy for share in group), nanoseconds * threads) or 0.0,
        gigabytes_per_second=_rate([share.bytes_moved for share in group], nanoseconds),
        gflop_per_second=_rate([share.flops for share in group], nanoseconds),
    )


def _rate(amounts: list[int | None], nanoseconds: float) -> float | None:
    """A sum per nanosecond: giga per second. None where a part is unknown, or all is nothing."""
    known = [amount for amount in amounts if amount is not None]
    if len(known) < len(amounts) or not any(known):
        return None
    return _per(sum(known), nanoseconds)


def _per(amount: float, time_: float) -> float | None:
    return amount / time_ if time_ else None


def _grouped(shares: Iterable[_Share], key: Callable[[_Share], str]) -> dict[str, list[_Share]]:
    groups: dict[str, list[_Share]] = {}
    for share in shares:
        groups.setdefault(key(share), []).append(share)
    return groups


def _longest_first(rows: Iterable[_R]) -> tuple[_R, ...]:
    return tuple(sorted(rows, key=lambda row: -row.milliseconds))
