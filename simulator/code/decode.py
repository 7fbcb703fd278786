"""Decodes machine code of gfx950 to instructions.

Source: AMD CDNA4 instruction set architecture, chapter on microcode formats, and AMD's
machine-readable form of it. The names of opcodes are in the opcodes files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mxc.simulator.code.decode_memory import read_ds, read_flat, read_mubuf
from mxc.simulator.code.instruction import VCC, Instruction, Operand
from mxc.simulator.code.words import OPCODES, Word, instruction
from mxc.simulator.compute.signatures import register_counts
from mxc.simulator.errors import SimulationError

_SDWA, _DPP = 249, 250


#: VOP3 has the opcodes of VOPC, VOP2 and VOP1 too.
_VOP3 = {
    **OPCODES["VOPC"],
    **{256 + code: name for code, name in OPCODES["VOP2"].items()},
    **{320 + code: name for code, name in OPCODES["VOP1"].items()},
    **OPCODES["VOP3"],
}
#: Vector instructions whose result is a scalar register.
_TO_SCALAR = ("v_readfirstlane_b32", "v_readlane_b32")
#: VOP3 instructions with a second, scalar result.
_WITH_MASK = (
    "v_add_co_u32",
    "v_sub_co_u32",
    "v_subrev_co_u32",
    "v_addc_co_u32",
    "v_subb_co_u32",
    "v_subbrev_co_u32",
    "v_div_scale_f32",
    "v_div_scale_f64",
    "v_mad_u64_u32",
    "v_mad_i64_i32",
)
_CARRY_IN = ("v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32")
_CARRIES = (*_CARRY_IN, "v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32")


def decode(code: bytes, at: int, address: int) -> Instruction:
    """Decode the instruction at byte `at` of `code`; address: its virtual address.

    Raises SimulationError for bits that are not an instruction of gfx950.
    """
    word = Word(code, at)
    for mask, match, encoding, read in _ENCODINGS:
        if word.bits & mask == match:
            try:
                return read(word, encoding, address)
            except (KeyError, SimulationError) as error:
                reason = f"opcode {error} of {encoding}" if isinstance(error, KeyError) else error
                raise SimulationError(
                    f"0x{address:x}: 0x{word.bits & 0xFFFFFFFFFFFFFFFF:016x} is no instruction "
                    f"of gfx950 ({reason})"
                ) from error
    raise SimulationError(f"0x{address:x}: 0x{word(31, 0):08x} is no instruction of gfx950")


def _sop1(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["SOP1"][word(15, 8)]
    sources = () if name == "s_getpc_b64" else (word.source(word(7, 0), 4),)
    return instruction(name, encoding, address, word, (Operand("s", word(22, 16)),), sources)


def _sop2(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["SOP2"][word(29, 23)]
    sources = (word.source(word(7, 0), 4), word.source(word(15, 8), 4))
    return instruction(name, encoding, address, word, (Operand("s", word(22, 16)),), sources)


def _sopc(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["SOPC"][word(22, 16)]
    sources = (word.source(word(7, 0), 4), word.source(word(15, 8), 4))
    return instruction(name, encoding, address, word, (), sources)


def _sopk(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["SOPK"][word(27, 23)]
    value = word(15, 0)
    if not name.endswith("_u32") and not name.startswith(("s_getreg", "s_setreg")):
        value -= (value & 0x8000) << 1
    register, immediate = Operand("s", word(22, 16)), Operand("int", value)
    if name.startswith("s_cmpk"):
        return instruction(name, encoding, address, word, (), (register, immediate))
    if name == "s_setreg_imm32_b32":
        operand = Operand("literal", word.literal(4))
        return instruction(name, encoding, address, word, (), (operand,), {"hwreg": value})
    if name == "s_getreg_b32":
        return instruction(name, encoding, address, word, (register,), (), {"hwreg": value})
    if name == "s_setreg_b32":
        return instruction(name, encoding, address, word, (), (register,), {"hwreg": value})
    return instruction(name, encoding, address, word, (register,), (immediate,))


def _sopp(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["SOPP"][word(22, 16)]
    return instruction(name, encoding, address, word, (), (), {"simm16": word(15, 0)})


def _smem(word: Word, encoding: str, address: int) -> Instruction:
    word.size = 8
    name = OPCODES["SMEM"][word(25, 18)]
    offset = word(52, 32)
    offset -= (offset & 0x100000) << 1
    base = Operand("s", word(5, 0) << 1)
    register = Operand("s", word(63, 57)) if word(14, 14) else Operand("off", 0)
    if not word(17, 17):
        if not word(14, 14):
            register = Operand("s", offset & 0x7F)
        offset = 0
    modifiers = {"offset": offset, "glc": word(16, 16)}
    if name == "s_dcache_inv" or "dcache" in name or name in ("s_memtime", "s_memrealtime"):
        return instruction(name, encoding, address, word, (), (), modifiers)
    data = (Operand("s", word(12, 6)),)
    return instruction(name, encoding, address, word, data, (base, register), modifiers)


def _extended(word: Word, compare: bool) -> tuple[Operand | None, dict[str, int]]:
    """Return the first source and the modifiers of SDWA and DPP; (None, {}) for other forms."""
    kind = word(8, 0)
    if kind not in (_SDWA, _DPP):
        return None, {}
    word.size = 8
    modifiers = {"src0_neg": word(52, 52), "src0_abs": word(53, 53)}
    if kind == _DPP:
        modifiers |= {"dpp": 1, "dpp_ctrl": word(48, 40), "bound_ctrl": word(51, 51)}
        # Stored as the difference from the default, all rows and all banks.
        modifiers |= {"row_mask": word(63, 60) ^ 15, "bank_mask": word(59, 56) ^ 15}
        modifiers |= {"src1_neg": word(54, 54), "src1_abs": word(55, 55)}
        return Operand("v", word(39, 32)), modifiers
    modifiers |= {"sdwa": 1, "src0_sel": word(50, 48) ^ 6, "src0_sext": word(51, 51)}
    modifiers |= {"src1_sel": word(58, 56) ^ 6, "src1_sext": word(59, 59)}
    modifiers |= {"src1_neg": word(60, 60), "src1_abs": word(61, 61)}
    if not compare:
        modifiers |= {"dst_sel": word(42, 40) ^ 6, "dst_unused": word(44, 43)}
        modifiers |= {"clamp": word(45, 45), "omod": word(47, 46)}
    return Operand("s" if word(55, 55) else "v", word(39, 32)), modifiers


def _first(word: Word, compare: bool = False) -> tuple[Operand, dict[str, int]]:
    operand, modifiers = _extended(word, compare)
    return (operand or word.source(word(8, 0), 4)), modifiers


def _vop1(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["VOP1"][word(16, 9)]
    if name in ("v_nop", "v_clrexcp"):
        return instruction(name, encoding, address, word, (), ())
    source, modifiers = _first(word)
    bank = "s" if name in _TO_SCALAR else "v"
    result = Operand(bank, word(24, 17))
    if name == "v_accvgpr_mov_b32":
        result, source = Operand("a", result.index), Operand("a", source.index)
    return instruction(name, encoding, address, word, (result,), (source,), modifiers)


def _vop2(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["VOP2"][word(30, 25)]
    source, modifiers = _first(word)
    second = Operand("s" if modifiers.get("sdwa") and word(63, 63) else "v", word(16, 9))
    results: tuple[Operand, ...] = (Operand("v", word(24, 17)),)
    operands: tuple[Operand, ...] = (source, second)
    if name == "v_fmamk_f32":
        operands = (source, Operand("literal", word.literal(4)), second)
    elif name == "v_fmaak_f32":
        operands = (source, second, Operand("literal", word.literal(4)))
    if name in _CARRIES:
        results = (*results, Operand("s", VCC))
    if name in _CARRY_IN or name == "v_cndmask_b32":
        operands = (*operands, Operand("s", VCC))
    return instruction(name, encoding, address, word, results, operands, modifiers)


def _vopc(word: Word, encoding: str, address: int) -> Instruction:
    name = OPCODES["VOPC"][word(24, 17)]
    source, modifiers = _first(word, compare=True)
    sdwa = modifiers.get("sdwa")
    second = Operand("s" if sdwa and word(63, 63) else "v", word(16, 9))
    result = Operand("s", word(46, 40) if sdwa and word(47, 47) else VCC)
    return instruction(name, encoding, address, word, (result,), (source, second), modifiers)


def _vop3(word: Word, encoding: str, address: int) -> Instruction:
    word.size = 8
    code = word(25, 16)
    name = _VOP3[code]
    sources = [word.source(word(high, low), 8) for high, low in ((40, 32), (49, 41), (58, 50))]
    modifiers = {"neg": word(63, 61), "clamp": word(15, 15), "omod": word(60, 59)}
    if name in _WITH_MASK:
        results: tuple[Operand, ...] = (Operand("v", word(7, 0)), Operand("s", word(14, 8)))
    else:
        modifiers |= {"abs": word(10, 8), "op_sel": word(14, 11)}
        scalar = code < 256 or name in _TO_SCALAR
        results = (Operand("s" if scalar else "v", word(7, 0)),)
    if name.startswith("v_bitop3"):
        table = word(60, 59) << 6 | word(10, 8) << 3 | word(63, 61)
        modifiers = {"bitop3": table, "op_sel": word(14, 11)}
    count = len(register_counts(name, len(results), None)[1])
    operands = tuple(sources[:count])
    if name in ("v_div_fmas_f32", "v_div_fmas_f64"):
        operands = (*operands[:3], Operand("s", VCC))
    if name in ("v_nop", "v_clrexcp"):
        results = operands = ()
    return instruction(name, encoding, address, word, results, operands, modifiers)


def _vop3p(word: Word, encoding: str, address: int) -> Instruction:
    word.size = 8
    name = OPCODES["VOP3P"][word(22, 16)]
    if name == "v_mfma_ld_scale_b32":
        return _scaled_mfma(word, address)
    codes = [word(40, 32), word(49, 41), word(58, 50)]
    if "mfma" in name or "smfmac" in name:
        return _mfma(word, name, address, codes, 0)
    sources = [word.source(code, 8) for code in codes]
    modifiers = {
        "neg": word(63, 61),
        "neg_hi": word(10, 8),
        "clamp": word(15, 15),
        "op_sel": word(13, 11),
        "op_sel_hi": (word(60, 59) | word(14, 14) << 2) ^ 7,
    }
    result = Operand("v", word(7, 0))
    if name == "v_accvgpr_write_b32":
        result = Operand("a", word(7, 0))
    if name == "v_accvgpr_read_b32":
        sources[0] = Operand("a", sources[0].index)
    if name.startswith("v_accvgpr"):
        modifiers = {}
    count = len(register_counts(name, 1, None)[1])
    return instruction(name, encoding, address, word, (result,), tuple(sources[:count]), modifiers)


def _mfma(word: Word, name: str, address: int, codes: list[int], shift: int) -> Instruction:
    """Decode a matrix instruction whose own word begins at bit `shift`."""
    sources = [word.source(code, 8 + shift // 8) for code in codes]
    for i in (0, 1):
        if word(shift + 59 + i, shift + 59 + i):
            sources[i] = Operand("a", sources[i].index)
    bank = "a" if word(shift + 15, shift + 15) else "v"
    if sources[2].bank == "v" and "smfmac" not in name:
        # The indices of a sparse instruction are never accumulation registers.
        sources[2] = Operand(bank, sources[2].index)
    modifiers = {
        "cbsz": word(shift + 10, shift + 8),
        "abid": word(shift + 14, shift + 11),
        "blgp": word(shift + 63, shift + 61),
    }
    operands = tuple(sources)
    if shift:
        scales = (word.source(word(40, 32), 16), word.source(word(49, 41), 16))
        operands = (*operands, *scales)
        modifiers |= {"op_sel": word(12, 11), "op_sel_hi": word(60, 59)}
        # ABID[0] is set where the instruction has scales.
        modifiers |= {"unscaled": 1 - (modifiers.pop("abid") & 1)}
    result = Operand(bank, word(shift + 7, shift))
    made = instruction(name, "VOP3P", address, word, (result,), operands, modifiers)
    if name.endswith("f8f6f4"):
        # The number of registers of an operand depends on its format.
        counts = {0: 8, 1: 8, 2: 6, 3: 6, 4: 4}
        formats = (modifiers["cbsz"], modifiers["blgp"])
        if max(formats) > 4:
            raise SimulationError(f"matrix format {max(formats)} is reserved")
        first = [
            replace(o, count=counts[f]) for o, f in zip(made.operands[:2], formats, strict=True)
        ]
        return Instruction(
            made.name,
            made.encoding,
            made.address,
            made.size,
            made.results,
            (*first, *made.operands[2:]),
            made.modifiers,
        )
    return made


def _scaled_mfma(word: Word, address: int) -> Instruction:
    word.size = 16
    name = OPCODES["VOP3P"].get(word(86, 80), "")
    if not name.endswith("f8f6f4"):
        raise SimulationError("v_mfma_ld_scale_b32 without a scaled matrix instruction behind it")
    scaled = name.replace("v_mfma_", "v_mfma_scale_")
    return _mfma(word, scaled, address, [word(104, 96), word(113, 105), word(122, 114)], 64)


_Reader = Callable[[Word, str, int], Instruction]


def _encoding(bits: str, name: str, read: _Reader) -> tuple[int, int, str, _Reader]:
    """Return mask, pattern, name and reader of an encoding; bits: the highest of the first 32."""
    shift = 32 - len(bits)
    return ((1 << len(bits)) - 1) << shift, int(bits, 2) << shift, name, read


#: Longer patterns come first, because shorter ones match them too.
_ENCODINGS = (
    _encoding("101111101", "SOP1", _sop1),
    _encoding("101111110", "SOPC", _sopc),
    _encoding("101111111", "SOPP", _sopp),
    _encoding("110100111", "VOP3P", _vop3p),
    _encoding("0111110", "VOPC", _vopc),
    _encoding("0111111", "VOP1", _vop1),
    _encoding("110000", "SMEM", _smem),
    _encoding("110100", "VOP3", _vop3),
    _encoding("110110", "DS", read_ds),
    _encoding("110111", "FLAT", read_flat),
    _encoding("111000", "MUBUF", read_mubuf),
    _encoding("1011", "SOPK", _sopk),
    _encoding("10", "SOP2", _sop2),
    _encoding("0", "VOP2", _vop2),
)
