"""All VOP3P instructions except matrix instructions, with random modifiers, against AMD's
pseudocode.

If the pseudocode does not read OPSEL itself, the modifiers are applied to its operands first:
op_sel and op_sel_hi choose halves, neg and neg_hi change signs (CDNA4 ISA document, section on
VOP3P). tinygrad encodes the instructions, not LLVM's assembler, which other tests use.
"""

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tinygrad.renderer.amd.dsl import v
from tinygrad.runtime.autogen.amd.cdna.enum import VOP3POp
from tinygrad.runtime.autogen.amd.cdna.ins import VOP3P
from tinygrad.runtime.autogen.amd.cdna.operands import OPERANDS

from mxc.simulator.code.decode import decode
from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.spaces import Bytes, Memory
from mxc.simulator.run.lines import Lines
from mxc.simulator.run.state import Waves
from tests.simulator.pseudocode.pcode_language import bits_of, execute, program
from tests.simulator.pseudocode.pcode_values import make
from tests.simulator.pseudocode.samples import samples

MODE = 0x3F0
RESULT, SOURCES = 32, (0, 4, 8)
#: OPS: instructions with pseudocode. PACKED: those that are no matrix instructions.
OPS = {op.name.lower(): op for op in VOP3POp if program(op.name.lower()) is not None}
PACKED = sorted(n for n in OPS if not n.startswith(("v_mfma", "v_smfmac", "v_accvgpr")))


def lines_of(name: str) -> list[str]:
    """Return the pseudocode of an instruction; that of mixed operands with a fused multiply-add, as
    in LLVM's v_fma_mix_f32."""
    return [
        line.replace("in[0] * in[1] + in[2]", "fma(in[0], in[1], in[2])")
        for line in program(name) or ()
    ]


def width_of(name: str, field: str) -> int:
    return int(OPERANDS[OPS[name]][field][1])


def fields_of(name: str) -> list[str]:
    return [f for f in ("src0", "src1", "src2") if f in OPERANDS[OPS[name]]]


