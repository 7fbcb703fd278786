"""Build the executable of a kernel body, and the dispatch that calls it.

    stream.executable private @NAME {
      stream.executable.export public @NAME workgroups() -> (index, index, index) { .. }
      builtin.module { func.func @NAME(%b0: !stream.binding, ..) attributes {no_pipeline} { .. } }
    }
    %result = flow.dispatch @NAME::@NAME(%operands..)

A body consists of vectors, loops and intrinsics. `no_pipeline`: IREE's code generator leaves it as
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.artifact.kernel_names import case_name
from mxc.dialects.amdgpu import in_global_memory
from mxc.dialects.dispatches import KERNEL
from mxc.dialects.named_operations import symbol_of
from mxc.kernels.lowering.nest import workgroup as workgroup
from mxc.passes.kernels.extents import Size, value_of
from mxc.passes.kernels.vectors import below, index

#: Attribute of a function: its translation info, which tells IREE how to compile it.
TRANSLATION = "translation_info"
_NO_PIPELINE = "#iree_codegen.no_pipeline"

#: Builds a body at the insertion point. Arguments: the memrefs of the operands and of the results,
#: then the scalars of the call.
Body = Callable[..., None]
#: Computes sizes from the scalars of a call, at the insertion point.
Sizes = Callable[[Sequence[ir.Value]], Sequence[Size]]


@dataclass(frozen=True)
class Threads:
    """The workgroup of a GPU kernel: `count` work-items, in waves of `subgroup` lanes.

    `attributes`: LLVM attributes of the function, by name.
    """

    count: int
    subgroup: int
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The end of the text of a translation info, with these numbers and attributes."""
        size = f" workgroup_size = [{self.count}, 1, 1] subgroup_size = {self.subgroup}"
        listed = ", ".join(f'"{name}" = "{value}"' for name, value in self.attributes.items())
        return f"{size}, {{llvm_func_attrs = {{{listed}}}}}" if listed else size


@dataclass(frozen=True)
class Cases:
    """The cases of a kernel body that is a switch on the last scalar of the call.

    That scalar is the first value of the workload. Case n runs where it is below `bounds[n]`, the
    last case for all other numbers; bounds are ascending. `threads`: of each case.
    """

    bounds: Sequence[int]
    threads: Sequence[Threads]

    @property
    def attribute(self) -> ir.Attribute:
        """The attribute of the function with the switch."""
        translations = [translation(threads) for threads in self.threads]
        return ir.DictAttr.get(
            {
                "bounds": ir.DenseI64ArrayAttr.get(list(self.bounds)),
                "translations": ir.ArrayAttr.get(translations),
            }
        )


#: The operation that is the entry point of a kernel for host programs.
EXPORT = "hal.executable.export"
#: Attribute of a function that is a switch: its `Cases`, for mxc-split-kernels.
CASES = "mxc.cases"
#: The operation whose result is the number of the case; IREE does not fold a switch behind it.
BARRIER = "util.optimization_barrier"


def set_cases(made: ir.Operation, cases: Cases) -> None:
    """Write `cases` as an attribute of the one function in the executable `made`."""
    _, module, _ = made.regions[0].blocks[0].operations
    (function,) = module.operation.regions[0].blocks[0].operations
    function.operation.attributes[CASES] = cases.attribute


def switch_below(
    number: ir.Value, bounds: Sequence[int], parts: Sequence[Callable[[], None]]
) -> None:
    """Emit a switch: part n runs where `number` is below `bounds[n]`, the last part for all others.

    An optimization barrier keeps IREE from folding it where the number is the same in every call,
    because mxc-split-kernels needs all parts.
    """
    case = index(len(bounds))
    for place, bound in reversed(list(enumerate(bounds))):
        fits = below(number, bound)
        case = arith.select(fits, index(place), case)
    case = ir.Operation.create(BARRIER, results=[case.type], operands=[case]).result
    switch = ir.Operation.create(
        "scf.index_switch",
        operands=[case],
        attributes={"cases": ir.DenseI64ArrayAttr.get(list(range(len(bounds))))},
        regions=len(parts),
    )
    default, *regions = switch.regions
    for region, part in zip([*regions, default], parts, strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            part()
            ir.Operation.create("scf.yield")


def cases_of(module: ir.Operation) -> dict[str, tuple[str, int]]:
    """The symbols that mxc-split-kernels will make of the kernels of a program: new symbol -> (the
    symbol of the kernel, the least number of rows for which the new symbol runs).

    The first case of a kernel keeps its symbol, and is not in the result.
    """
    found = {}
    for made in module.regions[0].blocks[0].operations:
        inside = made.operation.regions[0].blocks[0].operations if made.name == KERNEL else ()
        for inner in (op.operation for op in inside if op.operation.name == "builtin.module"):
            for function in inner.regions[0].blocks[0].operations:
                if CASES in function.attributes:
                    entry = symbol_of(function)
                    given = ir.DictAttr(function.attributes[CASES])
                    for rows in ir.DenseI64ArrayAttr(given["bounds"]):
                        found[case_name(entry, rows)] = (entry, rows)
    return found


def executable(
    name: str,
    buffers: Sequence[ir.Type],
    workgroups: Sizes,
    body: Body,
    scalars: int = 0,
    threads: Threads | None = None,
    sizes: Sizes = lambda scalars: (),
) -> ir.Operation:
    """Build the executable @name at the insertion point.

    `buffers`: the memref type of each binding. `scalars`: the number of index operands that follow
    the tensors, and that the body gets after the memrefs; they are also the workload, the last one
    first. `workgroups`: computes up to three numbers of workgroups. `threads`: for a GPU, where the
    memrefs of the body are in global memory. `sizes`: computes the dynamic sizes of the buffers.
    """
    executable = ir.Operation.create(
        KERNEL,
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
        },
        regions=1,
    )
    with ir.InsertionPoint(executable.regions[0].blocks.append()):
        _export(name, workgroups, scalars)
        module = ir.Operation.create("builtin.module", regions=1)
        with ir.InsertionPoint(module.regions[0].blocks.append()):
            _function(name, buffers, body, scalars, threads, sizes)
        ir.Operation.create("stream.executable.end")
    return executable


