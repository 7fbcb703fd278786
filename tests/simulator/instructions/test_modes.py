"""Effects of MODE and of modifiers of an instruction: rounding, denormals, overflow, clamping.

Rounding in every direction is compared with exact fractions, with MODE set from the start or by the
program. The rules are those of the CDNA4 ISA document, sections 3.5, 6.2.2, 6.4 and 6.5.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.code.words import OPCODES
from mxc.simulator.compute.modes import FP16_OVFL
from mxc.simulator.compute.rounding import DIRECTED
from mxc.simulator.compute.saturation import SATURATING
from mxc.simulator.compute.signatures import VALU
from mxc.simulator.errors import SimulationError
from tests.simulator.instructions.exact import number, parts, rounded, signed
from tests.simulator.instructions.single import apply, decoded, fill, register, waves
from tests.simulator.pseudocode.pcode_values import BITS
from tests.simulator.pseudocode.samples import held, put, samples, vector_text

Array = NDArray[Any]
NEAREST, UP, DOWN, ZERO = range(4)
#: Opcodes that this file tests with numbers.
COVERS = frozenset(("s_setreg_imm32_b32", "s_setreg_b32", "s_getreg_b32"))
FMA = {
    "v_pk_fma_f32": "v_pk_fma_f32 v[32:33], v[0:1], v[8:9], v[16:17]",
    "v_pk_add_f32": "v_pk_add_f32 v[32:33], v[0:1], v[8:9]",
    "v_pk_mul_f32": "v_pk_mul_f32 v[32:33], v[0:1], v[8:9]",
    "v_pk_fma_f16": "v_pk_fma_f16 v32, v0, v8, v16",
    "v_pk_add_f16": "v_pk_add_f16 v32, v0, v8",
    "v_pk_mul_f16": "v_pk_mul_f16 v32, v0, v8",
    "v_fmamk_f32": "v_fmamk_f32 v32, v0, 0x3fc00000, v8",
    "v_fmaak_f32": "v_fmaak_f32 v32, v0, v8, 0x3fc00000",
}
KNOWN = {name for table in ("VOP1", "VOP2", "VOP3", "VOP3P") for name in OPCODES[table].values()}
ROUNDED = sorted(n for n in DIRECTED if n in KNOWN and (n in VALU or n in FMA))


def text_of(name: str) -> str:
    return FMA.get(name) or vector_text(name)


def clamped_text(name: str) -> str:
    if name.startswith("v_pk_"):
        count = 3 if "mad" in name else 2
        return f"{name} v32, {', '.join(f'v{8 * n}' for n in range(count))} clamp"
    text = vector_text(name)
    return f"{text.replace(name, name + '_e64')} clamp" if count_of(name) == 2 else f"{text} clamp"


def count_of(name: str) -> int:
    return len(VALU[name].ins)


LONG = ("v_add_i32", "v_sub_i32", "v_add_i16", "v_sub_i16")
CLAMPED = {
    n: clamped_text(n).replace("_e64", "" if n in LONG or "dot" in n else "_e64")
    for n in sorted(SATURATING)
}
OTHERS = {
    "omod": "v_mul_f32_e64 v32, v0, v8 mul:4",
    "half": "v_add_f16_e64 v32, v0, v8 div:2",
    "clamp": "v_add_f32_e64 v32, v0, v8 clamp",
    "rcp": "v_rcp_f32 v32, v0",
    "carry": "v_add_co_u32_e64 v32, s[20:21], v0, v8 clamp",
    "set": "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 11",
    "set register": "s_setreg_b32 hwreg(HW_REG_MODE, 4, 4), s32",
    "get": "s_getreg_b32 s33, hwreg(HW_REG_MODE, 2, 6)",
    "max": "v_max_f32 v32, v0, v8",
}


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    lines = {**{n: text_of(n) for n in ROUNDED}, **CLAMPED_KEYS, **OTHERS}
    found = decoded(assemble, dict.fromkeys(lines.values()))
    return {name: found[text] for name, text in lines.items()}


CLAMPED_KEYS = {f"clamp {name}": text for name, text in CLAMPED.items()}


def directed(exact: Fraction, width: int, mode: int) -> int:
    """Round a fraction other than zero in the direction of `mode`; return the bits of the float."""
    bits = rounded(exact, width)
    if mode == NEAREST:
        return bits
    sign = 1 << width - 1
    value = number(bits, width)
    finite = np.isfinite(value)
    if finite and Fraction(float(value)) == exact:
        return bits
    above = Fraction(float(value)) > exact if finite else float(value) > 0
    size = bits & sign - 1
    if above == (mode == UP or (mode == ZERO and exact < 0)):
        return bits
    # Go to the adjacent float on the other side of the fraction; beside zero, the least denormal.
    if size == 0:
        return 1 | (sign if above else 0)
    return bits - 1 if above == (exact > 0 or (not finite and float(value) > 0)) else bits + 1


def exact_of(name: str, values: list[Any]) -> tuple[Fraction, bool | None]:
    """Return the exact result, and for a zero whether it is negative (None: addends of both signs,
    so that the rounding mode decides)."""
    numbers = [Fraction(float(v)) if not isinstance(v, int) else Fraction(v) for v in values]
    plain = name.removeprefix("v_").removeprefix("pk_")
    if plain.startswith("cvt"):
        return numbers[0], bool(np.signbit(float(values[0])))
    if plain.startswith("ldexp"):
        power = max(-3000, min(3000, int(values[1])))
        return numbers[0] * Fraction(2) ** power, bool(np.signbit(values[0]))
    signs = [bool(np.signbit(v)) for v in values]
    if plain.startswith("mul"):
        return numbers[0] * numbers[1], signs[0] != signs[1]
    if plain.startswith("fma"):
        first = signs[0] != signs[1]
        return numbers[0] * numbers[1] + numbers[2], first if first == signs[2] else None
    a, b = (1, 0) if plain.startswith("subrev") else (0, 1)
    minus = plain.startswith("sub")
    other = signs[b] != minus
    total = numbers[a] - numbers[b] if minus else numbers[a] + numbers[b]
    return total, signs[a] if signs[a] == other else None


def kinds_of(name: str) -> tuple[str, str]:
    """Return the kinds of the operands, and of the result."""
    if name in FMA:
        kind = "h" if name.endswith("f16") else "f"
        return kind * (3 if "fma" in name else 2), kind
    entry = VALU[name]
    return entry.ins + (entry.outs if entry.tied else ""), entry.outs


WIDTHS = {"h": 16, "f": 32, "d": 64}


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("mode", [UP, DOWN, ZERO])
@pytest.mark.parametrize("name", ROUNDED)
def test_rounding(
    name: str, mode: int, changes: bool, instructions: dict[str, Instruction]
) -> None:
    ins, out = kinds_of(name)
    width = WIDTHS[out]
    rng = np.random.default_rng(sum(name.encode()) + mode)
    w = waves(mode=0x3F0 | mode | mode << 2)
    tied = name in VALU and VALU[name].tied
    literal = {"v_fmamk_f32": 1, "v_fmaak_f32": 2}.get(name)
    bits: list[Any] = []
    for n, kind in enumerate(ins):
        values = samples({"w": "u", "s": "u"}.get(kind, kind), 64, rng).reshape(1, 64)
        if kind in "hfd" and n and rng.random() < 0.9:
            # Some operands are the negated first one, so that sums cancel.
            opposite = bits[0] ^ np.uint64(1 << WIDTHS[kind] - 1)
            values = np.where(rng.random((1, 64)) < 0.2, opposite, values)
        if n == 1 and "ldexp" in name:
            values = rng.integers(-40, 40, (1, 64)).astype(np.int64).view(np.uint64)
            values &= np.uint64(0xFFFFFFFF)
        if n == literal:
            values = np.full((1, 64), 0x3FC00000, np.uint64)
        bits.append(values)
    given = [b for n, b in enumerate(bits) if n != literal]
    for n, values in enumerate(given):
        place = 32 if tied and n == len(given) - 1 else 8 * n
        wide = values | values << np.uint64(16) if name in FMA and out == "h" else values
        put(w.v, place, wide, ins[0] == "d" and not (n == 1 and "ldexp" in name))
        if name.startswith("v_pk_") and out == "f":
            put(w.v, place + 1, values, False)
    apply(instructions[name], w, changes_mode=changes)
    found = held(w.v, 32, (1, 64), out == "d")
    for lane in range(64):
        numbers = [value_of(kind, int(b[0, lane])) for kind, b in zip(ins, bits, strict=True)]
        if not all(isinstance(v, int) or np.isfinite(v) for v in numbers):
            continue
        got = int(found[0, lane]) & (1 << width) - 1
        exact, negative = exact_of(name, numbers)
        if exact == 0:
            wanted = negative if negative is not None else mode == DOWN
            assert got == (1 << width - 1) * int(wanted), (name, values)
            continue
        assert got == directed(exact, width, mode), (name, values, hex(got))


def value_of(kind: str, bits: int) -> Any:
    if kind in "hfd":
        return number(bits & (1 << WIDTHS[kind]) - 1, WIDTHS[kind])
    return {"i": signed(bits), "u": bits, "w": bits & 0xFFFF, "s": signed(bits, 16)}[kind]


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("denormals", range(4))
@pytest.mark.parametrize(
    ("name", "shift"), [("v_mul_f32", 4), ("v_mul_f16", 6), ("v_mul_f64", 6), ("v_pk_mul_f16", 6)]
)
def test_denormals(
    name: str, shift: int, denormals: int, changes: bool, instructions: dict[str, Instruction]
) -> None:
    """Bit 0 keeps those of operands, bit 1 those of results."""
    _, kind = kinds_of(name)
    width = WIDTHS[kind]
    tiny = float(np.finfo(number(0, width)).smallest_normal)
    w = waves(mode=0x300 | denormals << shift | (3 << (10 - shift)))
    pairs = [(tiny / 4, 8.0), (tiny, 0.25), (-tiny / 2, 1.0), (tiny, 2.0)]
    for n, column in enumerate(zip(*pairs, strict=True)):
        codes = np.array(column).astype(number(0, width).dtype).view(BITS[width])
        put(w.v, 8 * n, np.tile(codes.astype(np.uint64), (1, 16)), width == 64)
    apply(instructions[name], w, changes_mode=changes)
    found = [number(int(x) & (1 << width) - 1, width) for x in held(w.v, 32, (1, 64), True)[0, :4]]
    keeps_operands, keeps_results = denormals & 1, denormals >> 1
    wanted = [
        2 * tiny * keeps_operands,
        tiny / 4 * keeps_results,
        -tiny / 2 * (keeps_operands and keeps_results),
        2 * tiny,
    ]
    assert [float(f) for f in found] == wanted
    assert np.signbit(found[2])


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_overflow_of_half_precision(
    limited: bool, changes: bool, instructions: dict[str, Instruction]
) -> None:
    """FP16_OVFL: what overflows is the largest number, true infinities stay, in every mode."""
    for name, left, right in (
        ("v_add_f16", [65504, -65504, np.inf, 1], [65504, -65504, 1, 1]),
        ("v_mul_f16", [65504, -65504, np.inf, 1], [2, 2, -1, 1]),
        ("v_pk_add_f16", [65504, -65504, np.inf, 1], [65504, -65504, 1, 1]),
        ("v_cvt_f16_f32", [1e6, -1e6, np.inf, 1], None),
    ):
        w = waves(mode=0x3F0 | FP16_OVFL * limited)
        kind = np.float32 if right is None else np.float16
        for n, values in enumerate((left, right or [])):
            codes = np.array(values, kind).view(BITS[32 if right is None else 16])
            if len(codes):
                put(w.v, 8 * n, np.tile(codes.astype(np.uint64), (1, 16)), False)
        apply(instructions[name], w, changes_mode=changes)
        found = register(w, 32)[0, :4].astype(np.uint16).view(np.float16).astype(float)
        largest = 65504 if limited else np.inf
        infinite = -np.inf if name == "v_mul_f16" else np.inf
        last = 2.0 if "add" in name else 1.0
        assert found.tolist() == [largest, -largest, infinite, last]


def test_rounding_that_is_not_modelled_is_refused(instructions: dict[str, Instruction]) -> None:
    """Only where it is wanted: minimum and maximum round nothing."""
    w = waves(mode=0x3F3)
    fill(w, 0, np.ones((1, 64, 1)))
    fill(w, 8, np.ones((1, 64, 1)))
    with pytest.raises(SimulationError, match="rounding other than"):
        apply(instructions["rcp"], w)
    with pytest.raises(SimulationError, match="rounding other than"):
        apply(instructions["rcp"], w, changes_mode=True)
    apply(instructions["max"], w)
    w.mode = 0x3F0
    apply(instructions["rcp"], w, changes_mode=True)


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("mode", [UP, UP << 2])
def test_a_conversion_under_two_rounding_modes_is_refused(
    mode: int, changes: bool, instructions: dict[str, Instruction]
) -> None:
    """It is not documented which field of MODE v_cvt_f32_f64 heeds."""
    w = waves(mode=0x3F0 | mode)
    with pytest.raises(SimulationError, match="rounding other than"):
        apply(instructions["v_cvt_f32_f64"], w, changes_mode=changes)


def exact_integer(name: str, a: int, b: int, c: int) -> int:
    """Return the result as an unbounded integer; operands are signed if the instruction is."""
    plain = name.removeprefix("v_").removeprefix("pk_")
    if plain.startswith("dot"):
        width = {"2": 16, "4": 8, "8": 4}[plain[3]]
        is_signed = plain.rsplit("_", 1)[1].startswith("i")
        pairs = zip(parts(a, width), parts(b, width), strict=True)
        return c + sum(
            signed(x, width) * signed(y, width) if is_signed else x * y for x, y in pairs
        )
    if "sad" in plain:
        width = 8 if "u8" in plain else 16 if "u16" in plain else 32
        beside = list(zip(parts(a, width), parts(b, width), strict=True))
        far = sum(abs(x - y) for x, y in beside if y or not plain.startswith("msad"))
        return (far << 16 if "hi" in plain else far) + c
    if plain.startswith("mad"):
        if plain.endswith("24"):
            a, b = (signed(x, 24) if "_i" in plain else x & 0xFFFFFF for x in (a, b))
        return a * b + c
    return a + b if plain.startswith("add") else b - a if plain.startswith("subrev") else a - b


@pytest.mark.parametrize("name", sorted(SATURATING))
def test_integers_that_saturate(name: str, instructions: dict[str, Instruction]) -> None:
    i = instructions[f"clamp {name}"]
    assert i.has("clamp")
    packed = name.startswith("v_pk_")
    kinds = {"u": (0, 2**32 - 1), "i": (-(2**31), 2**31 - 1), "w": (0, 65535), "s": (-32768, 32767)}
    rng = np.random.default_rng(sum(name.encode()))
    if packed:
        kind = "w" if name.endswith("u16") else "s"
        ins, out = kind * len(i.operands), kind
    else:
        ins, out = VALU[name].ins, VALU[name].outs
    w = waves()
    bits = [samples("u", 64, rng) for _ in ins]
    for n, values in enumerate(bits):
        fill(w, 8 * n, values[None, :, None])
    apply(i, w)
    low, high = kinds[out]
    narrow = out in "ws"
    for lane in range(64):
        for place in range(2 if packed else 1):
            given: list[int] = []
            for n, kind in enumerate(ins):
                word = int(bits[n][lane]) >> 16 * place
                given.append(
                    {"u": word, "i": signed(word), "w": word & 0xFFFF}.get(kind, signed(word, 16))
                )
            raw = [v & 0xFFFFFFFF if "dot" in name and n < 2 else v for n, v in enumerate(given)]
            exact = exact_integer(name, *(raw + [0] * (3 - len(raw)))[:3])
            wanted = max(low, min(high, exact)) & (0xFFFF if narrow else 0xFFFFFFFF)
            found = int(register(w, 32)[0, lane]) >> 16 * place
            assert found & (0xFFFF if narrow else 0xFFFFFFFF) == wanted, (name, values)


def test_saturation_that_is_not_modelled_is_refused(
    instructions: dict[str, Instruction],
) -> None:
    with pytest.raises(SimulationError, match="saturation"):
        apply(instructions["carry"], waves())


@pytest.mark.parametrize(("clamps_nan", "of_nan"), [(True, 0.0), (False, np.nan)])
def test_clamped_floats(
    clamps_nan: bool, of_nan: float, instructions: dict[str, Instruction]
) -> None:
    w = waves(mode=0x2F0 | 0x100 * clamps_nan)
    values = np.tile(np.array([-2, 0.25, 3, np.nan, np.inf, -np.inf, 0.5, 1], np.float32), 8)
    fill(w, 0, values.view(np.uint32)[None, :, None])
    fill(w, 8, np.zeros((1, 64, 1)))
    apply(instructions["clamp"], w)
    found = register(w, 32)[0, :8].view(np.float32)
    np.testing.assert_array_equal(found, np.array([0, 0.25, 1, of_nan, 1, 0, 0.5, 1], np.float32))


@pytest.mark.parametrize(
    ("mode", "applies"), [(0x3F0, False), (0x1F0, False), (0x3D0, False), (0x1D0, True)]
)
def test_output_modifiers(mode: int, applies: bool, instructions: dict[str, Instruction]) -> None:
    """Section 6.2.2: not in IEEE mode, not with denormal results; -0 becomes +0."""
    w = waves(mode=mode)
    left = np.tile(np.array([1.5, -0.0, 2.0**-126, 3], np.float32), 16)
    fill(w, 0, left.view(np.uint32)[None, :, None])
    fill(w, 8, np.ones((1, 64, 1), np.float32).view(np.uint32))
    apply(instructions["omod"], w)
    found = register(w, 32)[0, :4].view(np.float32)
    factor = 4 if applies else 1
    assert found.tolist() == [1.5 * factor, 0, 2.0**-126 * factor, 3 * factor]
    assert bool(np.signbit(found[1])) != applies
    halved = replace(instructions["half"])
    w.mode = 0x130 if applies else 0x3F0
    fill(w, 0, np.full((1, 64, 1), 0x3C00))
    fill(w, 8, np.full((1, 64, 1), 0x3C00))
    apply(halved, w)
    assert (register(w, 32) == (0x3C00 if applies else 0x4000)).all()


def test_mode_is_set_and_read(instructions: dict[str, Instruction]) -> None:
    w = waves(mode=0x3F0)
    apply(instructions["set"], w)
    assert w.mode == 0x3FB
    w.s[32] = np.array([[5]], np.uint32)
    apply(instructions["set register"], w)
    assert w.mode == 0x35B
    apply(instructions["get"], w)
    assert int(w.s[33].flat[0]) == 0x35B >> 2 & 63
    w.s[32] = np.array([[1]] * 64, np.uint32)
    two = waves(2)
    two.s[32] = np.array([[1], [2]], np.uint32)
    with pytest.raises(SimulationError, match="differently"):
        apply(instructions["set register"], two)
