"""Golden vectors of MX and nvfp4: what every recipe and rounding makes of blocks that are hard.

    python tests/vectors/mx_vectors.py        writes tests/vectors/*.npz again

README.md describes the files. Expected values come from the definitions, written out here in
float64 (exact: a float32 over a power of two is one) with numpy alone; nothing of mxc is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
RECIPES = ("floor", "even", "rceil", "ceil")
TIES = ("even", "zero", "away")
KINDS = (
    "threshold", "tie", "saturation", "subnormal", "zero", "nan", "infinity", "tail", "random",
)  # fmt: skip

Array = NDArray[Any]


@dataclass(frozen=True)
class Element:
    """OCP MX 1.0, section 5.3. `specials`: codes at the top that are Inf or NaN."""

    exponent: int
    mantissa: int
    bias: int
    specials: int = 0

    @property
    def bits(self) -> int:
        return 1 + max(self.exponent, 1) + self.mantissa

    @property
    def grid(self) -> Array:
        """float64: the finite magnitudes by code."""
        count = (1 << self.bits - 1) - self.specials
        codes = np.arange(count)
        if not self.exponent:
            return codes * 2.0**-self.mantissa
        field, fraction = codes >> self.mantissa, codes & ((1 << self.mantissa) - 1)
        lead = np.where(field > 0, 1 << self.mantissa, 0)
        return np.ldexp((lead + fraction) * 1.0, np.maximum(field, 1) - self.bias - self.mantissa)

    @property
    def emax(self) -> int:
        return int(np.frexp(self.grid[-1])[1]) - 1

    def values(self) -> Array:
        """float64 of all codes."""
        half = 1 << self.bits - 1
        if not self.exponent:
            return np.concatenate([np.arange(half), np.arange(-half, 0)]) * 2.0**-self.mantissa
        positive = np.full(half, np.nan)
        positive[: len(self.grid)] = self.grid
        if self.specials > 1:  # IEEE: the first of them is Inf
            positive[len(self.grid)] = np.inf
        return np.concatenate([positive, -positive])


ELEMENTS = {
    "mxfp4": Element(2, 1, 1),
    "mxfp6e2m3": Element(2, 3, 1),
    "mxfp6e3m2": Element(3, 2, 3),
    "mxfp8e4m3": Element(4, 3, 7, specials=1),
    "mxfp8e5m2": Element(5, 2, 15, specials=4),
    "mxint8": Element(0, 6, 1),
}


def scale_byte(amax: float, element: Element, recipe: str) -> int:
    """Section 6.3, and the other recipes as their libraries define them."""
    if np.isnan(amax):
        return 255
    if amax == 0:
        return 0
    if np.isinf(amax):
        return 254 if recipe == "rceil" else min(255 - element.emax, 254)
    mantissa, exponent = np.frexp(np.float64(amax))  # mantissa in [0.5, 1)
    floor = int(exponent) - 1
    if recipe == "floor":
        power = floor - element.emax
    elif recipe == "even":
        power = floor - element.emax + (mantissa * 2 >= 2 - 2.0 ** -(element.mantissa + 1))
    elif recipe == "ceil":
        power = floor - element.emax + (mantissa > 0.5)
    else:
        power = floor - element.emax
        power += np.ldexp(element.grid[-1], power) < amax
    return int(np.clip(power + 127, 0, 254))


def element_codes(steps: Array, element: Element, ties: str) -> Array:
    """Codes of float64 values in units of the scale: to nearest, saturating, NaN as 0."""
    grid = element.grid
    middles = (grid[1:] + grid[:-1]) / 2
    size = np.abs(np.nan_to_num(steps, nan=0.0, posinf=np.inf, neginf=-np.inf))
    below, above = (np.searchsorted(middles, size, side) for side in ("left", "right"))
    code = {"even": np.where(below % 2, above, below), "zero": below, "away": above}[ties]
    negative = np.signbit(steps) & ~np.isnan(steps)
    if not element.exponent:
        return np.where(negative, -code, code).astype(np.int8).view(np.uint8)
    return (code | np.where(negative, 1 << element.bits - 1, 0)).astype(np.uint8)


def quantize(x: Array, element: Element, recipe: str) -> tuple[Array, dict[str, Array]]:
    """float32 [n, 32] -> scale bytes [n] and, by ties, codes [n, 32]; 0 in a block with NaN."""
    amax = np.where(np.isnan(x).any(1), np.nan, np.abs(x).max(1))
    scales = np.array([scale_byte(float(a), element, recipe) for a in amax], np.uint8)
    with np.errstate(invalid="ignore"):
        steps = np.ldexp(x.astype(np.float64), 127 - scales.astype(int)[:, None])
    codes = {ties: element_codes(steps, element, ties) for ties in TIES}
    for each in codes.values():
        each[scales == 255] = 0
    return scales, codes


def blocks(element: Element) -> tuple[Array, Array, Array]:
    """float32 [n, 32], the kind of each, and how many elements count (the rest are padding)."""
    rng = np.random.default_rng(20)
    found: list[tuple[int, Array, int]] = []

    def add(kind: str, rows: Array, valid: int = 32) -> None:
        for row in np.atleast_2d(rows):
            found.append((KINDS.index(kind), row.astype(np.float32), valid))

    def led(peak: float, rest: Array) -> Array:
        """A block whose largest magnitude is `peak`, at a place of its own."""
        row = np.clip(rest, -abs(peak), abs(peak)).astype(np.float32)
        row[rng.integers(32)] = peak
        return row

    # The mantissas where a recipe changes, and their neighbours, at all sizes of scale.
    edges = {0, 1, 2, (1 << 23) - 1}
    for bits in range(1, 8):
        at = (1 << 23) - (1 << 23 - bits)
        edges |= {at - 1, at, at + 1}
    for field in (1, 2, 3 + element.emax, 60, 127, 200, 253, 254):
        for mantissa in sorted(edges):
            bits32 = np.uint32(field << 23 | mantissa)
            peak = float(bits32.view(np.float32)) * rng.choice([-1.0, 1.0])
            add("threshold", led(peak, peak * rng.uniform(-1, 1, 32)))
    # Every number halfway between two elements, and its neighbours, at three sizes.
    grid = element.grid
    middles = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    around = middles.view(np.uint32)[:, None] + np.array([-1, 0, 1])
    ties = np.concatenate([around.astype(np.uint32).view(np.float32).reshape(-1), grid])
    ties = np.concatenate([ties, -ties])
    rows = np.zeros((-(-len(ties) // 31), 32), np.float64)
    rows[:, 1:] = np.resize(ties, (len(rows), 31))
    rows[:, 0] = grid[-1]
    for power in (0, -40, 60):
        add("tie", np.ldexp(rows, power))
    top = 2.0 ** (element.emax + 1)
    edge = np.linspace(float(grid[-1]), top, 32, endpoint=False)
    for power in (0, -100, 100 - element.emax):
        add("saturation", np.ldexp(edge * rng.choice([-1.0, 1.0], 32), power))
    for peak in (2.0**-149, 2.0**-140, 2.0**-127, 2.0**-126, 2.0**-125, 2.0**-120, 1.0):
        small = peak * np.exp2(-rng.uniform(0, 30, 32)) * rng.choice([-1.0, 1.0], 32)
        add("subnormal", led(peak, small))
        add("subnormal", led(1.75 * peak, small))
    zeros = np.zeros((3, 32))
    zeros[1] = -0.0
    zeros[2, ::2] = -0.0
    add("zero", zeros)
    for place, value in ((0, np.nan), (31, -np.nan), (5, np.inf), (6, -np.inf)):
        row = rng.standard_normal(32)
        row[place] = value
        add("nan" if np.isnan(value) else "infinity", row)
    both = rng.standard_normal(32)
    both[3], both[4] = np.inf, np.nan
    add("nan", both)
    add("nan", np.full(32, np.nan))
    add("infinity", np.full(32, -np.inf))
    for valid in (1, 2, 7, 16, 31):
        row = rng.standard_normal(32)
        row[valid:] = 0
        add("tail", row, valid)
    add("random", rng.standard_normal((24, 32)))
    heavy = rng.standard_t(3, (24, 32)) * np.exp2(rng.integers(-60, 60, (24, 1)))
    add("random", heavy)
    # And numbers of bfloat16, which is what most weights are.
    short = heavy.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    add("random", short.view(np.float32))
    kinds, x, sizes = zip(*found, strict=True)
    return np.stack(x), np.array(kinds, np.uint8), np.array(sizes, np.uint8)


def mx_file(element: Element) -> dict[str, Array]:
    """The arrays of the file of an MX format."""
    x, kind, valid = blocks(element)
    arrays: dict[str, Array] = {
        "x": x.view(np.uint32),
        "kind": kind,
        "kinds": np.array(KINDS),
        "valid": valid,
    }
    for recipe in RECIPES:
        arrays[f"scales_{recipe}"], codes = quantize(x, element, recipe)
        for ties, found in codes.items():
            arrays[f"codes_{recipe}_{ties}"] = found
    powers = np.append(np.ldexp(1.0, np.arange(-127, 128)), np.nan)
    arrays["values"] = product(powers, element)
    return arrays


def product(scales: Array, element: Element) -> Array:
    """uint32 [scales, codes]: the bits of float32(scale * element), NaN as 0x7FC00000."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = (scales[:, None] * element.values()).astype(np.float32)
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits


