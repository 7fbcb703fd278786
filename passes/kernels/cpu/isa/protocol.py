"""The interface of an instruction set for kernels: lanes, dot products, lookups."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.formats.formats import ElementFormat
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.codes import floats_of_codes
from mxc.passes.kernels.vectors import shifted

#: Width of the integers that hold the codes when these are converted to bf16 or f32: words (two per
#: lane), bytes (four) or dwords (one).
Grain = Literal["words", "bytes", "dwords"]


class Isa(Protocol):
    """An instruction set. In dot products, `weight` is the operand of weights and `one` that of
    activations. The default methods raise AssertionError; kernels do not call them if `kinds` and
    `grain` exclude the operation."""

    @property
    def lanes(self) -> int:
        """Number of f32 elements of a register."""
        ...

    @property
    def registers(self) -> int:
        """Number of registers that a kernel may use."""
        ...

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of dot product that the set has."""
        ...

    @property
    def signed(self) -> bool:
        """Whether the weights of quads are signed bytes rather than unsigned ones."""
        ...

    def decodes(self, bits: int, kind: Kind) -> bool:
        """Whether elements of `bits` bits can be decoded to operands of a kind that the set has."""
        ...

    def chains(self, kind: Kind) -> int:
        """Number of independent accumulators that hide the latency of dot products of a kind."""
        ...

    def costly(self, bits: int, kind: Kind) -> bool:
        """Whether decoding codes of `bits` bits takes so long that tiles should share decoded
        weights."""
        ...

    def grain(self, kind: Kind, element: ElementFormat) -> Grain:
        """The width in which codes are converted to operands of a kind other than quads."""
        ...

    def multiply_add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """a * b + total, all f32 [lanes], rounded once or twice."""
        ...

    def dot_pairs(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """total f32 [lanes] + the products of pairs of bf16 [2 * lanes]."""
        raise self._lacks("dot product of pairs")

    def dot_quads(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """total i32 [lanes] + the products of quads: weight i8 or u8, one i8 [4 * lanes]."""
        raise self._lacks("dot product of quads")

    def shifted_codes(self, codes: ir.Value, bits: int) -> ir.Value:
        """Each i16 or i32 shifted right by `bits`. The bits above a code may be anything."""
        return shifted(codes, bits)

    def quads(self, values: NDArray[np.int8], codes: ir.Value) -> ir.Value:
        """Look up the bytes `values` of 16 or 64 codes: i8 [4 * lanes]. `codes`: i8, of which the
        low 4 or 6 bits are the code; other bits are ignored."""
        raise self._lacks("lookup of quads")

    def pairs_of_words(self, element: ElementFormat, codes: ir.Value) -> ir.Value:
        """Decode codes, the low bits of each i16, to bf16 [2 * lanes]. Other bits are ignored."""
        raise self._lacks("lookup of pairs by words")

    def pairs_of_bytes(self, element: ElementFormat, codes: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Decode codes, the low bits of each i8 [4 * lanes], to two bf16 [2 * lanes]. Other bits
        are ignored.

        The first result has bytes 0 and 2 of each lane, the second bytes 1 and 3.
        """
        raise self._lacks("lookup of pairs by bytes")

    def floats_of_dwords(self, element: ElementFormat, codes: ir.Value) -> ir.Value:
        """Decode codes, the low bits of each i32, to f32 [lanes] by arithmetic. Other bits are
        ignored."""
        return floats_of_codes(codes, element, self.lanes)

    def _lacks(self, operation: str) -> AssertionError:
        """The error for an operation that `kinds` and `grain` exclude: a bug of the caller."""
        return AssertionError(f"{type(self).__name__} has no {operation}; its kinds: {self.kinds}")
