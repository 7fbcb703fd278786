"""Reads the modifiers after the operands in assembly text, in the form of the decoder."""

from __future__ import annotations

import re

from mxc.simulator.assembly.operands import OperandReader
from mxc.simulator.code.text import FIXED_MOVES, MOVES, SELECT, UNUSED

#: Modifiers without a value.
_FLAGS = {
    **dict.fromkeys(("offen", "idxen", "sc0", "sc1", "nt", "gds", "lds", "glc", "clamp"), 1),
}
#: Modifiers with a number, and its bits; negative for signed numbers.
_NUMBERS = {
    "offset0": 8,
    "offset1": 8,
    "cbsz": 3,
    "abid": 4,
    "blgp": 3,
    "bitop3": 8,
}
_OFFSETS = {"SMEM": -21, "DS": 16, "FLAT": -13, "MUBUF": 12}
_OUTPUT = {"mul:2": 1, "mul:4": 2, "div:2": 3}
_LISTS = ("op_sel", "op_sel_hi", "neg_lo", "neg_hi", "neg", "quad_perm")
_HWREGS = {"HW_REG_MODE": 1, "HW_REG_STATUS": 2, "HW_REG_TRAPSTS": 3, "HW_REG_HW_ID": 4}
_HWREGS |= {"HW_REG_GPR_ALLOC": 5, "HW_REG_LDS_ALLOC": 6, "HW_REG_IB_STS": 7}


def is_modifier(word: str) -> bool:
    """Whether a word is a modifier and not an operand."""
    key = word.partition(":")[0]
    lone = word in _FLAGS or word in _OUTPUT or word in FIXED_MOVES
    return lone or (":" in word and re.fullmatch(r"[a-z]\w*", key) is not None)


def read_modifiers(
    words: list[str], encoding: str, read: OperandReader
) -> dict[str, int | list[int]]:
    """Return the fields that modifiers set: numbers, or lists of bits for lists."""
    found: dict[str, int | list[int]] = {}
    for word in words:
        for key, value in _one(word, encoding, read).items():
            if key in found and key not in ("sdwa", "dpp"):
                raise read.refuse(f"{key} is given twice")
            found[key] = value
    return found


def _one(word: str, encoding: str, read: OperandReader) -> dict[str, int | list[int]]:
    key, _, text = word.partition(":")
    if word in _FLAGS:
        return {word: 1}
    if word in _OUTPUT:
        return {"omod": _OUTPUT[word]}
    if word in FIXED_MOVES:
        return {"dpp": 1, "dpp_ctrl": FIXED_MOVES[word]}
    if key in MOVES and text:
        return {"dpp": 1, "dpp_ctrl": MOVES[key] + _ranged(key, text, 4, read)}
    if key == "offset" and text.startswith("swizzle("):
        return {"offset": _swizzle(text, read)}
    if key == "offset" and encoding in _OFFSETS:
        return {"offset": _ranged(key, text, _OFFSETS[encoding], read)}
    if key in _NUMBERS and text:
        return {key: _ranged(key, text, _NUMBERS[key], read)}
    if key in _LISTS and text[:1] == "[" and text[-1:] == "]":
        return _listed(key, [read.integer(part) for part in text[1:-1].split(",")], read)
    if key in ("src0_sel", "src1_sel", "dst_sel") and text in SELECT:
        return {"sdwa": 1, key: SELECT.index(text) ^ 6}
    if key == "dst_unused" and text in UNUSED:
        return {"sdwa": 1, key: UNUSED.index(text)}
    if key in ("row_mask", "bank_mask") and text:
        # Stored as the difference from the default, 15.
        return {"dpp": 1, key: _ranged(key, text, 4, read) ^ 15}
    if key == "bound_ctrl" and text in ("0", "1"):
        # LLVM writes the same bit as 0 in some places and as 1 in others.
        return {"dpp": 1, key: 1}
    raise read.refuse(f"{word!r} is no modifier of it")


