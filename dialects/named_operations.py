"""Named operations: calls of private functions, whose attributes name the operation.

    util.func private @mxc.attention(%queries: .., ..) -> .. attributes {
        mxc.operation = "attention", mxc.options = {scale = 0.125, ..}} { reference }
    %y = util.call @mxc.attention(%queries, ..)

The body of the function is the reference: linalg that IREE compiles where no kernel takes the
operation. A pass that lowers an operation replaces the call, and never reads the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from iree.compiler import ir

#: Attributes of the function: the name of the operation, its options, and, for each dynamic size of
#: its results, the operand and the axis that have this size.
OPERATION, OPTIONS, SIZES = "mxc.operation", "mxc.options", "mxc.sizes"
#: Marks the contractions of a reference.
PRODUCT = "mxc.product"

#: Operations that may contain calls: functions of mxc's own programs, and of imported programs.
_FUNCTIONS = ("util.func", "func.func")


def symbol_of(op: ir.Operation) -> str:
    """The name that a function, a global or an executable is referred to by."""
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


@dataclass(frozen=True)
class NamedCall:
    """A call of a named operation: `op`, a util.call, and the `function` that it calls."""

    op: ir.Operation
    function: ir.Operation

    @property
    def options(self) -> ir.DictAttr:
        """The options of the operation."""
        return ir.DictAttr(self.function.attributes[OPTIONS])


def call(
    name: str,
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
    reference: Callable[..., Sequence[ir.Value]],
    *,
    options: Mapping[str, ir.Attribute],
    sizes: Sequence[tuple[int, int]] = (),
) -> list[ir.Value]:
    """Emit a call of the operation `name`, and return its results.

    `reference` builds the body from the arguments of the function. `sizes`: for each dynamic
    dimension of the results, in order, the number of an operand and its axis that have this size.
    """
    module = _module_here()
    kinds = [value.type for value in operands]
    numbers = [number for pair in sizes for number in pair]
    said = {
        OPERATION: ir.StringAttr.get(name),
        OPTIONS: ir.DictAttr.get(dict(options)),
        SIZES: ir.DenseI64ArrayAttr.get(numbers),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(kinds, list(results))),
    }
    symbol = _function(module, name, said, reference)
    made = ir.Operation.create(
        "util.call",
        results=list(results),
        operands=list(operands),
        attributes={"callee": ir.FlatSymbolRefAttr.get(symbol)},
    )
    return list(made.results)


def calls(module: ir.Operation, name: str) -> Iterator[NamedCall]:
    """Yield the calls of the operation `name`; the caller may replace each call."""
    found = {}
    for op in _functions(module):
        if OPERATION in op.attributes and ir.StringAttr(op.attributes[OPERATION]).value == name:
            found[symbol_of(op)] = op
    made = []
    # Calls are collected first, because the users of a result may be replaced with it.
    for function in _functions(module):
        for block in function.regions[0].blocks:
            for each in block.operations:
                op = each.operation
                if op.name == "util.call":
                    symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                    if symbol in found:
                        made.append(NamedCall(op, found[symbol]))
    yield from made


def erase_unused(module: ir.Operation) -> None:
    """Erase calls of named operations with unused results, and functions no longer called."""
    named = {symbol_of(op): op for op in _functions(module) if OPERATION in op.attributes}
    called = set()
    for function in _functions(module):
        for block in function.regions[0].blocks:
            for each in list(block.operations):
                if each.operation.name == "util.call":
                    symbol = ir.FlatSymbolRefAttr(each.operation.attributes["callee"]).value
                    if symbol in named and not any(list(result.uses) for result in each.results):
                        each.operation.erase()
                        continue
                    called.add(symbol)
    for symbol, function in named.items():
        if symbol not in called:
            function.erase()


def named_call(op: ir.Operation, name: str) -> NamedCall | None:
    """`op` as a call of the operation `name`; None where it is none."""
    function = _called(op) if op.name == "util.call" else None
    if function is None or OPERATION not in function.attributes:
        return None
    found = ir.StringAttr(function.attributes[OPERATION]).value
    return NamedCall(op, function) if found == name else None


def is_call(op: ir.Operation, name: str) -> bool:
    """Whether an operation is a call of the operation `name`."""
    return named_call(op, name) is not None


def is_inside(op: ir.Operation) -> bool:
    """Whether an operation is in the reference of a named operation."""
    while op.name not in (*_FUNCTIONS, "builtin.module"):
        op = op.parent.operation
    return OPERATION in op.attributes


def products(op: ir.Operation) -> tuple[ir.Operation, ...]:
    """The contractions in the reference of a call, in order; empty for other operations."""
    function = _called(op) if op.name == "util.call" else None
    return () if function is None else tuple(_marked(function))


def size_of_result(op: ir.Operation, number: int, axis: int) -> tuple[int, int] | None:
    """Operand of a call, and its axis, that have the size of a dynamic dimension of a result."""
    function = _called(op)
    if function is None or SIZES not in function.attributes:
        return None
    numbers = list(ir.DenseI64ArrayAttr(function.attributes[SIZES]))
    pairs = iter(zip(numbers[::2], numbers[1::2], strict=True))
    for place, result in enumerate(op.results):
        kind = ir.RankedTensorType(result.type)
        for dimension in range(kind.rank):
            if kind.is_dynamic_dim(dimension):
                found = next(pairs)
                if (place, dimension) == (number, axis):
                    return found
    return None


def _called(op: ir.Operation) -> ir.Operation | None:
    """The function that a call refers to, if it has a body."""
    symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    for function in _functions(module_of(op)):
        if symbol_of(function) == symbol:
            return function
    return None


def _function(
    module: ir.Operation,
    name: str,
    said: Mapping[str, ir.Attribute],
    reference: Callable[..., Sequence[ir.Value]],
) -> str:
    """The symbol of the function with the attributes `said`, which is built if there is none."""
    taken = set()
    for op in _functions(module):
        symbol = symbol_of(op)
        taken.add(symbol)
        if all(key in op.attributes and op.attributes[key] == said[key] for key in said):
            return symbol
    stem = f"mxc.{name}"
    names = (stem, *(f"{stem}.{number}" for number in range(1, len(taken) + 1)))
    symbol = next(each for each in names if each not in taken)
    block_of_module = module.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block_of_module), ir.Location.unknown():
        function = ir.Operation.create(
            "util.func",
            attributes={
                **said,
                "sym_name": ir.StringAttr.get(symbol),
                "sym_visibility": ir.StringAttr.get("private"),
            },
            regions=1,
        )
    kinds = ir.FunctionType(ir.TypeAttr(said["function_type"]).value).inputs
    block = function.regions[0].blocks.append(*kinds)
    with ir.InsertionPoint(block), ir.Location.name(symbol):
        ir.Operation.create("util.return", operands=list(reference(*block.arguments)))
    return symbol


def _functions(module: ir.Operation) -> Iterator[ir.Operation]:
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name in _FUNCTIONS and len(op.operation.regions[0].blocks):
            yield op.operation


def _marked(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the operations inside `op` that are marked as a product."""
    for region in op.regions:
        for block in region.blocks:
            for each in block.operations:
                if PRODUCT in each.operation.attributes:
                    yield each.operation
                yield from _marked(each.operation)


def _module_here() -> ir.Operation:
    block = ir.InsertionPoint.current.block
    return module_of(block.owner)


def module_of(op: ir.Operation | ir.OpView) -> ir.Operation:
    """The module that contains an operation."""
    found = op.operation
    while found.name != "builtin.module":
        found = found.parent.operation
    return found
