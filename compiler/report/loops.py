"""Loops of a kernel, and the instructions of the hot loop of a GPU kernel.

A loop is the range between a label and a branch back to it. The hot loop of a GPU kernel is the
innermost loop with the most matrix instructions; if no loop has any, the one with the most loads. A
kernel without a loop counts as a whole. cpu_loops.py finds the hot loop of a CPU kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.?\w+):")
_INSTRUCTION = re.compile(r"^\s+(?:\{\w+\}\s+)?([a-z][\w.]*)(?:\s+(.*))?$")
_BRANCH = ("s_cbranch", "s_branch")
_END = "s_endpgm"
#: Branches of x86-64 and of AArch64; their target is the last operand.
CPU_BRANCH = re.compile(r"j[a-z]+|b|b\.[a-z]+|cbn?z|tbn?z")
_CPU_COMMENT = re.compile(r"\s#\s.*|//.*")

#: Kinds of GPU instructions, in the order in which a census lists them.
KINDS = (
    "matrix", "ds_read", "ds_write", "load_to_lds", "global_load", "global_store", "scratch",
    "v_perm", "convert", "accvgpr", "valu", "scalar_load", "salu", "wait", "barrier", "nop",
    "branch",
)  # fmt: skip


@dataclass(frozen=True)
class LoopInstruction:
    """One instruction: its mnemonic and its operands as they are written."""

    mnemonic: str
    operands: str = ""

    @property
    def kind(self) -> str:
        """The kind of the instruction, one of `KINDS`."""
        return _kind(self.mnemonic, self.operands)


@dataclass(frozen=True)
class Loop:
    """Instructions of a kernel from number `first` on; all of them if there is no loop."""

    lines: tuple[LoopInstruction, ...]
    first: int = 0
    is_loop: bool = True

    @property
    def census(self) -> dict[str, int]:
        """Number of instructions of each kind that occurs, in the order of `KINDS`."""
        counts = Counter(line.kind for line in self.lines)
        return {kind: counts[kind] for kind in KINDS if kind in counts}


def hot_loop(body: str) -> Loop:
    """Return the hot loop of a GPU kernel, given its text from the label to the end."""
    lines, labels = _read(body)
    ranges = _ranges(lines, labels)
    kinds = [line.kind for line in lines]
    inner = innermost(ranges)
    matrices = [r for r in ranges if "matrix" in kinds[r[0] : r[1] + 1]]
    if matrices and not any(r in inner for r in matrices):
        inner = innermost(matrices)
    if not inner:
        return Loop(tuple(lines), is_loop=False)

    def count(within: tuple[int, int], *wanted: str) -> int:
        found = Counter(kinds[within[0] : within[1] + 1])
        return sum(found[kind] for kind in wanted)

    first, last = max(
        inner, key=lambda r: (count(r, "matrix"), count(r, "global_load", "load_to_lds"), r)
    )
    return Loop(tuple(lines[first : last + 1]), first)


def innermost_loops(body: str) -> list[tuple[LoopInstruction, ...]]:
    """Return the innermost loops of a CPU kernel, given the text of its function."""
    lines, ranges = cpu_loops(body)
    return [tuple(lines[first : last + 1]) for first, last in innermost(ranges)]


def cpu_loops(body: str) -> tuple[list[LoopInstruction], list[tuple[int, int]]]:
    """Return the instructions of a CPU kernel, and first and last of each of its loops."""
    lines, labels = _read(_CPU_COMMENT.sub("", body))
    ends: dict[int, int] = {}
    for number, line in enumerate(lines):
        if CPU_BRANCH.fullmatch(line.mnemonic):
            _close(ends, labels.get(line.operands.rpartition(",")[2].strip()), number)
    return lines, sorted(ends.items())


def innermost(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the loops that contain no other loop of `ranges`."""
    return [r for r in ranges if not any(_within(other, r) for other in ranges)]


def _read(body: str) -> tuple[list[LoopInstruction], dict[str, int]]:
    """Return the instructions in order, and for each label the index of the next instruction."""
    lines: list[LoopInstruction] = []
    labels: dict[str, int] = {}
    for text in body.splitlines():
        text = text.split(";", 1)[0].rstrip()
        label = _LABEL.match(text)
        if label is not None:
            labels[label[1]] = len(lines)
            continue
        line = read_line(text)
        if line is not None:
            lines.append(line)
    return lines, labels


def read_line(text: str) -> LoopInstruction | None:
    """Return the instruction on a line of assembly, or None."""
    found = _INSTRUCTION.match(text.split(";", 1)[0].rstrip())
    return None if found is None else LoopInstruction(found[1], found[2] or "")


def _ranges(lines: Sequence[LoopInstruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """Return first and last instruction of each loop; branches back to one label make one loop."""
    ends: dict[int, int] = {}
    for number, line in enumerate(lines):
        if line.mnemonic.startswith(_BRANCH):
            target = labels.get(line.operands.strip())
            if target is not None and not _ends(lines, target):
                _close(ends, target, number)
    return sorted(ends.items())


def _ends(lines: Sequence[LoopInstruction], target: int) -> bool:
    """Whether the kernel ends at an instruction or after it, before any branch: then a branch back
    to this instruction leaves the kernel, and closes no loop."""
    for line in lines[target:]:
        if line.mnemonic == _END or line.mnemonic.startswith(_BRANCH):
            return line.mnemonic == _END
    return False


def _close(ends: dict[int, int], target: int | None, number: int) -> None:
    """Record the loop that branch `number` to instruction `target` closes, if it goes back."""
    if target is not None and target <= number:
        ends[target] = max(number, ends.get(target, number))


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _kind(mnemonic: str, operands: str) -> str:
    if mnemonic.startswith(("v_mfma", "v_smfmac", "v_wmma", "v_swmmac")):
        return "matrix"
    if mnemonic.startswith("ds_"):
        stores = "write" in mnemonic or "store" in mnemonic
        return "ds_write" if stores else "ds_read"
    if mnemonic.startswith("scratch_"):
        return "scratch"
    if mnemonic.startswith(("buffer_", "global_", "flat_")):
        return _memory_kind(mnemonic, operands)
    if mnemonic.startswith("v_"):
        if mnemonic.startswith("v_perm"):
            return "v_perm"
        return "accvgpr" if "accvgpr" in mnemonic else "convert" if "cvt" in mnemonic else "valu"
    if mnemonic.startswith(("s_waitcnt", "s_wait_")):
        return "wait"
    if mnemonic.startswith("s_barrier"):
        return "barrier"
    if mnemonic.startswith(("s_nop", "s_delay_alu", "s_sleep", "s_setprio", "s_sched")):
        return "nop"
    if mnemonic.startswith(_BRANCH) or mnemonic == "s_endpgm":
        return "branch"
    return "scalar_load" if mnemonic.startswith(("s_load", "s_buffer_load")) else "salu"


def _memory_kind(mnemonic: str, operands: str) -> str:
    if "load" not in mnemonic:
        return "global_store"
    to_lds = "_lds_" in mnemonic or re.search(r"\blds\b", operands) is not None
    return "load_to_lds" if to_lds else "global_load"
