"""Profile of a step by operation, whose times add up to the wall time of the call.

    time of an operation    the wall time in which its dispatches ran; time in which several
                            dispatches ran is split evenly among them
    between operations      the time from the first dispatch to the last in which none ran
    around operations       the rest of the call: allocation, starting and waking threads

Names, bytes and numbers of operations (flops) come from the artifact's report. A call is repeated
with equal arguments, and the profile is that of the fastest call: all rows were measured in the
same call.
"""

from __future__ import annotations

import heapq
import json
import re
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mxc.artifact.kernel_names import in_all_layers
from mxc.artifact.manifest import REPORT, STEP, ModelRecord, TensorType
from mxc.errors import RequestError
from mxc.runtime import arrays
from mxc.runtime.capture import CapturedCall, CapturedDispatch, CapturedProgram, capture
from mxc.runtime.device import driver_of
from mxc.runtime.levels import CPU_DRIVERS
from mxc.runtime.page_store import PageStore
from mxc.runtime.paged_steps import PagedSteps, inputs, language_model
from mxc.runtime.plans import Run, plan_of
from mxc.runtime.session import Model
from mxc.runtime.steps import StepPlan
from mxc.targets.tile_permission import TILES

#: Number of profiled calls, after one call that reads the weights from disk.
REPETITIONS = 7

#: The prefix of a kernel's name with the number of its dispatch.
_KERNEL = re.compile(r"^\w+?_dispatch_\d+_")

#: The prefix of the name of an operation on one of several devices.
_DEVICE = re.compile(r"^device\.\d+\.")

#: Bytes of a pool that are written to a file at a time.
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """Times of one operation, summed over all layers, or of one kernel in it.

    `share`: fraction of the wall time of the call. `busy`: average fraction of the threads that
    worked during its time, 1.0 for all of them. Rates are None where the report does not state the
    bytes or flops (padding included).
    """

    name: str
    calls: int
    milliseconds: float
    share: float
    busy: float
    gigabytes_per_second: float | None
    gflop_per_second: float | None


_R = TypeVar("_R", bound=ProfileRow)


