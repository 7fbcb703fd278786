"""Find pairs of contractions of which the second reads exponentials of results of the first, as in
attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import is_made_by, iterators
from mxc.dialects.indexing import dim_of, indexing_maps
from mxc.dialects.scalar_nodes import Tree, parts, reads
from mxc.dialects.scalar_trees import inputs_of
from mxc.passes.rewriting.generics import yielded
from mxc.passes.rewriting.starts import starts_from_zero

#: Most values that are followed between the contractions, with those that masks are computed from.
_MOST = 512
#: Bits of f32.
_F32 = 32
#: Operations that compute the greater of two floats.
MAXIMA = ("arith.maximumf", "arith.maxnumf")


def sides_of(op: ir.Operation) -> tuple[int, int] | None:
    """The numbers of the two operands whose products an operation sums in f32, starting from zero;
    None for other operations."""
    if not op.name.startswith("linalg.") or len(op.results) != 1 or len(op.operands) != 3:
        return None
    if not op.regions or not op.regions[0].blocks:
        return None
    total = yielded(op)
    if isinstance(total, ir.BlockArgument) or total.owner.name != "arith.addf":
        return None
    block = op.regions[0].blocks[0]
    terms = [each for each in total.owner.operands if each != block.arguments[2]]
    if len(terms) != 1 or isinstance(terms[0], ir.BlockArgument):
        return None
    product = terms[0].owner
    if product.name != "arith.mulf" or not isinstance(terms[0].type, ir.F32Type):
        return None
    numbers = []
    for factor in product.operands:
        if is_made_by(factor, "arith.extf"):
            factor = factor.owner.operands[0]
        if not isinstance(factor, ir.BlockArgument) or factor.owner != block:
            return None
        numbers.append(factor.arg_number)
    if sorted(numbers) != [0, 1] or not starts_from_zero(op.operands[2]):
        return None
    return numbers[0], numbers[1]


def reduced_loop(op: ir.Operation) -> int | None:
    """The one loop over which an operation reduces; None if it has several or none, or if an index
    of an operand is not a single loop."""
    found = [i for i, kind in enumerate(iterators(op)) if "reduction" in str(kind)]
    plain = all(dim_of(e) is not None for each in indexing_maps(op) for e in each.results)
    return found[0] if plain and len(found) == 1 else None


@dataclass(frozen=True)
class Between:
    """What is between two contractions. `first`: the first contraction, of the scores. `values`:
    its result and the tensors that depend on it, up to the operand of the second."""

    first: ir.Operation
    values: set[ir.Value]

    def roundings(self, tree: Tree) -> Iterator[str]:
        """Yield the type of each float narrower than f32 that a tree computes from the first
        contraction."""
        if any(read.value in self.values for read in reads(tree)):
            if isinstance(tree.type, ir.FloatType) and tree.type.width < _F32:
                yield str(tree.type)
            for part in parts(tree):
                yield from self.roundings(part)


def between_products(value: ir.Value) -> Between | None:
    """What is between a first contraction and `value`, an operand of a second one.

    None where this can be no softmax: `value` depends on no contraction or several, or there is no
    exponential or no maximum over a loop in between.
    """
    depends: dict[ir.Value, bool] = {}
    first: list[ir.Operation] = []
    scalars: set[str] = set()

    def visit(value: ir.Value) -> bool:
        if value in depends:
            return depends[value]
        depends[value] = False
        if isinstance(value, ir.BlockArgument) or len(depends) > _MOST:
            return False
        op = value.owner.operation
        if sides_of(op) is not None:
            first.append(op)
            depends[value] = True
            return True
        reduction = op.name.startswith("linalg.") and reduced_loop(op) is not None
        inputs = list(op.operands)[:1] if reduction else inputs_of(op)
        some = [visit(each) for each in inputs or () if isinstance(each.type, ir.RankedTensorType)]
        depends[value] = any(some)
        if any(some) and op.name.startswith("linalg."):
            names = {inner.operation.name for inner in op.regions[0].blocks[0].operations}
            scalars.update(names & {"math.exp"} if not reduction else names & set(MAXIMA))
        return depends[value]

    soft = visit(value) and "math.exp" in scalars and scalars & set(MAXIMA)
    if not soft or len(set(first)) != 1 or first[0].results[0] == value:
        return None
    return Between(first[0], {each for each, known in depends.items() if known})
