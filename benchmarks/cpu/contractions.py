"""Programs of mxfp4 products for each activation mode: one product, and a chain over many weights.

    chain:  x -> prepare -> x * w0 -> prepare -> (x * w0) * w1 -> ..

Each product of a chain depends on the previous one, like the layers of a model, and prepares its
own activations (rounds or quantizes them). A call of the chain computes so many products that the
overhead of a call from Python is negligible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor
from problems import BLOCK, Array, Shape, Weights
from programs import Loaded, Program, compile_build, laid_out, shape

from mxc.dialects.boundary import unpack
from mxc.dialects.generic import element_of, generic, shape_of
from mxc.dialects.parameters import Parameters
from mxc.dialects.quantize import quantize_int8
from mxc.dialects.scaled import scaled_contraction

#: Activation modes: the type to which activations are rounded before a product.
MODES = ("f32", "bf16", "i8")

#: Activations and, where they have one, the scale of their blocks.
Side = tuple[ir.Value, ir.Value | None]


def contraction_program(
    mode: str, problem: Shape, chains: Mapping[int, int], target: str = "cpu"
) -> Program:
    """Return a program with functions @one_M and @chain_M for each M of `chains`.

    Both map f32 [M, k] to f32 [M, n]. @one_M multiplies by the weight w0; @chain_M by chains[M]
    weights w0, w1, .. in turn: the first M * k numbers of a result are the next activations. Raises
    ValueError if n is less than k, so that a result has too few numbers.
    """
    if problem.n < problem.k:
        raise ValueError(f"{problem}: n must be k at least")

    def build(parameters: Parameters) -> None:
        f32 = ir.F32Type.get()
        for m, chain in chains.items():
            for name, count in ((f"one_{m}", 1), (f"chain_{m}", chain)):
                body = _chain(mode, problem, m, count, parameters)
                func.FuncOp.from_py_func(shape(m, problem.k, of=f32), name=name)(body)

    return compile_build(build, target)


def load_rotation(program: Program, weights: Weights, copies: int, threads: int) -> Loaded:
    """Load the program with `copies` copies of one weight, each at an address of its own."""
    given: dict[str, Array] = {}
    for name, rows in (("w", weights.packed), ("s", weights.scales)):
        # The panel layout is the same for all copies of a tensor.
        data = laid_out(program, f"{name}0", rows)
        given |= {f"{name}{i}": data.copy() for i in range(copies)}
    return Loaded(program.code, given, threads)


def _chain(
    mode: str, problem: Shape, m: int, count: int, parameters: Parameters
) -> Callable[[ir.Value], ir.Value]:
    blocks = problem.k // BLOCK

    def body(x: ir.Value) -> ir.Value:
        i8 = ir.IntegerType.get_signless(8)
        for i in range(count):
            packed = parameters.load(f"w{i}", (problem.n, blocks, BLOCK // 2), i8)
            scales = parameters.load(f"s{i}", (problem.n, blocks), i8)
            lhs, lhs_scale = prepare_activations(mode, carried(x, m, problem.k))
            x = scaled_contraction(
                lhs,
                unpack(packed, ir.Float4E2M1FNType.get()),
                lhs_scale=lhs_scale,
                rhs_scale=unpack(scales, ir.Float8E8M0FNUType.get()),
                name=f"product{i}",
            )
        return x

    return body


def carried(x: ir.Value, m: int, k: int, block: int = BLOCK) -> ir.Value:
    """Return the first m * k numbers of x [m, ..] as activations [m, k / block, block].

    These are not the first k columns, which would have to be copied, because they are not
    contiguous. The result of a chain is never checked, so any numbers will do.
    """
    kind = ir.RankedTensorType(x.type)
    if kind.shape[1] != k:
        flat = shape(m * kind.shape[1], of=kind.element_type)
        part = shape(m * k, of=kind.element_type)
        x = tensor.collapse_shape(flat, x, [[0, 1]])
        x = tensor.extract_slice(part, x, [], [], [], [0], [m * k], [1])
        whole = shape(m, k, of=kind.element_type)
        x = tensor.expand_shape(whole, x, [[0, 1]], [], [m, k])
    split = shape(m, k // block, block, of=kind.element_type)
    return tensor.expand_shape(split, x, [[0], [1, 2]], [], [m, k // block, block])


def prepare_activations(mode: str, x: ir.Value) -> Side:
    """Round activations f32 [m, blocks, block] as the mode says.

    Returns elements of the same shape and, for i8, scales [m, blocks]; None for other modes.
    """
    if mode == "f32":
        return x, None
    if mode == "bf16":
        bf16 = ir.BF16Type.get()
        return generic([(x, "m o b")], "m o b", bf16, lambda v: arith.truncf(bf16, v)), None
    m, blocks, block = shape_of(x)
    kind = ir.RankedTensorType.get([m, blocks * block], element_of(x))
    return quantize_int8(tensor.collapse_shape(kind, x, [[0], [1, 2]]), block)


def both_scaled_program(m: int, problem: Shape) -> Program:
    """Return a program with @main: mxfp4 x i8 [m, k / 32, 16] with scales i8 [m, k / 32], times the
    mxfp4 parameters w0 (elements) and s0 (scales)."""
    blocks = problem.k // BLOCK

    def build(parameters: Parameters) -> None:
        i8 = ir.IntegerType.get_signless(8)
        kinds = [shape(m, blocks, BLOCK // 2, of=i8), shape(m, blocks, of=i8)]

        def main(x: ir.Value, x_scales: ir.Value) -> ir.Value:
            packed = parameters.load("w0", (problem.n, blocks, BLOCK // 2), i8)
            scales = parameters.load("s0", (problem.n, blocks), i8)
            return f4_by_f4(x, x_scales, packed, scales)

        func.FuncOp.from_py_func(*kinds, name="main")(main)

    return compile_build(build)


def f4_by_f4(x: ir.Value, x_scales: ir.Value, w: ir.Value, w_scales: ir.Value) -> ir.Value:
    """Build the contraction of two mxfp4 operands, whose elements and scales are given as bytes."""
    f4, e8m0 = ir.Float4E2M1FNType.get(), ir.Float8E8M0FNUType.get()
    return scaled_contraction(
        unpack(x, f4),
        unpack(w, f4),
        lhs_scale=unpack(x_scales, e8m0),
        rhs_scale=unpack(w_scales, e8m0),
        name="f4_by_f4",
    )


def exact_product(x: Weights, w: Weights) -> Array:
    """Return the product [m, n] in float32, computed with integers and rounded once at the end.

    Elements are multiples of 1/2 and scales are 2^(s - 127). In units of 2^-32, the product of two
    blocks is a whole number, and 64-bit integers hold the sums. Raises ValueError if the scales are
    too small or too large for that.
    """
    doubled = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int64)
    blocks = np.einsum("mob,nob->omn", doubled[x.codes], doubled[w.codes])
    powers = x.scales.T[:, :, None].astype(np.int64) + w.scales.T[:, None, :] - 254 + 30
    if powers.min() < 0 or powers.max() > 40:
        raise ValueError("scales are too far from 1 for sums of 64 bits")
    exact: Array = (blocks << powers).sum(axis=0).astype(np.float64) * 2.0**-32
    return exact.astype(np.float32)
