"""Number formats as records of the fewest fields; every other number about them is derived.

Source of the values: OCP Microscaling Formats (MX) Specification 1.0, section 5.3 (element
types), section 5.4.1 (E8M0) and table 1 (the concrete formats). Adding a format is one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError


class Specials(Enum):
    """Which of the codes with the largest magnitudes are not finite numbers."""

    NONE = "none"
    NAN = "all ones is NaN"
    IEEE = "all ones in the exponent is Inf or NaN"
    FNUZ = "the code of the negative zero is NaN"


@dataclass(frozen=True)
class ElementFormat:
    """A number of `sign, exponent, mantissa` bits, from the highest bit to the lowest.

    `exponent` and `mantissa` count bits. With `exponent=0` the type is a two's complement fixed
    point number of one sign bit, one integer bit and `mantissa` fraction bits (MXINT8).
    With `mantissa=0` it has neither zero nor subnormals (E8M0).
    """

    name: str
    exponent: int
    mantissa: int
    specials: Specials = Specials.NONE
    signed: bool = True

    def __str__(self) -> str:
        """The name."""
        return self.name

    @property
    def bits(self) -> int:
        """Width of a code."""
        return self.signed + (self.exponent or 1) + self.mantissa

    @property
    def mlir(self) -> str:
        """Name of the MLIR type, e.g. "f4E2M1FN", "f8E5M2", "f8E8M0FNU", "i8", "f32"."""
        if not self.exponent:
            return f"i{self.bits}"
        if self.bits > 8:
            return f"f{self.bits}"
        suffix = {Specials.IEEE: "", Specials.FNUZ: "FNUZ"}.get(self.specials, "FN")
        sign = "" if self.signed else "U"
        return f"f{self.bits}E{self.exponent}M{self.mantissa}{suffix}{sign}"

    @property
    def bias(self) -> int:
        """The exponent bias. Fixed point has bias 1, which makes every number a subnormal."""
        if not self.exponent:
            return 1
        return (1 << (self.exponent - 1)) - (self.specials is not Specials.FNUZ)

    @property
    def sign_bit(self) -> int:
        """Mask of the sign bit of a code; 0 for an unsigned type."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def magnitude_mask(self) -> int:
        """Mask of all bits of a code except the sign."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        taken = {Specials.NAN: 1, Specials.IEEE: 1 << self.mantissa}
        return self.magnitude_mask - taken.get(self.specials, 0)

    @property
    def max(self) -> float:
        """The largest finite number."""
        return float(self.values[self.max_code])

    @property
    def emax(self) -> int:
        """Exponent of the largest power of two: floor(log2(max))."""
        return math.frexp(self.max)[1] - 1

    @property
    def min_normal(self) -> float:
        """The smallest normal number; for fixed point, the weight of the integer bit."""
        return math.ldexp(1.0, (1 if self.mantissa else 0) - self.bias)

    @property
    def min_positive(self) -> float:
        """The smallest positive number: the smallest subnormal, if the type has subnormals."""
        return math.ldexp(self.min_normal, -self.mantissa)

    @property
    def inf_codes(self) -> tuple[int, ...]:
        """Codes of the infinities, positive first."""
        if self.specials is not Specials.IEEE:
            return ()
        return (self.max_code + 1, self.max_code + 1 | self.sign_bit)

    @property
    def nan_codes(self) -> tuple[int, ...]:
        """Codes that are not a number, in ascending order."""
        if self.specials is Specials.FNUZ:
            return (self.sign_bit,)
        first = self.max_code + (2 if self.specials is Specials.IEEE else 1)
        positive = range(first, self.magnitude_mask + 1)
        signs = sorted({0, self.sign_bit})
        return tuple(code | sign for sign in signs for code in positive)

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """float32 [2**bits]: the value of every code, exact, -0.0 and NaN included. Read-only."""
        return _values(self)


@cache
def _values(element: ElementFormat) -> npt.NDArray[np.float32]:
    codes = np.arange(1 << element.bits, dtype=np.int64)
    if element.exponent:
        magnitude = codes & element.magnitude_mask
        field = magnitude >> element.mantissa
        fraction = magnitude & ((1 << element.mantissa) - 1)
        # A subnormal has the exponent of the first normal and no leading one.
        leading = (field > 0) | (element.mantissa == 0)
        exponent = np.maximum(field, 1 if element.mantissa else 0) - element.bias
        significand = (leading << element.mantissa) + fraction
        values = np.ldexp(significand.astype(np.float64), exponent - element.mantissa)
        values = np.where(codes & element.sign_bit, -values, values)
        values[list(element.nan_codes)] = np.nan
        values[list(element.inf_codes)] = (np.inf, -np.inf)[: len(element.inf_codes)]
    else:
        signed = np.where(codes & element.sign_bit, codes - (1 << element.bits), codes)
        values = np.ldexp(signed.astype(np.float64), -element.mantissa)
    table: npt.NDArray[np.float32] = values.astype(np.float32)
    table.flags.writeable = False
    return table


E2M1 = ElementFormat("e2m1", 2, 1)
E2M3 = ElementFormat("e2m3", 2, 3)
E3M2 = ElementFormat("e3m2", 3, 2)
E4M3 = ElementFormat("e4m3", 4, 3, Specials.NAN)
E5M2 = ElementFormat("e5m2", 5, 2, Specials.IEEE)
INT8 = ElementFormat("int8", 0, 6)
# Integers of weight-only checkpoints; the scale includes the value of a unit.
INT4 = ElementFormat("int4", 0, 2)
# The 8-bit types of gfx942, whose exponent bias is one more than OCP's: LLVM Float8E4M3FNUZ and
# Float8E5M2FNUZ. https://arxiv.org/abs/2206.02915, section 3.2.
E4M3FNUZ = ElementFormat("e4m3fnuz", 4, 3, Specials.FNUZ)
E5M2FNUZ = ElementFormat("e5m2fnuz", 5, 2, Specials.FNUZ)
E8M0 = ElementFormat("e8m0", 8, 0, Specials.NAN, signed=False)
#: The scale type of formats that no standard defines (binary32 of IEEE 754).
F32 = ElementFormat("f32", 8, 23, Specials.IEEE)


@dataclass(frozen=True)
class BlockFormat:
    """`block` elements along one axis share one scale: value = scale * element.

    With `tensor_scale`, a float32 of the whole tensor is a further factor. With `unit_scales`,
    every block scale is 1 and is not stored; the further factor is the only one. `rows`:
    consecutive rows of a matrix that share their scales.
    """

    name: str
    element: ElementFormat
    block: int = 32
    scale: ElementFormat = E8M0
    tensor_scale: bool = False
    unit_scales: bool = False
    rows: int = 1

    def __str__(self) -> str:
        """The name."""
        return self.name

    @property
    def block_bytes(self) -> int:
        """Bytes of the packed elements of one block, without its scale."""
        return self.block * self.element.bits // 8

    def packed_bytes(self, elements: int) -> int:
        """Bytes of `elements` packed elements along the block axis.

        Raises FormatError where `elements` is not a whole number of blocks.
        """
        return self.blocks(elements) * self.block_bytes

    def blocks(self, elements: int) -> int:
        """Blocks of `elements` along the block axis. Raises FormatError for a partial block."""
        if elements % self.block:
            raise FormatError(
                f"{self.name} wants a block axis that is a multiple of {self.block} elements, "
                f"found {elements}; pad to {-(-elements // self.block) * self.block} with zeros "
                "or choose another axis"
            )
        return elements // self.block


#: Every format that mxc knows, by name. The MX names are those of OCP MX 1.0 table 1 in lower case.
#: nvfp4: an E4M3 scale per block of 16 and a float32 tensor scale; NVIDIA, and the layout
#: `nvfp4-pack-quantized` of compressed-tensors (which stores the reciprocal of the tensor scale).
FORMATS: Mapping[str, BlockFormat] = MappingProxyType(
    {
        format.name: format
        for format in (
            BlockFormat("mxfp4", E2M1),
            BlockFormat("mxfp6e2m3", E2M3),
            BlockFormat("mxfp6e3m2", E3M2),
            BlockFormat("mxfp8e4m3", E4M3),
            BlockFormat("mxfp8e5m2", E5M2),
            BlockFormat("mxint8", INT8),
            BlockFormat("nvfp4", E2M1, 16, E4M3, tensor_scale=True),
        )
    }
)


def with_block(format: BlockFormat, block: int) -> BlockFormat:
    """The format with `block` elements per scale, named like "mxfp4x64"."""
    if block == format.block:
        return format
    return replace(format, name=f"{format.name}x{block}", block=block)


def block_format(format: BlockFormat | str) -> BlockFormat:
    """The format called `format`; a BlockFormat is returned unchanged.

    Raises FormatError for an unknown name, listing the known ones.
    """
    if isinstance(format, BlockFormat):
        return format
    if format not in FORMATS:
        raise FormatError(f"unknown format {format!r}; mxc knows {', '.join(FORMATS)}")
    return FORMATS[format]
