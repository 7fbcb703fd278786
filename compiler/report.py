"""report.json: what became of each contraction, read from the compiled program.

The program at IREE's flow phase says which dispatches a contraction needs and what they move, the
stream phase what is allocated, the assembly which instructions were chosen. Intentions play no
part: a contraction whose kernel is not found in the assembly is reported as a fallback.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir
from mxc.compiler.assembly import Kernel, parse_all
from mxc.compiler.lowering import explain, lowering_of
from mxc.compiler.preparation import Preparation, hoisted_globals, preparation
from mxc.dialects.contractions import Contraction, Side, contractions, format_name
from mxc.dialects.dispatches import (
    Dispatch,
    dispatches,
    element_bits,
    moved_bytes,
    names,
    tensor_bytes,
)
from mxc.dialects.errors import CompileError
from mxc.dialects.targets import Target
from mxc.passes.verify_packed_weights import Weights
from mxc.passes.verify_transients import transient_bytes


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
class FunctionCost:
    """Dispatches in the text of one function, and transient bytes that one call allocates."""

    name: str
    dispatches: int
    transient_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of report.json. `transient_bytes` is that of the hungriest function, None if unknown."""

    target: str
    matmuls: tuple[Matmul, ...]
    kernels: tuple[Kernel, ...]
    functions: tuple[FunctionCost, ...]

    @property
    def dispatches(self) -> int:
        """Dispatches in all functions and initialisers."""
        return sum(function.dispatches for function in self.functions)

    @property
    def transient_bytes(self) -> int | None:
        """The largest of the functions' transient bytes."""
        sizes = [function.transient_bytes for function in self.functions]
        return None if None in sizes else max((s for s in sizes if s is not None), default=0)

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
    def from_dict(raw: dict[str, Any]) -> Report:
        """The inverse of `to_dict`. Raises KeyError or TypeError for anything else."""
        return Report(
            target=raw["target"],
            matmuls=tuple(Matmul(**each) for each in raw["matmuls"]),
            kernels=tuple(Kernel(**each) for each in raw["kernels"]),
            functions=tuple(FunctionCost(**each) for each in raw["functions"]),
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
    every = dispatches(flow)
    weights, stores = Weights(every), hoisted_globals(flow)
    kernels = parse_all(assembly)
    users = Counter(dispatch.entry for dispatch in every)
    bodies = {d.entry: contractions(d.body) for d in every if d.body is not None}
    matmuls = tuple(
        _matmul(
            dispatch,
            contraction,
            preparation(dispatch, contraction, weights, stores),
            kernels.get(dispatch.entry),
            target,
            shared=users[dispatch.entry] > 1,
        )
        for dispatch in every
        for contraction in bodies.get(dispatch.entry, ())
    )
    return Report(
        target=target.name,
        matmuls=matmuls,
        kernels=tuple(kernel for name, kernel in kernels.items() if name in users),
        functions=_functions(every, stream),
    )


def _matmul(
    dispatch: Dispatch,
    contraction: Contraction,
    prepared: Preparation,
    kernel: Kernel | None,
    target: Target,
    *,
    shared: bool,
) -> Matmul:
    steps = [dispatch, *prepared.dispatches]
    parts = [moved_bytes(step) for step in steps]
    moved = None if None in parts else sum(part for part in parts if part is not None)
    block = contraction.block or prepared.block
    lhs, rhs = prepared.lhs or contraction.lhs, prepared.rhs or contraction.rhs
    packed = lhs.scale is not None or rhs.scale is not None
    return Matmul(
        name=_name(dispatch, contraction, shared),
        function=dispatch.function,
        batch=contraction.batch,
        m=contraction.m,
        n=contraction.n,
        k=contraction.k,
        lhs=format_name(lhs, block),
        rhs=format_name(rhs, block),
        out=str(ir.RankedTensorType(contraction.op.results[0].type).element_type),
        kernel=dispatch.entry,
        lowering="not found" if kernel is None else lowering_of(kernel, target, packed=packed),
        kernels=len(steps),
        bytes_moved=moved,
        bytes_minimum=_minimum(contraction, lhs, rhs, block),
        fallback=explain(contraction, lhs, rhs, block, prepared, kernel, target),
    )


def _name(dispatch: Dispatch, contraction: Contraction, shared: bool) -> str:
    """The builder's name of the contraction.

    Equal executables are merged, so the body of one that several dispatches share carries the
    name of the first only; the dispatches keep their own.
    """
    inner, outer = names(contraction.op.location), dispatch.names
    own = [name for name in inner if not shared or name in outer]
    return next(iter([*own, *outer, *inner]), dispatch.entry)


def _minimum(contraction: Contraction, lhs: Side, rhs: Side, block: int) -> int | None:
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    out = tensor_bytes(contraction.op.results[0].type)
    if min(batch, m, n, k) < 0 or out is None:
        return None
    return _packed(lhs, batch * m * k, block) + _packed(rhs, batch * n * k, block) + out


def _packed(side: Side, elements: int, block: int) -> int:
    bits = elements * element_bits(side.element)
    if side.scale is not None and block:
        bits += elements // block * element_bits(ir.RankedTensorType(side.scale.type).element_type)
    return math.ceil(bits / 8)


def _functions(every: list[Dispatch], stream: ir.Operation) -> tuple[FunctionCost, ...]:
    counts = Counter(dispatch.function for dispatch in every)
    transients: dict[str, int | None] = {}
    for op in stream.regions[0].blocks[0].operations:
        if op.operation.name == "util.func":
            name = str(ir.StringAttr(op.operation.attributes["sym_name"]).value)
            transients[name] = transient_bytes(op.operation)
    return tuple(
        FunctionCost(name=name, dispatches=counts[name], transient_bytes=transients.get(name, 0))
        for name in dict.fromkeys([*transients, *counts])
    )
