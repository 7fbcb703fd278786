"""An interpreter in numpy for the MLIR of kernels in waves of 32, all lanes in lockstep.

It is for targets that the simulator does not execute. A value is an array with a row for each lane;
whatever its type, the array holds the bits of its elements as integers. Exchanges between lanes and
matrix instructions are in lane_moves.py, addresses in lane_addresses.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from iree.compiler import ir

from mxc.dialects.dispatches import KERNEL
from tests.passes.kernels.gpu.lane_addresses import LaneAddresses
from tests.passes.kernels.gpu.lane_moves import LaneMoves
from tests.passes.kernels.gpu.lane_program import Block, Operation, Value, read
from tests.passes.kernels.gpu.lane_values import (
    FLOATS,
    Array,
    Memory,
    floats,
    kind_of,
    raw_of,
    regroup,
    with_sign,
)

_INTEGERS = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divui": np.floor_divide,
    "arith.remui": np.remainder,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.shli": np.left_shift,
    "arith.shrui": np.right_shift,
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
    "arith.xori": np.bitwise_xor,
}
_NUMBERS = {
    "arith.mulf": np.multiply,
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.divf": np.divide,
    "arith.negf": np.negative,
    "arith.maxnumf": np.fmax,
    "math.absf": np.abs,
    "math.copysign": np.copysign,
    "math.sqrt": np.sqrt,
    "rocdl.exp2": np.exp2,
    "rocdl.rcp": np.reciprocal,
}
_ENDS = ("scf.yield", "func.return", "stream.return")
#: Lanes that run together, in whole workgroups: numpy takes as long for many lanes as for few.
_LANES = 1024
#: Predicates by their number in MLIR: of arith.cmpi, unsigned and signed, and of arith.cmpf.
_COMPARISONS = {0: np.equal, 1: np.not_equal, 6: np.less, 7: np.less_equal, 8: np.greater}
_SIGNED = {2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}
_OF_FLOATS = {1: np.equal, 2: np.greater, 4: np.less, 13: np.not_equal}


def run(
    module: ir.Module,
    buffers: Sequence[Array],
    scalars: Sequence[int] = (),
    name: str = "",
    *,
    backwards: bool | None = None,
) -> None:
    """Run a kernel of a module on `buffers` of bytes, its operands and then its results, in place.

    `scalars`: integers that come with the call. The workload, which gives the numbers of
    workgroups, is the same in reverse order. `name`: the executable; may be omitted if there is
    one. `backwards`: None: workgroups in lockstep; else one by one, if True from the last one.
    """
    (executable,) = [
        op
        for op in module.body.operations
        if op.operation.name == KERNEL
        and name in ("", ir.StringAttr(op.attributes["sym_name"]).value)
    ]
    export, inner = [op.operation for op in executable.regions[0].blocks[0].operations][:2]
    counts = [
        int(each[0, 0])
        for each in _Workgroups(1, [()], (), scalars[::-1]).call(read(export.regions[0].blocks[0]))
    ]
    (function,) = inner.regions[0].blocks[0].operations
    body = read(function.regions[0].blocks[0])
    size = str(function.attributes["translation_info"]).partition("workgroup_size = [")[2]
    threads = int(size.partition(",")[0])
    groups = list(np.ndindex(*counts))[:: -1 if backwards else 1]
    together = max(1, _LANES // threads) if backwards is None else 1
    for n in range(0, len(groups), together):
        _Workgroups(threads, groups[n : n + together], buffers, scalars).call(body)


class _Workgroups(LaneMoves, LaneAddresses):
    def __init__(
        self,
        size: int,
        groups: Sequence[tuple[int, ...]],
        buffers: Sequence[Array],
        scalars: Sequence[int],
    ) -> None:
        super().__init__()
        self.size, self.groups, self.buffers = size, groups, buffers
        self.threads = size * len(groups)
        self.values: dict[Value, Any] = {}
        self.active = np.ones(self.threads, bool)
        self.scalars = scalars

    def call(self, block: Block) -> list[Any]:
        """Run the block of a function, whose last arguments are the scalars."""
        count = len(block.arguments) - len(self.scalars)
        for value, number in zip(block.arguments[count:], self.scalars, strict=True):
            self.values[value] = np.full((self.threads, 1), number, np.uint64)
        return self.run(block)

    def run(self, block: Block) -> list[Any]:
        """Run all operations of a block, and return the operands of its terminator."""
        values = self.values
        for op in block.operations:
            name = op.name
            given: list[Any] = [values.get(v) for v in op.operands]
            if name in _ENDS:
                return given
            if name in _INTEGERS:
                results = self._masked(op, _INTEGERS[name](*given))
            elif name in _NUMBERS:
                results = self._floats(op, _NUMBERS[name], *given)
            else:
                results = getattr(self, name.replace(".", "_"))(op, *given)
            for value, found in zip(op.results, results or (), strict=True):
                values[value] = found
        return []

    # Constants, places.

    def arith_constant(self, op: Operation) -> list[Any]:
        if op.constant is None or len(op.constant) != self.threads:
            op.constant = self._constant(op)
        return [op.constant]

    def _constant(self, op: Operation) -> Array:
        element, width, count = kind_of(op.results[0])
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr):
            if attribute.is_splat:
                attribute = attribute.get_splat_value()
            else:
                numbers = np.array(attribute)
                raw = raw_of(numbers) if element in FLOATS else numbers
                return np.tile(raw.astype(np.uint64), (self.threads, 1))
        if isinstance(attribute, ir.FloatAttr):
            number = np.array([attribute.value], FLOATS[str(attribute.type)])
            whole = int(raw_of(number)[0])
        else:
            whole = int(attribute.value) & ((1 << width) - 1)
        return np.full((self.threads, count), whole, np.uint64)

    def gpu_thread_id(self, op: Operation) -> list[Any]:
        return [np.arange(self.threads, dtype=np.uint64)[:, None] % np.uint64(self.size)]

    def stream_dispatch_workgroup_id(self, op: Operation) -> list[Any]:
        axis = ir.IntegerAttr(op.attributes["dimension"]).value
        numbers = np.array([group[axis] for group in self.groups], np.uint64)
        return [np.repeat(numbers, self.size)[:, None]]

    def stream_binding_subspan(
        self, op: Operation, _: Any, offset: Array, *sizes: Array
    ) -> list[Any]:
        kind, left = ir.MemRefType(op.results[0].type), list(sizes)
        number = op.operands[0].argument
        assert number is not None
        shape = [n if n >= 0 else int(left.pop(0)[0, 0]) for n in kind.shape]
        start, bits = np.zeros(1, np.int64), kind.element_type.width
        return [Memory(self.buffers[number], bits, _strides(shape), start)]

    def memref_alloc(self, op: Operation) -> list[Any]:
        kind = ir.MemRefType(op.results[0].type)
        bits = kind.element_type.width
        size = int(np.prod(kind.shape)) * bits // 8
        data = np.zeros(size * len(self.groups), np.uint8)
        base, start = np.arange(self.threads)[:, None] // self.size * size, np.zeros(1, np.int64)
        return [Memory(data, bits, _strides(kind.shape), start, base=base, size=size)]

    # Integers.

    def _masked(self, op: Operation, result: Array) -> list[Any]:
        return [result & np.uint64((1 << kind_of(op.results[0])[1]) - 1)]

    def arith_extui(self, op: Operation, a: Array) -> list[Any]:
        return [a]

    def arith_index_cast(self, op: Operation, a: Array) -> list[Any]:
        return self._masked(op, a)

    arith_index_castui = arith_trunci = arith_index_cast
    arith_bitcast = arith_extui

    def arith_cmpi(self, op: Operation, a: Array, b: Array) -> list[Any]:
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        if predicate in _SIGNED:
            a, b = (with_sign(each, kind_of(op.operands[0])[1]) for each in (a, b))
            return [_SIGNED[predicate](a, b).astype(np.uint64)]
        return [_COMPARISONS[predicate](a, b).astype(np.uint64)]

    def arith_maxsi(self, op: Operation, a: Array, b: Array) -> list[Any]:
        pair = (with_sign(each, kind_of(op.operands[0])[1]) for each in (a, b))
        return self._masked(op, np.maximum(*pair).astype(np.uint64))

    def arith_minsi(self, op: Operation, a: Array, b: Array) -> list[Any]:
        pair = (with_sign(each, kind_of(op.operands[0])[1]) for each in (a, b))
        return self._masked(op, np.minimum(*pair).astype(np.uint64))

    def vector_reduction(self, op: Operation, a: Array) -> list[Any]:
        assert str(op.attributes["kind"]) == "#vector.kind<maxsi>"
        wide = with_sign(a, kind_of(op.operands[0])[1])
        return self._masked(op, wide.max(axis=1, keepdims=True).astype(np.uint64))

    def arith_shrsi(self, op: Operation, a: Array, b: Array) -> list[Any]:
        wide = with_sign(a, kind_of(op.operands[0])[1]) >> b.astype(np.int64)
        return self._masked(op, wide.astype(np.uint64))

    def math_ctpop(self, op: Operation, a: Array) -> list[Any]:
        return [np.bitwise_count(a).astype(np.uint64)]

    def arith_select(self, op: Operation, chosen: Array, a: Array, b: Array) -> list[Any]:
        return [np.where(chosen.astype(bool), a, b)]

    def llvm_inline_asm(self, op: Operation, *given: Array) -> list[Any]:
        """Empty assembly, which hides values from LLVM: returns them; several are a struct."""
        assert ir.StringAttr(op.attributes["asm_string"]).value == ""
        return [given if len(given) > 1 else given[0]]

    def llvm_extractvalue(self, op: Operation, values: Sequence[Array]) -> list[Any]:
        (place,) = op.attributes["position"]
        return [values[place]]

    def llvm_call_intrinsic(
        self, op: Operation, high: Array, low: Array, chosen: Array
    ) -> list[Any]:
        """v_perm_b32."""
        assert ir.StringAttr(op.attributes["intrin"]).value == "llvm.amdgcn.perm"
        parts = [regroup(word, 32, 8) for word in (low, high)]
        known = np.concatenate([*parts, np.zeros((self.threads, 8), np.uint64)], axis=1)
        places = regroup(chosen, 32, 8).astype(np.int64)
        assert ((places < 8) | (places == 12)).all()
        picked = np.take_along_axis(known, places, axis=1)
        return [regroup(picked, 8, 32)]

    # Floats.

    def _floats(self, op: Operation, compute: Callable[..., Array], *given: Array) -> list[Any]:
        kind, _, _ = kind_of(op.operands[0])
        with np.errstate(all="ignore"):
            return [raw_of(np.asarray(compute(*(floats(g, kind) for g in given))))]

    def arith_cmpf(self, op: Operation, a: Array, b: Array) -> list[Any]:
        compare = _OF_FLOATS[ir.IntegerAttr(op.attributes["predicate"]).value]
        kind = kind_of(op.operands[0])[0]
        return [compare(floats(a, kind), floats(b, kind)).astype(np.uint64)]

    def math_fma(self, op: Operation, a: Array, b: Array, c: Array) -> list[Any]:
        def fma(x: Array, y: Array, z: Array) -> Array:
            return (x.astype(np.float64) * y + z).astype(np.float32)

        return self._floats(op, fma, a, b, c)

    def arith_extf(self, op: Operation, a: Array) -> list[Any]:
        return self._floats(op, lambda x: x.astype(np.float32), a)

    def arith_truncf(self, op: Operation, a: Array) -> list[Any]:
        wanted = FLOATS[kind_of(op.results[0])[0]]
        return self._floats(op, lambda x: x.astype(wanted), a)

    def llvm_intr_maximum(self, op: Operation, a: Array, b: Array) -> list[Any]:
        return self._floats(op, np.maximum, a, b)

    def llvm_intr_minimum(self, op: Operation, a: Array, b: Array) -> list[Any]:
        return self._floats(op, np.minimum, a, b)

    def arith_sitofp(self, op: Operation, a: Array) -> list[Any]:
        return [raw_of(with_sign(a, kind_of(op.operands[0])[1]).astype(np.float32))]

    # Vectors: elements are moved or regrouped, and no bit changes.

    def vector_bitcast(self, op: Operation, a: Array) -> list[Any]:
        return [regroup(a, kind_of(op.operands[0])[1], kind_of(op.results[0])[1])]

    def vector_broadcast(self, op: Operation, a: Array) -> list[Any]:
        return [np.broadcast_to(a, (self.threads, kind_of(op.results[0])[2]))]

    def vector_extract(self, op: Operation, a: Array) -> list[Any]:
        (at,) = op.attributes["static_position"]
        return [a[:, at : at + 1]]

    def vector_from_elements(self, op: Operation, *given: Array) -> list[Any]:
        return [np.concatenate(given, axis=1)]

    def vector_shuffle(self, op: Operation, a: Array, b: Array) -> list[Any]:
        return [np.concatenate([a, b], axis=1)[:, list(op.attributes["mask"])]]

    def vector_extract_strided_slice(self, op: Operation, a: Array) -> list[Any]:
        first = ir.IntegerAttr(op.attributes["offsets"][0]).value
        return [a[:, first : first + kind_of(op.results[0])[2]]]

    def vector_create_mask(self, op: Operation, count: Array) -> list[Any]:
        return [(np.arange(kind_of(op.results[0])[2]) < count.astype(np.int64)).astype(np.uint64)]

    # Memory.

    def vector_load(self, op: Operation, memory: Memory, *at: Array) -> list[Any]:
        _, width, count = kind_of(op.results[0])
        places, inside = memory.places([a[:, 0].astype(np.int64) for a in at], count)
        assert memory.bounded or inside[self.active].all()
        found = np.where(inside, memory.data[np.where(inside, places, 0)], 0)
        return [regroup(found, 8, width)]

    memref_load = vector_load

    def memref_store(self, op: Operation, raw: Array, memory: Memory, *at: Array) -> None:
        self.vector_store(op, raw, memory, *at)

    def _store(
        self, memory: Memory, at: Sequence[Array], raw: Array, width: int, mask: Array
    ) -> None:
        places, inside = memory.places([a[:, 0].astype(np.int64) for a in at], raw.shape[1])
        stored = np.repeat(mask, width // 8, axis=1) & self.active[:, None]
        assert memory.bounded or inside[stored].all()
        stored &= inside
        data = regroup(raw, width, 8).astype(np.uint8)
        memory.data[places[stored]] = data[stored]

    def vector_store(self, op: Operation, raw: Array, memory: Memory, *at: Array) -> None:
        self._store(memory, at, raw, kind_of(op.operands[0])[1], np.ones(raw.shape, bool))

    def vector_maskedstore(self, op: Operation, memory: Memory, *rest: Array) -> None:
        *at, mask, raw = rest
        self._store(memory, at, raw, kind_of(op.operands[-1])[1], mask.astype(bool))

    def amdgpu_lds_barrier(self, op: Operation) -> None:
        """Do nothing: all lanes run in lockstep."""

    def util_optimization_barrier(self, op: Operation, value: Array) -> list[Any]:
        """Return the value: the barrier is for IREE's optimizer."""
        return [value]

    def rocdl_sched_barrier(self, op: Operation) -> None:
        """Do nothing: the barrier is for LLVM's scheduler."""

    # Control.

    def scf_for(
        self, op: Operation, start: Array, stop: Array, step: Array, *carried: Any
    ) -> list[Any]:
        """Run a loop whose bounds may differ by lane: lanes that are done become inactive."""
        (block,), outside = op.regions[0], self.active
        values, at = list(carried), start
        while (running := outside & (at < stop)[:, 0]).any():
            self.active = running
            self.values[block.arguments[0]] = at
            self.values.update(zip(block.arguments[1:], values, strict=True))
            found = self.run(block)
            values = [
                np.where(running[:, None], new, old) for new, old in zip(found, values, strict=True)
            ]
            at = at + step
        self.active = outside
        return values

    def scf_if(self, op: Operation, chosen: Array) -> list[Any]:
        outside, taken = self.active, chosen[:, 0].astype(bool)
        found = []
        for region, lanes in zip(op.regions, (taken, ~taken), strict=True):
            self.active = outside & lanes
            # A region that no lane enters is skipped.
            some = self.active.any() and region
            found.append(self.run(region[0]) if some else [])
        self.active = outside
        if not op.results:
            return []
        if not all(found):
            return found[0] or found[1]
        return [np.where(taken[:, None], a, b) for a, b in zip(*found, strict=True)]

    def scf_index_switch(self, op: Operation, chosen: Array) -> list[Any]:
        """Run the region of a case, the same for all lanes; the first region is the default."""
        numbers, own = list(op.attributes["cases"]), int(chosen[0, 0])
        return self.run(op.regions[1 + numbers.index(own) if own in numbers else 0][0])


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(n) for n in np.cumprod([1, *reversed(shape[1:])])[::-1])
