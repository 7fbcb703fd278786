"""The stock compiler's scaled matrix products on the simulator, against numpy.

Elements and scales are decoded by `mxc.formats.packing`, which has tests of its own.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.formats.packing import decode_elements, decode_scales
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.simulate import simulate

Array = NDArray[Any]
F4, E4, E5 = "f4E2M1FN", "f8E4M3FN", "f8E5M2"
FORMAT = {F4: "mxfp4", E4: "mxfp8e4m3", E5: "mxfp8e5m2"}
BITS = {F4: 4, E4: 8, E5: 8}


def operand(
    rng: np.random.Generator, rows: int, k: int, element: str, scales: tuple[int, int]
) -> tuple[Array, Array, Array]:
    """Draw an operand: packed elements, bytes of scales, and the matrix in float64."""
    if element == F4:
        packed = rng.integers(0, 256, (rows, k // 2), dtype=np.uint8)
    else:
        dtype = ml_dtypes.float8_e4m3fn if element == E4 else ml_dtypes.float8_e5m2
        packed = rng.normal(0, 2, (rows, k)).astype(dtype).view(np.uint8)
    scale = rng.integers(*scales, (rows, k // 32), dtype=np.uint8, endpoint=True)
    values = decode_elements(packed, FORMAT[element]).astype(np.float64)
    factors = decode_scales(scale, FORMAT[element]).astype(np.float64)
    return packed, scale, values * np.repeat(factors, 32, axis=1)


def run(
    kernel: Any,
    shape: tuple[int, int, int],
    workgroups: int,
    lhs: str = F4,
    rhs: str = F4,
    scales: tuple[int, int] = (117, 137),
) -> tuple[Array, Array]:
    """Run a kernel; return its result, and that of numpy in float64."""
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, p, left = operand(rng, m, k, lhs, scales)
    b, q, right = operand(rng, n, k, rhs, scales)
    out = np.full((m, n), np.nan, np.float32)
    program = TranslatedKernel(kernel)
    assert not program.unmodelled
    launch(program, (workgroups, 1, 1), [a, b, p, q, out])
    return out, left @ right.T


def error(found: Array, wanted: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


#: Shapes, and the numbers of workgroups that the compiler chooses for them (tiles of 16x16,
#: 128x256, 128x32).
SHAPES = [((16, 16, 128), 1), ((128, 256, 512), 1), ((100, 96, 2880), 3)]


@pytest.mark.parametrize(("shape", "workgroups"), SHAPES)
def test_f4_within_f32_accumulation(
    shape: tuple[int, int, int], workgroups: int, scaled: Callable[..., Any]
) -> None:
    found, wanted = run(scaled(*shape).kernel, shape, workgroups)
    assert error(found, wanted) < 1e-6


@pytest.mark.parametrize(("shape", "workgroups"), SHAPES)
def test_f4_bit_for_bit_where_sums_are_exact(
    shape: tuple[int, int, int], workgroups: int, scaled: Callable[..., Any]
) -> None:
    """Products are multiples of 2**-6 below 2**6, so that sums of 2880 fit 24 bits."""
    found, wanted = run(scaled(*shape).kernel, shape, workgroups, scales=(126, 127))
    np.testing.assert_array_equal(found, wanted)


def test_scales_at_the_ends_of_their_range(scaled: Callable[..., Any]) -> None:
    """2**127 times 6 is no float32, but a product of it with 2**-127 is."""
    kernel = scaled(16, 16, 128).kernel
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 256, (16, 64), dtype=np.uint8) for _ in range(2))
    p, q = np.full((16, 4), 254, np.uint8), np.full((16, 4), 0, np.uint8)
    out = np.zeros((16, 16), np.float32)
    launch(TranslatedKernel(kernel), (1, 1, 1), [a, b, p, q, out])
    wanted = decode_elements(a, "mxfp4") @ decode_elements(b, "mxfp4").T
    np.testing.assert_array_equal(out, wanted)


def test_a_nan_scale_spoils_its_row_only(scaled: Callable[..., Any]) -> None:
    kernel = scaled(16, 16, 128).kernel
    a, b = np.full((16, 64), 0x22, np.uint8), np.full((16, 64), 0x22, np.uint8)
    p, q = np.full((16, 4), 127, np.uint8), np.full((16, 4), 127, np.uint8)
    p[5, 2] = 255
    out = np.zeros((16, 16), np.float32)
    launch(TranslatedKernel(kernel), (1, 1, 1), [a, b, p, q, out])
    assert np.isnan(out[5]).all()
    np.testing.assert_array_equal(np.delete(out, 5, axis=0), 128.0)


def test_simulate_leaves_its_arguments_alone(scaled: Callable[..., Any]) -> None:
    (code,) = scaled(16, 16, 128).code
    a, b = np.full((16, 64), 0x22, np.uint8), np.full((16, 64), 0x22, np.uint8)
    p, q = np.full((16, 4), 127, np.uint8), np.full((16, 4), 127, np.uint8)
    out = np.zeros((16, 16), np.float32)
    results = simulate(code, (1, 1, 1), [a, b, p, q, out])
    np.testing.assert_array_equal(results[4], 128.0)
    np.testing.assert_array_equal(out, 0.0)


def test_mixed_pairs_decode_in_registers(scaled: Callable[..., Any]) -> None:
    """Stock makes no matrix instruction of e4m3 x f4, but converts: a wave for each result."""
    shape = (16, 16, 128)
    found, wanted = run(scaled(*shape, E4, F4).kernel, shape, 256, E4, F4)
    assert error(found, wanted) < 1e-6


@pytest.mark.parametrize("element", [E4, E5])
def test_stock_f8_is_right_for_equal_scales_only(element: str, scaled: Callable[..., Any]) -> None:
    """The stock compiler reads 32 consecutive K into a lane; the hardware wants two runs of 16.

    Any order of K gives the same product as long as both operands have it, so that nothing is
    seen with equal scales; with scales of their own blocks are multiplied by others' scales. The
    two runs are in AMD's article on matrix cores (the 32x32x64 fp8 kernel) and in
    composable_kernel's test on hardware. When this fails the compiler has been repaired.
    """
    shape = (128, 256, 512)
    kernel = scaled(*shape, element, element).kernel
    found, wanted = run(kernel, shape, 1, element, element, scales=(127, 127))
    assert error(found, wanted) < 1e-6
    found, wanted = run(kernel, shape, 1, element, element)
    assert error(found, wanted) > 0.5
