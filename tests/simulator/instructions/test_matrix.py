"""Scaled matrix instructions against exact arithmetic, with fragments filled lane by lane.

The layouts of fragments are those of AMD's article "Matrix Core Programming on AMD CDNA3 and CDNA4
architecture", of composable_kernel's test on hardware (test/mx_mfma_op/mx_mfma_op.hpp), and of the
CDNA4 ISA document, section 7.1.5.1.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.mfma import mfma_step
from mxc.simulator.compute.modes import FP16_OVFL
from mxc.simulator.errors import SimulationError
from tests.simulator.instructions.matrices import (
    constant,
    eight_bit_fragment,
    first_fragment,
    get,
    numbers_of,
    one_wave,
    put,
    random_codes,
    result_lanes,
    result_matrix,
    small_codes,
)

FORMS = ("fp8", "bf8", "fp6", "bf6", "fp4")
SHAPES = [(16, 128), (32, 64)]
PAIRS = list(itertools.product(FORMS, FORMS))
#: Opcodes that this file tests with numbers.
COVERS = frozenset(
    (
        *(f"v_mfma_f32_{rows}x{rows}x{depth}_f8f6f4" for rows, depth in SHAPES),
        *(f"v_mfma_scale_f32_{rows}x{rows}x{depth}_f8f6f4" for rows, depth in SHAPES),
    )
)


def fragment(bits: NDArray[Any], form: str) -> NDArray[Any]:
    """Return the registers of an operand with the element bits [rows, K]."""
    return eight_bit_fragment(bits) if form in ("fp8", "bf8") else first_fragment(bits[None], form)


def scale_lanes(scale: NDArray[Any], byte: int, noise: NDArray[Any]) -> NDArray[Any]:
    """Return a register with the scales [rows, K // 32] in one byte and noise in the others."""
    rows = len(scale)
    own = np.array([scale[lane % rows, lane // rows] for lane in range(64)], np.uint32)
    return (noise & ~np.uint32(0xFF << 8 * byte) | own << np.uint32(8 * byte))[:, None]


def run(
    bits: Sequence[NDArray[Any]],
    forms: Sequence[str],
    scales: Sequence[NDArray[Any]] | None,
    select: tuple[int, int] = (0, 0),
    start: NDArray[Any] | None = None,
    **fields: int,
) -> NDArray[Any]:
    """Execute one instruction: A @ B^T of element bits [rows, K] with scales [rows, K // 32].

    Return the result, float32 [rows, rows].
    """
    rows, depth = bits[0].shape
    w = one_wave()
    rng = np.random.default_rng(9)
    count = rows * rows // 64
    operands = [
        put(w, "v", 0, fragment(bits[0], forms[0])),
        put(w, "a", 0, fragment(bits[1], forms[1])),
        Operand("int", 0, count)
        if start is None
        else put(w, "v", 96, result_lanes(start[None], 4)),
    ]
    scaled = scales is not None
    for n, scale in enumerate(scales or ()):
        noise = rng.integers(0, 1 << 32, 64, dtype=np.uint32)
        operands.append(put(w, "v", 90 + n, scale_lanes(scale, select[n], noise)))
    target = Operand("v", 32, count)
    fields |= {"cbsz": FORMS.index(forms[0]), "blgp": FORMS.index(forms[1])}
    fields |= {"op_sel": select[0] & 1 | (select[1] & 1) << 1}
    fields |= {"op_sel_hi": select[0] >> 1 | select[1] >> 1 << 1}
    name = f"v_mfma_{'scale_' if scaled else ''}f32_{rows}x{rows}x{depth}_f8f6f4"
    i = Instruction(name, "VOP3P", 0, 16, (target,), tuple(operands), fields)
    step = mfma_step(i, constant)
    assert step is not None
    with np.errstate(all="ignore"):
        step(w)
    return result_matrix(get(w, target), rows, 1, 4, np.float32)[0]


def exact(
    bits: Sequence[NDArray[Any]], forms: Sequence[str], scales: Sequence[NDArray[Any]]
) -> NDArray[np.float64]:
    full = [
        numbers_of(b, form) * np.repeat(np.exp2(scale - 127.0), 32, axis=1)
        for b, form, scale in zip(bits, forms, scales, strict=True)
    ]
    return np.asarray(full[0] @ full[1].T)


@pytest.mark.parametrize(("rows", "depth"), SHAPES)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_scaled(rows: int, depth: int, a: str, b: str) -> None:
    """Scales differ for every row and block; random numbers, within float32 rounding."""
    rng = np.random.default_rng(FORMS.index(a) * 5 + FORMS.index(b))
    bits = [random_codes(rng, form, (rows, depth)) for form in (a, b)]
    scales = [rng.integers(120, 134, (rows, depth // 32)) for _ in range(2)]
    found = run(bits, (a, b), scales, (1, 2))
    wanted = exact(bits, (a, b), scales)
    np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max(), rtol=0)


@pytest.mark.parametrize(("rows", "depth"), SHAPES)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_exact_sums(rows: int, depth: int, a: str, b: str) -> None:
    """Small integers and scales of few powers: every sum is exact, and so is the result."""
    rng = np.random.default_rng(FORMS.index(a) * 5 + FORMS.index(b) + 100)
    bits = [small_codes(rng, form, (rows, depth)) for form in (a, b)]
    scales = [rng.integers(125, 130, (rows, depth // 32)) for _ in range(2)]
    start = rng.integers(-64, 64, (rows, rows)).astype(np.float32)
    found = run(bits, (a, b), scales, (3, 0), start)
    np.testing.assert_array_equal(found, exact(bits, (a, b), scales) + start)
    plain = run(bits, (a, b), None, start=start)
    ones = [np.full_like(s, 127) for s in scales]
    np.testing.assert_array_equal(plain, exact(bits, (a, b), ones) + start)
    # If ABID[0] is clear, scales count as 1.
    np.testing.assert_array_equal(run(bits, (a, b), scales, start=start, unscaled=1), plain)


@pytest.mark.parametrize("select", list(itertools.product(range(4), range(4))))
def test_every_byte_of_both_scales(select: tuple[int, int]) -> None:
    rng = np.random.default_rng(11)
    bits = [small_codes(rng, form, (16, 128)) for form in ("fp6", "fp4")]
    scales = [rng.integers(125, 130, (16, 4)) for _ in range(2)]
    found = run(bits, ("fp6", "fp4"), scales, select)
    np.testing.assert_array_equal(found, exact(bits, ("fp6", "fp4"), scales))


@pytest.mark.parametrize(("rows", "depth"), SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_scale_of_255_is_nan(rows: int, depth: int, form: str) -> None:
    """It spoils the row (column) whose scale it is, whatever the elements, and no other."""
    zeros = np.zeros((rows, depth), np.uint8)
    scales = [np.full((rows, depth // 32), 127) for _ in range(2)]
    scales[0][3, 1], scales[1][5, 0] = 255, 255
    found = run((zeros, zeros), (form, form), scales)
    wanted = np.zeros((rows, rows), bool)
    wanted[3], wanted[:, 5] = True, True
    np.testing.assert_array_equal(np.isnan(found), wanted)


@pytest.mark.parametrize(("rows", "depth"), SHAPES)
@pytest.mark.parametrize(
    ("scale", "value"),
    [
        ((0, 254), 2.0**0),
        ((254, 0), 2.0**0),
        ((0, 0), 0.0),
        ((254, 254), np.inf),
        ((60, 60), 2.0**-134),
        ((55, 50), 2.0**-149),
        ((191, 190), 2.0**127),
    ],
)
def test_extreme_scales(rows: int, depth: int, scale: tuple[int, int], value: float) -> None:
    """The smallest and the largest scale, infinite and denormal results; one product of 1 * 1."""
    bits = [np.zeros((rows, depth), np.uint8) for _ in range(2)]
    for b in bits:
        b[:, 40] = 0x2  # 1.0 in fp4
    scales = [np.full((rows, depth // 32), s) for s in scale]
    found = run(bits, ("fp4", "fp4"), scales)
    np.testing.assert_array_equal(found, np.full((rows, rows), value, np.float32))


@pytest.mark.parametrize(("rows", "depth"), SHAPES)
def test_scales_are_applied_to_exact_products(rows: int, depth: int) -> None:
    """448 * 2**127 is no float32, its product with 2**-127 is."""
    bits = [np.zeros((rows, depth), np.uint8) for _ in range(2)]
    bits[0][:, 3], bits[1][:, 3] = 0x7E, 0x3F  # 448 and 1.875
    scales = [np.full((rows, depth // 32), s) for s in (254, 0)]
    found = run(bits, ("fp8", "fp8"), scales)
    np.testing.assert_array_equal(found, np.full((rows, rows), 448 * 1.875, np.float32))


def test_overflow_is_limited_where_mode_says_so() -> None:
    bits = [np.full((16, 128), 0x7E, np.uint8)] * 2
    scales = [np.full((16, 4), 240)] * 2
    assert (run(bits, ("fp8", "fp8"), scales) == np.inf).all()
    w = one_wave()
    w.mode |= FP16_OVFL
    operands = (
        put(w, "v", 0, fragment(bits[0], "fp8")),
        put(w, "v", 8, fragment(bits[1], "fp8")),
        Operand("int", 0, 4),
        *(put(w, "v", 90 + n, np.full((64, 1), 240, np.uint32)) for n in range(2)),
    )
    target = Operand("v", 32, 4)
    name = "v_mfma_scale_f32_16x16x128_f8f6f4"
    step = mfma_step(Instruction(name, "VOP3P", 0, 16, (target,), operands), constant)
    assert step is not None
    step(w)
    assert (get(w, target).view(np.float32) == np.finfo(np.float32).max).all()


def test_a_constant_scale_gives_its_exponent() -> None:
    rng = np.random.default_rng(12)
    bits = [small_codes(rng, "fp4", (16, 128)) for _ in range(2)]
    w = one_wave()
    target = Operand("v", 32, 4)
    operands = (
        put(w, "v", 0, fragment(bits[0], "fp4")),
        put(w, "v", 8, fragment(bits[1], "fp4")),
        Operand("int", 0, 4),
        Operand("float", 244),
        Operand("float", 240),
    )
    fields = {"cbsz": 4, "blgp": 4}
    name = "v_mfma_scale_f32_16x16x128_f8f6f4"
    step = mfma_step(Instruction(name, "VOP3P", 0, 16, (target,), operands, fields), constant)
    assert step is not None
    step(w)
    found = result_matrix(get(w, target), 16, 1, 4, np.float32)[0]
    np.testing.assert_array_equal(found, numbers_of(bits[0], "fp4") @ numbers_of(bits[1], "fp4").T)
    whole = Operand("int", 3)
    with pytest.raises(SimulationError, match="integer constant"):
        mfma_step(
            Instruction(name, "VOP3P", 0, 16, (target,), (*operands[:3], whole, whole), fields),
            constant,
        )


def test_xf32_is_refused_by_name() -> None:
    target = Operand("v", 0, 4)
    i = Instruction("v_mfma_f32_16x16x8_xf32", "VOP3P", 0, 8, (target,), (target,) * 3)
    with pytest.raises(SimulationError, match="gfx950 has no xf32"):
        mfma_step(i, constant)
