"""The stages of an epilogue on registers: a body of scalars, built once more on vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.passes.kernels.epilogues import Epilogue, Reach, Stage
from mxc.passes.kernels.exponential import exponential
from mxc.passes.kernels.vectors import f32, index, of, splat

#: Up to here exp is taken at once.
_HIGH = 87.0


@dataclass(frozen=True)
class Place:
    """Some columns of one row; `mask`: which of the lanes are columns of the result."""

    row: ir.Value
    column: ir.Value
    mask: ir.Value | None


@dataclass(frozen=True)
class Finish:
    """An epilogue with the memrefs of its operands."""

    epilogue: Epilogue
    memrefs: Mapping[tuple[Reach, ir.Value], ir.Value]
    lanes: int

    def apply(self, totals: list[ir.Value], places: list[Place]) -> ir.Value:
        """The result of one total, or of the two of a gated epilogue, at their places."""
        for stage in self.epilogue.stages:
            if stage.gated:
                totals = [self._stage(stage, totals, places[0])]
            else:
                totals = [
                    self._stage(stage, [total], place)
                    for total, place in zip(totals, places, strict=True)
                ]
        (result,) = totals
        return result

    def _stage(self, stage: Stage, totals: list[ir.Value], place: Place) -> ir.Value:
        body = stage.op.regions[0].blocks[0]
        known: dict[ir.Value, ir.Value] = {}
        for argument, given in zip(body.arguments, stage.inputs, strict=False):
            if given.tensor is None:
                known[argument] = totals[given.reach == "second"]
                continue
            source = self.memrefs[given.reach, given.tensor]
            known[argument] = self._read(given.reach, source, place)
        for view in body.operations:
            op = view.operation
            if op.name == "linalg.yield":
                return self._spread(known[op.operands[0]])
            if op.name == "linalg.index":
                known[op.results[0]] = place.column
            elif op.name == "tensor.extract":
                table = self.memrefs["table", op.operands[0]]
                last = index(ir.MemRefType(table.type).shape[0] - 1)
                # As the kernel takes an expert that is none: the last one.
                at = [arith.minui(known[op.operands[1]], last), place.column]
                known[op.results[0]] = self._load(table, at, place)
            else:
                operands = [known[v] if v in known else _constant(v) for v in op.operands]
                known[op.results[0]] = self._compute(op, operands)
        raise AssertionError("a linalg body ends in a yield")

    def _read(self, reach: Reach, source: ir.Value, place: Place) -> ir.Value:
        if reach == "row":
            return memref.LoadOp(source, [place.row]).result
        at = [place.row, place.column] if reach == "cell" else [place.column]
        return self._load(source, at, place)

    def _load(self, source: ir.Value, at: list[ir.Value], place: Place) -> ir.Value:
        element = ir.MemRefType(source.type).element_type
        kind = of(element, self.lanes)
        if place.mask is None:
            return vector.load(kind, source, at)
        return vector.maskedload(kind, source, at, place.mask, splat(0, element, self.lanes))

    def _compute(self, op: ir.Operation, operands: list[ir.Value]) -> ir.Value:
        """The operation on vectors where an operand is one, on scalars where none is."""
        wide = any(_is_vector(value) for value in operands)
        if wide:
            operands = [self._spread(value) for value in operands]
        if op.name == "math.exp":
            return _exponential(self._spread(operands[0]), self.lanes)
        kind = op.results[0].type
        attributes = {name: op.attributes[name] for name in op.attributes}
        results = [of(kind, self.lanes) if wide else kind]
        return ir.Operation.create(
            op.name, results=results, operands=operands, attributes=attributes
        ).result

    def _spread(self, value: ir.Value) -> ir.Value:
        """A scalar in every lane; vectors as they are."""
        if _is_vector(value):
            return value
        return vector.broadcast(of(value.type, self.lanes), value)


def _constant(value: ir.Value) -> ir.Value:
    """A constant of the program, built again in the kernel."""
    return arith.ConstantOp(value.type, value.owner.attributes["value"]).result


def _is_vector(value: ir.Value) -> bool:
    return isinstance(value.type, ir.VectorType)


def _exponential(x: ir.Value, lanes: int) -> ir.Value:
    """exp of any f32: where it may be infinite, the square of the exp of half of it."""
    high = arith.cmpf(arith.CmpFPredicate.OGT, x, splat(_HIGH, f32(), lanes))
    half = arith.mulf(x, splat(0.5, f32(), lanes))
    half = arith.minimumf(half, splat(_HIGH, f32(), lanes))
    found = exponential(arith.select(high, half, x))
    return arith.select(high, arith.mulf(found, found), found)
