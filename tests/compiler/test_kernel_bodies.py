"""Kernel bodies come back to where they were, whatever IREE made of what stands before them."""

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.kernel_bodies import KernelBodies
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import walk

PROGRAM = """
stream.executable private @ours {
  stream.executable.export public @ours workgroups() -> (index, index, index) {
    %c1 = arith.constant 1 : index
    stream.return %c1, %c1, %c1 : index, index, index
  }
  builtin.module {
    func.func @ours(%a: !stream.binding, %b: !stream.binding, %n: index) attributes {
        translation_info = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>} {
      %c0 = arith.constant 0 : index
      %x = stream.binding.subspan %a[%c0] : !stream.binding -> memref<?xf32>{%n}
      %y = stream.binding.subspan %b[%c0] : !stream.binding -> memref<?xf32>{%n}
      %c1 = arith.constant 1 : index
      scf.for %i = %c0 to %n step %c1 {
        %v = memref.load %x[%i] : memref<?xf32>
        memref.store %v, %y[%i] : memref<?xf32>
      }
      return
    }
  }
}
stream.executable private @theirs {
  stream.executable.export public @theirs workgroups() -> (index, index, index) {
    %c1 = arith.constant 1 : index
    stream.return %c1, %c1, %c1 : index, index, index
  }
  builtin.module {
    func.func @theirs(%a: !stream.binding) {
      %c0 = arith.constant 0 : index
      %x = stream.binding.subspan %a[%c0] : !stream.binding -> memref<4xf32>
      %v = memref.load %x[%c0] : memref<4xf32>
      memref.store %v, %x[%c0] : memref<4xf32>
      return
    }
  }
}
"""


def names(module: ir.Operation) -> list[str]:
    return [op.name for op in walk(module)]


def test_there_and_back() -> None:
    with new_context():
        module = ir.Module.parse(PROGRAM)
        before = str(module)
        bodies = KernelBodies()
        bodies.take(module.operation)
        assert module.operation.verify()
        found = names(module.operation)
        assert "scf.for" not in found
        assert found.count("stream.binding.subspan") == 3
        assert found.count("func.call") == 1
        assert found.count("memref.store") == 1  # of the kernel that is not ours
        bodies.put_back(module.operation)
        assert module.operation.verify()
        assert str(module) == before


def test_what_stands_before_the_call_may_change() -> None:
    """IREE replaces scalars by constants, gives bindings offsets, and repeats executables."""
    with new_context():
        module = ir.Module.parse(PROGRAM)
        bodies = KernelBodies()
        bodies.take(module.operation)
        first = module.body.operations[0].operation
        (function, _) = (op for op in walk(first) if op.name == "func.func")
        block = function.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
            seven = arith.constant(ir.IndexType.get(), 7)
        block.arguments[2].replace_all_uses_with(seven)
        with ir.InsertionPoint(first):
            first.clone().attributes["sym_name"] = ir.StringAttr.get("copy")
        bodies.put_back(module.operation)
        assert module.operation.verify()
        assert names(module.operation).count("scf.for") == 2
        assert "func.call" not in names(module.operation)
        assert str(module).count("to %c7 step") == 2


def test_a_kernel_that_was_dropped_stays_away() -> None:
    with new_context():
        module = ir.Module.parse(PROGRAM)
        bodies = KernelBodies()
        bodies.take(module.operation)
        module.body.operations[0].operation.erase()
        bodies.put_back(module.operation)
        assert module.operation.verify()
        assert "scf.for" not in names(module.operation)
