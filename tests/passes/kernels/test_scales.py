"""Every code of every format under every scale byte, read back one element at a time.

Activations are rows of an identity matrix, so that each number of the result is one element times
its scale, in f32. There are two differences, because the instructions that multiply block sums by
scales treat subnormal numbers as zero: a result below 2^-126 is zero, and so is every result under
scale byte 0, which is 2^-127. nvfp4 scales have a sign and subnormals; none is a subnormal of f32.

Kernels on tiles multiply sides with their scales already applied. An element that is beyond f32
under its scale is infinite there, and times zero it is NaN. So its column, or row, is only required
not to be finite.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.passes.conftest import Formats, Side
from tests.passes.kernel_cases import Case
from tests.passes.kernels.conftest import Kernels, Loaded, Program

#: Rows of a call, which are one tile of rows in every kind of kernel.
ROWS = 8
COLUMNS = 256
SMALLEST = 2.0**-126
NAN = 255

#: For each format of weights, the activations with which it has each kind of dot product.
MEET = {
    "mxfp4": ("f32", "bf16", "int8", "mxfp4", "mxint8"),
    "mxfp6e2m3": ("f32", "bf16", "int8"),
    "mxfp6e3m2": ("f32", "bf16"),
    "mxfp8e4m3": ("f32", "bf16"),
    "mxfp8e5m2": ("f32", "bf16"),
    "mxint8": ("f32", "bf16", "int8"),
    "nvfp4": ("f32", "bf16", "int8", "nvfp4"),
}
CASES = [
    f"{weight} {activation} 1x{ROWS}x{COLUMNS}x{16 if weight == 'nvfp4' else 32}"
    for weight, activations in MEET.items()
    for activation in activations
]
each_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def program(kernels: Kernels) -> Program:
    return kernels(*CASES)


def on_tiles(program: Program, case: Case) -> bool:
    """Return whether the kernel of a case is on tiles, where scales are applied to both sides."""
    kernels = [row["kernel"] for row in program.compiled.report["matmuls"]]
    found = [name for name in kernels if name.startswith(kernel_name(case))]
    return bool(found) and all(name.endswith("_tiles") for name in found)


def kernel_name(case: Case) -> str:
    """Return how the name of a case's kernel begins."""
    return f"mxc_{case.weight}_{case.activation}_1x{case.rows}x{case.columns}x"


def check(found: NDArray[Any], wanted: NDArray[Any], beyond: NDArray[Any], message: str) -> None:
    """Assert that results are equal, except in rows or columns with a number beyond f32 (`beyond`):
    there, results that should be infinite must not be finite."""
    np.testing.assert_array_equal(found[~beyond], wanted[~beyond], err_msg=message)
    assert not np.isfinite(found[np.isinf(wanted) & beyond]).any()


def ones(case: Case, formats: Formats) -> Iterator[tuple[int, Side]]:
    """Yield the identity matrix [block, block] as activations of a case, ROWS rows at a time, each
    with the number of its first row."""
    for first in range(0, case.block, ROWS):
        values = np.eye(case.block)[first : first + ROWS].reshape(ROWS, 1, case.block)
        yield first, formats.side(case.activation, values)


def read_back(loaded: Loaded, case: Case, formats: Formats) -> NDArray[Any]:
    """Return each element of the weights under its scale, [columns, block]."""
    found = np.empty((COLUMNS, case.block), np.float32)
    for first, x in ones(case, formats):
        found[:, first : first + ROWS] = loaded(case.name, x)[0].T
    return found


