"""mxc-choose-gpu-schedule: how each contraction is cut up that a kernel of ours computes.

The cheapest schedule by a model of time (passes/kernels/gpu/cost.py) is written on it, where
mxc-lower-to-gpu-kernels reads it. `file` names a JSON file with schedules of one's own: a list of
objects with a `schedule` and any of m, n, k, lhs, rhs, which a contraction must have:

    [{"m": 16, "rhs": "mxfp4",
      "schedule": {"instruction": 16, "tiles": [1, 1], "waves": [1, 1, 4]}}]

The first that fits is taken; one that fits nothing is refused. Where the rows come with each call
there are several schedules, and a contraction has no m. Of one's own too `schedule` may be a list,
in which all but the last have `below`, the number of rows from which on the next one goes.

before:
    %y = linalg.generic ins(%x, %w, %p, %s) outs(%zero) { scaling_extf, scaling_extf, mulf, addf }
after:
    %y = linalg.generic .. attrs = {mxc.schedule = {instruction = 32 : i64, k_steps = 2 : i64,
        stages = 4 : i64, tiles = array<i64: 2, 8>, transport = "ring",
        waves = array<i64: 4, 1, 1>}}

Leaves alone: contractions that no kernel computes, and those that have a schedule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iree.compiler import ir

from mxc.dialects.contraction import Contraction
from mxc.dialects.contractions import is_contraction
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.kernels.epilogues import epilogue
from mxc.passes.kernels.gpu.calls import Call, match
from mxc.passes.kernels.gpu.choice import choose, choose_by_rows
from mxc.passes.kernels.gpu.output import for_blocks
from mxc.passes.kernels.gpu.problem import problem_of
from mxc.passes.kernels.gpu.ring.float_kernel import FloatRing
from mxc.passes.kernels.gpu.schedule import (
    ATTRIBUTE,
    Schedules,
    Transport,
    schedules_of,
    write_schedules,
)
from mxc.passes.kernels.quantised import quantised_result
from mxc.passes.rewriting.rebuild import linalg_operations
from mxc.targets.amd import known_gpu
from mxc.targets.gpu import Gpu

#: What an entry of a file may say of a contraction.
_KEYS = ("m", "n", "k", "lhs", "rhs")


@dataclass(frozen=True)
class ChooseGpuSchedule(Pass):
    """Write a schedule on each contraction that a kernel for GPUs computes.

    `file`: schedules of one's own, which go before the model's. `target`: the GPU, which must have
    a record (targets/amd/).
    """

    name = "mxc-choose-gpu-schedule"
    file: str = ""
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Choose for every contraction that has no schedule. PassError for an unknown target."""
        gpu = known_gpu(self.target)
        given = _read(self.file) if self.file else []
        used = [False] * len(given)
        for op in linalg_operations(module):
            if ATTRIBUTE in op.attributes:
                continue
            call = match(op, gpu.matrix)
            if isinstance(call, Reason):
                if is_contraction(op):
                    write_reason(op, call)
                continue
            fitting = [n for n, entry in enumerate(given) if _fits(entry, call.of)]
            if fitting:
                used[fitting[0]] = True
                entry = given[fitting[0]]
                schedule = entry["schedule"]
                several = schedule if isinstance(schedule, list) else [schedule]
                write_schedules(op, schedules_of(several, self.file, gpu.matrix))
            else:
                write_schedules(op, _chosen(call, gpu))
        for entry, was in zip(given, used, strict=True):
            if not was:
                wanted = ", ".join(f"{key} {entry[key]}" for key in _KEYS if key in entry)
                raise PassError(
                    f"{self.file}: no contraction has {wanted or 'a schedule'}, or an entry before "
                    "took them all; `mxc report` lists them"
                )


def _chosen(call: Call, gpu: Gpu) -> Schedules:
    """The cheapest schedules that can compute the call with what follows it."""
    after = epilogue(call.op, 16, keeps=True)
    last = after.last(call.op)
    halves = 2 if after.gated else 1
    quantises = gpu.matrix.converts and after.stores == "f32" and after.kept is None
    quantised = quantises and quantised_result(last.results[0]) is not None
    transports: tuple[Transport, ...] = ("stream", "ring")
    # A ring of a dense product has tiles of half a block of the result.
    if not _may_stage(call) or (call.is_dense and quantised):
        transports = ("stream",)
    problem = problem_of(call, halves)
    if call.of.m is None:
        found = choose_by_rows(problem, device=gpu, transports=transports)
    else:
        found = Schedules([choose(problem, device=gpu, transports=transports)])
    if not quantised:
        return found
    return Schedules([for_blocks(each, halves) for each in found.schedules], found.bounds)


def _may_stage(call: Call) -> bool:
    """Whether there is a ring for such operands."""
    if call.sums_blocks:
        return False
    if call.is_dense:
        return True
    return call.decoded is None or FloatRing.takes(call.left, call.right, call.decoded)


def _fits(entry: Mapping[str, Any], of: Contraction) -> bool:
    known = {"m": of.m, "n": of.n, "k": of.k, "lhs": of.lhs.name, "rhs": of.rhs.name}
    return all(entry[key] == known[key] for key in _KEYS if key in entry)


def _read(file: str) -> list[dict[str, Any]]:
    """The entries of a file. Raises PassError where it cannot be read or has another form."""
    try:
        entries = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise PassError(f"{file}: schedules cannot be read ({error})") from error
    allowed = {*_KEYS, "schedule"}
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict) or not set(entry) <= allowed or "schedule" not in entry:
            raise PassError(
                f"{file}: wanted a list of objects with a schedule and any of {', '.join(_KEYS)}, "
                f"found {json.dumps(entry)[:100]}"
            )
    return entries if isinstance(entries, list) else [entries]
