"""Properties of instructions that the rules on wait states use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mxc.simulator.code.instruction import M0, Instruction
from mxc.simulator.watch.count import matrix_cycles
from mxc.simulator.watch.uses import Register, RegisterUse, use_of
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

_TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
Registers = frozenset[Register]
M0_REGISTERS: Registers = frozenset((("s", M0),))


@dataclass(frozen=True)
class InstructionFacts:
    """Properties of one instruction."""

    i: Instruction
    processor: Gpu = GFX950

    @cached_property
    def use(self) -> RegisterUse:
        """The registers and counters that the instruction uses."""
        return use_of(self.i)

    @property
    def reads(self) -> Registers:
        """The registers that the instruction reads."""
        return self.use.reads

    @property
    def writes(self) -> Registers:
        """The registers that the instruction writes."""
        return self.use.writes

    @cached_property
    def matrix(self) -> bool:
        """Whether it is a matrix instruction."""
        return "mfma" in self.i.name or "smfmac" in self.i.name

    @cached_property
    def vector(self) -> bool:
        """Whether it is a vector instruction, matrix instructions included."""
        return self.i.encoding.startswith("VOP")

    @cached_property
    def scalar(self) -> bool:
        """Whether it is a scalar instruction."""
        return self.i.encoding.startswith("SOP")

    @cached_property
    def memory(self) -> bool:
        """Whether it is a vector memory instruction."""
        return self.i.encoding in ("MUBUF", "FLAT")

    @cached_property
    def dot(self) -> bool:
        """Whether it is a dot product per lane."""
        return self.i.name.startswith("v_dot")

    @cached_property
    def transcendental(self) -> bool:
        """Whether it is a transcendental instruction, such as exp, log or sqrt."""
        return self.i.name.startswith(_TRANSCENDENTAL)

    @cached_property
    def passes(self) -> int:
        """Number of passes of a matrix instruction, of four cycles each."""
        return matrix_cycles(self.i) // 4

    @cached_property
    def more(self) -> int:
        """Passes that rules add to `passes`: 0, or for XDL instructions 1, or 2 on gfx950 except
        for those of 2 passes."""
        if not self.wide:
            return 0
        return 1 + (self.processor is GFX950 and self.passes != 2)

    @cached_property
    def double(self) -> bool:
        """Whether it is a matrix instruction on float64."""
        return self.matrix and self.i.name.endswith("_f64")

    @cached_property
    def wide(self) -> bool:
        """Whether it is an XDL instruction (LLVM's term): matrix, but not of f32 or f64."""
        return self.matrix and not self.i.name.endswith(("_f64", "_f32"))

    @cached_property
    def accumulated(self) -> Registers:
        """The registers of the accumulator, the third operand of a matrix instruction."""
        return frozenset(self.i.operands[2].registers()) if self.matrix else frozenset()

    @cached_property
    def multiplied(self) -> Registers:
        """The registers of the other operands of a matrix instruction."""
        others = (*self.i.operands[:2], *self.i.operands[3:]) if self.matrix else ()
        return frozenset(r for operand in others for r in operand.registers())

    @cached_property
    def part(self) -> bool:
        """Whether it writes, or may write, only a part of its result's register."""
        i = self.i
        if i.has("sdwa"):
            return i.encoding != "VOPC" and i.has("dst_sel") ^ 6 != 6
        if i.name.startswith("v_cvt_scalef32_sr_pk_fp4"):
            return True
        chosen = i.name.startswith(("v_cvt_sr_", "v_cvt_scalef32_sr_", "v_cvt_scalef32_pk_fp4"))
        bytes_of = 12 if chosen else 8
        return i.encoding == "VOP3" and bool(i.has("op_sel") & bytes_of)

    @cached_property
    def stored(self) -> Registers:
        """The data registers of a store of more than 8 bytes without a scalar offset register."""
        i = self.i
        if not self.memory or ("_store_" not in i.name and "cmpswap_x2" not in i.name):
            return frozenset()
        data = i.operands[0 if i.encoding == "MUBUF" else 1]
        held = i.encoding == "MUBUF" and i.operands[-1].is_register
        return frozenset() if held or data.count <= 2 else frozenset(data.registers())

    @cached_property
    def selects(self) -> Registers:
        """The registers of a lane selector of v_readlane and v_writelane."""
        lane = self.i.name in ("v_readlane_b32", "v_writelane_b32")
        return frozenset(self.i.operands[1].registers()) if lane else frozenset()

    @cached_property
    def reads_m0(self) -> bool:
        """Whether it reads M0 without a hardware interlock."""
        name = self.i.name
        movrel = name.startswith(("s_movrel", "s_sendmsg")) or "addtid" in name
        return (
            movrel or bool(self.i.has("gds")) or (self.memory and bool(self.reads & M0_REGISTERS))
        )

    @cached_property
    def register(self) -> int | None:
        """The hardware register of s_getreg and s_setreg; None for other instructions."""
        named = self.i.name.startswith(("s_setreg", "s_getreg"))
        return self.i.has("hwreg") & 63 if named else None

    @cached_property
    def sets(self) -> bool:
        """Whether it writes a hardware register."""
        return self.i.name.startswith("s_setreg")

    @cached_property
    def asks_scalar(self) -> bool:
        """Whether it accesses a hardware register or reads M0, and so may need wait states after a
        scalar write even if it is no vector instruction."""
        return self.register is not None or self.reads_m0

    @cached_property
    def interesting(self) -> bool:
        """Whether it is the earlier instruction of some rule."""
        scalar = self.scalar and (self.sets or bool(self.writes & M0_REGISTERS))
        return self.vector or scalar or bool(self.stored)

    @cached_property
    def wait_states(self) -> int:
        """Number of wait states that the instruction itself counts as."""
        return self.i.has("simm16") + 1 if self.i.name == "s_nop" else 1
