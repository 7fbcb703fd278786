"""Moves the bodies of kernels out of the program while IREE phases run that do not need them.

The body of a kernel of ours is final when it is made: vectors, loops and intrinsics. In a small
model such bodies are nineteen of twenty operations. Each IREE pass up to the stream phase would
visit and canonicalize them, which took a quarter of the compile time.

before:
    stream.executable private @k { .. builtin.module { func.func @k(%b0: !stream.binding, ..) {
      %0 = stream.binding.subspan %b0[%c0] : !stream.binding -> memref<..>
      scf.for .. { .. }
      return } } }
after `take` (`put_back` is the inverse):
    stream.executable private @k { .. builtin.module { func.func @k(%b0: !stream.binding, ..) {
      %0 = stream.binding.subspan %b0[%c0] : !stream.binding -> memref<..>
      func.call @mxc.body.k(%0)
      return }
      func.func private @mxc.body.k(memref<..>) } }

In between, IREE may merge bindings, add offsets to them and pass scalars differently. Such changes
only touch the operations before the call.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.dispatches import KERNEL
from mxc.passes.kernels.executables import TRANSLATION, is_finished

_SUBSPAN, _RETURN = "stream.binding.subspan", "func.return"
_CALL, _FUNCTION, _MODULE = "func.call", "func.func", "builtin.module"
_CALLEE, _NAME = "callee", "sym_name"
_PREFIX = "mxc.body."


class KernelBodies:
    """The bodies taken out of one program, by the symbol of the function that replaces each."""

    def __init__(self) -> None:
        """Start without bodies."""
        self._held: dict[str, ir.Operation] = {}

    def take(self, module: ir.Operation) -> None:
        """Take out the body of each kernel that IREE's code generator leaves unchanged."""
        for inner in _modules(module):
            for function in _functions(inner):
                if TRANSLATION in function.attributes and is_finished(
                    function.attributes[TRANSLATION]
                ):
                    self._take(inner, function)

    def put_back(self, module: ir.Operation) -> None:
        """Replace each call of a held symbol by its body, and remove the declarations."""
        for inner in _modules(module):
            for function in _functions(inner):
                for call in _operations(function):
                    if call.name == _CALL and _callee(call) in self._held:
                        _splice(call, self._held[_callee(call)])
            for declared in _functions(inner):
                if ir.StringAttr(declared.attributes[_NAME]).value in self._held:
                    declared.erase()
        for body in self._held.values():
            body.erase()
        self._held.clear()

    def _take(self, inner: ir.Operation, function: ir.Operation) -> None:
        block = function.regions[0].blocks[0]
        operations = [view.operation for view in block.operations]
        bindings = _with_operands([op for op in operations if op.name == _SUBSPAN])
        moved = [op for op in operations if op not in bindings and op.name != _RETURN]
        values = [*block.arguments, *(result for op in bindings for result in op.results)]
        captured = [value for value in values if _is_read_beside(value, bindings)]
        symbol = _PREFIX + ir.StringAttr(function.attributes[_NAME]).value
        with function.context, ir.Location.unknown():
            with ir.InsertionPoint(inner.regions[0].blocks[0]):
                declared = _function(symbol, [value.type for value in captured])
            with ir.InsertionPoint(block.operations[len(operations) - 1]):
                ir.Operation.create(
                    _CALL,
                    operands=captured,
                    attributes={_CALLEE: ir.FlatSymbolRefAttr.get(symbol)},
                )
            body = declared.clone(ip=False)
            inside = body.regions[0].blocks.append(*[value.type for value in captured])
            with ir.InsertionPoint(inside):
                end = ir.Operation.create(_RETURN)
            for op in moved:
                op.move_before(end)
            call = block.operations[len(block.operations) - 2].operation
            for value, argument in zip(captured, inside.arguments, strict=True):
                value.replace_all_uses_except(argument, [*bindings, call])
        self._held[symbol] = body


def _splice(call: ir.Operation, held: ir.Operation) -> None:
    """Replace `call` by a copy of the body `held`."""
    body = held.clone(ip=False)
    block = body.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    for op in [view.operation for view in block.operations]:
        if op.name != _RETURN:
            op.move_before(call)
    call.erase()
    body.erase()


def _modules(module: ir.Operation) -> list[ir.Operation]:
    """Return the builtin.module inside each executable."""
    return [
        inside.operation
        for top in module.regions[0].blocks[0].operations
        if top.operation.name == KERNEL
        for inside in top.operation.regions[0].blocks[0].operations
        if inside.operation.name == _MODULE
    ]


def _functions(inner: ir.Operation) -> list[ir.Operation]:
    tops = (view.operation for view in inner.regions[0].blocks[0].operations)
    return [op for op in tops if op.name == _FUNCTION]


def _operations(function: ir.Operation) -> list[ir.Operation]:
    return [view.operation for block in function.regions[0].blocks for view in block.operations]


def _callee(call: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes[_CALLEE]).value)


def _with_operands(ops: list[ir.Operation]) -> list[ir.Operation]:
    """Return `ops` and all operations that compute their operands, without duplicates."""
    found: list[ir.Operation] = []
    pending = list(ops)
    while pending:
        op = pending.pop()
        if op not in found:
            found.append(op)
            owners = (operand.owner for operand in op.operands)
            pending += [owner.operation for owner in owners if not isinstance(owner, ir.Block)]
    return found


def _is_read_beside(value: ir.Value, known: list[ir.Operation]) -> bool:
    return any(use.owner.operation not in known for use in value.uses)


def _function(symbol: str, arguments: list[ir.Type]) -> ir.Operation:
    """Create the declaration of a private function without results at the insertion point."""
    return ir.Operation.create(
        _FUNCTION,
        attributes={
            _NAME: ir.StringAttr.get(symbol),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(arguments, [])),
            "sym_visibility": ir.StringAttr.get("private"),
        },
        regions=1,
    )
