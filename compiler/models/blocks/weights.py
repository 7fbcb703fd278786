"""Weights of a model as its program reads them, and the products of activations with them.

A weight has the format of the checkpoint, or becomes blocks of an MX format while it is packed. In
blocks, [.., N, K] is read as the parameters `_blocks` and `_scales` of its name, and as
`_tensor_scales` [.., N] where the format has a scale of the whole tensor: tensors below one another
have each their own, and so may rows. Where the scales of blocks are all one, there are no
`_scales`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.artifact.manifest import BLOCKS, EXPERTS, INPUTS, SCALES
from mxc.compiler.models.blocks.activations import Activations, Blocks
from mxc.compiler.models.blocks.primitives import (
    add_bias,
    embed,
    embed_integers,
    f32,
    linear,
    rows_here,
    to_f32,
)
from mxc.dialects.boundary import unpack
from mxc.dialects.dequantize import is_byte
from mxc.dialects.generic import constant, fill, generic
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import BlockFormat

#: Format of a plain weight -> MLIR element type of the parameter.
ELEMENTS = {
    "bf16": ir.BF16Type,
    "f16": ir.F16Type,
    "f32": ir.F32Type,
}

#: Formats of parameters by key: a key of ELEMENTS, or how it lies in blocks.
Formats = Mapping[str, BlockFormat | str]

#: What the name of the tensor scales ends with.
TENSOR_SCALES = "_tensor_scales"


@dataclass(frozen=True)
class Inputs:
    """Activations as the weights that read them see them.

    `floats` for plain weights, `blocks` for weights in blocks, by the size of the block.
    """

    floats: ir.Value | None
    blocks: Mapping[int, Blocks] = field(default_factory=dict)


class Weights:
    """The parameters of one module, and what meets them."""

    def __init__(
        self,
        parameters: Parameters,
        formats: Formats,
        activations: Activations,
        *,
        observes: bool = False,
    ) -> None:
        """`formats`: of every parameter. `observes`: inputs of linear layers are collected."""
        self._parameters = parameters
        self._formats = formats
        self._activations = activations
        self._observes = observes
        self._observed: dict[str, ir.Value] = {}

    def observe(self, x: ir.Value, keys: Sequence[str], experts: ir.Value | None = None) -> None:
        """Collect x f32 [.., K], which the weights `keys` are multiplied with.

        `experts` i32: of a mixture, the expert that each row of x is for, or each choice of it.
        """
        if self._observes:
            self._observed[INPUTS + ", ".join(keys)] = x
            if experts is not None:
                self._observed[EXPERTS + ", ".join(keys)] = experts

    def take_observed(self) -> dict[str, ir.Value]:
        """What was collected since the last call, by the names of results."""
        found, self._observed = self._observed, {}
        return found

    def has(self, key: str) -> bool:
        """Whether the model has such a parameter."""
        return key in self._formats

    def own(self, key: str) -> str | None:
        """`key` where the model has such a parameter: of several devices it may be on one."""
        return key if self.has(key) else None

    def format(self, key: str) -> BlockFormat | None:
        """The format of a weight in blocks; None where it is plain."""
        found = self._formats[key]
        return found if isinstance(found, BlockFormat) else None

    def load(self, key: str, *shape: int) -> ir.Value:
        """A plain parameter in the type that the checkpoint has it in."""
        return self._parameters.load(key, shape, ELEMENTS[str(self._formats[key])].get())

    def blocked(
        self, key: str, format: BlockFormat, rows: Sequence[int], depth: int
    ) -> tuple[ir.Value, ir.Value]:
        """Elements [.., K / block, block] and scales [.., K / block] of a weight [*rows, K]."""
        i8 = ir.IntegerType.get_signless(8)
        shape = [*rows, format.blocks(depth)]
        elements = self._parameters.load(f"{key}{BLOCKS}", [*shape, format.block_bytes], i8)
        kind = ir.Type.parse(format.element.mlir)
        elements = elements if is_byte(kind) else unpack(elements, kind)
        scale = ir.Type.parse(format.scale.mlir)
        if format.unit_scales:
            return elements, fill(shape, scale, 1.0)
        if scale == f32():
            return elements, self._parameters.load(f"{key}{SCALES}", shape, scale)
        return elements, unpack(self._parameters.load(f"{key}{SCALES}", shape, i8), scale)

    def lookup(
        self, tokens: ir.Value, key: str, shape: tuple[int, int], first: int | None = None
    ) -> ir.Value:
        """Rows `tokens` (i32 [T]) of the parameter `key` [N, H] = `shape`: f32 [T, H].

        `first`: the parameter has the rows from this one on of a larger table; others are zeros.
        """
        format, here = self.format(key), None
        if first is not None:
            tokens, here = rows_here(tokens, first, shape[0])
        if format is None:
            rows = embed(tokens, self.load(key, *shape))
        else:
            rows = embed_integers(tokens, *self.blocked(key, format, shape[:1], shape[1]))
        if here is None:
            return rows
        zero = constant(0.0, f32())
        return generic(
            [(rows, "m n"), (here, "m")], "m n", f32(), lambda x, own: arith.select(own, x, zero)
        )

    def tensor_scales(self, key: str, *rows: int) -> ir.Value | None:
        """f32 [*rows]: the scale of the tensor that each row is of, where the format has one."""
        format = self.format(key)
        if format is None or not format.tensor_scale:
            return None
        return self._parameters.load(f"{key}{TENSOR_SCALES}", rows, f32())

    def prepare(self, x: ir.Value, *keys: str) -> Inputs:
        """x f32 [T, K] as the weights `keys` see it, for every `linear` that reads it."""
        self.observe(x, keys)
        formats = [self.format(key) for key in keys]
        floats = self._activations.round(x) if None in formats else None
        sizes = {format.block: format for format in formats if format is not None}
        blocks = {size: self._activations.blocks(x, format) for size, format in sizes.items()}
        return Inputs(floats, blocks)

    def rows(self, x: ir.Value, key: str) -> Blocks:
        """x f32 [.., K] as the weight `key` sees it: for a plain one floats [.., K], no blocks."""
        format = self.format(key)
        if format is None:
            return Blocks(self._activations.round(x), None)
        return self._activations.blocks(x, format)

    def batched(self, x: ir.Value, name: str, key: str, shape: tuple[int, int, int]) -> ir.Value:
        """x f32 [B, T, K] times the weight [N, K] of each of B, `key` [B, N, K]: f32 [B, T, N].

        `name` is what reports call it.
        """
        format, rows = self.format(key), self.rows(x, key)
        with ir.Location.name(name):
            if format is None:
                return generic(
                    [(rows.elements, "g m k"), (self.load(key, *shape), "g n k")],
                    "g m n",
                    f32(),
                    lambda a, w, acc: arith.addf(acc, arith.mulf(to_f32(a), to_f32(w))),
                )
            elements, scales = self.blocked(key, format, shape[:2], shape[2])
            y = scaled_contraction(
                rows.elements, elements, lhs_scale=rows.scales, rhs_scale=scales, batch=1, name=name
            )
            for factors, letters in (
                (rows.factors, "g m"),
                (self.tensor_scales(key, *shape[:2]), "g n"),
            ):
                if factors is not None:
                    y = generic([(y, "g m n"), (factors, letters)], "g m n", f32(), arith.mulf)
            return y

    def linear(
        self, x: Inputs, name: str, key: str, shape: tuple[int, int], bias: str | None = None
    ) -> ir.Value:
        """x [T, K] times the parameter `key` [N, K] = `shape`, plus `bias` [N]: f32 [T, N].

        `name` is what reports call it.
        """
        shift = None if bias is None else self.load(bias, shape[0])
        format = self.format(key)
        with ir.Location.name(name):
            if format is None:
                if x.floats is None:
                    raise ValueError(f"{key} is plain; its activations were prepared in blocks")
                return linear(x.floats, self.load(key, *shape), shift)
            blocks = x.blocks[format.block]
            elements, scales = self.blocked(key, format, [shape[0]], shape[1])
            y = scaled_contraction(
                blocks.elements, elements, lhs_scale=blocks.scales, rhs_scale=scales, name=name
            )
            if blocks.factors is not None:
                y = generic([(y, "m n"), (blocks.factors, "m")], "m n", f32(), arith.mulf)
            factors = self.tensor_scales(key, shape[0])
            if factors is not None:
                y = generic([(y, "m n"), (factors, "n")], "m n", f32(), arith.mulf)
            return add_bias(y, shift)
