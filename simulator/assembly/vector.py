"""Reads vector instructions in assembly text: VOP1, VOP2, VOPC, VOP3 and VOP3P."""

from __future__ import annotations

from dataclasses import replace

from mxc.simulator.assembly.modifiers import bits_of
from mxc.simulator.assembly.operands import ModifiedOperand
from mxc.simulator.assembly.written import InstructionText, finish
from mxc.simulator.code.instruction import VCC, Instruction, Operand
from mxc.simulator.code.words import OPCODES
from mxc.simulator.compute.packed import MIXED
from mxc.simulator.compute.signatures import register_counts

_SHORT = {name: table for table in ("VOP1", "VOP2", "VOPC") for name in OPCODES[table].values()}
_SCALAR_RESULT = ("v_readfirstlane_b32", "v_readlane_b32")
_CARRY_OUT = (
    *("v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32"),
    *("v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32"),
)
_TWO_RESULTS = (*_CARRY_OUT, "v_div_scale_f32", "v_div_scale_f64", "v_mad_u64_u32", "v_mad_i64_i32")
_NOTHING = ("v_nop", "v_clrexcp")
#: Index of the operand that is always a 32-bit literal.
_LITERALS = {"v_fmamk_f32": 1, "v_fmaak_f32": 2, "v_madmk_f16": 1, "v_madak_f16": 2}
_SDWA_ONLY = ("dst_sel", "dst_unused", "src0_sel", "src1_sel", "sdwa")
_FORMATS = {0: 8, 1: 8, 2: 6, 3: 6, 4: 4}


def read_vector(w: InstructionText) -> Instruction:
    """Read VOP1, VOP2 and VOPC, with SDWA and DPP, and their long form VOP3."""
    fields = dict(w.fields())
    if w.name in _NOTHING:
        return finish(w, [], [], {})
    results, operands, marks = _operands(w)
    extended = "_sdwa" if "sdwa" in fields else "_dpp" if "dpp" in fields else ""
    if extended and w.suffix not in ("", extended):
        raise w.read.refuse(f"its modifiers are those of {extended.removeprefix('_')}")
    suffix = w.suffix or extended
    if not suffix:
        short = w.name in _SHORT and _fits(w, results, operands, marks, set(fields))
        suffix = "_e32" if short else "_e64"
    if suffix == "_e64":
        return _long(w, results, operands, marks, fields)
    if w.name not in _SHORT:
        raise w.read.refuse(f"there is no form {suffix.removeprefix('_')} of it")
    w = replace(w, encoding=_SHORT[w.name])
    if suffix == "_e32":
        if not _fits(w, results, operands, marks, set(fields)):
            raise w.read.refuse("the 32-bit form does not take these operands; write _e64")
        return finish(w, results, operands, {})
    return _extended(w, suffix, results, operands, marks, fields)


def _operands(w: InstructionText) -> tuple[list[Operand], list[Operand], list[ModifiedOperand]]:
    split = 2 if w.name in _TWO_RESULTS else 1
    compares = w.name.startswith("v_cmp")
    results = []
    for n, text in enumerate(w.parts[:split]):
        scalar = n == 1 or compares or w.name in _SCALAR_RESULT
        bank = "s" if scalar else "a" if w.name == "v_accvgpr_mov_b32" else "v"
        results.append(w.register(text, bank))
    sources = w.parts[split:]
    kinds = w.kinds(len(sources))
    marks = [w.read.marked(text, kind) for text, kind in zip(sources, kinds, strict=True)]
    operands = [mark.operand for mark in marks]
    known = len(register_counts(w.name, split, None)[1])
    implicit = w.name.startswith("v_div_fmas") and len(operands) == 3
    if implicit:
        operands.append(Operand("s", VCC, 2))
    if len(results) != split or (known != len(operands) and _counted(w.name)):
        raise w.read.refuse(
            f"takes {split + known - implicit} operands, found {len(w.parts)}: {', '.join(w.parts)}"
        )
    if w.name in _LITERALS:
        place = _LITERALS[w.name]
        operands[place] = _literal(w, operands[place], sources[place])
    return results, operands, marks


