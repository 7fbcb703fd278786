"""How the rotary pairs of a head are rotated in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.artifact.pages import PAGE_BLOCK
from mxc.dialects.generic import shape_of
from mxc.dialects.rotary_writes import RotaryWrite
from mxc.passes.kernels.vectors import below, i1, index, table

#: Least elements of a run for packed pages.
LEAST = 8


@dataclass(frozen=True)
class Rotation:
    """`pairs` of elements of a head of `depth` that are rotated, their parts `distance` apart (1:
    interleaved; see dialects/rotary_writes.py), taken in runs of `run` elements."""

    depth: int
    pairs: int
    distance: int
    run: int

    @staticmethod
    def of(call: RotaryWrite, lanes: int) -> Rotation | None:
        """The rotation of a call; None where its elements cannot be cut into runs.

        A run has `lanes` elements for pages of floats. For packed pages it is as long as possible,
        from LEAST elements to a block.
        """
        depth, pairs = shape_of(call.pool)[-1], shape_of(call.cos)[1]
        ends = [depth, 2 * pairs] if call.distance == 1 else [depth, pairs, call.distance]
        whole = gcd(*ends)
        run = lanes if call.format is None else gcd(whole, PAGE_BLOCK)
        least = lanes if call.format is None else LEAST
        if whole % run or run < least:
            return None
        return Rotation(depth, pairs, call.distance, run)

    @property
    def name(self) -> str:
        """The suffix of symbols: empty if all of a head is rotated, the real parts first."""
        whole = self.pairs == self.distance == self.depth // 2
        return "" if whole else f"_{self.pairs}by{self.distance}"

    def rotated(
        self,
        element: ir.Value,
        elements: Callable[[ir.Value], ir.Value],
        angles: Callable[[ir.Value, int], Sequence[ir.Value]],
    ) -> ir.Value:
        """Build the rotated run that begins with `element` of a head: f32 [run].

        `elements(n)` loads the run of the head that begins with element n. `angles(pair, count)`
        loads the cosines and the sines of `count` pairs from number `pair` on.
        """
        own, nowhere = elements(element), index(0)
        if self.distance == 1:
            places = range(self.run)
            inside = below(element, 2 * self.pairs)
            pair = arith.select(inside, element // 2, nowhere)
            c, s = (
                vector.shuffle(found, found, [place // 2 for place in places])
                for found in angles(pair, self.run // 2)
            )
            other = vector.shuffle(own, own, [place ^ 1 for place in places])
            second = table(np.arange(self.run) % 2 == 1, i1())
        else:
            apart = index(self.distance)
            first = below(element, self.distance)
            pair = arith.select(first, element, element - apart)
            inside = below(pair, self.pairs)
            beside = arith.select(first, element + apart, pair)
            other = elements(arith.select(inside, beside, element))
            pair = arith.select(inside, pair, nowhere)
            c, s = angles(pair, self.run)
            second = first ^ 1
        kept, added = own * c, other * s
        value = arith.select(second, kept + added, kept - added)
        return arith.select(inside, value, own)

    def of_pairs(
        self, pair: Sequence[ir.Value], angles: Sequence[ir.Value]
    ) -> tuple[ir.Value, ir.Value]:
        """The rotated first and second elements of pairs, by their cosines and sines."""
        (first, second), (c, s) = pair, angles
        return first * c - second * s, second * c + first * s
