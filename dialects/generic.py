"""`linalg.generic` from subscripts: the loops are letters, the body is a Python function.

    generic([(x, "m k"), (w, "n k")], "m n", f32, lambda x, w, acc: ...)

builds
    linalg.generic {indexing_maps = [(m,n,k)->(m,k), (m,n,k)->(n,k), (m,n,k)->(m,n)],
                    iterator_types = ["parallel", "parallel", "reduction"]}

Loops of the result come first, in its order, then the loops that only inputs have (reductions),
in the order in which they appear.
"""

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.dialects.sizes import axes_of, size_of
from mxc.dialects.sizes import constant as constant
from mxc.dialects.sizes import element_of as element_of
from mxc.dialects.sizes import i32 as i32
from mxc.dialects.sizes import shape_of as shape_of

Body = Callable[..., ir.Value]


def to_f32(value: ir.Value) -> ir.Value:
    """A float extended to f32."""
    wide = ir.F32Type.get()
    return value if value.type == wide else arith.extf(wide, value)


def empty(sizes: Sequence[int | ir.Value], element: ir.Type) -> ir.Value:
    """An uninitialised tensor; sizes given as values are dynamic."""
    return tensor.empty(list(sizes), element)


def fill(sizes: Sequence[int | ir.Value], element: ir.Type, value: float | int) -> ir.Value:
    """A tensor filled with one value."""
    return linalg.fill(constant(value, element), outs=[empty(sizes, element)])


def generic(
    inputs: Sequence[tuple[ir.Value, str]],
    output: str,
    element: ir.Type,
    body: Body,
    *,
    initial: ir.Value | float | int = 0,
    sizes: dict[str, int | ir.Value] | None = None,
) -> ir.Value:
    """Build one `linalg.generic` at the current insertion point and return its result.

    `inputs`: tensors with their subscripts. `output`: subscripts of the result, whose elements are
    `element`. `body` gets the scalars of the inputs, and with a reduction the accumulator last;
    `initial` is then the tensor or the constant that the sum starts from. `sizes` gives the size of
    a loop that no input has. Raises ValueError where subscripts and shapes contradict each other.
    """
    extent: dict[str, int | ir.Value] = dict(sizes or {})
    for value, subscripts in inputs:
        shape, letters = shape_of(value), subscripts.split()
        if len(shape) != len(letters):
            raise ValueError(
                f"'{subscripts}' names {len(letters)} loops, the tensor is {value.type}"
            )
        for axis, (letter, size) in enumerate(zip(letters, shape, strict=True)):
            if size < 0 and letter not in extent:
                extent[letter] = size_of(value, axis)
            known = extent.setdefault(letter, size)
            if size >= 0 and isinstance(known, int) and known != size:
                raise ValueError(f"loop '{letter}' is {known} and {size} in {value.type}")
    parallel = output.split()
    reduction = [letter for letter in extent if letter not in parallel]
    loops = [*parallel, *reduction]

    def indexing(subscripts: str) -> ir.AffineMap:
        places = [ir.AffineDimExpr.get(loops.index(letter)) for letter in subscripts.split()]
        return ir.AffineMap.get(len(loops), 0, places)

    result_sizes = [extent[letter] for letter in parallel]
    if isinstance(initial, ir.Value):
        start = initial
    elif reduction:
        start = fill(result_sizes, element, initial)
    else:
        start = empty(result_sizes, element)
    iterators = [linalg.IteratorType.parallel] * len(parallel)
    iterators += [linalg.IteratorType.reduction] * len(reduction)
    op = linalg.GenericOp(
        [start.type],
        [value for value, _ in inputs],
        [start],
        ir.ArrayAttr.get(
            [ir.AffineMapAttr.get(indexing(s)) for s in (*(s for _, s in inputs), output)]
        ),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{i}>") for i in iterators]),
    )
    arguments = [element_of(value) for value, _ in inputs] + [element]
    block = op.regions[0].blocks.append(*arguments)
    with ir.InsertionPoint(block):
        scalars = list(block.arguments)
        linalg.YieldOp([body(*(scalars if reduction else scalars[:-1]))])
    return op.results[0]


def loop_index(output: str, letter: str) -> ir.Value:
    """The index of a parallel loop, by its letter in `output`. Call it inside a body."""
    return linalg.IndexOp(output.split().index(letter)).result


def extended(x: ir.Value) -> ir.Value:
    """A tensor of floats extended to f32."""
    f32, axes = ir.F32Type.get(), axes_of(x)
    return x if element_of(x) == f32 else generic([(x, axes)], axes, f32, to_f32)
