"""Builders of the basic tensor operations of decoder models.

Every function builds at the current insertion point. Shapes use these letters: T tokens of this
call, H hidden size, N and K of a weight [N, K], D head size, R = D / 2, Q query heads, V key/value
heads, G = Q / V, S keys. Values are f32 unless stated otherwise; weights keep the type of the
checkpoint and are extended inside the contraction that reads them.
"""

from collections.abc import Sequence
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import arith, math, tensor

from mxc.dialects import slices
from mxc.dialects.generic import constant, element_of, generic, loop_index, shape_of, to_f32
from mxc.dialects.sizes import dynamic_sizes, quotient, size_of, sizes_of, value_of
from mxc.dialects.slices import columns_of


def f32() -> ir.Type:
    """The f32 type of the current context."""
    return ir.F32Type.get()


def linear(x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    """x [T, K] times weight [N, K] transposed, plus bias [N]: f32 [T, N]."""
    y = generic(
        [(x, "m k"), (weight, "n k")],
        "m n",
        f32(),
        lambda a, w, acc: arith.addf(acc, arith.mulf(to_f32(a), to_f32(w))),
    )
    return add_bias(y, bias)


def add_bias(y: ir.Value, bias: ir.Value | None) -> ir.Value:
    """y [T, N] + bias [N]; y itself without a bias."""
    if bias is None:
        return y
    return generic([(y, "m n"), (bias, "n")], "m n", f32(), lambda a, b: arith.addf(a, to_f32(b)))


def add(x: ir.Value, y: ir.Value) -> ir.Value:
    """x + y, both [T, H]."""
    return generic([(x, "m n"), (y, "m n")], "m n", f32(), lambda a, b: arith.addf(a, b))


def scale(x: ir.Value, factor: float) -> ir.Value:
    """factor * x [T, H]; x itself where the factor is one."""
    if factor == 1.0:
        return x
    return generic([(x, "m n")], "m n", f32(), lambda a: arith.mulf(a, constant(factor, f32())))


def soft_cap(x: ir.Value, cap: float) -> ir.Value:
    """cap * tanh(x / cap) of x [T, N]."""
    return generic([(x, "m n")], "m n", f32(), lambda a: capped(a, cap))


def capped(x: ir.Value, cap: float) -> ir.Value:
    """cap * tanh(x / cap) of an f32 scalar."""
    bound = constant(cap, f32())
    return arith.mulf(math.tanh(arith.divf(x, bound)), bound)


def embed(tokens: ir.Value, table: ir.Value) -> ir.Value:
    """Rows `tokens` (i32 [T]) of table [vocabulary, H]: f32 [T, H]."""

    def row(token: ir.Value) -> ir.Value:
        index = arith.index_cast(ir.IndexType.get(), token)
        return to_f32(tensor.extract(table, [index, loop_index("m h", "h")]))

    return generic([(tokens, "m")], "m h", f32(), row, sizes={"h": shape_of(table)[1]})


def embed_integers(tokens: ir.Value, elements: ir.Value, scales: ir.Value) -> ir.Value:
    """Rows `tokens` (i32 [T]) of int8 elements [vocabulary, KO, KB] with scales f32 [vocabulary,
    KO]: f32 [T, H], where H = KO * KB."""
    _, blocks, size = shape_of(elements)

    def row(token: ir.Value) -> ir.Value:
        index = arith.index_cast(ir.IndexType.get(), token)
        block, place = (loop_index("m k b", loop) for loop in "kb")
        value = arith.sitofp(f32(), tensor.extract(elements, [index, block, place]))
        return arith.mulf(value, tensor.extract(scales, [index, block]))

    rows = generic([(tokens, "m")], "m k b", f32(), row, sizes={"k": blocks, "b": size})
    return collapse(rows, [[0], [1, 2]])


def rotate(
    x: ir.Value,
    heads: int,
    cos: ir.Value,
    sin: ir.Value,
    *,
    interleaved: bool = False,
    spread: bool = False,
) -> ir.Value:
    """Rotary embedding of x [T, heads * D] by the rows cos, sin [T, R]: f32 [T, heads, D].

    The first 2 R elements of a head are rotated; elements after them (partial rotary embedding) are
    unchanged. The real parts come first, then the imaginary parts; with `interleaved` they
    alternate. With `spread`, the imaginary parts begin at D / 2, and unchanged elements follow the
    real parts and the imaginary parts.
    """
    tokens, width = shape_of(x)
    depth, half = width // heads, shape_of(cos)[1]
    stays = depth - 2 * half
    loops, sizes = ("m h r p", [half, 2]) if interleaved else ("m h p r", [2, half])
    if spread:
        x = expand(x, [[0], [1, 2, 3]], [tokens, heads, 2, depth // 2])
        parts, *rest = parts_of(x, [half] + [stays // 2] * (stays > 0))
    else:
        x = expand(x, [[0], [1, 2]], [tokens, heads, depth])
        head, *rest = parts_of(x, [2 * half] + [stays] * (stays > 0))
        parts = expand(head, [[0], [1], [2, 3]], [tokens, heads, *sizes])
    axis = loops.split().index("p")
    real, imaginary = (slice_of(parts, axis=axis, index=i) for i in range(2))

    def rotate(re: ir.Value, im: ir.Value, c: ir.Value, s: ir.Value) -> ir.Value:
        first = arith.subf(arith.mulf(re, c), arith.mulf(im, s))
        second = arith.addf(arith.mulf(im, c), arith.mulf(re, s))
        part = loop_index(loops, "p")
        is_first = arith.cmpi(arith.CmpIPredicate.eq, part, constant(0, ir.IndexType.get()))
        return arith.select(is_first, first, second)

    turned = generic(
        [(real, "m h r"), (imaginary, "m h r"), (cos, "m r"), (sin, "m r")],
        loops,
        f32(),
        rotate,
        sizes={"p": 2},
    )
    whole = [[0], [1], [2, 3]]
    if spread:
        return collapse(concatenate(turned, rest[0]) if rest else turned, whole)
    turned = collapse(turned, whole)
    return concatenate(turned, rest[0]) if rest else turned


def expand(x: ir.Value, groups: list[list[int]], sizes: list[int]) -> ir.Value:
    """tensor.expand_shape to `sizes`; each group may have one dynamic size.

    Where x is a slice of columns of a wider tensor, and the width allows it, the wider tensor is
    expanded and then sliced, because IREE reads a slice in place but copies it to reshape it.
    """
    (source, first), axis = slices.columns_in(x), groups[-1][0]
    width, inner = shape_of(source)[-1], prod(sizes[axis + 1 :])
    if source != x and width % inner == first % inner == 0:
        whole = expand(source, groups, [*sizes[:axis], width // inner, *sizes[axis + 1 :]])
        offsets = [first // inner if each == axis else 0 for each in range(len(sizes))]
        return slices.slice_of(whole, offsets, sizes, range(len(sizes)))
    dynamic = []
    for axis, group in enumerate(groups):
        own = [sizes[each] for each in group]
        if min(own) < 0:
            others = prod(size for size in own if size >= 0)
            dynamic.append(value_of(quotient(size_of(x, axis), others)))
    kind = ir.RankedTensorType.get(sizes, element_of(x))
    return tensor.expand_shape(kind, x, groups, dynamic, sizes)


def collapse(x: ir.Value, groups: list[list[int]]) -> ir.Value:
    """tensor.collapse_shape; a group with a dynamic size becomes dynamic."""
    shape, dynamic = shape_of(x), ir.ShapedType.get_dynamic_size()
    parts = [[shape[axis] for axis in group] for group in groups]
    sizes = [prod(part) if min(part) >= 0 else dynamic for part in parts]
    return tensor.collapse_shape(ir.RankedTensorType.get(sizes, element_of(x)), x, groups)


def slice_of(x: ir.Value, axis: int, index: int) -> ir.Value:
    """x[.., index, ..] at `axis`; that dimension is dropped."""
    shape = shape_of(x)
    offsets = [index if i == axis else 0 for i in range(len(shape))]
    sizes = [1 if i == axis else size for i, size in enumerate(shape)]
    return slices.slice_of(x, offsets, sizes, [i for i in range(len(shape)) if i != axis])


def parts_of(x: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
    """Split x [.., N] into consecutive column ranges of these sizes."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [columns_of(x, start, size) for start, size in zip(starts, sizes, strict=True)]


def concatenate(x: ir.Value, y: ir.Value) -> ir.Value:
    """Concatenate x [.., A] and y [.., B] to [.., A + B]."""
    *lead, width = sizes_of(x)
    whole = tensor.empty([*lead, shape_of(x)[-1] + shape_of(y)[-1]], element_of(x))
    zeros, ones = [0] * len(lead), [1] * (len(lead) + 1)
    for part, first in ((x, 0), (y, width)):
        dynamic = dynamic_sizes(part)
        sizes = shape_of(part)
        whole = tensor.insert_slice(part, whole, [], dynamic, [], [*zeros, first], sizes, ones)
    return whole


def multiply(x: ir.Value, factor: ir.Value) -> ir.Value:
    """x [T, H] times a factor [1]."""

    def product(a: ir.Value) -> ir.Value:
        number = tensor.extract(factor, [constant(0, ir.IndexType.get())])
        return arith.mulf(a, to_f32(number))

    return generic([(x, "m n")], "m n", f32(), product)


def rows_of(x: ir.Value, rows: ir.Value) -> ir.Value:
    """Rows `rows` (i32 [M]) of x [N, W]: [M, W]."""

    def element(row: ir.Value) -> ir.Value:
        place = arith.index_cast(ir.IndexType.get(), row)
        return tensor.extract(x, [place, loop_index("m k", "k")])

    return generic([(rows, "m")], "m k", element_of(x), element, sizes={"k": shape_of(x)[1]})


def rows_here(rows: ir.Value, first: int, count: int) -> tuple[ir.Value, ir.Value]:
    """Return row numbers relative to a range of `count` rows from `first` on, and a mask.

    rows i32 [T]. The row numbers are rows - first, i32 [T], 0 for rows outside of the range. The
    mask is i1 [T], true for rows inside.
    """
    i32, i1 = (ir.IntegerType.get_signless(width) for width in (32, 1))

    def place(row: ir.Value) -> ir.Value:
        return arith.subi(row, constant(first, i32))

    def inside(row: ir.Value) -> ir.Value:
        # Unsigned, rows before the first are large numbers.
        return arith.cmpi(arith.CmpIPredicate.ult, place(row), constant(count, i32))

    def within(row: ir.Value) -> ir.Value:
        return arith.select(inside(row), place(row), constant(0, i32))

    return generic([(rows, "m")], "m", i32, within), generic([(rows, "m")], "m", i1, inside)


def divide_by_rms(x: ir.Value, epsilon: float) -> ir.Value:
    """Divide each row of x [.., D], of rank 2 or 3, by its root mean square: f32."""
    *lead, width = shape_of(x)
    depth, rows = constant(float(width), f32()), " ".join("mh"[: len(lead)])
    whole = f"{rows} d"
    squares = generic([(x, whole)], rows, f32(), lambda a, acc: arith.addf(acc, arith.mulf(a, a)))

    def divided(a: ir.Value, total: ir.Value) -> ir.Value:
        mean = arith.addf(arith.divf(total, depth), constant(epsilon, f32()))
        return arith.mulf(a, math.rsqrt(mean))

    return generic([(x, whole), (squares, rows)], whole, f32(), divided)
