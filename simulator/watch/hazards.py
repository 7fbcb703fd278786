"""Finds missing wait states: dependent instructions that are too close and have no interlock.

In these cases CDNA hardware continues with an old or half-written register; the compiler must
insert s_nop. An instruction counts as one wait state, s_nop N as N + 1.

Sources: AMD CDNA3 and CDNA4 instruction set architecture, "Manually inserted wait states (NOPs)"
and the dependency tables of matrix instructions; LLVM, GCNHazardRecognizer.cpp, for gfx940 and
gfx950. Numbers of passes (4 cycles each) follow from the cycles in `count.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mxc.simulator.code.instruction import VCC, Instruction
from mxc.simulator.code.text import branch_target, text
from mxc.simulator.watch.facts import M0_REGISTERS, InstructionFacts, Registers
from mxc.simulator.watch.uses import EXECUTION
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

#: Most wait states of any rule, and of rules that do not begin with a matrix instruction.
_FURTHEST, _WITHOUT_MATRIX = 20, 5
_LANES = ("v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32")
_SWAPS = ("v_permlane16_swap_b32", "v_permlane32_swap_b32")
_MASK = frozenset((("s", VCC), ("s", VCC + 1)))


def hazards(instructions: Sequence[Instruction], processor: Gpu = GFX950) -> dict[int, list[str]]:
    """Return the findings by the address of the instruction that comes too early.

    instructions: all reachable instructions, ordered by address.
    """
    facts = [InstructionFacts(i, processor) for i in instructions]
    before = _predecessors(instructions)
    furthest = _FURTHEST if any(f.matrix for f in facts) else _WITHOUT_MATRIX
    found: dict[int, list[str]] = {}
    for n, later in enumerate(facts):
        if not (later.vector or later.memory or later.i.encoding == "DS" or later.asks_scalar):
            continue
        for distance, earlier, hidden in _earlier(facts, before, n, furthest):
            for wanted, why in _rules(earlier, later, hidden):
                if distance < wanted:
                    found.setdefault(later.i.address, []).append(
                        f"{why}: {distance} wait states behind 0x{earlier.i.address:x} "
                        f"{text(earlier.i)}, wanted {wanted}"
                    )
    return found


def _predecessors(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Return the indices of the possible direct predecessors of each instruction."""
    place = {i.address: n for n, i in enumerate(instructions)}
    before: list[list[int]] = [[] for _ in instructions]
    for n, i in enumerate(instructions):
        if i.name not in ("s_branch", "s_endpgm") and i.address + i.size in place:
            before[place[i.address + i.size]].append(n)
        if i.name.startswith(("s_branch", "s_cbranch_")) and branch_target(i) in place:
            before[place[branch_target(i)]].append(n)
    return before


def _earlier(
    facts: Sequence[InstructionFacts], before: list[list[int]], n: int, furthest: int
) -> Iterator[tuple[int, InstructionFacts, Registers]]:
    """Yield earlier instructions of the n-th: wait states between, facts, hidden registers.

    Hidden registers are those that matrix instructions in between have written, because only the
    nearest writer counts.
    """
    seen = {n}
    todo: list[tuple[int, int, Registers]] = [(0, n, frozenset())]
    while todo:
        distance, at, hidden = todo.pop(0)
        for previous in before[at]:
            if previous in seen:
                continue
            seen.add(previous)
            fact = facts[previous]
            if fact.matrix or (distance < _WITHOUT_MATRIX and fact.interesting):
                yield distance, fact, hidden
            if distance + fact.wait_states < furthest:
                since = hidden | fact.writes if fact.matrix else hidden
                todo.append((distance + fact.wait_states, previous, since))


def _rules(
    earlier: InstructionFacts, later: InstructionFacts, hidden: Registers
) -> Iterator[tuple[int, str]]:
    """Yield the wait states that the two instructions need between them, and the reason."""
    if earlier.matrix:
        yield from _matrix_rules(earlier, later, hidden)
    elif earlier.vector:
        yield from _vector_rules(earlier, later)
    elif earlier.memory and later.vector and earlier.stored & later.writes:
        yield 2, "data of a store is overwritten"
    elif earlier.scalar:
        if earlier.writes & M0_REGISTERS and later.reads_m0:
            yield 1, "M0 is read"
        if earlier.register is not None and earlier.sets and earlier.register == later.register:
            yield 2, "a hardware register is used"


