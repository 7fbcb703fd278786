"""Single instructions, assembled by LLVM, against numpy, ml_dtypes and Python's own numbers."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.compute.floats import float_maximum, float_minimum, fused32
from mxc.simulator.compute.numbers import encode, from_bfloat, to_bfloat, values
from mxc.simulator.compute.salu import field, signed_field
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel

Array = NDArray[Any]
Assemble = Callable[..., CodeObjectKernel]
LANE = np.arange(64)
SMALL = {
    "fp4": ml_dtypes.float4_e2m1fn,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
}
FRAME = """
v_lshlrev_b32 v1, 4, v0
global_load_dwordx4 v[4:7], v1, s[2:3]
s_waitcnt vmcnt(0)
{body}
global_store_dwordx4 v1, v[8:11], s[4:5]
s_endpgm
"""


def run(assemble: Assemble, body: str, operands: Array) -> Array:
    """Run instructions on `operands`, [64, 4] uint32, and return their result [64, 4].

    v[4:7] are the row of a lane in the operands, v[8:11] its row in the result.
    """
    kernel = assemble(FRAME.format(body=body.strip()), 2)
    results = np.zeros((64, 4), np.uint32)
    launch(
        TranslatedKernel(kernel), (1, 1, 1), [np.ascontiguousarray(operands, np.uint32), results]
    )
    return results


def rows(*columns: Array) -> Array:
    """Return operands [64, 4] from up to four columns of 64; others are zero."""
    table = np.zeros((64, 4), np.uint32)
    for n, column in enumerate(columns):
        table[:, n] = column
    return table


@pytest.mark.parametrize("name", SMALL)
def test_every_code_of_the_small_formats(name: str) -> None:
    codes = np.arange(len(values(name)), dtype=np.uint8)
    wanted = codes.view(SMALL[name]).astype(np.float32)
    np.testing.assert_array_equal(values(name), wanted)


@pytest.mark.parametrize("name", SMALL)
def test_rounding_to_the_small_formats(name: str) -> None:
    """ml_dtypes agrees below the largest number; beyond it the mode decides."""
    finite = values(name)[np.isfinite(values(name))].astype(np.float64)
    largest = finite.max()
    rng = np.random.default_rng(4)
    middles = (np.sort(finite)[1:] + np.sort(finite)[:-1]) / 2
    x = np.concatenate([finite, middles, rng.uniform(-largest, largest, 4000)])
    wanted = x.astype(SMALL[name]).astype(np.float32)
    found = values(name)[encode(x, name, clamp=False)]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


def test_overflow_of_the_small_formats() -> None:
    x = np.array([1e4, -1e6, 464.0, 465.0, np.inf])
    assert np.isnan(values("fp8")[encode(x, "fp8", clamp=False)]).tolist() == [1, 1, 0, 1, 1]
    found = values("fp8")[encode(x, "fp8", clamp=True)]
    np.testing.assert_array_equal(found, [448, -448, 448, 448, 448])
    assert values("bf8")[encode(np.array([61440.0]), "bf8", clamp=False)] == np.inf
    assert values("bf8")[encode(np.array([61439.0]), "bf8", clamp=False)] == 57344
    np.testing.assert_array_equal(values("fp4")[encode(x, "fp4", clamp=False)], [6, -6, 6, 6, 6])


@settings(max_examples=300, deadline=None)
@example(2.0**-12 * (1 + 2.0**-15), 2.0**-12 * (1 - 2.0**-15), 1 + 2.0**-23)
@given(*[st.floats(width=32, allow_nan=False) for _ in range(3)])
def test_fused_multiply_add_rounds_once(a: float, b: float, c: float) -> None:
    from fractions import Fraction

    with np.errstate(all="ignore"):
        found = fused32(*(np.array([x], np.float32) for x in (a, b, c)))[0]
    if not all(map(math.isfinite, (a, b, c))):
        with np.errstate(all="ignore"):
            wanted = np.float64(a) * np.float64(b) + np.float64(c)
        assert found == wanted or np.isnan(found) == np.isnan(wanted)
        return
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    # `found` has to be the float32 nearest to the fraction: none is nearer, and a tie is even.
    if abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:
        assert np.isinf(found)
        return
    gap = abs(Fraction(float(found)) - exact)
    for side in (-np.inf, np.inf):
        other = np.nextafter(found, np.float32(side))
        if np.isfinite(other):
            distance = abs(Fraction(float(other)) - exact)
            even = not int(found.view(np.uint32)) & 1
            assert gap < distance or (gap == distance and even)


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32))
def test_bfloat_is_that_of_ml_dtypes(x: float) -> None:
    value = np.array([x], np.float32)
    found = from_bfloat(to_bfloat(value))
    np.testing.assert_array_equal(found, value.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_minimum_and_maximum_of_zeros_and_nan() -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    assert np.signbit(float_minimum(zeros, zeros[::-1])).all()
    assert not np.signbit(float_maximum(zeros, zeros[::-1])).any()
    quiet = np.array([0x7FC00000], np.uint32).view(np.float32)
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    one = np.ones(1, np.float32)
    assert float_minimum(quiet, one) == float_maximum(one, quiet) == 1
    assert np.isnan(float_minimum(signalling, one))
    assert np.isnan(float_maximum(one, signalling))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 63), st.integers(0, 63))
def test_bit_fields(value: int, offset: int, width: int) -> None:
    signed = value - ((value & 1 << 31) << 1)
    o, n = offset & 31, width & 31
    a, b, c = (np.array([x], np.uint32) for x in (value, offset, width))
    assert field(a, b, c)[0] == value >> o & (1 << n) - 1
    cut = signed >> o & (1 << n) - 1
    wanted = cut - (1 << n) if n and cut >> n - 1 else cut
    assert signed_field(a, b, c).view(np.int32)[0] == wanted


@pytest.mark.parametrize("small", ["fp4", "fp8", "bf8"])
@pytest.mark.parametrize("wide", ["f32", "bf16", "f16"])
def test_scaled_widening(small: str, wide: str, assemble: Assemble) -> None:
    rng = np.random.default_rng(7)
    words = rng.integers(0, 1 << 32, 64, dtype=np.uint32)
    power = rng.integers(-6, 7, 64)
    # The instruction uses only the exponent of the scale.
    scale = (np.ldexp(1.0, power) * 1.7).astype(np.float32).view(np.uint32)
    target = "v[8:9]" if wide == "f32" else "v8"
    body = f"v_cvt_scalef32_pk_{wide}_{small} {target}, v4, v5 op_sel:[1,0,0]"
    found = run(assemble, body, rows(words, scale))
    if small == "fp4":
        codes = np.stack([words >> 8 & 15, words >> 12 & 15], 1)
    else:
        codes = np.stack([words >> 16 & 255, words >> 24 & 255], 1)
    numbers = codes.astype(np.uint8).view(SMALL[small]).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.ldexp(numbers, power[:, None])
        if wide == "f32":
            result = found[:, :2].view(np.float32)
        else:
            dtype = np.float16 if wide == "f16" else ml_dtypes.bfloat16
            result = np.ascontiguousarray(found[:, 0]).view(dtype).reshape(64, 2).astype(np.float32)
            wanted = wanted.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(("small", "shift"), [("fp4", 16), ("fp8", 16), ("bf8", 16)])
def test_scaled_narrowing_keeps_the_rest(small: str, shift: int, assemble: Assemble) -> None:
    rng = np.random.default_rng(8)
    a, b = (rng.normal(0, 1, 64).astype(np.float32) for _ in range(2))
    power = rng.integers(-3, 4, 64)
    scale = np.ldexp(np.float32(1), power).view(np.uint32)
    select = "op_sel:[0,0,0,1]"
    body = f"v_mov_b32 v8, v7\nv_cvt_scalef32_pk_{small}_f32 v8, v4, v5, v6 {select}"
    old = rng.integers(0, 1 << 32, 64, dtype=np.uint32)
    found = run(assemble, body, rows(a.view(np.uint32), b.view(np.uint32), scale, old))[:, 0]
    pair = np.ldexp(np.stack([a, b], 1), -power[:, None]).astype(SMALL[small]).view(np.uint8)
    width = 4 if small == "fp4" else 8
    code = pair[:, 0].astype(np.uint32) | pair[:, 1].astype(np.uint32) << width
    mask = np.uint32((1 << 2 * width) - 1) << np.uint32(shift)
    np.testing.assert_array_equal(found, old & ~mask | code << shift)


DPP = {
    "quad_perm:[1,0,3,2]": LANE ^ 1,
    "row_ror:4": (LANE & ~15) | (LANE - 4) & 15,
    "row_mirror": LANE ^ 15,
    "row_half_mirror": LANE ^ 7,
    "row_newbcast:3": (LANE & ~15) | 3,
    "wave_rol:1": (LANE + 1) % 64,
    "wave_ror:1": (LANE - 1) % 64,
}


@pytest.mark.parametrize("control", DPP)
def test_dpp(control: str, assemble: Assemble) -> None:
    body = f"v_mov_b32 v8, 0\ns_nop 1\nv_mov_b32_dpp v8, v4 {control} row_mask:0xf bank_mask:0xf"
    found = run(assemble, body, rows(LANE + 100))[:, 0]
    np.testing.assert_array_equal(found, DPP[control] + 100)


def test_dpp_at_the_ends_of_rows(assemble: Assemble) -> None:
    body = """
    v_mov_b32 v8, 7
    v_mov_b32 v9, 7
    v_mov_b32 v10, 7
    s_nop 1
    v_mov_b32_dpp v8, v4 row_shr:1 row_mask:0xf bank_mask:0xf
    v_mov_b32_dpp v9, v4 row_shl:2 row_mask:0xf bank_mask:0xf bound_ctrl:0
    v_mov_b32_dpp v10, v4 row_bcast:15 row_mask:0xa bank_mask:0xf
    """
    found = run(assemble, body, rows(LANE + 100))
    place = LANE & 15
    np.testing.assert_array_equal(found[:, 0], np.where(place >= 1, LANE + 99, 7))
    np.testing.assert_array_equal(found[:, 1], np.where(place < 14, LANE + 102, 0))
    row = LANE >> 4
    np.testing.assert_array_equal(found[:, 2], np.where(row % 2 == 1, row * 16 + 99, 7))


def test_dpp_at_the_ends_of_the_wave(assemble: Assemble) -> None:
    body = """
    v_mov_b32 v8, 7
    v_mov_b32 v9, 7
    v_mov_b32 v10, 7
    s_nop 1
    v_mov_b32_dpp v8, v4 wave_shl:1 row_mask:0xf bank_mask:0xf
    v_mov_b32_dpp v9, v4 wave_shr:1 row_mask:0xf bank_mask:0xf
    v_mov_b32_dpp v10, v4 row_bcast:31 row_mask:0xf bank_mask:0xf
    """
    found = run(assemble, body, rows(LANE + 100))
    np.testing.assert_array_equal(found[:, 0], [*range(101, 164), 7])
    np.testing.assert_array_equal(found[:, 1], [7, *range(100, 163)])
    np.testing.assert_array_equal(found[:, 2], [7] * 32 + [131] * 32)


def test_moves_between_lanes(assemble: Assemble) -> None:
    body = """
    v_readlane_b32 s6, v4, 17
    v_readfirstlane_b32 s7, v4
    v_mov_b32 v8, s6
    v_writelane_b32 v8, s7, 3
    ds_bpermute_b32 v9, v5, v4
    ds_swizzle_b32 v10, v4 offset:swizzle(SWAP,16)
    v_mov_b32 v11, v4
    v_mov_b32 v12, v6
    s_nop 1
    v_permlane32_swap_b32 v11, v12
    s_waitcnt lgkmcnt(0)
    """
    rng = np.random.default_rng(9)
    source = rng.integers(0, 64, 64)
    found = run(assemble, body, rows(LANE + 100, source * 4, LANE + 500))
    np.testing.assert_array_equal(found[:, 0], np.where(LANE == 3, 100, 117))
    np.testing.assert_array_equal(found[:, 1], source + 100)
    np.testing.assert_array_equal(found[:, 2], (LANE ^ 16) + 100)
    np.testing.assert_array_equal(found[:, 3], np.where(LANE < 32, LANE + 100, LANE - 32 + 500))


def test_bytes_of_registers(assemble: Assemble) -> None:
    body = """
    v_perm_b32 v8, v4, v5, v6
    v_alignbit_b32 v9, v4, v5, 8
    v_sad_u8 v10, v4, v5, v7
    v_add_u32_sdwa v11, v4, v5 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1
    """
    rng = np.random.default_rng(10)
    a, b, s, c = (rng.integers(0, 1 << 32, 64, dtype=np.uint32) for _ in range(4))
    s &= np.uint32(0x0F0F0F0F)
    found = run(assemble, body, rows(a, b, s, c))
    for lane in range(64):
        data = int(b[lane]).to_bytes(4, "little") + int(a[lane]).to_bytes(4, "little")
        picked = []
        for code in int(s[lane]).to_bytes(4, "little"):
            sign = {8: 1, 9: 3, 10: 5, 11: 7}.get(code)
            fixed = 0 if code == 12 else 255
            byte = data[code] if code < 8 else 255 * (data[sign] >> 7) if sign else fixed
            picked.append(byte)
        assert int(found[lane, 0]).to_bytes(4, "little") == bytes(picked)
        assert found[lane, 1] == (int(a[lane]) << 32 | int(b[lane])) >> 8 & 0xFFFFFFFF
        far = sum(abs(x - y) for x, y in zip(data[:4], data[4:], strict=True))
        assert found[lane, 2] == (far + int(c[lane])) & 0xFFFFFFFF
        assert found[lane, 3] == data[5] + (int(b[lane]) >> 16)


def test_division_sequence(assemble: Assemble) -> None:
    """The sequence that LLVM emits for an IEEE division is right for every pair."""
    body = """
    v_div_scale_f32 v12, s[6:7], v5, v5, v4
    v_rcp_f32 v13, v12
    v_div_scale_f32 v14, vcc, v4, v5, v4
    v_fma_f32 v15, -v12, v13, 1.0
    v_fma_f32 v13, v15, v13, v13
    v_mul_f32 v16, v14, v13
    v_fma_f32 v15, -v12, v16, v14
    v_fma_f32 v16, v15, v13, v16
    v_fma_f32 v12, -v12, v16, v14
    v_div_fmas_f32 v12, v12, v13, v16
    v_div_fixup_f32 v8, v12, v5, v4
    """
    rng = np.random.default_rng(11)
    edge = np.array([0, -0.0, 1, 3, np.inf, -np.inf, np.nan, 1e38, 1e-38, 3e-45, 7], np.float32)
    a = np.concatenate([np.repeat(edge, 5), rng.normal(0, 1, 9)]).astype(np.float32)
    b = np.concatenate([np.tile(edge, 5), rng.normal(0, 1, 9)]).astype(np.float32)
    found = run(assemble, body, rows(a.view(np.uint32), b.view(np.uint32)))[:, 0]
    with np.errstate(all="ignore"):
        wanted = a / b
    result = np.ascontiguousarray(found).view(np.float32)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(wanted))
    np.testing.assert_array_equal(result[~np.isnan(wanted)], wanted[~np.isnan(wanted)])


def test_packed_halves_and_registers(assemble: Assemble) -> None:
    body = """
    v_pk_add_f16 v8, v4, v5 op_sel:[0,1] op_sel_hi:[1,0]
    v_pk_mul_lo_u16 v9, v4, v5
    v_pk_fma_f32 v[10:11], v[4:5], v[6:7], v[6:7] op_sel_hi:[1,0,1]
    """
    rng = np.random.default_rng(12)
    numbers = rng.normal(0, 1, (64, 4)).astype(np.float32)
    table = numbers.view(np.uint32)
    found = run(assemble, body, table)
    halves = np.ascontiguousarray(table[:, :2]).view(np.float16).reshape(64, 2, 2)
    with np.errstate(all="ignore"):
        wanted = halves[:, 0] + halves[:, 1, ::-1]
    result = np.ascontiguousarray(found[:, 0]).view(np.float16).reshape(64, 2)
    np.testing.assert_array_equal(result, wanted)
    words = np.ascontiguousarray(table[:, :2]).view(np.uint16).reshape(64, 2, 2)
    product = (words[:, 0] * words[:, 1]).astype(np.uint16)
    np.testing.assert_array_equal(
        np.ascontiguousarray(found[:, 1]).view(np.uint16), product.ravel()
    )
    wide = numbers.astype(np.float64)
    total = wide[:, :2] * wide[:, 2:3] + wide[:, 2:]
    np.testing.assert_allclose(found[:, 2:].view(np.float32), total, rtol=1e-6, atol=1e-7)


def test_an_instruction_that_is_not_modelled_is_named(assemble: Assemble) -> None:
    kernel = assemble("s_nop 0\nv_qsad_pk_u16_u8 v[2:3], v[4:5], v0, v[6:7]\ns_endpgm")
    program = TranslatedKernel(kernel)
    assert [line.split()[0] for line in program.unmodelled] == ["v_qsad_pk_u16_u8"]
    with pytest.raises(SimulationError, match=r"v_qsad_pk_u16_u8 .*not modelled"):
        launch(program, (1, 1, 1), [np.zeros(4, np.uint32)])
