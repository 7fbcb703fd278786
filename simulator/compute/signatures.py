"""Numbers of registers and operands of instructions, by instruction name."""

from __future__ import annotations

import re
from functools import cache

from mxc.simulator.compute.bytewise import BYTEWISE
from mxc.simulator.compute.conversions import CONVERSIONS
from mxc.simulator.compute.dots import DOTS
from mxc.simulator.compute.floats import FLOATS
from mxc.simulator.compute.integers import INTEGERS
from mxc.simulator.compute.operations import REGISTERS, Operation
from mxc.simulator.compute.packed import MIXED, PACKED16, PACKED32
from mxc.simulator.compute.salu import SALU
from mxc.simulator.compute.small import SMALL

#: Instructions that compute lane by lane, by name.
VALU: dict[str, Operation] = {
    **INTEGERS,
    **BYTEWISE,
    **FLOATS,
    **CONVERSIONS,
    **DOTS,
}

_DWORDS = re.compile(r"dwordx(\d+)")
_MATRIX = re.compile(r"v_mfma_(?:scale_)?([fi])(?:32|64)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_(\w+)")
_SPARSE = re.compile(r"v_smfmac_[fi]32_(\d+)x(\d+)x(\d+)_(\w+)")
_ELEMENT_BITS = {"f32": 32, "xf32": 32, "f16": 16, "bf16": 16, "i8": 8, "f64": 64}
_BITS = {"b8": 1, "u8": 1, "i8": 1, "b16": 1, "u16": 1, "i16": 1, "b32": 1, "u32": 1, "i32": 1}
_BITS |= {"f32": 1, "f16": 1, "bf16": 1, "d16": 1, "hi": 1}
_BITS |= {"b64": 2, "u64": 2, "i64": 2, "f64": 2, "b96": 3, "b128": 4}
_SIMPLE = {
    "v_readfirstlane_b32": ((1,), (1,)),
    "v_readlane_b32": ((1,), (1, 1)),
    "v_writelane_b32": ((1,), (1, 1)),
    "v_bitop3_b32": ((1,), (1, 1, 1)),
    "v_bitop3_b16": ((1,), (1, 1, 1)),
    "v_permlane16_swap_b32": ((1,), (1,)),
    "v_permlane32_swap_b32": ((1,), (1,)),
    "v_swap_b32": ((1,), (1,)),
    "s_getpc_b64": ((2,), ()),
    "s_setpc_b64": ((1,), (2,)),
    "s_swappc_b64": ((2,), (2,)),
    "s_call_b64": ((2,), (1,)),
    "s_memtime": ((2,), ()),
    "s_memrealtime": ((2,), ()),
}
Counts = tuple[tuple[int, ...], tuple[int, ...]]


@cache
def _counts(name: str) -> Counts | None:
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name in SALU or name in VALU:
        entry = SALU.get(name) or VALU[name]
        outs = tuple(REGISTERS[k] for k in entry.outs if k != "c")
        return outs, tuple(REGISTERS[k] for k in entry.ins if k != "c")
    if name in PACKED16 or name in MIXED:
        return (1,), (1,) * len((PACKED16.get(name) or MIXED[name]).ins)
    if name in PACKED32:
        return (2,), (2,) * (2 if name == "v_pk_mov_b32" else len(PACKED32[name].ins))
    if name in SMALL:
        return SMALL[name].registers
    if name.endswith("_wrexec_b64"):
        return (2,), (2,)
    if match := re.fullmatch(r"s_(and|or|xor|andn[12]|orn[12]|nand|nor|xnor)_saveexec_b64", name):
        return (2,), (2,)
    if match := re.match(r"s_(buffer_)?load_dword(?:x(\d+))?", name):
        return (int(match[2] or 1),), (4 if match[1] else 2, 1)
    return _matrix(name)


def sparse_shape(name: str) -> tuple[int, int, int, str] | None:
    """Parse rows, columns, depth and element from a sparse matrix instruction's name."""
    match = _SPARSE.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3]), match[4]) if match else None


def _element_bits(element: str) -> int:
    return 8 if element[:3] in ("fp8", "bf8") else _ELEMENT_BITS[element]


def _matrix(name: str) -> Counts | None:
    if shape := sparse_shape(name):
        rows, columns, depth, element = shape
        words = columns * depth * _element_bits(element) // 2048
        return (rows * columns // 64,), (words // 2, words, 1)
    match = _MATRIX.fullmatch(name)
    if match is None:
        return None
    rows, columns, depth = int(match[2]), int(match[3]), int(match[4])
    blocks, element = int(match[5] or 1), match[6]
    result = rows * columns * blocks // 64 * (2 if element == "f64" else 1)
    if element == "f8f6f4":
        return (result,), (8, 8, result, *((1, 1) if "scale" in name else ()))
    bits = _element_bits(element)
    return (result,), (
        max(1, rows * depth * blocks * bits // 2048),
        max(1, columns * depth * blocks * bits // 2048),
        result,
    )


def matrix_shape(name: str) -> tuple[int, int, int, int, str] | None:
    """Parse rows, columns, depth, blocks and element from a dense matrix instruction's name."""
    match = _MATRIX.fullmatch(name)
    if match is None:
        return None
    return int(match[2]), int(match[3]), int(match[4]), int(match[5] or 1), match[6]


def register_counts(name: str, results: int, operands: int | None) -> Counts:
    """Return the registers of each result and operand; 1 each for unmodelled instructions.

    operands: number of operands; None for all of the instruction, or 3 if that is unknown.
    """
    found = _counts(name)
    if found is None:
        return (1,) * results, (1,) * (3 if operands is None else operands)
    outs, ins = found
    wanted = len(ins) if operands is None else operands
    return (outs + (1,) * results)[:results], (ins + (1,) * wanted)[:wanted]


#: LDS instructions with a second data operand for the same address.
_TWO_DATA = ("ds_cmpst_", "ds_mskor_", "ds_wrap_")


def has_two_addresses(name: str) -> bool:
    """Whether an LDS instruction has two addresses, given by two offsets."""
    return name.startswith(("ds_read2", "ds_write2", "ds_wrxchg2"))


def local_data(name: str) -> int:
    """Return the number of data operands of an LDS instruction."""
    if not memory_widths(name)[1]:
        return 0
    return 2 if has_two_addresses(name) or name.startswith(_TWO_DATA) else 1


@cache
def memory_widths(name: str) -> tuple[int, int]:
    """Return the registers that a memory instruction loads, and stores from each data operand."""
    last = name.rsplit("_", 1)[-1]
    if name.startswith("ds_"):
        if name.startswith("ds_read"):
            if "_tr_" in name:
                return (3 if "b96" in name else 2), 0
            width = _BITS.get(last, 1)
            return (2 * width if "read2" in name else width), 0
        if name.startswith("ds_write"):
            return 0, _BITS.get(last, 1)
        if name in ("ds_bpermute_b32", "ds_permute_b32"):
            return 1, 1
        if name == "ds_swizzle_b32":
            return 1, 0
        width = _BITS.get(last, 1)
        loaded = 2 * width if has_two_addresses(name) else width
        return (loaded if "rtn" in name else 0), width
    match = _DWORDS.search(name)
    width = int(match[1]) if match else 1
    if "atomic" in name:
        width = 2 if "_x2" in name or "f64" in name else 1
        stored = 2 * width if "cmpswap" in name else width
        return width, stored
    if "_load_lds_" in name:
        return 0, 0
    if "_load_" in name:
        return width, 0
    return 0, width if "_store_" in name else 0
