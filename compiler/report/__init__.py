"""report.json: what became of each contraction of a compiled program.

The records and their text; `account` fills them from the program. Reading a report loads no MLIR.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mxc.artifact.schema import SchemaError, read_record
from mxc.compiler.report.assembly import Kernel
from mxc.compiler.report.kernel_time import Time
from mxc.errors import ArtifactError, CompileError
from mxc.targets.target import Target

if TYPE_CHECKING:
    from iree.compiler import ir


#: Keys of report.json that are derived from the report, or stand beside it.
_BESIDE = ("dispatches", "transient_bytes", "steps", "quantized", "devices")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A call of `function` that figures are given for: `rows` of one sequence, which has so many
    `positions` with them."""

    name: str
    function: str
    rows: int
    positions: int


@dataclass(frozen=True, kw_only=True)
class MatmulCost:
    """What of a Matmul comes with the call, at a sample."""

    batch: int
    m: int
    bytes_moved: int | None
    bytes_minimum: int | None


@dataclass(frozen=True, kw_only=True)
class OperationCost:
    """What of an Operation comes with the call, at a sample."""

    bytes_moved: int | None
    flops: int | None
    time: Time | None


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """One contraction of one function. Sizes are of one call; -1 and None stand for dynamic.

    `samples`: what they are at each sample of the function, by its name.

    `kernels` counts the dispatch itself, those before it that only prepare its operands, and those
    after it that only finish its result element by element;
    `bytes_moved` is what they read and write, `bytes_minimum` what packed operands and the output
    need. `reason` says why no kernel of ours computes it, None where one does. `fallback`: the same
    where an operand is packed, with what the kernel lacks; or what a kernel of ours lacks.
    `choice` says why a kernel of ours multiplies by an instruction that names less than the machine
    has, None where it does not. `schedule` is the one that a file gave to a kernel for CPUs, and
    where it was measured; None where the compiler chose. `unfused` says why the elementwise
    operation that follows, its subject, is not computed in the kernel of ours, None where none
    follows.
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
    unfused: str | None = None
    samples: dict[str, MatmulCost] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One dispatch in the text of a function, in its order: what a profile of the program names.

    `name` is the builder's, or the kernel's where there is none. `bytes_moved` is what the
    dispatch reads and writes, `flops` twice the products of its contractions, padding included;
    None where sizes are dynamic. `results`: the MLIR types of what it writes. `time`: how long it
    takes a GPU, estimated; None for a CPU, and where sizes are dynamic. `samples`: these at each
    sample of the function, by its name.
    """

    function: str
    name: str
    kernel: str
    bytes_moved: int | None
    flops: int | None
    results: tuple[str, ...] = ()
    time: Time | None = None
    samples: dict[str, OperationCost] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FunctionCost:
    """Dispatches in the text of one function, and the transient buffers that one call allocates.

    `transient_bytes` is the sum of those of constant size, `dynamic_transients` counts the others.
    """

    name: str
    dispatches: int
    transient_bytes: int
    dynamic_transients: int


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """What one call of a function of a model sends from device to device, in `count` transfers.

    `bytes_per_row`: for each row of the call; `bytes_per_logits`: for each row whose logits are
    wanted; `bytes_per_run`: for each run, the entries of its lists of pages counted once.
    """

    function: str
    count: int
    bytes_per_row: int
    bytes_per_logits: int
    bytes_per_run: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of report.json. `transient_bytes` is that of the hungriest function.

    `findings` are sentences about weights that the program writes, copies or prepares at load.
    `transfers`: of a program for several devices.
    """

    target: str
    matmuls: tuple[Matmul, ...]
    kernels: tuple[Kernel, ...]
    functions: tuple[FunctionCost, ...]
    findings: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    samples: tuple[Sample, ...] = ()
    transfers: tuple[Transfers, ...] = ()

    @property
    def calls(self) -> dict[str, list[Operation]]:
        """Each kernel's operations, in the order in which the program first calls it.

        Where one of several kernels runs, by the rows of a call, each of them has its operations.
        """
        found: dict[str, list[Operation]] = {}
        for operation in self.operations:
            for kernel in self.kernels:
                if operation.kernel in (kernel.name, kernel.entry):
                    found.setdefault(kernel.name, []).append(operation)
        return found

    @property
    def dispatches(self) -> int:
        """Dispatches in all functions and initialisers."""
        return sum(function.dispatches for function in self.functions)

    @property
    def transient_bytes(self) -> int:
        """The largest of the functions' transient bytes."""
        return max((function.transient_bytes for function in self.functions), default=0)

    @property
    def spilling(self) -> tuple[Kernel, ...]:
        """Kernels whose registers are in memory, which `--strict` refuses.

        Of a GPU of whatever operation; of a CPU those of contractions: that IREE's code for SSE
        moves what it computes is nothing that a user could mend.
        """
        products = {matmul.kernel for matmul in self.matmuls}
        return tuple(
            kernel
            for kernel in self.kernels
            if kernel.uses_scratch and (kernel.vgpr is not None or kernel.entry in products)
        )

    @property
    def fallbacks(self) -> tuple[Matmul, ...]:
        """Contractions that `--strict` refuses."""
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
        """The inverse of `to_dict`; `key` is where it stands in a file. Raises SchemaError.

        What the file has beside the fields of a report is `_BESIDE` them.
        """
        if isinstance(raw, Mapping):
            raw = {name: value for name, value in raw.items() if name not in _BESIDE}
        return read_record(Report, raw, key)


@dataclass(frozen=True, kw_only=True)
class ArchiveReaders:
    """An archive of weights in an artifact of several levels, its bytes, and who reads it."""

    name: str
    bytes: int
    levels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DeviceWeights:
    """The bytes of the parameters of one of several devices, and of those that all have."""

    bytes: int
    on_every_device: int


@dataclass(frozen=True, kw_only=True)
class Reports:
    """All of report.json: the report of each level by its name, or one under the name ""; and what
    each of several devices has of the weights."""

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
    """The keys of a report.json of several levels; each of `levels` is a report."""

    levels: dict[str, Any]
    archives: tuple[ArchiveReaders, ...]


@dataclass(frozen=True, kw_only=True)
class _Devices:
    """The key of a report.json for several devices that is beside its reports."""

    devices: tuple[DeviceWeights, ...]


def require_no_fallback(report: Report) -> None:
    """What `--strict` asks. Raises CompileError with each reason and the contractions it has, and
    with the kernels whose registers are in memory."""
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
    assembly: Iterable[str],
    target: Target,
    objects: Iterable[bytes] = (),
) -> Report:
    """Write the report of one compilation.

    flow, stream: the module (builtin.module) after IREE's phases of these names; they may be
    copies in different contexts. assembly: the text of each `.rocmasm` or `.s`;
    objects: the bytes of each `.hsaco`.
    """
    from mxc.compiler.report.account import account  # here, because it loads MLIR

    with flow.context:
        return account(flow, stream, assembly, target, objects)
