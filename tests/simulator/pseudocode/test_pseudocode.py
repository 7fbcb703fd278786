"""Single instructions against AMD's pseudocode, lane by lane.

LLVM assembles the instructions, so that these tests include the decoder.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import VCC, Instruction
from mxc.simulator.compute.operations import Operation
from mxc.simulator.compute.salu import SALU
from mxc.simulator.compute.signatures import VALU
from mxc.simulator.memory.spaces import Bytes, Memory
from mxc.simulator.run.lines import Lines
from mxc.simulator.run.state import Waves
from mxc.simulator.run.translate import TranslatedKernel
from tests.simulator.pseudocode.pcode_language import bits_of, execute, program
from tests.simulator.pseudocode.pcode_values import FLOAT, make
from tests.simulator.pseudocode.samples import held, put, samples, scalar_text, vector_text

#: MODE: round to nearest even, keep denormals.
MODE = 0x3F0
#: Operations whose pseudocode is not precise, or uses features that pcode_language.py does not
#: have. Other tests of single instructions have them.
ELSEWHERE = {
    *("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32", "v_prng_b32"),
    *("v_fmamk_f32", "v_fmaak_f32", "v_perm_b32", "v_sad_u8", "v_sad_u16", "v_sad_u32"),
    *("v_msad_u8", "v_sad_hi_u8", "v_lerp_u8", "v_sat_pk_u8_i16", "v_cvt_pk_u8_f32"),
    *("v_ashr_pk_i8_i32", "v_ashr_pk_u8_i32", "v_minimum3_f32", "v_maximum3_f32"),
    *("v_div_fmas_f32", "v_div_scale_f32", "v_div_fmas_f64", "v_div_scale_f64"),
    *("v_cvt_pkrtz_f16_f32", "v_sin_f32", "v_cos_f32"),
    # In the pseudocode, a product overflows too early.
    *("v_ldexp_f16", "v_ldexp_f32", "v_ldexp_f64"),
    *("v_cvt_f32_fp8", "v_cvt_f32_bf8", "v_cvt_off_f32_i4"),
    *("s_bitset0_b32", "s_bitset1_b32", "s_bitset0_b64", "s_bitset1_b64"),
    *("s_wqm_b32", "s_wqm_b64", "s_quadmask_b32", "s_quadmask_b64", "s_bitreplicate_b64_b32"),
}
#: Transcendental and inexact functions, whose results may differ by some units in the last place.
LOOSE = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")


def covered(table: dict[str, Operation]) -> list[str]:
    return [
        name
        for name in table
        if not name.startswith(("v_cmpx_", "s_cmpk_", "v_dot"))
        and not name.endswith(("k_i32", "fmac_f16", "fmac_f64"))
        and name not in ELSEWHERE
        and program(name) is not None
    ]


#: Opcodes that this file tests with numbers.
COVERS = frozenset((*covered(VALU), *covered(SALU)))


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    lines = [vector_text(n) for n in covered(VALU)] + [scalar_text(n) for n in covered(SALU)]
    decoded = TranslatedKernel(assemble("\n".join([*lines, "s_endpgm"]), 1)).instructions
    return {i.name: i for i in decoded}


def apply(i: Instruction, w: Waves) -> None:
    lines = Lines(MODE)
    found = lines.translate(i)
    assert found is not None
    source = "\n ".join(["def run(w):", "s, v, a = w.s, w.v, w.a", *found])
    exec(source, lines.names)
    with np.errstate(all="ignore"):
        lines.names["run"](w)


def waves(count: int) -> Waves:
    none = Bytes(np.zeros(4, np.uint8))
    return Waves(count, 64, 0, Memory(), none, none)


def wanted_of(
    name: str, entry: Operation, operands: list[int], old: int, lane: int
) -> dict[str, Any]:
    scope: dict[str, Any] = {"laneId": make("u", 32, lane), "D0": old, "D1": 0, "OPSEL": 0}
    place = 0
    for kind, bits in zip(entry.ins, operands, strict=True):
        if kind in "mc":
            scope["VCC_lane" if kind == "m" else "SCC"] = make("u", 1, bits)
            continue
        scope[f"S{place}"] = make("u", 64 if kind in "UId" else 32, bits)
        place += 1
    execute(list(program(name) or ()), scope)
    return scope


def same(name: str, kind: str, found: int, wanted: int) -> bool:
    if kind in "ws":
        return found & 0xFFFF == wanted & 0xFFFF
    if kind not in "fdh":
        return found == wanted
    width = {"f": 32, "d": 64, "h": 16}[kind]
    a, b = (make("f", width, bits).number for bits in (found, wanted))
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(a) and np.isnan(b))
    if name.startswith(LOOSE):
        tiny = np.finfo(FLOAT[width]).smallest_normal
        return bool(np.isclose(float(a), float(b), rtol=4 * np.finfo(FLOAT[width]).eps, atol=tiny))
    # The pseudocode rounds -0.3 to +0.
    return found == wanted or bool(name.startswith("v_rndne") and a == b == 0)


def open_to_doubt(name: str, given: list[int]) -> bool:
    """Return whether the pseudocode may differ from hardware for these operands.

    The pseudocode rounds -0 to +0 and takes the exponent of denormals from their bits. LLVM folds
    constants as hardware computes them: v_rndne of -0 to -0, v_frexp_exp to the true exponent (0
    for 0). It has separate code for denormal operands of v_exp and v_log, because these
    instructions flush them.
    """
    if name.startswith("v_div_fixup"):
        # The pseudocode does not recognize a quotient that is NaN because it overflowed.
        width = int(name.rsplit("_f", 1)[1])
        return bool(np.isnan(make("f", width, given[0]).number))
    width = next((w for t, w in (("f16", 16), ("f32", 32), ("f64", 64)) if t in name), 0)
    if not width:
        return False
    fraction = {16: 10, 32: 23, 64: 52}[width]
    denormal = not given[0] >> fraction & (1 << width - 1 - fraction) - 1
    return denormal and name.startswith(("v_rndne", "v_frexp", "v_exp", "v_log"))


def compare(
    name: str,
    entry: Operation,
    operands: list[np.ndarray],
    old: np.ndarray,
    found: Iterator[tuple[str, str, np.ndarray]],
) -> None:
    results = list(found)
    with np.errstate(all="ignore"):
        for at in np.ndindex(old.shape):
            given = [int(o[at]) for o in operands]
            if open_to_doubt(name, given):
                continue
            scope = wanted_of(name, entry, given, int(old[at]), at[1])
            for key, kind, bits in results:
                wanted = bits_of(scope.get(key, 0))
                got = int(bits[at])
                assert same(name, kind, got, wanted), (
                    name,
                    key,
                    [*map(hex, given)],
                    hex(got),
                    hex(wanted),
                )


@pytest.mark.parametrize("name", covered(VALU))
def test_vector(name: str, instructions: dict[str, Instruction]) -> None:
    entry, i = VALU[name], instructions[name]
    rng = np.random.default_rng(sum(name.encode()))
    w, shape = waves(2), (2, 64)
    operands = []
    for n, kind in enumerate(entry.ins):
        if kind == "m":
            bits = rng.integers(0, 2, shape)
            w.put_mask(VCC if name.startswith("v_div_fmas") else 24, bits.astype(bool))
        else:
            bits = samples(kind, 128, rng).reshape(shape)
            put(w.v, 8 * n, bits, kind in "UId")
        operands.append(bits)
    if name == "v_lshl_add_u64":
        operands[1] %= np.uint64(5)
        put(w.v, 8, operands[1], False)
    if name == "v_div_scale_f32":
        # The first operand has to be one of the other two.
        operands[0] = np.where(rng.integers(0, 2, shape) == 1, operands[1], operands[2])
        put(w.v, 0, operands[0], False)
    old = (
        samples(entry.outs[0], 128, rng).reshape(shape)
        if entry.outs[0] != "m"
        else np.zeros(shape, int)
    )
    if entry.outs[0] != "m":
        put(w.v, 32, old, entry.outs[0] in "UId")
    apply(i, w)
    found = []
    for kind in entry.outs:
        if kind == "m":
            bits = np.broadcast_to(w.mask(20), shape).astype(np.uint64)
            key = "D0.lane" if entry.outs == "m" else "D1" if name.startswith("v_mad_") else "VCC"
            key = "VCC.lane" if key == "VCC" and name != "v_div_scale_f32" else key
            found.append((key, "u", bits))
        else:
            found.append(("D0", kind, held(w.v, 32, shape, kind in "UId")))
    compare(name, entry, operands, old, iter(found))


@pytest.mark.parametrize("name", covered(SALU))
def test_scalar(name: str, instructions: dict[str, Instruction]) -> None:
    entry, i = SALU[name], instructions[name]
    rng = np.random.default_rng(sum(name.encode()))
    w, shape = waves(128), (128, 1)
    operands = []
    for n, kind in enumerate(entry.ins):
        if kind == "c":
            bits = rng.integers(0, 2, shape)
            w.scc = bits.astype(bool)
        else:
            bits = samples(kind, 128, rng).reshape(shape)
            put(w.s, 32 + 4 * n, bits, kind in "UId")
        operands.append(bits)
    old = samples("U", 128, rng).reshape(shape)
    wide = entry.outs[0] in "UId"
    old = old if wide else old & np.uint64(0xFFFFFFFF)
    put(w.s, 48, old, wide)
    apply(i, w)
    found = []
    for kind in entry.outs:
        if kind == "c":
            found.append(("SCC", "u", np.broadcast_to(w.scc, shape).astype(np.uint64)))
        else:
            found.append(("D0", kind, held(w.s, 48, shape, wide)))
    compare(name, entry, operands, old, iter(found))
