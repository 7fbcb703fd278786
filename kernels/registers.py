"""Atoms of vector registers in numpy. A lane is a column of the result, and an activation is
broadcast to all lanes.

floats    f32, one per lane: a fused multiply-add
pairs     bf16, two per lane, summed in f32
quads     bytes, four per lane, summed in i32; where the instruction needs unsigned weights, they
          are decoded `excess` too large, and the sum starts at -excess * the sum of the activations
"""

from __future__ import annotations

import numpy as np

from mxc.kernels.decode import F32, I32, paired, panel_layout
from mxc.kernels.language import Atom, Element, Numbers
from mxc.kernels.layout import Kind, Layout

#: Name of the atom of a dot product of each kind.
NAMES: dict[Kind, str] = {
    "floats": "multiply-add",
    "pairs": "dot product of pairs",
    "quads": "dot product of quads",
}


def sums_of(kind: Kind) -> Element:
    """The element type of sums: i32 for quads, f32 for the other kinds."""
    return I32 if kind == "quads" else F32


def columns(lanes: int) -> Layout:
    """Layout of a register of sums, with one column per lane."""
    return Layout(lane=tuple(("n", bit) for bit in range(lanes.bit_length() - 1)))


def weights_of(bits: int, kind: Kind, lanes: int, step: int) -> Layout:
    """Layout of the decoded weights of a K step of `step` elements, register after register."""
    return _codes(bits, lanes, step).taken(kind)


def _codes(bits: int, lanes: int, step: int) -> Layout:
    """Layout of the codes of a K step, for registers of `lanes` columns."""
    found = panel_layout(bits).of_lanes("n", lanes)
    kept = tuple(bit for bit in found.register if 1 << bit[1] < step)
    return Layout(found.item, found.lane, kept)


def dot(kind: Kind, lanes: int, weights: Layout) -> Atom:
    """The atom sums [1, lanes, 1] += activations [1, 1, items] times weights [1, lanes, items]."""
    own = Layout(weights.item, weights.lane)

    def run(sums: Numbers, a: Numbers, w: Numbers) -> Numbers:
        if kind == "quads":
            products = a.astype(np.int32) * w.astype(np.int32)
            found: Numbers = sums + products.sum(axis=2, keepdims=True)
            return found
        with np.errstate(over="ignore", invalid="ignore"):
            for item in range(w.shape[2]):
                product = a[..., item : item + 1].astype(np.float64) * w[..., item : item + 1]
                sums = (sums + product).astype(np.float32)
        return sums

    return Atom(NAMES[kind], (columns(lanes), Layout(weights.item), own), run)


def scale(lanes: int, by_row: bool, scales: Element | None) -> Atom:
    """The atom totals += sums * scale of the row's block * scales of the columns.

    The last multiplication is fused with the addition. `by_row`: whether activations have scales.
    `scales`: the type of the scales of weights; None if the sums are not multiplied by them.
    Without either scale, the sums are added.
    """
    operands = (*([Layout()] * by_row), *([columns(lanes)] if scales is not None else []))

    def run(totals: Numbers, sums: Numbers, *by: Numbers) -> Numbers:
        factors = [by[0]] if by_row else []
        if scales is not None:
            factors.append(by[-1] if scales.values is None else scales.values[by[-1]])
        found = sums.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for factor in factors[:-1]:
                found = found * factor
            last = factors[-1] if factors else 1.0
            return (totals + found.astype(np.float64) * last).astype(np.float32)

    if not by_row and scales is None:
        return Atom("add", (columns(lanes), columns(lanes)), run)
    name = "multiply, multiply-add" if by_row and scales is not None else "multiply-add"
    return Atom(name, (columns(lanes), columns(lanes), *operands), run)


def factors(lanes: int, scales: Element) -> Atom:
    """The atom that converts the scales of a block to f32."""

    def run(out: Numbers, raw: Numbers) -> Numbers:
        return (raw if scales.values is None else scales.values[raw]).astype(np.float32)

    return Atom("to f32", (columns(lanes), columns(lanes)), run)


def decoder(
    codes: Element, into: Element, kind: Kind, lanes: int, step: int, scales: Element | None = None,
    parts: int = 1,
) -> Atom:  # fmt: skip
    """The atom that turns codes [dwords, lanes, items] into operands of a dot product. With
    `scales`, one for each of the `parts` blocks of the step, each element is multiplied by its
    scale and rounded to `into`."""
    raw = _codes(codes.bits, lanes, step)

    def run(out: Numbers, given: Numbers, *by: Numbers) -> Numbers:
        dwords, width, items = given.shape
        if kind == "quads":
            shifts = given.reshape(dwords, width, 4, items // 4).transpose(0, 3, 1, 2)
            ordered = shifts.reshape(-1, width, 4)
        elif items == 1:
            ordered = given
        else:
            ordered = paired(given)
            if kind == "floats":
                ordered = ordered.transpose(0, 2, 1).reshape(-1, width, 1)
        values = ordered if codes.values is None else codes.values[ordered] + into.excess
        if scales is not None:
            factor = by[0] if scales.values is None else scales.values[by[0]]
            with np.errstate(invalid="ignore"):
                factor = np.repeat(factor, len(values) // parts, axis=0)
                values = values.astype(np.float32) * factor
        found: Numbers = values.astype(into.numpy)
        return found

    found = columns(lanes)
    if parts > 1:
        found = Layout((), found.lane, tuple(("k", bit) for bit in range(parts.bit_length() - 1)))
    operands = (raw, *([found] if scales is not None else []))
    name = "move" if codes.values is None else "look up"
    name += ", multiply, round" if scales is not None else ""
    return Atom(name, (raw.taken(kind), *operands), run)
