"""AMD GPU operations as typed functions: lanes, buffers, shared memory, matrix instructions.

Sources: AMD CDNA4 ISA document; LLVM, User Guide for AMDGPU Backend; MLIR's dialects amdgpu and
rocdl.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from iree.compiler import ir
from iree.compiler.dialects import amdgpu, arith, gpu, memref, rocdl, vector

#: Shared memory of a workgroup (LDS).
SHARED = "#gpu.address_space<workgroup>"
#: A buffer with checked bounds: loads past its end return zero, and stores past its end do nothing.
_BOUNDED = "#amdgpu.address_space<fat_raw_buffer>"
#: Global memory that is bound to a dispatch.
GLOBAL = "#hal.descriptor_type<storage_buffer>"

#: LLVM's sync scope of one device; its numbers for atomic addition and for monotonic ordering.
_DEVICE, _ADD, _MONOTONIC = "agent", 1, 2
#: LLVM's numbers for the orderings of `fence`.
_ORDERS = {"acquire": 4, "release": 5}

#: An offset past the end of every bounded buffer: almost the largest signed 32-bit offset, so that
#: adding the bytes of a load does not overflow.
BEYOND = 0x7FFFFF00

#: arith operation -> LLVM intrinsic that propagates NaN too. IREE lowers the arith operations to
#: instructions that return the other operand in place of NaN.
KEEPS_NAN = {"arith.maximumf": "llvm.intr.maximum", "arith.minimumf": "llvm.intr.minimum"}


def thread() -> ir.Value:
    """The number of the work-item in its workgroup, as an index."""
    return gpu.thread_id(gpu.Dimension.x)


def uniform(value: ir.Value) -> ir.Value:
    """An index that is equal in all lanes of a wave, in a scalar register (the first lane's)."""
    i32 = ir.IntegerType.get_signless(32)
    narrow = arith.index_cast(i32, value)
    return arith.index_cast(ir.IndexType.get(), rocdl.readfirstlane(i32, narrow))


def in_global_memory(kind: ir.Type) -> ir.Type:
    """The memref type of a binding: global memory with a dynamic offset, which the dispatch
    supplies.

    IREE 3.13 ignores the offset where the type does not have one.
    """
    memref_type = ir.MemRefType(kind)
    unknown = ir.ShapedType.get_dynamic_stride_or_offset()
    layout = ir.StridedLayoutAttr.get(unknown, _contiguous(memref_type))
    space = ir.Attribute.parse(GLOBAL)
    return ir.MemRefType.get(memref_type.shape, memref_type.element_type, layout, space)


def _contiguous(kind: ir.MemRefType) -> list[int]:
    """Row-major strides of a contiguous memref."""
    unknown = ir.ShapedType.get_dynamic_stride_or_offset()
    strides = [1]
    for size in reversed(kind.shape[1:]):
        known = strides[0] != unknown and size != ir.ShapedType.get_dynamic_size()
        strides.insert(0, strides[0] * size if known else unknown)
    return strides


def bounded(buffer: ir.Value) -> ir.Value:
    """Cast a memref of global memory, of at most 2 GiB, to one with checked bounds."""
    kind = ir.MemRefType(buffer.type)
    strides, _ = kind.get_strides_and_offset()
    # A contiguous memref needs no layout; one with dynamic sizes keeps its strided layout, if any.
    static = ir.ShapedType.get_dynamic_size() not in kind.shape or len(kind.shape) == 1
    plain = static or not isinstance(kind.layout, ir.StridedLayoutAttr)
    contiguous = plain and strides == _contiguous(kind)
    layout = None if contiguous else ir.StridedLayoutAttr.get(0, strides)
    wanted = ir.MemRefType.get(kind.shape, kind.element_type, layout, ir.Attribute.parse(_BOUNDED))
    return ir.Operation.create(
        "amdgpu.fat_raw_buffer_cast",
        results=[wanted],
        operands=[buffer],
        attributes={
            "resetOffset": ir.UnitAttr.get(),
            "boundsCheck": ir.BoolAttr.get(True),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0]),
        },
    ).result


def shared(shape: Sequence[int], element: ir.Type) -> ir.Value:
    """Allocate uninitialised shared memory of the workgroup."""
    kind = ir.MemRefType.get(list(shape), element, memory_space=ir.Attribute.parse(SHARED))
    return memref.alloc(kind, [], [])


def barrier() -> None:
    """Wait for all waves of the workgroup, and for their writes to shared memory."""
    amdgpu.lds_barrier()


def fence(order: Literal["acquire", "release"]) -> None:
    """Order memory accesses between the waves of a device. Used with `added`.

    release: stores of this wave become visible to waves that acquire. acquire: this wave sees
    released stores, and its later loads are not moved before the fence and read no stale cache
    lines.
    """
    ir.Operation.create(
        "llvm.fence",
        attributes={
            "ordering": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ORDERS[order]),
            "syncscope": ir.StringAttr.get(_DEVICE),
        },
    )


