"""The form that activations have in a program, before they are prepared for a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from iree.compiler import ir

from mxc.dialects.contraction import OperandFormat
from mxc.formats.formats import (
    E4M3,
    E4M3FNUZ,
    E5M2FNUZ,
    FORMATS,
    INT8,
    ElementFormat,
    block_format,
)
from mxc.passes.kernels.vectors import f32

#: Elements along K per iteration of the inner loop of a kernel, and per scale of MX formats.
BLOCK = 32

#: The MLIR type of a scale.
ScaleType = Literal["f8E8M0FNU", "f8E4M3FN", "f32"]

#: Names of forms of activations: floats, int8 blocks with f32 scales, MX blocks, nvfp4 blocks, and
#: FNUZ elements.
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
    "f8E4M3FNUZ",
    "f8E5M2FNUZ",
]

#: The elements of formats that `mxc list formats` does not list.
_ELEMENTS: Mapping[Format, ElementFormat] = {
    "int8": INT8,
    "f8E4M3FNUZ": E4M3FNUZ,
    "f8E5M2FNUZ": E5M2FNUZ,
}


@dataclass(frozen=True)
class ActivationSource:
    """The form of the activations of a contraction: their `format`, and how it is varied.

    `rounded`: they are f32 in memory, and the kernel rounds them to bf16. `block`: elements per
    scale. `scales`: of the type that the format has ("own"), f32, or all one and not in memory
    ("one"). `to`: the type to which scaled elements are rounded, "" for none.
    """

    format: Format
    rounded: bool = False
    block: int = BLOCK
    scales: Literal["own", "f32", "one"] = "own"
    to: str = ""

    @property
    def name(self) -> str:
        """The text that stands for this form in symbols."""
        if self.rounded:
            return f"{self.format}r"
        known = FORMATS.get(self.format)
        usual = BLOCK if known is None else known.block
        name = self.format if self.scales == "own" else f"{self.format}_by_{self.scales}"
        name += f"x{self.block}" if self.block != usual and self.scales != "one" else ""
        return f"{name}_to_{self.to}" if self.to else name

    @property
    def is_float(self) -> bool:
        """Whether the activations are floats of 16 bits or more, which have no scale."""
        return self.format in ("f32", "bf16", "f16")

    @property
    def scale(self) -> ScaleType | None:
        """The type of the scales in memory; None where there are none."""
        if self.is_float or self.scales == "one":
            return None
        if self.scales == "f32" or self.format == "int8":
            return "f32"
        known = FORMATS.get(self.format)
        return "f8E4M3FN" if known is not None and known.scale == E4M3 else "f8E8M0FNU"

    @property
    def operand_format(self) -> OperandFormat:
        """The operand format in a contraction."""
        if self.is_float:
            return OperandFormat(self.format, rounded=self.to)
        scaled = ("", 0) if self.scale is None else (self.scale, self.block)
        return OperandFormat(self.element.mlir, *scaled, self.to)

    @property
    def is_integer(self) -> bool:
        """Whether all elements are small integers times `unit`."""
        return self.format in ("int8", "mxint8", "mxfp4", "mxfp6e2m3", "nvfp4")

    @property
    def memory(self) -> ir.Type:
        """The element type in memory, for formats that are floats."""
        return f32() if self.rounded else ir.Type.parse(self.format)

    @property
    def element(self) -> ElementFormat:
        """The element format, for formats that are not floats."""
        known = _ELEMENTS.get(self.format)
        return block_format(self.format).element if known is None else known

    @property
    def unit(self) -> float:
        """The value of an element that is the integer one in an int8 dot product."""
        return 1.0 if self.format == "int8" else self.element.min_positive
