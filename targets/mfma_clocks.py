"""Clocks of the matrix instructions of CDNA, for every form that a compiler may emit."""

from __future__ import annotations

import re

_FORM = re.compile(r"^v_s?mfma[c_]\w*?_(\d+x\d+x\d+(?:_\d+b)?)_(\w+)$")
#: Clocks of a matrix instruction by its form: CDNA4 ISA guide, table 28, and for the sparse form
#: section 7.1.9; CDNA3 ISA guide, table 28, agrees where it has the form. All elements of a form
#: take the same time, except 8-bit elements of the f8f6f4 forms, which take twice as long.
_CLOCKS = {
    "32x32x1_2b": 64, "16x16x1_4b": 32, "4x4x1_16b": 8, "32x32x2": 64, "16x16x4": 32,
    "32x32x4_2b": 64, "16x16x4_4b": 32, "4x4x4_16b": 8, "32x32x8": 32, "16x16x16": 16,
    "32x32x4": 32, "16x16x8": 16, "4x4x4_4b": 32, "16x16x32": 16, "32x32x16": 32,
    "16x16x64": 16, "32x32x32": 32, "16x16x128": 16, "32x32x64": 32,
}  # fmt: skip
#: Codes of cbsz (A) and blgp (B) for 8-bit elements of an f8f6f4 instruction: CDNA4 ISA, 7.1.5.
_EIGHT_BITS = (0, 1)


def matrix_clocks(mnemonic: str, operands: str) -> int | None:
    """Clocks for which an MFMA instruction occupies its matrix core; None for other instructions.

    "v_mfma_scale_f32_16x16x128_f8f6f4" takes 16 with "cbsz:4 blgp:4" among its operands, and 32
    with an 8-bit operand. Raises KeyError for a form that is in no table.
    """
    found = _FORM.match(mnemonic)
    if found is None:
        return None
    form, element = found.groups()
    if element == "f8f6f4":
        wide = any(_field(operands, name) in _EIGHT_BITS for name in ("cbsz", "blgp"))
        return _CLOCKS[form] * (2 if wide else 1)
    return 64 if (form, element) == ("16x16x4", "f64") else _CLOCKS[form]


def _field(operands: str, name: str) -> int:
    found = re.search(rf"\b{name}:(\d+)", operands)
    return int(found[1]) if found else 0