def added(counter: ir.Value, at: ir.Value, number: ir.Value) -> ir.Value:
    """Atomically add an i32 to element `at` of a memref i32 [n] in global memory, for all waves of
    the device. Returns the old value.

    The addition orders no other access. `memref.atomic_rmw` would order all memory of the system.
    """
    i64 = ir.IntegerType.get_signless(64)
    first = memref.ExtractAlignedPointerAsIndexOp(counter).result
    _, offset, _, _ = memref.ExtractStridedMetadataOp(counter).results
    size = arith.ConstantOp(ir.IndexType.get(), 4).result
    place = first + (offset + at) * size
    pointer = ir.Operation.create(
        "llvm.inttoptr",
        results=[ir.Type.parse("!llvm.ptr<1>")],
        operands=[arith.index_castui(i64, place)],
    ).result
    return ir.Operation.create(
        "llvm.atomicrmw",
        results=[number.type],
        operands=[pointer, number],
        attributes={
            "bin_op": ir.IntegerAttr.get(i64, _ADD),
            "ordering": ir.IntegerAttr.get(i64, _MONOTONIC),
            "syncscope": ir.StringAttr.get(_DEVICE),
            "alignment": ir.IntegerAttr.get(i64, 4),
        },
    ).result


def load_to_shared(
    source: ir.Value, at: ir.Value, memory: ir.Value, into: ir.Value, size: int
) -> None:
    """Load `size` bytes per lane (4 or 16) from a bounded memref of bytes to shared memory.

    `at` is the offset of each lane; the lanes' bytes are stored contiguously from `into` on, which
    is equal in all lanes. The load is asynchronous: only `wait_for_loads` waits for it.
    """
    kind = ir.VectorType.get([size], ir.IntegerType.get_signless(8))
    amdgpu.gather_to_lds(source, [at], memory, [into], kind, async_=True)


def mark_loads() -> None:
    """Close a group of asynchronous loads: those since the last mark."""
    rocdl.asyncmark()


def wait_for_loads(groups: int) -> None:
    """Wait until at most `groups` groups of this wave's loads to shared memory are outstanding.

    Then wait for this wave's reads and writes of shared memory, and for all waves of the workgroup.
    """
    no_reordering()
    rocdl.wait_asyncmark(groups)
    wait_for_waves()


def wait_for_all_loads() -> None:
    """Wait until none of this wave's loads to shared memory is outstanding.

    A load that arrives after its workgroup has ended would write to the memory of another one.
    """
    mark_loads()
    wait_for_loads(0)


def wait_for_waves() -> None:
    """Wait for this wave's reads and writes of shared memory, and for all waves of the workgroup.

    Unlike `barrier`, no instruction moves across.
    """
    no_reordering()
    amdgpu.memory_counter_wait(ds=0)
    rocdl.s_barrier()
    no_reordering()


def no_reordering() -> None:
    """Keep the compiler from moving any instruction across this point."""
    rocdl.sched_barrier(ir.Attribute.parse("#rocdl.sched_group_mask<none>"))


def pinned(values: Sequence[ir.Value], registers: Literal["v", "a"] = "v") -> list[ir.Value]:
    """The same values, as results of an empty inline assembly statement: no use of them moves
    before this point, and no computation that they depend on moves after it.

    Until instruction selection, operations without memory access are ordered by their operands
    only, so `no_reordering` alone does not hold them. `registers`: vector ("v") or accumulation
    ("a") registers; where a lane may have 1024, LLVM gives such statements only the first 256.

    Raises ValueError for a vector of one element, which LLVM passes wrongly: pass its element.
    """
    kinds = [value.type for value in values]
    for kind in kinds:
        if isinstance(kind, ir.VectorType) and kind.shape == [1]:
            raise ValueError(f"{kind} cannot be pinned: give its element")
    many = len(kinds) > 1
    listed = ", ".join(map(str, kinds))
    made = ir.Operation.create(
        "llvm.inline_asm",
        results=[ir.Type.parse(f"!llvm.struct<({listed})>") if many else kinds[0]],
        operands=list(values),
        attributes={
            "asm_string": ir.StringAttr.get(""),
            "constraints": ir.StringAttr.get(
                ",".join([f"={registers}"] * len(kinds) + [str(n) for n in range(len(kinds))])
            ),
            "has_side_effects": ir.UnitAttr.get(),
        },
    ).result
    if not many:
        return [made]
    return [
        ir.Operation.create(
            "llvm.extractvalue",
            results=[kind],
            operands=[made],
            attributes={"position": ir.DenseI64ArrayAttr.get([place])},
        ).result
        for place, kind in enumerate(kinds)
    ]


