"""mxc-lower-rotary-writes: rotary positions and the writing to pages become one kernel.

IREE compiles the reference to a kernel for the queries, and for keys and for values to some more:
they are computed, then written. Here all of a row is one workgroup (passes/kernels/rotary_writes).

before:
    %turned, %after = util.call @mxc.rotary_write(%q, %k, %v, %cos, %sin, %slots, %pool)
after:
    stream.executable private @mxc_rotary_write_64x8x64_bf16_48x64 { .. }
    %turned, %after = flow.dispatch @mxc_rotary_write_..(%q, .., %pool, ..) -> .., %pool

Leaves alone: pages of other types than bf16, f16 and f32; heads whose half is no multiple of
`lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects import named_operations
from mxc.dialects.generic import constant
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.reasons import Reason
from mxc.dialects.rotary_writes import RotaryWrite, rotary_writes
from mxc.dialects.sizes import size_of, value_of
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import dispatch_all, executable
from mxc.passes.kernels.extents import dynamic_of
from mxc.passes.kernels.reshapes import as_tensor
from mxc.passes.kernels.rotary_writes import Extents, RotaryKernel
from mxc.passes.rewriting.worklist import replace_op

#: Of the operands of a kernel: the slots, and the pool.
_SLOTS, _POOL = 5, 6


@dataclass(frozen=True)
class LowerRotaryWrites(Pass):
    """Give the writing of turned keys to kernels of registers of `lanes` f32; `wave`: lanes of a
    wave of a GPU, 0 on a CPU."""

    name = "mxc-lower-rotary-writes"
    lanes: int = 16
    wave: int = 0

    def run(self, module: ir.Operation) -> None:
        """Lower every call that a kernel takes."""
        built: set[str] = set()
        # A call is read when its turn comes: the pool of one may be the result of the one before.
        for call in rotary_writes(module):
            kernel = RotaryKernel.of(call, self.lanes, self.wave or None)
            if isinstance(kernel, Reason):
                write_reason(call.op, kernel)
                continue
            if kernel.name not in built:
                built.add(kernel.name)
                first = ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0])
                with first, ir.Location.unknown():
                    _build(kernel)
            with ir.InsertionPoint(call.op), call.op.location:
                made = _dispatch(kernel, call)
            replace_op(call.op, made.results)
        named_operations.erase_unused(module)


def _build(kernel: RotaryKernel) -> None:
    count = len(kernel.buffers(Extents()))
    executable(
        kernel.name,
        [buffer.memref for buffer in kernel.buffers(Extents())],
        lambda scalars: [scalars[1]],
        lambda *given: kernel.body(given[count], *given[:count]),
        scalars=3,
        threads=kernel.threads,
        sizes=lambda scalars: dynamic_of(kernel.buffers(Extents(*scalars[1:]))),
    )


def _dispatch(kernel: RotaryKernel, call: RotaryWrite) -> ir.Operation:
    """The call in the place of the operation. Its scalars: the entry, rows and pages."""
    entry = constant(call.entry, ir.IndexType.get())
    scalars = [entry, *(value_of(size_of(each, 0)) for each in (call.queries, call.pool))]
    buffers = kernel.buffers(Extents(*scalars[1:]))
    made = dispatch_all(
        kernel.name,
        [*call.op.operands, *scalars],
        [as_tensor(buffers[-1].memref), call.pool.type],
        workload=scalars,
        sizes=dynamic_of([*buffers, buffers[_POOL]]),
        tied=(-1, _POOL),
    )
    entries, positions = kernel.pool
    PoolRead(operand=_POOL, part=2, of=entries * positions, runs=_SLOTS).write(made)
    return made