def _counted(name: str) -> bool:
    """Whether the number of operands is known; an unknown number is reported as three."""
    return register_counts(name, 1, 0)[1] == () or len(register_counts(name, 1, None)[1]) != 3


def _literal(w: InstructionText, operand: Operand, text: str) -> Operand:
    """Convert a constant to a 32-bit literal, also where it could be an inline constant."""
    if operand.bank == "literal":
        return operand
    if operand.bank == "int":
        return Operand("literal", operand.index & 0xFFFFFFFF)
    bits = w.read.float_bits(operand)
    if bits is None:
        raise w.read.refuse(f"found {text}, wanted a constant")
    return Operand("literal", bits)


def _fits(
    w: InstructionText,
    results: list[Operand],
    operands: list[Operand],
    marks: list[ModifiedOperand],
    fields: set[str],
) -> bool:
    """Whether the 32-bit form is possible: no modifiers, the second source a vector register."""
    table = _SHORT.get(w.name)
    marked = any(m.negative or m.absolute or m.extended for m in marks)
    if table is None or fields or marked:
        return False
    masks = [o for o in (*results[1:], *operands[2:]) if w.name not in _LITERALS]
    if table == "VOPC":
        masks.append(results[0])
    if any(mask.bank != "s" or mask.index != VCC for mask in masks):
        return False
    second = operands[2 if w.name in ("v_fmamk_f32", "v_madmk_f16") else 1 :][:1]
    return table == "VOP1" or all(o.bank == "v" for o in second)


def _long(
    w: InstructionText,
    results: list[Operand],
    operands: list[Operand],
    marks: list[ModifiedOperand],
    fields: dict[str, int | list[int]],
) -> Instruction:
    w = replace(w, encoding="VOP3")
    found = {
        "neg": bits_of([int(m.negative) for m in marks]),
        "abs": bits_of([int(m.absolute) for m in marks]),
    }
    if any(m.extended for m in marks):
        raise w.read.refuse("sext() is of the SDWA form; write _sdwa")
    for key, value in fields.items():
        if key == "op_sel" and isinstance(value, list):
            found[key] = _selected(len(operands), value)
        elif key in ("clamp", "omod", "bitop3") and isinstance(value, int):
            found[key] = value
        else:
            raise w.read.refuse(f"{key} is no modifier of it")
    return finish(w, results, operands, found)


def _selected(count: int, values: list[int]) -> int:
    """Return op_sel as it is encoded: a bit for each source, and bit 3 for the result."""
    if len(values) == count + 1:
        return bits_of(values[:-1]) | values[-1] << 3
    return bits_of(values)


def _extended(
    w: InstructionText,
    suffix: str,
    results: list[Operand],
    operands: list[Operand],
    marks: list[ModifiedOperand],
    fields: dict[str, int | list[int]],
) -> Instruction:
    """Read SDWA and DPP, whose second word modifies the first two sources and the result."""
    found: dict[str, int] = {suffix.removeprefix("_"): 1}
    for key, value in fields.items():
        if not isinstance(value, int) or (suffix == "_dpp" and key in _SDWA_ONLY):
            raise w.read.refuse(f"{key} is no modifier of it")
        found[key] = value
    for n, mark in enumerate(marks[:2]):
        found[f"src{n}_neg"] = int(mark.negative)
        found[f"src{n}_abs"] = int(mark.absolute)
        found[f"src{n}_sext"] = int(mark.extended)
    if suffix == "_sdwa" and w.encoding == "VOP1":
        # The selector of the missing source is 0, which is BYTE_0.
        found["src1_sel"] = 6
    if any(o.bank not in "vs" for o in operands[:2]):
        raise w.read.refuse(f"the form {suffix.removeprefix('_')} takes registers only")
    return finish(w, results, operands, found, size=8)