def scheduled(kind: str, count: int, group: int) -> None:
    """Schedule `count` instructions of a kind next, out of those since the last `no_reordering`."""
    mask = ir.Attribute.parse(f"#rocdl.sched_group_mask<{kind}>")
    rocdl.sched_group_barrier(mask, count, group)


def scaled_mfma(
    shape: tuple[int, int, int],
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    scales: tuple[ir.Value, ir.Value],
    chosen: tuple[int, int],
) -> ir.Value:
    """v_mfma_scale_f32_{16x16x128,32x32x64}_f8f6f4: c + (a * scale) (b * scale)^T, f32.

    a, b: 32 elements of f4, f6 or f8. `scales`: four f8E8M0FNU per operand, of which op_sel selects
    the one numbered in `chosen`.
    """
    return amdgpu.scaled_mfma(*shape, a, b, c, *scales, *chosen)


def mfma(shape: tuple[int, int, int], a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """v_mfma_f32_*: c + a b^T for bf16, f16 or f32 elements."""
    return amdgpu.mfma(*shape, a, b, c, blocks=1)


def wmma(shape: tuple[int, int, int], a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """v_wmma_f32_*: c + a b^T for bf16 or f16 elements, in waves of 32."""
    return amdgpu.wmma(*shape, a, b, c)


def scaled_wmma(
    shape: tuple[int, int, int],
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    scales: tuple[ir.Value, ir.Value],
    first: int,
) -> ir.Value:
    """v_wmma_scale_f32_16x16x128_f8f6f4: c + (a * scale) (b * scale)^T, f32, in waves of 32.

    a, b: 64 elements of f4 or f8. `scales`: four f8E8M0FNU per operand, for the four blocks of a
    row; the instruction reads those of lanes `first` .. `first` + 15 (0 or 16).
    """
    return amdgpu.scaled_wmma(*shape, a, b, c, scales[0], first, scales[1], first)


def intrinsic(
    name: str, operands: Sequence[ir.Value], result: ir.Type | None = None
) -> ir.Operation:
    """A call of an intrinsic of LLVM, which has a result of this type or none."""
    return ir.Operation.create(
        "llvm.call_intrinsic",
        results=[] if result is None else [result],
        operands=list(operands),
        attributes={
            "intrin": ir.StringAttr.get(name),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        },
    )


def permuted_bytes(high: ir.Value, low: ir.Value, selectors: ir.Value | int) -> ir.Value:
    """v_perm_b32 of two i32: selects one byte for each byte of `selectors`.

    0 to 3 select bytes of `low`, the lowest first, 4 to 7 bytes of `high`, and 12 zero.
    """
    i32 = ir.IntegerType.get_signless(32)
    if isinstance(selectors, int):
        selectors = arith.ConstantOp(i32, ir.IntegerAttr.get(i32, selectors)).result
    return intrinsic("llvm.amdgcn.perm", [high, low, selectors], i32).result


def sixteenths(word: ir.Value) -> ir.Value:
    """v_cvt_off_f32_i4: the signed integer in the lowest four bits of an i32 / 16, as f32.

    Sources: AMD CDNA3 and CDNA4 ISA documents, VOP1.
    """
    return intrinsic("llvm.amdgcn.cvt.off.f32.i4", [word], ir.F32Type.get()).result


def opaque(word: ir.Value) -> ir.Value:
    """Pass an i32 through an empty inline assembly statement. LLVM does not see through it, so it
    computes the i32 once for all uses, instead of in another form for each use."""
    return ir.Operation.create(
        "llvm.inline_asm",
        results=[word.type],
        operands=[word],
        attributes={
            "asm_string": ir.StringAttr.get(""),
            "constraints": ir.StringAttr.get("=v,0"),
        },
    ).result


def ldexp(value: ir.Value, exponent: ir.Value) -> ir.Value:
    """v_ldexp_f32: an f32 times two to the power of an i32, rounded once."""
    return intrinsic("llvm.ldexp", [value, exponent], value.type).result


def zeros(kind: ir.Type) -> ir.Value:
    """A vector of f32 zeros."""
    zero = ir.FloatAttr.get(ir.VectorType(kind).element_type, 0.0)
    return arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, zero)).result


def concat(parts: Sequence[ir.Value]) -> ir.Value:
    """Concatenate vectors of bytes."""
    whole = parts[0]
    for part in parts[1:]:
        first, second = (ir.VectorType(value.type).shape[0] for value in (whole, part))
        # Operands of a shuffle have one type: the shorter vector is widened first.
        size = max(first, second)
        whole, part = _widened(whole, size), _widened(part, size)
        whole = vector.shuffle(whole, part, [*range(first), *range(size, size + second)])
    return whole


def _widened(value: ir.Value, size: int) -> ir.Value:
    """The vector widened to `size` by repeating its last element."""
    own = ir.VectorType(value.type).shape[0]
    if own == size:
        return value
    return vector.shuffle(value, value, [min(n, own - 1) for n in range(size)])
