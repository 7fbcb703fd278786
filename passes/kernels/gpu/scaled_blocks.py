"""A scaled operand of GPU kernels in memory: blocks of elements, and their scales."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.formats.formats import E8M0, F32, BlockFormat, Specials
from mxc.passes.kernels.extents import Buffer, Size, product
from mxc.passes.kernels.gpu.decode import value_of_one
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.vectors import i8


@dataclass(frozen=True)
class ScaledBlocks:
    """A scaled operand with `blocks` blocks of 32 elements in a row.

    Blocks have 32 elements whatever the number of elements that a scale of `format` is for.
    `panels`: how the elements are stored, as in panels.py.
    """

    format: BlockFormat
    blocks: int
    panels: int = 0

    @staticmethod
    def takes(block: int) -> bool:
        """Whether kernels read scales for `block` elements each: for 16, 32, 64, 128, .."""
        return block >= BLOCK // 2 and block.bit_count() == 1

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return self.format.element.bits

    @property
    def scales(self) -> int:
        """Scales that a block of 32 has; 1 if it shares its scale with other blocks."""
        return max(1, BLOCK // self.format.block)

    @property
    def shared(self) -> int:
        """Number of consecutive blocks of 32 that share a scale."""
        return max(1, self.format.block // BLOCK)

    @property
    def rows_of_scale(self) -> int:
        """Number of consecutive rows that share their scales."""
        return self.format.rows

    @property
    def has_f32_scales(self) -> bool:
        """Whether the scales are f32. No matrix instruction takes them, so they multiply sums."""
        return self.format.scale == F32

    @property
    def value_of_one(self) -> float:
        """The float that an element of 1 is decoded to, where f32 scales multiply sums.

        The kernel multiplies its sums by the reciprocal at the end. 1.0 without f32 scales.
        """
        integers = self.has_f32_scales and not self.format.element.exponent
        return value_of_one(self.format.element) if integers else 1.0

    @property
    def fits_scaled_instruction(self) -> bool:
        """Whether scaled matrix instructions take the elements as they are.

        They take floats, but not FNUZ, with one E8M0 scale per 32 elements. Under f32 scales, which
        multiply sums, they take them with scales of 1.
        """
        powers = self.format.scale in (E8M0, F32)
        return self.scales == 1 and powers and self.format.element.exponent > 0 and not self.is_fnuz

    @property
    def is_fnuz(self) -> bool:
        """Whether the elements are FNUZ, which no instruction with scales reads.

        They are decoded by conversions without scales (decode_fnuz.py), or by integer operations.
        """
        return self.format.element.specials is Specials.FNUZ

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's elements."""
        return BLOCK * self.bits // 8

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Bytes of a row's elements, and of its scales."""
        scales = self.blocks * self.scales // self.shared
        return self.blocks * self.block_bytes, scales * self.format.scale.bits // 8

    def buffers(self, rows: Size) -> list[Buffer]:
        """The buffers of the elements and of the scales of `rows` rows, both i8."""
        return [Buffer([product(rows, size)], i8()) for size in self.row_sizes]
