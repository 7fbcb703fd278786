"""Conversions to and from small formats, against exact arithmetic, ml_dtypes and AMD's HIP.

Rounding to nearest even is that of ml_dtypes on exact numbers. Stochastic rounding is written out
bit by bit as AMD's HIP does it on the host (amd_hip_ocp_host.hpp); AMD's tests compare that with
gfx950.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.modes import FP16_OVFL
from mxc.simulator.compute.numbers import encode_stochastic
from mxc.simulator.compute.small import SMALL
from mxc.simulator.errors import SimulationError
from tests.simulator.instructions.single import apply, decoded, fill, register, waves

Array = NDArray[Any]
#: Opcodes that this file tests with numbers.
COVERS = frozenset((*SMALL, "v_prng_b32"))
DTYPES: dict[str, Any] = {
    "fp4": ml_dtypes.float4_e2m1fn,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
}
WIDTH = {"fp4": 4, "fp6": 6, "bf6": 6, "fp8": 8, "bf8": 8, "f16": 16, "bf16": 16, "f32": 32}
#: Exponent bits, mantissa bits and exponent bias of each format.
FIELDS = {"fp4": (2, 1, 1), "fp6": (2, 3, 1), "bf6": (3, 2, 3), "fp8": (4, 3, 7)}
FIELDS |= {"bf8": (5, 2, 15), "f16": (5, 10, 15), "bf16": (8, 7, 127), "f32": (8, 23, 127)}
BITS = {16: np.uint16, 32: np.uint32}
EDGES = [0.0, -0.0, 1.0, -1.0, 0.25, 0.75, 1.25, 2.5, 5.0, 6.0, 7.0, 7.75, 28.0, 29.0, 30.0, 448.0]
EDGES += [464.0, 465.0, 480.0, 57344.0, 61439.0, 61440.0, 1e-3, 2.0**-10, 3 * 2.0**-11, 2.0**-17]
EDGES += [np.inf, -np.inf, np.nan, 65504.0, 1e-7, 2.0**-24, 1.5 * 2.0**-25]
V, SEED, SCALE, OUT = 0, 100, 101, 104


def registers(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def line(name: str, select: str = "") -> str:
    form = SMALL[name]
    (out,), ins = form.registers
    texts = [registers(OUT, out)]
    places = [V, V + 32 if form.interleaved else V + 1]
    wide = len(ins) - form.stochastic - form.scaled
    texts += [registers(places[n], ins[n]) for n in range(wide)]
    texts += [f"v{SEED}"] * form.stochastic + [f"v{SCALE}"] * form.scaled
    return f"{name} {', '.join(texts)}{select}"


def selections(name: str) -> list[str]:
    """Return the texts of op_sel that an instruction accepts; "" is none."""
    form = SMALL[name]
    if form.count == 32:
        return [""]
    if not form.scaled:
        if not form.narrows:
            return [""]
        single = form.count == 1 and form.small in ("fp8", "bf8")
        return ["", " op_sel:[0,0,1,1]" if single else " op_sel:[0,0,1]"]
    if not form.narrows:
        if form.count == 1:
            return ["", " op_sel:[1,0,0]", " op_sel:[1,1,0]"]
        return ["", " op_sel:[1,0,0]"] + [" op_sel:[1,1,0]"] * (form.small == "fp4")
    if form.separate or form.stochastic:
        high = " op_sel:[0,0,0,1]"
        both = " op_sel:[0,0,1,1]"
        return ["", high] + [both] * (form.small == "fp4" or form.count == 1)
    return ["", " op_sel:[0,0,0,1]" if form.small == "fp4" else " op_sel:[0,0,1]"]


LINES = {line(name, select): name for name in SMALL for select in selections(name)}


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    return decoded(assemble, [*LINES, "v_prng_b32 v4, v5"])


def wide_bits(rng: np.random.Generator, form: str, shape: tuple[int, ...]) -> Array:
    """Draw the bits of a wide format: edge values, random numbers, random bits."""
    kind = BITS[WIDTH[form]]
    with np.errstate(over="ignore"):
        edges = np.array(EDGES).astype(DTYPES[form]).view(kind)
        numbers = (rng.normal(0, 1, shape) * np.exp2(rng.integers(-9, 10, shape))).astype(
            DTYPES[form]
        )
    pick = rng.random(shape)
    mixed = np.where(pick < 0.3, rng.choice(edges, shape), numbers.view(kind))
    return np.where(pick > 0.9, rng.integers(0, 1 << WIDTH[form], shape, dtype=np.uint64), mixed)


def scales(rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw a scale for each lane, with random sign and mantissa: its bits, and its power of two."""
    field = rng.integers(115, 140, 64)
    field[:4] = (0, 1, 254, 255)
    noise = rng.integers(0, 1 << 32, 64, dtype=np.uint64) & 0x807FFFFF
    return (noise | field.astype(np.uint64) << np.uint64(23)).astype(np.uint32), field - 127