@each_case
def test_every_code_under_every_scale(name: str, program: Program, formats: Formats) -> None:
    case = program.cases[name]
    codes = np.arange(formats.codes(case.weight), dtype=np.uint8)
    # The next test has blocks with elements that are not finite.
    codes[~np.isfinite(formats.elements(case.weight))] = 0
    # `width` columns hold all codes, and have the same scale.
    width, block = max(1, codes.size // case.block), case.block
    every = np.resize(codes, (COLUMNS // width, width, 1, block)).reshape(1, COLUMNS, 1, block)
    for first in range(0, 256, COLUMNS // width):
        scales = np.repeat(np.arange(first, first + COLUMNS // width), width).astype(np.uint8)
        weight = formats.mx(case.weight, every, scales.reshape(1, COLUMNS, 1))
        with np.errstate(all="ignore"):
            wanted = weight.values[0].astype(np.float32)
        wanted[np.abs(wanted) < SMALLEST] = 0
        wanted[scales == 0] = np.where(np.isfinite(wanted[scales == 0]), 0, np.nan)
        found = read_back(program.load({case.name: weight}), case, formats)
        beyond = np.isinf(wanted).any(axis=1, keepdims=True) & on_tiles(program, case)
        check(found, wanted, np.broadcast_to(beyond, wanted.shape), f"scales from {first}")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("mxfp8")])
def test_codes_that_are_not_finite(name: str, program: Program, formats: Formats) -> None:
    """Each in its column: times one it is itself, times zero NaN; others are not touched."""
    case = program.cases[name]
    elements = formats.elements(case.weight)
    special = np.flatnonzero(~np.isfinite(elements))
    one = int(np.flatnonzero(elements == 1)[0])
    codes = np.full((1, COLUMNS, 1, 32), one, np.uint8)
    places = np.arange(len(special))
    codes[0, 3 * places, 0, 5 * places % 32] = special
    weight = formats.mx(case.weight, codes, np.full((1, COLUMNS, 1), 130, np.uint8))
    loaded = program.load({case.name: weight})
    wanted = np.full((ROWS, COLUMNS), 32 * 8.0)
    wanted[:, 3 * places] = elements[special]
    x = np.ones((ROWS, 1, 32))
    np.testing.assert_array_equal(loaded(case.name, formats.side(case.activation, x))[0], wanted)
    wanted = np.zeros((ROWS, COLUMNS))
    wanted[:, 3 * places] = np.nan
    np.testing.assert_array_equal(
        loaded(case.name, formats.side(case.activation, 0 * x))[0], wanted
    )


@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.split()[1].endswith(("f32", "bf16"))]
)
def test_scales_of_activations(
    name: str, program: Program, kernels: Kernels, formats: Formats
) -> None:
    """The same of the other side: one row a scale."""
    case = program.cases[name]
    rng, block = np.random.default_rng(5), case.block
    codes = rng.integers(0, formats.codes(case.activation), (256, 1, block), dtype=np.uint8)
    scales = np.arange(256, dtype=np.uint8).reshape(256, 1)
    if case.activation == "int8":
        scales = np.ldexp(np.float32(1.5), np.minimum(scales, 254).astype(np.int32) - 127)
        scales[255] = np.nan
    # The identity as weights, 1.0 under a scale of one, for the first columns.
    one = np.resize(np.eye(block), (1, COLUMNS, 1, block))
    weight = formats.side(case.weight, one)
    loaded = program.load({case.name: weight})
    tiles = on_tiles(program, case)
    unit = 1 if tiles else kernels.units(case)
    for first in range(0, 256, ROWS):
        at = slice(first, first + ROWS)
        x = formats.mx(case.activation, codes[at], scales[at])
        with np.errstate(all="ignore"):
            wanted = x.values.astype(np.float32)
            # A row is multiplied by its scale, or by its scale times the units of both sides.
            factor = np.abs(x.factors)
        lost = np.minimum(factor, factor * unit) < SMALLEST
        wanted[lost[:, 0]] = 0
        wanted[np.abs(wanted) < SMALLEST] = 0
        found = loaded(case.name, x)[0][:, :block]
        beyond = np.isinf(wanted).any(axis=1, keepdims=True) & tiles
        check(found, wanted, np.broadcast_to(beyond, wanted.shape), f"rows from {first}")


@pytest.mark.parametrize("activation", ["mxfp4", "mxint8", "int8"])
def test_blocks_of_zeros_under_large_scales_of_both_sides(
    activation: str, program: Program, formats: Formats
) -> None:
    case = program.cases[f"mxfp4 {activation} 1x{ROWS}x{COLUMNS}x32"]
    large = np.float32(2.0**100) if activation == "int8" else 227
    w = formats.side("mxfp4", np.zeros((1, COLUMNS, 1, 32))).with_scale((...,), 227)
    x = formats.side(activation, np.zeros((ROWS, 1, 32))).with_scale((...,), large)
    np.testing.assert_array_equal(program.load({case.name: w})(case.name, x)[0], 0)