def _ranged(key: str, text: str, bits: int, read: OperandReader) -> int:
    value = read.integer(text)
    low, high = (-(1 << -bits - 1), (1 << -bits - 1) - 1) if bits < 0 else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise read.refuse(f"{key} is {value}, wanted {low} to {high}")
    return value


def _listed(key: str, values: list[int], read: OperandReader) -> dict[str, int | list[int]]:
    highest = 3 if key == "quad_perm" else 1
    if len(values) > 4 or any(not 0 <= v <= highest for v in values):
        raise read.refuse(f"{key}:{values}, wanted at most 4 numbers from 0 to {highest}")
    if key != "quad_perm":
        return {key: values}
    if len(values) != 4:
        raise read.refuse(f"quad_perm of {len(values)} lanes, wanted 4")
    return {"dpp": 1, "dpp_ctrl": sum(v << 2 * n for n, v in enumerate(values))}


def _swizzle(text: str, read: OperandReader) -> int:
    """Return the offset field of a swizzle pattern: the lane of 32 (or 4) that each lane reads."""
    kind, *rest = (part.strip().strip('"') for part in text[8:-1].split(","))
    if kind == "BITMASK_PERM" and len(rest) == 1 and re.fullmatch("[01pi]{5}", rest[0]):
        keep, put, flip = (
            sum((c in ones) << 4 - n for n, c in enumerate(rest[0])) for ones in ("pi", "1", "i")
        )
        return keep | put << 5 | flip << 10
    numbers = [read.integer(part) for part in rest]
    if kind == "QUAD_PERM" and len(numbers) == 4 and all(0 <= n < 4 for n in numbers):
        return 0x8000 | sum(n << 2 * at for at, n in enumerate(numbers))
    size = numbers[0] if numbers else 0
    if kind == "SWAP" and len(numbers) == 1 and size in (1, 2, 4, 8, 16):
        return 31 | size << 10
    if size in (2, 4, 8, 16, 32):
        if kind == "BROADCAST" and len(numbers) == 2 and 0 <= numbers[1] < size:
            return 32 - size | numbers[1] << 5
        if kind == "REVERSE" and len(numbers) == 1:
            return 31 | (size - 1) << 10
    raise read.refuse(f"{text} is no pattern of lanes")


def bits_of(values: list[int]) -> int:
    """Pack a list of bits into a number, the first bit lowest."""
    return sum(value << n for n, value in enumerate(values))


def hardware_register(text: str, read: OperandReader) -> int:
    """Read hwreg(NAME, first bit, bits) as the operand of s_setreg and s_getreg."""
    match = re.fullmatch(r"hwreg\((.*)\)", text)
    if match is None:
        return read.integer(text) & 0xFFFF
    name, *rest = (part.strip() for part in match[1].split(","))
    number = _HWREGS.get(name)
    number = read.integer(name) if number is None else number
    first, size = (read.integer(part) for part in rest) if len(rest) == 2 else (0, 32)
    if not (0 <= number < 64 and 0 <= first < 32 and 0 < size <= 32):
        raise read.refuse(f"{text} is no hardware register")
    return number | first << 6 | (size - 1) << 11


def wait_counters(text: str, read: OperandReader) -> int:
    """Read the operand of s_waitcnt; counters that are not named do not wait."""
    counters = {"vmcnt": 63, "expcnt": 7, "lgkmcnt": 15}
    most = dict(counters)
    if not re.fullmatch(r"(\w+\([^()]*\)[\s,&]*)+", text):
        return read.integer(text) & 0xFFFF
    for name, value in re.findall(r"(\w+)\(([^()]*)\)", text):
        saturates = name.endswith("_sat")
        name = name.removesuffix("_sat")
        if name not in counters:
            raise read.refuse(f"no counter {name!r}; there are {', '.join(counters)}")
        number = read.integer(value)
        if number < 0 or (number > most[name] and not saturates):
            raise read.refuse(f"{name}({number}), wanted 0 to {most[name]}")
        counters[name] = min(number, most[name])
    vector = counters["vmcnt"]
    return vector & 15 | vector >> 4 << 14 | counters["expcnt"] << 4 | counters["lgkmcnt"] << 8
