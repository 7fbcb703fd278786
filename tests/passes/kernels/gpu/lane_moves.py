"""Operations of lane_interpreter.py across the lanes of a wave of 32: exchanges, matrix products.

Matrix instructions follow the documents, element by element of the matrices, independently of how
a kernel fills its lanes:

    A, B    lane l has row (column) l % 16; where element i of its fragment is along K: `_ALONG_K`
    C, D    lane l has column l % 16, and element i is row i + 8 (l / 16); of gfx1151 2 i + l / 16
    scales  lane first + r has those of row r: byte b for elements 32 b .. 32 b + 31 along K

Sources: AMD RDNA4 ISA guide, 7.9 (16x16x16); Triton, LinearLayoutConversions.cpp (gfx1250);
AMD RDNA3.5 ISA guide, 7.9 (gfx1151: lanes l and l + 16 have all of the same row).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from iree.compiler import ir

from tests.passes.kernels.gpu.lane_program import Operation
from tests.passes.kernels.gpu.lane_values import Array, floats, kind_of, raw_of, with_sign

WAVE = 32
#: Position along K of element i of a lane of group g = lane / 16, by the depth of the instruction
#: and the bits of an element.
_ALONG_K: dict[tuple[int, int], Callable[[Array, Array], Array]] = {
    (16, 16): lambda i, g: 8 * g + i,
    (16, 8): lambda i, g: 8 * g + i,
    (4, 32): lambda i, g: 2 * g + i,
    # A sum may take its terms in any order that both operands share: this is one of them.
    (64, 8): lambda i, g: 16 * (i // 8) + 8 * g + i % 8,
    (32, 16): lambda i, g: 16 * (i // 8) + 8 * g + i % 8,
    (128, 8): lambda i, g: 32 * (i // 16) + 16 * g + i % 16,
    (128, 4): lambda i, g: 64 * (i // 32) + 32 * g + i % 32,
}


class LaneMoves:
    """Operations that combine values of several of `threads` lanes, of which some are `active`."""

    threads: int
    active: Array

    def rocdl_readfirstlane(self, op: Operation, a: Array) -> list[Any]:
        return [np.repeat(a[::WAVE], WAVE, axis=0)[: self.threads]]

    def rocdl_ballot(self, op: Operation, chosen: Array) -> list[Any]:
        lane = np.arange(self.threads) % WAVE
        bits = (chosen[:, 0].astype(bool) & self.active).astype(np.uint64) << lane.astype(np.uint64)
        return [np.repeat(bits.reshape(-1, WAVE).sum(axis=1, dtype=np.uint64), WAVE)[:, None]]

    def rocdl_ds_bpermute(self, op: Operation, at: Array, value: Array) -> list[Any]:
        lane = np.arange(self.threads)
        return [value[lane // WAVE * WAVE + at[:, 0].astype(np.int64) // 4 % WAVE]]

    def rocdl_permlanex16(
        self, op: Operation, old: Array, value: Array, low: Array, high: Array
    ) -> list[Any]:
        """Read a lane of the other half of the wave, chosen by four bits for each lane."""
        lane = np.arange(self.threads)
        chosen = np.where(lane % 16 < 8, low[:, 0], high[:, 0]).astype(np.int64)
        return [value[(lane // 16 ^ 1) * 16 + (chosen >> 4 * (lane % 8) & 15)]]

    def amdgpu_dpp(self, op: Operation, old: Array, value: Array) -> list[Any]:
        """Permute the lanes of each four, or reverse those of each eight or sixteen."""
        lane = np.arange(self.threads)
        if "quad_perm" in str(op.attributes["kind"]):
            order = np.array([each.value for each in op.attributes["permArgument"]])
            return [value[lane // 4 * 4 + order[lane % 4]]]
        if "row_mirror" in str(op.attributes["kind"]):
            return [value[lane // 16 * 16 + 15 - lane % 16]]
        assert "row_half_mirror" in str(op.attributes["kind"])
        return [value[lane // 8 * 8 + 7 - lane % 8]]

    # Matrices.

    def _matrix(self, raw: Array, kind: str, width: int, depth: int) -> Array:
        """Return the fragments of the lanes of each wave as matrices, [waves, 16, depth].

        If a lane has a whole row (gfx1151), lanes l and l + 16 must have the same one.
        """
        waves = raw.reshape(-1, WAVE, raw.shape[1])
        numbers = with_sign(waves, 8) if kind == "i8" else floats(waves, kind)
        numbers = numbers.astype(np.float64)
        if raw.shape[1] == depth:
            assert (waves[:, :16] == waves[:, 16:]).all()
            return numbers[:, :16]
        lane, i = np.arange(WAVE)[:, None], np.arange(raw.shape[1])[None]
        whole = np.full((len(waves), 16, depth), np.nan)
        whole[:, lane % 16, _ALONG_K[depth, width](i, lane // 16)] = numbers
        return whole

    def _products(
        self, op: Operation, c: Array, sides: Sequence[tuple[Array, Array | None]]
    ) -> list[Any]:
        depth = ir.IntegerAttr(op.attributes["k"]).value
        whole = []
        for operand, (raw, scales) in zip(op.operands, sides, strict=False):
            kind, width, _ = kind_of(operand)
            matrix = self._matrix(raw, kind, width, depth)
            if scales is not None:
                own = floats(scales.reshape(-1, WAVE, 4)[:, :16], "f8E8M0FNU").astype(np.float64)
                matrix = matrix * np.repeat(own, 32, axis=2)
            whole.append(matrix)
        product = whole[0] @ whole[1].swapaxes(1, 2)
        lane, i = np.arange(WAVE)[:, None], np.arange(8)[None]
        twice = sides[0][0].shape[1] == depth
        part = product[:, 2 * i + lane // 16 if twice else i + 8 * (lane // 16), lane % 16]
        if kind_of(op.results[0])[0] == "i32":
            whole_numbers = with_sign(c, 32) + part.reshape(c.shape).astype(np.int64)
            return [raw_of(whole_numbers.astype(np.int32))]
        total = floats(c, "f32").astype(np.float64) + part.reshape(c.shape)
        return [raw_of(total.astype(np.float32))]

    def amdgpu_wmma(self, op: Operation, a: Array, b: Array, c: Array) -> list[Any]:
        return self._products(op, c, [(a, None), (b, None)])

    def amdgpu_scaled_wmma(
        self, op: Operation, a: Array, b: Array, c: Array, of_a: Array, of_b: Array
    ) -> list[Any]:
        sides = []
        for side, raw, scales in (("a", a, of_a), ("b", b, of_b)):
            first = ir.IntegerAttr(op.attributes[f"{side}_first_scale_lane"]).value
            # Row r of each wave has the scales of its lane first + r.
            sides.append((raw, np.roll(scales.reshape(-1, WAVE, 4), -first, axis=1).reshape(-1, 4)))
        return self._products(op, c, sides)