@dataclass(frozen=True, kw_only=True)
class OperationRow(ProfileRow):
    """An operation, with its kernels, the longest first, where it has several."""

    kernels: tuple[ProfileRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One call of `function` on `tokens` rows of one sequence, which start at `position`.

    `device` is the number of one of several devices, whose operations these are; else None.
    `milliseconds` is the wall time of the call, and the sum of the times of `operations`,
    `between_operations` and `around_operations`. `undisturbed` is the wall time without the
    profiler. All times are in milliseconds, of the fastest of `repetitions` calls.
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
    device: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as `mxc bench --profile --json` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class _Share:
    """A dispatch with its share of the wall time in ns, and its name and costs in the report."""

    dispatch: CapturedDispatch
    nanoseconds: float
    name: str
    bytes_moved: int | None
    flops: int | None


def profile_model(model: Model, tokens: Sequence[int]) -> tuple[Profile, ...]:
    """Profile two steps on a prompt of `tokens`: its last rows, and one token after the prompt.

    The first step has the last rows of the prompt, as many as a call takes, and computes the logits
    of the last row. Of several devices each has a profile of a step. Raises RequestError for an
    artifact that is not a language model or is for no CPU, and where IREE's tools fail.
    """
    record = language_model(model)
    if not all(driver_of(uri) in CPU_DRIVERS for uri in model.uri.split(",")):
        raise RequestError(
            f"{model.path}: compiled for {model.manifest.target.name}: profiles are made on CPUs "
            "only, because IREE's profiler records nothing on this device"
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
        # A repeated step writes the same pages again; recurrent states do advance.
        prompt = work.profile(run(last, tokens[last:]))
        token = work.profile(run(len(tokens), [0]))
    return *prompt, *token


@dataclass(frozen=True)
class _Work:
    model: Model
    steps: PagedSteps
    record: ModelRecord
    folder: Path

    def profile(self, plan: StepPlan) -> list[Profile]:
        """Profile one step, on each device."""
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
        call = min(calls[1:], key=lambda call: call.seconds)
        known = operations(self.model, STEP, rows, position + rows)
        return [
            summarise(
                *(_on_device(call, known, number) if self.record.devices > 1 else (call, known)),
                function=STEP,
                position=position,
                tokens=rows,
                threads=self.model.threads,
                undisturbed=1e3 * fastest,
                device=number if self.record.devices > 1 else None,
            )
            for number in range(self.record.devices)
        ]

    def _program(self) -> CapturedProgram:
        model = self.model
        return CapturedProgram(
            module=model.module_file,
            archives=model.archives,
            device=model.uri,
            threads=model.threads,
            tiles=TILES in model.manifest.target.features,
        )

    def _file(self, buffer: Any, kind: TensorType, place: int) -> str:
        """Write an argument to a file for the tool, sparse where it is zero; return its --input."""
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


def _on_device(
    call: CapturedCall, known: Sequence[dict[str, Any]], number: int
) -> tuple[CapturedCall, list[dict[str, Any]]]:
    """Return the dispatches of a call, and the operations of the report, on one of several devices.

    Operations of the device have its number before their names; those whose device the report does
    not say are taken as of each.
    """
    own = tuple(each for each in call.dispatches if each.device == number)
    prefix = f"device.{number}."
    there = [
        each | {"name": each["name"].removeprefix(prefix)}
        for each in known
        if each["name"].startswith(prefix) or not _DEVICE.match(each["name"])
    ]
    return replace(call, dispatches=own), there


def operations(
    model: Model, function: str, rows: int = 0, positions: int = 0
) -> list[dict[str, Any]]:
    """Return the operations of one function in the artifact's report, in program order.

    Bytes and flops that depend on the call are taken from the report's sample with `rows` rows of a
    sequence of `positions` positions. Without such a sample they are those on which all samples
    with `rows` rows agree. Raises RequestError where the report cannot be read.
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
    """Return the bytes and flops of the named samples, None where they differ."""
    found: dict[str, Any] = {}
    for key in ("bytes_moved", "flops"):
        amounts = {samples[name][key] for name in names if name in samples}
        if amounts:
            found[key] = amounts.pop() if len(amounts) == 1 else None
    return found


def summarise(
    call: CapturedCall,
    known: Sequence[dict[str, Any]],
    *,
    function: str,
    position: int,
    tokens: int,
    threads: int,
    undisturbed: float,
    device: int | None = None,
) -> Profile:
    """Return the profile of one call; `known`: the operations of the report, in program order.

    The k-th dispatch of a kernel is taken as the k-th operation with that kernel. Independent
    dispatches of one kernel may run in another order, but then they have equal sizes.
    """
    wall = 1e9 * call.seconds
    elapsed = max((d.end for d in call.dispatches), default=0)
    elapsed -= min((d.start for d in call.dispatches), default=0)
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
        between_operations=(elapsed - sum(share.nanoseconds for share in shares)) / 1e6,
        around_operations=(wall - elapsed) / 1e6,
        operations=_longest_first(rows),
        device=device,
    )


def divided(dispatches: Sequence[CapturedDispatch]) -> list[float]:
    """Return the nanoseconds of each dispatch; time is split evenly among concurrent dispatches.

    The sum is the time in which any dispatch ran. `dispatches` are ordered by their start.
    """
    shares = [0.0] * len(dispatches)
    running: list[tuple[int, int]] = []  # heap of (end, index)
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


def _row(name: str, group: list[_Share], wall: float, threads: int) -> ProfileRow:
    nanoseconds = sum(share.nanoseconds for share in group)
    return ProfileRow(
        name=name,
        calls=len(group),
        milliseconds=nanoseconds / 1e6,
        share=nanoseconds / wall,
        busy=_per(sum(share.dispatch.busy for share in group), nanoseconds * threads) or 0.0,
        gigabytes_per_second=_rate([share.bytes_moved for share in group], nanoseconds),
        gflop_per_second=_rate([share.flops for share in group], nanoseconds),
    )


def _rate(amounts: list[int | None], nanoseconds: float) -> float | None:
    """Return the sum per nanosecond (giga per second); None if one is unknown, or all are 0."""
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
