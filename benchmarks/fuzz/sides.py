"""MLIR of dequantized operands: every way from bytes and scales to floats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.description import FORMATS, Program, Side
from fuzz.epilogues import to_float
from fuzz.lookups import looked_up
from fuzz.writer import Read, Value, Writer


@dataclass(frozen=True)
class Operand:
    """What the contraction reads of a side.

    reads: tensors with the loops that index them. decode: writes the operations from a scalar of
    each tensor to the dequantized one, of type `Side.register`. blocks: whether k is two loops, `o`
    over blocks and `i` in a block.
    """

    reads: tuple[Read, ...]
    decode: Callable[..., str]
    blocks: bool = False


class Sides:
    """Writes the operands of a program.

    batched: whether the operands have the batch dimension of the program, if it has one. outer: the
    loop of the batch as the prefix of an index, or "". lead: the sizes before rows and k.
    """

    def __init__(self, program: Program, writer: Writer, *, batched: bool) -> None:
        self.program, self.w = program, writer
        batched = batched and program.batch > 0
        self.outer = "z " if batched else ""
        self.lead = [program.batch] if batched else []

    def side(self, side: Side, name: str, rows: str, count: int) -> Operand:
        """Write a packed operand: read in place if its style is "inline", else a tensor of floats.

        rows, count: the loop of its rows, m or n, and their number.
        """
        element, bits, scale, block = FORMATS[side.format]
        k, w = self.program.k, self.w
        # Loops of the elements and of the scales, outermost first; `rows` is m or n.
        order = f"{rows} k" if side.layout == "nk" else f"k {rows}"
        shape = [count, k] if side.layout == "nk" else [k, count]
        packed = [*self.lead, *shape[:-1], shape[-1] * bits // 8]
        data = w.argument(name, packed, "i8")
        blocks = [count, k // block] if side.scales == "nk" else [k // block, count]
        stored = "f32" if scale == "f32" else "i8"
        scales = w.argument(f"{name}_scale", [*self.lead, *blocks], stored)
        if side.factor in ("extf", "scaling_extf") and scale != stored:
            scales = w.bitcast(scales, scales.shape, scale)
        if side.elements != "cast":
            elements = looked_up(w, side.elements, data)
        elif element == "i8":
            elements = data
        else:
            elements = w.bitcast(data, [*self.lead, *shape], element)
        wide = side.kind.partition(">")[0]
        if side.style in ("stepwise", "late"):
            elements = self._each(elements, lambda e: self._widened(e, elements.element, wide),
                                  wide)  # fmt: skip
        if side.style == "stepwise":
            scales = self._each(scales, lambda s: self._factor(s, side, scales.element, wide), wide)

        def decode(e: str, s: str) -> str:
            (left, _), (right, _) = operand.reads
            return self._product(side, e, s, left.element, right.element, wide)

        order = f"{rows} k" if side.layout == "nk" else f"k {rows}"
        place = f"{rows} k/{block}" if side.scales == "nk" else f"k/{block} {rows}"
        here, there = f"{self.outer}{order}", f"{self.outer}{place}"
        if side.broadcast == "floordiv":
            operand = Operand(((elements, here), (scales, there)), decode)
        else:
            operand = self._blocked(side, elements, scales, rows, block, decode)
        if side.style == "inline":
            return operand
        if side.style == "whole":
            return self._whole(side, operand)
        if side.style == "late":
            value, (copy, _) = operand.reads[0], operand.reads[1]
            copy = self._each(copy, lambda s: self._factor(s, side, copy.element, wide), wide)
            operand = dataclasses.replace(operand, reads=(value, (copy, value[1])))
        return self._tensor(side, operand, rows, count, block)

    def _blocked(
        self, side: Side, elements: Value, scales: Value, rows: str, block: int,
        decode: Callable[..., str],
    ) -> Operand:  # fmt: skip
        """Write the broadcasts other than "floordiv". k of the elements becomes a loop over blocks
        and one in a block; or scales are repeated for each element, and k remains one loop."""
        w, lead = self.w, len(self.lead)
        axis = lead + (side.layout == "nk")
        count = elements.shape[axis] // block
        expanded = w.expand(elements, axis, [count, block])
        index = f"{rows} o i" if side.layout == "nk" else f"o i {rows}"
        of_scale = f"{rows} o" if side.scales == "nk" else f"o {rows}"
        here, there = f"{self.outer}{index}", f"{self.outer}{of_scale}"
        if side.broadcast == "blocks":
            return Operand(((expanded, here), (scales, there)), decode, blocks=True)
        if side.broadcast == "unit":
            last = len(scales.shape) - 1
            unit = w.expand(scales, last, [scales.shape[last], 1])
            return Operand(((expanded, here), (unit, f"{there} 0")), decode, blocks=True)
        # A scale for each element, in the shape of the elements.
        if side.broadcast == "broadcast":
            if side.scales != side.layout:
                scales = w.transpose(scales, [*range(lead), lead + 1, lead])
            copy = w.broadcast(scales, expanded.shape, [axis + 1])
        else:
            sizes = dict(zip(here.split(), expanded.shape, strict=True))
            copy = w.generic([(scales, there)], here, scales.element, sizes, lambda s: s)
        flat = w.collapse(copy, axis)
        order = f"{rows} k" if side.layout == "nk" else f"k {rows}"
        both = f"{self.outer}{order}"
        return Operand(((elements, both), (flat, both)), decode)

    def _tensor(self, side: Side, operand: Operand, rows: str, count: int, block: int) -> Operand:
        """Write the dequantized tensor, [rows, k] or [k, rows], by a linalg.generic."""
        index = operand.reads[0][1]
        sizes = {"z": self.program.batch, rows: count}
        sizes |= {"o": self.program.k // block, "i": block} if operand.blocks else {
            "k": self.program.k}  # fmt: skip
        sizes = {loop: sizes[loop] for loop in index.split()}
        rounds = side.style in ("stepwise", "late") and ">" in side.kind
        wide = side.kind.partition(">")[0] if rounds else side.register
        value = self.w.generic(list(operand.reads), index, wide, sizes, operand.decode)
        if rounds:
            value = self._each(value, lambda v: to_float(self.w, v, wide, side.register),
                               side.register)  # fmt: skip
        if operand.blocks:
            value = self.w.collapse(value, index.split().index("o"))
        order = f"{rows} k" if side.layout == "nk" else f"k {rows}"
        return Operand(((value, f"{self.outer}{order}"),), lambda a: a)

    def _whole(self, side: Side, operand: Operand) -> Operand:
        """Write the dequantized tensor by arithmetic on whole tensors."""
        (elements, index), (scales, _) = operand.reads
        wide, _, narrow = side.kind.partition(">")

        def apply(op: str, given: list[Value], kind: str, form: str) -> Value:
            out = Value("", elements.shape, kind)
            names = ", ".join(each.name for each in given)
            types = ", ".join(each.type for each in given) + (f" to {out.type}" if form else "")
            kinds = out.type if not form else types
            return self.w.value(f"{op} {names} : {kinds}", out.shape, kind)

        if side.factor == "scaling_extf":
            value = apply("arith.scaling_extf", [elements, scales], wide, "to")
        else:
            both = [apply("arith.extf", [each], wide, "to") for each in (elements, scales)]
            value = apply("arith.mulf", both, wide, "")
        if narrow:
            value = apply("arith.truncf", [value], narrow, "to")
        return Operand(((value, index),), lambda a: a)

    def _each(self, value: Value, body: Callable[[str], str], kind: str) -> Value:
        """Write a conversion of each element to the type `kind`; nothing if it has this type."""
        return value if value.element == kind else self.w.each(value, kind, body)

    # Scalars.

    def _widened(self, e: str, element: str, kind: str) -> str:
        """Write the conversion of an element to a float; mxint8 elements are in units of 1 / 64."""
        w = self.w
        if element != "i8":
            return to_float(w, e, element, kind)
        value = w.scalar(f"arith.sitofp {e} : i8 to {kind}")
        return w.scalar(f"arith.mulf {value}, {w.constant(0.015625, kind)} : {kind}")

    def _factor(self, s: str, side: Side, element: str, kind: str) -> str:
        """Write the conversion of a scale to a float by `side.factor`."""
        w = self.w
        if element == kind:
            return s
        if side.factor in ("extf", "scaling_extf"):
            return w.scalar(f"arith.extf {s} : {element} to {kind}")
        number = w.scalar(f"arith.extui {s} : i8 to i32")
        if side.factor == "shift":
            bits = w.scalar(f"arith.shli {number}, {w.scalar('arith.constant 23 : i32')} : i32")
            return w.scalar(f"arith.bitcast {bits} : i32 to f32")
        less = w.scalar(f"arith.subi {number}, {w.scalar('arith.constant 127 : i32')} : i32")
        if side.factor == "exp2":
            return w.scalar(f"math.exp2 {w.scalar(f'arith.sitofp {less} : i32 to f32')} : f32")
        if side.factor == "fpowi":
            return w.scalar(f"math.fpowi {w.constant(2.0, 'f32')}, {less} : f32, i32")
        exponent = w.scalar(f"arith.sitofp {less} : i32 to f32")
        return w.scalar(f"math.powf {w.constant(2.0, 'f32')}, {exponent} : f32")

    def _product(self, side: Side, e: str, s: str, element: str, scale: str, wide: str) -> str:
        """Write element times scale in the type `wide`, and its rounding if it is no later step."""
        w = self.w
        if side.factor == "scaling_extf":
            value = w.scalar(f"arith.scaling_extf {e}, {s} : {element}, {scale} to {wide}")
        else:
            a, b = self._widened(e, element, wide), self._factor(s, side, scale, wide)
            value = w.scalar(f"arith.mulf {a}, {b} : {wide}")
        stepwise = side.style in ("stepwise", "late")
        return value if stepwise else to_float(w, value, wide, side.register)
