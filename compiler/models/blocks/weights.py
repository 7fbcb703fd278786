"""Loads of weights in a program, and products of activations with them.

A weight has the format of the checkpoint, or is quantized to an MX format while it is packed. A
weight [.., N, K] in blocks is read as two parameters, its name with `_blocks` and with `_scales`. A
format with tensor scales has a third one, `_tensor_scales` [.., N], since each row may have its own
factor: concatenated tensors have different ones. Formats whose block scales are all 1 have no
`_scales`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.artifact.manifest import BLOCKS, EXPERTS, INPUTS, SCALES
from mxc.compiler.models.blocks.activations import (
    Activations,
    BlockActivations,
    PreparationKey,
    preparation_key,
)
from mxc.compiler.models.blocks.primitives import (
    add_bias,
    embed,
    embed_integers,
    f32,
    linear,
    rows_here,
)
from mxc.dialects.boundary import unpack
from mxc.dialects.dequantize import is_byte
from mxc.dialects.generic import constant, fill, generic, to_f32
from mxc.dialects.parameters import Parameters
from mxc.dialects.repeated_rows import repeat_rows
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import BlockFormat

#: Format of a plain weight -> MLIR element type of the parameter.
ELEMENTS = {
    "bf16": ir.BF16Type,
    "f16": ir.F16Type,
    "f32": ir.F32Type,
}

#: Formats of parameters by key: a key of ELEMENTS, or a block format.
Formats = Mapping[str, BlockFormat | str]

#: Suffix of the name of tensor scales.
TENSOR_SCALES = "_tensor_scales"


@dataclass(frozen=True)
class PreparedInputs:
    """Prepared activations: `floats` for plain weights; `blocks` for weights in block formats, by
    the key of the format (`preparation_key`)."""

    floats: ir.Value | None
    blocks: Mapping[PreparationKey, BlockActivations] = field(default_factory=dict)


class Weights:
    """The parameters of one module, and the products of activations with them."""

    def __init__(
        self,
        parameters: Parameters,
        formats: Formats,
        activations: Activations,
        *,
        observes: bool = False,
    ) -> None:
        """formats: the format of every parameter. observes: collect inputs of linear layers."""
        self._parameters = parameters
        self._formats = formats
        self._activations = activations
        self._observes = observes
        self._observed: dict[str, ir.Value] = {}

    def observe(self, x: ir.Value, keys: Sequence[str], experts: ir.Value | None = None) -> None:
        """Collect x f32 [.., K], the input of the weights `keys`, if inputs are observed.

        experts i32: in a mixture, the expert of each row of x, or the chosen experts of each row.
        """
        if self._observes:
            self._observed[INPUTS + ", ".join(keys)] = x
            if experts is not None:
                self._observed[EXPERTS + ", ".join(keys)] = experts

    def take_observed(self) -> dict[str, ir.Value]:
        """Return the values collected since the last call, by the names of results."""
        found, self._observed = self._observed, {}
        return found

    def has(self, key: str) -> bool:
        """Whether the model has such a parameter."""
        return key in self._formats

    def own(self, key: str) -> str | None:
        """Return `key` if this device has the parameter, else None."""
        return key if self.has(key) else None

    def format(self, key: str) -> BlockFormat | None:
        """Return the block format of a weight; None for a plain weight."""
        found = self._formats[key]
        return found if isinstance(found, BlockFormat) else None

    def load(self, key: str, *shape: int) -> ir.Value:
        """Load a plain parameter in the type of the checkpoint."""
        return self._parameters.load(key, shape, ELEMENTS[str(self._formats[key])].get())

    def blocked(
        self, key: str, format: BlockFormat, rows: Sequence[int], depth: int
    ) -> tuple[ir.Value, ir.Value]:
        """Load elements [.., N, K / block, block] and scales [.., N, K / block] of a weight
        [.., N, K]; scales that rows share are repeated."""
        i8 = ir.IntegerType.get_signless(8)
        shape = [*rows, format.blocks(depth)]
        elements = self._parameters.load(f"{key}{BLOCKS}", [*shape, format.block_bytes], i8)
        kind = ir.Type.parse(format.element.mlir)
        elements = elements if is_byte(kind) else unpack(elements, kind)
        scale = ir.Type.parse(format.scale.mlir)
        if format.unit_scales:
            return elements, fill(shape, scale, 1.0)
        if scale == f32():
            few = [*rows[:-1], -(-rows[-1] // format.rows), shape[-1]]
            scales = self._parameters.load(f"{key}{SCALES}", few, scale)
            return elements, repeat_rows(scales, rows[-1], format.rows)
        return elements, unpack(self._parameters.load(f"{key}{SCALES}", shape, i8), scale)

    def lookup(
        self, tokens: ir.Value, key: str, shape: tuple[int, int], first: int | None = None
    ) -> ir.Value:
        """Look up rows `tokens` (i32 [T]) of the parameter `key` [N, H] = `shape`: f32 [T, H].

        first: the parameter has N rows of a larger table, from row `first` on; other rows give
        zeros.
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
        """Load the tensor scale of each row, f32 [*rows]; None where the format has none."""
        format = self.format(key)
        if format is None or not format.tensor_scale:
            return None
        return self._parameters.load(f"{key}{TENSOR_SCALES}", rows, f32())

    def prepare(self, x: ir.Value, *keys: str) -> PreparedInputs:
        """Prepare x f32 [T, K] for the weights `keys`, once for all `linear` that read it."""
        self.observe(x, keys)
        formats = [self.format(key) for key in keys]
        floats = self._activations.round(x) if None in formats else None
        own = {preparation_key(format): format for format in formats if format is not None}
        blocks = {key: self._activations.blocks(x, format) for key, format in own.items()}
        return PreparedInputs(floats, blocks)

    def rows(self, x: ir.Value, key: str) -> BlockActivations:
        """Prepare x f32 [.., K] for the weight `key`; floats [.., K] for a plain weight."""
        format = self.format(key)
        if format is None:
            return BlockActivations(self._activations.round(x), None)
        return self._activations.blocks(x, format)

    def batched(self, x: ir.Value, name: str, key: str, shape: tuple[int, int, int]) -> ir.Value:
        """Batched product of x f32 [B, T, K] and the parameter `key` [B, N, K]: f32 [B, T, N].

        name: the name of the operation in reports.
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
        self,
        x: PreparedInputs,
        name: str,
        key: str,
        shape: tuple[int, int],
        bias: str | None = None,
    ) -> ir.Value:
        """x [T, K] times the parameter `key` [N, K] = `shape`, plus `bias` [N]: f32 [T, N].

        name: the name of the operation in reports.
        """
        shift = None if bias is None else self.load(bias, shape[0])
        format = self.format(key)
        with ir.Location.name(name):
            if format is None:
                if x.floats is None:
                    raise ValueError(f"{key} is plain; its activations were prepared in blocks")
                return linear(x.floats, self.load(key, *shape), shift)
            blocks = x.blocks[preparation_key(format)]
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
