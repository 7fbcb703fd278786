"""Quantize a block of floats in registers to elements and a scale, within another kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.generic import element_of
from mxc.dialects.quantizations import match_int8_quantization, match_quantization
from mxc.dialects.quantize_scalars import (
    MAGNITUDE,
    NAN,
    as_bits,
    as_float,
    int8_element,
    int8_scale,
    like,
)
from mxc.formats.recipes import MANTISSA, NAN_BYTE
from mxc.passes.kernels.cpu.quantize.rounding import Rounding
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.values import producer
from mxc.passes.kernels.vectors import equal, f32, i32, load, of

#: Types of floats that are extended to f32 in registers.
_FLOATS = ("f32", "bf16")


@dataclass(frozen=True)
class BlockQuantizer:
    """Quantizes blocks of 32 floats, of type `floats` ("f32" or "bf16"), to MX blocks by
    `rounding`; without it, to int8 with f32 scales."""

    floats: str
    rounding: Rounding | None

    @property
    def name(self) -> str:
        """The name as a part of symbols."""
        return f"{self.floats}_to_{'int8' if self.rounding is None else self.rounding.name}"

    @property
    def memory(self) -> ir.Type:
        """The element type of the floats."""
        return ir.Type.parse(self.floats)

    def block(self, source: ir.Value, at: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """Quantize the block at the indices `at`. Return its codes i32 [32], with int8
        sign-extended, and its scale f32 [1].

        The E8M0 byte 0 (2^-127) becomes a scale of zero, and 255 becomes NaN.
        """
        values = load(source, at, self.memory, BLOCK)
        if self.floats != "f32":
            values = arith.extf(of(f32(), BLOCK), values)
        bits = as_bits(values)
        amax = largest_of([bits])
        if self.rounding is None:
            scale = int8_scale(amax)
            codes = int8_element(values, vector.broadcast(values.type, scale))
        else:
            byte = self.rounding.scale(amax)
            scale = as_float(power_of(byte))
            (codes,) = self.rounding.codes([bits], amax, byte)
        return codes, vector.broadcast(of(f32(), 1), scale)


def largest_of(parts: Sequence[ir.Value]) -> ir.Value:
    """The largest magnitude of a block, i32, from the bits of its floats, i32 vectors."""
    first, *others = (part & like(part, MAGNITUDE) for part in parts)
    for other in others:
        first = arith.maxsi(first, other)
    return vector.reduction(i32(), vector.CombiningKind.MAXSI, first)


def power_of(byte: ir.Value) -> ir.Value:
    """The f32 bits of 2^(byte - 127); 0 for the byte 0, NaN for 255."""
    nothing = equal(byte, like(byte, NAN_BYTE))
    return arith.select(nothing, like(byte, NAN), byte << like(byte, MANTISSA))


def quantizer(
    elements: ir.Value, scales: ir.Value
) -> tuple[BlockQuantizer, tuple[ir.Value, ...]] | None:
    """If elements and scales are computed from floats in the program, return the quantizer that
    does so, and the floats; else None."""
    op = producer(elements)
    if op is None:
        return None
    blocks = match_quantization(op)
    found = match_int8_quantization(op) if blocks is None else blocks
    if found is None or found.scales != producer(scales):
        return None
    floats = str(element_of(found.x))
    if floats not in _FLOATS:
        return None
    rounding = None if blocks is None else Rounding(blocks.format, blocks.recipe)
    return BlockQuantizer(floats, rounding), (found.x,)
