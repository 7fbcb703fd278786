"""Records of report.json: how each contraction of a compiled program was lowered, and its cost.

This module has the records and their JSON form; account.py fills them from the program. Reading a
report does not load MLIR.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mxc.artifact.schema import SchemaError, read_record
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.kernel_time import Time
from mxc.errors import ArtifactError, CompileError
from mxc.targets.target import Target

if TYPE_CHECKING:
    from iree.compiler import ir


#: Keys of report.json that are not fields of Report: derived values, or entries beside it.
_BESIDE = ("dispatches", "transient_bytes", "steps", "quantized", "devices", "notes")


@dataclass(frozen=True, kw_only=True)
class ReportSample:
    """A call of `function` that figures are given for: `rows` tokens of one sequence, which has
    `positions` tokens including them.
    """

    name: str
    function: str
    rows: int
    positions: int


@dataclass(frozen=True, kw_only=True)
class MatmulCost:
    """The fields of a Matmul that depend on the sizes of a call, at one sample."""

    batch: int
    m: int
    bytes_moved: int | None
    bytes_minimum: int | None


@dataclass(frozen=True, kw_only=True)
class OperationCost:
    """The fields of an Operation that depend on the sizes of a call, at one sample."""

    bytes_moved: int | None
    flops: int | None
    time: Time | None


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """One contraction of one function. Sizes are those of one call; -1 and None mean dynamic.

    - `kernels`: number of dispatches: the contraction, those before it that only prepare its
      operands, and those after it that only finish its result element by element.
    - `bytes_moved`: bytes that these dispatches read and write.
    - `bytes_minimum`: bytes of the packed operands and the output.
    - `reason`: why no kernel of ours computes it; None if one does.
    - `fallback`: if IREE's kernel computes it on packed operands, `reason` and what that kernel
      lacks; if a kernel of ours computes it, what this kernel lacks, if anything; else None.
    - `choice`: why a kernel of ours does not use the best instruction of the CPU; else None.
    - `schedule`: the schedule that a file gave to a CPU kernel, with where it was measured; None if
      the compiler chose.
    - `plan`: the schedule of the kernel, whoever chose it, as a file of schedules says it; None if
      the kernel has none.
    - `unfused`: name of the elementwise operation that follows and why it is not fused into the
      kernel of ours; None if none follows.
    - `samples`: the fields of MatmulCost at each sample of the function, by its name.
    """

    name: str
    function: str
    batch: int
    m: int
    n: int
    k: int
    lhs: str
    rhs: str
    out: str
    kernel: str
    lowering: str
    kernels: int
    bytes_moved: int | None
    bytes_minimum: int | None
    fallback: str | None
    reason: str | None = None
    choice: str | None = None
    schedule: str | None = None
    plan: str | None = None
    unfused: str | None = None
    samples: dict[str, MatmulCost] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReportOperation:
    """One dispatch in the text of a function, in its order: the unit that a profile of the program
    names.

    `name` is that of the program's builder, or of the kernel if there is none. `bytes_moved` is
    what the dispatch reads and writes, `flops` twice the multiply-adds of its contractions with
    padding; both are None for dynamic sizes. `choice` says why the kernel of ours does not use the
    best unit of the machine; None if it does, and for contractions (Matmul has it). `results` are
    the element types of its tensor results. `time` is the estimated time on a GPU; None for a CPU
    and for dynamic sizes. `samples` has bytes, flops and time at each sample of the function, by
    its name.
    """

    function: str
    name: str
    kernel: str
    bytes_moved: int | None
    flops: int | None
    choice: str | None = None
    results: tuple[str, ...] = ()
    time: Time | None = None
    samples: dict[str, OperationCost] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FunctionCost:
    """Number of dispatches in the text of one function, and size of the transient buffers of one
    call.

    `transient_bytes` is the sum over buffers of constant size; `dynamic_transients` counts the
    others. `samples` has the bytes of all of them at each sample of the function, by its name.
    """

    name: str
    dispatches: int
    transient_bytes: int
    dynamic_transients: int
    samples: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """Transfers between devices in one call of a function of a model; `count` is their number.

    Bytes per row of the call, per row whose logits are requested, and per run (a sequence's share
    of the call); a run counts one entry of its page lists.
    """

    function: str
    count: int
    bytes_per_row: int
    bytes_per_logits: int
    bytes_per_run: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of report.json. `transient_bytes` is the maximum over functions.

    `findings` are sentences about weights that the program writes, copies or prepares at load.
    `transfers` is filled for a program for several devices.
    """

    target: str
    matmuls: tuple[Matmul, ...]
    kernels: tuple[KernelCode, ...]
    functions: tuple[FunctionCost, ...]
    findings: tuple[str, ...] = ()
    operations: tuple[ReportOperation, ...] = ()
    samples: tuple[ReportSample, ...] = ()
    transfers: tuple[Transfers, ...] = ()

    @property
    def calls(self) -> dict[str, list[ReportOperation]]:
        """Operations of each kernel by its name, in the order in which the program first calls
        them.

        If the rows of a call choose between several kernels, each of them has the operations.
        """
        found: dict[str, list[ReportOperation]] = {}
        for operation in self.operations:
            for kernel in self.kernels:
                if operation.kernel in (kernel.name, kernel.entry):
                    found.setdefault(kernel.name, []).append(operation)
        return found

    @property
    def dispatches(self) -> int:
        """Number of dispatches in all functions and initializers."""
        return sum(function.dispatches for function in self.functions)

    @property
    def transient_bytes(self) -> int:
        """The maximum of the transient bytes over the functions."""
        return max((function.transient_bytes for function in self.functions), default=0)

    @property
    def spilling(self) -> tuple[KernelCode, ...]:
        """Kernels that keep registers in memory, which `--strict` refuses.

        For a GPU these are kernels of any operation. For a CPU only kernels of contractions count:
        a user cannot change how IREE's code for SSE spills.
        """
        products = {matmul.kernel for matmul in self.matmuls}
        return tuple(
            kernel
            for kernel in self.kernels
            if kernel.uses_scratch and (kernel.vgpr is not None or kernel.entry in products)
        )

    @property
    def fallbacks(self) -> tuple[Matmul, ...]:
        """Contractions that `--strict` refuses because of a fallback."""
        return tuple(matmul for matmul in self.matmuls if matmul.fallback is not None)

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json."""
        raw = dataclasses.asdict(self)
        return {**raw, "dispatches": self.dispatches, "transient_bytes": self.transient_bytes}

    def to_json(self) -> str:
        """The text of report.json."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    @staticmethod
    def from_dict(raw: object, key: str = "") -> Report:
        """The inverse of `to_dict`; `key` is the position in the file, for messages. Raises
        SchemaError.

        The keys in `_BESIDE` are skipped.
        """
        if isinstance(raw, Mapping):
            raw = {name: value for name, value in raw.items() if name not in _BESIDE}
        return read_record(Report, raw, key)


