"""Short names for operations of kernel bodies: vectors, memory, loops and branches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, memref, scf, vector
from numpy.typing import NDArray

from mxc.dialects.generic import constant
from mxc.dialects.generic import i32 as i32


def index(value: int) -> ir.Value:
    """An index constant."""
    return constant(value, ir.IndexType.get())


def of(element: ir.Type, lanes: int) -> ir.Type:
    """The type of a vector of `lanes` elements."""
    return ir.VectorType.get([lanes], element)


def i1() -> ir.Type:
    """The i1 type."""
    return ir.IntegerType.get_signless(1)


def i8() -> ir.Type:
    """The i8 type."""
    return ir.IntegerType.get_signless(8)


def i16() -> ir.Type:
    """The i16 type."""
    return ir.IntegerType.get_signless(16)


def f32() -> ir.Type:
    """The f32 type."""
    return ir.F32Type.get()


def table(values: NDArray[np.generic], element: ir.Type) -> ir.Value:
    """A constant vector of `values`."""
    kind = of(element, values.size)
    attribute = ir.DenseElementsAttr.get(np.ascontiguousarray(values), type=kind)
    return arith.ConstantOp(kind, attribute).result


def splat(value: float | int, element: ir.Type, lanes: int) -> ir.Value:
    """A constant vector of one repeated value."""
    return constant(value, of(element, lanes))


def load(source: ir.Value, at: Sequence[ir.Value], element: ir.Type, lanes: int) -> ir.Value:
    """Load `lanes` contiguous elements of a memref."""
    return vector.load(of(element, lanes), source, list(at))


def broadcast(source: ir.Value, at: Sequence[ir.Value], lanes: int) -> ir.Value:
    """Load one element of a memref to all lanes."""
    scalar = memref.LoadOp(source, list(at)).result
    return vector.broadcast(of(scalar.type, lanes), scalar)


def bitcast(value: ir.Value, element: ir.Type, lanes: int) -> ir.Value:
    """The bits of a vector as `lanes` elements of another type."""
    return vector.bitcast(of(element, lanes), value)


def bitcast_like(value: ir.Value, other: ir.Value) -> ir.Value:
    """The bits of a vector as the type of another vector."""
    return vector.bitcast(other.type, value)


def prefetch(source: ir.Value, at: Sequence[ir.Value], *, far: bool = False) -> None:
    """Prefetch the cache line of an element, which may lie past the end of the memref. It goes to
    the first-level cache, or with `far`, for data that is needed later, to the second."""
    memref.PrefetchOp(source, list(at), False, 2 if far else 3, True)


def in_order() -> None:
    """Emit a fence that LLVM moves no load or prefetch across. It becomes no instruction."""
    llvm.fence(llvm.AtomicOrdering.acq_rel, syncscope="singlethread")


def scratch(sizes: Sequence[int], element: ir.Type) -> ir.Value:
    """Allocate memory on the stack, aligned to a cache line of 64 bytes."""
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
    kind = ir.MemRefType.get(list(sizes), element)
    return memref.AllocaOp(kind, [], [], alignment=alignment).result


def equal(a: ir.Value, b: ir.Value | int) -> ir.Value:
    """Whether a = b, of integers."""
    return _compared(arith.CmpIPredicate.eq, a, b)


def unequal(a: ir.Value, b: ir.Value | int) -> ir.Value:
    """Whether a and b, integers, differ."""
    return _compared(arith.CmpIPredicate.ne, a, b)


def below(a: ir.Value, b: ir.Value | int) -> ir.Value:
    """Whether a < b, of integers that are not negative: the comparison is unsigned."""
    return _compared(arith.CmpIPredicate.ult, a, b)


def signed_below(a: ir.Value, b: ir.Value | int) -> ir.Value:
    """Whether a < b, of integers with a sign."""
    return _compared(arith.CmpIPredicate.slt, a, b)


def _compared(how: arith.CmpIPredicate, a: ir.Value, b: ir.Value | int) -> ir.Value:
    return arith.cmpi(how, a, constant(b, a.type) if isinstance(b, int) else b)


def lanes_of(values: ir.Value) -> int:
    """Number of elements of a vector."""
    return int(ir.VectorType(values.type).shape[0])


def elements(values: ir.Value) -> list[ir.Value]:
    """The elements of a vector."""
    return [vector.extract(values, [], [at]) for at in range(lanes_of(values))]


def part_of(values: ir.Value, at: int, count: int) -> ir.Value:
    """`count` elements of a vector, from `at` on; the vector itself if it has no more."""
    if count == lanes_of(values):
        return values
    kind = of(ir.VectorType(values.type).element_type, count)
    return vector.extract_strided_slice(kind, values, [at], [count], [1])


def parts_of(values: ir.Value, count: int) -> Iterator[ir.Value]:
    """Yield a vector as vectors of `count` elements, in order; each is built when it is yielded."""
    return (part_of(values, at, count) for at in range(0, lanes_of(values), count))


def concat(parts: Sequence[ir.Value]) -> ir.Value:
    """Concatenate vectors of one size, in order. Their number must be a power of two."""
    found = list(parts)
    while len(found) > 1:
        both = list(range(2 * lanes_of(found[0])))
        found = [vector.shuffle(*pair, both) for pair in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def upper_halves(values: ir.Value, count: int | None = None) -> ir.Value:
    """The upper 16 bits of each element of an f32 vector, or of its first `count` elements, as
    bf16. The lower bits are dropped."""
    size = lanes_of(values)
    halves = bitcast(values, ir.BF16Type.get(), 2 * size)
    return vector.shuffle(halves, halves, list(range(1, 2 * (count or size), 2)))


def choose(
    condition: ir.Value, yes: Callable[[], Iterable[ir.Value]], no: Sequence[ir.Value]
) -> list[ir.Value]:
    """Emit an scf.if whose results are the values that `yes` builds, else the values `no`."""
    return either(condition, [value.type for value in no], yes, lambda: no)


def either(
    condition: ir.Value,
    kinds: Sequence[ir.Type],
    yes: Callable[[], Iterable[ir.Value]],
    no: Callable[[], Iterable[ir.Value]],
) -> list[ir.Value]:
    """Emit an scf.if whose results, of types `kinds`, are the values that `yes` or `no` builds."""
    op = scf.IfOp(condition, list(kinds), has_else=True)
    for block, build in ((op.then_block, yes), (op.else_block, no)):
        with ir.InsertionPoint(block):
            scf.YieldOp(list(build()))
    return list(op.results)


@contextlib.contextmanager
def loop(
    start: ir.Value, stop: ir.Value, step: ir.Value, carried: Sequence[ir.Value] = ()
) -> Iterator[tuple[ir.Value, list[ir.Value], scf.ForOp]]:
    """Emit an scf.for around what is built inside the `with` statement. Yields (induction variable,
    carried values, the operation).

    If the loop carries values, the body has to end with an scf.yield of their next values.
    """
    op = scf.ForOp(start, stop, step, list(carried))
    with ir.InsertionPoint(op.body):
        yield op.induction_variable, list(op.inner_iter_args), op
        if not carried:
            scf.YieldOp([])


@contextlib.contextmanager
def when(condition: ir.Value) -> Iterator[None]:
    """Emit an scf.if without results and else around what is built inside the `with` statement."""
    with ir.InsertionPoint(scf.IfOp(condition).then_block):
        yield
        scf.YieldOp([])


def as_integers(element: ir.Type, value: ir.Value) -> ir.Value:
    """The bits of a vector of integers as a vector of integers of the type `element`."""
    kind = ir.VectorType(value.type)
    bits = kind.shape[0] * ir.IntegerType(kind.element_type).width
    return bitcast(value, element, bits // ir.IntegerType(element).width)


def shifted(value: ir.Value, bits: int) -> ir.Value:
    """Shift right by `bits`, or left if `bits` is negative."""
    if not bits:
        return value
    kind = ir.VectorType(value.type)
    by = splat(abs(bits), kind.element_type, kind.shape[0])
    return value >> by if bits > 0 else value << by
