"""Write a kernel in the kernel language, schedule it, interpret it in numpy, use it in a program.

    Y[n] = sum over k of A[k, n] * A[k, n]

A pass replaces calls of @column_squares by dispatches of the kernel; IREE compiles and runs them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from iree import runtime
from iree.compiler import ir
from iree.compiler.api import Output, Session
from iree.compiler.dialects import arith, math, vector

from mxc import passes
from mxc.errors import PassError
from mxc.kernels.interpret import interpret
from mxc.kernels.language import Array, Atom, Do, Element, Kernel
from mxc.kernels.layout import layout
from mxc.kernels.lowering.index import value_of
from mxc.kernels.lowering.nest import lower, workgroups
from mxc.kernels.lowering.places import CurrentTile, Places
from mxc.kernels.printer import printed
from mxc.kernels.schedule import over, place, use
from mxc.passes.kernels.executables import dispatch, executable

K, N = 96, 128
LANES = 16
COLUMNS = 64
F32 = Element("f32", 32, np.float32)


def definition(k: int, n: int) -> Kernel:
    """Return the kernel's definition, without loops and memory spaces."""
    arrays = (Array("A", F32, ("k", "n"), "global"), Array("T", F32, ("n",)),
              Array("Y", F32, ("n",), "global"))  # fmt: skip
    body = (Do("zero", "T"), Do("dot", "T", ("A", "A")), Do("map", "Y", ("T",)))
    return Kernel("column_squares", {"n": n, "k": k}, {each.name: each for each in arrays}, body)


def schedule(kernel: Kernel) -> Iterator[Kernel]:
    """Yield the kernel after each schedule step; all compute the same result."""
    yield kernel
    kernel = over(kernel, "n", COLUMNS, "T=0 T+= Y=", grid=True)
    kernel = over(kernel, "k", 1, "T+=")
    yield kernel
    lanes = layout("| n0 n1 n2 n3")
    kernel = place(kernel, "T", "register", lanes)
    multiply_add = Atom("multiply-add", (lanes,) * 3, lambda sums, a, b: sums + a * b)
    yield use(kernel, "T+=", multiply_add)


@dataclass
class ColumnStatements:
    """Emits the three statements on vectors of LANES columns."""

    places: Places

    def enter(self, held: Any, tile: CurrentTile) -> None:
        """Do nothing: there is nothing to prepare before a loop."""

    def emit(self, do: Do, tile: CurrentTile) -> None:
        """Emit one statement on a tile."""
        kind = ir.VectorType.get([LANES], ir.F32Type.get())
        sums, memory = self.places.registers["T"], self.places.memory
        for n in range(0, tile.sizes["n"], LANES):
            at = tile.moved({"n": n})
            key = self.places.key("T", at)
            if do.op == "zero":
                zero = ir.FloatAttr.get(ir.F32Type.get(), 0.0)
                sums[key] = arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, zero))
            elif do.op == "dot":
                a = vector.load(kind, memory["A"], [value_of(at["k"]), value_of(at["n"])])
                sums[key] = math.fma(a, a, sums[key])
            else:
                vector.store(sums[key], memory["Y"], [value_of(at["n"])])


@passes.register
@dataclass(frozen=True)
class LowerColumnSquares(passes.Pass):
    """Replaces calls of @column_squares by dispatches of the kernel."""

    name = "example-lower-column-squares"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every call; PassError where the columns are no whole number of workgroups."""
        for function in list(module.regions[0].blocks[0].operations):
            for block in function.regions[0].blocks:
                for op in [view.operation for view in block.operations]:
                    if op.name == "func.call" and "column_squares" in str(op.attributes["callee"]):
                        self._lower(op, module)

    def _lower(self, call: ir.Operation, module: ir.Operation) -> None:
        k, n = call.operands[0].type.shape
        if n % COLUMNS:
            raise PassError(f"{n} columns, no multiple of {COLUMNS}", call.location)
        *_, kernel = schedule(definition(k, n))

        def body(a: ir.Value, y: ir.Value) -> None:
            memory, sizes = {"A": a, "Y": y}, {"n": n, "k": k}
            lower(kernel, memory, sizes, lambda _, places: ColumnStatements(places))

        f32 = ir.F32Type.get()
        name = f"column_squares_{k}x{n}"
        counts = [n // by for _, by in workgroups(kernel).values()]
        with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]), call.location:
            kinds = [ir.MemRefType.get(s, f32) for s in ((k, n), (n,))]
            executable(name, kinds, lambda _: counts, body)
        with ir.InsertionPoint(call), call.location:
            made = dispatch(name, [call.operands[0]], [call.results[0].type])
        call.results[0].replace_all_uses_with(made.results[0])
        call.erase()


a = np.random.default_rng(0).standard_normal((K, N)).astype(np.float32)
wanted = (a * a).sum(axis=0)
for kernel in schedule(definition(K, N)):
    print(printed(kernel))
    y = np.full(N, np.nan, np.float32)
    interpret(kernel, {"A": a.reshape(-1), "Y": y})
    np.testing.assert_allclose(y, wanted, rtol=1e-5)

session = Session()
session.set_flags(
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
with session.context:
    module = ir.Module.parse(f"""
    func.func private @column_squares(tensor<{K}x{N}xf32>) -> tensor<{N}xf32>
    func.func @norms(%a: tensor<{K}x{N}xf32>) -> tensor<{N}xf32> {{
      %0 = call @column_squares(%a) : (tensor<{K}x{N}xf32>) -> tensor<{N}xf32>
      %1 = math.sqrt %0 : tensor<{N}xf32>
      return %1 : tensor<{N}xf32>
    }}""")
passes.run(passes.parse("example-lower-column-squares, symbol-dce"), module)
invocation = session.invocation()
invocation.enable_console_diagnostics()
invocation.import_module(module.operation)
assert invocation.execute()
output = Output.open_membuffer()
invocation.output_vm_bytecode(output)
compiled = runtime.load_vm_flatbuffer(bytes(output.map_memory()), driver="local-sync")
np.testing.assert_allclose(compiled.norms(a).to_host(), np.linalg.norm(a, axis=0), rtol=1e-5)
