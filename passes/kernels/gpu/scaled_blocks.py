"""A scaled operand of GPU kernels in memory: blocks of elements, and their scales."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.formats.formats import E8M0, F32, BlockFormat, Specials
from mxc.passes.kernels.extents import Buffer, Size, product
from mxc.passes.kernels.gpu.decode import decoded_one
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.vectors import i8


@dataclass(frozen=True)
class ScaledBlocks:
    """`blocks` of 32 elements a row, whatever number of them a scale of `format` is for. `panels`:
    of the elements, as in panels.py."""

    format: BlockFormat
    blocks: int
    panels: int = 0

    @staticmethod
    def takes(block: int) -> bool:
        """Whether kernels read scales of so many elements: half a block, or 1, 2, 4.. of them."""
        return block >= BLOCK // 2 and block.bit_count() == 1

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return self.format.element.bits

    @property
    def scales(self) -> int:
        """Scales of a block of 32; 1 where a larger block shares it."""
        return max(1, BLOCK // self.format.block)

    @property
    def shared(self) -> int:
        """Blocks of 32 that have the same scale."""
        return max(1, self.format.block // BLOCK)

    @property
    def rows_of_scale(self) -> int:
        """Rows that have the same scale."""
        return self.format.rows

    @property
    def multiplies_sums(self) -> bool:
        """Whether its scales are f32: no instruction takes them, so they multiply sums."""
        return self.format.scale == F32

    @property
    def decoded_one(self) -> float:
        """The float that an element of 1 becomes where it is decoded and f32 scales multiply sums:
        a product is multiplied by the reciprocal at its end."""
        integers = self.multiplies_sums and not self.format.element.exponent
        return decoded_one(self.format.element) if integers else 1.0

    @property
    def is_whole(self) -> bool:
        """Whether scaled matrix instructions take it: floats, a power of two for 32 of them."""
        powers = self.format.scale in (E8M0, F32)
        return self.scales == 1 and powers and self.format.element.exponent > 0 and not self.is_fnuz

    @property
    def is_fnuz(self) -> bool:
        """Whether no instruction under a scale knows its elements: they are decoded by integers."""
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
        """The elements and the scales of so many rows."""
        return [Buffer([product(rows, size)], i8()) for size in self.row_sizes]
