"""What is between the two halves of an MLP: an activation of gate and up."""

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith, math, tensor

from mxc.compiler.models.blocks.primitives import f32
from mxc.dialects.generic import constant, generic, shape_of

#: activation(gate, up), two f32 scalars.
Activation = Callable[[ir.Value, ir.Value], ir.Value]


def gated(y: ir.Value, activation: Activation) -> ir.Value:
    """activation(gate, up) of y [.., 2 I], whose first I columns are gate: f32 [.., I]."""
    *lead, width = shape_of(y)
    sizes = [*lead, width // 2]
    kind = ir.RankedTensorType.get(sizes, f32())
    halves = [
        tensor.extract_slice(
            kind, y, [], [], [], [*[0] * len(lead), half * (width // 2)], sizes, [1] * len(sizes)
        )
        for half in range(2)
    ]
    return combined(halves[0], halves[1], activation)


def combined(gate: ir.Value, up: ir.Value, activation: Activation) -> ir.Value:
    """activation(gate, up), both [.., I]: f32 [.., I]."""
    loops = " ".join("gmi"[-len(shape_of(gate)) :])
    return generic([(gate, loops), (up, loops)], loops, f32(), activation)


def silu(gate: ir.Value, up: ir.Value) -> ir.Value:
    """gate * sigmoid(gate) * up."""
    one = constant(1.0, f32())
    sigmoid = arith.divf(one, arith.addf(one, math.exp(arith.negf(gate))))
    return arith.mulf(arith.mulf(gate, sigmoid), up)
