"""Prints instructions in LLVM's assembly syntax, for errors, traces and tests."""

from __future__ import annotations

import struct

from mxc.simulator.code.instruction import (
    INLINE_FLOATS,
    NAMED,
    SPECIAL,
    Instruction,
    Operand,
)
from mxc.simulator.compute.packed import MIXED, PACKED16, PACKED32
from mxc.simulator.compute.small import SMALL

_PAIRS = {106: "vcc", 126: "exec", 102: "flat_scratch", 104: "xnack_mask"}
#: SDWA: the parts of a register, and the treatment of the rest. DPP: moves of lanes, with and
#: without a number.
SELECT = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")
UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
MOVES = {"row_shl": 0x100, "row_shr": 0x110, "row_ror": 0x120, "row_newbcast": 0x150}
FIXED_MOVES = {
    **{"wave_shl:1": 0x130, "wave_rol:1": 0x134, "wave_shr:1": 0x138, "wave_ror:1": 0x13C},
    **{"row_mirror": 0x140, "row_half_mirror": 0x141, "row_bcast:15": 0x142, "row_bcast:31": 0x143},
}
_BRANCHES = ("s_branch", "s_cbranch_")


def operand_text(operand: Operand) -> str:
    """Return the text of an operand: "v[2:3]", "s7", "vcc", "0.5", "0x3f800000"."""
    bank, index, count = operand.bank, operand.index, operand.count
    if bank == "int":
        return str(index)
    if bank == "float":
        return f"{INLINE_FLOATS[index]:.8g}" if index == 248 else str(INLINE_FLOATS[index])
    if bank == "literal":
        return hex(index)
    if bank == "special":
        return SPECIAL[index]
    if bank == "off":
        return "off"
    if bank == "s" and count == 2 and index in _PAIRS:
        return _PAIRS[index]
    if bank == "s" and count == 1 and index in NAMED:
        return NAMED[index]
    return f"{bank}{index}" if count == 1 else f"{bank}[{index}:{index + count - 1}]"


def text(instruction: Instruction) -> str:
    """Return an instruction as one line of assembly."""
    i = instruction
    if i.encoding == "SOPP":
        return _control(i)
    # A buffer atomic returns its result in the data register, which the text names once.
    shown = () if i.encoding == "MUBUF" and "atomic" in i.name else i.results
    parts = [operand_text(o) for o in shown]
    for place, operand in enumerate(i.operands):
        parts.append(_modified(i, operand_text(operand), place))
    if i.encoding == "SMEM" and i.operands and i.operands[1].bank == "off":
        parts[-1] = hex(i.has("offset"))
    if i.name.startswith(("s_setreg", "s_getreg")):
        word = i.has("hwreg")
        size = (word >> 11 & 31) + 1
        place = 0 if i.name.startswith("s_setreg") else 1
        parts.insert(place, f"hwreg({word & 63}, {word >> 6 & 31}, {size})")
    name = i.name + ("_sdwa" if i.has("sdwa") else "_dpp" if i.has("dpp") else "")
    line = f"{name} {', '.join(parts)}".rstrip()
    return " ".join((line, *_modifiers(i)))


def _modified(i: Instruction, operand: str, place: int) -> str:
    """Add the marks of sign and absolute value to the text of an operand."""
    packed = i.name in PACKED16 or i.name in PACKED32
    absolute = i.has("abs") >> place & 1 or (place < 2 and i.has(f"src{place}_abs"))
    negative = i.has("neg") >> place & 1 or (place < 2 and i.has(f"src{place}_neg"))
    if i.name in MIXED:
        absolute = i.has("neg_hi") >> place & 1
    if place < 2 and i.has(f"src{place}_sext"):
        operand = f"sext({operand})"
    if absolute:
        operand = f"|{operand}|"
    return f"-{operand}" if negative and not packed else operand


def _bits(value: int, count: int) -> str:
    return "[" + ",".join(str(value >> i & 1) for i in range(count)) + "]"


