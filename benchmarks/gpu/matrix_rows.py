"""Rows of the coverage matrix, the bars that they must meet, and the changes between two runs.

A row has the figures of a case on a target. A bar is a requirement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matrix_case import Case, format_of

from mxc.compiler.report import Report
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.kernel_time import Time
from mxc.compiler.report.lowering import best_kind
from mxc.targets.target import KINDS, Target

#: The least number of rows (M) for which a matrix instruction is required.
MATRIX_ROWS = 16
#: The most bytes that a kernel for fewer rows than that may move, over the minimum (`_minimum`).
_MOST_BYTES = 1.05
#: The fewest bytes that a report may state, over the minimum: with less it leaves something out.
_FEWEST_BYTES = 0.995
#: The largest number of rows for which bytes in flight are required, because memory bounds them.
_MEMORY_ROWS = 256
#: Bits of the plain float types.
_WIDE_FLOATS = {"bf16": 16, "f16": 16, "f32": 32}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case on one target.

    failed: the refusal, or "". kind: how kernels of the contraction multiply, one of `KINDS` in
    targets/target.py or "none"; the worst one if the rows of a call choose a kernel. kernels,
    spills, scratch_bytes, transient_bytes: of the whole program. packed: whether no weight goes
    through memory with more bits. copied: number of weights that are copied in another order.
    bytes_moved: None if sizes are dynamic. bytes_minimum: by `_minimum`. time: of a call of the
    product's kernel (compiler/report/kernel_time.py), None if sizes are dynamic. fallback:
    reasons why no kernel of mxc computes the contraction, or "". disagreements: differences of the
    report from the module (matrix_objects.py).

    Other fields are those of one kernel: that of the contraction, else the one with the most
    instructions; if the rows of a call choose it, that for the most rows. load_bytes: average bytes
    per lane of a load in its hot loop. bytes_in_flight: of a compute unit in the loop; None without
    a loop, where all is requested at once. matrix_share: by the issue model.
    """

    name: str
    group: str
    target: str
    seconds: float
    failed: str = ""
    kind: str = "none"
    instruction: str = ""
    kernels: int = 0
    spills: int = 0
    scratch_bytes: int = 0
    vgpr: int = 0
    lds_bytes: int = 0
    waves: int = 0
    transient_bytes: int = 0
    packed: bool = False
    copied: int = 0
    bytes_moved: int | None = None
    bytes_minimum: int | None = None
    load_bytes: float | None = None
    bytes_in_flight: int | None = None
    matrix_share: float | None = None
    bound_by: str = ""
    fallback: str = ""
    time: Time | None = None
    disagreements: tuple[str, ...] = ()

    @property
    def moved(self) -> float | None:
        """Bytes moved over the minimum; None if either is not known."""
        return (
            self.bytes_moved / self.bytes_minimum
            if self.bytes_moved and self.bytes_minimum
            else None
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `read_record(Row, ..)` reads it."""
        return asdict(self)


def row(case: Case, target: Target, report: Mapping[str, Any], seconds: float) -> Row:
    """Return the row of a case from the contents of its report.json."""
    read = Report.from_dict(report)
    kernels = {each.name: each for each in read.kernels}
    # Beside a product of packed operands there may be one of floats, before or after it.
    packed = [each for each in read.matmuls if not {each.lhs, each.rhs} <= _WIDE_FLOATS.keys()]
    products = packed or list(read.matmuls)
    product = products[0] if products else None
    named = {each.kernel for each in products}
    own = [each for each in read.kernels if each.entry in named]
    cases = sorted(own, key=lambda kernel: (kernel.from_rows, kernel.name))
    if not cases and kernels:
        cases = [max(kernels.values(), key=lambda kernel: sum(kernel.instructions.values()))]
    main = cases[-1] if cases else None
    loop = main.hot_loop if main else None
    fallback = "; ".join(dict.fromkeys(each.fallback for each in products if each.fallback))
    copied = sum("writes a copy of a weight" in each for each in read.findings)
    return Row(
        name=case.name,
        group=case.group,
        target=target.name,
        seconds=round(seconds, 2),
        kind=_worst_kind(cases, target),
        instruction=product.lowering if product else "",
        kernels=report["dispatches"],
        spills=sum(kernel.spills for kernel in kernels.values()),
        scratch_bytes=sum(kernel.scratch_bytes for kernel in kernels.values()),
        vgpr=(main.vgpr or 0) if main else 0,
        lds_bytes=(main.lds_bytes or 0) if main else 0,
        waves=main.occupancy.waves_per_simd if main and main.occupancy else 0,
        transient_bytes=report["transient_bytes"],
        packed=copied == len(read.findings) and "goes through memory" not in fallback,
        copied=copied,
        bytes_moved=product.bytes_moved if product else None,
        bytes_minimum=_minimum(case),
        load_bytes=loop.load_bytes if loop else None,
        bytes_in_flight=loop.bytes_in_flight if loop and loop.is_loop else None,
        matrix_share=loop.matrix_share if loop else None,
        bound_by=(loop.bound_by or "") if loop else "",
        fallback=fallback,
        time=_time(read, product.kernel) if product else None,
    )


def _time(report: Report, kernel: str) -> Time | None:
    """Return the time of the dispatch of `kernel`, which computes the product."""
    return next((each.time for each in report.operations if each.kernel == kernel), None)


def _worst_kind(cases: Sequence[KernelCode], target: Target) -> str:
    """Return how the worst of some kernels multiplies, of which the rows of a call choose one."""
    kinds = [*KINDS, "none"]
    found = [best_kind(kernel, target) or "none" for kernel in cases]
    return max(found, key=kinds.index, default="none")


def _minimum(case: Case) -> int | None:
    """Return the bytes of packed activations, weights, scales and the result, each once.

    Of experts, as many count as the groups of rows can choose. The number is computed from the case
    and not read from the report: a report that leaves out traffic must not look good. None if it
    is not known.
    """
    if case.m < 0 or not case.contracts or case.moves_more:
        return None
    groups, rows = case.group_rows if case.experts else (case.batch or 1, case.m)
    weights = min(groups, case.experts) if case.experts else 1 if case.shared else groups
    total = (
        weights * case.n * _row_bytes(case.rhs, case) + groups * rows * case.n * case.result_bytes
    )
    return math.ceil(total + groups * rows * _row_bytes(case.source or case.lhs, case))


def _row_bytes(name: str, case: Case) -> float:
    if name in _WIDE_FLOATS:
        return case.k * _WIDE_FLOATS[name] / 8
    format = format_of(name)
    scales = case.k // (case.block or format.block) / format.rows
    return (case.k * format.element.bits + scales * format.scale.bits) / 8


@dataclass(frozen=True)
class Bar:
    """A requirement: the cases that it applies to (`asked`), and the rows that meet it (`met`)."""

    name: str
    asked: Callable[[Case], bool]
    met: Callable[[Case, Row, Target], bool]


def _native(case: Case, found: Row, target: Target) -> bool:
    kinds = ["scaled matrix"]
    if case.weight_only or not target.scaled_instructions or not case.scales_fit:
        kinds.append("matrix")
    return found.kind in kinds


def _in_flight(case: Case, found: Row, target: Target) -> bool:
    """Whether enough bytes are in flight to keep memory busy. True for a kernel without a loop,
    which requests all bytes at once, and for targets of which too little is known."""
    del case
    own = target.gpu
    if own is None or found.bytes_in_flight is None:
        return True
    return found.bytes_in_flight >= own.bytes_in_flight


#: All requirements.
BARS = (
    Bar("compiles", lambda case: True, lambda case, found, target: not found.failed),
    Bar(
        f"matrix instruction, M >= {MATRIX_ROWS}",
        lambda case: case.contracts and (case.m < 0 or case.m >= MATRIX_ROWS),
        _native,
    ),
    Bar(
        "weights stay packed", lambda case: case.contracts, lambda case, found, target: found.packed
    ),
    Bar(
        "weights are read where they lie",
        lambda case: case.contracts and not case.unordered,
        lambda case, found, target: not found.copied,
    ),
    Bar(
        "weights in another order: one copy each",
        lambda case: case.contracts and case.unordered > 0,
        lambda case, found, target: found.copied <= case.unordered,
    ),
    Bar("no spills", lambda case: True, lambda case, found, target: not found.spills),
    Bar("no scratch", lambda case: True, lambda case, found, target: not found.scratch_bytes),
    Bar(
        "kernels: 1, 2 with activations quantized, 3 the result",
        lambda case: case.contracts,
        lambda case, found, target: 0 < found.kernels <= case.kernels_wanted,
    ),
    Bar(
        f"M < {MATRIX_ROWS}: at most {_MOST_BYTES} of the minimal bytes",
        lambda case: case.contracts and 0 < case.m < MATRIX_ROWS and not case.moves_more,
        lambda case, found, target: found.moved is not None and found.moved <= _MOST_BYTES,
    ),
    Bar(
        "no fewer than the minimal bytes",
        lambda case: case.contracts and case.m > 0 and not case.moves_more,
        lambda case, found, target: found.moved is not None and found.moved >= _FEWEST_BYTES,
    ),
    Bar(
        f"M {MATRIX_ROWS} to {_MEMORY_ROWS}: bytes in flight for the bandwidth",
        lambda case: case.contracts and MATRIX_ROWS <= case.m <= _MEMORY_ROWS,
        _in_flight,
    ),
    Bar("no fallback", lambda case: case.contracts, lambda case, found, target: not found.fallback),
    Bar(
        "report and code object agree",
        lambda case: True,
        lambda case, found, target: not found.disagreements,
    ),
)


def misses(case: Case, found: Row, target: Target) -> list[str]:
    """Return the bars that a row does not meet; for a row that failed, only the first one."""
    asked = BARS[:1] if found.failed else [bar for bar in BARS if bar.asked(case)]
    return [bar.name for bar in asked if not bar.met(case, found, target)]


def counts(pairs: Sequence[tuple[Case, Row]], target: Target) -> list[tuple[str, int, int]]:
    """Return each bar with the number of rows that meet it, and of rows that it applies to. A row
    that failed meets none."""
    found = []
    for bar in BARS:
        concerned = [(case, one) for case, one in pairs if bar.asked(case)]
        met = sum(not one.failed and bar.met(case, one, target) for case, one in concerned)
        found.append((bar.name, met, len(concerned)))
    return found


#: Fields that are compared between two runs, and whether more is better; None: neither is.
_COMPARED = {
    "kind": None, "kernels": False, "spills": False, "scratch_bytes": False,
    "transient_bytes": False, "packed": True, "copied": False, "matrix_share": True,
    "fallback": None, "failed": None,
}  # fmt: skip


def differences(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """Return a line for each field in `_COMPARED` in which two rows of a case and target differ."""
    old = {(one.name, one.target): one for one in before}
    lines = []
    for new in after:
        known = old.get((new.name, new.target))
        if known is None:
            continue
        for name, rising in _COMPARED.items():
            was, now = getattr(known, name), getattr(new, name)
            if was == now:
                continue
            verdict = ""
            if rising is not None and was is not None and now is not None:
                verdict = " better" if (now > was) == rising else " worse"
            lines.append(f"{new.target} {new.name}: {name} {was!r} -> {now!r}{verdict}")
    return lines
