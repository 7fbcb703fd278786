"""Packed instructions against references that compute one half, or one register, at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.packed import MIXED, PACKED16, PACKED32
from tests.simulator.instructions.exact import bits_of, fused, number, same, signed
from tests.simulator.instructions.single import apply, decoded, fill, register, waves
from tests.simulator.pseudocode.samples import samples

Array = NDArray[Any]
#: Opcodes that this file tests with numbers.
COVERS = frozenset((*PACKED16, *PACKED32, *MIXED))


def registers(first: int, count: int, bank: str = "v") -> str:
    return f"{bank}{first}" if count == 1 else f"{bank}[{first}:{first + count - 1}]"


def packed_lines() -> dict[str, tuple[str, str]]:
    """Return packed instructions with and without modifiers that choose halves or change signs."""
    found = {}
    for name in (*PACKED16, *PACKED32, *MIXED):
        table = PACKED16.get(name) or PACKED32.get(name) or MIXED[name]
        count = 2 if name in ("v_pk_mov_b32", "v_pk_fmac_f16") else len(table.ins)
        width = 2 if name in PACKED32 else 1
        operands = ", ".join(
            [registers(32, width), *(registers(4 * n, width) for n in range(count))]
        )
        ways = [""]
        if name != "v_pk_fmac_f16":
            lows, highs = ([1, 0, 1], [0, 1, 0]) if count == 3 else ([1, 0], [1, 0])
            ways.append(f" op_sel:{lows[:count]} op_sel_hi:{highs[:count]}".replace(", ", ","))
        if name.endswith("f16") and name not in (*MIXED, "v_pk_fmac_f16"):
            ones = [1, 0, 0][:count]
            ways.append(f" neg_lo:{ones} neg_hi:{ones[::-1]}".replace(", ", ","))
        for way in ways:
            found[f"{name} {operands}{way}"] = (name, way)
    return found


PACKED = packed_lines()


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    return decoded(assemble, [text for text, (name, _) in PACKED.items() if name not in MIXED])


def mixed_instruction(name: str, way: str) -> Instruction:
    """Return an instruction that is not assembled: the ISA document has it, but LLVM does not for
    gfx950."""
    low, high = (
        sum(chosen(way, key, 0, n) << n for n in range(3)) for key in ("op_sel", "op_sel_hi")
    )
    fields = {"op_sel": low, "op_sel_hi": high ^ 7}
    operands = tuple(Operand("v", 4 * n) for n in range(3))
    return Instruction(name, "VOP3P", 0, 8, (Operand("v", 32),), operands, fields)


def half(value: int, place: int) -> int:
    return value >> 16 * place & 0xFFFF


def chosen(way: str, key: str, default: int, n: int) -> int:
    for word in way.split():
        if word.startswith(f"{key}:"):
            return int(word.split("[")[1].rstrip("]").split(",")[n])
    return default


PACKED_INTEGERS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "lshlrev": lambda n, a: a << (n & 15),
    "lshrrev": lambda n, a: a >> (n & 15),
    "ashrrev": lambda n, a: a >> (n & 15),
    "min": min,
    "max": max,
}


def half_result(name: str, operands: list[int]) -> int:
    """Compute one half of a packed instruction on the bits of float16 or 16-bit integers."""
    op, kind = name.removeprefix("v_pk_").split("_")[0], name.rsplit("_", 1)[1]
    if kind != "f16":
        values = [signed(x, 16) if kind == "i16" else x for x in operands]
        return PACKED_INTEGERS[op](*values) & 0xFFFF
    if op in ("fma", "fmac"):
        return fused(16)(*operands)
    values = [number(x, 16) for x in operands]
    if op in ("minimum3", "maximum3"):
        if any(np.isnan(v) for v in values):
            return 0x7E00
        order = sorted(range(3), key=lambda n: (float(values[n]), not np.signbit(values[n])))
        return operands[order[0 if op == "minimum3" else -1]]
    a, b = values
    if op in ("min", "max"):
        missing = [n for n, v in enumerate(values) if np.isnan(v)]
        if any(not operands[n] >> 9 & 1 for n in missing) or len(missing) == 2:
            return 0x7E00
        if missing:
            return operands[1 - missing[0]]
        order = sorted((0, 1), key=lambda n: (float(values[n]), not np.signbit(values[n])))
        return operands[order[0 if op == "min" else -1]]
    with np.errstate(all="ignore"):
        wide = float(a) * float(b) if op == "mul" else float(a) + float(b)
    return bits_of(wide, 16)


@pytest.mark.parametrize("text", [t for t, (n, _) in PACKED.items() if n in PACKED16])
def test_packed_halves(text: str, instructions: dict[str, Instruction]) -> None:
    name, way = PACKED[text]
    rng = np.random.default_rng(sum(text.encode()))
    kind = PACKED16[name].ins[0]
    count = len(PACKED16[name].ins)
    halves = samples(kind if kind == "h" else "u", 128 * 2 * 3, rng).reshape(3, 2, 128)
    halves = halves & np.uint64(0xFFFF)
    words = halves[:, 0] | halves[:, 1] << np.uint64(16)
    w = waves(2)
    for n in range(count):
        fill(w, 4 * n, words[n].reshape(2, 64, 1))
    old = words[2]
    fill(w, 32, old.reshape(2, 64, 1))
    apply(instructions[text], w)
    found = register(w, 32).reshape(-1)
    for at in range(128):
        for place, key, sign in ((0, "op_sel", "neg_lo"), (1, "op_sel_hi", "neg_hi")):
            operands = []
            for n in range(count):
                value = half(int(words[n][at]), chosen(way, key, place, n))
                operands.append(value ^ 0x8000 * chosen(way, sign, 0, n))
            if PACKED16[name].tied:
                operands.append(half(int(old[at]), place))
            wanted = half_result(name, operands)
            ok = same(PACKED16[name].outs, half(int(found[at]), place), wanted, False)
            assert ok, (text, place, [*map(hex, operands)], hex(half(int(found[at]), place)))


@pytest.mark.parametrize("text", [t for t, (n, _) in PACKED.items() if n in PACKED32])
def test_packed_registers(text: str, instructions: dict[str, Instruction]) -> None:
    name, way = PACKED[text]
    rng = np.random.default_rng(sum(text.encode()))
    count = 2 if name == "v_pk_mov_b32" else len(PACKED32[name].ins)
    values = samples("f", 128 * 2 * 3, rng).reshape(3, 2, 128)
    w = waves(2)
    for n in range(count):
        fill(w, 4 * n, np.moveaxis(values[n], 0, -1).reshape(2, 64, 2))
    apply(instructions[text], w)
    for place, key in ((0, "op_sel"), (1, "op_sel_hi")):
        found = register(w, 32 + place).reshape(-1)
        for at in range(128):
            given = [int(values[n, chosen(way, key, place, n), at]) for n in range(count)]
            if name == "v_pk_mov_b32":
                # The pseudocode reads OPSEL[0] for the first operand and OPSEL[1] for the second.
                wanted = int(values[place, chosen(way, "op_sel", 0, place), at])
            elif name == "v_pk_fma_f32":
                wanted = fused(32)(*given)
            else:
                x, y = (float(number(g)) for g in given)
                with np.errstate(all="ignore"):
                    wanted = bits_of(x * y if "mul" in name else x + y)
            kind = "u" if name == "v_pk_mov_b32" else "f"
            assert same(kind, int(found[at]), wanted, False), (text, [*map(hex, given)])


@pytest.mark.parametrize("text", [t for t, (n, _) in PACKED.items() if n in MIXED])
def test_mixed(text: str) -> None:
    """op_sel_hi says which operands are halves, op_sel which half; without any, float32."""
    name, way = PACKED[text]
    rng = np.random.default_rng(sum(text.encode()))
    values = rng.normal(0, 2, (3, 64, 2)).astype(np.float16).view(np.uint32)[..., 0]
    w = waves()
    for n in range(3):
        fill(w, 4 * n, values[n][None, :, None])
    old = rng.integers(0, 1 << 32, 64, dtype=np.uint32)
    fill(w, 32, old[None, :, None])
    apply(mixed_instruction(name, way), w)
    for lane in range(64):
        given = []
        for n in range(3):
            word = int(values[n, lane])
            if chosen(way, "op_sel_hi", 0, n):
                given.append(bits_of(float(number(half(word, chosen(way, "op_sel", 0, n)), 16))))
            else:
                given.append(word)
        total = fused(32)(*given)
        found = int(register(w, 32)[0, lane])
        if name == "v_mad_mix_f32":
            assert same("f", found, total, False)
            continue
        upper = name == "v_mad_mixhi_f16"
        assert half(found, 1 - upper) == half(int(old[lane]), 1 - upper)
        assert same("h", half(found, int(upper)), bits_of(number(total), 16), False)
