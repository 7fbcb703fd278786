"""Recognize attention that a program writes as a product, a softmax and a product.

    products = queries . keys                            a contraction over D
    scores   = products * c, + mask, or where(mask, ..)  in any order of scale before mask
    weights  = exp(scores - max of scores) / sum of exp  reductions over S
    result   = weights . values                          a contraction over S

The scores are followed from the second contraction upwards, as trees (dialects/scalar_trees.py)
over the loops

    n v g     sequence, key/value head, query head of it
    t s       query, key
    d m       element of a key, of a value

so that copies, transposes, broadcasts and reshapes in between make no difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dense_attention import LOW
from mxc.dialects.generic import shape_of
from mxc.dialects.indexing import (
    dim_of,
    indexing_maps,
    loop_ranges,
    moved,
    quotient,
    remainder,
    resolve,
    trace,
)
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_nodes import Apply, TensorElement, Tree, loops_of, reads
from mxc.dialects.scalar_trees import body_tree, tree_of
from mxc.passes.rewriting.between_products import (
    MAXIMA,
    Between,
    between_products,
    reduced_loop,
    sides_of,
)
from mxc.passes.rewriting.digits import number_of, simplified
from mxc.passes.rewriting.float_trees import inputs_of, number_in, plain
from mxc.passes.rewriting.starts import is_neutral

#: The loops.
N, V, G, T, S, D, M = range(7)

_COLLAPSE = "tensor.collapse_shape"


@dataclass(frozen=True)
class TensorRead:
    """A tensor, and the indices at which it is read."""

    value: ir.Value
    at: list[ir.AffineExpr]


@dataclass(frozen=True)
class Masked:
    """Scores become `score` where `condition` equals `where`."""

    condition: Tree
    where: bool
    score: float


@dataclass(frozen=True)
class AttentionForm:
    """Attention that `op`, the second contraction, ends. `ranges`: of the loops. `masks`: what is
    added to scores, or replaces them. `result`: the indices of an element of the result. `inner`:
    whether the keys of one head are behind those of the others, [N, S, V, D], not [N, V, S, D].
    `rounded`: the types to which scores and weights are rounded. `guarded`: whether weights are
    zero where all scores of a query are -inf."""

    op: ir.Operation
    queries: TensorRead
    keys: TensorRead
    values: TensorRead
    scale: float
    masks: list[Tree | Masked]
    ranges: list[int | None]
    result: list[ir.AffineExpr]
    inner: bool
    rounded: tuple[str, ...]
    guarded: bool


@dataclass(frozen=True)
class SoftmaxProduct:
    """`op` sums products of operand `weights`, which are computed by exponentials from another
    contraction, and operand `values`."""

    op: ir.Operation
    weights: int
    values: int
    between: Between


def softmax_product(op: ir.Operation) -> SoftmaxProduct | None:
    """A contraction whose weights have a maximum and exponentials; None for another operation."""
    sides = sides_of(op)
    if sides is None or reduced_loop(op) is None:
        return None
    for weights, values in (sides, sides[::-1]):
        found = between_products(op.operands[weights])
        if found is not None:
            return SoftmaxProduct(op, weights, values, found)
    return None


def attention_form(found: SoftmaxProduct, *, traced: bool, grouped: bool) -> AttentionForm | Reason:
    """The attention that a contraction ends, or the reason why it is none. `traced`: take queries,
    keys and values from where they are copied from. `grouped`: take two dimensions in a loop of
    queries as heads that share keys, and queries."""
    try:
        return _Match(found.op, found.weights, found.values, found.between, traced, grouped).form()
    except _Unmatched as unmatched:
        return Reason(str(unmatched))


class _Unmatched(Exception):
    """Attention in another form; the text is the reason."""


@dataclass
class _Match:
    """`traced`: follow keys and values through copies, so that heads that share them are known."""

    op: ir.Operation
    weights: int
    values: int
    between: Between
    traced: bool
    grouped: bool
    ranges: list[int | None] = field(default_factory=lambda: [None] * 7)
    inner: bool = False
    rounded: dict[str, None] = field(default_factory=dict)
    guarded: bool = False

    def form(self) -> AttentionForm:
        """Raises _Unmatched."""
        op, (_, _, written) = self.op, indexing_maps(self.op)
        places = self._places()
        result = self._at(written, places)
        values = self._side(op, self.values, places)
        at = self._at(indexing_maps(op)[self.weights], places)
        tree = tree_of(op.operands[self.weights], at, self.ranges, self._enters)
        self.rounded |= dict.fromkeys(self.between.roundings(tree))
        scores, product = self._softmax(tree)
        scale, masks = self._masks(scores)
        queries, keys = self._first(product)
        return AttentionForm(
            op, queries, keys, values, scale, masks, self.ranges, result, self.inner,
            tuple(self.rounded), self.guarded,
        )  # fmt: skip

    def _places(self) -> list[ir.AffineExpr]:
        """The loops of the second contraction as digits."""
        op = self.op
        maps, sizes, over = indexing_maps(op), loop_ranges(op), reduced_loop(op)
        read = [set(loops_of(each.results)) for each in maps]
        parallel = [loop for index in maps[2].results if (loop := dim_of(index)) is not None]
        batch = [i for i in parallel if i in read[self.weights] and i in read[self.values]]
        rows = [i for i in parallel if i not in read[self.values]]
        columns = [i for i in parallel if i not in read[self.weights]]
        if len(rows) > 1 or len(columns) != 1 or over is None:
            raise _Unmatched("it has several loops of queries")
        known = [size for i in batch if (size := sizes[i]) is not None]
        if len(known) != len(batch):
            raise _Unmatched("the number of its sequences or heads is dynamic")
        self.ranges[T] = sizes[rows[0]] if rows else 1
        self.ranges[S], self.ranges[M] = sizes[over], sizes[columns[0]]
        self._divide(math.prod(known), over)
        found: dict[int, ir.AffineExpr] = {over: _loop(S), columns[0]: _loop(M)}
        stride = math.prod(known)
        whole = number_of([N, V, G], self.ranges)
        for loop, size in zip(batch, known, strict=True):
            stride //= size
            index = quotient(whole, stride, self.ranges) if stride > 1 else whole
            found[loop] = index if loop == batch[0] else remainder(index, size, self.ranges)
        found |= {row: self._queries(row) for row in rows}
        return [found[i] for i in range(len(sizes))]

    def _divide(self, count: int, over: int) -> None:
        """Divide a batch into sequences, key/value heads and query heads of each.

        Key/value heads are the last dimension of the values that is neither keys nor elements."""
        op, maps = self.op, indexing_maps(self.op)
        weights = set(loops_of(maps[self.weights].results)) - {over}
        value, at = op.operands[self.values], list(maps[self.values].results)
        shape, loops = shape_of(value), [set(loops_of([index])) for index in at]
        while self.traced and not isinstance(value, ir.BlockArgument):
            step = moved(value.owner, at, loop_ranges(op))
            if step is None:
                break
            value, at = step
            found = [set(loops_of([index])) for index in at]
            # Past a product of all heads, a dimension may be of several kinds.
            if all(len(own) < 2 or own <= weights for own in found):
                shape, loops = shape_of(value), found
        batch = [i for i, own in enumerate(loops) if own <= weights]
        pairs = math.prod(shape[axis] for axis in batch)
        self.ranges[N], self.ranges[V], self.ranges[G] = count, 1, 1
        if batch and count % pairs == 0:
            heads = shape[batch[-1]]
            self.ranges[N], self.ranges[V], self.ranges[G] = pairs // heads, heads, count // pairs
            self.inner = any(over in own for own in loops[: batch[-1]])

    def _queries(self, row: int) -> ir.AffineExpr:
        """The loop of queries as digits: query heads, and queries of each, where it is both."""
        value, at = self.op.operands[self.weights], indexing_maps(self.op)[self.weights].results
        made = None if isinstance(value, ir.BlockArgument) else value.owner.operation
        rows = self.ranges[T]
        if not self.grouped or rows is None or made is None or made.name != _COLLAPSE:
            return _loop(T)
        group = ir.ArrayAttr(made.attributes["reassociation"])[list(map(dim_of, at)).index(row)]
        sizes = [shape_of(made.operands[0])[ir.IntegerAttr(axis).value] for axis in group]
        if len(sizes) == 2 and self.ranges[G] == 1:
            self.ranges[G], self.ranges[T] = sizes
        return number_of([G, T], self.ranges)

    def _side(self, op: ir.Operation, number: int, places: list[ir.AffineExpr]) -> TensorRead:
        """An operand of a contraction, read at digits."""
        value, at = op.operands[number], self._at(indexing_maps(op)[number], places)
        if self.traced:
            value, at = trace(value, at, self.ranges)
        return TensorRead(value, self._simple(at))

    def _simple(self, at: Sequence[ir.AffineExpr]) -> list[ir.AffineExpr]:
        return [simplified(index, self.ranges) for index in at]

    def _at(self, affine: ir.AffineMap, places: list[ir.AffineExpr]) -> list[ir.AffineExpr]:
        return self._simple([resolve(index, places, self.ranges) for index in affine.results])

    def _enters(self, value: ir.Value) -> bool:
        return value in self.between.values and value != self.between.first.results[0]

    def _first(self, product: TensorElement) -> tuple[TensorRead, TensorRead]:
        """Queries and keys of the first contraction."""
        first = self.between.first
        maps, sizes, inner = indexing_maps(first), loop_ranges(first), reduced_loop(first)
        if inner is None:
            raise _Unmatched("its scores are sums over several loops")
        self.ranges[D] = sizes[inner]
        places = [_loop(D)] * len(sizes)
        for index, each in zip(maps[2].results, self._simple(product.at), strict=True):
            loop = dim_of(index)
            assert loop is not None
            places[loop] = each
        both = [self._side(first, number, places) for number in range(2)]
        keys = [S in loops_of(side.at) for side in both]
        if sorted(keys) != [False, True] or T in loops_of(both[keys.index(True)].at):
            raise _Unmatched("its scores are not of queries times keys")
        return both[keys.index(False)], both[keys.index(True)]

    def _softmax(self, tree: Tree) -> tuple[Tree, TensorElement]:
        """The scores of a softmax, and the element of the first contraction that they read."""
        guard: Tree | None = None
        chosen = inputs_of(tree, "arith.select")
        if chosen is not None and number_in(chosen[1]) == 0:
            guard, _, tree = chosen
        divided = inputs_of(tree, "arith.divf")
        if divided is None:
            raise _Unmatched("its weights are not divided by their sum")
        weight, total = map(plain, divided)
        power = inputs_of(weight, "math.exp")
        difference = None if power is None else inputs_of(power[0], "arith.subf")
        if difference is None:
            raise _Unmatched("its weights are not exponentials of scores minus their maximum")
        scores, maximum = map(plain, difference)
        found = {read.at: read for read in self._products(scores)}
        if len(found) != 1:
            raise _Unmatched("its scores are not computed from one product each")
        (product,) = found.values()
        self._require(self._reduction(total, ("arith.addf",), product), weight)
        self._require(self._reduction(maximum, MAXIMA, product), scores)
        if guard is not None:
            self._require_empty(guard, scores, product)
            self.guarded = True
        return scores, product

    def _products(self, tree: Tree) -> Iterator[TensorElement]:
        first = self.between.first.results[0]
        return (read for read in reads(tree) if read.value == first)

    def _reduction(self, tree: Tree, names: Sequence[str], product: TensorElement) -> Tree:
        """What a reduction over the keys, of one of these operations, reduces."""
        read = plain(tree)
        op = None
        if isinstance(read, TensorElement) and not isinstance(read.value, ir.BlockArgument):
            op = read.value.owner.operation
        over = None if op is None or not op.name.startswith("linalg.") else reduced_loop(op)
        if op is None or over is None or not isinstance(read, TensorElement):
            raise _Unmatched("its maximum or sum is not one over the keys")
        number = ir.OpResult(read.value).result_number
        end = list(op.regions[0].blocks[0].operations)[-1].operands[number]
        block = op.regions[0].blocks[0]
        inputs = len(op.operands) - len(op.results)
        if isinstance(end, ir.BlockArgument) or end.owner.name not in names:
            raise _Unmatched("its maximum or sum is not one over the keys")
        if not is_neutral(op.operands[inputs + number], end.owner.name):
            raise _Unmatched("its maximum or sum starts from something that may change it")
        terms = [each for each in end.owner.operands if each != block.arguments[inputs + number]]
        inner = None
        if len(terms) == 1:
            inner = body_tree(op, terms[0], loop_ranges(op), self._enters)
        own = [] if inner is None else list({each.at: each for each in self._products(inner)})
        if inner is None or len(own) != 1:
            raise _Unmatched("its maximum or sum is not one of its scores")
        self.rounded |= dict.fromkeys(self.between.roundings(inner))
        places = [_loop(S)] * len(loop_ranges(op))
        for index, each in zip(indexing_maps(op)[inputs + number].results, read.at, strict=True):
            loop = dim_of(index)
            assert loop is not None
            places[loop] = each
        found = [resolve(index, places, self.ranges) for index in own[0]]
        if self._simple(found) != self._simple(product.at):
            raise _Unmatched("its maximum or sum is not one of the same keys")
        return plain(inner)

    def _require(self, found: Tree, wanted: Tree) -> None:
        """Require that two trees are of the same operation, at elements that were compared."""
        if isinstance(found, Apply) and isinstance(wanted, Apply) and found.op == wanted.op:
            return
        if (
            isinstance(found, TensorElement)
            and isinstance(wanted, TensorElement)
            and found.value == wanted.value
        ):
            return
        raise _Unmatched("its maximum or sum is one of other scores")

    def _require_empty(
        self, found: Tree, scores: Tree, product: TensorElement, *, negated: bool = False
    ) -> None:
        """Require that a condition is that all scores of a query are -inf: also as the negation of
        that any is not."""
        if isinstance(found, TensorElement):
            names = ("arith.ori",) if negated else ("arith.andi",)
            found = self._reduction(found, names, product)
        if isinstance(found, Apply) and found.op.name == "arith.cmpi":
            inner, false = found.inputs
            if number_in(false) == 0 and _predicate(found.op) == arith.CmpIPredicate.eq:
                return self._require_empty(inner, scores, product, negated=not negated)
        if isinstance(found, Apply) and found.op.name == "arith.cmpf" and not negated:
            score, low = map(plain, found.inputs)
            if number_in(low) == -math.inf and _predicate(found.op) == arith.CmpFPredicate.OEQ:
                return self._require(score, scores)
        raise _Unmatched("its weights are replaced under a condition")

    def _masks(self, tree: Tree) -> tuple[float, list[Tree | Masked]]:
        """The scale of scores, and what is added to them, from the outside to the product."""
        scale, masks, tree = 1.0, list[Tree | Masked](), plain(tree)
        while isinstance(tree, Apply):
            sides = [any(True for _ in self._products(each)) for each in tree.inputs]
            numbers = [number_in(each) for each in tree.inputs]
            inner = sides.index(True)
            if sum(sides) != 1:
                break
            factor = numbers[1 - inner] if len(numbers) == 2 else None
            if tree.op.name == "arith.mulf" and factor is not None:
                scale *= factor
            elif tree.op.name == "arith.divf" and inner == 0 and factor:
                scale /= factor
            elif tree.op.name == "arith.addf" and scale == 1.0:
                masks.append(tree.inputs[1 - inner])
            elif tree.op.name == "arith.select" and inner and scale == 1.0:
                low = numbers[3 - inner]
                if low is None or low > LOW:
                    break
                masks.append(Masked(tree.inputs[0], inner == 2, low))
            else:
                break
            tree = plain(tree.inputs[inner])
        if isinstance(tree, TensorElement):
            return scale, masks
        name = tree.op.name if isinstance(tree, Apply) else "an unknown operation"
        raise _Unmatched(f"its scores are computed by {name}")


def _predicate(op: ir.Operation) -> int:
    return int(ir.IntegerAttr(op.attributes["predicate"]).value)


def _loop(number: int) -> ir.AffineExpr:
    return ir.AffineDimExpr.get(number)
