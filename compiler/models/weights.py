"""Weights of a model as its program reads them, and the products of activations with them.

The checkpoint's plain weights keep their type, or become blocks of an MX format while they are
packed: [N, K] is then read as the parameters `_blocks` and `_scales` of the same name.
"""

from collections.abc import Mapping

from iree.compiler import ir

from mxc.compiler.models.activations import Activations, Blocks
from mxc.compiler.models.blocks import add_bias, linear
from mxc.dialects.boundary import unpack
from mxc.dialects.dequantize import is_byte
from mxc.dialects.formats import BlockFormat
from mxc.dialects.manifest import BLOCKS, SCALES
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction

#: safetensors dtype -> MLIR element type of the parameter.
ELEMENTS = {
    "BF16": ir.BF16Type,
    "F16": ir.F16Type,
    "F32": ir.F32Type,
}


class Weights:
    """The parameters of one module, and what meets them."""

    def __init__(
        self,
        parameters: Parameters,
        dtypes: Mapping[str, str],
        activations: Activations,
        dense: BlockFormat | None,
    ) -> None:
        """`dtypes`: safetensors dtype by name; `dense`: what dense weights are quantised to."""
        self._parameters = parameters
        self._dtypes = dtypes
        self._activations = activations
        self._dense = dense

    def load(self, name: str, *shape: int) -> ir.Value:
        """A parameter in the type that the checkpoint has it in."""
        return self._parameters.load(name, shape, ELEMENTS[self._dtypes[name]].get())

    def blocked(
        self, name: str, format: BlockFormat, rows: list[int], depth: int
    ) -> tuple[ir.Value, ir.Value]:
        """Elements [.., K / 32, 32] and scales [.., K / 32] of a weight [*rows, K]."""
        i8 = ir.IntegerType.get_signless(8)
        shape = [*rows, format.blocks(depth)]
        elements = self._parameters.load(f"{name}{BLOCKS}", [*shape, format.block_bytes], i8)
        scales = self._parameters.load(f"{name}{SCALES}", shape, i8)
        kind = ir.Type.parse(format.element.mlir)
        elements = elements if is_byte(kind) else unpack(elements, kind)
        return elements, unpack(scales, ir.Type.parse(format.scale.mlir))

    def prepare(self, x: ir.Value) -> Blocks | ir.Value:
        """x f32 [T, K] as dense weights see it, for every `linear` that reads it."""
        return self._activations.round(x) if self._dense is None else self._activations.blocks(x)

    def linear(
        self,
        x: Blocks | ir.Value,
        name: str,
        weight: str,
        shape: tuple[int, int],
        bias: str | None = None,
    ) -> ir.Value:
        """x [T, K] times the parameter `weight` [N, K] = `shape`, plus `bias` [N]: f32 [T, N].

        Activations in blocks meet the blocks of the weight. `name` is what reports call it.
        """
        shift = None if bias is None else self.load(bias, shape[0])
        with ir.Location.name(name):
            if not isinstance(x, Blocks):
                return linear(x, self.load(weight, *shape), shift)
            if self._dense is None:
                raise ValueError(f"{weight} is not in blocks")
            elements, scales = self.blocked(weight, self._dense, [shape[0]], shape[1])
            y = scaled_contraction(
                x.elements, elements, lhs_scale=x.scales, rhs_scale=scales, name=name
            )
            return add_bias(y, shift)
