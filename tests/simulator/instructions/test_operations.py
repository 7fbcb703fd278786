"""Instructions whose pseudocode is not precise enough to run, against functions in Python.

Each function takes and returns integers, which are the bits of registers. It computes with numpy's
scalars of the float type, or with exact fractions.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import EXEC, Instruction
from mxc.simulator.code.words import OPCODES
from mxc.simulator.compute.dots import DOTS
from mxc.simulator.compute.integers import permute_bytes
from mxc.simulator.compute.salu import SALU
from mxc.simulator.compute.signatures import VALU
from tests.simulator.instructions.exact import ALL, fused, same, signed
from tests.simulator.instructions.oracles import ORACLES, permuted
from tests.simulator.instructions.single import apply, decoded, fill, register, waves
from tests.simulator.pseudocode.samples import held, put, samples, scalar_text, vector_text

Array = NDArray[Any]
INEXACT = ("v_sin_f32", "v_cos_f32")
CMPX = [n for n in OPCODES["VOPC"].values() if n.startswith("v_cmpx")]
CMPK = [n for n in OPCODES["SOPK"].values() if n.startswith("s_cmpk")]
LITERALS = {"v_fmamk_f32": "v32, v0, 0x3fc00000, v8", "v_fmaak_f32": "v32, v0, v8, 0x3fc00000"}
SOPK = ("s_movk_i32", "s_cmovk_i32", "s_addk_i32", "s_mulk_i32")
BITOP = ("v_bitop3_b32", "v_bitop3_b16")
#: Opcodes that this file tests with numbers.
COVERS = frozenset((*ORACLES, *CMPX, *CMPK, *LITERALS, *SOPK, *BITOP))
TABLES = (0x00, 0x36, 0x78, 0x80, 0x96, 0xC8, 0xEC, 0xFE, 0x1B, 0xE4, 0xFF)


def text_of(name: str) -> str:
    if name.startswith("v_accvgpr"):
        places = {"read": "v32, a0", "write": "a32, v0", "mov": "a32, a0"}
        return f"{name} {places[name.split('_')[2]]}"
    return scalar_text(name) if name in SALU else vector_text(name)


def compare_text(name: str) -> str:
    wide = 2 if name.endswith("64") else 1
    second = "v8" if "class" in name else registers(8, wide)
    return f"{name} s[20:21], {registers(0, wide)}, {second}"


def registers(first: int, count: int, bank: str = "v") -> str:
    return f"{bank}{first}" if count == 1 else f"{bank}[{first}:{first + count - 1}]"


LINES = (
    *(text_of(name) for name in ORACLES),
    *(compare_text(name) for name in CMPX),
    *(compare_text(name.replace("cmpx", "cmp")) for name in CMPX),
    *(f"{name} s32, {value:#x}" for name in (*CMPK, *SOPK) for value in (0x7FFF, 0x8000, 0x5)),
    *(f"{name} {rest}" for name, rest in LITERALS.items()),
    *(f"v_bitop3_b32 v32, v0, v8, v16 bitop3:{t:#x}" for t in TABLES),
    *(f"v_bitop3_b16 v32, v0, v8, v16 bitop3:{t:#x}" for t in TABLES),
)


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    return decoded(assemble, dict.fromkeys(LINES))


@pytest.mark.parametrize("name", ORACLES)
def test_operation(name: str, instructions: dict[str, Instruction]) -> None:
    scalar = name in SALU
    entry = SALU[name] if scalar else VALU[name]
    rng = np.random.default_rng(sum(name.encode()))
    shape = (128, 1) if scalar else (2, 64)
    w = waves(shape[0])
    bank = w.s if scalar else w.a if name in ("v_accvgpr_read_b32", "v_accvgpr_mov_b32") else w.v
    given = []
    kinds = [k for k in entry.ins if k != "c"]
    for n, kind in enumerate(kinds):
        wanted_kind = {"w": "u"}.get(kind, kind)
        bits = samples(wanted_kind, 128, rng).reshape(shape)
        if name in INEXACT:
            bits = rng.uniform(-2, 2, shape).astype(np.float32).view(np.uint32).astype(np.uint64)
        if name.startswith("v_dot2") and "_f32_" in name and n < 2:
            # Numbers of similar magnitude: their sums are rounded, so that the order matters.
            numbers = rng.normal(0, 1, (*shape, 2)).astype(np.float32)
            form = ml_dtypes.bfloat16 if name.endswith("bf16") else np.float16
            halves = numbers.astype(form).view(np.uint16).astype(np.uint64)
            chosen = halves[..., 0] | halves[..., 1] << np.uint64(16)
            bits = np.where(rng.random(shape) < 0.7, chosen, bits)
        if name == "v_perm_b32" and n == 2:
            bits = rng.integers(0, 16, (*shape, 4)) @ (1 << np.arange(0, 32, 8))
        if name.startswith("v_ldexp") and n == 1:
            bits = rng.choice([0, 1, -1, 30, -30, 200, -200, -1074, 32767, -32768], shape)
            bits = bits.astype(np.int64).view(np.uint64) & np.uint64(ALL)
        put(bank, 32 + 4 * n if scalar else 8 * n, bits, kind in "UId")
        given.append(bits)
    wide = entry.outs[0] in "UId"
    old = samples({"w": "u", "s": "u"}.get(entry.outs[0], entry.outs[0]), 128, rng).reshape(shape)
    old = old if wide else old & np.uint64(ALL)
    place = 48 if scalar else 32
    target = w.s if scalar else w.a if name in ("v_accvgpr_write_b32", "v_accvgpr_mov_b32") else w.v
    put(target, place, old, wide)
    apply(instructions[text_of(name)], w)
    found = held(target, place, shape, wide)
    for at in np.ndindex(shape):
        operands = [int(g[at]) for g in given] + [int(old[at])] * entry.tied
        wanted = ORACLES[name](*operands)
        ok = same(entry.outs[0], int(found[at]), wanted, name in INEXACT)
        assert ok, (name, [*map(hex, operands)], hex(int(found[at])), hex(wanted & (1 << 64) - 1))
        if entry.outs.endswith("c"):
            assert bool(np.broadcast_to(w.scc, shape)[at]) == (wanted != 0)


@pytest.mark.parametrize("name", CMPX)
def test_compare_that_writes_exec(name: str, instructions: dict[str, Instruction]) -> None:
    """As its twin, which the pseudocode tests, and EXEC becomes the result."""
    rng = np.random.default_rng(sum(name.encode()))
    entry = VALU[name]
    results = []
    bits = [samples(kind, 128, rng).reshape(2, 64) for kind in entry.ins]
    bits[1] = np.where(rng.random((2, 64)) < 0.3, bits[0], bits[1])
    lanes = rng.integers(0, 2, (2, 64)).astype(bool)
    for text in (compare_text(name), compare_text(name.replace("cmpx", "cmp"))):
        w = waves(2)
        for n, kind in enumerate(entry.ins):
            put(w.v, 8 * n, bits[n], kind in "UId")
        w.set_exec(np.packbits(lanes, axis=1, bitorder="little").view(np.uint64))
        apply(instructions[text], w)
        results.append((np.broadcast_to(w.mask(20), (2, 64)), w.mask(EXEC), w.lanes))
    (found, executes, active), (wanted, untouched, _) = results
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.broadcast_to(executes, (2, 64)), wanted)
    np.testing.assert_array_equal(active, wanted)
    np.testing.assert_array_equal(untouched, lanes)


@pytest.mark.parametrize("name", [*CMPK, *SOPK])
@pytest.mark.parametrize("value", [0x7FFF, 0x8000, 0x5])
def test_scalar_with_immediate(name: str, value: int, instructions: dict[str, Instruction]) -> None:
    rng = np.random.default_rng(value)
    unsigned = name.endswith("u32")
    k = value if unsigned else signed(value, 16)
    old = samples("u", 128, rng).reshape(128, 1)
    old[:3, 0] = (k & ALL, k - 1 & ALL, k + 1 & ALL)
    scc = rng.integers(0, 2, (128, 1)).astype(bool)
    w = waves(128)
    put(w.s, 32, old, False)
    w.scc = scc
    apply(instructions[f"{name} s32, {value:#x}"], w)
    found = held(w.s, 32, (128, 1), False)
    after = np.broadcast_to(w.scc, (128, 1))
    for n in range(128):
        x = int(old[n, 0]) if unsigned else signed(int(old[n, 0]))
        result, bit = int(old[n, 0]), bool(scc[n, 0])
        if name.startswith("s_cmpk"):
            tests = {"eq": x == k, "lg": x != k, "gt": x > k, "ge": x >= k, "lt": x < k}
            bit = (tests | {"le": x <= k})[name.split("_")[2]]
        elif name == "s_movk_i32" or (name == "s_cmovk_i32" and bit):
            result = k & ALL
        elif name == "s_addk_i32":
            result, bit = x + k & ALL, signed(x + k) != x + k
        elif name == "s_mulk_i32":
            result = x * k & ALL
        assert (int(found[n, 0]), bool(after[n, 0])) == (result, bit)


@pytest.mark.parametrize("name", LITERALS)
def test_fused_with_a_literal(name: str, instructions: dict[str, Instruction]) -> None:
    rng = np.random.default_rng(len(name))
    w = waves(2)
    a, b = (samples("f", 128, rng).reshape(2, 64) for _ in range(2))
    put(w.v, 0, a, False)
    put(w.v, 8, b, False)
    apply(instructions[f"{name} {LITERALS[name]}"], w)
    found = held(w.v, 32, (2, 64), False)
    for at in np.ndindex(2, 64):
        x, y = int(a[at]), int(b[at])
        three = (x, 0x3FC00000, y) if name == "v_fmamk_f32" else (x, y, 0x3FC00000)
        assert same("f", int(found[at]), fused(32)(*three), False)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", BITOP)
def test_any_function_of_three_bits(
    name: str, table: int, instructions: dict[str, Instruction]
) -> None:
    rng = np.random.default_rng(table)
    operands = rng.integers(0, 1 << 32, (3, 64), dtype=np.uint32)
    w = waves()
    for n in range(3):
        fill(w, 8 * n, operands[n][None, :, None])
    apply(instructions[f"{name} v32, v0, v8, v16 bitop3:{table:#x}"], w)
    width = 16 if name.endswith("b16") else 32
    for lane in range(64):
        wanted = 0
        for bit in range(width):
            a, b, c = (int(operands[n, lane]) >> bit & 1 for n in range(3))
            wanted |= (table >> (a << 2 | b << 1 | c) & 1) << bit
        assert int(register(w, 32)[0, lane]) & (1 << width) - 1 == wanted


def test_every_dot_has_an_oracle() -> None:
    assert set(DOTS) <= set(ORACLES)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (3, 64)])
def test_bytes_are_permuted_by_one_selector(shape: tuple[int, int]) -> None:
    """All lanes have the same, as in kernels that convert numbers: each code at each place."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, (2, 3, 64), dtype=np.uint32)
    for number in range(64):
        codes = [(number % 16 + number // 16 * place) % 16 for place in range(4)]
        select = int.from_bytes(bytes(codes), "little")
        found = permute_bytes(a, b, np.full(shape, select, np.uint32))
        wanted = [permuted(int(x), int(y), select) for x, y in zip(a.flat, b.flat, strict=True)]
        np.testing.assert_array_equal(np.broadcast_to(found, a.shape).reshape(-1), wanted)