def pack(codes: Array, width: int) -> Array:
    """Pack codes [64, count] to uint32 [64, n], from the lowest bit on."""
    words = max(1, codes.shape[1] * width // 32)
    out = np.zeros((64, words), np.uint32)
    for lane in range(64):
        total = sum(int(c) << width * n for n, c in enumerate(codes[lane]))
        out[lane] = [total >> 32 * n & 0xFFFFFFFF for n in range(words)]
    return out


def unpack(words: Array, width: int, count: int) -> Array:
    codes = np.zeros((64, count), np.uint64)
    for lane in range(64):
        total = sum(int(x) << 32 * n for n, x in enumerate(words[lane]))
        codes[lane] = [total >> width * n & (1 << width) - 1 for n in range(count)]
    return codes


def numbers_of(codes: Array, form: str) -> Array:
    kind = {4: np.uint8, 6: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32}[WIDTH[form]]
    return codes.astype(kind).view(DTYPES[form]).astype(np.float64)


def nearest(exact: Array, form: str, limited: bool) -> Array:
    """Round exact float64 to nearest even and return the codes. Numbers beyond the largest follow
    section 7.3."""
    top = (1 << WIDTH[form] - 1) - 1
    if form in ("fp8", "bf8"):
        largest = 448.0 if form == "fp8" else 57344.0
        infinity = 0x7F if form == "fp8" else 0x7C
        with np.errstate(all="ignore"):
            codes = exact.astype(DTYPES[form]).view(np.uint8) & 0x7F
        rounded = numbers_of(codes, form)
        over = ~np.isnan(exact) & ~(np.abs(rounded) <= largest)
        codes = np.where(over, 0x7E if form == "fp8" else 0x7B, codes) if limited else codes
        codes = np.where(over & (not limited), infinity, codes)
        codes = np.where(np.isnan(exact), 0x7F, codes)
    else:
        largest = {"fp4": 6.0, "fp6": 7.5, "bf6": 28.0}[form]
        inside = np.clip(np.where(np.isnan(exact), largest, np.abs(exact)), 0, largest)
        codes = inside.astype(DTYPES[form]).view(np.uint8)
    return codes.astype(np.uint64) | np.signbit(exact).astype(np.uint64) * np.uint64(top + 1)


def stochastic(bits: int, wide: str, small: str, seed: int, power: int, limited: bool) -> int:
    """Round one element stochastically, by integers: shift it to the small format's denormals if
    necessary, add random bits, and truncate."""
    exponent_bits, source, bias = FIELDS[wide]
    target_bits, target, target_bias = FIELDS[small]
    sign = bits >> (exponent_bits + source) << (target_bits + target)
    field = bits >> source & (1 << exponent_bits) - 1
    mantissa = bits & (1 << source) - 1
    top = (1 << target_bits + target) - 1
    infinity = {"fp8": 0x7F, "bf8": 0x7C, "f16": 0x7C00, "bf16": 0x7F80}.get(small, top)
    saturates = small in ("fp4", "fp6", "bf6")
    largest = top if saturates else infinity - 1
    beyond = largest if saturates or (limited and small != "bf16") else infinity
    if (field == (1 << exponent_bits) - 1 and mantissa) or power == 128:
        return sign | top
    if field == (1 << exponent_bits) - 1:
        return sign | (infinity if small == "f16" else beyond)
    if not field and not mantissa:
        return sign
    exponent = max(field, 1) - bias - power
    mantissa |= (1 << source) if field else 0
    while not mantissa >> source:
        mantissa, exponent = mantissa << 1, exponent - 1
    lowest = 1 - target_bias
    if exponent < lowest:
        mantissa >>= min(lowest - exponent, 99)
        exponent = lowest
    mantissa += seed >> (32 - source + target)
    if mantissa >> (source + 1):
        mantissa, exponent = mantissa >> 1, exponent + 1
    mantissa >>= source - target
    field = exponent + target_bias if mantissa >> target else 0
    code = field << target | mantissa & (1 << target) - 1
    return sign | (beyond if code > largest else code)


def step(seed: int) -> int:
    return (seed << 1 & 0xFFFFFFFF) ^ (197 if seed >> 31 else 0)


def run(i: Instruction, name: str, rng: np.random.Generator, mode: int) -> dict[str, Any]:
    """Execute a conversion on random registers; return the registers before and after."""
    form = SMALL[name]
    w = waves(mode=mode)
    scale, power = scales(rng)
    seed = rng.integers(0, 1 << 32, 64, dtype=np.uint64)
    seed[:3] = (0, 0xFFFFFFFF, 0x80000000)
    old = rng.integers(0, 1 << 32, (64, 32), dtype=np.uint32)
    if form.narrows:
        codes = wide_bits(rng, form.wide, (64, form.count))
        words = pack(codes, WIDTH[form.wide])
        if form.interleaved:
            fill(w, V, words[None, :, 0::2])
            fill(w, V + 32, words[None, :, 1::2])
        else:
            fill(w, V, words[None])
    else:
        codes = rng.integers(0, 1 << WIDTH[form.small], (64, 32 if form.count == 32 else 8))
        words = pack(codes, WIDTH[form.small])
        fill(w, V, words[None])
    fill(w, SEED, seed.astype(np.uint32)[None, :, None])
    fill(w, SCALE, scale[None, :, None])
    fill(w, OUT, old[None])
    apply(i, w)
    count = form.registers[0][0]
    result = np.stack([register(w, OUT + n)[0] for n in range(count)], axis=1)
    return {"codes": codes, "words": words, "power": power, "seed": seed, "old": old} | {
        "result": result
    }


def selected(text: str) -> int:
    """Return the encoding of op_sel, in which the bit of the result is the fourth."""
    if "op_sel" not in text:
        return 0
    bits = [int(b) for b in text.split("[")[-1].rstrip("]").split(",")]
    if len(bits) == 3 and SMALL[text.split()[0]].narrows:
        bits = [bits[0], bits[1], 0, bits[2]]
    return sum(b << n for n, b in enumerate(bits))


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("limited", [False, True])
def test_conversion(text: str, limited: bool, instructions: dict[str, Instruction]) -> None:
    name = LINES[text]
    form = SMALL[name]
    rng = np.random.default_rng(sum(text.encode()))
    mode = 0x3F0 | FP16_OVFL * limited
    got = run(instructions[text], name, rng, mode)
    select = selected(text)
    assert instructions[text].has("op_sel") == select
    power = got["power"][:, None] if form.scaled else np.zeros((64, 1), int)
    if form.narrows:
        check_narrow(form, got, power, select, limited)
        return
    codes = got["codes"]
    if form.count != 32:
        word = got["words"][:, :1]
        halved = form.count == 2 and form.small != "fp4"
        shift = 16 * (select & 1) if halved else 8 * (select & 3)
        codes = unpack(word >> np.uint32(shift), WIDTH[form.small], form.count)
    with np.errstate(all="ignore"):
        exact = np.ldexp(numbers_of(codes, form.small), power)
    exact = np.where(power == 128, np.nan, exact)
    with np.errstate(all="ignore"):
        wanted = exact.astype(DTYPES[form.wide]).astype(np.float64)
    found = numbers_of(unpack(got["result"], WIDTH[form.wide], form.count), form.wide)
    if form.count == 1 and form.wide == "f16" and select & 8:
        found = numbers_of(got["result"] >> 16, "f16")
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(wanted)[numbers])


