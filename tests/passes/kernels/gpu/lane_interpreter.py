"""Kernel bodies in waves of 32, as MLIR, run by numpy: all lanes of a workgroup in lockstep.

For targets that the simulator does not execute. A value has one row a lane; whatever its type, it
is held as the bits of its elements. What a matrix instruction computes is written out from the
documents, element by element of the matrices, and knows nothing of how a kernel fills its lanes:

    A, B    lane l has row (column) l % 16; where element i of its fragment is along K: `_ALONG_K`
    C, D    lane l has column l % 16, and element i is row i + 8 (l / 16); of gfx1151 2 i + l / 16
    scales  lane first + r has those of row r: byte b for elements 32 b .. 32 b + 31 along K

Sources: AMD RDNA4 ISA guide, 7.9 (16x16x16); Triton, LinearLayoutConversions.cpp (gfx1250);
AMD RDNA3.5 ISA guide, 7.9 (gfx1151: lanes l and l + 16 have all of the same row).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import scf
from lane_values import FLOATS, Array, Memory, as_bits, floats, from_bits, kind_of, raw_of

WAVE = 32
#: Where element i of a lane of group g = lane / 16 is along K, by depth and bits of an element.
_ALONG_K: dict[tuple[int, int], Callable[[Array, Array], Array]] = {
    (16, 16): lambda i, g: 8 * g + i,
    (32, 16): lambda i, g: 16 * (i // 8) + 8 * g + i % 8,
    (128, 8): lambda i, g: 32 * (i // 16) + 16 * g + i % 16,
    (128, 4): lambda i, g: 64 * (i // 32) + 32 * g + i % 32,
}
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
}
_NUMBERS = {"arith.mulf": np.multiply, "arith.addf": np.add, "arith.subf": np.subtract}
_COMPARISONS = {0: np.equal, 1: np.not_equal, 6: np.less}


def run(module: ir.Module, buffers: Sequence[Array], scalars: Sequence[int] = ()) -> None:
    """Run the one kernel of a module on bytes, in place: operands in order, then the result.

    `scalars`: what comes with the call, of which the numbers of workgroups follow."""
    (executable,) = [
        op for op in module.body.operations if op.operation.name == "stream.executable"
    ]
    export, inner = [op.operation for op in executable.regions[0].blocks[0].operations][:2]
    host = _Workgroup(1, (), (), scalars)
    counts = [int(each[0, 0]) for each in host.run(export.regions[0].blocks[0])]
    (function,) = inner.regions[0].blocks[0].operations
    size = str(function.attributes["translation_info"]).partition("workgroup_size = [")[2]
    threads = int(size.partition(",")[0])
    for group in np.ndindex(*counts):
        _Workgroup(threads, group, buffers, scalars).run(function.regions[0].blocks[0])


class _Workgroup:
    def __init__(
        self,
        threads: int,
        group: tuple[int, ...],
        buffers: Sequence[Array],
        scalars: Sequence[int],
    ) -> None:
        self.threads, self.group, self.buffers = threads, group, buffers
        self.values: dict[ir.Value, Any] = {}
        self.active = np.ones(threads, bool)
        self.scalars = scalars

    def run(self, block: ir.Block) -> list[Any]:
        """All operations; what the last one yields."""
        if self.scalars and not isinstance(block.owner, scf.ForOp | scf.IfOp):
            for value, number in zip(
                list(block.arguments)[-len(self.scalars) :], self.scalars, strict=True
            ):
                self.values[value] = np.full((self.threads, 1), number, np.uint64)
        for op in block.operations:
            name = op.operation.name
            given = [self.values.get(v) for v in op.operands]
            if name in ("scf.yield", "func.return", "stream.return"):
                return given
            if name in _INTEGERS:
                results = self._masked(op.operation, _INTEGERS[name](*given))
            elif name in _NUMBERS:
                results = self._floats(op.operation, _NUMBERS[name], *given)
            else:
                results = getattr(self, name.replace(".", "_"))(op.operation, *given)
            for value, found in zip(op.results, results or (), strict=True):
                self.values[value] = found
        return []

    # Constants, places.

    def arith_constant(self, op: ir.Operation) -> list[Any]:
        _, width, count = kind_of(op.results[0])
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr):
            element = kind_of(op.results[0])[0]
            if attribute.is_splat:
                attribute = attribute.get_splat_value()
            else:
                numbers = np.array(attribute)
                raw = raw_of(numbers) if isinstance(element, ir.FloatType) else numbers
                return [np.tile(raw.astype(np.uint64), (self.threads, 1))]
        if isinstance(attribute, ir.FloatAttr):
            number = np.array([attribute.value], FLOATS[str(attribute.type)])
            raw = int(raw_of(number)[0])
        else:
            raw = int(attribute.value) & ((1 << width) - 1)
        return [np.full((self.threads, count), raw, np.uint64)]

    def gpu_thread_id(self, op: ir.Operation) -> list[Any]:
        return [np.arange(self.threads, dtype=np.uint64)[:, None]]

    def stream_dispatch_workgroup_id(self, op: ir.Operation) -> list[Any]:
        number = self.group[ir.IntegerAttr(op.attributes["dimension"]).value]
        return [np.full((self.threads, 1), number, np.uint64)]

    def stream_binding_subspan(self, op: ir.Operation, *_: Any) -> list[Any]:
        kind = ir.MemRefType(op.results[0].type)
        number = ir.BlockArgument(op.operands[0]).arg_number
        # The first size, which may be dynamic, is no part of a stride.
        strides = np.cumprod([1, *reversed(kind.shape[1:])])[::-1]
        places = tuple(int(s) for s in strides)
        return [
            Memory(self.buffers[number], kind.element_type.width, places, np.zeros(1, np.int64))
        ]

    def memref_alloc(self, op: ir.Operation) -> list[Any]:
        kind = ir.MemRefType(op.results[0].type)
        strides = tuple(int(s) for s in np.cumprod([1, *reversed(kind.shape[1:])])[::-1])
        data = np.zeros(int(np.prod(kind.shape)) * kind.element_type.width // 8, np.uint8)
        return [Memory(data, kind.element_type.width, strides, np.zeros(1, np.int64))]

    def amdgpu_fat_raw_buffer_cast(self, op: ir.Operation, memory: Memory) -> list[Any]:
        return [Memory(memory.data, memory.bits, memory.strides, memory.start, bounded=True)]

    def memref_subview(self, op: ir.Operation, memory: Memory, *given: Array) -> list[Any]:
        """What begins at an offset; sizes and strides are the memref's own."""
        counts = [int(n) for n in op.attributes["operandSegmentSizes"]]
        dynamic, start = list(given[: counts[1]]), memory.start
        for offset, stride in zip(op.attributes["static_offsets"], memory.strides, strict=True):
            own = dynamic.pop(0)[:, 0].astype(np.int64) if offset < 0 else np.array([offset])
            start = start + own * stride
        return [Memory(memory.data, memory.bits, memory.strides, start, memory.bounded)]

    # Integers.

    def _masked(self, op: ir.Operation, result: Array) -> list[Any]:
        return [result & np.uint64((1 << kind_of(op.results[0])[1]) - 1)]

    def arith_extui(self, op: ir.Operation, a: Array) -> list[Any]:
        return [a]

    def arith_index_cast(self, op: ir.Operation, a: Array) -> list[Any]:
        return self._masked(op, a)

    arith_index_castui = arith_index_cast

    def arith_cmpi(self, op: ir.Operation, a: Array, b: Array) -> list[Any]:
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        if predicate == 2:  # slt
            return [(a.astype(np.int64) < b.astype(np.int64)).astype(np.uint64)]
        return [_COMPARISONS[predicate](a, b).astype(np.uint64)]

    def arith_select(self, op: ir.Operation, chosen: Array, a: Array, b: Array) -> list[Any]:
        return [np.where(chosen.astype(bool), a, b)]

    def rocdl_readfirstlane(self, op: ir.Operation, a: Array) -> list[Any]:
        return [np.repeat(a[::WAVE], WAVE, axis=0)[: self.threads]]

    def llvm_call_intrinsic(
        self, op: ir.Operation, high: Array, low: Array, chosen: Array
    ) -> list[Any]:
        """v_perm_b32."""
        assert ir.StringAttr(op.attributes["intrin"]).value == "llvm.amdgcn.perm"
        parts = [from_bits(as_bits(word, 32), 8) for word in (low, high)]
        known = np.concatenate([*parts, np.zeros((self.threads, 8), np.uint64)], axis=1)
        places = from_bits(as_bits(chosen, 32), 8).astype(np.int64)
        assert np.isin(places, [*range(8), 12]).all()
        picked = np.take_along_axis(known, places, axis=1)
        return [from_bits(as_bits(picked, 8), 32)]

    # Floats.

    def _floats(self, op: ir.Operation, compute: Callable[..., Array], *given: Array) -> list[Any]:
        kind, _, _ = kind_of(op.operands[0])
        with np.errstate(all="ignore"):
            return [raw_of(np.asarray(compute(*(floats(g, kind) for g in given))))]

    def arith_cmpf(self, op: ir.Operation, a: Array, b: Array) -> list[Any]:
        compare = {1: np.equal, 2: np.greater}[ir.IntegerAttr(op.attributes["predicate"]).value]
        kind = kind_of(op.operands[0])[0]
        return [compare(floats(a, kind), floats(b, kind)).astype(np.uint64)]

    def math_fma(self, op: ir.Operation, a: Array, b: Array, c: Array) -> list[Any]:
        def fma(x: Array, y: Array, z: Array) -> Array:
            return (x.astype(np.float64) * y + z).astype(np.float32)

        return self._floats(op, fma, a, b, c)

    def arith_extf(self, op: ir.Operation, a: Array) -> list[Any]:
        return self._floats(op, lambda x: x.astype(np.float32), a)

    def llvm_intr_maximum(self, op: ir.Operation, a: Array, b: Array) -> list[Any]:
        return self._floats(op, np.maximum, a, b)

    def llvm_intr_minimum(self, op: ir.Operation, a: Array, b: Array) -> list[Any]:
        return self._floats(op, np.minimum, a, b)

    def arith_sitofp(self, op: ir.Operation, a: Array) -> list[Any]:
        return [raw_of(a.astype(np.uint8).view(np.int8).astype(np.float32))]

    def amdgpu_dpp(self, op: ir.Operation, old: Array, value: Array) -> list[Any]:
        """Lanes of four in another order, or of eight in the opposite one."""
        lane = np.arange(self.threads)
        if "quad_perm" in str(op.attributes["kind"]):
            order = np.array([each.value for each in op.attributes["permArgument"]])
            return [value[lane // 4 * 4 + order[lane % 4]]]
        assert "row_half_mirror" in str(op.attributes["kind"])
        return [value[lane // 8 * 8 + 7 - lane % 8]]

    # Vectors: bits stay what they are.

    def vector_bitcast(self, op: ir.Operation, a: Array) -> list[Any]:
        return [from_bits(as_bits(a, kind_of(op.operands[0])[1]), kind_of(op.results[0])[1])]

    def arith_bitcast(self, op: ir.Operation, a: Array) -> list[Any]:
        return [a]

    def vector_broadcast(self, op: ir.Operation, a: Array) -> list[Any]:
        return [np.broadcast_to(a, (self.threads, kind_of(op.results[0])[2]))]

    def vector_extract(self, op: ir.Operation, a: Array) -> list[Any]:
        (at,) = op.attributes["static_position"]
        return [a[:, at : at + 1]]

    def vector_from_elements(self, op: ir.Operation, *given: Array) -> list[Any]:
        return [np.concatenate(given, axis=1)]

    def vector_shuffle(self, op: ir.Operation, a: Array, b: Array) -> list[Any]:
        return [np.concatenate([a, b], axis=1)[:, list(op.attributes["mask"])]]

    def vector_extract_strided_slice(self, op: ir.Operation, a: Array) -> list[Any]:
        first = ir.IntegerAttr(op.attributes["offsets"][0]).value
        return [a[:, first : first + kind_of(op.results[0])[2]]]

    def vector_create_mask(self, op: ir.Operation, count: Array) -> list[Any]:
        return [(np.arange(kind_of(op.results[0])[2]) < count.astype(np.int64)).astype(np.uint64)]

    # Memory.

    def vector_load(self, op: ir.Operation, memory: Memory, *at: Array) -> list[Any]:
        _, width, count = kind_of(op.results[0])
        places, inside = memory.places([a[:, 0].astype(np.int64) for a in at], count)
        assert memory.bounded or inside[self.active].all()
        read = np.where(inside, memory.data[np.where(inside, places, 0)], 0).astype(np.uint64)
        return [from_bits(as_bits(read, 8), width)]

    memref_load = vector_load

    def memref_store(self, op: ir.Operation, raw: Array, memory: Memory, *at: Array) -> None:
        self.vector_store(op, raw, memory, *at)

    def _store(
        self, memory: Memory, at: Sequence[Array], raw: Array, width: int, mask: Array
    ) -> None:
        places, inside = memory.places([a[:, 0].astype(np.int64) for a in at], raw.shape[1])
        stored = np.repeat(mask, width // 8, axis=1) & self.active[:, None]
        assert inside[stored].all()
        data = from_bits(as_bits(raw, width), 8).astype(np.uint8)
        memory.data[places[stored]] = data[stored]

    def vector_store(self, op: ir.Operation, raw: Array, memory: Memory, *at: Array) -> None:
        self._store(memory, at, raw, kind_of(op.operands[0])[1], np.ones(raw.shape, bool))

    def vector_maskedstore(self, op: ir.Operation, memory: Memory, *rest: Array) -> None:
        *at, mask, raw = rest
        self._store(memory, at, raw, kind_of(op.operands[-1])[1], mask.astype(bool))

    def amdgpu_lds_barrier(self, op: ir.Operation) -> None:
        """All lanes have come here."""

    def rocdl_sched_barrier(self, op: ir.Operation) -> None:
        """For the scheduler of the compiler."""

    # Control.

    def scf_for(
        self, op: ir.Operation, start: Array, stop: Array, step: Array, *carried: Any
    ) -> list[Any]:
        block = op.regions[0].blocks[0]
        bounds = [int(np.unique(each)[0]) for each in (start, stop, step)]
        values = list(carried)
        for at in range(*bounds):
            self.values[block.arguments[0]] = np.full((self.threads, 1), at, np.uint64)
            self.values.update(zip(block.arguments[1:], values, strict=True))
            values = self.run(block)
        return values

    def scf_if(self, op: ir.Operation, chosen: Array) -> list[Any]:
        outside, taken = self.active, chosen[:, 0].astype(bool)
        found = []
        for region, lanes in zip(op.regions, (taken, ~taken), strict=True):
            self.active = outside & lanes
            found.append(self.run(region.blocks[0]) if len(region.blocks) else [])
        self.active = outside
        if not op.results:
            return []
        return [np.where(taken[:, None], a, b) for a, b in zip(*found, strict=True)]

    # Matrices.

    def _matrix(self, raw: Array, kind: ir.Type, width: int, depth: int) -> Array:
        """The fragments of a wave as [16, depth]. Two lanes that have whole rows have the same."""
        numbers = floats(raw, kind).astype(np.float64)
        lane, i = np.arange(WAVE)[:, None], np.arange(raw.shape[1])[None]
        whole = np.full((16, depth), np.nan)
        if raw.shape[1] == depth:
            np.testing.assert_array_equal(raw[:16], raw[16:])
            return numbers[:16]
        whole[np.broadcast_to(lane % 16, numbers.shape), _ALONG_K[depth, width](i, lane // 16)] = (
            numbers
        )
        return whole

    def _products(
        self, op: ir.Operation, c: Array, sides: Sequence[tuple[Array, Array | None]]
    ) -> list[Any]:
        depth = ir.IntegerAttr(op.attributes["k"]).value
        result = np.empty_like(c)
        for first in range(0, self.threads, WAVE):
            wave = slice(first, first + WAVE)
            whole = []
            for operand, (raw, scales) in zip(op.operands, sides, strict=False):
                kind, width, _ = kind_of(operand)
                matrix = self._matrix(raw[wave], kind, width, depth)
                if scales is not None:
                    own = floats(scales[wave][:16], ir.Type.parse("f8E8M0FNU")).astype(np.float64)
                    matrix = matrix * np.repeat(own, 32, axis=1)
                whole.append(matrix)
            product = whole[0] @ whole[1].T
            lane, i = np.arange(WAVE)[:, None], np.arange(8)[None]
            twice = sides[0][0].shape[1] == depth
            part = product[2 * i + lane // 16 if twice else i + 8 * (lane // 16), lane % 16]
            total = floats(c[wave], ir.F32Type.get()).astype(np.float64) + part
            result[wave] = raw_of(total.astype(np.float32))
        return [result]

    def amdgpu_wmma(self, op: ir.Operation, a: Array, b: Array, c: Array) -> list[Any]:
        return self._products(op, c, [(a, None), (b, None)])

    def amdgpu_scaled_wmma(
        self, op: ir.Operation, a: Array, b: Array, c: Array, of_a: Array, of_b: Array
    ) -> list[Any]:
        sides = []
        for side, raw, scales in (("a", a, of_a), ("b", b, of_b)):
            first = ir.IntegerAttr(op.attributes[f"{side}_first_scale_lane"]).value
            # Row r of each wave has the scales of its lane first + r.
            sides.append((raw, np.roll(scales.reshape(-1, WAVE, 4), -first, axis=1).reshape(-1, 4)))
        return self._products(op, c, sides)