def read_packed(w: InstructionText) -> Instruction:
    """Read VOP3P: packed operations, matrix products, accumulation registers."""
    if "mfma" in w.name or "smfmac" in w.name:
        return _matrix(w)
    fields = w.fields()
    moves = w.name.startswith("v_accvgpr")
    result = w.register(w.parts[0] if w.parts else "", "a" if "write" in w.name else "v")
    sources = w.parts[1:]
    kinds = w.kinds(len(sources))
    marks = [w.read.marked(text, kind) for text, kind in zip(sources, kinds, strict=True)]
    known = len(register_counts(w.name, 1, None)[1])
    if known != len(marks):
        raise w.read.refuse(f"takes {1 + known} operands, found {len(w.parts)}")
    found: dict[str, int] = {}
    if w.name in MIXED:
        # op_sel_hi states which operands are halves; signs are written at the operands.
        found["op_sel_hi"] = 7
        found["neg"] = bits_of([int(m.negative) for m in marks])
        found["neg_hi"] = bits_of([int(m.absolute) for m in marks])
    elif any(m.negative or m.absolute for m in marks):
        raise w.read.refuse("signs of halves are written neg_lo:[..] and neg_hi:[..]")
    names = {"op_sel": "op_sel", "neg_lo": "neg", "neg_hi": "neg_hi"}
    for key, value in fields.items():
        if moves or not (key == "clamp" or (key in (*names, "op_sel_hi"))):
            raise w.read.refuse(f"{key} is no modifier of it")
        if isinstance(value, int):
            found[key] = value
        elif len(value) != known:
            raise w.read.refuse(f"{key} of {len(value)} operands, wanted {known}")
        elif key == "op_sel_hi":
            # Stored as the difference from the default, all ones.
            found[key] = 7 & ~(bits_of(value) | 7 << len(value))
        else:
            found[names[key]] = bits_of(value)
    return finish(w, [result], [m.operand for m in marks], found)


def _matrix(w: InstructionText) -> Instruction:
    scaled = "_scale_" in w.name
    fields = w.fields()
    count = 5 if scaled else 3
    if len(w.parts) != 1 + count:
        raise w.read.refuse(f"takes {1 + count} operands, found {len(w.parts)}")
    result = w.register(w.parts[0], "va")
    kinds = w.kinds(count)
    operands = [w.read.operand(text, kind) for text, kind in zip(w.parts[1:], kinds, strict=True)]
    for text, operand in zip(w.parts[1:], operands, strict=True):
        if operand.bank == "s":
            raise w.read.refuse(f"found {text}, wanted vector or accumulation registers")
    if operands[2].is_register and operands[2].bank != result.bank:
        raise w.read.refuse(f"{w.parts[3]} and {w.parts[0]} are of different register files")
    found: dict[str, int] = {}
    for key, value in fields.items():
        if key in ("cbsz", "abid", "blgp") and isinstance(value, int):
            found[key] = value
        elif key == "neg" and isinstance(value, list) and w.name.endswith("_f64"):
            found["blgp"] = bits_of(value)
        elif scaled and key in ("op_sel", "op_sel_hi") and isinstance(value, list):
            # The first two bits select the byte of each scale; the third has no operand.
            found[key] = bits_of(value[:2])
        else:
            raise w.read.refuse(f"{key} is no modifier of it")
    outs, ins = register_counts(w.name, 1, count)
    if w.name.endswith("f8f6f4"):
        formats = [found.get(key, 0) for key in ("cbsz", "blgp")]
        if max(formats) > 4:
            raise w.read.refuse(f"matrix format {max(formats)} is reserved")
        ins = (_FORMATS[formats[0]], _FORMATS[formats[1]], *ins[2:])
    known = any(n > 1 for n in (*outs, *ins))
    counts = (outs, ins) if known else None
    return finish(w, [result], operands, found, size=16 if scaled else None, counts=counts)