def _export(name: str, workgroups: Sizes, scalars: int) -> None:
    export = ir.Operation.create(
        "stream.executable.export",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("public"),
            "function_ref": ir.FlatSymbolRefAttr.get(name),
        },
        regions=1,
    )
    block = export.regions[0].blocks.append(*[ir.IndexType.get()] * scalars)
    with ir.InsertionPoint(block):
        counts = [value_of(size) for size in workgroups(list(block.arguments)[::-1])]
        counts += [index(1)] * (3 - len(counts))
        ir.Operation.create("stream.return", operands=counts)


def _function(
    name: str,
    buffers: Sequence[ir.Type],
    body: Body,
    scalars: int,
    threads: Threads | None,
    sizes: Sizes,
) -> None:
    binding = ir.Type.parse("!stream.binding")
    kinds = [binding] * len(buffers) + [ir.IndexType.get()] * scalars
    function = ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(kinds, [])),
            TRANSLATION: translation(threads),
        },
        regions=1,
    )
    block = function.regions[0].blocks.append(*kinds)
    with ir.InsertionPoint(block):
        start, given = index(0), list(block.arguments)[len(buffers) :]
        dynamic = map(value_of, sizes(given))
        memrefs = [
            ir.Operation.create(
                "stream.binding.subspan",
                results=[kind if threads is None else in_global_memory(kind)],
                operands=[argument, start, *taken(dynamic, kind)],
            ).result
            for kind, argument in zip(buffers, block.arguments, strict=False)
        ]
        body(*memrefs, *given)
        ir.Operation.create("func.return")


def taken(sizes: Iterator[ir.Value], shaped: ir.Type) -> list[ir.Value]:
    """Take the next values from `sizes`, one for each dynamic dimension of a memref or tensor."""
    kind = ir.ShapedType(shaped)
    return [next(sizes) for axis in range(kind.rank) if kind.is_dynamic_dim(axis)]


def translation(threads: Threads | None) -> ir.Attribute:
    """The translation info with which IREE leaves a body unchanged. `threads`: None on a CPU."""
    given = "" if threads is None else threads.text
    return ir.Attribute.parse(f"#iree_codegen.translation_info<pipeline = {_NO_PIPELINE}{given}>")


def is_finished(translation: ir.Attribute) -> bool:
    """Whether a body with this translation info is a finished kernel of mxc."""
    return f"pipeline = {_NO_PIPELINE}" in str(translation)


def dispatch(
    name: str,
    tensors: Sequence[ir.Value],
    results: Sequence[ir.Type],
    scalars: Sequence[ir.Value] = (),
    sizes: Sequence[ir.Value] = (),
    tied: Sequence[int] = (),
) -> ir.Operation:
    """Build a dispatch of @name::@name, whose workload is the scalars, the last one first.

    IREE drops repeated values from a workload, so only its first value is sure to keep its place.

    `sizes`: dynamic sizes of `tensors`, then those of `results`, in order. `tied`: for the first
    results, the number of the tensor that each updates in place, or -1 for new memory.
    """
    entry = ir.SymbolRefAttr.get([name, name])
    operand_of = [*tied, *[-1] * (len(results) - len(tied))]
    made = sum(kind.is_dynamic_dim(axis) for kind in results for axis in range(kind.rank))
    return ir.Operation.create(
        "flow.dispatch",
        results=list(results),
        operands=[*reversed(scalars), *tensors, *scalars, *sizes],
        attributes={
            "entry_points": ir.ArrayAttr.get([entry]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get(
                [len(scalars), len(tensors) + len(scalars), len(sizes) - made, made]
            ),
            "tied_operands": ir.ArrayAttr.get(
                [ir.IntegerAttr.get(ir.IndexType.get(), number) for number in operand_of]
            ),
        },
    )


def inside(ops: list[ir.Operation], *names: str) -> list[ir.Operation]:
    """Descend from `ops` by one level of nesting for each name, and return the operations that are
    reached. A level keeps the operations with its name that are directly in the first block of
    those before. Bodies of kernels are long, and are not walked."""
    for name in names:
        ops = [
            inner.operation
            for op in ops
            for inner in op.regions[0].blocks[0].operations
            if inner.operation.name == name
        ]
    return ops
