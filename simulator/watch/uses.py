"""The registers that an instruction reads and writes, and the counters that it increments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mxc.simulator.code.instruction import EXEC, M0, VCC, Instruction
from mxc.simulator.compute.packed import PACKED32, packed_reads
from mxc.simulator.compute.salu import SALU
from mxc.simulator.compute.signatures import VALU

#: (bank, index) of a register; SCC is ("scc", 0).
Register = tuple[str, int]
EXECUTION = frozenset(("s", n) for n in (EXEC, EXEC + 1))
CARRY = ("scc", 0)
#: Counters of vector memory, of LDS, and of scalar loads; the last two share lgkmcnt.
VECTOR, LOCAL, SCALAR = "vmcnt", "lgkmcnt", "scalar"
#: Vector instructions whose results depend on other lanes.
_ACROSS = re.compile("mfma|smfmac|lane")
#: Instructions that read and write both registers.
EXCHANGES = ("v_swap_b32", "v_permlane16_swap_b32", "v_permlane32_swap_b32")


@dataclass(frozen=True)
class RegisterUse:
    """The registers and counters that an instruction uses.

    decides: registers that are read and must be defined. A result that is a half or a byte of its
    register (v_mad_mixlo, d16 loads, SDWA) counts as the whole register, because compilers leave
    the rest undefined and do not use it. counters: counters that the instruction increments. A FLAT
    instruction increments two: it may access LDS, where it completes in no order (SCALAR). loads:
    whether it writes registers. lanewise: a lane of a result depends on no other lane of vector
    registers.
    """

    reads: frozenset[Register]
    decides: frozenset[Register]
    writes: frozenset[Register]
    counters: tuple[str, ...]
    loads: bool
    lanewise: bool


def use_of(i: Instruction) -> RegisterUse:
    """Return the registers and counters that an instruction uses."""
    reads = {r for operand in i.operands for r in operand.registers()}
    if i.name in PACKED32:
        reads = _chosen_halves(i)
    writes = {r for result in i.results for r in result.registers()}
    entry = SALU.get(i.name) or VALU.get(i.name)
    if entry is not None:
        reads |= writes if entry.tied else set()
        reads |= {CARRY} if "c" in entry.ins else set()
        writes |= {CARRY} if "c" in entry.outs else set()
    if i.name.endswith("_saveexec_b64"):
        writes |= {*EXECUTION, CARRY}
    if i.name.startswith("v_cmpx"):
        writes |= EXECUTION
    if i.name in EXCHANGES:
        reads = writes = reads | writes
    if "smfmac" in i.name:
        reads |= writes
    if i.name.startswith("s_cbranch"):
        reads |= (
            {CARRY}
            if "scc" in i.name
            else {("s", VCC), ("s", VCC + 1)}
            if "vcc" in i.name
            else set()
        )
    if i.has("lds") or "_load_lds_" in i.name:
        reads.add(("s", M0))
    counters = _counters(i)
    decides: set[Register] = set()
    if i.name.startswith("s_cbranch") or writes & EXECUTION:
        decides = reads
    elif counters:
        # The address must be defined, for global stores the data too. LDS stores may store padding.
        decides = set(i.operands[0].registers()) if i.encoding == "DS" and i.operands else reads
        decides = set() if i.name == "ds_swizzle_b32" else decides
    lanewise = i.encoding.startswith("VOP") and not i.has("dpp") and not _ACROSS.search(i.name)
    return RegisterUse(
        reads=frozenset(reads),
        decides=frozenset(decides),
        writes=frozenset(writes),
        counters=counters,
        loads=bool(i.results),
        lanewise=lanewise,
    )


def _chosen_halves(i: Instruction) -> set[Register]:
    """Return the registers that a packed instruction reads; both halves may use the same one."""
    found = set()
    for half in (0, 1):
        for n, upper in packed_reads(i, half):
            operand = i.operands[n]
            if operand.is_register:
                found.add((operand.bank, operand.index + upper))
    return found


def _counters(i: Instruction) -> tuple[str, ...]:
    if i.encoding == "SMEM":
        return (SCALAR,)
    if i.name.startswith("flat_"):
        return (VECTOR, SCALAR)
    if i.encoding in ("MUBUF", "FLAT"):
        return (VECTOR,)
    return (LOCAL,) if i.encoding == "DS" else ()
