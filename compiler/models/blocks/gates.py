"""Activation functions of MLPs: of gate and up, or of one input."""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.primitives import capped, f32, parts_of
from mxc.dialects.generic import constant, generic, shape_of

#: activation(gate, up), two f32 scalars.
Activation = Callable[[ir.Value, ir.Value], ir.Value]
#: An activation of one f32 scalar.
Plain = Callable[[ir.Value], ir.Value]


def gated(y: ir.Value, activation: Activation) -> ir.Value:
    """activation(gate, up) of y [.., 2 I], whose first I columns are gate: f32 [.., I]."""
    gate, up = parts_of(y, [shape_of(y)[-1] // 2] * 2)
    return combined(gate, up, activation)


def combined(gate: ir.Value, up: ir.Value, activation: Activation) -> ir.Value:
    """activation(gate, up), both [.., I]: f32 [.., I]."""
    loops = " ".join("gmi"[-len(shape_of(gate)) :])
    return generic([(gate, loops), (up, loops)], loops, f32(), activation)


def silu(gate: ir.Value, up: ir.Value) -> ir.Value:
    """gate * sigmoid(gate) * up."""
    return arith.mulf(swish(gate), up)


def sigmoid(x: ir.Value) -> ir.Value:
    """1 / (1 + exp(-x)) of an f32 scalar."""
    one = constant(1.0, f32())
    return arith.divf(one, arith.addf(one, math.exp(arith.negf(x))))


def swish(x: ir.Value) -> ir.Value:
    """x * sigmoid(x) of an f32 scalar: SiLU without a gate."""
    return arith.mulf(x, sigmoid(x))


def gelu(gate: ir.Value, up: ir.Value) -> ir.Value:
    """GELU(gate) * up, by the error function."""
    return arith.mulf(gelu_erf(gate), up)


def gelu_tanh_gate(gate: ir.Value, up: ir.Value) -> ir.Value:
    """GELU(gate) * up, by the approximation with tanh."""
    return arith.mulf(gelu_tanh(gate), up)


@dataclass(frozen=True, kw_only=True)
class Situ:
    """SiTU: c(gate, beta) * sigmoid(gate) * c(up, linear_beta), where c(x, b) = b tanh(x / b).

    `linear_beta`: None for up as it is. Source: the code in moonshotai/Kimi-K3 (SituAndMul).
    """

    beta: float
    linear_beta: float | None

    def __call__(self, gate: ir.Value, up: ir.Value) -> ir.Value:
        """Build the gated value of two f32 scalars."""
        bent = arith.mulf(capped(gate, self.beta), sigmoid(gate))
        return arith.mulf(bent, up if self.linear_beta is None else capped(up, self.linear_beta))


def gelu_erf(x: ir.Value) -> ir.Value:
    """x / 2 * (1 + erf(x / sqrt(2))) of an f32 scalar."""
    half = arith.mulf(x, constant(0.5, f32()))
    error = math.erf(arith.mulf(x, constant(0.5**0.5, f32())))
    return arith.mulf(half, arith.addf(constant(1.0, f32()), error))


def gelu_tanh(x: ir.Value) -> ir.Value:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) of an f32 scalar."""
    cube = arith.mulf(arith.mulf(x, x), x)
    inner = arith.addf(x, arith.mulf(constant(0.044715, f32()), cube))
    bend = math.tanh(arith.mulf(constant((2 / pi) ** 0.5, f32()), inner))
    half = arith.mulf(x, constant(0.5, f32()))
    return arith.mulf(half, arith.addf(constant(1.0, f32()), bend))


def relu2(x: ir.Value) -> ir.Value:
    """The square of max(x, 0); NaN stays."""
    positive = arith.maximumf(x, constant(0.0, x.type))
    return arith.mulf(positive, positive)


#: Gates by the name of their activation in configs (transformers' ACT2FN).
GATES: dict[str, Activation] = {
    "silu": silu,
    "swish": silu,
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_tanh_gate,
    "gelu_new": gelu_tanh_gate,
}

#: The name of `Situ` in configs.
SITU = "situ"

#: Activations without a gate, by their names in configs.
PLAIN: dict[str, Plain] = {
    "silu": swish,
    "swish": swish,
    "gelu": gelu_erf,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_new": gelu_tanh,
    "relu2": relu2,
}
