"""A schedule for one row of the contraction on vector registers, with the bits of AMX tiles.

A tile product takes a step of 32 elements along K as 16 pairs. It adds up the products of elements
0 of the pairs in one chain, and those of elements 1 in another. Both chains start at zero, and
their sum is added to the total (kernels/tiles.py). This schedule adds in the same order on vector
registers, which hold one column per lane. So a row gets the same bits as in a tile, but its weights
are decoded to registers only, not to scratch. Its activations are converted to f32 once, in
scratch.

Scales that are powers of two multiply the sum of a step here, while tiles multiply the elements.
The bits are the same if no number leaves the range of normal f32 (`ScaleRange`). Other scales
multiply the elements, and bf16 holds the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mxc.kernels.amx import TILE
from mxc.kernels.contraction import ContractionShape
from mxc.kernels.decode import F32, STEP, panel_layout, takes_exponents
from mxc.kernels.language import Atom, Chains, Guard, Kernel, Numbers
from mxc.kernels.layout import Layout
from mxc.kernels.registers import columns, decoder, dot, scale, weights_of
from mxc.kernels.schedule import block_sums, chained, decode, keep, over, place, use, wait

#: Most elements along K whose activations are in scratch at once: 16 KiB.
CHUNK = 4096
#: Prefetch distance of weights, in elements along K.
AHEAD = 1024
#: Two copies of each sum, always: the two chains of a tile product.
_PAIR = Chains(always=2)
#: Exponent bias of bf16, and its number of mantissa bits.
_BIAS, _MANTISSA = 127, 7
#: Exponent of the least normal f32, and of the largest power of two in f32, which rounded sums may
#: reach.
_LEAST, _MOST = -126, 127


@dataclass(frozen=True)
class ScaleRange:
    """The exponents of activations and the scale bytes for which multiplying the sum of a step by
    the scale gives the same bits as multiplying the elements. Elements of weights are multiples of
    2^`low`, and at most 2^`high` in magnitude.

    Every sum of products is a multiple of the unit of the weights times the unit of the
    activations. If this product is a normal f32, no sum is subnormal. No sum of a step exceeds 32
    products of the largest numbers. If their sum is finite, no sum overflows. Both conditions have
    to hold with the scales and without them. Exponents of activations are biased, as in the bits of
    bf16.
    """

    low: int
    high: int

    @staticmethod
    def of(values: Numbers) -> ScaleRange:
        """The range for weights whose codes have these values."""
        found = np.abs(values[np.isfinite(values)]).astype(np.float64)
        units = range(int(np.floor(np.log2(found.max()))), -64, -1)
        low = next(unit for unit in units if not np.fmod(np.ldexp(found, -unit), 1).any())
        return ScaleRange(low, int(np.ceil(np.log2(found.max()))))

    @property
    def least_exponent(self) -> int:
        """The least allowed exponent of activations that are not zero."""
        return _LEAST + _BIAS + _MANTISSA - self.low

    @property
    def most_exponent(self) -> int:
        """The largest allowed exponent of activations."""
        return _MOST + _BIAS - STEP.bit_length() - self.high

    @property
    def least_byte(self) -> int:
        """The least scale byte for which scaled elements are normal. See also `least_sum`."""
        return _LEAST + _BIAS - self.low

    @property
    def most_byte(self) -> int:
        """The largest scale byte for which scaled elements are finite. See also `most_sum`."""
        return _MOST + _BIAS - self.high

    @property
    def least_sum(self) -> int:
        """The least allowed sum of a scale byte and the exponent of an activation that is not zero:
        with less, a scaled sum could be subnormal."""
        return self.least_exponent + _BIAS

    @property
    def most_sum(self) -> int:
        """The largest allowed sum of a scale byte and the exponent of an activation: with more, a
        scaled sum could be infinite."""
        return self.most_exponent + _BIAS


def steps(
    contraction: ContractionShape, width: int, most: int = CHUNK
) -> Iterator[tuple[str, Kernel]]:
    """Yield a description and the kernel after each step of the schedule; `contraction` has groups
    of one row. `width`: columns of a workgroup. `most`: elements along K whose activations are in
    scratch at once."""
    kernel = contraction.kernel
    yield "what is computed", kernel
    kernel = over(kernel, "g", 1, "T=0 T+= Y=", grid=True)
    yield "a workgroup for each row", kernel
    late = scales_sums(contraction)
    kernel = decode(kernel, "A", None, "a", F32)
    early = "SB" if contraction.scales is not None and not late else None
    kernel = decode(kernel, "B", early, "W", F32)
    yield "both sides become f32", kernel
    if _rounds(contraction):
        kernel = wait(kernel, "Y", "Z")
        yield "results wait for their block", kernel
    kernel = _tiles(contraction, kernel, width, _chunk(contraction.depth, most))
    yield "registers of columns", kernel
    kernel = block_sums(kernel, "S", F32, ("SB",) if late else ())
    yield "sums of a step", kernel
    kernel = keep(kernel, "T", "t", ("k", STEP), "register", columns(TILE))
    yield "totals in registers along a chunk", kernel
    kernel = _places(contraction, kernel)
    yield "where everything lies", kernel
    yield "instructions", _atoms(contraction, kernel, late)


def scheduled(contraction: ContractionShape, width: int, most: int = CHUNK) -> Kernel:
    """The kernel of groups of one row after the last step."""
    *_, (_, kernel) = steps(replace(contraction, rows=1), width, most)
    return kernel


def scales_sums(contraction: ContractionShape) -> bool:
    """Whether scales multiply the sums of steps: they must be powers of two, and each must cover a
    whole step."""
    scales = contraction.scales
    return scales is not None and takes_exponents(scales.name, contraction.block)


def _tiles(contraction: ContractionShape, kernel: Kernel, width: int, chunk: int) -> Kernel:
    products = "W= T+="
    last = "Z= Y=" if _rounds(contraction) else "Y="
    every = f"T=0 a= {products} {last}"
    kernel = over(kernel, "n", width // contraction.halves, every, grid=True)
    kernel = over(kernel, "n", TILE, "T=0")
    kernel = over(kernel, "k", chunk, f"a= {products}")
    kernel = over(kernel, "k", STEP, "a=")
    kernel = over(kernel, "n", TILE, products)
    kernel = over(kernel, "k", STEP, products)
    return over(kernel, "n", contraction.together, last)


def _rounds(contraction: ContractionShape) -> bool:
    """Whether the result is blocks of columns, each of which is rounded at once."""
    return contraction.together > TILE


def _chunk(depth: int, most: int) -> int:
    """Number of elements along K of a chunk: chunks have about equal sizes, at most `most`."""
    chunks = -(-depth // most)
    return -(-depth // (chunks * STEP)) * STEP


def _places(contraction: ContractionShape, kernel: Kernel) -> Kernel:
    raw, sums = panel_layout(contraction.weights.bits), columns(TILE)
    pairs = raw.paired()
    kernel = place(kernel, "A", "global", Layout(item=(*pairs.item, *pairs.register)))
    kernel = place(kernel, "a", "stack", _widened(pairs).in_memory())
    kernel = place(kernel, "B", "global", raw.in_memory())
    if contraction.scales is not None:
        kernel = place(kernel, "SB", "global", sums.in_memory())
    there: dict[str, Guard] = {"n": "masked"} if contraction.columns % TILE else {}
    kernel = place(kernel, "Y", "global", Layout(), guards=there)
    weights = weights_of(contraction.weights.bits, "floats", TILE, STEP)
    kernel = place(kernel, "W", "register", weights)
    for name in ("t", "S"):
        kernel = place(kernel, name, "register", sums)
    if "Z" in kernel.arrays:
        kernel = place(kernel, "Z", "stack", Layout())
    return place(kernel, "T", "stack", sums)


def _atoms(contraction: ContractionShape, kernel: Kernel, late: bool) -> Kernel:
    codes, scales = contraction.weights, contraction.scales
    kernel = use(kernel, "a=", widen(panel_layout(codes.bits).paired()))
    early = None if late else scales
    parts = max(1, STEP // contraction.block)
    atom = decoder(codes, F32, "floats", TILE, STEP, early, parts)
    kernel = use(kernel, "W=", atom, AHEAD)
    kernel = use(kernel, "S+=", dot("floats", TILE, weights_of(codes.bits, "floats", TILE, STEP)))
    kernel = use(kernel, "t+=", scale(TILE, False, scales if late else None))
    return chained(kernel, "S", _PAIR)


def _widened(pairs: Layout) -> Layout:
    """Layout of pairs of bf16 once they are f32: elements 0 of all dwords, then elements 1."""
    return Layout((), pairs.register, pairs.item)


def widen(pairs: Layout) -> Atom:
    """The atom from bf16 [1, 16 dwords, 2] to f32 [2, 16, 1]: elements 0 of the dwords, then
    elements 1."""

    def run(out: Numbers, given: Numbers) -> Numbers:
        return np.ascontiguousarray(given.transpose(2, 1, 0)).astype(np.float32)

    return Atom("to f32", (_widened(pairs), Layout(pairs.item, pairs.register)), run)