@dataclass(frozen=True, kw_only=True)
class ArchiveReaders:
    """One archive of weights in an artifact of several levels, and the levels that read it."""

    name: str
    bytes: int
    levels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DeviceWeights:
    """Bytes of the parameters on one of several devices, and of those that every device has."""

    bytes: int
    on_every_device: int


@dataclass(frozen=True, kw_only=True)
class Reports:
    """The content of report.json: the report of each level by its name, or one report under the
    name "", and the weights of each of several devices.
    """

    levels: dict[str, Report]
    archives: tuple[ArchiveReaders, ...] = ()
    devices: tuple[DeviceWeights, ...] = ()

    @staticmethod
    def from_dict(raw: Mapping[str, Any], place: str) -> Reports:
        """Read the content of report.json; `place` names the file in errors.

        Raises ArtifactError for a key that is missing, unknown or of a wrong type.
        """
        try:
            devices = read_record(_Devices, {"devices": raw.get("devices", [])}).devices
            if "levels" not in raw:
                return Reports(levels={"": Report.from_dict(raw)}, devices=devices)
            own = {name: value for name, value in raw.items() if name not in _BESIDE}
            levels = read_record(_Levels, own)
            return Reports(
                levels={
                    name: Report.from_dict(each, f"levels.{name}")
                    for name, each in levels.levels.items()
                },
                archives=levels.archives,
                devices=devices,
            )
        except SchemaError as error:
            raise ArtifactError(
                f"{place}: malformed: {error}; compile the artifact again"
            ) from error


@dataclass(frozen=True, kw_only=True)
class _Levels:
    """The keys of a report.json with several levels; each value of `levels` is a report."""

    levels: dict[str, Any]
    archives: tuple[ArchiveReaders, ...]


@dataclass(frozen=True, kw_only=True)
class _Devices:
    """The key of a report.json for several devices that is not part of its reports."""

    devices: tuple[DeviceWeights, ...]


def require_no_fallback(report: Report) -> None:
    """Raise CompileError for `--strict` if a contraction fell back or a kernel keeps registers in
    memory.

    The message lists each reason with its contractions, and these kernels.
    """
    reasons: dict[str, list[str]] = {}
    for matmul in report.fallbacks:
        reasons.setdefault(matmul.fallback or "", []).append(f"{matmul.function}:{matmul.name}")
    parts = []
    if reasons:
        lines = [f"  {reason}: {_listed(where)}" for reason, where in reasons.items()]
        parts.append(
            f"{len(report.fallbacks)} of {len(report.matmuls)} contractions fell back on "
            f"{report.target}, which --strict refuses:\n" + "\n".join(lines)
        )
    if report.spilling:
        where = [f"{kernel.name} ({kernel.spilling})" for kernel in report.spilling]
        parts.append(
            f"{len(where)} of {len(report.kernels)} kernels keep registers in memory, which "
            f"--strict refuses: {_listed(where)}"
        )
    if parts:
        raise CompileError("\n".join(parts), phase="report")


def _listed(where: Sequence[str]) -> str:
    more = f" and {len(where) - 3} more" if len(where) > 3 else ""
    return ", ".join(where[:3]) + more


def build_report(
    flow: ir.Operation,
    stream: ir.Operation,
    kernels: Mapping[str, KernelCode],
    target: Target,
) -> Report:
    """Return the report of one compilation.

    flow, stream: the module (builtin.module) after IREE's phases of these names; they may be copies
    in different contexts. kernels: what is in the compiled code, by name; for a CPU also run-time
    helpers.
    """
    from mxc.compiler.report.account import account  # imported here, because it loads MLIR

    with flow.context:
        return account(flow, stream, kernels, target)