def check_narrow(form: Any, got: dict[str, Any], power: Array, select: int, limited: bool) -> None:
    if form.stochastic:
        wanted = np.zeros(got["codes"].shape, np.uint64)
        for lane in range(64):
            seed = int(got["seed"][lane])
            for n, bits in enumerate(got["codes"][lane]):
                p = int(power[lane, 0])
                wanted[lane, n] = stochastic(int(bits), form.wide, form.small, seed, p, limited)
                seed = step(seed)
    else:
        with np.errstate(all="ignore"):
            exact = np.ldexp(numbers_of(got["codes"], form.wide), -power)
        wanted = nearest(np.where(power == 128, np.nan, exact), form.small, limited)
        negative = got["codes"] >> np.uint64(WIDTH[form.wide] - 1)
        top = np.uint64(1 << WIDTH[form.small] - 1)
        wanted = (wanted & (top - np.uint64(1))) | negative * top
    width = WIDTH[form.small]
    if form.count == 32:
        found = unpack(got["result"], width, 32)
    else:
        whole = width * form.count
        shift = 16 * (select >> 3 & 1) if whole == 16 else 8 * (select >> 2 & 3)
        total = (0).__class__((1 << whole) - 1) << shift
        rest = np.uint32(~total & 0xFFFFFFFF)
        np.testing.assert_array_equal(got["result"][:, 0] & rest, got["old"][:, 0] & rest)
        found = unpack(got["result"] >> np.uint32(shift), width, form.count)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("text", "shift", "count"),
    [
        ("v_cvt_pk_f32_fp8_sdwa v[104:105], v0 src0_sel:WORD_1", 16, 2),
        ("v_cvt_pk_f32_bf8_sdwa v[104:105], v0 src0_sel:WORD_0", 0, 2),
        ("v_cvt_f32_fp8_sdwa v104, v0 src0_sel:BYTE_2", 16, 1),
        ("v_cvt_f32_bf8_sdwa v104, v0 src0_sel:BYTE_3", 24, 1),
    ],
)
def test_parts_of_a_register(
    text: str, shift: int, count: int, assemble: Callable[..., CodeObjectKernel]
) -> None:
    """Without a scale SDWA chooses the byte or the word."""
    (i,) = decoded(assemble, [text]).values()
    words = np.random.default_rng(shift).integers(0, 1 << 32, 64, dtype=np.uint32)
    w = waves()
    fill(w, V, words[None, :, None])
    apply(i, w)
    form = "fp8" if "fp8" in text else "bf8"
    codes = unpack(words[:, None] >> np.uint32(shift), 8, count)
    found = np.stack([register(w, OUT + n)[0] for n in range(count)], axis=1).view(np.float32)
    np.testing.assert_array_equal(found, numbers_of(codes, form))