def registers(first: int, width: int) -> Any:
    return v[first] if width <= 32 else v[first : first + width // 32 - 1]


def instruction(name: str, modifiers: dict[str, int]) -> Instruction:
    operands = {
        field: registers(first, width_of(name, field))
        for field, first in zip(fields_of(name), SOURCES, strict=False)
    }
    high = modifiers["op_sel_hi"]
    word = VOP3P(
        OPS[name],
        vdst=registers(RESULT, width_of(name, "vdst")),
        **operands,
        neg=modifiers["neg"],
        neg_hi=modifiers["neg_hi"],
        opsel=modifiers["op_sel"],
        opsel_hi=high & 3,
        opsel_hi2=high >> 2,
        clmp=modifiers["clamp"],
    ).to_bytes()
    found = decode(word + bytes(12), 0, 0)
    assert found.name == name
    return found


def half(bits: int, upper: int, width: int) -> int:
    return bits >> width * upper & (1 << width) - 1


def prepared(name: str, n: int, bits: int, m: dict[str, int]) -> int:
    """Apply the modifiers to operand `n` for the pseudocode: choose each half, and change signs."""
    width = width_of(name, fields_of(name)[n]) // 2
    sign = 1 << width - 1
    if name.startswith("v_dot") and n == 2:
        return bits ^ (m["neg"] >> n & 1) << 31
    low, high = (half(bits, m[key] >> n & 1, width) for key in ("op_sel", "op_sel_hi"))
    low ^= sign * (m["neg"] >> n & 1)
    high ^= sign * (m["neg_hi"] >> n & 1)
    return low | high << width


def scope_of(name: str, operands: list[int], old: int, m: dict[str, int]) -> dict[str, Any]:
    scope: dict[str, Any] = {"D0": old, "tmp": 0, "in": [0, 0, 0]}
    scope |= {"OPSEL": make("u", 3, m["op_sel"]), "OPSEL_HI": make("u", 3, m["op_sel_hi"])}
    if "OPSEL" in " ".join(lines_of(name)):
        # Here neg changes the sign of the whole operand, and neg_hi takes its absolute value.
        given = [make("u", 64, bits) for bits in operands]
    else:
        given = [make("u", 64, prepared(name, n, bits, m)) for n, bits in enumerate(operands)]
    scope |= {f"S{n}": value for n, value in enumerate(given)}
    scope["S"] = given
    return scope


def modifiers_of(name: str, rng: np.random.Generator) -> dict[str, int]:
    """Draw modifiers that an instruction accepts and that can change its result."""
    count = len(fields_of(name))
    made = {key: int(rng.integers(8)) for key in ("op_sel", "op_sel_hi", "neg", "neg_hi")}
    made["clamp"] = 0
    # Bits for operands that the instruction does not have keep their defaults.
    unused = 7 & ~((1 << count) - 1)
    made["op_sel"] &= ~unused
    made["op_sel_hi"] |= unused
    if name.startswith("v_dot"):
        made |= {"op_sel": 0, "op_sel_hi": 7, "neg_hi": made["neg_hi"] & 3}
    if not re.search(r"_f(16|32)", name) or "mix" in name:
        made |= {"neg": 0, "neg_hi": 0}
    made["neg"] &= ~unused
    made["neg_hi"] &= ~unused
    return made


def equal(name: str, found: int, wanted: int) -> bool:
    """Return whether each part of two results has equal bits, or is NaN in both."""
    if found == wanted:
        return True
    match = re.search(r"_f(16|32)", name)
    if match is None:
        return False
    width = int(match[1])
    for at in range(0, 64, width):
        a, b = (make("f", width, bits >> at) for bits in (found, wanted))
        if a.bits != b.bits and not (np.isnan(a.number) and np.isnan(b.number)):
            return False
    return True


def apply(i: Instruction, w: Waves) -> None:
    lines = Lines(MODE)
    found = lines.translate(i)
    assert found is not None
    exec("\n ".join(["def run(w):", "s, v, a = w.s, w.v, w.a", *found]), lines.names)
    with np.errstate(all="ignore"):
        lines.names["run"](w)


def held(w: Waves, first: int, width: int) -> np.ndarray:
    words = [np.broadcast_to(w.v[first + n], (1, 64))[0].astype(np.uint64) for n in range(2)]
    return words[0] | words[1] << np.uint64(32) if width == 64 else words[0]


def words_of(name: str, at: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a register of an operand for each of 64 lanes: numbers of the instruction's type."""
    if name.startswith("v_dot2_f32"):
        # No denormals: dot products flush them, and the pseudocode does not.
        numbers = (rng.uniform(0.5, 4, (64, 2)) * rng.choice([-1, 1], (64, 2))).astype(np.float32)
        if at == 2:
            return numbers[:, 0].copy().view(np.uint32)
        dtype = ml_dtypes.bfloat16 if name.endswith("bf16") else np.float16
        return numbers.astype(dtype).view(np.uint32)[:, 0]
    kind = "f" if name.endswith("f32") else "h" if name.endswith("f16") else "u"
    low, high = (samples(kind, 64, rng) & np.uint64(0xFFFFFFFF) for _ in range(2))
    word = low & np.uint64(0xFFFF) | high << np.uint64(16) if kind == "h" else low
    return word.astype(np.uint32)


@pytest.mark.parametrize("name", PACKED)
def test_modifiers(name: str) -> None:
    rng = np.random.default_rng(sum(name.encode()))
    result = width_of(name, "vdst")
    for _ in range(10):
        m = modifiers_of(name, rng)
        none = Bytes(np.zeros(4, np.uint8))
        w = Waves(1, 64, 0, Memory(), none, none)
        for at, first in enumerate((*SOURCES, RESULT)):
            for n in (0, 1):
                w.v[first + n] = words_of(name, at, rng)[None]
        operands = [
            held(w, first, width_of(name, field))
            for field, first in zip(fields_of(name), SOURCES, strict=False)
        ]
        old = held(w, RESULT, result)
        apply(instruction(name, m), w)
        found = held(w, RESULT, result)
        with np.errstate(all="ignore"):
            for lane in range(12):
                given = [int(each[lane]) for each in operands]
                scope = scope_of(name, given, int(old[lane]), m)
                execute(lines_of(name), scope)
                wanted = bits_of(scope["D0"])
                assert equal(name, int(found[lane]), wanted), (
                    name,
                    m,
                    [*map(hex, given)],
                    hex(int(found[lane])),
                    hex(wanted),
                )


@pytest.mark.parametrize("name", [n for n in PACKED if n.startswith("v_dot")])
def test_halves_are_not_chosen_in_dot_products(name: str) -> None:
    plain = {"op_sel": 0, "op_sel_hi": 7, "neg": 0, "neg_hi": 0, "clamp": 0}
    for changed in ({"op_sel": 1}, {"op_sel_hi": 5}):
        with pytest.raises(SimulationError, match="op_sel in a dot product"):
            Lines(MODE).translate(instruction(name, plain | changed))


@pytest.mark.parametrize("name", ["v_pk_add_u16", "v_pk_mov_b32", "v_dot4_i32_i8"])
def test_integers_have_no_sign_to_change(name: str) -> None:
    plain = {"op_sel": 0, "op_sel_hi": 7, "neg": 0, "neg_hi": 0, "clamp": 0}
    for changed in ({"neg": 1}, {"neg_hi": 2}):
        with pytest.raises(SimulationError, match="sign of an operand"):
            Lines(MODE).translate(instruction(name, plain | changed))


@pytest.mark.parametrize(
    ("name", "constant", "low", "high"),
    [
        ("v_pk_add_u16", 193, 0xFFFF, 0xFFFF),
        ("v_pk_add_u16", 242, 0x0000, 0x3F80),
        ("v_pk_max_f16", 242, 0x3C00, 0x0000),
    ],
)
def test_inline_constants(name: str, constant: int, low: int, high: int) -> None:
    """-1 has a sign; 1.0 is a float16 in the lower half, and a float32 for integers (LLVM,
    getInlineEncodingV216)."""
    none = Bytes(np.zeros(4, np.uint8))
    w = Waves(1, 64, 0, Memory(), none, none)
    w.v[SOURCES[0]] = np.zeros((1, 64), np.uint32)
    plain = {"op_sel": 0, "op_sel_hi": 7, "neg": 0, "neg_hi": 0, "clamp": 0}
    i = instruction(name, plain)
    bank = Operand("int", -1) if constant == 193 else Operand("float", constant)
    apply(replace(i, operands=(i.operands[0], bank)), w)
    assert held(w, RESULT, 32)[0] == low | high << 16