def nvfp4_tensors() -> Array:
    """float32 [tensors, blocks, 16], finite."""
    rng = np.random.default_rng(21)
    normal = rng.standard_normal((40, 16))
    wide = normal * 10.0 ** rng.integers(-6, 3, (40, 1))
    wide[5], wide[6] = 0, -0.0
    ties = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], (40, 16)) * 448
    ties[:, 0] = 6 * 448
    ties[1::2] *= rng.choice([2.0**-3, 2.0**-7, 1.125, 0.4375], (20, 1))
    ties /= 1.125
    return np.stack([normal, wide, ties, wide * 2.0**90, np.zeros((40, 16))]).astype(np.float32)


def nvfp4_file() -> dict[str, Array]:
    """The arrays of nvfp4.npz: two conventions of the tensor scale, float32 in every step."""
    x, element, scale = nvfp4_tensors(), ELEMENTS["mxfp4"], ELEMENTS["mxfp8e4m3"]
    one, six, top = np.float32(1), np.float32(6), np.float32(448)
    positive = scale.grid.astype(np.float32)
    arrays: dict[str, Array] = {"x": x.view(np.uint32)}
    peaks = np.abs(x).max((1, 2))
    amax = np.abs(x).max(2)
    whole = np.maximum(peaks / (top * six), np.float32(2.0**-120))
    wanted = np.clip(amax / six / whole[:, None], np.float32(2.0**-6), top)
    scales = element_codes(wanted.astype(np.float64), scale, "even")
    unit = one / whole[:, None] / positive[scales]
    arrays |= {"tensor_scale": whole, "scales": scales}
    for ties in TIES:
        steps = (x * unit[..., None]).astype(np.float64)
        arrays[f"codes_{ties}"] = element_codes(steps, element, ties)
    with np.errstate(over="ignore"):
        inverse = one / np.maximum(peaks, np.finfo(np.float32).tiny) * (top * six)
    inverse = np.where(np.isfinite(inverse), inverse, one).astype(np.float32)
    scales = element_codes(
        np.minimum(inverse[:, None] * (amax / six), top).astype(np.float64), scale, "even"
    )
    scales[scales == 0] = int(np.flatnonzero(positive == 0.125)[0])
    arrays |= {"reciprocal_tensor_scale": inverse, "reciprocal_scales": scales}
    unit = positive[scales] / inverse[:, None]
    for ties in TIES:
        steps = (x / unit[..., None]).astype(np.float64)
        arrays[f"reciprocal_codes_{ties}"] = element_codes(steps, element, ties)
    arrays["values"] = product(scale.values(), element)
    return arrays


def make(name: str) -> dict[str, Array]:
    """All arrays of one format."""
    return nvfp4_file() if name == "nvfp4" else mx_file(ELEMENTS[name])


def main() -> None:
    for name in (*ELEMENTS, "nvfp4"):
        path = HERE / f"{name}.npz"
        arrays: dict[str, Any] = make(name)
        np.savez_compressed(path, **arrays)
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
