"""Registers, memory and instructions of a kernel, read from its compiled code.

A GPU kernel is read from its code object, which has its instructions as text; a CPU kernel from its
assembly (`.s`), ELF x86-64 or AArch64. Kernels keep the name of the dispatch's exported symbol, by
which a report finds them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mxc.artifact.code_objects.listing import read_listings
from mxc.artifact.code_objects.metadata import Resources, read_resources
from mxc.compiler.report.cpu_loops import describe_cpu
from mxc.compiler.report.hot_loop import HotLoop, describe
from mxc.compiler.report.stack_slots import StackMoves, stack_moves
from mxc.targets.compute_unit import ComputeUnit, Occupancy

# A name with unusual characters is quoted.
_FUNCTION = re.compile(r"^\s*\.type\s+\"?([^\",\s]+)\"?,\s*[@%]function\s*$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+(?:\{\w+\}\s+)?([a-z][\w.]*)(?:\s+(.*))?$")
_GPU = re.compile(r"^\s*\.amdgcn_target\b", re.MULTILINE)
# Vector registers of x86, widest first: a mnemonic on zmm does four times the work of xmm.
_WIDTHS = ("zmm", "ymm", "xmm")
_TILE_INSTRUCTIONS = ("tdp", "tile", "ldtilecfg")
_FRAME = re.compile(r"^\s+sub[ql]?\s+\$(\d+),\s*%rsp", re.MULTILINE)
_STACK_STORE = re.compile(
    r"^\s+v?mov\w*\s+%[xyz]mm\d+,\s*-?\d*\(%rsp\)|^\s+st[pr]\s+[qdv]\d.*\[sp", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class KernelCode:
    """One kernel. Registers are counts, None on a CPU; sizes are bytes; spills are registers.

    - `spills`, `scratch_bytes`: on a CPU the number of stores of vector registers to the stack, and
      the fixed part of the stack frame.
    - `instructions`: number of occurrences of each mnemonic in the text; of x86 vector instructions
      with the register width, as "vfmadd231ps zmm".
    - `vgpr`: includes accumulation registers where both share one register file (gfx942, gfx950).
    - `occupancy`: for a GPU whose compute unit targets/amd/ describes.
    - `hot_loop`: for CPUs and these GPUs.
    - `stack_moves`: for a CPU kernel with moves between vector registers and the stack in a loop.
    - `case_of`, `from_rows`: the program calls the kernel `case_of`, and this one runs for calls of
      at least `from_rows` rows; empty if the program calls this kernel by its own name.
    """

    name: str
    case_of: str = ""
    from_rows: int = 0
    instructions: dict[str, int] = field(default_factory=dict)
    spills: int = 0
    scratch_bytes: int = 0
    vgpr: int | None = None
    agpr: int | None = None
    sgpr: int | None = None
    lds_bytes: int | None = None
    workgroup_size: int | None = None
    occupancy: Occupancy | None = None
    hot_loop: HotLoop | None = None
    stack_moves: StackMoves | None = None

    @property
    def entry(self) -> str:
        """Name of the kernel that the program calls when this one runs."""
        return self.case_of or self.name

    @property
    def uses_tiles(self) -> bool:
        """Whether the kernel has instructions on AMX tile registers, which need a permission."""
        return any(name.startswith(_TILE_INSTRUCTIONS) for name in self.instructions)

    @property
    def uses_scratch(self) -> bool:
        """Whether registers are kept in memory at a cost: on a GPU any spill or scratch; on a CPU,
        whose stack is in the cache, only many moves in a hot loop.
        """
        if self.vgpr is None:
            return self.stack_moves is not None and self.stack_moves.excessive
        return bool(self.spills or self.scratch_bytes)

    @property
    def spilling(self) -> str:
        """The registers in memory as a clause: "12 spills, 48 bytes of scratch"."""
        if self.vgpr is not None:
            return f"{self.spills} spills, {self.scratch_bytes} bytes of scratch"
        if self.stack_moves is None:
            return "no vector register on the stack in a hot loop"
        moves, instructions = self.stack_moves.moves, self.stack_moves.instructions
        return f"{moves} of {instructions} instructions of a loop move vectors to or from the stack"


def parse(
    text: str, unit: ComputeUnit | None = None, resources: Mapping[str, Resources] | None = None
) -> list[KernelCode]:
    """Return the kernels of one assembly file, in order; with `unit` also their occupancy and hot
    loop.

    AMDGPU: the kernels that are in `resources`. CPU: all functions, including run-time helpers; the
    caller knows the exported names. The list is empty for a text without functions.
    """
    bodies = bodies_of(text)
    if _GPU.search(text):
        known = resources or {}
        return [
            _gpu_kernel(name, body, known[name], unit)
            for name, body in bodies.items() if name in known
        ]  # fmt: skip
    return [_cpu_kernel(name, body) for name, body in bodies.items()]


def parse_all(
    texts: Iterable[str],
    unit: ComputeUnit | None = None,
    resources: Mapping[str, Resources] | None = None,
) -> dict[str, KernelCode]:
    """Return the kernels of several files by name."""
    return {kernel.name: kernel for text in texts for kernel in parse(text, unit, resources)}


def kernels_of(objects: Iterable[bytes], unit: ComputeUnit | None = None) -> dict[str, KernelCode]:
    """Return the kernels of code objects with assembly by name; with `unit` also their occupancy
    and hot loop.

    Raises CodeObjectError for other files.
    """
    found = {}
    for data in objects:
        bodies = read_listings(data)
        for name, taken in read_resources(data).items():
            found[name] = _gpu_kernel(name, bodies.get(name, ""), taken, unit)
    return found


def bodies_of(text: str) -> dict[str, str]:
    """Return the text of each function by name, from its label to its end marker."""
    found: dict[str, str] = {}
    for match in _FUNCTION.finditer(text):
        name = match[1]
        label = re.compile(rf'^"?{re.escape(name)}"?:.*$', re.MULTILINE).search(text, match.end())
        if label is None:
            continue
        end = re.compile(rf'^(?:\.Lfunc_end\d+:|\s+\.size\s+"?{re.escape(name)}"?,)', re.MULTILINE)
        stop = end.search(text, label.end())
        found[name] = text[label.end() : stop.start() if stop else len(text)]
    return found


def _gpu_kernel(name: str, body: str, taken: Resources, unit: ComputeUnit | None) -> KernelCode:
    held = None
    if unit is not None:
        held = unit.occupancy(
            registers=taken.vgpr, lds_bytes=taken.lds_bytes, workgroup_size=taken.workgroup_size
        )
    return KernelCode(
        name=name,
        instructions=_count(body, ";"),
        spills=taken.spills,
        scratch_bytes=taken.scratch_bytes,
        vgpr=taken.vgpr,
        agpr=taken.agpr,
        sgpr=taken.sgpr,
        lds_bytes=taken.lds_bytes,
        workgroup_size=taken.workgroup_size,
        occupancy=held,
        hot_loop=describe(body, unit, held, taken.workgroup_size)
        if unit is not None and held
        else None,
    )


def _cpu_kernel(name: str, body: str) -> KernelCode:
    return KernelCode(
        name=name,
        instructions=_count(body, "#"),
        spills=len(_STACK_STORE.findall(body)),
        scratch_bytes=sum(int(size) for size in _FRAME.findall(body)),
        hot_loop=describe_cpu(body),
        stack_moves=stack_moves(body),
    )


def _count(body: str, comment: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for line in body.splitlines():
        match = _INSTRUCTION.match(line.split(comment, 1)[0].rstrip())
        if match is None:
            continue
        operands = match[2] or ""
        width = next((w for w in _WIDTHS if f"%{w}" in operands), None)
        counts[match[1] if width is None else f"{match[1]} {width}"] += 1
    return dict(counts.most_common())
