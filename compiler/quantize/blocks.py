"""bfloat16 blocks of an MX format in passes over 16-bit integers: what `mxc quantize` runs.

Bit for bit what reference.py computes, several times faster, because nothing becomes a float:

    magnitude = bits & 0x7FFF              bfloat16 magnitudes order as these integers
    amax      = the largest of a block
    byte      = BYTES[amax]                any recipe is a table of 32768 bytes
    place     = magnitude - (byte << 7)    division by the scale, in the exponent's bits
    code      = CODES[place]               any rounding is a table of a few thousand bytes

Rows of 32 are turned into eight columns of four, so that a pass runs along many blocks and the
largest of a block is found between rows, not within one.

Blocks with numbers so small that subnormal ones matter (below 2^-90 or so, but not zero) are the
reference's. Weights have none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxc.compiler.quantize.loss import Loss, sum_of_squares
from mxc.compiler.quantize.search import NEIGHBOURS
from mxc.errors import FormatError
from mxc.formats.formats import E8M0, BlockFormat
from mxc.formats.recipes import ScaleRecipe, scale_bytes
from mxc.formats.reference import dequantize, quantize
from mxc.formats.rounding import Ties, encode

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint16]

#: Bits of the mantissa of a bfloat16, and its infinity.
_MANTISSA = 7
_INFINITY = 0xFF << _MANTISSA
#: Elements that stay beside each other when a row is turned: 8 bytes of bfloat16.
_BESIDE = 4


@dataclass(frozen=True)
class BlockKernel:
    """Quantizes blocks of bfloat16 to an MX `format`. Threads may share it.

    `negative_zero`: whether a negative number that rounds to zero keeps its sign. `search`: of each
    block the scale of least error near that of `recipe` (search.py), not where the reference is
    needed. Raises FormatError for a format without E8M0 scales of 32.
    """

    format: BlockFormat
    recipe: ScaleRecipe
    ties: Ties = Ties.EVEN
    negative_zero: bool = True
    search: bool = False

    def __post_init__(self) -> None:
        """Check the format."""
        if self.format.scale != E8M0 or self.format.block != 32:
            raise FormatError(f"wanted a format with E8M0 scales of 32, found {self.format}")

    @cached_property
    def _bytes(self) -> Bytes:
        """Scale byte by the bits of amax, uint8 [0x8000]."""
        amax = np.arange(1 << 15, dtype=np.uint16).view(ml_dtypes.bfloat16)
        return scale_bytes(amax.astype(np.float32), self.format.element, self.recipe)

    @cached_property
    def _depth(self) -> int:
        """Powers of two from the scale down to where the tables begin.

        A quarter of the smallest element rounds to zero whatever ties do. 2^8 less than that does
        not even count as noise.
        """
        return 2 + 8 - int(np.log2(self.format.element.min_positive))

    @cached_property
    def _places(self) -> NDArray[np.float32]:
        """What each place stands for, in units of the scale: float32 [n], the first zero."""
        # Of amax under the smallest scale that is tried: 2^2 times one under RCEIL.
        count = (self._depth + self.format.element.emax + 4) << _MANTISSA
        bits = np.arange(count, dtype=np.uint16) + np.uint16(127 - self._depth << _MANTISSA)
        values = bits.view(ml_dtypes.bfloat16).astype(np.float32)
        values[0] = 0
        table: NDArray[np.float32] = values
        return table

    @cached_property
    def _codes(self) -> Bytes:
        """Code without its sign by place, uint8 [n]."""
        return encode(self._places, self.format.element, self.ties)

    @cached_property
    def _squares(self) -> NDArray[np.complex64]:
        """By place, in units of the scale: the error squared and, imaginary, the value squared."""
        values = self._places.astype(np.float64)
        error = self.format.element.values[self._codes] - values
        return (np.square(error) + 1j * np.square(values)).astype(np.complex64)

    @cached_property
    def _errors(self) -> NDArray[np.float32]:
        """By place, in units of the scale: the error squared."""
        return np.ascontiguousarray(self._squares.real)

    @cached_property
    def _limit(self) -> int:
        """The first place beyond the largest element."""
        return int(np.searchsorted(self._places, self.format.element.max, side="right"))

    def run(
        self, bits: Words, squares: NDArray[np.float32] | None = None
    ) -> tuple[Bytes, Bytes, Loss]:
        """Blocks uint16 [n, 32], bits of bfloat16 -> elements [n, block_bytes], scales [n], loss.

        `squares` float32 [m, 32]: by what errors count in the search, in the blocks of a row.
        Raises FormatError where a number is Inf or NaN.
        """
        count = len(bits)
        columns = np.ascontiguousarray(bits.view(np.uint64).T).view(np.uint16)
        values = columns.reshape(self.format.block // _BESIDE, count, _BESIDE)
        magnitude = values & np.uint16(0x7FFF)
        amax = _over_four(np.maximum, magnitude.max(axis=0))
        if count and amax.max() >= _INFINITY:
            raise FormatError("wanted finite numbers, found NaN or Inf")
        scales = self._bytes.take(amax)
        if self.search:
            scales = self._searched(scales, magnitude, squares)
        base = np.maximum(scales, self._depth).astype(np.uint16) - np.uint16(self._depth)
        base = np.repeat(base << np.uint16(_MANTISSA), _BESIDE).reshape(count, _BESIDE)
        # A difference that stops at zero.
        place = np.maximum(magnitude, base, out=magnitude)
        place -= base
        small = np.flatnonzero((scales <= self._depth) & (amax > 0))
        place[:, small] = 0
        elements = self._packed(self._signed(self._codes.take(place), values))
        sums = _over_four(np.add, self._squares.take(place).sum(axis=0))
        unit = np.exp2(2.0 * (scales.astype(np.float64) - 127))
        loss = Loss(
            elements=bits.size,
            signal=float((sums.imag * unit).sum()),
            noise=float((sums.real * unit).sum()),
            saturated=int(np.count_nonzero(place >= self._limit)),
        )
        if small.size:
            self._by_reference(bits, small, elements, loss)
        return elements, scales, loss

    def _searched(
        self, usual: Bytes, magnitude: Words, squares: NDArray[np.float32] | None
    ) -> Bytes:
        """The scales of least error among `usual` and their neighbours, for [8, n, 4]."""
        counts = None
        if squares is not None:
            counts = squares.reshape(-1, len(magnitude), _BESIDE).transpose(1, 0, 2)[:, None]
        best, least = usual, np.full(len(usual), np.inf)
        for by in NEIGHBOURS:
            tried = np.clip(usual.astype(np.int16) + by, 0, E8M0.max_code).astype(np.uint8)
            base = np.maximum(tried, self._depth).astype(np.uint16) - np.uint16(self._depth)
            base = np.repeat(base << np.uint16(_MANTISSA), _BESIDE).reshape(-1, _BESIDE)
            errors = self._errors.take(np.maximum(magnitude, base) - base)
            if counts is not None:
                rows = errors.reshape(len(errors), -1, *counts.shape[2:])
                rows *= counts
            noise = _over_four(np.add, errors.sum(axis=0)).astype(np.float64)
            noise *= np.exp2(2.0 * (tried.astype(np.float64) - 127))
            # Below, the tables do not hold.
            better = (noise < least) & (usual > self._depth + max(map(abs, NEIGHBOURS)))
            best, least = np.where(better, tried, best), np.where(better, noise, least)
        return best

    def _signed(self, codes: Bytes, values: Words) -> Bytes:
        element = self.format.element
        signs = values >> np.uint16(16 - element.bits)
        signs &= np.uint16(element.sign_bit)
        negative = signs.astype(np.uint8)
        if not element.exponent:
            # Two's complement: all bits turned, and one added.
            turned = negative.view(np.int8) >> np.int8(7)
            return ((codes.view(np.int8) ^ turned) - turned).view(np.uint8)
        if not self.negative_zero:
            negative *= codes > 0
        return codes | negative

    def _packed(self, codes: Bytes) -> Bytes:
        """Codes uint8 [8, n, 4] -> uint8 [n, block_bytes], as packing.py has them."""
        bits = self.format.element.bits
        if bits == 4:
            pairs = codes.view(np.uint16)
            pairs = (pairs | pairs >> np.uint16(4)).astype(np.uint8)
            return np.ascontiguousarray(pairs.view(np.uint16)[..., 0].T).view(np.uint8)
        four = codes.view(np.uint32)[..., 0]
        if bits == 8:
            return np.ascontiguousarray(four.T).view(np.uint8)
        packed = four & np.uint32(0x3F)
        for place in (1, 2, 3):
            packed |= four >> np.uint32(2 * place) & np.uint32(0x3F << 6 * place)
        rows = np.ascontiguousarray(packed.T).view(np.uint8).reshape(len(packed.T), -1, 4)
        return rows[..., :3].reshape(len(rows), -1)

    def _by_reference(self, bits: Words, small: NDArray[np.intp], out: Bytes, loss: Loss) -> None:
        values = bits[small].view(ml_dtypes.bfloat16)
        q = quantize(
            values,
            self.format,
            recipe=self.recipe,
            ties=self.ties,
            negative_zero=self.negative_zero,
        )
        out[small] = q.elements
        loss.signal += sum_of_squares(values)
        loss.noise += sum_of_squares(dequantize(q) - values.astype(np.float32))


def peaks(bits: Words) -> Words:
    """The largest magnitude of each block, uint16 [n], of bfloat16 uint16 [n, 4k]."""
    columns = np.ascontiguousarray(bits.view(np.uint64).T).view(np.uint16)
    columns &= np.uint16(0x7FFF)
    return _over_four(np.maximum, columns.reshape(-1, len(bits), _BESIDE).max(axis=0))


def _over_four(operation: np.ufunc, rows: NDArray[Any]) -> NDArray[Any]:
    """[n, 4] -> [n]: numpy's own reduction begins anew with each row, which takes longer."""
    first, second = operation(rows[:, 0], rows[:, 1]), operation(rows[:, 2], rows[:, 3])
    found: NDArray[Any] = operation(first, second)
    return found