def _modifiers(i: Instruction) -> list[str]:
    words: list[str] = []
    if i.encoding == "SMEM":
        register = i.operands and i.operands[1].bank == "s"
        words = [f"offset:{i.has('offset'):#x}"] if register and i.has("offset") else []
        return words + (["glc"] if i.has("glc") else [])
    if i.encoding in ("DS", "FLAT", "MUBUF"):
        words += [w for w in ("idxen", "offen") if i.has(w)]
        words += [f"{w}:{i.has(w)}" for w in ("offset", "offset0", "offset1") if i.has(w)]
        words += [w for w in ("sc0", "nt", "sc1", "gds", "lds") if i.has(w)]
        return words
    if i.has("bitop3") or i.name.startswith("v_bitop3"):
        words.append(f"bitop3:{i.has('bitop3'):#x}")
    if i.name.endswith("f8f6f4"):
        if "scale" in i.name:
            if i.has("op_sel"):
                words.append(f"op_sel:{_bits(i.has('op_sel'), 3)}")
            words.append(f"op_sel_hi:{_bits(i.has('op_sel_hi'), 3)}")
        words += [f"{w}:{i.has(w)}" for w in ("cbsz", "blgp") if i.has(w)]
        return words
    if i.name.endswith("_f64") and "mfma" in i.name:
        return [f"neg:{_bits(i.has('blgp'), 3)}"] if i.has("blgp") else []
    if "mfma" in i.name or "smfmac" in i.name:
        return [f"{w}:{i.has(w)}" for w in ("cbsz", "abid", "blgp") if i.has(w)]
    count = len(i.operands)
    if i.encoding == "VOP3P":
        if i.has("op_sel"):
            words.append(f"op_sel:{_bits(i.has('op_sel'), count)}")
        # Stored as the difference from the default, all ones.
        high = i.has("op_sel_hi") & ((1 << count) - 1)
        if high and i.name not in MIXED:
            words.append(f"op_sel_hi:{_bits(~high, count)}")
        words += [f"{w}:{_bits(i.has(k), count)}" for w, k in _SIGNS if i.has(k)]
    elif i.has("op_sel"):
        last = i.has("op_sel") >> 3
        shown = op_sel_count(i.name, count)
        bits = [str(i.has("op_sel") >> n & 1) for n in range(shown)]
        # The bit after those of the operands is the result's, which is bit 3.
        bits = [*bits[:count], str(last)] if shown in (count, count + 1) else bits
        words.append("op_sel:[" + ",".join(bits) + "]")
    if i.has("clamp"):
        words.append("clamp")
    if i.has("omod"):
        words.append(("", "mul:2", "mul:4", "div:2")[i.has("omod")])
    if i.has("sdwa"):
        words += _sdwa(i)
    if i.has("dpp"):
        words += _dpp(i)
    return words


_SIGNS = (("neg_lo", "neg"), ("neg_hi", "neg_hi"))


def op_sel_count(name: str, count: int) -> int:
    """Return the number of op_sel bits that LLVM prints, which depends on small conversions."""
    form = SMALL.get(name)
    if form is None or not form.scaled:
        return 4 if form and form.stochastic and form.small in ("fp8", "bf8") else count
    if not form.narrows:
        return 3
    if form.small != "fp4" and form.wide != "f32" and not form.stochastic:
        return 3
    return 4 if count == 2 else count


def _sdwa(i: Instruction) -> list[str]:
    words = []
    if i.encoding != "VOPC":
        words.append(f"dst_sel:{SELECT[i.has('dst_sel') ^ 6]}")
        words.append(f"dst_unused:{UNUSED[i.has('dst_unused')]}")
    words.append(f"src0_sel:{SELECT[i.has('src0_sel') ^ 6]}")
    if i.encoding != "VOP1":
        words.append(f"src1_sel:{SELECT[i.has('src1_sel') ^ 6]}")
    return words


def _dpp(i: Instruction) -> list[str]:
    words = [dpp_text(i.has("dpp_ctrl"))]
    words.append(f"row_mask:{i.has('row_mask') ^ 15:#x}")
    words.append(f"bank_mask:{i.has('bank_mask') ^ 15:#x}")
    if i.has("bound_ctrl"):
        words.append("bound_ctrl:1")
    return words


def dpp_text(control: int) -> str:
    """Return the text of a DPP control: "quad_perm:[1,0,3,2]", "row_shr:1", "row_bcast:15"."""
    if control < 0x100:
        return "quad_perm:[" + ",".join(str(control >> 2 * n & 3) for n in range(4)) + "]"
    names = {code + n: f"{name}:{n}" for name, code in MOVES.items() for n in range(16)}
    names |= {code: name for name, code in FIXED_MOVES.items()}
    return names.get(control, f"dpp_ctrl:{control:#x}")


def _control(i: Instruction) -> str:
    value = i.has("simm16")
    if i.name.startswith(_BRANCHES):
        return f"{i.name} {branch_target(i):#x}"
    if i.name == "s_waitcnt":
        return f"s_waitcnt {wait_text(value)}"
    if i.name in ("s_endpgm", "s_barrier") and not value:
        return i.name
    return f"{i.name} {value}"


def branch_target(i: Instruction) -> int:
    """Return the target address of a branch, whose operand is a signed number of dwords."""
    return i.address + 4 + 4 * int(struct.unpack("<h", struct.pack("<H", i.has("simm16")))[0])


def waits(value: int) -> tuple[int, int, int]:
    """Return vmcnt, expcnt and lgkmcnt of s_waitcnt; 63, 7 and 15 do not wait."""
    return value & 15 | (value >> 14 & 3) << 4, value >> 4 & 7, value >> 8 & 15


def wait_text(value: int) -> str:
    """Return the text of the counters that s_waitcnt waits for."""
    vector, export, lds = waits(value)
    words = [f"vmcnt({vector})"] if vector < 63 else []
    words += [f"expcnt({export})"] if export < 7 else []
    words += [f"lgkmcnt({lds})"] if lds < 15 else []
    return " ".join(words) or "vmcnt(63) expcnt(7) lgkmcnt(15)"
