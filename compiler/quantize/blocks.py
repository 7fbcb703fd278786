"""Quantization of bfloat16 blocks to an MX format with 16-bit integer operations.

`mxc quantize` uses this kernel. Its results are bit-identical to reference.py, several times
faster, because no bfloat16 is converted to a float:

  magnitude = bits & 0x7FFF              bfloat16 magnitudes order as these integers
  amax      = the largest of a block
  byte      = BYTES[amax]                any recipe is a table of 32768 bytes
  place     = magnitude - (byte << 7)    division by the scale, in the exponent's bits
  code      = CODES[place]               any rounding is a table of a few thousand bytes

Rows of 32 are transposed into eight columns of four, so that one numpy operation runs along many
blocks, and the maximum of a block is taken between rows.

Blocks whose largest magnitude is so small that subnormals matter (nonzero, below 2^-90 or so) are
computed by the reference. Weights have none.
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

#: Mantissa bits of a bfloat16, and the bits of its infinity.
_MANTISSA = 7
_INFINITY = 0xFF << _MANTISSA
#: Number of elements that stay adjacent when a row is transposed: 8 bytes of bfloat16.
_BESIDE = 4


@dataclass(frozen=True)
class BlockKernel:
    """Quantizes blocks of bfloat16 to an MX `format`. Threads may share it.

    `negative_zero`: a negative number that rounds to zero keeps its sign. `search`: each block gets
    the scale of least error near that of `recipe` (search.py), except blocks computed by the
    reference. Raises FormatError for a format without E8M0 scales of 32.
    """

    format: BlockFormat
    recipe: ScaleRecipe
    ties: Ties = Ties.EVEN
    negative_zero: bool = True
    search: bool = False

    def __post_init__(self) -> None:
        """Check that the format has E8M0 scales of 32."""
        if self.format.scale != E8M0 or self.format.block != 32:
            raise FormatError(f"wanted a format with E8M0 scales of 32, found {self.format}")

    @cached_property
    def _bytes(self) -> Bytes:
        """Scale byte by the bits of amax, uint8 [0x8000]."""
        amax = np.arange(1 << 15, dtype=np.uint16).view(ml_dtypes.bfloat16)
        return scale_bytes(amax.astype(np.float32), self.format.element, self.recipe)

    @cached_property
    def _depth(self) -> int:
        """Number of powers of two from the scale down to the first entry of the tables.

        A quarter of the smallest element rounds to zero under every tie rule, and values 2^8
        smaller do not even contribute noise.
        """
        return 2 + 8 - int(np.log2(self.format.element.min_positive))

    @cached_property
    def _places(self) -> NDArray[np.float32]:
        """Value of each table entry in units of the scale: float32 [n], the first zero."""
        # Up to amax under the smallest scale that is tried, which is 2^-2 times that of RCEIL.
        count = (self._depth + self.format.element.emax + 4) << _MANTISSA
        bits = np.arange(count, dtype=np.uint16) + np.uint16(127 - self._depth << _MANTISSA)
        values = bits.view(ml_dtypes.bfloat16).astype(np.float32)
        values[0] = 0
        table: NDArray[np.float32] = values
        return table

    @cached_property
    def _codes(self) -> Bytes:
        """Code without sign by table index, uint8 [n]."""
        return encode(self._places, self.format.element, self.ties)

    @cached_property
    def _squares(self) -> NDArray[np.complex64]:
        """Squared error (real) and squared value (imaginary) by table index, in units of
        the scale."""
        values = self._places.astype(np.float64)
        error = self.format.element.values[self._codes] - values
        return (np.square(error) + 1j * np.square(values)).astype(np.complex64)

    @cached_property
    def _errors(self) -> NDArray[np.float32]:
        """Squared error by table index, in units of the scale."""
        return np.ascontiguousarray(self._squares.real)

    @cached_property
    def _limit(self) -> int:
        """First table index beyond the largest element."""
        return int(np.searchsorted(self._places, self.format.element.max, side="right"))

    def run(
        self, bits: Words, squares: NDArray[np.float32] | None = None
    ) -> tuple[Bytes, Bytes, Loss]:
        """Quantize blocks uint16 [n, 32] of bfloat16 bits to elements [n, block_bytes], scales [n],
        loss.

        `squares` float32 [m, 32]: weights of squared errors in the search, for the blocks of a row.
        Raises FormatError for Inf and NaN.
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
        # A subtraction that saturates at zero.
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
        """Return the scales of least error among `usual` and neighbours, for magnitudes [8,
        n, 4]."""
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
            # The tables do not cover smaller scales.
            better = (noise < least) & (usual > self._depth + max(map(abs, NEIGHBOURS)))
            best, least = np.where(better, tried, best), np.where(better, noise, least)
        return best

    def _signed(self, codes: Bytes, values: Words) -> Bytes:
        element = self.format.element
        signs = values >> np.uint16(16 - element.bits)
        signs &= np.uint16(element.sign_bit)
        negative = signs.astype(np.uint8)
        if not element.exponent:
            # Two's complement negation: invert all bits, and add one.
            turned = negative.view(np.int8) >> np.int8(7)
            return ((codes.view(np.int8) ^ turned) - turned).view(np.uint8)
        if not self.negative_zero:
            negative *= codes > 0
        return codes | negative

    def _packed(self, codes: Bytes) -> Bytes:
        """Pack codes uint8 [8, n, 4] into uint8 [n, block_bytes], as packing.py does."""
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
    """Return the largest magnitude of each block, uint16 [n], of bfloat16 bits uint16 [n, 4k]."""
    columns = np.ascontiguousarray(bits.view(np.uint64).T).view(np.uint16)
    columns &= np.uint16(0x7FFF)
    return _over_four(np.maximum, columns.reshape(-1, len(bits), _BESIDE).max(axis=0))


def _over_four(operation: np.ufunc, rows: NDArray[Any]) -> NDArray[Any]:
    """Reduce [n, 4] to [n]; faster than numpy's reduction, which starts anew for each row."""
    first, second = operation(rows[:, 0], rows[:, 1]), operation(rows[:, 2], rows[:, 3])
    found: NDArray[Any] = operation(first, second)
    return found
