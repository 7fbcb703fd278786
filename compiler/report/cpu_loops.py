"""The hot loop of a CPU kernel, x86-64 or AArch64, and the kinds of its instructions.

The hot loop is the innermost loop with the most instructions that multiply: those of matrix units
first, then those of vector registers. If no loop multiplies, it is the one with the most vector
instructions. A kernel without a loop counts as a whole. In a kernel with a nest of its own for one
row, it is usually the loop for several rows, which multiplies more at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from mxc.compiler.report.hot_loop import HotLoop
from mxc.compiler.report.loops import CPU_BRANCH, Loop, LoopInstruction, cpu_loops, innermost

#: Kinds of CPU instructions, in the order in which a census lists them.
CPU_KINDS = (
    "matrix", "multiply", "permute", "convert", "vector", "load", "store", "prefetch", "scalar",
    "branch",
)  # fmt: skip

_VECTOR = re.compile(r"%[xyzt]mm\d|\bv\d+\.|\b[qz]\d+\b")
_MOVE = re.compile(r"v?mov\w*|vp?broadcast\w*|v?lddqu|tile(?:load|store)\w*")
#: Kinds by pattern of mnemonics, of which the first match counts. Moves to and from memory (_MOVE)
#: are recognized before.
_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("matrix", r"tdp\w+|bfmmla|[su]+mmla|fmopa|[su]mopa"),
        ("multiply", r"vfn?m(?:add|sub)\w+|vdpbf16ps|vpdp\w+|v?mul[ps][sd]|v?pmadd\w+|v?pmul\w+"
                     r"|fml[as]\w*|fmul|[su]+dot|bfdot|ml[as]|[su]ml[as]l2?|mul"),
        ("convert", r"v?cvt\w+|vpmov[sz]x\w+|pmov[sz]x\w+|[su]cvtf|fcvt\w*|bfcvt\w*|[su]xtl2?"),
        ("permute", r"vp?perm\w+|v?p?shuf\w+|v?p?unpck\w+|vp?align\w+|v?palignr|vp?insert\w+"
                    r"|vp?extract\w+|v?p?blend\w*|vpmultishiftqb|tb[lx]|zip\d|uzp\d|trn\d|ext|dup"),
        ("prefetch", r"prefetch\w+|prfm"),
        ("load", r"ld[rp]\w*|ld\d\w*|ldur\w*"),
        ("store", r"st[rp]\w*|st\d\w*|stur\w*"),
        ("branch", rf"{CPU_BRANCH.pattern}|call\w*|bl|ret\w*"),
    )
)  # fmt: skip


def hot_cpu_loop(body: str) -> Loop:
    """Return the hot loop of a CPU kernel, given the text of its function."""
    lines, ranges = cpu_loops(body)
    kinds = [kind_of(line) for line in lines]
    wide = [_VECTOR.search(line.operands) is not None for line in lines]

    def weight(within: tuple[int, int]) -> tuple[int, int, int]:
        own = slice(within[0], within[1] + 1)
        counts = Counter(kinds[own])
        return counts["matrix"], counts["multiply"], sum(wide[own])

    best = [r for r in ranges if weight(r)[0]] or [r for r in ranges if weight(r)[1]]
    inner = innermost(best or ranges)
    if not inner:
        return Loop(tuple(lines), is_loop=False)
    first, last = max(inner, key=lambda r: (*weight(r), r))
    return Loop(tuple(lines[first : last + 1]), first)


def describe_cpu(body: str) -> HotLoop | None:
    """Describe the hot loop of the CPU kernel with the text `body`; None without instructions."""
    loop = hot_cpu_loop(body)
    if not loop.lines:
        return None
    return HotLoop(is_loop=loop.is_loop, instructions=len(loop.lines), census=_census(loop.lines))


def kind_of(line: LoopInstruction) -> str:
    """Return the kind of an instruction, one of `CPU_KINDS`."""
    if _MOVE.fullmatch(line.mnemonic) and "(" in line.operands:
        return "store" if line.operands.rstrip().endswith(")") else "load"
    found = next((kind for kind, each in _KINDS if each.fullmatch(line.mnemonic)), None)
    wide = _VECTOR.search(line.operands) is not None
    if found in ("multiply", "convert", "permute") and not wide:
        return "scalar"
    return found or ("vector" if wide else "scalar")


def _census(lines: Sequence[LoopInstruction]) -> dict[str, int]:
    counts = Counter(map(kind_of, lines))
    return {kind: counts[kind] for kind in CPU_KINDS if kind in counts}
