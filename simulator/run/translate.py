"""Translates kernels to Python: each basic block becomes a function over all waves' registers.

An instruction that computes lane by lane becomes lines that apply its function (see `operations`)
to its operands. Every other instruction becomes a call of a closure that is made for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.code.processors import meant, refusal
from mxc.simulator.code.text import branch_target, text
from mxc.simulator.compute.lanes import lane_step
from mxc.simulator.compute.mfma import mfma_step
from mxc.simulator.compute.narrow import conversion_step
from mxc.simulator.compute.sparse import smfmac_step
from mxc.simulator.compute.special import special_step
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.buffers import buffer_step
from mxc.simulator.memory.flat import flat_step
from mxc.simulator.memory.local import local_step
from mxc.simulator.memory.scalar_memory import scalar_step
from mxc.simulator.run.lines import Lines
from mxc.simulator.run.state import Waves

_JUMPS = ("s_branch", "s_cbranch_")
#: Instructions without an effect on results; s_waitcnt matters only to the sanitizer.
NOTHING = frozenset(
    (
        *("s_nop", "s_waitcnt", "s_setprio", "s_sleep", "s_sethalt", "s_icache_inv", "v_nop"),
        *("s_dcache_inv", "s_dcache_wb", "buffer_wbl2", "buffer_inv", "s_ttracedata"),
        *("s_incperflevel", "s_decperflevel", "s_wakeup"),
    )
)


_MEMORY = {"SMEM": scalar_step, "MUBUF": buffer_step, "FLAT": flat_step, "DS": local_step}


@dataclass(frozen=True)
class BasicBlock:
    """A basic block, instructions first .. first + count - 1.

    kind: how it ends, "next", "jump", "branch", "barrier" or "end". condition: of a branch. target:
    the first instruction of the block to which a taken branch goes. follow: the index after the
    block.
    """

    run: Callable[[Waves], None]
    first: int
    count: int
    kind: str
    condition: str
    target: int
    follow: int


class TranslatedKernel:
    """A translated kernel: instructions, and blocks by the index of their first instruction.

    unmodelled: texts of the instructions that raise SimulationError when they are reached.
    """

    def __init__(self, kernel: CodeObjectKernel, *, observed: bool = False) -> None:
        """Decode and translate; `observed` adds the calls before and after each instruction."""
        self.kernel = kernel
        self.instructions = _reachable(kernel)
        self.unmodelled: list[str] = []
        self._index = {i.address: n for n, i in enumerate(self.instructions)}
        self._lines: list[int] = []
        self._observed = observed
        self.blocks = self._translate()

    def at_address(self, address: int) -> int:
        """Return the index of the instruction at an address."""
        return self._index[address]

    def instruction_at_line(self, line: int) -> int:
        """Return the index of the instruction of a line of the generated program."""
        return self._lines[min(line, len(self._lines)) - 1]

    def place(self, index: int) -> str:
        """Return kernel, address and text of an instruction, for messages."""
        i = self.instructions[index]
        return f"{self.kernel.location(i.address)}: {text(i)}"

    def _starts(self) -> list[int]:
        starts = {0}
        for n, i in enumerate(self.instructions):
            if i.name.startswith(_JUMPS):
                starts.add(self._index[branch_target(i)])
            if _ends_block(i) or (
                # Unreachable code lies between, so the block does not fall through.
                n + 1 < len(self.instructions)
                and self.instructions[n + 1].address != i.address + i.size
            ):
                starts.add(n + 1)
        return sorted(s for s in starts if s < len(self.instructions))

    def _translate(self) -> dict[int, BasicBlock]:
        changes = any(i.name.startswith("s_setreg") for i in self.instructions)
        lines = Lines(self.kernel.descriptor.mode, changes_mode=changes)
        starts = self._starts()
        source: list[str] = []
        blocks: dict[int, BasicBlock] = {}
        for first, follow in zip(starts, [*starts[1:], len(self.instructions)], strict=True):
            begin = len(source)
            self._add(source, first, f"def b{first}(w):")
            self._add(source, first, " w.fragments.clear(); s, v, a = w.s, w.v, w.a")
            if self._observed:
                self._add(source, first, " before, after = w.observer.before, w.observer.after")
            for n in range(first, follow):
                for line in self._one(lines, n):
                    self._add(source, n, f" {line}")
            # Its lines have the numbers that they have in the whole program.
            function = "\n" * begin + "\n".join(source[begin:])
            run = _when_run(function, f"b{first}", lines.names)
            blocks[first] = self._block(run, first, follow)
        return blocks

    def _add(self, source: list[str], index: int, line: str) -> None:
        source.append(line)
        self._lines.append(index)

    def _one(self, lines: Lines, n: int) -> list[str]:
        i = self.instructions[n]
        body = self._body(lines, i)
        if not self._observed:
            return body
        name = lines.bind(i)
        return [
            f"w.at = {n}; before(w, {name})",
            *body,
            f"after(w, {name})",
        ]

    def _body(self, lines: Lines, i: Instruction) -> list[str]:
        if i.name in NOTHING or _ends_block(i):
            return []
        try:
            if (reason := refusal(i.name, self.kernel.processor)) is not None:
                raise SimulationError(reason)
            name = meant(i.name, self.kernel.processor)
            return instruction_lines(lines, i if name == i.name else replace(i, name=name))
        except SimulationError as error:
            self.unmodelled.append(text(i))
            return [f"{lines.bind(_refusal(str(error)))}(w)"]

    def _block(self, run: Callable[[Waves], None], first: int, follow: int) -> BasicBlock:
        last = self.instructions[follow - 1]
        target = self._index[branch_target(last)] if last.name.startswith(_JUMPS) else 0
        kind, condition = "next", ""
        if last.name == "s_branch":
            kind = "jump"
        elif last.name.startswith("s_cbranch_"):
            kind, condition = "branch", last.name.removeprefix("s_cbranch_")
        elif last.name == "s_endpgm":
            kind = "end"
        elif last.name == "s_barrier":
            kind = "barrier"
        return BasicBlock(run, first, follow - first, kind, condition, target, follow)


def _when_run(source: str, name: str, space: dict[str, Any]) -> Callable[[Waves], None]:
    """The function `name`, compiled when it is first called: many blocks of a kernel never run."""

    @cache
    def compiled() -> Callable[[Waves], None]:
        exec(compile(source, "<kernel>", "exec"), space)
        function: Callable[[Waves], None] = space[name]
        return function

    return lambda w: compiled()(w)


def _ends_block(i: Instruction) -> bool:
    return i.name.startswith(_JUMPS) or i.name in ("s_endpgm", "s_barrier")


def _reachable(kernel: CodeObjectKernel) -> list[Instruction]:
    """Return the instructions that can be reached from the entry, ordered by address."""
    entry = kernel.descriptor.start
    todo, found = [entry], {}
    while todo:
        address = todo.pop()
        while address not in found:
            i = kernel.fetch(address)
            found[address] = i
            if i.name.startswith(_JUMPS):
                todo.append(branch_target(i))
            if i.name in ("s_branch", "s_endpgm"):
                break
            address += i.size
    ordered = sorted(found)
    if ordered[0] != entry:
        raise SimulationError(f"{kernel.name}: code before its entry is not modelled")
    return [found[address] for address in ordered]


def instruction_lines(lines: Lines, i: Instruction) -> list[str]:
    """Return the Python lines of an instruction; SimulationError where it is not modelled."""
    found = lines.translate(i)
    if found is not None:
        return found
    step = _step(i, lines)
    if step is None:
        raise SimulationError("the instruction is not modelled")
    return [f"{lines.bind(step)}(w)"]


def _step(i: Instruction, lines: Lines) -> Callable[[Waves], None] | None:
    """Return the closure that executes an instruction; None where it is not modelled."""

    def reader(operand: Operand) -> Callable[[Waves], Any]:
        return lines.reader(operand)

    memory_step = _MEMORY.get(i.encoding)
    if memory_step is not None:
        return lane_step(i, lambda n: reader(i.operands[n])) or memory_step(i, reader)
    if i.has("dpp") or (i.has("sdwa") and not i.name.startswith("v_cvt_pk_f32_")):
        return None
    if i.name.startswith("v_smfmac_"):
        return smfmac_step(i, lines.constant)
    if i.name.startswith("v_mfma_"):
        return mfma_step(i, lines.constant)
    found = conversion_step(i, reader, lines.float_reader)
    if found is not None:
        return found
    return lane_step(i, lambda n: reader(i.operands[n])) or special_step(i, reader)


def _refusal(reason: str) -> Callable[[Waves], None]:
    def refuse(_: Waves) -> None:
        raise SimulationError(reason)

    return refuse