def _matrix_rules(
    earlier: InstructionFacts, later: InstructionFacts, hidden: Registers
) -> Iterator[tuple[int, str]]:
    passes, more = earlier.passes, earlier.more
    small = earlier.i.name.startswith("v_mfma_f64_4x4")
    written = earlier.writes - hidden
    if later.matrix:
        if written & later.multiplied:
            wanted = (6 if small else 19) if earlier.double else passes + 2 + more
            yield wanted, "a matrix result is a factor"
        if written & later.accumulated:
            yield _accumulated(earlier, later), "a matrix result is added to"
        return
    if written & later.reads:
        wanted = passes + 2 + more
        if earlier.double:
            wanted = (6 if small else 19) if later.vector else (9 if small else 18)
        yield wanted, "a matrix result is read"
    if later.vector and written & later.writes:
        wanted = (6 if small else 11) if earlier.double else passes + 2 + more
        yield wanted, "a matrix result is overwritten"
    if later.vector and earlier.wide and earlier.accumulated & later.writes:
        yield passes - 1, "what a matrix instruction adds to is overwritten"


def _accumulated(earlier: InstructionFacts, later: InstructionFacts) -> int:
    first, third = earlier.i.results[0], later.i.operands[2]
    small = "f64_4x4"
    if first == third:
        both = small in earlier.i.name and small in later.i.name
        return 4 if both else 2 if earlier.passes == 2 else 0
    if later.wide and not earlier.wide:
        return 0
    if earlier.double:
        return 4 if small in earlier.i.name else 17
    return earlier.passes + earlier.more


def _vector_rules(earlier: InstructionFacts, later: InstructionFacts) -> Iterator[tuple[int, str]]:
    name = later.i.name
    used = earlier.writes & later.reads
    scalars = any(bank == "s" for bank, _ in used)
    vectors = any(bank != "s" for bank, _ in used)
    masks = bool(earlier.writes & EXECUTION)
    if later.memory:
        if scalars:
            yield 5, "a scalar register of a vector instruction is read by memory"
    elif later.vector:
        if scalars:
            yield 2, "a scalar register of a vector instruction is read"
        if earlier.writes & later.selects:
            yield 4, "a lane is selected"
        if name.startswith("v_div_fmas") and earlier.writes & _MASK:
            yield 4, "VCC is read by v_div_fmas"
        if name in _LANES:
            if masks:
                yield 4, "EXEC has changed"
            if vectors and name != "v_writelane_b32":
                yield 1, "a vector register is read by lane"
        if later.i.has("dpp"):
            if vectors:
                yield 2, "a vector register is read across lanes"
            if masks:
                yield 5, "EXEC has changed"
        if name in _SWAPS:
            if vectors:
                yield 2, "a vector register is read across lanes"
            if masks:
                yield 4, "EXEC has changed"
        if later.matrix:
            if masks:
                yield 4, "EXEC has changed"
            if vectors and not earlier.dot:
                yield 2, "a vector register is an operand of a matrix instruction"
        if vectors and earlier.transcendental and not later.transcendental:
            yield 1, "the result of a transcendental instruction is read"
        if vectors and earlier.part:
            yield 1, "a part of a register was written"
    if earlier.dot and later.i.encoding != "SOPP":
        yield from _dot_rules(earlier, later)


def _dot_rules(earlier: InstructionFacts, later: InstructionFacts) -> Iterator[tuple[int, str]]:
    same = earlier.i.name == later.i.name
    read = later.reads
    if same:
        read = frozenset(r for o in later.i.operands[:2] for r in o.registers())
    if earlier.writes & read:
        yield 3, "a dot product is read"
    if later.vector and not same and earlier.writes & later.writes:
        yield 3, "a dot product is overwritten"
