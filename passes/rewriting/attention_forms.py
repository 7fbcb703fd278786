"""Recognize attention that a program writes as a product, a softmax and a product.

    products = queries . keys                            a contraction over D
    scores   = products * c, + mask, or where(mask, ..)  in any order of scale before mask
    weights  = exp(scores - max of scores) / sum of exp  reductions over S
    result   = weights . values                          a contraction over S

S and D are loops of attention_loops.py: keys, and elements of a key. The weights of the second
contraction are followed upwards, as trees (dialects/scalar_trees.py) over these loops, so that
copies, transposes, broadcasts and reshapes in between make no difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.indexing import (
    dim_of,
    indexing_maps,
    loop_ranges,
    resolve,
    trace,
)
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_nodes import Apply, TensorElement, Tree, loops_of, reads
from mxc.dialects.scalar_trees import body_tree, tree_of
from mxc.passes.rewriting.attention_loops import D, S, T, attention_loops, index_of
from mxc.passes.rewriting.between_products import (
    MAXIMA,
    Between,
    between_products,
    reduced_loop,
    sides_of,
)
from mxc.passes.rewriting.digits import simplified
from mxc.passes.rewriting.float_trees import inputs_of, number_in, plain
from mxc.passes.rewriting.starts import is_neutral, number_of_all


@dataclass(frozen=True)
class TensorRead:
    """A tensor, and the indices at which attention reads it, over the loops of attention."""

    value: ir.Value
    at: list[ir.AffineExpr]


@dataclass(frozen=True)
class Masked:
    """A mask that chooses scores: they become `score` where `condition` equals `where`."""

    condition: Tree
    where: bool
    score: float


@dataclass(frozen=True)
class AttentionForm:
    """Attention whose second contraction is `op`.

    `scale`: multiplies the products. `masks`: each is a tree that is added to scores, or replaces
    them (`Masked`), the outermost first. `ranges`: iterations of each loop, None if dynamic.
    `result`: the indices of an element of the result. `inner`: whether heads lie inside of keys,
    [N, S, V, ..], instead of outside, [N, V, S, ..]. `rounded`: the types narrower than f32 to
    which scores and weights are rounded. `guarded`: whether the program sets weights to zero where
    all scores of a query are -inf.
    """

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
    """A contraction `op` of weights that are computed from another contraction, with exponentials
    and a maximum, and of values. `weights`, `values`: the numbers of its operands."""

    op: ir.Operation
    weights: int
    values: int
    between: Between


def softmax_product(op: ir.Operation) -> SoftmaxProduct | None:
    """`op` as a contraction that may end attention; None for another operation."""
    sides = sides_of(op)
    if sides is None or reduced_loop(op) is None:
        return None
    for weights, values in (sides, sides[::-1]):
        found = between_products(op.operands[weights])
        if found is not None:
            return SoftmaxProduct(op, weights, values, found)
    return None


def attention_form(found: SoftmaxProduct, *, traced: bool, grouped: bool) -> AttentionForm | Reason:
    """The attention that a contraction ends, or the reason why it is none.

    `traced`: whether queries, keys and values are followed through copies to their source, so that
    heads that share keys are known. `grouped`: whether a loop of queries that is collapsed from two
    dimensions is taken as query heads that share keys, and the queries of each.
    """
    try:
        return _Match(found.op, found.weights, found.values, found.between, traced, grouped).form()
    except _Unmatched as unmatched:
        return Reason(str(unmatched))


class _Unmatched(Exception):
    """The program is not attention in a known form; the text is the reason."""


@dataclass
class _Match:
    """The match of one contraction; see SoftmaxProduct, attention_form and AttentionForm."""

    op: ir.Operation
    weights: int
    values: int
    between: Between
    traced: bool
    grouped: bool
    ranges: list[int | None] = field(default_factory=lambda: [None] * 7)
    rounded: dict[str, None] = field(default_factory=dict)
    guarded: bool = False

    def form(self) -> AttentionForm:
        """Return the attention. Raises _Unmatched if it has another form."""
        op, (_, _, written) = self.op, indexing_maps(self.op)
        loops = attention_loops(
            op, self.weights, self.values, traced=self.traced, grouped=self.grouped
        )
        if isinstance(loops, Reason):
            raise _Unmatched(loops.text)
        self.ranges, places = loops.ranges, loops.places
        result = self._at(written, places)
        values = self._side(op, self.values, places)
        at = self._at(indexing_maps(op)[self.weights], places)
        tree = tree_of(op.operands[self.weights], at, self.ranges, self._enters)
        self.rounded |= dict.fromkeys(self.between.roundings(tree))
        scores, product = self._softmax(tree)
        scale, masks = self._masks(scores)
        queries, keys = self._first(product)
        return AttentionForm(
            op, queries, keys, values, scale, masks, self.ranges, result, loops.inner,
            tuple(self.rounded), self.guarded,
        )  # fmt: skip

    def _side(self, op: ir.Operation, number: int, places: list[ir.AffineExpr]) -> TensorRead:
        """Operand `number` of a contraction, and the indices at which it is read. `places`: the
        index, over the loops of attention, of each loop of the contraction."""
        value, at = op.operands[number], self._at(indexing_maps(op)[number], places)
        if self.traced:
            value, at = trace(value, at, self.ranges)
        return TensorRead(value, self._simple(at))

    def _simple(self, at: Sequence[ir.AffineExpr]) -> list[ir.AffineExpr]:
        return [simplified(index, self.ranges) for index in at]

    def _at(self, affine: ir.AffineMap, places: list[ir.AffineExpr]) -> list[ir.AffineExpr]:
        return self._simple([resolve(index, places, self.ranges) for index in affine.results])

    def _enters(self, value: ir.Value) -> bool:
        """Whether trees follow how a tensor is computed; otherwise it is a leaf."""
        between = value in self.between.values and value != self.between.first.results[0]
        return between or number_of_all(value) is not None

    def _first(self, product: TensorElement) -> tuple[TensorRead, TensorRead]:
        """Queries and keys of the first contraction. `product`: the element of it that scores
        read."""
        first = self.between.first
        maps, sizes, inner = indexing_maps(first), loop_ranges(first), reduced_loop(first)
        if inner is None:
            raise _Unmatched("its scores are sums over several loops")
        self.ranges[D] = sizes[inner]
        places = [index_of(D)] * len(sizes)
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
        """Match the weights `tree` as a softmax. Return its scores, and the element of the first
        contraction that they read."""
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
        """Yield the elements of the first contraction that a tree reads."""
        first = self.between.first.results[0]
        return (read for read in reads(tree) if read.value == first)

    def _reduction(self, tree: Tree, names: Sequence[str], product: TensorElement) -> Tree:
        """Return the scalar that a reduction over the keys reduces.

        `tree`: an element of the result of the reduction. `names`: the operations by which it may
        reduce. `product`: the scalar must read the first contraction at the same indices.
        """
        read = plain(tree)
        # The maximum of a maximum and -inf is the inner maximum.
        both = [each for name in MAXIMA for each in inputs_of(read, name) or ()]
        if -math.inf in map(number_in, both):
            read = plain(next((each for each in both if number_in(each) != -math.inf), read))
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
        places = [index_of(S)] * len(loop_ranges(op))
        for index, each in zip(indexing_maps(op)[inputs + number].results, read.at, strict=True):
            loop = dim_of(index)
            assert loop is not None
            places[loop] = each
        found = [resolve(index, places, self.ranges) for index in own[0]]
        if self._simple(found) != self._simple(product.at):
            raise _Unmatched("its maximum or sum is not one of the same keys")
        return plain(inner)

    def _require(self, found: Tree, wanted: Tree) -> None:
        """Require that two trees have the same operation or tensor at their roots. The elements of
        the first contraction that they read have been compared by `_reduction`."""
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
        """Require that the condition `found` says that all scores of a query are -inf.

        It may also be written as the negation of that any score is not -inf. `negated`: whether
        the negation of the condition is required instead.
        """
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
        """The scale of the products in the scores `tree`, and the masks, the outermost first."""
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
                if low is None or low >= 0:
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
