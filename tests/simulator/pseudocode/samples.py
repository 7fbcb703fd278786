"""Operands of single instructions: edge values and random ones, and the text that names them."""

from typing import Any

import numpy as np

from mxc.simulator.compute.operations import REGISTERS
from mxc.simulator.compute.salu import SALU
from mxc.simulator.compute.signatures import VALU
from tests.simulator.pseudocode.pcode_values import BITS, FLOAT

INTEGERS = [0, 1, 2, 3, 15, 16, 31, 32, 33, 63, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000]
INTEGERS += [0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x00800000, 0x12345678]
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 7.0, 1e-3, 65504.0, 65519.0, 65520.0]
NUMBERS += [1e5, 4e9, -4e9, 1e-7, 6e-8, 1e-40, 1e-45, 3e38, np.inf, -np.inf, np.nan, 0.99999994]


def registers(bank: str, first: int, kind: str) -> str:
    count = REGISTERS[kind]
    return f"{bank}{first}" if count == 1 else f"{bank}[{first}:{first + count - 1}]"


def vector_text(name: str) -> str:
    entry = VALU[name]
    bank = {"m": "s"}
    out = [registers(bank.get(k, "v"), 20 if k == "m" else 32, k) for k in entry.outs]
    ins = [
        registers(bank.get(k, "v"), 24 if k == "m" else 8 * n, k) for n, k in enumerate(entry.ins)
    ]
    if name.startswith("v_div_fmas"):
        ins.pop()
    return f"{name} {', '.join(out + ins)}"


def scalar_text(name: str) -> str:
    entry = SALU[name]
    out = [registers("s", 48, k) for k in entry.outs if k != "c"]
    ins = [registers("s", 32 + 4 * n, k) for n, k in enumerate(entry.ins) if k != "c"]
    return f"{name} {', '.join(out + ins)}"


def samples(kind: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the bits of `count` values of a kind: edge values and random ones, in random order."""
    wide = kind in "UId"
    if kind in "fdhb":
        width = {"f": 32, "d": 64, "h": 16, "b": 16}[kind]
        with np.errstate(over="ignore"):
            edge = np.array(NUMBERS).astype(FLOAT[width]).view(BITS[width]).astype(np.uint64)
        noise = rng.normal(0, 4, count).astype(FLOAT[width]).view(BITS[width]).astype(np.uint64)
    else:
        edge = np.array(INTEGERS, np.uint64)
        if wide:
            edge = np.concatenate([edge, edge << np.uint64(32), ~edge])
        noise = rng.integers(0, 1 << 63, count, dtype=np.uint64) * np.uint64(2)
        noise |= rng.integers(0, 2, count, dtype=np.uint64)
        noise = noise if wide else noise & np.uint64(0xFFFFFFFF)
    return np.where(rng.random(count) < 0.7, rng.choice(edge, count), noise)


def put(bank: list[Any], index: int, bits: np.ndarray, wide: bool) -> None:
    bank[index] = bits.astype(np.uint32)
    if wide:
        bank[index + 1] = (bits >> np.uint64(32)).astype(np.uint32)


def held(bank: list[Any], index: int, shape: tuple[int, int], wide: bool) -> np.ndarray:
    low = np.broadcast_to(bank[index], shape).astype(np.uint64)
    high = np.broadcast_to(bank[index + 1], shape).astype(np.uint64) if wide else np.uint64(0)
    return low | high << np.uint64(32)
