"""What activations are in the program, before they are prepared for a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from iree.compiler import ir

from mxc.dialects.formats import FORMATS, INT8, ElementFormat, block_format
from mxc.passes.kernels.vectors import f32

#: Elements along K of one pass of a kernel's inner loop.
BLOCK = 32

#: Activations by name: floats, int8 under an f32 scale a block, MX blocks, and nvfp4.
Format = Literal[
    "f32",
    "bf16",
    "f16",
    "int8",
    "mxfp4",
    "mxfp6e2m3",
    "mxfp6e3m2",
    "mxfp8e4m3",
    "mxfp8e5m2",
    "mxint8",
    "nvfp4",
]


@dataclass(frozen=True)
class Source:
    """`format` of the activations. `rounded`: they are f32 in memory, and bf16 by meaning.

    `block`: elements that share a scale, where they have one.
    """

    format: Format
    rounded: bool = False
    block: int = BLOCK

    @property
    def name(self) -> str:
        """For symbols."""
        if self.rounded:
            return f"{self.format}r"
        known = FORMATS.get(self.format)
        usual = BLOCK if known is None else known.block
        return self.format if self.block == usual else f"{self.format}x{self.block}"

    @property
    def is_float(self) -> bool:
        """Whether they have no scale."""
        return self.format in ("f32", "bf16", "f16")

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers of few bits, times a unit."""
        return self.format in ("int8", "mxint8", "mxfp4", "nvfp4")

    @property
    def memory(self) -> ir.Type:
        """The element type of floats in memory."""
        return f32() if self.rounded else ir.Type.parse(self.format)

    @property
    def element(self) -> ElementFormat:
        """The element of a block."""
        return INT8 if self.format == "int8" else block_format(self.format).element

    @property
    def unit(self) -> float:
        """What the integer one of a quad is worth."""
        return 1.0 if self.format == "int8" else self.element.min_positive