def test_random_numbers(instructions: dict[str, Instruction]) -> None:
    """v_prng_b32 and its pseudocode: shifted, and 197 mixed in where the highest bit was set."""
    state = np.random.default_rng(1).integers(0, 1 << 32, 64, dtype=np.uint32)
    state[:3] = (0, 1 << 31, 0xFFFFFFFF)
    w = waves()
    fill(w, 5, state[None, :, None])
    apply(instructions["v_prng_b32 v4, v5"], w)
    assert register(w, 4)[0].tolist() == [step(int(x)) for x in state]


def test_denormal_operands_of_float32_obey_mode(instructions: dict[str, Instruction]) -> None:
    """Section 7.3: only conversions from f32 look at the denormal mode."""
    text = line("v_cvt_scalef32_pk_fp8_f32")
    for mode, wanted in ((0x3F0, 0x38), (0x3C0, 0x00)):
        w = waves(mode=mode)
        fill(w, V, np.full((1, 64, 2), 0x00200000, np.uint32))
        fill(w, SCALE, np.full((1, 64, 1), 0x00000000, np.uint32))
        apply(instructions[text], w)
        # 2**-128 divided by the scale 2**-127 is a half.
        assert (register(w, OUT)[0] & 0xFF == (0x30 if wanted else 0)).all()


def test_signs_of_packed_sources_are_refused(instructions: dict[str, Instruction]) -> None:
    i = instructions[line("v_cvt_scalef32_pk_fp8_f16")]
    signed = Instruction(i.name, i.encoding, 0, 8, i.results, i.operands, {"neg": 1})
    with pytest.raises(SimulationError, match="signs of packed operands"):
        apply(signed, waves())


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["fp4", "fp6", "bf6", "fp8", "bf8", "f16", "bf16"]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)
def test_stochastic_rounding(small: str, bits: int, seed: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    found = encode_stochastic(
        value.astype(np.float64), small, np.array([seed], np.uint32), 23, clamp=False
    )
    wanted = stochastic(bits, "f32", small, seed, 0, limited=False)
    if not np.isnan(value[0]):
        assert int(found[0]) == wanted


def test_stochastic_rounding_is_fair() -> None:
    """One and a quarter of the way between two numbers: a quarter of the seeds round up."""
    seed = np.linspace(0, 2**32 - 1, 4096).astype(np.uint32)
    value = np.full(4096, 1.0 + 0.25 / 8)
    found = encode_stochastic(value, "fp8", seed, 23, clamp=False)
    assert (found == 0x39).sum() == 1024
    assert (found == 0x38).sum() == 3072
