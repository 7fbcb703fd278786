"""report.json: what became of each contraction of a compiled program.

The records and their text; `account` fills them from the program. Reading a report loads no MLIR.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mxc.compiler.report.assembly import Kernel
from mxc.dialects.errors import CompileError
from mxc.dialects.kernel_names import called_as
from mxc.dialects.targets import Target

if TYPE_CHECKING:
    from iree.compiler import ir


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """One contraction of one function. Sizes are of one call; -1 and None stand for dynamic.

    `kernels` counts the dispatch itself and those before it that only prepare its operands;
    `bytes_moved` is what they read and write, `bytes_minimum` what packed operands and the output
    need. `fallback` is None, or one sentence that says why a better lowering was not reached.
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


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One dispatch in the text of a function, in its order: what a profile of the program names.

    `name` is the builder's, or the kernel's where there is none. `bytes_moved` is what the
    dispatch reads and writes, `flops` twice the products of its contractions, padding included;
    None where sizes are dynamic.
    """

    function: str
    name: str
    kernel: str
    bytes_moved: int | None
    flops: int | None


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
class Report:
    """All of report.json. `transient_bytes` is that of the hungriest function.

    `findings` are sentences about weights that the program writes, copies or prepares at load.
    """

    target: str
    matmuls: tuple[Matmul, ...]
    kernels: tuple[Kernel, ...]
    functions: tuple[FunctionCost, ...]
    findings: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()

    @property
    def calls(self) -> dict[str, list[Operation]]:
        """Each kernel's operations, in the order in which the program first calls it.

        Where one of several kernels runs, by the rows of a call, each of them has its operations.
        """
        found: dict[str, list[Operation]] = {}
        for operation in self.operations:
            for kernel in self.kernels:
                if operation.kernel in (kernel.name, called_as(kernel.name)[0]):
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
    def fallbacks(self) -> tuple[Matmul, ...]:
        """What `--strict` refuses."""
        return tuple(matmul for matmul in self.matmuls if matmul.fallback is not None)

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json."""
        raw = dataclasses.asdict(self)
        return {**raw, "dispatches": self.dispatches, "transient_bytes": self.transient_bytes}

    def to_json(self) -> str:
        """The text of report.json."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`. Raises KeyError or TypeError for anything else."""
        return Report(
            target=raw["target"],
            matmuls=tuple(Matmul(**each) for each in raw["matmuls"]),
            kernels=tuple(Kernel.from_dict(each) for each in raw["kernels"]),
            functions=tuple(FunctionCost(**each) for each in raw["functions"]),
            findings=tuple(raw["findings"]),
            operations=tuple(Operation(**each) for each in raw["operations"]),
        )


def require_no_fallback(report: Report) -> None:
    """What `--strict` asks. Raises CompileError with each reason and the contractions it has."""
    reasons: dict[str, list[str]] = {}
    for matmul in report.fallbacks:
        reasons.setdefault(matmul.fallback or "", []).append(f"{matmul.function}:{matmul.name}")
    if reasons:
        lines = [
            f"  {reason}: {', '.join(where[:3])}"
            + (f" and {len(where) - 3} more" if len(where) > 3 else "")
            for reason, where in reasons.items()
        ]
        raise CompileError(
            f"{len(report.fallbacks)} of {len(report.matmuls)} contractions fell back on "
            f"{report.target}, which --strict refuses:\n" + "\n".join(lines),
            phase="report",
        )


def build_report(
    flow: ir.Operation, stream: ir.Operation, assembly: Iterable[str], target: Target
) -> Report:
    """Write the report of one compilation.

    flow, stream: the module (builtin.module) after IREE's phases of these names; they may be
    copies in different contexts. assembly: the text of each `.rocmasm` or `.s`.
    """
    from mxc.compiler.report.account import account  # here, because it loads MLIR

    return account(flow, stream, assembly, target)
