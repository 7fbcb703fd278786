"""AMD GPU words as typed functions: lanes, buffers, shared memory, matrix instructions.

Sources: AMD CDNA4 ISA document; LLVM, User Guide for AMDGPU Backend; MLIR's dialects amdgpu and
rocdl.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import amdgpu, arith, gpu, memref, rocdl, vector

#: Memory of a workgroup.
SHARED = "#gpu.address_space<workgroup>"
#: A buffer whose loads return zero, and whose stores do nothing, beyond its end.
_BOUNDED = "#amdgpu.address_space<fat_raw_buffer>"
#: Memory that a dispatch is given.
GLOBAL = "#hal.descriptor_type<storage_buffer>"

#: An offset that is beyond the end of every buffer: as large as a signed 32-bit offset may be, with
#: room for the bytes of a load.
BEYOND = 0x7FFFFF00


def thread() -> ir.Value:
    """The number of the lane in its workgroup, an index."""
    return gpu.thread_id(gpu.Dimension.x)


def uniform(value: ir.Value) -> ir.Value:
    """An index that is the same in all lanes of a wave, as a scalar register: the first lane's."""
    i32 = ir.IntegerType.get_signless(32)
    narrow = arith.index_cast(i32, value)
    return arith.index_cast(ir.IndexType.get(), rocdl.readfirstlane(i32, narrow))


def bounded(buffer: ir.Value) -> ir.Value:
    """A memref of global memory as one with checked bounds, of at most 2 GiB."""
    kind = ir.MemRefType(buffer.type)
    wanted = ir.MemRefType.get(
        kind.shape, kind.element_type, memory_space=ir.Attribute.parse(_BOUNDED)
    )
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
    """Memory of the workgroup, not initialised."""
    kind = ir.MemRefType.get(list(shape), element, memory_space=ir.Attribute.parse(SHARED))
    return memref.alloc(kind, [], [])


def barrier() -> None:
    """Wait for all waves of the workgroup, and for what each wrote to shared memory."""
    amdgpu.lds_barrier()


def no_reordering() -> None:
    """The compiler moves no instruction across this point."""
    rocdl.sched_barrier(ir.Attribute.parse("#rocdl.sched_group_mask<none>"))


def scaled_mfma(
    shape: tuple[int, int, int],
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    scales: tuple[ir.Value, ir.Value],
    chosen: int,
) -> ir.Value:
    """v_mfma_scale_f32_{16x16x128,32x32x64}_f8f6f4: c + (a * scale) (b * scale)^T, f32.

    a, b: 32 elements of f4, f6 or f8; `scales`: four f8E8M0FNU each; op_sel takes `chosen` of them.
    """
    return amdgpu.scaled_mfma(*shape, a, b, c, *scales, chosen, chosen)


def mfma(shape: tuple[int, int, int], a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """v_mfma_f32_*: c + a b^T for bf16, f16 or f32 elements."""
    return amdgpu.mfma(*shape, a, b, c, blocks=1)


def zeros(kind: ir.Type) -> ir.Value:
    """A vector of f32 zeros."""
    zero = ir.FloatAttr.get(ir.VectorType(kind).element_type, 0.0)
    return arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, zero)).result


def joined(parts: Sequence[ir.Value]) -> ir.Value:
    """Vectors of bytes one after the other."""
    whole = parts[0]
    for part in parts[1:]:
        sizes = [ir.VectorType(value.type).shape[0] for value in (whole, part)]
        if sizes[0] == sizes[1]:
            whole = vector.shuffle(whole, part, list(range(sum(sizes))))
            continue
        # Shuffled vectors have one type: the shorter one is widened first.
        padded = [min(i, sizes[1] - 1) for i in range(sizes[0])]
        wide = vector.shuffle(part, part, padded)
        whole = vector.shuffle(whole, wide, list(range(sum(sizes))))
    return whole
